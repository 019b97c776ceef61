//! Discrete Fourier transform of several signals in parallel.
//!
//! Cooley and Tukey's decomposition in the order of Stockham, which needs no sorting: see C. Van Loan, "Computational
//! Frameworks for the Fast Fourier Transform", 1992, section 1.7. Each step splits by 4, 2, 3, 5 or 7.

use std::f64::consts::TAU;

use penstock_guest::prelude::*;

use crate::lanes::{Complex, Factor};

/// A transform of a given length, with its precomputed factors.
#[derive(Clone, Debug)]
pub(crate) struct Fft {
    length: usize,
    steps: Vec<Step>,
}

/// A step of the transform, which splits blocks into `radix` parts.
#[derive(Clone, Debug)]
struct Step {
    radix: usize,
    /// Number of adjacent values that are multiplied by the same factors.
    stride: usize,
    /// Factors of all parts but the first, for each group of adjacent values.
    factors: Vec<Factor>, // [groups, radix - 1]
    /// Powers of the radix-th root of unity; entries beyond the radix are unused.
    roots: [Factor; 7],
}

impl Fft {
    /// Creates a transform of `length` numbers. Fails if the length is not a product of 2, 3, 5 and 7.
    pub(crate) fn new(length: usize) -> Result<Self> {
        let (mut rest, mut stride, mut steps) = (length, 1, Vec::new());
        while rest > 1 {
            let Some(radix) = [4, 2, 3, 5, 7].into_iter().find(|radix| rest.is_multiple_of(*radix)) else {
                bail!(
                    "{length} is {} x {rest}; use a length whose only prime factors are 2, 3, 5 and 7",
                    length / rest
                );
            };
            steps.push(Step::new(radix, rest, stride));
            (rest, stride) = (rest / radix, stride * radix);
        }
        Ok(Self { length, steps })
    }

    /// Transforms `values` in place; both slices have the transform's length. Overwrites `work`.
    pub(crate) fn transform(&self, values: &mut [Complex], work: &mut [Complex]) {
        let (mut from, mut to) = (&mut values[..self.length], &mut work[..self.length]);
        for step in &self.steps {
            match step.radix {
                2 => step.apply(from, to, |[a, b]| [a + b, a - b]),
                3 => step.apply(from, to, |parts: [_; 3]| split_by_odd(parts, &step.roots)),
                4 => step.apply(from, to, split_by_4),
                5 => step.apply(from, to, |parts: [_; 5]| split_by_odd(parts, &step.roots)),
                _ => step.apply(from, to, |parts: [_; 7]| split_by_odd(parts, &step.roots)),
            }
            std::mem::swap(&mut from, &mut to);
        }
        if self.steps.len() % 2 == 1 {
            to.copy_from_slice(from);
        }
    }
}

impl Step {
    /// Creates the step that splits blocks of `length` numbers, of which `stride` are adjacent.
    fn new(radix: usize, length: usize, stride: usize) -> Self {
        let parts = move |group| (1..radix).map(move |part| root(group * part, length));
        Self {
            radix,
            stride,
            factors: (0..length / radix).flat_map(parts).collect(),
            roots: std::array::from_fn(|turns| root(turns, radix)),
        }
    }

    #[inline(always)]
    fn apply<const RADIX: usize>(
        &self,
        from: &[Complex],
        to: &mut [Complex],
        split: impl Fn([Complex; RADIX]) -> [Complex; RADIX],
    ) {
        let apart = from.len() / RADIX;
        let groups = from[..apart].chunks_exact(self.stride).zip(to.chunks_exact_mut(RADIX * self.stride));
        for ((group, (first, out)), factors) in groups.enumerate().zip(self.factors.chunks_exact(RADIX - 1)) {
            for at in 0..self.stride {
                let place = group * self.stride + at;
                let parts =
                    std::array::from_fn(
                        |part| if part == 0 { first[at] } else { from[place + part * apart] },
                    );
                let parts = split(parts);
                out[at] = parts[0];
                for part in 1..RADIX {
                    out[at + part * self.stride] = parts[part] * factors[part - 1];
                }
            }
        }
    }
}

/// Computes e to the power of -2 pi i `turns` / `length`.
fn root(turns: usize, length: usize) -> Factor {
    let (sin, cos) = (TAU * (turns % length) as f64 / length as f64).sin_cos();
    Factor { re: cos as f32, im: -sin as f32 }
}

#[inline(always)]
fn split_by_4([a, b, c, d]: [Complex; 4]) -> [Complex; 4] {
    let (even_sum, even_difference) = (a + c, a - c);
    let (odd_sum, odd_difference) = (b + d, (b - d).turned());
    [
        even_sum + odd_sum,
        even_difference + odd_difference,
        even_sum - odd_sum,
        even_difference - odd_difference,
    ]
}

/// Parts `j` and `RADIX - j` have conjugate factors: their sum is multiplied by cosines, their difference by sines.
#[inline(always)]
fn split_by_odd<const RADIX: usize>(parts: [Complex; RADIX], roots: &[Factor; 7]) -> [Complex; RADIX] {
    let half = RADIX / 2;
    let mut out = [parts[0]; RADIX];
    for part in 1..=half {
        out[0] = out[0] + parts[part] + parts[RADIX - part];
    }
    for to in 1..=half {
        let (mut even, mut odd) = (parts[0], Complex::ZERO);
        for part in 1..=half {
            let factor = roots[to * part % RADIX];
            even = even + (parts[part] + parts[RADIX - part]) * factor.re;
            odd = odd + (parts[part] - parts[RADIX - part]) * -factor.im;
        }
        let odd = odd.turned();
        out[to] = even + odd;
        out[RADIX - to] = even - odd;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{LANES, Lanes};

    /// Transform, computed from its definition in double precision.
    fn reference(signal: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let length = signal.len();
        let of = |index: usize| {
            signal.iter().enumerate().fold((0.0, 0.0), |(re, im), (at, (x, y))| {
                let (sin, cos) = (-TAU * (index * at % length) as f64 / length as f64).sin_cos();
                (re + x * cos - y * sin, im + x * sin + y * cos)
            })
        };
        (0..length).map(of).collect()
    }

    #[test]
    fn every_lane_contains_the_transform_of_its_signal() {
        // Lengths with each radix alone, with combinations of radices in an even and an odd number of steps, and those common for
        // speech.
        for length in [1, 2, 3, 4, 5, 7, 6, 8, 35, 105, 64, 210, 400, 512, 441] {
            let mut rng = penstock_guest::Rng::from_seed(length as u64);
            let mut draw = || Lanes::new(std::array::from_fn(|_| rng.between(-1.0..1.0) as f32));
            let mut values: Vec<Complex> = (0..length).map(|_| Complex { re: draw(), im: draw() }).collect();
            let signals: Vec<Vec<(f64, f64)>> = (0..LANES)
                .map(|lane| {
                    values
                        .iter()
                        .map(|v| (f64::from(v.re.to_array()[lane]), f64::from(v.im.to_array()[lane])))
                        .collect()
                })
                .collect();
            let mut work = values.clone();
            Fft::new(length).unwrap().transform(&mut values, &mut work);
            for (lane, signal) in signals.iter().enumerate() {
                for (at, (re, im)) in reference(signal).into_iter().enumerate() {
                    let (found_re, found_im) = (
                        f64::from(values[at].re.to_array()[lane]),
                        f64::from(values[at].im.to_array()[lane]),
                    );
                    let apart = (found_re - re).abs().max((found_im - im).abs());
                    assert!(apart < 2e-5, "length {length}, lane {lane}, number {at}: {apart}");
                }
            }
        }
    }

    #[test]
    fn a_length_with_another_prime_factor_is_refused() {
        let error = Fft::new(22).unwrap_err();
        assert_eq!(error.message(), "22 is 2 x 11; use a length whose only prime factors are 2, 3, 5 and 7");
    }
}
