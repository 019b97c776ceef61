//! Decodes a JPEG and resizes it to a square.

mod decode;
mod fast;
mod resize;

use penstock_guest::prelude::*;

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
}

/// Conversion of an image that is not square to a square one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Params)]
pub enum Mode {
    /// Crops the middle of the longer side.
    Crop,
    /// Compresses the longer side.
    Stretch,
}

/// Decodes the JPEG in `bytes` and resizes it to `image`: u8, [size, size, 3], rows first. Removes `bytes`, so that queues
/// hold the small result only.
#[stage(wants("bytes"), makes("image"), removes("bytes"))]
pub fn decode_resize(mut item: Item, settings: &Settings) -> Result<Item> {
    let jpeg = item.bytes("bytes")?;
    let pixels = match fast::decode_resize(jpeg, settings) {
        Some(pixels) => pixels,
        None => resize(&decode(jpeg, settings.size)?, settings)?,
    };
    item.remove("bytes");
    item.set("image", Tensor::<u8>::new([settings.size, settings.size, 3], pixels)?);
    Ok(item)
}

#[cfg(test)]
mod tests;
