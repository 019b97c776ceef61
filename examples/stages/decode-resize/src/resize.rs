//! Resizing of an image to a square one.

use fast_image_resize::images::{Image as Target, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use penstock_guest::prelude::*;

use crate::{Image, Mode, Settings};

/// Resizes an image: u8, [size, size, 3], rows first. Every pixel is a weighted mean of all pixels that it covers (bilinear
/// with antialiasing, as in Pillow).
pub fn resize(image: &Image, settings: &Settings) -> Result<Vec<u8>> {
    let source = ImageRef::new(image.width, image.height, &image.pixels, PixelType::U8x3)?;
    let mut target = Target::new(settings.size, settings.size, PixelType::U8x3);
    let mut options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    if settings.mode == Mode::Crop {
        options = options.fit_into_destination(Some((0.5, 0.5)));
    }
    Resizer::new().resize(&source, &mut target, &options)?;
    Ok(target.into_vec())
}
