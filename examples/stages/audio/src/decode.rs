//! Decoders of sound files.

use std::io::{Cursor, ErrorKind};

use penstock_guest::prelude::*;
use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::TrackType;
use symphonia::core::formats::probe::Hint;
use symphonia::core::io::MediaSourceStream;

use crate::ogg;
use crate::wav::{self, Clip, MOST_CHANNELS, MOST_SAMPLES};

/// Decodes a file, recognised by its first bytes, and averages its channels.
pub(crate) fn read(file: &[u8]) -> Result<Clip> {
    match file {
        [b'R', b'I', b'F', ..] | [b'R', b'F', b'6', ..] => wav::read(file),
        [b'f', b'L', b'a', b'C', ..] => decode(&without_tags(file)?, "FLAC", true),
        [b'O', b'g', b'g', b'S', ..] => ogg::decode(file),
        [b'I', b'D', b'3', ..] => decode(after_tags(file)?, "MP3", false),
        // Frames of MP3 start with eleven bits that are 1.
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

/// The MP3 file after the tags of ID3v2 at its beginning, which have names and pictures.
fn after_tags(mut file: &[u8]) -> Result<&[u8]> {
    const FOOTER: u8 = 0x10;
    while let [b'I', b'D', b'3', _, _, flags, a, b, c, d, rest @ ..] = file {
        let length = [a, b, c, d].iter().fold(0, |length, byte| length << 7 | usize::from(**byte & 0x7f));
        let footer = if flags & FOOTER == 0 { 0 } else { 10 };
        file = rest.get(length + footer..).context("the MP3 file ends in its tags")?;
    }
    Ok(file)
}

/// Decodes a file of the format `name`. `states_length` is true if a file that states a length has it.
fn decode(file: &[u8], name: &str, states_length: bool) -> Result<Clip> {
    let refused =
        |fault: Fault| Error::new(format_args!("the {name} file is damaged or not supported: {fault}"));
    let source = MediaSourceStream::new(Box::new(Cursor::new(file)), Default::default());
    let probe = symphonia::default::get_probe();
    let mut format =
        probe.probe(&Hint::new(), source, Default::default(), Default::default()).map_err(refused)?;
    let track = format.first_track_known_codec(TrackType::Audio);
    let track = track.and_then(|track| Some((track, track.codec_params.as_ref()?.audio()?)));
    let Some((track, params)) = track else { bail!("the {name} file has no sound that is known") };
    let (id, stated) = (track.id, track.num_frames.filter(|_| states_length));
    if let Some(stated) = stated {
        check_length(stated)?;
    }
    let codecs = symphonia::default::get_codecs();
    let mut decoder = codecs.make_audio_decoder(params, &Default::default()).map_err(refused)?;
    let mut mixer = Mixer::default();
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) if packet.track_id == id => packet,
            Ok(Some(_)) => continue,
            Ok(None) => break,
            Err(Fault::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(fault) => return Err(refused(fault)),
        };
        mixer.add(&decoder.decode(&packet).map_err(refused)?)?;
    }
    let clip = mixer.clip;
    ensure!(clip.rate > 0, "the {name} file has no samples");
    if let Some(stated) = stated {
        let found = clip.samples.len();
        ensure!(found as u64 >= stated, "the {name} file ends early: it has {found} of {stated} samples");
    }
    Ok(clip)
}

fn check_length(samples: u64) -> Result<()> {
    ensure!(samples <= MOST_SAMPLES as u64, "the clip has more than {MOST_SAMPLES} samples: cut it first");
    Ok(())
}

/// Averages the channels of decoded packets.
#[derive(Default)]
pub(crate) struct Mixer {
    pub(crate) clip: Clip,
    channels: Vec<Vec<f32>>,
}

impl Mixer {
    pub(crate) fn add(&mut self, decoded: &GenericAudioBufferRef<'_>) -> Result<()> {
        let Self { clip, channels } = self;
        let (rate, count) = (decoded.spec().rate(), decoded.num_planes());
        ensure!((1..=usize::from(MOST_CHANNELS)).contains(&count), "the file has {count} channels");
        ensure!(rate > 0, "the file has no sample rate");
        ensure!(clip.rate == 0 || clip.rate == rate, "the sample rate changes within the file");
        clip.rate = rate;
        decoded.copy_to_vecs_planar(channels);
        let share = 1.0 / count as f32;
        let frame = |at: usize| channels.iter().map(|channel| channel[at]).sum::<f32>() * share;
        clip.samples.extend((0..decoded.frames()).map(frame));
        check_length(clip.samples.len() as u64)
    }
}
