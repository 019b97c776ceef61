//! Types of params that the SDK does not have: numbers that may be written alone or in a list.

use penstock_guest::{Json, Param};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Numbers of a param, written as one number or as a list of 1 to 4.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers<T>(pub Vec<T>);

impl<T: Param> Param for Numbers<T> {
    const MEMBERS: Json = Json::Parts(&[
        Json::Text(r#""anyOf":[{"#),
        T::MEMBERS,
        T::MINIMUM,
        T::MAXIMUM,
        Json::Text(r#"},{"type":"array","minItems":1,"maxItems":4,"items":{"#),
        T::MEMBERS,
        T::MINIMUM,
        T::MAXIMUM,
        Json::Text("}}]"),
    ]);
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Numbers<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let found = match value {
            Value::Array(elements) => {
                if elements.is_empty() || elements.len() > 4 {
                    let message = format_args!("the list has {} numbers; use 1 to 4", elements.len());
                    return Err(D::Error::custom(message));
                }
                elements.into_iter().map(serde_json::from_value).collect()
            }
            one => serde_json::from_value(one).map(|one| vec![one]),
        };
        found.map(Self).map_err(D::Error::custom)
    }
}

impl<T: Copy> Numbers<T> {
    /// First and second number; a single number counts as both.
    pub fn pair(&self) -> Option<[T; 2]> {
        match *self.0 {
            [both] => Some([both; 2]),
            [first, second] => Some([first, second]),
            _ => None,
        }
    }
}

/// Length of the sides of a square, in pixels, or height and width.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Sides(pub Numbers<u32>);

impl Param for Sides {
    const MEMBERS: Json = Json::Text(
        r#""anyOf":[{"type":"integer","minimum":1},{"type":"array","minItems":1,"maxItems":2,"items":{"type":"integer","minimum":1}}]"#,
    );
}

/// Values for erased pixels: numbers, or the word `random`.
#[derive(Clone, Debug, PartialEq)]
pub enum Erased {
    /// One number, or one per channel.
    Values(Vec<f32>),
    /// Normally distributed numbers, different for each pixel and channel.
    Random,
}

impl Param for Erased {
    const MEMBERS: Json = Json::Text(
        r#""anyOf":[{"type":"number"},{"type":"array","minItems":1,"maxItems":3,"items":{"type":"number"}},{"enum":["random"]}]"#,
    );
}

impl<'de> Deserialize<'de> for Erased {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(word) if word == "random" => Ok(Self::Random),
            Value::String(word) => {
                Err(D::Error::custom(format_args!("`{word}` is not a number nor `random`")))
            }
            other => Numbers::deserialize(other)
                .map(|Numbers(values)| Self::Values(values))
                .map_err(D::Error::custom),
        }
    }
}

/// Interpolation of pixels, with the names of torchvision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, penstock_guest::Params, serde::Serialize)]
pub enum Interpolation {
    /// Nearest pixel, as in Pillow.
    Nearest,
    /// The same as `nearest`.
    NearestExact,
    /// Triangle over 2 pixels.
    Bilinear,
    /// Cubic over 4 pixels, with a = -0.5.
    Bicubic,
    /// Mean of the covered pixels.
    Box,
    /// Hamming window over 2 pixels.
    Hamming,
    /// Windowed sinc over 6 pixels.
    Lanczos,
}

impl Interpolation {
    /// True if pixels are taken as they are.
    pub fn is_nearest(self) -> bool {
        matches!(self, Self::Nearest | Self::NearestExact)
    }

    /// True if a mirrored image has the mirrored result. The others take one of two pixels that are equally near.
    pub fn is_symmetric(self) -> bool {
        !self.is_nearest() && self != Self::Box
    }
}

/// Pixels outside of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, penstock_guest::Params, serde::Serialize)]
pub enum PaddingMode {
    /// Pixels of a fixed value.
    Constant,
    /// Repetition of the pixel at the edge.
    Edge,
    /// Mirror image without the pixel at the edge.
    Reflect,
    /// Mirror image with the pixel at the edge.
    Symmetric,
}

/// Element type of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, penstock_guest::Params)]
pub enum Dtype {
    /// Bytes, 0 to 255.
    Uint8,
    /// 32-bit floating-point numbers, which `Normalize` needs.
    Float32,
}

/// Order of the dimensions of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, penstock_guest::Params)]
pub enum Layout {
    /// [channels, height, width], as in torchvision.
    Chw,
    /// [height, width, channels], as in Pillow and NumPy.
    Hwc,
}
