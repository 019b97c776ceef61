//! Segments of a JPEG, and its size and orientation, which they hold.

use std::borrow::Cow;

use penstock_guest::prelude::*;

use crate::decode::orientation::{Orientation, PREFIX};
use crate::step::Size;

/// Text before XMP metadata.
const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";

/// Size and orientation of the stored image. Segments up to the first scan may hold metadata: those of EXIF are joined, and of XMP the
/// last ones count.
pub(crate) fn header(jpeg: &[u8]) -> Result<(Size, Orientation)> {
    let (mut exif, mut xmp) = (None::<Cow<[u8]>>, None);
    let mut frame = None;
    let mut rest = &jpeg[2..];
    while let Some((kind, segment, after)) = segment(rest) {
        match kind {
            // All frames: baseline, progressive, arithmetic and the rest; not the tables among them.
            0xc0..=0xcf if !matches!(kind, 0xc4 | 0xc8 | 0xcc) => {
                frame.get_or_insert(segment);
            }
            0xe1 => {
                if let Some(part) = segment.strip_prefix(PREFIX) {
                    match &mut exif {
                        None => exif = Some(Cow::Borrowed(part)),
                        Some(exif) => exif.to_mut().extend_from_slice(part),
                    }
                } else if let Some(text) = segment.strip_prefix(XMP) {
                    xmp = Some(text);
                }
            }
            0xd9 | 0xda if frame.is_none() => bail!("the JPEG is corrupt: its first scan precedes its size"),
            0xd9 | 0xda => break,
            _ => {}
        }
        rest = after;
    }
    let Some(&[_, h1, h0, w1, w0]) = frame.and_then(<[u8]>::first_chunk) else {
        return Err(truncated(jpeg.len()));
    };
    let size = Size::of(u16::from_be_bytes([w1, w0]).into(), u16::from_be_bytes([h1, h0]).into())?;
    Ok((size, Orientation::of(exif.as_deref(), xmp)))
}

/// First segment: its kind, its content, and the data after it.
pub(super) fn segment(data: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    // Fill bytes, and anything else between two segments, which libjpeg skips too.
    let start = data.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff))?;
    let (kind, data) = (data[start + 1], &data[start + 2..]);
    if matches!(kind, 0x01 | 0xd0..=0xd9) {
        return Some((kind, &[], data));
    }
    let length = usize::from(u16::from_be_bytes(*data.first_chunk()?));
    let content = data.get(2..length)?;
    Some((kind, content, &data[length..]))
}

/// Error for a file of this length that ends too early.
pub(super) fn truncated(len: usize) -> Error {
    Error::new(format_args!("the JPEG is truncated: its {len} bytes end before the image"))
}
