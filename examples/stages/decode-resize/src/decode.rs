//! Decoding of JPEG files to pixels.

use std::io::ErrorKind;

use jpeg_decoder::{Decoder, Error as JpegError, PixelFormat};
use penstock_guest::prelude::*;

use crate::Settings;

/// Maximum size of an image, in pixels: decoding takes about 4.5 bytes per pixel, and the memory of a stage is limited.
pub(crate) const MAX_PIXELS: u32 = 50_000_000;

#[derive(Debug, PartialEq)]
pub struct Image {
    pub width: u32,
    pub height: u32,
    /// u8, [height, width, 3], rows first: red, green, blue.
    pub pixels: Vec<u8>,
}

/// Decodes a JPEG. With `draft`, it is decoded at half, a quarter or an eighth of its size if both sides then still have `size`
/// pixels, which is much faster.
///
/// Grey and CMYK images become RGB. Fails if the file is empty, truncated, corrupt, larger than 50 megapixels, or a JPEG of
/// an unsupported kind: arithmetic coding, 12 bits, hierarchical.
pub fn decode(jpeg: &[u8], settings: &Settings) -> Result<Image> {
    ensure!(!jpeg.is_empty(), "the file is empty");
    ensure!(jpeg.starts_with(&[0xff, 0xd8]), "the file is not a JPEG: it does not start with ff d8");
    let fault = |error| refusal(error, jpeg.len());

    let mut decoder = Decoder::new(jpeg);
    decoder.read_info().map_err(fault)?;
    let whole = decoder.info().context("the JPEG has no frame")?;
    ensure!(
        u32::from(whole.width) * u32::from(whole.height) <= MAX_PIXELS,
        "the image is too large: {} x {} pixels, more than the limit of {MAX_PIXELS}",
        whole.width,
        whole.height
    );
    // The decoder takes the first scale at which one side is large enough, so only the shorter side is passed to it.
    let least = match settings.draft {
        true => u16::try_from(settings.size).unwrap_or(u16::MAX),
        false => u16::MAX,
    };
    let (width, height) = match whole.width <= whole.height {
        true => decoder.scale(least, u16::MAX),
        false => decoder.scale(u16::MAX, least),
    }
    .map_err(fault)?;
    let pixels = decoder.decode().map_err(fault)?;
    let pixels = match whole.pixel_format {
        PixelFormat::RGB24 => pixels,
        PixelFormat::L8 => pixels.iter().flat_map(|&grey| [grey; 3]).collect(),
        PixelFormat::CMYK32 => pixels.as_chunks::<4>().0.iter().flat_map(|&inks| rgb(inks)).collect(),
        PixelFormat::L16 => bail!("the JPEG has 16 bits per pixel, only 8 are supported"),
    };
    Ok(Image { width: width.into(), height: height.into(), pixels })
}

/// Converts the amounts of four inks, from 0 (none) to 255 (full), to red, green and blue, without a colour profile.
fn rgb([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    let light = |ink: u8| (u32::from(255 - ink) * u32::from(255 - black) / 255) as u8;
    [light(cyan), light(magenta), light(yellow)]
}

fn refusal(error: JpegError, len: usize) -> Error {
    match error {
        JpegError::Io(cause) if cause.kind() == ErrorKind::UnexpectedEof => {
            Error::new(format_args!("the JPEG is truncated: its {len} bytes end before the image"))
        }
        JpegError::Format(reason) => Error::new(format_args!("the JPEG is corrupt: {reason}")),
        JpegError::Unsupported(feature) => {
            Error::new(format_args!("the kind of the JPEG is not supported: {feature:?}"))
        }
        other => Error::from(other),
    }
}
