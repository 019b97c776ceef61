//! Decodes a JPEG and resizes it to a square.

use penstock_guest::prelude::*;

/// What a pipeline may set.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Height and width of the result, in pixels.
    #[param(default = 224, min = 1, max = 8192)]
    pub size: u32,
    /// How an image that is not square becomes square.
    #[param(default = "crop")]
    pub mode: Mode,
}

/// How an image that is not square becomes square.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Mode {
    /// The middle of the longer side is kept.
    Crop,
    /// The image is squeezed, without regard to its proportions.
    Stretch,
}

/// Decodes the JPEG in `bytes` and resizes it to `image`: u8, [size, size, 3], rows first.
#[stage(wants("bytes"), makes("image"))]
pub fn decode_resize(mut item: Item, settings: &Settings) -> Result<Item> {
    let image = decode(item.bytes("bytes")?)?;
    let pixels = resize(&image, settings)?;
    item.remove("bytes");
    item.set("image", Tensor::<u8>::new([settings.size, settings.size, 3], pixels)?);
    Ok(item)
}

/// A decoded image: u8, [height, width, 3], rows first.
#[derive(Debug)]
pub struct Image {
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
    /// Red, green, blue.
    pub pixels: Vec<u8>,
}

/// Decodes a JPEG.
pub fn decode(jpeg: &[u8]) -> Result<Image> {
    use zune_jpeg::zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
    let options = DecoderOptions::new_fast().jpeg_set_out_colorspace(ColorSpace::RGB).set_strict_mode(true);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(jpeg), options);
    let pixels = decoder.decode()?;
    let info = decoder.info().context("the JPEG has no header")?;
    Ok(Image { width: u32::from(info.width), height: u32::from(info.height), pixels })
}

/// Resizes to `size` x `size` pixels: u8, [size, size, 3], rows first.
pub fn resize(image: &Image, settings: &Settings) -> Result<Vec<u8>> {
    use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer, images};
    let source = images::ImageRef::new(image.width, image.height, &image.pixels, PixelType::U8x3)?;
    let mut target = images::Image::new(settings.size, settings.size, PixelType::U8x3);
    let mut options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    if settings.mode == Mode::Crop {
        options = options.fit_into_destination(Some((0.5, 0.5)));
    }
    Resizer::new().resize(&source, &mut target, Some(&options))?;
    Ok(target.into_vec())
}
