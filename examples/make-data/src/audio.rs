//! Synthetic sounds with some features of speech: voiced syllables, hisses and pauses, as WAV files.

use std::path::{Path, PathBuf};

use crate::fault::WriteFault;
use crate::photos::write_whole;
use crate::random::Random;

/// Sample rate in samples per second.
pub const SAMPLE_RATE: u32 = 16_000;
/// Maximum number of clips in one set: more would need longer names, which sort differently.
pub const MOST_CLIPS: u64 = 1_000_000;
/// Number of phase units in one period of a tone.
const TURN: u32 = 1 << 16;
/// Maximum loudness of a sound: even its peaks then fit into 16 bits.
const LOUDEST: i32 = 9000;

/// Path of the clip number `index` in its folder: 1,000 clips to a subfolder, sorted by name.
pub fn clip_path(index: u64) -> PathBuf {
    PathBuf::from(format!("{:03}/{index:06}.wav", index / 1000))
}

/// Creates the clip number `index` of the set with this `seed`: a WAV file of 16-bit samples, one channel, [`SAMPLE_RATE`].
/// Its length is from half of `most_ms` to `most_ms` milliseconds.
pub fn clip(seed: u64, index: u64, most_ms: u32) -> Vec<u8> {
    let mut random = Random::new(seed, index);
    let most = most_ms.min(i32::MAX.unsigned_abs()).cast_signed();
    let length = random.between(most / 2, most).unsigned_abs();
    let count = (u64::from(length) * u64::from(SAMPLE_RATE) / 1000) as usize;
    let mut samples = Vec::with_capacity(count + SAMPLE_RATE as usize);
    while samples.len() < count {
        match random.between(0, 9) {
            0..=5 => syllable(&mut random, &mut samples),
            6..=7 => hiss(&mut random, &mut samples),
            _ => pause(&mut random, &mut samples),
        }
    }
    samples.truncate(count);
    file(&samples)
}

/// Writes the clips `0..count` of the set with this `seed`. Each file is written atomically.
pub fn write_clips(folder: &Path, seed: u64, count: u64, most_ms: u32) -> Result<(), WriteFault> {
    for index in 0..count {
        write_whole(&folder.join(clip_path(index)), &clip(seed, index, most_ms))?;
    }
    Ok(())
}

/// Adds a tone with overtones and a gliding pitch, with some overtones emphasised as in a vowel.
fn syllable(random: &mut Random, samples: &mut Vec<i16>) {
    let length = milliseconds(random.between(80, 260));
    let pitch = random.between(90, 260);
    let glide = random.between(-40, 40);
    let loudness = random.between(LOUDEST / 4, LOUDEST);
    let strengths: Vec<i32> = (1..=12).map(|overtone| random.between(0, 256) / (1 + overtone / 3)).collect();
    let all: i32 = strengths.iter().sum::<i32>().max(1);
    let mut phase = 0_u32;
    for at in 0..length {
        let hertz = pitch + glide * at / length;
        phase = phase.wrapping_add(hertz.unsigned_abs() * TURN / SAMPLE_RATE);
        let tones = strengths
            .iter()
            .zip(1_u32..)
            .map(|(strength, overtone)| strength * sine(phase.wrapping_mul(overtone)));
        let sum: i32 = tones.sum();
        samples.push(scaled(sum / all, loudness, swell(at, length)));
    }
}

/// Adds noise that resembles the sound of the letter s.
fn hiss(random: &mut Random, samples: &mut Vec<i16>) {
    let length = milliseconds(random.between(40, 150));
    let loudness = random.between(LOUDEST / 20, LOUDEST / 4);
    let mut before = 0;
    for at in 0..length {
        // The difference of adjacent random values contains more high frequencies than low ones.
        let now = random.between(-UNIT / 2, UNIT / 2);
        samples.push(scaled(now - before, loudness, swell(at, length)));
        before = now;
    }
}

/// Adds near silence: the noise floor of a recording.
fn pause(random: &mut Random, samples: &mut Vec<i16>) {
    let length = milliseconds(random.between(30, 300));
    samples.extend((0..length).map(|_| random.between(-6, 6) as i16));
}

/// Integer that represents 1.0.
const UNIT: i32 = 1 << 12;

/// Multiplies `value` and `swell`, both with [`UNIT`] for 1.0, and scales the product to `loudness`.
fn scaled(value: i32, loudness: i32, swell: i32) -> i16 {
    (value * swell / UNIT * loudness / UNIT) as i16
}

/// Sine of a phase, with [`UNIT`] for 1.0: approximated by two parabolas, slightly fuller than a sine.
fn sine(phase: u32) -> i32 {
    let half = (phase % (TURN / 2)).cast_signed() >> 2; // 0 to 8191, so that products fit
    let arch = (half * (8192 - half)) >> 12;
    if phase % TURN < TURN / 2 { arch } else { -arch }
}

/// Envelope of a sound, with [`UNIT`] for 1.0: rises over the first quarter of the length and falls over the last.
fn swell(at: i32, length: i32) -> i32 {
    let edge = (length / 4).max(1);
    UNIT.min(at * UNIT / edge).min((length - at) * UNIT / edge)
}

fn milliseconds(length: i32) -> i32 {
    length * SAMPLE_RATE.cast_signed() / 1000
}

/// Creates a WAV file of these samples: RIFF, with the chunks `fmt ` and `data`.
fn file(samples: &[i16]) -> Vec<u8> {
    const SAMPLE_BYTES: u32 = 2;
    let data = samples.len() as u32 * SAMPLE_BYTES;
    let mut bytes = Vec::with_capacity(44 + data as usize);
    bytes.extend_from_slice(b"RIFF");
    bytes.extend_from_slice(&(36 + data).to_le_bytes());
    bytes.extend_from_slice(b"WAVEfmt ");
    bytes.extend_from_slice(&16_u32.to_le_bytes());
    bytes.extend_from_slice(&[1, 0, 1, 0]); // PCM, one channel
    bytes.extend_from_slice(&SAMPLE_RATE.to_le_bytes());
    bytes.extend_from_slice(&(SAMPLE_RATE * SAMPLE_BYTES).to_le_bytes());
    bytes.extend_from_slice(&[SAMPLE_BYTES as u8, 0, 16, 0]);
    bytes.extend_from_slice(b"data");
    bytes.extend_from_slice(&data.to_le_bytes());
    bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn samples(wav: &[u8]) -> Vec<i32> {
        wav[44..].as_chunks::<2>().0.iter().map(|&bytes| i16::from_le_bytes(bytes).into()).collect()
    }

    #[test]
    fn clips_are_the_same_bytes_on_every_machine() {
        let folder = tempfile::tempdir().unwrap();
        write_clips(folder.path(), 1, 3, 2000).unwrap();
        let mut digest = Sha256::new();
        for index in 0..3 {
            let bytes = std::fs::read(folder.path().join(clip_path(index))).unwrap();
            assert_eq!(bytes, clip(1, index, 2000));
            digest.update(bytes);
        }
        let found: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, "6cff2f28566e5e0953a7b7c55bc6125330bf6552be889264d98a9dc43a78392d");
    }

    #[test]
    fn a_clip_has_loud_and_quiet_parts_and_is_never_cut_off() {
        for index in 0..20 {
            let wav = clip(3, index, 4000);
            assert_eq!(u32::from_le_bytes(*wav[40..].first_chunk().unwrap()) as usize, wav.len() - 44);
            let samples = samples(&wav);
            assert!((32_000..=64_000).contains(&samples.len()), "{}", samples.len());
            let loud = samples.iter().filter(|sample| sample.abs() > 1000).count();
            let quiet = samples.iter().filter(|sample| sample.abs() < 100).count();
            assert!(loud > samples.len() / 10 && quiet > samples.len() / 50, "{loud} loud, {quiet} quiet");
            assert!(samples.iter().all(|sample| sample.abs() < 20_000));
        }
    }

    #[test]
    fn the_sine_is_close_to_a_sine() {
        for phase in (0..TURN).step_by(97) {
            let expected =
                (std::f64::consts::TAU * f64::from(phase) / f64::from(TURN)).sin() * f64::from(UNIT);
            assert!((f64::from(sine(phase)) - expected).abs() < 0.06 * f64::from(UNIT), "{phase}");
        }
    }
}
