//! Resizing of an image to a square one.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use penstock_guest::prelude::*;

use crate::{Image, Mode, Settings};

/// Resizes an image: u8, [size, size, 3], rows first. Every pixel is a weighted mean of all pixels that it covers (bilinear
/// with antialiasing, as in Pillow).
pub fn resize(image: &Image, settings: &Settings) -> Result<Vec<u8>> {
    let mut pixels = vec![0; settings.size as usize * settings.size as usize * 3];
    let source = TypedImageRef::<U8x3>::from_buffer(image.width, image.height, &image.pixels)?;
    let mut target = TypedImage::<U8x3>::from_buffer(settings.size, settings.size, &mut pixels)?;
    let mut options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    if settings.mode == Mode::Crop {
        options = options.fit_into_destination(Some((0.5, 0.5)));
    }
    // Typed, so that the module contains the code and tables of one pixel type only.
    Resizer::new().resize_typed(&source, &mut target, &options)?;
    drop(target);
    Ok(pixels)
}
