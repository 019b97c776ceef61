//! Images of bytes, and changes that move pixels.

use penstock_guest::prelude::*;

use crate::params::PaddingMode;
use crate::step::{Rect, Size};

/// An image: u8, [height, width, channels], rows first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Image {
    pub size: Size,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
    pub pixels: Vec<u8>,
}

impl Image {
    /// Number of bytes of a row.
    pub(crate) fn stride(&self) -> usize {
        self.size.width as usize * self.channels
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.pixels.chunks_exact(self.stride())
    }

    /// The values for the three channels of a pixel; an image with one channel uses the first.
    pub(crate) fn value_per_channel(&self, values: &[f32]) -> Result<[f32; 3]> {
        match *values {
            [all] => Ok([all; 3]),
            [red, green, blue] if self.channels == 3 => Ok([red, green, blue]),
            _ => bail!(
                "{} values were given for {} channels; use one, or one per channel",
                values.len(),
                self.channels
            ),
        }
    }

    pub(crate) fn crop(&self, part: Rect) -> Self {
        let columns = part.left as usize * self.channels..(part.left + part.width) as usize * self.channels;
        let mut pixels = Vec::with_capacity(part.size().pixels() * self.channels);
        for row in self.rows().skip(part.top as usize).take(part.height as usize) {
            pixels.extend_from_slice(&row[columns.clone()]);
        }
        Self { size: part.size(), channels: self.channels, pixels }
    }

    pub(crate) fn flip_across(&mut self) {
        let stride = self.stride();
        flip_across(&mut self.pixels, stride, self.channels);
    }

    pub(crate) fn flip_down(&mut self) {
        let stride = self.stride();
        flip_down(&mut self.pixels, stride);
    }

    /// The image with rows and columns exchanged.
    pub(crate) fn transposed(&self) -> Self {
        let (stride, channels, height) = (self.stride(), self.channels, self.size.height as usize);
        let mut pixels = vec![0; self.pixels.len()];
        for (column, out) in pixels.chunks_exact_mut(height * channels).enumerate() {
            for (row, out) in out.chunks_exact_mut(channels).enumerate() {
                let start = row * stride + column * channels;
                out.copy_from_slice(&self.pixels[start..start + channels]);
            }
        }
        Self { size: self.size.turned(), channels, pixels }
    }

    pub(crate) fn pad(
        &self,
        [left, top, right, bottom]: [u32; 4],
        fill: &[f32],
        mode: PaddingMode,
    ) -> Result<Self> {
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        let size = Size { width: self.size.width + left + right, height: self.size.height + top + bottom };
        let channels = self.channels;
        let value = self.value_per_channel(fill)?.map(|value| value as u8);
        let mut pixels = value[..channels].repeat(size.pixels());
        let columns: Vec<Option<usize>> =
            (0..size.width).map(|x| source(i64::from(x) - i64::from(left), width, mode)).collect();
        for (y, row) in pixels.chunks_exact_mut(size.width as usize * channels).enumerate() {
            let Some(from) = source(y as i64 - i64::from(top), height, mode) else { continue };
            let from = &self.pixels[from * self.stride()..][..self.stride()];
            row[left as usize * channels..][..from.len()].copy_from_slice(from);
            if mode != PaddingMode::Constant {
                for (out, column) in row.chunks_exact_mut(channels).zip(&columns) {
                    let column = column.unwrap_or(0) * channels;
                    out.copy_from_slice(&from[column..column + channels]);
                }
            }
        }
        Ok(Self { size, channels, pixels })
    }
}

/// Mirrors rows of `stride` numbers from left to right; a pixel has `depth` of them, 1 or 3.
pub(crate) fn flip_across<T>(rows: &mut [T], stride: usize, depth: usize) {
    match depth {
        1 => rows.chunks_exact_mut(stride).for_each(<[T]>::reverse),
        _ => rows.chunks_exact_mut(stride).for_each(|row| row.as_chunks_mut::<3>().0.reverse()),
    }
}

/// Mirrors rows of `stride` numbers from top to bottom.
pub(crate) fn flip_down<T>(rows: &mut [T], stride: usize) {
    let (upper, lower) = rows.split_at_mut(rows.len() / stride / 2 * stride);
    for (upper, lower) in upper.chunks_exact_mut(stride).zip(lower.chunks_exact_mut(stride).rev()) {
        upper.swap_with_slice(lower);
    }
}

/// Pixel of a line of `length` pixels for the place `at`, which may be outside of it; `None` for a fixed value.
fn source(at: i64, length: usize, mode: PaddingMode) -> Option<usize> {
    let last = length as i64 - 1;
    let inside = match mode {
        PaddingMode::Constant => at,
        PaddingMode::Edge => at.clamp(0, last),
        PaddingMode::Reflect if at < 0 => -at,
        PaddingMode::Reflect if at > last => 2 * last - at,
        PaddingMode::Symmetric if at < 0 => -at - 1,
        PaddingMode::Symmetric if at > last => 2 * last + 1 - at,
        PaddingMode::Reflect | PaddingMode::Symmetric => at,
    };
    usize::try_from(inside).ok().filter(|&inside| inside < length)
}
