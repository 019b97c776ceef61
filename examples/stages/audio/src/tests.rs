use std::f64::consts::TAU;

use penstock_guest::Rng;
use penstock_guest::testing::{Instance, counter, manifest};
use serde_json::Value as Json;

use super::*;

/// Content of a file's header, which may contradict the data.
#[derive(Clone, Copy)]
struct Header {
    tag: u16,
    channels: u16,
    rate: u32,
    block: u16,
    bits: u16,
}

impl Header {
    fn pcm(channels: u16, bits: u16) -> Self {
        Self { tag: 1, channels, rate: 16_000, block: channels * bits / 8, bits }
    }

    fn chunk(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.tag.to_le_bytes());
        bytes.extend(self.channels.to_le_bytes());
        bytes.extend(self.rate.to_le_bytes());
        bytes.extend((self.rate.wrapping_mul(self.block.into())).to_le_bytes());
        bytes.extend(self.block.to_le_bytes());
        bytes.extend(self.bits.to_le_bytes());
        chunk(b"fmt ", &bytes)
    }

    fn file(self, data: &[u8]) -> Vec<u8> {
        riff(&[self.chunk(), chunk(b"data", data)])
    }
}

fn chunk(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = [&name[..], &(body.len() as u32).to_le_bytes(), body].concat();
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    bytes
}

fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    let body = chunks.concat();
    [b"RIFF", &(body.len() as u32 + 4).to_le_bytes()[..], b"WAVE", &body].concat()
}

fn pcm16(samples: &[i16]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    Header::pcm(1, 16).file(&data)
}

fn refusal(file: &[u8]) -> String {
    wav::read(file).unwrap_err().message().to_owned()
}

fn spectrogram(file: &[u8], params: &str) -> Result<(Vec<u32>, Vec<f32>)> {
    let mut stage = Audio::new(&Settings::from_json(params).unwrap()).unwrap();
    let Outcome::Keep(item) = stage.process(Item::new("a.wav").with("bytes", file))? else {
        panic!("a clip becomes one spectrogram");
    };
    assert!(item.get("bytes").is_none());
    let mel = item.tensor::<f32>("mel")?;
    Ok((mel.shape().to_vec(), mel.as_slice().to_vec()))
}

#[test]
fn samples_of_every_width_are_read_to_the_same_scale() {
    let read = |header: Header, data: &[u8]| wav::read(&header.file(data)).unwrap().samples;
    assert_eq!(read(Header::pcm(1, 8), &[0, 128, 255, 64]), [-1.0, 0.0, 127.0 / 128.0, -0.5]);
    assert_eq!(read(Header::pcm(1, 16), &[0, 0x80, 0xff, 0x7f]), [-1.0, 32_767.0 / 32_768.0]);
    assert_eq!(
        read(Header::pcm(1, 24), &[0, 0, 0x80, 0, 0, 0x40, 0xff, 0xff, 0xff]),
        [-1.0, 0.5, -1.0 / 8_388_608.0]
    );
    assert_eq!(read(Header::pcm(1, 32), &[0, 0, 0, 0x80, 0, 0, 0, 0x20]), [-1.0, 0.25]);
    let float = Header { tag: 3, ..Header::pcm(1, 32) };
    assert_eq!(read(float, &[0.25_f32.to_le_bytes(), (-1.5_f32).to_le_bytes()].concat()), [0.25, -1.5]);
}

#[test]
fn channels_are_averaged() {
    let data: Vec<u8> =
        [16_384_i16, -16_384, 8192, 24_576].iter().flat_map(|sample| sample.to_le_bytes()).collect();
    assert_eq!(wav::read(&Header::pcm(2, 16).file(&data)).unwrap().samples, [0.0, 0.5]);
    assert_eq!(wav::read(&Header::pcm(4, 16).file(&data)).unwrap().samples, [0.25]);
}

#[test]
fn other_chunks_are_passed_over_and_the_extended_format_is_read() {
    let plain = Header { tag: 0xfffe, ..Header::pcm(1, 16) }.chunk();
    let extension =
        [&[22, 0, 16, 0, 4, 0, 0, 0, 1, 0][..], b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"].concat();
    let format = chunk(b"fmt ", &[&plain[8..], &extension].concat());
    // The first chunk has an odd length and so is padded; another chunk follows the samples.
    let file = riff(&[chunk(b"LIST", b"abc"), format, chunk(b"data", &[0, 0x40]), chunk(b"id3 ", b"x")]);
    assert_eq!(wav::read(&file).unwrap(), wav::Clip { rate: 16_000, samples: vec![0.5] });
}

#[test]
fn a_damaged_file_is_refused_with_what_was_found() {
    let good = pcm16(&[1, 2, 3]);
    let header = Header::pcm(1, 16);
    let lies = |length: u32| [&good[..40], &length.to_le_bytes(), &good[44..]].concat();
    for (file, message) in [
        (vec![], "not a WAV file: it has only 0 bytes"),
        (good[..11].to_vec(), "not a WAV file: it has only 11 bytes"),
        (b"\x89PNG\r\n\x1a\n....".to_vec(), "not a WAV file: it does not start with `RIFF` and `WAVE`"),
        ([&good[..8], b"AVI ", &good[12..]].concat(), "the file is RIFF with AVI , not WAVE"),
        (good[..12].to_vec(), "the file has no `data` chunk"),
        (good[..17].to_vec(), "the last 5 bytes are too few for a chunk"),
        (good[..30].to_vec(), "the chunk `fmt ` should have 16 bytes, but the file ends after 10"),
        (good[..36].to_vec(), "the file has no `data` chunk"),
        (lies(5), "5 bytes of samples are not whole frames of 2 bytes"),
        (riff(&[chunk(b"data", &[0, 0]), header.chunk()]), "the `data` chunk comes before any `fmt ` chunk"),
        (riff(&[header.chunk(), header.chunk()]), "the file has two `fmt ` chunks"),
        (riff(&[chunk(b"fmt ", &[1, 0])]), "the `fmt ` chunk has 2 bytes, but 16 are needed"),
        (Header { channels: 0, ..header }.file(&[0, 0]), "the file has no channels"),
        (Header::pcm(65, 8).file(&[0; 65]), "the file has 65 channels, more than the limit of 64"),
        (Header { rate: 0, ..header }.file(&[0, 0]), "the sample rate is 0"),
        (
            Header { block: 3, ..header }.file(&[0, 0, 0]),
            "a frame should take 3 bytes, but 1 channels of 16 bits take 2",
        ),
        (
            Header { block: 0, ..header }.file(&[0, 0]),
            "a frame should take 0 bytes, but 1 channels of 16 bits take 2",
        ),
        (
            Header::pcm(1, 12).file(&[0, 0]),
            "samples have 12 bits, but only PCM of 8, 16, 24 or 32 bits is supported",
        ),
        (
            Header { tag: 3, ..Header::pcm(1, 64) }.file(&[0; 8]),
            "the sound is float of 64 bits, which is not decoded; float of 32 bits is",
        ),
        (
            Header { tag: 9, ..header }.file(&[0, 0]),
            "the format tag is 9, but only 1 (PCM) and 3 (float) are supported",
        ),
        (
            Header { tag: 6, ..Header::pcm(1, 8) }.file(&[0, 0]),
            "the sound is coded as A-law (format tag 6), which is not decoded; PCM and float of 32 bits are",
        ),
        (
            Header { tag: 3, ..Header::pcm(1, 32) }
                .file(&[0.5_f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat()),
            "sample 1 is NaN, not a finite number",
        ),
    ] {
        assert_eq!(refusal(&file), message);
    }
    let message = refusal(&Header { tag: 0xfffe, ..header }.file(&[0, 0]));
    assert_eq!(message, "reading the extended format: the `fmt ` chunk has 16 bytes, but 16 are needed");
}

/// The number of samples of a clip, and of files that were read to their end.
fn read_to_end(file: &[u8]) -> (usize, f64) {
    penstock_guest::testing::reset();
    (wav::read(file).unwrap().samples.len(), counter("read_to_end"))
}

#[test]
fn a_length_that_is_not_known_or_too_large_is_read_to_the_end_and_counted() {
    let header = Header::pcm(1, 16);
    let sound: Vec<u8> = (0..200).map(|at| (at * 7 % 251) as u8).collect();
    let exact = header.file(&sound);
    let expected = wav::read(&exact).unwrap();
    assert_eq!(read_to_end(&exact), (100, 0.0));
    let list = chunk(b"LIST", b"INFOISFT\x04\0\0\0abcd");
    let with = |before: &[Vec<u8>], length: u32, sound: &[u8]| {
        let data = [&b"data"[..], &length.to_le_bytes(), sound].concat();
        riff(&[before, &[header.chunk(), data]].concat())
    };
    for of_file in [0, 36, 236, u32::MAX] {
        for length in [0, u32::MAX, 201, 0x7fff_ffff, 0x8000_0000] {
            for before in [&[][..], &[list.clone(), chunk(b"JUNK", b"odd")]] {
                let mut file = with(before, length, &sound);
                file[4..8].copy_from_slice(&u32::to_le_bytes(of_file));
                assert_eq!(read_to_end(&file), (100, 1.0), "{of_file}, {length}");
                assert_eq!(wav::read(&file).unwrap(), expected);
            }
        }
    }
    // Half a frame at the end is left out, and what follows a stated length is none of its sound.
    assert_eq!(read_to_end(&with(&[], u32::MAX, &sound[..199])), (99, 1.0));
    assert_eq!(read_to_end(&exact[..exact.len() - 7]), (96, 1.0));
    assert_eq!(read_to_end(&riff(&[header.chunk(), chunk(b"data", &sound), list.clone()])), (100, 0.0));
}

#[test]
fn chunks_behind_an_empty_clip_are_no_sound() {
    let (format, empty) = (Header::pcm(1, 16).chunk(), chunk(b"data", &[]));
    let list = chunk(b"LIST", b"INFOISFT\x04\0\0\0abcd");
    for (chunks, expected) in [
        (vec![], (0, 0.0)),
        (vec![list.clone()], (0, 0.0)),
        (vec![chunk(b"id3 ", b"odd"), list.clone()], (0, 0.0)),
        (vec![list.clone(), chunk(b"data", &[1, 2, 3, 4])], (2, 0.0)),
        // A chunk that the file cuts, and one whose name is none.
        (vec![list[..12].to_vec()], (6, 1.0)),
        (vec![chunk(b"\0\x01\0\x02", &[])], (4, 1.0)),
    ] {
        let file = riff(&[&[format.clone(), empty.clone()][..], &chunks].concat());
        assert_eq!(read_to_end(&file), expected, "{chunks:?}");
        let mut open = file.clone();
        open[4..8].fill(0);
        assert_eq!(read_to_end(&open), expected, "{chunks:?}");
    }
}

#[test]
fn a_flac_file_with_unknown_header_values_has_the_same_sound() {
    for name in ["mono.flac", "stereo.flac"] {
        let whole = data(name);
        let expected = decode::read(&whole).unwrap();
        let with = |edits: &[(usize, &[u8])]| {
            let mut file = whole.clone();
            for (at, bytes) in edits {
                file[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            file
        };
        let total = [whole[21] & 0xf0, 0, 0, 0, 0];
        for edits in [
            &[(8, &[0, 0][..])][..],
            &[(10, &[0, 0])],
            &[(8, &[0; 4])],
            &[(8, &[0, 1])],
            &[(8, &[0, 15, 0, 15])],
            &[(8, &[0, 16])],
            &[(8, &[0xff, 0xff])],
            &[(10, &[0xff, 0xff])],
            &[(12, &[0; 6])],
            &[(12, &[0xff, 0xff, 0xff, 0, 0, 1])],
            &[(21, &total)],
            &[(26, &[0; 16])],
            &[(8, &[0; 10]), (21, &total), (26, &[0; 16])],
        ] {
            assert_eq!(decode::read(&with(edits)).unwrap(), expected, "{name}: {edits:?}");
        }
    }
}

#[test]
fn a_flac_file_without_a_length_never_loses_a_frame_in_silence() {
    let whole = data("stereo.flac");
    let expected = decode::read(&whole).unwrap();
    let mut open = whole.clone();
    open[21] &= 0xf0;
    open[22..26].fill(0);
    let tag = [&b"TAG"[..], &[b' '; 125]].concat();
    for file in [&open, &whole] {
        assert_eq!(decode::read(&[&file[..], &tag].concat()).unwrap(), expected);
    }
    let mut damaged = open.clone();
    damaged[open.len() / 2] ^= 0xff;
    for file in [&damaged[..], &open[..open.len() - 50]] {
        let reason = decode::read(file).err().map(|error| error.message().to_owned()).unwrap_or_default();
        assert!(
            reason.starts_with("the FLAC file is damaged or cut: ") && reason.ends_with(" in no whole frame"),
            "{reason}"
        );
    }
}

#[test]
fn formats_that_are_not_decoded_are_named() {
    let refusal = |file: &[u8]| decode::read(file).unwrap_err().message().to_owned();
    let ogg = data("mono.ogg");
    for (start, name) in [
        (&b"\0\0\0\x20ftypM4A "[..], "MP4 or M4A, usually with AAC"),
        (b"RF64\xff\xff\xff\xffWAVE", "RF64, a WAV file with lengths of 64 bits"),
        (b"riff\x2e\x91\xcf\x11", "W64, Sony's form of WAV"),
        (b"FORM\0\0\0\0AIFF", "AIFF"),
        (b"caff\0\x01", "CAF, Apple's Core Audio Format"),
        (b"\x30\x26\xb2\x75\x8e", "WMA or another ASF file"),
        (b"\xff\xf1\x50\x80", "AAC"),
        (b"ID3\x04\0\0\0\0\0\0\xff\xf9\x50", "AAC"),
        (b"\xff\xfd\x90\0", "MPEG audio of layer II"),
    ] {
        let expected =
            format!("the file is {name}, which is not decoded; WAV, FLAC, MP3 and Ogg with Vorbis are");
        assert_eq!(refusal(start), expected);
    }
    // The first packet of a file, with the checksum of its page.
    let opus = ogg::page(&ogg[14..18], b"OpusHead\x01\x01\0\0\x80\xbb\0\0\0\0\0");
    assert_eq!(refusal(&opus), "the Ogg file has Opus, which is not decoded; Ogg files need Vorbis");
    let two = [opus, ogg::page(b"\x01\x02\x03\x04", b"more")].concat();
    assert_eq!(
        refusal(&two),
        "the Ogg file has several streams, the first of Opus; only one of Vorbis is read"
    );
}

#[test]
fn damaged_files_never_cause_a_panic() {
    let file = Header::pcm(2, 16).file(&(0..=255).collect::<Vec<u8>>());
    let settings = Settings::from_json(r#"{"n_fft": 16, "hop": 4, "n_mels": 3}"#).unwrap();
    let mut stage = Audio::new(&settings).unwrap();
    let mut rng = Rng::from_seed(5);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut damaged = file.clone();
        for _ in 0..=rng.index(3) {
            let at = rng.index(48.min(damaged.len()));
            damaged[at] = [0, 1, 255, rng.u64() as u8][rng.index(4)];
        }
        if rng.chance(0.3) {
            damaged.truncate(rng.index(damaged.len()));
        }
        refused += usize::from(stage.process(Item::new("a").with("bytes", damaged)).is_err());
    }
    assert!((5_000..20_000).contains(&refused), "{refused}");
}

/// Two tones and noise, reproducible in other languages.
fn tones() -> Vec<i16> {
    let mut state = 1_u64;
    let tone = |at: i64, hertz: f64| (TAU * hertz * at as f64 / 16_000.0).sin();
    (0..4000)
        .map(|at| {
            state = (state * 1_103_515_245 + 12_345) % (1 << 31);
            let noise = (state >> 16) as i64 % 2001 - 1000;
            ((8000.0 * tone(at, 440.0) + 4000.0 * tone(at, 3000.0)).round() as i64 + noise) as i16
        })
        .collect()
}

/// Spectrogram, computed from its definition in double precision: a sum over all samples for each frequency, all filters over all
/// frequencies.
fn reference(samples: &[i16], settings: &Settings) -> Vec<f64> {
    let (length, hop) = (settings.n_fft as usize, settings.hop as usize);
    let mut signal: Vec<f64> = samples.iter().map(|&sample| f64::from(sample) / 32_768.0).collect();
    if settings.edges == Edges::Reflect {
        let edge = length / 2;
        let last = signal.len() as i64 - 1;
        let mirrored = |at: i64| (last - (last - at.abs()).abs()) as usize;
        signal = (-(edge as i64)..=last + edge as i64).map(|at| signal[mirrored(at)]).collect();
    }
    let scale = settings.mel_scale;
    let high = f64::from(settings.f_max.unwrap_or(8000.0));
    let (low, high) = (scale.mel(settings.f_min.into()), scale.mel(high));
    let corner = |at: u32| scale.hertz(low + (high - low) * f64::from(at) / f64::from(settings.n_mels + 1));
    let mut out = Vec::new();
    for start in (0..=signal.len() - length).step_by(hop) {
        let power: Vec<f64> = (0..=length / 2)
            .map(|bin| {
                let (re, im) =
                    signal[start..][..length].iter().enumerate().fold((0.0, 0.0), |(re, im), (at, x)| {
                        let x = x * (0.5 - 0.5 * (TAU * at as f64 / length as f64).cos());
                        let angle = TAU * (bin * at % length) as f64 / length as f64;
                        (re + x * angle.cos(), im - x * angle.sin())
                    });
                re * re + im * im
            })
            .collect();
        for mel in 0..settings.n_mels {
            let (left, top, right) = (corner(mel), corner(mel + 1), corner(mel + 2));
            let height = if settings.filter_height == Height::Area { 2.0 / (right - left) } else { 1.0 };
            let energy: f64 = power
                .iter()
                .enumerate()
                .map(|(bin, power)| {
                    let hertz = bin as f64 * 16_000.0 / length as f64;
                    power
                        * height
                        * ((hertz - left) / (top - left)).min((right - hertz) / (right - top)).max(0.0)
                })
                .sum();
            let energy = energy.max(settings.floor.into());
            out.push(match settings.log {
                Logarithm::None => energy,
                Logarithm::Natural => energy.ln(),
                Logarithm::Log10 => energy.log10(),
                Logarithm::Decibel => 10.0 * energy.log10(),
            });
        }
    }
    out
}

#[test]
fn the_spectrogram_agrees_with_the_definition() {
    for params in [
        "{}",
        r#"{"n_fft": 512, "hop": 200, "n_mels": 40, "mel_scale": "htk", "filter_height": "one", "log": "natural"}"#,
        r#"{"n_fft": 441, "hop": 441, "n_mels": 23, "f_min": 60, "f_max": 7000, "log": "decibel", "edges": "none"}"#,
        r#"{"n_fft": 256, "hop": 3999, "n_mels": 16, "floor": 0.001}"#,
        r#"{"n_fft": 4, "hop": 1000, "n_mels": 1, "filter_height": "one"}"#,
    ] {
        let settings = Settings::from_json(params).unwrap();
        let expected = reference(&tones(), &settings);
        let (shape, found) = spectrogram(&pcm16(&tones()), params).unwrap();
        assert_eq!(shape, [(expected.len() / settings.n_mels as usize) as u32, settings.n_mels], "{params}");
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let apart = (f64::from(*found) - expected).abs();
            assert!(apart < 2e-3, "{params}: {found} instead of {expected} at {at}");
        }
    }
}

/// The figures come from numpy (2.x, double precision), for the same samples: `numpy.pad(mode="reflect")`, frames by
/// `sliding_window_view`, `abs(rfft(frames * hann)) ** 2`, triangles by `minimum` and `maximum` of the two slopes.
#[test]
fn the_spectrogram_agrees_with_numpy() {
    let samples = tones();
    assert_eq!(samples.iter().map(|&sample| i64::from(sample)).sum::<i64>(), -35_029);
    assert_eq!(samples[..8], [-170, 5827, 4646, 2940, 1135, 5178, 9713, 11_595]);
    let slaney = [
        ((0, 0), -0.654_996),
        ((0, 79), -2.524_625),
        ((1, 13), -2.576_051),
        ((12, 11), 1.134_893),
        ((13, 47), -3.838_651),
        ((25, 40), -2.592_165),
        ((25, 79), -2.769_397),
    ];
    let htk = [
        ((0, 0), -2.606_955),
        ((0, 39), 0.234_863),
        ((7, 8), 3.743_26),
        ((11, 27), 4.644_494),
        ((22, 20), -1.539_316),
    ];
    let as_torchaudio = r#"{"n_mels": 40, "f_min": 20, "f_max": 7600, "mel_scale": "htk", "filter_height": "one",
        "log": "natural", "edges": "none"}"#;
    for (params, shape, mean, figures) in
        [("{}", [26, 80], -2.719_128, &slaney[..]), (as_torchaudio, [23, 40], -1.037_884, &htk[..])]
    {
        let (found_shape, found) = spectrogram(&pcm16(&samples), params).unwrap();
        assert_eq!(found_shape, shape);
        for ((frame, mel), expected) in figures {
            let found = found[frame * shape[1] as usize + mel];
            assert!((found - expected).abs() < 1e-4, "{found} instead of {expected} at {frame}, {mel}");
        }
        let found = found.iter().map(|&value| f64::from(value)).sum::<f64>() / found.len() as f64;
        assert!((found - mean).abs() < 1e-5, "{found} instead of {mean}");
    }
}

#[test]
fn silence_is_the_logarithm_of_the_floor() {
    let (shape, values) = spectrogram(&pcm16(&[0; 1000]), "{}").unwrap();
    assert_eq!(shape, [7, 80]);
    assert!(values.iter().all(|value| (value + 10.0).abs() < 1e-5), "{values:?}");
}

#[test]
fn seconds_cuts_and_pads_clips() {
    let clip = pcm16(&tones());
    for (seconds, frames) in [(0.1, 11), (0.25, 26), (2.0, 201)] {
        let (shape, values) = spectrogram(&clip, &format!(r#"{{"seconds": {seconds}}}"#)).unwrap();
        assert_eq!(shape, [frames, 80]);
        if seconds > 1.0 {
            assert!(values[100 * 80..].iter().all(|value| (value + 10.0).abs() < 1e-5));
        }
    }
    // An empty clip is a clip of silence, if its length is set.
    assert_eq!(spectrogram(&pcm16(&[]), r#"{"seconds": 0.1}"#).unwrap().0, [11, 80]);
}

#[test]
fn clips_that_do_not_fit_the_settings_are_refused() {
    let refusal = |file: &[u8], params: &str| spectrogram(file, params).unwrap_err().message().to_owned();
    assert_eq!(
        refusal(&pcm16(&[0; 200]), "{}"),
        "the clip has 200 samples, but 201 are needed; set `seconds` to pad it"
    );
    assert!(spectrogram(&pcm16(&[0; 201]), "{}").is_ok());
    assert_eq!(
        refusal(&pcm16(&[0; 399]), r#"{"edges": "none"}"#),
        "the clip has 399 samples, but 400 are needed; set `seconds` to pad it"
    );
    assert_eq!(
        refusal(
            &pcm16(&[0; 40_000]),
            r#"{"n_fft": 4096, "hop": 1, "n_mels": 600, "filter_height": "one", "f_min": 4000}"#
        ),
        "the clip is too long: 40001 frames of 600 values exceed the limit of 8388608 values"
    );
}

#[test]
fn clips_that_are_too_long_for_memory_are_refused() {
    let long = Header::pcm(1, 8).file(&vec![128; 8_388_609]);
    assert_eq!(refusal(&long), "the clip has 8388609 samples, more than the limit of 8388608");
}

#[test]
fn settings_that_contradict_each_other_are_refused_by_name_before_any_clip() {
    let refusal = |params: &str| Instance::<Audio>::new(params).unwrap_err();
    assert_eq!(
        refusal(r#"{"f_min": 5000, "f_max": 4000}"#),
        "`f_min` is 5000 and `f_max` 4000 Hz; use 0 <= f_min < f_max <= 8000"
    );
    assert_eq!(
        refusal(r#"{"f_max": 9000}"#),
        "`f_min` is 0 and `f_max` 9000 Hz; use 0 <= f_min < f_max <= 8000"
    );
    assert_eq!(
        refusal(r#"{"floor": 0}"#),
        "`floor` is 0: use a value above 0, because the logarithm of silence is taken"
    );
    assert_eq!(
        refusal(r#"{"n_fft": 401}"#),
        "`n_fft`: 401 is 1 x 401; use a length whose only prime factors are 2, 3, 5 and 7"
    );
    assert_eq!(
        refusal(r#"{"seconds": 3600}"#),
        "`seconds` is 57600000 samples, more than the limit of 8388608"
    );
    assert_eq!(refusal(r#"{"seconds": 0.0125}"#), "`seconds` is 200 samples, but 201 are needed");
    assert!(Instance::<Audio>::new(r#"{"seconds": 0.025, "edges": "none"}"#).is_ok());
    // Defaults of torchaudio, whose lowest filters have no frequency.
    assert!(Instance::<Audio>::new(r#"{"n_mels": 128, "mel_scale": "htk"}"#).is_ok());
    assert_eq!(
        refusal(r#"{"seconds": 100, "hop": 1}"#),
        "`seconds`: the clip is too long: 1600001 frames of 80 values exceed the limit of 8388608 values"
    );
    let error = Instance::<Audio>::new(r#"{"mel_scale": "bark", "hop": 0}"#).unwrap_err();
    assert_eq!(error, "`hop`: 0 is less than 1; `mel_scale`: `bark` is not one of `slaney`, `htk`");
}

#[test]
fn the_manifest_names_the_fields() {
    assert!(manifest::<Audio>().contains(r#""wants":["bytes"],"makes":["$output"]"#));
}

/// Reference figures of torchaudio and libsndfile, made by `reference.py`.
fn expected() -> Json {
    serde_json::from_slice(&data("expected.json")).unwrap()
}

fn data(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn numbers(json: &Json) -> Vec<f64> {
    json.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Largest distance of every `every`th value from the expected ones.
fn distance(found: &[f32], every: usize, expected: &[f64]) -> f64 {
    let found: Vec<f64> = found.iter().step_by(every).map(|&value| value.into()).collect();
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn clips_are_decoded_and_resampled_as_by_libsndfile_and_torchaudio() {
    let expected = expected();
    let every = expected["every"].as_u64().unwrap() as usize;
    for (name, clip) in expected["clips"].as_object().unwrap() {
        let found = decode::read(&data(name)).unwrap_or_else(|error| panic!("{name}: {}", error.message()));
        assert_eq!(
            (u64::from(found.rate), found.samples.len() as u64),
            (clip["rate"].as_u64().unwrap(), clip["count"].as_u64().unwrap()),
            "{name}"
        );
        let far = distance(&found.samples, every, &numbers(&clip["samples"]));
        // Lossy formats define their results to a small distance only.
        assert!(
            far < if name.ends_with("mp3") || name.ends_with("ogg") { 1e-4 } else { 1e-7 },
            "{name}: {far}"
        );
        let resampled = Resamplers::default().resample(found.samples, found.rate, 16_000).unwrap();
        assert_eq!(resampled.len() as u64, clip["resampled_count"].as_u64().unwrap(), "{name}");
        let far = distance(&resampled, every, &numbers(&clip["resampled"]));
        assert!(far < 1e-4, "{name}: {far}");
    }
}

#[test]
fn spectrograms_are_those_of_torchaudio() {
    let expected = expected();
    let every = expected["every"].as_u64().unwrap() as usize;
    for (at, params) in expected["params"].as_array().unwrap().iter().enumerate() {
        let mut params = params.clone();
        params["layout"] = "mels-frames".into();
        for (name, clip) in expected["clips"].as_object().unwrap() {
            let (shape, values) = spectrogram(&data(name), &params.to_string()).unwrap();
            let mel = &clip["mels"][at];
            assert_eq!(serde_json::json!(shape), mel["shape"], "{name}");
            let expected = numbers(&mel["values"]);
            let largest = expected.iter().map(|value| value.abs()).fold(0.0, f64::max);
            let far = distance(&values, every, &expected) / largest;
            assert!(far < 1e-4, "{name}, {params}: {far}");
        }
    }
}

#[test]
fn damaged_files_of_other_formats_never_cause_a_panic() {
    let mut rng = Rng::from_seed(7);
    for name in ["mono.flac", "mono.mp3", "mono.ogg", "stereo.mp3"] {
        let whole = data(name);
        for _ in 0..60 {
            let mut damaged = whole.clone();
            for _ in 0..1 + rng.index(8) {
                // Headers are damaged more often.
                let most = if rng.chance(0.5) { 64 } else { damaged.len() };
                let at = rng.index(most);
                damaged[at] = rng.u64() as u8;
            }
            damaged.truncate(if rng.chance(0.3) { rng.index(whole.len()) } else { whole.len() });
            if let Ok(clip) = decode::read(&damaged) {
                assert!(clip.rate > 0 && clip.samples.len() <= wav::MOST_SAMPLES);
            }
        }
    }
    let refused = |file: &[u8]| decode::read(file).unwrap_err().message().to_owned();
    assert_eq!(refused(b""), "the file is empty");
    assert_eq!(
        refused(b"PK\x03\x04"),
        "the file is not WAV, FLAC, MP3 or Ogg: it starts with [50, 4b, 03, 04]"
    );
    let flac = data("mono.flac");
    // A comment that states a length of 4 GiB, between the description of the sound and the other blocks.
    let comment = [&[4, 0, 0, 8][..], &[0xff; 8]].concat();
    let tagged = [&flac[..42], &comment, &flac[42..]].concat();
    assert_eq!(decode::read(&tagged).unwrap(), decode::read(&flac).unwrap());
    assert_eq!(refused(&flac[..44]), "the FLAC file ends in its metadata");
    assert_eq!(refused(&flac[..flac.len() / 2]).split_once(": ").unwrap().0, "the FLAC file ends early");
}

#[test]
fn random_parts_and_masks_depend_on_the_seed_alone() {
    let mel = |params: &str, seed: u64| {
        let mut stage = Audio::new(&Settings::from_json(params).unwrap()).unwrap();
        let item = Item::new("a.wav").with_seed(seed).with("bytes", data("speech.wav"));
        let Outcome::Keep(item) = stage.process(item).unwrap() else { panic!("a clip becomes one result") };
        let name = if params.contains("waveform") { "waveform" } else { "mel" };
        item.tensor::<f32>(name).unwrap().as_slice().to_vec()
    };
    let random = r#"{"output": "waveform", "seconds": 0.1, "crop": "random"}"#;
    assert_eq!(mel(random, 1), mel(random, 1));
    assert_ne!(mel(random, 1), mel(random, 2));
    let center = mel(r#"{"output": "waveform", "seconds": 0.1, "crop": "center"}"#, 1);
    let whole = mel(r#"{"output": "waveform"}"#, 1);
    assert_eq!((center.len(), whole.len()), (1_600, 8_000));
    assert_eq!(center, whole[3_200..4_800]);

    let masked = |seed| {
        mel(
            r#"{"time_masks": 1, "time_mask": 20, "frequency_masks": 1, "frequency_mask": 30, "mask_value": 99}"#,
            seed,
        )
    };
    let (mut frames, mut filters) = (Vec::new(), Vec::new());
    for seed in 0..300 {
        let values = masked(Rng::from_seed(seed).u64());
        assert_eq!(values, masked(Rng::from_seed(seed).u64()));
        let is_masked = |value: &f32| *value == 99.0;
        frames.push(values.chunks(80).filter(|frame| frame.iter().all(is_masked)).count());
        let unmasked = values.chunks(80).find(|frame| !frame.iter().all(is_masked)).unwrap();
        filters.push(unmasked.iter().filter(|value| is_masked(value)).count());
    }
    // Lengths are evenly distributed from 0 to one less than the bound.
    for (lengths, most) in [(frames, 20), (filters, 30)] {
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        assert!(
            lengths.iter().all(|&length| length < most)
                && (mean - (most - 1) as f64 / 2.0).abs() < most as f64 / 8.0,
            "{mean}"
        );
    }
}

#[test]
fn rates_without_a_large_common_divisor_are_converted_or_refused() {
    let tone: Vec<f32> =
        (0..44_101).map(|at| (TAU * 440.0 * f64::from(at) / 44_101.0).sin() as f32).collect();
    let converted = Resamplers::default().resample(tone, 44_101, 16_000).unwrap();
    let far = |at: usize| (f64::from(converted[at]) - (TAU * 440.0 * at as f64 / 16_000.0).sin()).abs();
    // The filter's ripple is 0.1 %.
    assert!((100..15_900).all(|at| far(at) < 2e-3));
    let refused = Resamplers::default().resample(vec![0.0; 10], 767_999, 768_000).unwrap_err();
    assert!(refused.message().contains("no large common divisor"), "{}", refused.message());
}
