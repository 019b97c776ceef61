//! Vectors of real numbers that go through the same steps in parallel.

use std::ops::{Add, Mul, Sub};

use wide::f32x8;

/// Number of parallel transforms: two registers of 128 bits. The steps on them are unrolled, without a loop that would check
/// the deadline in every iteration.
pub(crate) const LANES: usize = 8;

/// One number for each of the transforms that are computed in parallel.
pub(crate) type Lanes = f32x8;

/// One complex number for each of the transforms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Complex {
    pub(crate) re: Lanes,
    pub(crate) im: Lanes,
}

/// A complex number shared by all transforms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factor {
    pub(crate) re: f32,
    pub(crate) im: f32,
}

impl Complex {
    pub(crate) const ZERO: Self = Self { re: Lanes::ZERO, im: Lanes::ZERO };

    /// Multiplies this number by -i.
    #[inline(always)]
    pub(crate) fn turned(self) -> Self {
        Self { re: self.im, im: self.re * -1.0 }
    }
}

impl Add for Complex {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }
}

impl Sub for Complex {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self { re: self.re - other.re, im: self.im - other.im }
    }
}

impl Mul<f32> for Complex {
    type Output = Self;

    #[inline(always)]
    fn mul(self, factor: f32) -> Self {
        Self { re: self.re * factor, im: self.im * factor }
    }
}

impl Mul<Factor> for Complex {
    type Output = Self;

    #[inline(always)]
    fn mul(self, factor: Factor) -> Self {
        Self { re: self.re * factor.re - self.im * factor.im, im: self.re * factor.im + self.im * factor.re }
    }
}
