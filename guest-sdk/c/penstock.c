/* The boundary: exports, imports and memory. Stages use this file unchanged; `penstock module manifest` adds the custom sections that the
 * runner requires. */
#include "penstock.h"

#define HOST(name) __attribute__((import_module("penstock:stage/host@0.1.0"), import_name(name)))
#define TRANSFORM(name) __attribute__((export_name("penstock:stage/transform@0.1.0#" name)))
#define AFTER(name) __attribute__((export_name("cabi_post_penstock:stage/transform@0.1.0#" name)))

struct refusal { uint8_t is_refused; struct text reason; };

HOST("log") void host_log(int32_t level, const char *bytes, size_t length);
HOST("count") void host_count(const char *name, size_t length, double amount);
HOST("asset") void host_asset(const char *name, size_t length, struct refusal *answer);
HOST("memory-limit") uint64_t host_memory_limit(void);

void write_log(enum level level, struct text line) {
    host_log(level, line.bytes, line.length);
}

void count(const char *counter, double amount) {
    host_count(counter, text_of(counter).length, amount);
}

uint64_t memory_limit(void) {
    return host_memory_limit();
}

struct text asset(const char *name, struct blob *content) {
    struct refusal answer;
    host_asset(name, text_of(name).length, &answer);
    if (answer.is_refused) return answer.reason;
    *content = (struct blob){(const uint8_t *)answer.reason.bytes, answer.reason.length};
    return text_of("");
}

#ifdef __wasi__

/* With a C library, which owns the memory after the program's data: the arena is a chain of blocks of `malloc`. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((import_module("wasi_snapshot_preview1"), import_name("penstock_seed"))) void seed_random(uint64_t seed);

static struct block { _Alignas(8) struct block *next; } *arena;

static void empty_arena(void) {
    while (arena != NULL) {
        struct block *next = arena->next;
        free(arena);
        arena = next;
    }
}

void *allocate(size_t bytes) {
    struct block *block = bytes > SIZE_MAX - sizeof *block ? NULL : malloc(sizeof *block + bytes);
    if (block == NULL) __builtin_trap();
    block->next = arena;
    arena = block;
    return block + 1;
}

/* Random numbers start at the sample's seed, and what it printed is in the log before the next one starts. */
static void before(uint64_t seed) {
    seed_random(seed);
    srand(seed);
}

static void after(void) {
    fflush(NULL);
    fsync(STDOUT_FILENO);
    fsync(STDERR_FILENO);
}

#else

/* Start of the arena: the end of the program's own data, set by the linker. */
extern unsigned char __heap_base;
static uintptr_t used_to;

static void empty_arena(void) {
    used_to = (uintptr_t)&__heap_base;
}

void *allocate(size_t bytes) {
    const uint64_t page = 65536;
    if (used_to == 0) empty_arena();
    uint64_t start = ((uint64_t)used_to + 7) & ~(uint64_t)7;
    uint64_t end = start + bytes;
    uint64_t have = __builtin_wasm_memory_size(0) * page;
    if (end > UINT32_MAX) __builtin_trap();
    if (end > have && __builtin_wasm_memory_grow(0, (end - have + page - 1) / page) == SIZE_MAX) __builtin_trap();
    used_to = end;
    return (void *)(uintptr_t)start;
}

static void before(uint64_t seed) { (void)seed; }
static void after(void) {}

#endif

/* Allocates memory for arguments that the runner passes. */
__attribute__((export_name("cabi_realloc"))) void *cabi_realloc(void *old, size_t old_bytes, size_t align, size_t bytes) {
    (void)align; /* nothing in the contract needs more than 8 */
    if (bytes <= old_bytes) return old;
    void *grown = allocate(bytes);
    if (old_bytes > 0) __builtin_memcpy(grown, old, old_bytes);
    return grown;
}

TRANSFORM("init") struct refusal *init(const char *bytes, size_t length) {
    struct refusal *answer = allocate(sizeof *answer);
    answer->reason = set_up((struct text){bytes, length});
    answer->is_refused = answer->reason.length > 0;
    return answer;
}

struct outcomes { struct outcome *first; size_t count; };

TRANSFORM("process") struct outcomes *process_all(const struct item *first, size_t count) {
    struct outcomes *answer = allocate(sizeof *answer);
    *answer = (struct outcomes){allocate(count * sizeof(struct outcome)), count};
    for (size_t at = 0; at < count; at++) {
        before(first[at].seed);
        answer->first[at] = process(first[at]);
        after();
    }
    return answer;
}

TRANSFORM("finish") struct items *finish(void) {
    struct items *answer = allocate(sizeof *answer);
    *answer = (struct items){NULL, 0};
    return answer;
}

/* Called after the runner has copied the result of a call. */
AFTER("init") void after_init(struct refusal *answer) { (void)answer; empty_arena(); }
AFTER("process") void after_process(struct outcomes *answer) { (void)answer; empty_arena(); }
AFTER("finish") void after_finish(struct items *answer) { (void)answer; empty_arena(); }

struct text text_of(const char *zero_terminated) {
    size_t length = 0;
    while (zero_terminated[length] != 0) length++;
    return (struct text){zero_terminated, length};
}

static bool is_same(struct text text, const char *other) {
    for (size_t at = 0; at < text.length; at++)
        if (other[at] == 0 || other[at] != text.bytes[at]) return false;
    return other[text.length] == 0;
}

const struct value *find(const struct item *item, const char *name, enum value_type type) {
    for (size_t at = 0; at < item->fields.count; at++) {
        const struct field *field = &item->fields.first[at];
        if (field->value.type == type && is_same(field->name, name)) return &field->value;
    }
    return NULL;
}

/* End of the value at `at`, in JSON without spaces. */
static size_t end_of(struct text json, size_t at) {
    size_t depth = 0;
    for (bool is_quoted = false; at < json.length; at++) {
        char letter = json.bytes[at];
        if (letter == '"') is_quoted = !is_quoted;
        else if (is_quoted) at += letter == '\\';
        else if (letter == '[' || letter == '{') depth++;
        else if (depth == 0 && (letter == ',' || letter == ':' || letter == '}')) break;
        else if (letter == ']' || letter == '}') depth--;
    }
    return at;
}

struct text param(struct text params, const char *name) {
    for (size_t start = 1, colon, end; start + 1 < params.length; start = end + 1) {
        colon = end_of(params, start);
        end = end_of(params, colon + 1);
        struct text written = {params.bytes + start + 1, colon - start - 2};
        if (is_same(written, name)) return (struct text){params.bytes + colon + 1, end - colon - 1};
    }
    return text_of("");
}

bool is_utf8(struct blob bytes) {
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    for (size_t at = 0; at < bytes.length;) {
        uint32_t code = bytes.bytes[at++];
        size_t more = code < 0x80 ? 0 : code < 0xc0 ? 4 : code < 0xe0 ? 1 : code < 0xf0 ? 2 : code < 0xf8 ? 3 : 4;
        if (more > 3 || more > bytes.length - at) return false;
        if (more > 0) code &= 0x3f >> more;
        for (size_t end = at + more; at < end; at++) {
            if ((bytes.bytes[at] & 0xc0) != 0x80) return false;
            code = code << 6 | (bytes.bytes[at] & 0x3f);
        }
        bool is_surrogate = code >> 11 == 0x1b;
        if (code < least[more] || code > 0x10ffff || is_surrogate) return false;
    }
    return true;
}

static char *put_number(char *to, uint32_t number) {
    uint32_t unit = 1;
    while (number / unit >= 10) unit *= 10;
    for (; unit > 0; unit /= 10) *to++ = '0' + number / unit % 10;
    return to;
}

struct text message(const char *pattern, uint32_t first, uint32_t second) {
    const size_t digits = 10;
    char *start = allocate(text_of(pattern).length + 2 * digits), *to = start;
    const uint32_t numbers[] = {first, second};
    size_t next = 0;
    for (; *pattern != 0; pattern++) {
        if (*pattern == '%' && next < 2) to = put_number(to, numbers[next++]);
        else *to++ = *pattern;
    }
    return (struct text){start, to - start};
}
