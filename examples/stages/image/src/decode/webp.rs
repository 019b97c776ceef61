//! WebP files: lossy, lossless, and the first frame of animations.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};
use penstock_guest::prelude::*;

use super::Limits;
use super::orientation::{Orientation, PREFIX};
use crate::image::Image;
use crate::step::Size;

fn open(webp: &[u8], limits: Limits) -> Result<WebPDecoder<Cursor<&[u8]>>> {
    let mut decoder = WebPDecoder::new(Cursor::new(webp)).context("the WebP is damaged")?;
    decoder.set_memory_limit(limits.own_bytes());
    Ok(decoder)
}

pub(super) fn header(webp: &[u8], limits: Limits) -> Result<(Size, Orientation)> {
    let decoder = open(webp, limits)?;
    let (width, height) = decoder.dimensions();
    // Of an animation, the screen and a copy of the file, too.
    let (screen, copy) = if decoder.is_animated() { (8, webp.len() as u64) } else { (0, 0) };
    let size = limits.check(webp, width.into(), height.into(), 8 + screen)?;
    limits.ensure_fits(webp, size.pixels() as u64 * (8 + screen) + copy)?;
    check_frames(webp.get(12..).unwrap_or_default(), size, None)?;
    Ok((size, orientation(webp)))
}

/// Orientation in the metadata, which the first chunk of a file announces. Chunks behind the stated end of the file do not count.
fn orientation(webp: &[u8]) -> Orientation {
    const FLAGS: usize = 20;
    const HAS_EXIF: u8 = 0x08;
    const HAS_XMP: u8 = 0x04;
    let flags = match webp.get(12..16) {
        Some(b"VP8X") => webp.get(FLAGS).copied().unwrap_or(0),
        _ => 0,
    };
    let stated = webp.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |length| u32::from_le_bytes(*length));
    let end = webp.len().min((stated as usize).saturating_add(8));
    let of = |name: &[u8; 4], flag: u8| {
        let found = || chunks(webp.get(12..end).unwrap_or_default()).find(|(own, _)| own == name);
        (flags & flag != 0).then(found).flatten().map(|(_, content)| content)
    };
    let exif = of(b"EXIF", HAS_EXIF).map(|exif| exif.strip_prefix(PREFIX).unwrap_or(exif));
    Orientation::of(exif, of(b"XMP ", HAS_XMP))
}

/// Names and contents of the chunks of a file, which may be cut.
fn chunks(mut bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (&[a, b, c, d, l0, l1, l2, l3], rest) = bytes.split_first_chunk::<8>()?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        bytes = rest.get(length.saturating_add(length % 2)..).unwrap_or_default();
        Some(([a, b, c, d], &rest[..length.min(rest.len())]))
    })
}

/// Fails if a lossy frame in these chunks is larger than the image, since the decoder allocates the frame before it compares the sizes; or,
/// in a frame of an animation, if it has another size than that, which the decoder does not compare if the frame has transparency.
fn check_frames(bytes: &[u8], most: Size, stated: Option<Size>) -> Result<()> {
    let mut is_behind_alpha = false;
    for chunk in chunks(bytes) {
        // The decoder takes what follows the transparency of a frame for its colours, whatever its name is.
        ensure!(
            !is_behind_alpha || chunk.0 == *b"VP8 ",
            "the WebP is damaged: a frame of an animation has transparency without colours"
        );
        is_behind_alpha = stated.is_some() && chunk.0 == *b"ALPH";
        match chunk {
            (name, &[_, _, _, 0x9d, 0x01, 0x2a, w0, w1, h0, h1, ..]) if name == *b"VP8 " => {
                let length = |bytes| u32::from(u16::from_le_bytes(bytes) & 0x3fff);
                let size = Size { width: length([w0, w1]), height: length([h0, h1]) };
                let Size { width, height } = size;
                ensure!(
                    width <= most.width && height <= most.height,
                    "the WebP is damaged: a frame of {width} x {height} pixels exceeds the image"
                );
                if let Some(stated) = stated {
                    let Size { width: stated_width, height: stated_height } = stated;
                    ensure!(
                        size == stated,
                        "the WebP is damaged: a frame of {width} x {height} pixels instead of {stated_width} x {stated_height}"
                    );
                }
            }
            // A frame of an animation: its place, size and duration, then chunks.
            (name, &[_, _, _, _, _, _, w0, w1, w2, h0, h1, h2, _, _, _, _, ref frame @ ..])
                if name == *b"ANMF" && stated.is_none() =>
            {
                let length = |[a, b, c]: [u8; 3]| u32::from_le_bytes([a, b, c, 0]) + 1;
                let stated = Size { width: length([w0, w1, w2]), height: length([h0, h1, h2]) };
                check_frames(frame, most, Some(stated))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// A copy of an animation whose first frame replaces the empty screen. Blending, which such files usually ask for, makes colours too low
/// by 1.
fn unblended(webp: &[u8]) -> Option<Vec<u8>> {
    const FLAGS: usize = 15;
    const NO_BLENDING: u8 = 0x02;
    let chunks = || chunks(webp.get(12..).unwrap_or_default());
    let before: usize = chunks()
        .take_while(|(name, _)| name != b"ANMF")
        .map(|(_, content)| 8 + content.len() + content.len() % 2)
        .sum();
    let place = 12 + before + 8 + FLAGS;
    let is_there = chunks().any(|(name, _)| name == *b"ANMF") && place < webp.len();
    is_there.then(|| {
        let mut copy = webp.to_vec();
        copy[place] |= NO_BLENDING;
        copy
    })
}

pub(super) fn decode(webp: &[u8], limits: Limits) -> Result<Image> {
    let copy = unblended(webp);
    let mut decoder = open(copy.as_deref().unwrap_or(webp), limits)?;
    let (width, height) = decoder.dimensions();
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let bytes = decoder.output_buffer_size().context("the WebP is too large")?;
    let mut pixels = vec![0; bytes];
    match decoder.is_animated() {
        true => decoder.read_frame(&mut pixels).map(|_| ()),
        false => decoder.read_image(&mut pixels),
    }
    .map_err(|error| match error {
        DecodingError::MemoryLimitExceeded => Error::new(
            "the image is too large: the WebP takes more memory than one image may; raise `memory_mib`",
        ),
        damage => Error::new(format_args!("the WebP is damaged: {damage}")),
    })?;
    Ok(super::to_colours(Size { width, height }, channels, pixels))
}
