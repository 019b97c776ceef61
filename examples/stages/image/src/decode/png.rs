//! PNG files: 1 to 16 bits, palettes, transparency, interlacing.

use std::io::Cursor;

use penstock_guest::prelude::*;
use png::{Decoder, DecodingError, Reader, Transformations};

use super::Limits;
use crate::image::Image;
use crate::step::Size;

fn open(png: &[u8], limits: Limits) -> Result<Reader<Cursor<&[u8]>>> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(png), png::Limits { bytes: limits.own_bytes() });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.read_info().map_err(|error| fault(&error))
}

pub(super) fn header(png: &[u8], limits: Limits) -> Result<Size> {
    // The size is the first thing in a file, and checked before the decoder takes memory.
    if let Some(&[b'I', b'H', b'D', b'R', w0, w1, w2, w3, h0, h1, h2, h3]) =
        png.get(12..).and_then(<[u8]>::first_chunk)
    {
        let [width, height] = [[w0, w1, w2, w3], [h0, h1, h2, h3]].map(u32::from_be_bytes);
        limits.check(png, width.into(), height.into(), 4)?;
    }
    let reader = open(png, limits)?;
    let info = reader.info();
    // A row at a time is stored with all its bits.
    limits.check(png, info.width.into(), info.height.into(), 4)
}

pub(super) fn decode(png: &[u8], limits: Limits) -> Result<Image> {
    let mut reader = open(png, limits)?;
    let size = Size { width: reader.info().width, height: reader.info().height };
    let channels = reader.output_color_type().0.samples();
    let bytes = reader.output_buffer_size().context("the PNG is too large")?;
    let mut pixels = vec![0; bytes];
    reader.next_frame(&mut pixels).map_err(|error| fault(&error))?;
    ensure!(bytes == size.pixels() * channels, "the PNG is damaged: its first frame has another size");
    Ok(super::to_colours(size, channels, pixels))
}

fn fault(error: &DecodingError) -> Error {
    match error {
        DecodingError::LimitsExceeded => Error::new(
            "the image is too large: the PNG takes more memory than one image may; raise `memory_mib`",
        ),
        damage => Error::new(format_args!("the PNG is damaged: {damage}")),
    }
}
