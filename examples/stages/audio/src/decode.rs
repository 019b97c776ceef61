//! Decoders of sound files.

use std::io::{Cursor, ErrorKind};

use penstock_guest::prelude::*;
use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::TrackType;
use symphonia::core::formats::probe::Hint;
use symphonia::core::io::MediaSourceStream;

use crate::wav::{self, Clip, MOST_CHANNELS, MOST_SAMPLES};
use crate::{flac, named, ogg};

/// Decodes a file, recognised by its first bytes, and averages its channels.
pub(crate) fn read(file: &[u8]) -> Result<Clip> {
    match file {
        [b'R', b'I', b'F', b'F', ..] => wav::read(file),
        [b'f', b'L', b'a', b'C', ..] => decode(&flac::for_decoder(file)?, "FLAC", Some(flac::METADATA)),
        [b'O', b'g', b'g', b'S', ..] => ogg::decode(file),
        [b'I', b'D', b'3', ..] => match after_tags(file)? {
            sound @ [b'f', b'L', b'a', b'C', ..] => read(sound),
            sound => mp3(sound),
        },
        // Frames of MP3 start with eleven bits that are 1.
        [0xff, second, ..] if *second >= 0xe0 => mp3(file),
        [] => bail!("the file is empty"),
        _ => {
            refuse_named(file)?;
            bail!("the file is not WAV, FLAC, MP3 or Ogg: it starts with {:02x?}", &file[..file.len().min(4)])
        }
    }
}

fn mp3(file: &[u8]) -> Result<Clip> {
    refuse_named(file)?;
    decode(file, "MP3", None)
}

/// Fails with the name of a format that is known and not decoded.
fn refuse_named(file: &[u8]) -> Result<()> {
    match named::format(file) {
        Some(name) => {
            bail!("the file is {name}, which is not decoded; WAV, FLAC, MP3 and Ogg with Vorbis are")
        }
        None => Ok(()),
    }
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

/// Decodes a file of the format `name`. With the length of the metadata, frames fill the rest of the file, and a length that it states must be
/// there: the decoder passes what is damaged.
fn decode(file: &[u8], name: &str, metadata: Option<usize>) -> Result<Clip> {
    let refused =
        |fault: Fault| Error::new(format_args!("the {name} file is damaged or not supported: {fault}"));
    let source = MediaSourceStream::new(Box::new(Cursor::new(file)), Default::default());
    let probe = symphonia::default::get_probe();
    let mut format =
        probe.probe(&Hint::new(), source, Default::default(), Default::default()).map_err(refused)?;
    let track = format.first_track_known_codec(TrackType::Audio);
    let track = track.and_then(|track| Some((track, track.codec_params.as_ref()?.audio()?)));
    let Some((track, params)) = track else { bail!("the {name} file has no sound that is known") };
    let (id, stated) = (track.id, track.num_frames.filter(|_| metadata.is_some()));
    if let Some(stated) = stated {
        check_length(stated)?;
    }
    let codecs = symphonia::default::get_codecs();
    let mut decoder = codecs.make_audio_decoder(params, &Default::default()).map_err(refused)?;
    let (mut mixer, mut covered) = (Mixer::default(), 0);
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) if packet.track_id == id => packet,
            Ok(Some(_)) => continue,
            Ok(None) => break,
            Err(Fault::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(fault) => return Err(refused(fault)),
        };
        covered += packet.data.len();
        mixer.add(&decoder.decode(&packet).map_err(refused)?)?;
    }
    let clip = mixer.clip;
    if let (Some(metadata), None) = (metadata, stated) {
        let (all, lost) = (file.len() - metadata, (file.len() - metadata).abs_diff(covered));
        ensure!(
            lost == 0,
            "the {name} file is damaged or cut: {lost} of its {all} bytes of sound are in no whole frame"
        );
    }
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
