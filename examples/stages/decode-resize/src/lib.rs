//! Decodes a JPEG and resizes it to a square.

mod decode;
mod fast;
mod planes;
mod resize;

use penstock_guest::prelude::*;
use planes::Scale;

pub use decode::{Image, decode};
pub use resize::resize;

/// Params that a pipeline may set.
#[derive(Clone, Debug, Params)]
pub struct Settings {
    /// Height and width of the result, in pixels.
    #[param(default = 224, min = 1, max = 8192)]
    pub size: u32,
    /// Conversion of an image that is not square: `crop` keeps the middle, `stretch` distorts the image.
    #[param(default = "crop")]
    pub mode: Mode,
    /// Decodes a large image at 1/2, 1/4 or 1/8 of its size if both sides then still have `size` pixels, as `draft` in Pillow:
    /// several times faster, but less exact. By default, every image is decoded at its full size, as in torchvision.
    #[param(default = false)]
    pub draft: bool,
    /// Form of the result: `u8` is [size, size, 3], `f32` is [3, size, size], normalised by `mean` and `std`.
    #[param(default = "u8")]
    pub output: Output,
    /// Mean to subtract from values of 0 to 1, one number per channel, or one for all; used by the output `f32`.
    #[param(default = [0.485, 0.456, 0.406])]
    pub mean: Vec<f32>,
    /// Standard deviation to divide by, one number per channel, or one for all; never 0. Used by the output `f32`.
    #[param(default = [0.229, 0.224, 0.225])]
    pub std: Vec<f32>,
}

/// Conversion of an image that is not square to a square one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Mode {
    /// Crops the middle of the longer side.
    Crop,
    /// Compresses the longer side.
    Stretch,
}

/// Form of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Output {
    /// Bytes, [size, size, 3], rows first.
    U8,
    /// Normalised 32-bit floats, [3, size, size], channels first.
    F32,
}

/// The stage, with checked settings.
#[derive(Debug)]
pub struct DecodeResize(Settings);

/// Decodes the JPEG in `bytes` and resizes it to `image`: u8, [size, size, 3], rows first, or, with `output` `f32`, normalised
/// float32, [3, size, size]. Removes `bytes`, so that queues hold the small result only.
#[stage(wants("bytes"), makes("image"), removes("bytes"))]
impl SampleStage for DecodeResize {
    type Params = Settings;

    fn new(settings: &Settings) -> Result<Self> {
        planes::scales(settings)?;
        Ok(Self(settings.clone()))
    }

    fn process(&mut self, item: Item) -> Result<Outcome> {
        decode_resize(item, &self.0).map(Outcome::Keep)
    }
}

/// Result of one image in the form that the settings name.
pub(crate) enum Pixels<'a> {
    /// u8, [size, size, 3].
    Bytes(&'a mut [u8]),
    /// f32, [3, size, size], and the scale of each channel.
    Planes(&'a mut [f32], [Scale; 3]),
}

pub fn decode_resize(mut item: Item, settings: &Settings) -> Result<Item> {
    let jpeg = item.bytes("bytes")?;
    let size = settings.size;
    match settings.output {
        Output::U8 => {
            let mut image = Tensor::<u8>::zeros([size, size, 3]);
            fill(jpeg, settings, &mut Pixels::Bytes(image.as_mut_slice()))?;
            item.set("image", image);
        }
        Output::F32 => {
            let mut image = Tensor::<f32>::zeros([3, size, size]);
            fill(jpeg, settings, &mut Pixels::Planes(image.as_mut_slice(), planes::scales(settings)?))?;
            item.set("image", image);
        }
    }
    item.remove("bytes");
    Ok(item)
}

fn fill(jpeg: &[u8], settings: &Settings, result: &mut Pixels) -> Result<()> {
    if fast::decode_resize(jpeg, settings, result).is_some() {
        return Ok(());
    }
    let pixels = resize(&decode(jpeg, settings)?, settings)?;
    match result {
        Pixels::Bytes(bytes) => bytes.copy_from_slice(&pixels),
        Pixels::Planes(planes, scales) => planes::to_planes(&pixels, scales, planes),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
