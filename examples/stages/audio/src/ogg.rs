//! Ogg files with one stream of Vorbis.
//!
//! Pages are read here, as RFC 3533 describes them, because readers of the format allocate as much memory as a comment claims to need.

use penstock_guest::prelude::*;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_VORBIS;
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};

use crate::decode::Mixer;
use crate::wav::Clip;
use crate::{named, vorbis};

/// Length of a page's header without its table of segments, in bytes.
const HEADER: usize = 27;

/// Packets of a stream, and the number of samples that it has at its end.
struct Stream {
    packets: Vec<Vec<u8>>,
    /// Position of the last page that ends a packet, in samples.
    end: Option<u64>,
}

pub(crate) fn decode(file: &[u8]) -> Result<Clip> {
    let refused = |fault| Error::new(format_args!("the Ogg file is damaged or not supported: {fault}"));
    let Stream { packets, end } = Stream::read(file)?;
    if let Some(name) = packets.first().and_then(|packet| named::stream(packet)) {
        bail!("the Ogg file has {name}, which is not decoded; Ogg files need Vorbis");
    }
    let [identification, _, setup, sound @ ..] = packets.as_slice() else {
        bail!("the Ogg file ends in its headers")
    };
    ensure!(
        identification.starts_with(b"\x01vorbis"),
        "the Ogg file has no sound that is known; Ogg files need Vorbis"
    );
    let headers = [identification.as_slice(), setup].concat();
    vorbis::check(&headers)?;
    let mut params = AudioCodecParameters::new();
    params.for_codec(CODEC_ID_VORBIS).with_extra_data(headers.into());
    let codecs = symphonia::default::get_codecs();
    let mut decoder = codecs.make_audio_decoder(&params, &Default::default()).map_err(refused)?;
    let mut mixer = Mixer::default();
    for packet in sound {
        let packet = PacketRef::new(0, Timestamp::ZERO, Duration::ZERO, packet);
        mixer.add(&decoder.decode_ref(&packet).map_err(refused)?)?;
    }
    let mut clip = mixer.clip;
    ensure!(clip.rate > 0, "the Ogg file has no samples");
    // An encoder fills the last block up.
    if let Some(end) = end {
        clip.samples.truncate(usize::try_from(end).unwrap_or(usize::MAX));
    }
    Ok(clip)
}

impl Stream {
    fn read(mut file: &[u8]) -> Result<Self> {
        let (mut packets, mut packet) = (Vec::new(), Vec::new());
        let (mut end, mut stream) = (None, None);
        while !file.is_empty() {
            ensure!(
                file.starts_with(b"OggS"),
                "the Ogg file is damaged: a page does not begin where the page before it ends"
            );
            let segments = file.get(HEADER - 1).map_or(0, |count| usize::from(*count));
            let lengths = file.get(HEADER..HEADER + segments).context("the Ogg file ends in a page")?;
            let length = HEADER + segments + lengths.iter().map(|length| usize::from(*length)).sum::<usize>();
            let (page, rest) = file.split_at_checked(length).context("the Ogg file ends in a page")?;
            ensure!(
                page[22..26] == checksum(page).to_le_bytes(),
                "the Ogg file is damaged: a page has a wrong checksum"
            );
            let serial = &page[14..18];
            if *stream.get_or_insert(serial) != serial {
                let name = packets.first().and_then(|packet: &Vec<u8>| named::stream(packet));
                bail!(
                    "the Ogg file has several streams{}; only one of Vorbis is read",
                    name.map(|name| format!(", the first of {name}")).unwrap_or_default()
                );
            }
            let mut content = &page[HEADER + segments..];
            let before = packets.len();
            for length in lengths {
                let (segment, after) = content.split_at(usize::from(*length));
                packet.extend_from_slice(segment);
                content = after;
                // A segment that is not full ends its packet.
                if *length < 255 {
                    packets.push(std::mem::take(&mut packet));
                }
            }
            if packets.len() > before {
                end = page[6..14]
                    .first_chunk()
                    .map(|end| u64::from_le_bytes(*end))
                    .filter(|end| *end < 1 << 62);
            }
            file = rest;
        }
        Ok(Self { packets, end })
    }
}

/// CRC-32 of a page, with zeros in its place. The polynomial is 0x04c11db7.
fn checksum(page: &[u8]) -> u32 {
    let bytes = page.iter().enumerate().map(|(at, byte)| if (22..26).contains(&at) { 0 } else { *byte });
    bytes.fold(0_u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(byte) << 24, |sum, _| {
            (sum << 1) ^ (0x04c1_1db7 & (sum >> 31).wrapping_neg())
        })
    })
}

/// A page with one packet.
#[cfg(test)]
pub(crate) fn page(serial: &[u8], packet: &[u8]) -> Vec<u8> {
    let mut page =
        [&b"OggS\0\x02\0\0\0\0\0\0\0\0"[..], serial, &[0; 8], &[1, packet.len() as u8], packet].concat();
    let sum = checksum(&page).to_le_bytes();
    page[22..26].copy_from_slice(&sum);
    page
}
