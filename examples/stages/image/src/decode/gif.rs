//! GIF files: the first frame.

use std::io::Cursor;

use gif::{ColorOutput, DecodeOptions, Decoder, DecodingError, MemoryLimit};
use penstock_guest::prelude::*;

use super::Limits;
use crate::image::Image;
use crate::step::Size;

/// Opens a file at its first frame. The image holds the screen and the frame, as in Pillow.
fn open(gif: &[u8], limits: Limits) -> Result<(Decoder<Cursor<&[u8]>>, Size)> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options.set_memory_limit(MemoryLimit::Bytes(
        u64::max(limits.own_bytes() as u64, 1).try_into().expect("1 is not 0"),
    ));
    let mut decoder = options.read_info(Cursor::new(gif)).map_err(|error| fault(&error))?;
    let screen = [decoder.width(), decoder.height()].map(u64::from);
    let frame = decoder.next_frame_info().map_err(|error| fault(&error))?.context("the GIF has no frame")?;
    let [right, bottom] = [(frame.left, frame.width), (frame.top, frame.height)]
        .map(|(start, length)| u64::from(start) + u64::from(length));
    let size = limits.check(gif, screen[0].max(right), screen[1].max(bottom), 4)?;
    Ok((decoder, size))
}

pub(super) fn header(gif: &[u8], limits: Limits) -> Result<Size> {
    open(gif, limits).map(|(_, size)| size)
}

/// Decodes the first frame. Colours of transparent pixels are kept; pixels outside of the frame have the transparent colour, or else the first, as in
/// Pillow.
pub(super) fn decode(gif: &[u8], limits: Limits) -> Result<Image> {
    let (mut decoder, size) = open(gif, limits)?;
    let frame = decoder.current_frame_info().context("the GIF has no frame")?.clone();
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (width, height) = (usize::from(frame.width), usize::from(frame.height));
    // All rows at once: the decoder stops early where it is asked for less than a code gives.
    let mut indices = vec![0; width * height];
    let is_whole = decoder.fill_buffer(&mut indices).map_err(|error| fault(&error))?;
    ensure!(is_whole, "the GIF is damaged: its first frame is truncated");
    let palette = decoder.palette().map_err(|error| fault(&error))?;
    // As in Pillow, colours that the palette lacks are black, or go on with the greys if the others are these.
    let stored = palette.as_chunks::<3>().0;
    let is_grey = stored.iter().zip(0..=u8::MAX).all(|(colour, index)| *colour == [index; 3]);
    let colour = |index: u8| match stored.get(usize::from(index)) {
        Some(colour) => *colour,
        None => [if is_grey { index } else { 0 }; 3],
    };
    let mut pixels = colour(frame.transparent.unwrap_or(0)).repeat(size.pixels());
    for (row, indices) in rows(height, frame.interlaced).zip(indices.chunks_exact(width.max(1))) {
        let start = ((top + row) * size.width as usize + left) * 3;
        for (out, &index) in pixels[start..start + 3 * width].as_chunks_mut::<3>().0.iter_mut().zip(indices) {
            *out = colour(index);
        }
    }
    Ok(Image { size, channels: 3, pixels })
}

/// Rows in the order of the file: interlaced ones in four passes.
fn rows(height: usize, interlaced: bool) -> impl Iterator<Item = usize> {
    let passes: &[(usize, usize)] = if interlaced { &[(0, 8), (4, 8), (2, 4), (1, 2)] } else { &[(0, 1)] };
    passes.iter().flat_map(move |&(first, step)| (first..height).step_by(step))
}

fn fault(error: &DecodingError) -> Error {
    match error {
        DecodingError::MemoryLimit | DecodingError::OutOfMemory => Error::new(
            "the image is too large: a frame of the GIF takes more memory than one image may; raise `memory_mib`",
        ),
        damage => Error::new(format_args!("the GIF is damaged: {damage}")),
    }
}
