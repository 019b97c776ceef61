//! The ops of a document, with the names, params and defaults of `torchvision.transforms.v2`.

use penstock_guest::Params;

use crate::params::{Dtype, Erased, Interpolation, Numbers, PaddingMode, Sides};

penstock_guest::ops!(
    Resize,
    CenterCrop,
    RandomCrop,
    RandomResizedCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    Pad,
    RandomRotation,
    ColorJitter,
    Grayscale,
    GaussianBlur,
    RandomErasing,
    RandAugment,
    ToDtype,
    Normalize,
);

/// Resizes the image to a height and width, or by the length of one side.
#[derive(Clone, Debug, Params)]
pub struct Resize {
    /// Length of the shorter side, or [height, width]; without it, `max_size` is the length of the longer side.
    #[param(example = 256)]
    pub size: Option<Sides>,
    /// Interpolation of the pixels.
    #[param(default = "bilinear")]
    pub interpolation: Interpolation,
    /// Maximum length of the longer side.
    pub max_size: Option<u32>,
    /// Takes the mean of all covered pixels if the image becomes smaller, as Pillow does; `false` has an effect on `bilinear` and `bicubic`.
    #[param(default = true)]
    pub antialias: bool,
}

/// Crops the middle of the image; a smaller image is padded with 0.
#[derive(Clone, Debug, Params)]
pub struct CenterCrop {
    /// Side of the square, or [height, width].
    #[param(example = 224)]
    pub size: Sides,
}

/// Crops a random part of the image.
#[derive(Clone, Debug, Params)]
pub struct RandomCrop {
    /// Side of the square, or [height, width].
    #[param(example = 224)]
    pub size: Sides,
    /// Number of pixels added before the crop: on all sides, [left and right, top and bottom], or [left, top, right, bottom].
    pub padding: Option<Numbers<u32>>,
    /// Pads an image that is smaller than `size`.
    #[param(default = false)]
    pub pad_if_needed: bool,
    /// Value of added pixels, or one per channel.
    #[param(default = 0)]
    pub fill: Numbers<f32>,
    /// Choice of the added pixels.
    #[param(default = "constant")]
    pub padding_mode: PaddingMode,
}

/// Crops a part of random area and aspect ratio, and resizes it.
#[derive(Clone, Debug, Params)]
pub struct RandomResizedCrop {
    /// Side of the square, or [height, width].
    #[param(example = 224)]
    pub size: Sides,
    /// Limits of the area of the part, as shares of the image.
    #[param(default = [0.08, 1.0])]
    pub scale: Numbers<f64>,
    /// Limits of width / height of the part.
    #[param(default = [0.75, 1.3333333333333333])]
    pub ratio: Numbers<f64>,
    /// Interpolation of the pixels.
    #[param(default = "bilinear")]
    pub interpolation: Interpolation,
    /// Takes the mean of all covered pixels if the image becomes smaller, as Pillow does; `false` has an effect on `bilinear` and `bicubic`.
    #[param(default = true)]
    pub antialias: bool,
}

/// Mirrors the image from left to right.
#[derive(Clone, Debug, Params)]
pub struct RandomHorizontalFlip {
    /// Probability of the change, 0 to 1.
    #[param(default = 0.5, min = 0, max = 1)]
    pub p: f64,
}

/// Mirrors the image from top to bottom.
#[derive(Clone, Debug, Params)]
pub struct RandomVerticalFlip {
    /// Probability of the change, 0 to 1.
    #[param(default = 0.5, min = 0, max = 1)]
    pub p: f64,
}

/// Adds pixels at the sides of the image.
#[derive(Clone, Debug, Params)]
pub struct Pad {
    /// Number of added pixels: on all sides, [left and right, top and bottom], or [left, top, right, bottom].
    #[param(example = 4)]
    pub padding: Numbers<u32>,
    /// Value of added pixels, or one per channel.
    #[param(default = 0)]
    pub fill: Numbers<f32>,
    /// Choice of the added pixels.
    #[param(default = "constant")]
    pub padding_mode: PaddingMode,
}

/// Rotates the image counter-clockwise by a random angle.
#[derive(Clone, Debug, Params)]
pub struct RandomRotation {
    /// Limits of the angle in degrees; a single number stands for itself and its negative.
    #[param(example = 15)]
    pub degrees: Numbers<f64>,
    /// Interpolation of the pixels: `nearest` or `bilinear`.
    #[param(default = "nearest")]
    pub interpolation: Interpolation,
    /// Enlarges the image so that all of it remains visible.
    #[param(default = false)]
    pub expand: bool,
    /// Centre of the rotation, [x, y] in pixels; by default the middle of the image.
    pub center: Option<Numbers<f64>>,
    /// Value of pixels outside of the image, or one per channel.
    #[param(default = 0)]
    pub fill: Numbers<f32>,
}

/// Changes brightness, contrast, saturation and hue by random factors, in random order.
#[derive(Clone, Debug, Params)]
pub struct ColorJitter {
    /// Limits of the factor; a single number is the largest distance from 1.
    #[param(example = 0.4)]
    pub brightness: Option<Numbers<f64>>,
    /// Limits of the factor; a single number is the largest distance from 1.
    pub contrast: Option<Numbers<f64>>,
    /// Limits of the factor; a single number is the largest distance from 1.
    pub saturation: Option<Numbers<f64>>,
    /// Limits of the shift in turns, -0.5 to 0.5; a single number is the largest shift in both directions.
    pub hue: Option<Numbers<f64>>,
}

/// Converts the image to grey.
#[derive(Clone, Debug, Params)]
pub struct Grayscale {
    /// Number of channels of the result, 1 or 3.
    #[param(default = 1, min = 1, max = 3)]
    pub num_output_channels: u32,
}

/// Blurs the image by a Gaussian of random width.
#[derive(Clone, Debug, Params)]
pub struct GaussianBlur {
    /// Length of the kernel in pixels, odd: one number, or [across, down].
    #[param(example = 5)]
    pub kernel_size: Numbers<u32>,
    /// Limits of the standard deviation in pixels.
    #[param(default = [0.1, 2.0])]
    pub sigma: Numbers<f64>,
}

/// Replaces the pixels of a random rectangle.
#[derive(Clone, Debug, Params)]
pub struct RandomErasing {
    /// Probability of the change, 0 to 1.
    #[param(default = 0.5, min = 0, max = 1)]
    pub p: f64,
    /// Limits of the area of the rectangle, as shares of the image.
    #[param(default = [0.02, 0.33])]
    pub scale: Numbers<f64>,
    /// Limits of height / width of the rectangle.
    #[param(default = [0.3, 3.3])]
    pub ratio: Numbers<f64>,
    /// New value of the pixels, one per channel, or `random`.
    #[param(default = 0)]
    pub value: Erased,
}

/// Applies randomly chosen ops of one strength (<https://arxiv.org/abs/1909.13719>).
#[derive(Clone, Debug, Params)]
pub struct RandAugment {
    /// Number of ops applied to each image.
    #[param(default = 2, max = 100)]
    pub num_ops: u32,
    /// Strength, less than `num_magnitude_bins`.
    #[param(default = 9)]
    pub magnitude: u32,
    /// Number of strengths to choose from.
    #[param(default = 31, min = 2, max = 1000)]
    pub num_magnitude_bins: u32,
    /// Interpolation of the pixels: `nearest` or `bilinear`.
    #[param(default = "nearest")]
    pub interpolation: Interpolation,
    /// Value of pixels outside of the image, or one per channel; 0 by default.
    pub fill: Option<Numbers<f32>>,
}

/// Converts the elements of the image.
#[derive(Clone, Debug, Params)]
pub struct ToDtype {
    /// Element type of the result.
    pub dtype: Dtype,
    /// Scales bytes to the range 0 to 1.
    #[param(default = false)]
    pub scale: bool,
}

/// Subtracts the mean of every channel and divides by its standard deviation. Needs floating-point numbers.
#[derive(Clone, Debug, Params)]
pub struct Normalize {
    /// Mean to subtract, one number per channel, or one for all.
    #[param(example = [0.485, 0.456, 0.406])]
    pub mean: Vec<f32>,
    /// Standard deviation to divide by, one number per channel, or one for all; never 0.
    #[param(example = [0.229, 0.224, 0.225])]
    pub std: Vec<f32>,
}
