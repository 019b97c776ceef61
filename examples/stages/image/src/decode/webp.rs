//! WebP files: lossy, lossless, and the first frame of animations.

use image_webp::WebPDecoder;
use penstock_guest::prelude::*;

use super::orientation::Orientation;
use crate::image::Image;
use crate::step::Size;

fn open(webp: &[u8]) -> Result<WebPDecoder<std::io::Cursor<&[u8]>>> {
    let mut decoder = WebPDecoder::new(super::reader(webp)).context("the WebP is damaged")?;
    decoder.set_memory_limit(64 << 20);
    Ok(decoder)
}

pub(super) fn header(webp: &[u8]) -> Result<(Size, Orientation)> {
    let mut decoder = open(webp)?;
    let (width, height) = decoder.dimensions();
    let animated = u64::from(decoder.is_animated()) * 8;
    let size = super::check(webp, width.into(), height.into(), 8 + animated)?;
    let orientation = decoder
        .exif_metadata()
        .ok()
        .flatten()
        .map(|exif| Orientation::read(exif.strip_prefix(b"Exif\0\0").unwrap_or(&exif)));
    Ok((size, orientation.unwrap_or_default()))
}

pub(super) fn decode(webp: &[u8]) -> Result<Image> {
    let mut decoder = open(webp)?;
    let (width, height) = decoder.dimensions();
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let bytes = decoder.output_buffer_size().context("the WebP is too large")?;
    let mut pixels = vec![0; bytes];
    match decoder.is_animated() {
        true => decoder.read_frame(&mut pixels).map(|_| ()),
        false => decoder.read_image(&mut pixels),
    }
    .context("the WebP is damaged")?;
    Ok(super::to_colours(Size { width, height }, channels, pixels))
}
