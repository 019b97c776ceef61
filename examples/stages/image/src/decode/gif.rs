//! GIF files: the first frame.

use gif::{ColorOutput, DecodeOptions, Decoder, DecodingError, MemoryLimit};
use penstock_guest::prelude::*;

use super::Limits;
use crate::image::Image;
use crate::step::Size;

fn open(gif: &[u8], limits: Limits) -> Result<Decoder<std::io::Cursor<&[u8]>>> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options.set_memory_limit(MemoryLimit::Bytes(
        u64::max(limits.own_bytes() as u64, 1).try_into().expect("1 is not 0"),
    ));
    options.read_info(super::reader(gif)).map_err(|error| fault(&error))
}

pub(super) fn header(gif: &[u8], limits: Limits) -> Result<Size> {
    let decoder = open(gif, limits)?;
    limits.check(gif, decoder.width().into(), decoder.height().into(), 4)
}

/// Decodes the first frame. Colours of transparent pixels are kept; pixels outside of the frame have the background's colour.
pub(super) fn decode(gif: &[u8], limits: Limits) -> Result<Image> {
    let mut decoder = open(gif, limits)?;
    let size = Size { width: decoder.width().into(), height: decoder.height().into() };
    let background = decoder.bg_color();
    let global = decoder.global_palette().map(<[u8]>::to_vec);
    let frame = decoder.read_next_frame().map_err(|error| fault(&error))?.context("the GIF has no frame")?;
    let palette = frame.palette.as_deref().or(global.as_deref()).context("the GIF has no palette")?;
    // Pillow, too, takes black for colours that the palette lacks.
    let colour =
        |index: usize| palette.get(3 * index..3 * index + 3).map_or([0; 3], |rgb| [rgb[0], rgb[1], rgb[2]]);
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (width, height) = (usize::from(frame.width), usize::from(frame.height));
    let whole =
        Size { width: size.width.max((left + width) as u32), height: size.height.max((top + height) as u32) };
    ensure!(whole == size, "the GIF is damaged: its first frame exceeds the image");
    ensure!(frame.buffer.len() == width * height, "the GIF is truncated");
    let mut pixels = colour(background.unwrap_or(0)).repeat(size.pixels());
    for (row, indices) in frame.buffer.chunks_exact(width.max(1)).enumerate() {
        let start = ((top + row) * size.width as usize + left) * 3;
        for (out, &index) in pixels[start..start + 3 * width].as_chunks_mut::<3>().0.iter_mut().zip(indices) {
            *out = colour(index.into());
        }
    }
    Ok(Image { size, channels: 3, pixels })
}

fn fault(error: &DecodingError) -> Error {
    match error {
        DecodingError::MemoryLimit | DecodingError::OutOfMemory => Error::new(
            "the image is too large: a frame of the GIF takes more memory than `max_pixels` allows",
        ),
        damage => Error::new(format_args!("the GIF is damaged: {damage}")),
    }
}
