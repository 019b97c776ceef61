//! BMP files, with palettes or colours, uncompressed or run-length encoded.

use penstock_guest::prelude::*;
use zune_bmp::{BmpDecoder, zune_core::bytestream::ZCursor, zune_core::options::DecoderOptions};

use crate::image::Image;
use crate::step::Size;

type Bmp<'a> = BmpDecoder<ZCursor<&'a [u8]>>;

/// Decoder, size, and number of channels.
fn open(bmp: &[u8]) -> Result<(Bmp<'_>, Size, usize)> {
    // The decoder adds to this position, and must not pass the end of the address space.
    let pixels_at =
        bmp.get(10..14).and_then(|at| at.first_chunk()).map(|at| u32::from_le_bytes(*at) as usize);
    ensure!(
        pixels_at.is_some_and(|at| at <= bmp.len()),
        "the BMP is damaged: its pixels would begin after its end"
    );
    let options = DecoderOptions::default().set_max_width(1 << 20).set_max_height(1 << 20);
    let mut decoder = BmpDecoder::new_with_options(ZCursor::new(bmp), options);
    decoder.decode_headers().map_err(fault)?;
    let (width, height) = decoder.dimensions().context("the BMP has no size")?;
    let colours = decoder.colorspace().context("the BMP has no colours")?;
    let size = super::check(bmp, width as u64, height as u64, 4)?;
    Ok((decoder, size, colours.num_components()))
}

pub(super) fn header(bmp: &[u8]) -> Result<Size> {
    open(bmp).map(|(_, size, _)| size)
}

pub(super) fn decode(bmp: &[u8]) -> Result<Image> {
    let (mut decoder, size, channels) = open(bmp)?;
    let pixels = decoder.decode().map_err(fault)?;
    ensure!(pixels.len() == size.pixels() * channels, "the BMP is damaged: its pixels do not fit its size");
    Ok(super::to_colours(size, channels, pixels))
}

fn fault(error: impl std::fmt::Debug) -> Error {
    Error::new(format_args!("the BMP is damaged: {error:?}"))
}
