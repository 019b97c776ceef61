//! Steps: ops whose random numbers are drawn and whose lengths are known.

use penstock_guest::prelude::*;
use serde::Serialize;

use crate::params::{Interpolation, PaddingMode};

/// Maximum number of pixels of the results of ops, and of decoded images with the memory that a stage has by default.
pub(crate) const MAX_PIXELS: u64 = 50_000_000;

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

impl Size {
    /// Size of an image of at least one pixel.
    pub(crate) fn of(width: u64, height: u64) -> Result<Self> {
        ensure!(width > 0 && height > 0, "the image is empty: {width} x {height} pixels");
        let side = |length: u64| u32::try_from(length).context("the image is too large");
        Ok(Self { width: side(width)?, height: side(height)? })
    }

    /// The size if it may be that of a result: at least one pixel, and no more than [`MAX_PIXELS`].
    pub fn checked(width: u64, height: u64, of: &str) -> Result<Self> {
        ensure!(width > 0 && height > 0, "{of} is empty: {width} x {height} pixels");
        ensure!(
            width.saturating_mul(height) <= MAX_PIXELS && width.max(height) <= u64::from(u32::MAX),
            "{of} is too large: {width} x {height} pixels, more than the limit of {MAX_PIXELS}"
        );
        Ok(Self { width: width as u32, height: height as u32 })
    }

    /// The size after a quarter turn.
    pub fn turned(self) -> Self {
        Self { width: self.height, height: self.width }
    }

    pub fn pixels(self) -> usize {
        self.width as usize * self.height as usize
    }
}

/// Part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rect {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

impl Rect {
    pub fn whole(size: Size) -> Self {
        Self { left: 0, top: 0, width: size.width, height: size.height }
    }

    pub fn size(self) -> Size {
        Size { width: self.width, height: self.height }
    }
}

/// A change of size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Resizing {
    pub size: Size,
    pub interpolation: Interpolation,
    pub antialias: bool,
}

/// New values of erased pixels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Filling {
    /// One number, or one per channel.
    Values(Vec<f32>),
    /// Normally distributed numbers, drawn from this seed.
    Noise(u64),
}

/// One step. Parts lie inside the image, and results have 1 to [`MAX_PIXELS`] pixels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Step {
    Crop(Rect),
    Resize(Resizing),
    FlipHorizontal,
    FlipVertical,
    /// `padding` is left, top, right, bottom.
    Pad {
        padding: [u32; 4],
        fill: Vec<f32>,
        mode: PaddingMode,
    },
    /// The pixel of the result at (x, y), from the middle of the result, is that of the image at `matrix` x (x, y, 1), from
    /// the middle of the image.
    Affine {
        matrix: [f64; 6],
        size: Size,
        interpolation: Interpolation,
        fill: Option<Vec<f32>>,
    },
    /// Rotation by a multiple of 90 degrees, counter-clockwise.
    QuarterTurns(u8),
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    Hue(f32),
    Sharpness(f32),
    Posterize(u8),
    Solarize(f32),
    AutoContrast,
    Equalize,
    Grayscale {
        channels: u8,
    },
    /// Length of the kernel and standard deviation, across and down.
    GaussianBlur {
        kernel: [u32; 2],
        sigma: [f64; 2],
    },
    /// Conversion to 32-bit floating-point numbers.
    ToFloat {
        scale: bool,
    },
    Normalize {
        mean: Vec<f32>,
        std: Vec<f32>,
    },
    Erase {
        part: Rect,
        filling: Filling,
    },
}

pub(crate) fn size_after(step: &Step, size: Size) -> Size {
    match step {
        Step::Crop(part) => part.size(),
        Step::Resize(Resizing { size, .. }) | Step::Affine { size, .. } => *size,
        Step::Pad { padding: [left, top, right, bottom], .. } => {
            Size { width: size.width + left + right, height: size.height + top + bottom }
        }
        Step::QuarterTurns(1 | 3) => size.turned(),
        _ => size,
    }
}
