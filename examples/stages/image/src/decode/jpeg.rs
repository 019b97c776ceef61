//! JPEG files of all kinds that the fast path leaves: CMYK, unusual, damaged.

use std::io::ErrorKind;

use jpeg_decoder::{Decoder, Error as JpegError, PixelFormat};
use penstock_guest::prelude::*;

use super::orientation::Orientation;
use crate::image::Image;
use crate::step::Size;

pub(super) fn header(jpeg: &[u8]) -> Result<(Size, Orientation)> {
    let mut orientation = None;
    let mut rest = &jpeg[2..];
    let frame = loop {
        let Some((kind, segment, after)) = segment(rest) else { return Err(truncated(jpeg.len())) };
        match kind {
            // All frames: baseline, progressive, arithmetic and the rest; not the tables among them.
            0xc0..=0xcf if !matches!(kind, 0xc4 | 0xc8 | 0xcc) => break segment,
            0xe1 if orientation.is_none() => {
                orientation = segment.strip_prefix(b"Exif\0\0").map(Orientation::read);
            }
            0xd9 | 0xda => bail!("the JPEG is corrupt: its first scan precedes its size"),
            _ => {}
        }
        rest = after;
    };
    let Some(&[_, h1, h0, w1, w0]) = frame.first_chunk() else { return Err(truncated(jpeg.len())) };
    let size =
        Size::checked(u16::from_be_bytes([w1, w0]).into(), u16::from_be_bytes([h1, h0]).into(), "the image")?;
    Ok((size, orientation.unwrap_or_default()))
}

/// First segment: its kind, its content, and the data after it.
fn segment(data: &[u8]) -> Option<(u8, &[u8], &[u8])> {
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

/// Decodes a JPEG at its size divided by `reduction`.
///
/// Grey and CMYK images become RGB. Fails if the file is truncated, corrupt, or a JPEG of an unsupported kind: arithmetic coding,
/// 12 bits, hierarchical.
pub(super) fn decode(jpeg: &[u8], size: Size, reduction: u32) -> Result<Image> {
    let fault = |error| refusal(error, jpeg.len());
    let mut decoder = Decoder::new(jpeg);
    decoder.read_info().map_err(fault)?;
    let whole = decoder.info().context("the JPEG has no frame")?;
    // Coefficients of a progressive image, components, and the result.
    let channels = whole.pixel_format.pixel_bytes() as u64;
    let coefficients =
        if whole.coding_process == jpeg_decoder::CodingProcess::DctProgressive { 2 } else { 0 };
    let area = u64::from(reduction * reduction);
    super::check(
        jpeg,
        size.width.into(),
        size.height.into(),
        channels * coefficients + (2 * channels + 3).div_ceil(area),
    )?;
    // The decoder takes the first scale at which one side is large enough, so only the shorter side is passed to it.
    let least =
        |length: u16| if reduction == 1 { u16::MAX } else { (u32::from(length).div_ceil(reduction)) as u16 };
    let (width, height) = match whole.width <= whole.height {
        true => decoder.scale(least(whole.width), u16::MAX),
        false => decoder.scale(u16::MAX, least(whole.height)),
    }
    .map_err(fault)?;
    let pixels = decoder.decode().map_err(fault)?;
    let pixels = match whole.pixel_format {
        PixelFormat::RGB24 => pixels,
        PixelFormat::L8 => pixels.iter().flat_map(|&grey| [grey; 3]).collect(),
        PixelFormat::CMYK32 => pixels.as_chunks::<4>().0.iter().flat_map(|&inks| rgb(inks)).collect(),
        PixelFormat::L16 => bail!("the JPEG has 16 bits per pixel, only 8 are supported"),
    };
    let size = Size { width: width.into(), height: height.into() };
    ensure!(pixels.len() == size.pixels() * 3, "the JPEG is corrupt: its size changes");
    Ok(Image { size, channels: 3, pixels })
}

/// Converts the amounts of four inks, from 0 (none) to 255 (full), to red, green and blue, without a colour profile.
fn rgb([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    let light = |ink: u8| {
        // Rounded division by 255, as in Pillow.
        let product = u32::from(ink) * u32::from(255 - black) + 128;
        (255 - u32::from(black)).saturating_sub((product + (product >> 8)) >> 8) as u8
    };
    [light(cyan), light(magenta), light(yellow)]
}

fn truncated(len: usize) -> Error {
    Error::new(format_args!("the JPEG is truncated: its {len} bytes end before the image"))
}

fn refusal(error: JpegError, len: usize) -> Error {
    match error {
        JpegError::Io(cause) if cause.kind() == ErrorKind::UnexpectedEof => truncated(len),
        JpegError::Format(reason) => Error::new(format_args!("the JPEG is corrupt: {reason}")),
        JpegError::Unsupported(feature) => {
            Error::new(format_args!("the kind of the JPEG is not supported: {feature:?}"))
        }
        other => Error::from(other),
    }
}
