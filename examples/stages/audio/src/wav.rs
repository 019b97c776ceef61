//! Reader of WAV files: RIFF, WAVE, PCM or 32-bit float. Every value in the file is checked before it is used.

use penstock_guest::prelude::*;

use crate::named;

/// Maximum number of channels; more indicate a damaged header.
pub(crate) const MOST_CHANNELS: u16 = 64;
/// Maximum number of samples of a clip, with channels averaged: all derived data then fits into an instance's memory.
pub(crate) const MOST_SAMPLES: usize = 8 << 20;

/// A clip with its channels averaged into one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clip {
    /// Samples per second; 0 only before the first packet.
    pub rate: u32,
    /// Samples from -1 to 1, by the usual scaling of integers; float files may exceed the range.
    pub samples: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Pcm8,
    Pcm16,
    Pcm24,
    Pcm32,
    Float32,
}

/// Content of the chunk `fmt `.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    coding: Coding,
    channels: u16,
    rate: u32,
}

/// Reads a WAV file. Fails on anything but PCM (8, 16, 24, 32 bits) or 32-bit float samples. Recorders and pipes leave the length of the
/// sound at 0 or the largest number, and a cut file states more than it has: such files are read to their end, and counted.
pub fn read(file: &[u8]) -> Result<Clip> {
    let mut chunks = match (file.get(0..4), file.get(8..12)) {
        (Some(b"RIFF"), Some(b"WAVE")) => Chunks { rest: &file[12..] },
        (Some(b"RIFF"), Some(form)) => {
            bail!("the file is RIFF with {}, not WAVE", String::from_utf8_lossy(form).escape_debug())
        }
        (Some(_), Some(_)) => bail!("not a WAV file: it does not start with `RIFF` and `WAVE`"),
        _ => bail!("not a WAV file: it has only {} bytes", file.len()),
    };
    let (mut format, mut is_empty) = (None, false);
    while let Some(chunk) = chunks.next() {
        let chunk = chunk?;
        match &chunk.name {
            b"fmt " if format.is_some() => bail!("the file has two `fmt ` chunks"),
            b"fmt " => format = Some(Format::read(chunk.whole()?)?),
            b"data" => {
                let format: Format = format.context("the `data` chunk comes before any `fmt ` chunk")?;
                let open = match chunk.length as usize {
                    0 if are_chunks(chunks.rest) => {
                        is_empty = true;
                        continue;
                    }
                    0 => Some(chunks.rest),
                    length if length > chunk.bytes.len() => Some(chunk.bytes),
                    _ => None,
                };
                let samples = match open {
                    None => format.mono(chunk.bytes)?,
                    Some(sound) => {
                        count("read_to_end", 1.0);
                        format.mono(&sound[..sound.len() - sound.len() % format.frame_bytes()])?
                    }
                };
                return Ok(Clip { rate: format.rate, samples });
            }
            _ => {}
        }
    }
    match format {
        Some(Format { rate, .. }) if is_empty => Ok(Clip { rate, samples: Vec::new() }),
        _ => bail!("the file has no `data` chunk"),
    }
}

/// True if there is nothing but whole chunks, whose names are readable, up to the end: then a `data` chunk of length 0 before them is
/// empty, and they are not its sound.
fn are_chunks(rest: &[u8]) -> bool {
    let is_readable = |chunk: Chunk<'_>| chunk.name.iter().all(|byte| matches!(byte, b' '..=b'~'));
    Chunks { rest }.all(|chunk| chunk.is_ok_and(|chunk| chunk.whole().is_ok() && is_readable(chunk)))
}

/// A chunk with the length that its header states.
struct Chunk<'a> {
    name: [u8; 4],
    length: u32,
    /// Available bytes: `length` bytes, or fewer if the file ends earlier.
    bytes: &'a [u8],
}

impl<'a> Chunk<'a> {
    fn whole(&self) -> Result<&'a [u8]> {
        let (name, found) = (String::from_utf8_lossy(&self.name), self.bytes.len());
        ensure!(
            found == self.length as usize,
            "the chunk `{name}` should have {} bytes, but the file ends after {found}",
            self.length
        );
        Ok(self.bytes)
    }
}

struct Chunks<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        // One byte may be left: the padding of a last chunk with an odd length.
        if self.rest.len() <= 1 {
            return None;
        }
        let Some((&[a, b, c, d, l0, l1, l2, l3], body)) = self.rest.split_first_chunk::<8>() else {
            let left = self.rest.len();
            self.rest = &[];
            return Some(Err(Error::new(format_args!("the last {left} bytes are too few for a chunk"))));
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let (bytes, rest) = body.split_at((length as usize).min(body.len()));
        self.rest = rest.get(length as usize % 2..).unwrap_or_default();
        Some(Ok(Chunk { name: [a, b, c, d], length, bytes }))
    }
}

impl Format {
    fn read(chunk: &[u8]) -> Result<Self> {
        /// Tag of the extended format, whose actual tag is at the start of a 16-byte identifier.
        const EXTENSIBLE: u16 = 0xfffe;
        const PCM: u16 = 1;
        const FLOAT: u16 = 3;
        let short =
            || Error::new(format_args!("the `fmt ` chunk has {} bytes, but 16 are needed", chunk.len()));
        let at = |at: usize| {
            let bytes = chunk.get(at..at + 2).ok_or_else(short)?;
            Ok::<_, Error>(u16::from_le_bytes([bytes[0], bytes[1]]))
        };
        let (written, channels, block, bits) = (at(0)?, at(2)?, at(12)?, at(14)?);
        let rate = u32::from(at(4)?) | u32::from(at(6)?) << 16;
        let tag = match written {
            EXTENSIBLE => at(24).context("reading the extended format")?,
            other => other,
        };
        let coding = match (tag, bits) {
            (PCM, 8) => Coding::Pcm8,
            (PCM, 16) => Coding::Pcm16,
            (PCM, 24) => Coding::Pcm24,
            (PCM, 32) => Coding::Pcm32,
            (FLOAT, 32) => Coding::Float32,
            (PCM, _) => bail!("samples have {bits} bits, but only PCM of 8, 16, 24 or 32 bits is supported"),
            (FLOAT, _) => {
                bail!("the sound is float of {bits} bits, which is not decoded; float of 32 bits is")
            }
            _ => match named::coding(tag) {
                Some(name) => bail!(
                    "the sound is coded as {name} (format tag {tag}), which is not decoded; PCM and float of 32 bits are"
                ),
                None => bail!("the format tag is {tag}, but only 1 (PCM) and 3 (float) are supported"),
            },
        };
        ensure!(channels > 0, "the file has no channels");
        ensure!(
            channels <= MOST_CHANNELS,
            "the file has {channels} channels, more than the limit of {MOST_CHANNELS}"
        );
        ensure!(rate > 0, "the sample rate is 0");
        let format = Self { coding, channels, rate };
        ensure!(
            usize::from(block) == format.frame_bytes(),
            "a frame should take {block} bytes, but {channels} channels of {bits} bits take {}",
            format.frame_bytes()
        );
        Ok(format)
    }

    fn frame_bytes(self) -> usize {
        usize::from(self.channels) * self.coding.bytes()
    }

    /// Samples with the channels of every frame averaged.
    fn mono(self, data: &[u8]) -> Result<Vec<f32>> {
        ensure!(
            data.len().is_multiple_of(self.frame_bytes()),
            "{} bytes of samples are not whole frames of {} bytes",
            data.len(),
            self.frame_bytes()
        );
        let frames = data.len() / self.frame_bytes();
        ensure!(
            frames <= MOST_SAMPLES,
            "the clip has {frames} samples, more than the limit of {MOST_SAMPLES}"
        );
        let samples = match self.coding {
            Coding::Pcm8 => self.averaged::<1>(data, |[byte]| (f32::from(byte) - 128.0) / 128.0),
            Coding::Pcm16 => {
                self.averaged::<2>(data, |bytes| f32::from(i16::from_le_bytes(bytes)) / 32_768.0)
            }
            Coding::Pcm24 => self.averaged::<3>(data, |[low, middle, high]| {
                (i32::from_le_bytes([0, low, middle, high]) >> 8) as f32 / 8_388_608.0
            }),
            Coding::Pcm32 => {
                self.averaged::<4>(data, |bytes| i32::from_le_bytes(bytes) as f32 / 2_147_483_648.0)
            }
            Coding::Float32 => self.averaged::<4>(data, f32::from_le_bytes),
        };
        // A single sample that is not finite would spoil all of its frames, and with them the loss of the batch.
        match samples.iter().position(|sample| !sample.is_finite()) {
            Some(at) => bail!("sample {at} is {}, not a finite number", samples[at]),
            None => Ok(samples),
        }
    }

    fn averaged<const BYTES: usize>(self, data: &[u8], sample: impl Fn([u8; BYTES]) -> f32) -> Vec<f32> {
        let (written, _) = data.as_chunks::<BYTES>();
        let mut samples = vec![0.0; written.len() / usize::from(self.channels)];
        match self.channels {
            1 => penstock_guest::map_chunks::<64, _, _>(written, &mut samples, sample),
            channels => {
                let share = 1.0 / f32::from(channels);
                for (frame, out) in written.chunks_exact(channels.into()).zip(&mut samples) {
                    *out = frame.iter().map(|&bytes| sample(bytes)).sum::<f32>() * share;
                }
            }
        }
        samples
    }
}

impl Coding {
    fn bytes(self) -> usize {
        match self {
            Self::Pcm8 => 1,
            Self::Pcm16 => 2,
            Self::Pcm24 => 3,
            Self::Pcm32 | Self::Float32 => 4,
        }
    }
}
