//! Decoders of sound files.

use std::io::{Cursor, ErrorKind};

use penstock_guest::prelude::*;
use symphonia::core::audio::{AudioBufferRef, SampleBuffer, Signal};
use symphonia::core::codecs::{CODEC_TYPE_NULL, DecoderOptions};
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::FormatOptions;
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;
use symphonia::core::probe::Hint;

use crate::ogg;
use crate::wav::{self, Clip, MOST_CHANNELS, MOST_SAMPLES};

/// Decodes a file, recognised by its first bytes, and averages its channels.
pub(crate) fn read(file: &[u8]) -> Result<Clip> {
    match file {
        [b'R', b'I', b'F', ..] | [b'R', b'F', b'6', ..] => wav::read(file),
        [b'f', b'L', b'a', b'C', ..] => decode(&without_tags(file)?, "FLAC", true),
        [b'O', b'g', b'g', b'S', ..] => ogg::decode(file),
        // Frames of MP3 start with eleven bits that are 1; a tag with names may precede them.
        [b'I', b'D', b'3', ..] => decode(file, "MP3", false),
        [0xff, second, ..] if *second >= 0xe0 => decode(file, "MP3", false),
        [] => bail!("the file is empty"),
        _ => {
            bail!("the file is not WAV, FLAC, MP3 or Ogg: it starts with {:02x?}", &file[..file.len().min(4)])
        }
    }
}

/// The FLAC file with only the first of its metadata blocks, which describes the sound. Tags and pictures state lengths for which a decoder
/// would allocate memory.
fn without_tags(file: &[u8]) -> Result<Vec<u8>> {
    const DESCRIPTION: usize = 34;
    let ends_early = "the FLAC file ends in its metadata";
    let Some((start, mut rest)) = file.split_at_checked(4 + 4 + DESCRIPTION) else { bail!("{ends_early}") };
    ensure!(
        start[4] & 0x7f == 0 && start[5..8] == [0, 0, DESCRIPTION as u8],
        "the FLAC file does not begin with the description of its sound"
    );
    let mut is_last = start[4] & 0x80 != 0;
    while !is_last {
        let [kind, a, b, c, ref blocks @ ..] = *rest else { bail!("{ends_early}") };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        rest = blocks.get(length..).context(ends_early)?;
        is_last = kind & 0x80 != 0;
    }
    let mut sound = [start, rest].concat();
    sound[4] |= 0x80;
    Ok(sound)
}

/// Decodes a file of the format `name`. `states_length` is true if a file that states a length has it.
fn decode(file: &[u8], name: &str, states_length: bool) -> Result<Clip> {
    let refused =
        |fault: Fault| Error::new(format_args!("the {name} file is damaged or not supported: {fault}"));
    let source = MediaSourceStream::new(Box::new(Cursor::new(file.to_vec())), Default::default());
    let options = FormatOptions { enable_gapless: true, ..FormatOptions::default() };
    let probe = symphonia::default::get_probe();
    let probed = probe.format(&Hint::new(), source, &options, &MetadataOptions::default());
    let mut format = probed.map_err(refused)?.format;
    let track = format.tracks().iter().find(|track| track.codec_params.codec != CODEC_TYPE_NULL);
    let Some(track) = track else { bail!("the {name} file has no sound that is known") };
    let (id, stated) = (track.id, track.codec_params.n_frames.filter(|_| states_length));
    if let Some(stated) = stated {
        check_length(stated)?;
    }
    let codecs = symphonia::default::get_codecs();
    let mut decoder = codecs.make(&track.codec_params, &DecoderOptions::default()).map_err(refused)?;
    let mut clip = Clip { rate: 0, samples: Vec::new() };
    let mut buffer: Option<SampleBuffer<f32>> = None;
    loop {
        let packet = match format.next_packet() {
            Ok(packet) if packet.track_id() == id => packet,
            Ok(_) => continue,
            Err(Fault::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(fault) => return Err(refused(fault)),
        };
        let decoded = decoder.decode(&packet).map_err(refused)?;
        append(&mut clip, &decoded, &mut buffer)?;
        check_length(clip.samples.len() as u64)?;
    }
    ensure!(clip.rate > 0, "the {name} file has no samples");
    if let Some(stated) = stated {
        let found = clip.samples.len();
        ensure!(found as u64 >= stated, "the {name} file ends early: it has {found} of {stated} samples");
    }
    Ok(clip)
}

pub(crate) fn check_length(samples: u64) -> Result<()> {
    ensure!(samples <= MOST_SAMPLES as u64, "the clip has more than {MOST_SAMPLES} samples: cut it first");
    Ok(())
}

/// Adds the mean of the channels.
pub(crate) fn append(
    clip: &mut Clip,
    decoded: &AudioBufferRef<'_>,
    buffer: &mut Option<SampleBuffer<f32>>,
) -> Result<()> {
    let spec = *decoded.spec();
    let channels = spec.channels.count();
    ensure!((1..=usize::from(MOST_CHANNELS)).contains(&channels), "the file has {channels} channels");
    ensure!(spec.rate > 0, "the file has no sample rate");
    ensure!(clip.rate == 0 || clip.rate == spec.rate, "the sample rate changes within the file");
    clip.rate = spec.rate;
    let share = 1.0 / channels as f32;
    // Not by the buffer, which would cut loud sounds to the range from -1 to 1.
    if let AudioBufferRef::F32(planes) = decoded {
        let frame = |at: usize| (0..channels).map(|channel| planes.chan(channel)[at]).sum::<f32>() * share;
        clip.samples.extend((0..planes.frames()).map(frame));
        return Ok(());
    }
    let needed = decoded.capacity() * channels;
    if buffer.as_ref().is_none_or(|buffer| buffer.capacity() < needed) {
        *buffer = Some(SampleBuffer::new(decoded.capacity() as u64, spec));
    }
    let Some(buffer) = buffer else { return Ok(()) };
    buffer.copy_interleaved_ref(decoded.clone());
    clip.samples
        .extend(buffer.samples().chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() * share));
    Ok(())
}
