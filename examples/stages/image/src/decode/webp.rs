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
    check_frames(webp.get(12..).unwrap_or_default(), size, false)?;
    let orientation = decoder
        .exif_metadata()
        .ok()
        .flatten()
        .map(|exif| Orientation::read(exif.strip_prefix(b"Exif\0\0").unwrap_or(&exif)));
    Ok((size, orientation.unwrap_or_default()))
}

/// Fails if a lossy frame in these chunks is larger than the image: the decoder allocates the frame before it compares the sizes.
fn check_frames(mut chunks: &[u8], size: Size, in_animation: bool) -> Result<()> {
    while let Some((&[a, b, c, d, l0, l1, l2, l3], rest)) = chunks.split_first_chunk::<8>() {
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let content = &rest[..length.min(rest.len())];
        match (&[a, b, c, d], content) {
            (b"VP8 ", &[_, _, _, 0x9d, 0x01, 0x2a, w0, w1, h0, h1, ..]) => {
                let [width, height] = [[w0, w1], [h0, h1]].map(|length| u16::from_le_bytes(length) & 0x3fff);
                ensure!(
                    u32::from(width) <= size.width && u32::from(height) <= size.height,
                    "the WebP is damaged: a frame of {width} x {height} pixels exceeds the image"
                );
            }
            // A frame of an animation: its place and duration, then chunks.
            (b"ANMF", frame) if !in_animation => {
                check_frames(frame.get(16..).unwrap_or_default(), size, true)?
            }
            _ => {}
        }
        chunks = rest.get(length.saturating_add(length % 2)..).unwrap_or_default();
    }
    Ok(())
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
