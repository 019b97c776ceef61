//! Planes of numbers with smooth noise.

use crate::random::Random;

/// Number of units in one level of brightness.
pub(crate) const PARTS: i32 = 16;

/// One number per pixel, in units of 1/[`PARTS`] of a level of brightness.
#[derive(Clone, Debug)]
pub(crate) struct Plane {
    pub(crate) width: usize,
    pub(crate) values: Vec<i32>, // [height, width], rows first
}

impl Plane {
    /// Creates a plane with `level` everywhere.
    pub(crate) fn filled(width: usize, height: usize, level: i32) -> Self {
        Self { width, values: vec![level * PARTS; width * height] }
    }

    fn height(&self) -> usize {
        self.values.len() / self.width
    }

    /// Adds random values of at most `amplitude` levels at corners `1 << cell_bits` pixels apart, interpolated smoothly
    /// (value noise). `cell_bits` is at most 8.
    pub(crate) fn add_noise(&mut self, random: &mut Random, cell_bits: u32, amplitude: i32) {
        let cell = 1_usize << cell_bits;
        let (columns, rows) = (self.width / cell + 2, self.height() / cell + 2);
        let corners: Vec<i32> =
            (0..columns * rows).map(|_| random.between(-amplitude * PARTS, amplitude * PARTS)).collect();
        let weights = smooth_weights(cell);
        let mut edge = vec![0; columns];
        for (y, line) in self.values.chunks_exact_mut(self.width).enumerate() {
            let above = &corners[y / cell * columns..][..columns];
            let below = &corners[(y / cell + 1) * columns..][..columns];
            let weight = weights[y % cell];
            for ((edge, above), below) in edge.iter_mut().zip(above).zip(below) {
                *edge = above * (256 - weight) + below * weight;
            }
            for (pixels, ends) in line.chunks_mut(cell).zip(edge.windows(2)) {
                // Each end is at most 16 * 128 * 256, so its product with another 256 still fits into 31 bits.
                let (left, step) = (ends[0], (ends[1] - ends[0]) >> 8);
                for (pixel, weight) in pixels.iter_mut().zip(&weights) {
                    *pixel += (left + step * weight) >> 8;
                }
            }
        }
    }
}

/// Weight of the far corner for every pixel of a cell, in units of 1/256: the curve 3t² - 2t³.
fn smooth_weights(cell: usize) -> Vec<i32> {
    (0..cell)
        .map(|offset| {
            let t = (offset * 256 / cell) as i32;
            (t * t * (768 - 2 * t)) >> 16
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_smooth_and_stays_within_its_amplitude() {
        let mut plane = Plane::filled(100, 80, 0);
        plane.add_noise(&mut Random::new(1, 2), 5, 40);
        let most = plane.values.iter().map(|value| value.abs()).max().unwrap();
        assert!((10 * PARTS..=41 * PARTS).contains(&most), "{most}");
        let steepest = plane
            .values
            .chunks_exact(100)
            .flat_map(|line| line.windows(2))
            .map(|pair| (pair[0] - pair[1]).abs())
            .max();
        // The values change by at most 80 levels over 32 pixels; the steepest slope is 1.5 times the mean slope.
        assert!(steepest.unwrap() <= 5 * PARTS, "{steepest:?}");
    }
}
