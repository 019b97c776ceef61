/* Converts 16-bit sound to the 256 classes of mu-law companding, as networks such as WaveNet read and write it:
 *
 *     class = floor((f(x) + 1) / 2 * 255 + 0.5),   f(x) = sign(x) ln(1 + 255 |x|) / ln(256),   x = sample / 32768
 *
 * (A. van den Oord et al., "WaveNet", 2016, section 2.2; rounded as by torchaudio.functional.mu_law_encoding.) */
#include "penstock.h"

/* The class of every sample, by the bits of the sample. */
static uint8_t classes[65536];

/* A class begins where f(x) = 2 n / 255, n steps from the middle: where |x| = (r^n - 1) / 255 with r = 256^(2/255). The bounds
 * need powers of r only, no logarithm. */
struct text set_up(struct text params) {
    const double ratio = 1.0444512081424502, unit = 32768.0 / 255.0;
    int32_t step = 0;
    double power = 1.0; /* of the step */
    (void)params; /* the manifest declares no params, so the runner passes none */
    for (int32_t sample = 0; sample <= INT16_MAX; sample++) {
        while (step < 127 && sample >= (power * ratio - 1.0) * unit) step++, power *= ratio;
        classes[sample] = 128 + step;
    }
    step = 1, power = ratio;
    for (int32_t size = 1; size <= -INT16_MIN; size++) {
        while (step < 128 && size > (power - 1.0) * unit) step++, power *= ratio;
        classes[(uint16_t)-size] = 128 - step;
    }
    return text_of("");
}

static uint16_t read16(const uint8_t *bytes) { return bytes[0] | bytes[1] << 8; }
static uint32_t read32(const uint8_t *bytes) { return read16(bytes) | (uint32_t)read16(bytes + 2) << 16; }
static bool is(const uint8_t *bytes, const char *name) { return read32(bytes) == read32((const uint8_t *)name); }

static struct outcome failed(struct text reason) { return (struct outcome){.type = FAILED, .failed = reason}; }

/* Content of a WAV file: its samples, and their number of channels. */
struct sound { struct blob samples; uint16_t channels; };

/* Reads the chunks of a WAV file; returns an error message, empty if there is none. Every length in the file is checked before use. */
static struct text read_wav(struct blob file, struct sound *sound) {
    *sound = (struct sound){0};
    if (file.length < 12 || !is(file.bytes, "RIFF") || !is(file.bytes + 8, "WAVE"))
        return message("% bytes that do not start with `RIFF` and `WAVE` are not a WAV file", file.length, 0);
    size_t at = 12;
    while (file.length - at >= 8) {
        const uint8_t *chunk = file.bytes + at;
        uint32_t length = read32(chunk + 4), left = file.length - at - 8;
        bool is_format = is(chunk, "fmt "), is_data = is(chunk, "data");
        if ((is_format || is_data) && length > left)
            return message("a chunk should have % bytes, but the file ends after %", length, left);
        if (is_format) {
            const uint8_t *format = chunk + 8;
            if (length < 16) return message("the `fmt ` chunk has % bytes, but 16 are needed", length, 0);
            uint16_t bits = read16(format + 14), block = read16(format + 12);
            sound->channels = read16(format + 2);
            if (read16(format) != 1 || bits != 16)
                return message("the format tag is % with % bits, but only 1 (PCM) with 16 bits is supported", read16(format), bits);
            if (sound->channels == 0 || block != 2 * sound->channels)
                return message("% channels of 16 bits do not make frames of % bytes", sound->channels, block);
        } else if (is_data) {
            if (sound->channels == 0) return text_of("the `data` chunk comes before any `fmt ` chunk");
            if (length % (2 * sound->channels) != 0)
                return message("% bytes of samples are not whole frames of %", length, 2 * sound->channels);
            sound->samples = (struct blob){chunk + 8, length};
            return text_of("");
        }
        if (length >= left) break;
        at += 8 + length + length % 2;
    }
    return text_of("the file has no `data` chunk");
}

struct outcome process(struct item item) {
    const struct value *file = find(&item, "bytes", BLOB);
    if (file == NULL) return failed(text_of("no field `bytes` of type blob"));
    struct sound sound;
    struct text wrong = read_wav(file->blob, &sound);
    if (wrong.length > 0) return failed(wrong);

    size_t count = sound.samples.length / 2, at = 0;
    uint8_t *encoded = allocate(count);
    const uint8_t *samples = sound.samples.bytes;
    /* Eight at a time: the runtime checks the deadline at the end of every iteration. */
    for (; at + 8 <= count; at += 8)
        for (size_t next = 0; next < 8; next++) encoded[at + next] = classes[read16(samples + 2 * (at + next))];
    for (; at < count; at++) encoded[at] = classes[read16(samples + 2 * at)];

    uint32_t *shape = allocate(2 * sizeof *shape);
    shape[0] = count / sound.channels, shape[1] = sound.channels;
    struct field *codes = allocate(sizeof *codes);
    codes->name = text_of("codes");
    codes->value = (struct value){.type = TENSOR, .tensor = {.dtype = UINT8, .shape = {shape, 2}, .data = {encoded, count}}};
    item.fields = (struct fields){codes, 1};
    return (struct outcome){.type = KEEP, .keep = item};
}
