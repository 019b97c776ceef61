//! Weights for resizing a line of a component.

use std::ops::Range;
use std::rc::Rc;

use crate::filter::{Line, Weights, trim};

/// Number of axes that are kept for later images.
const KEPT: usize = 16;

/// Axes of earlier images: photos of a data set often have the same size.
#[derive(Default)]
pub(super) struct Axes(Vec<((Line, usize), Rc<Axis>)>);

impl Axes {
    /// Axis of this line, for a component that has one pixel for `sampling` of the image: 1 or 2.
    pub(super) fn of(&mut self, line: Line, sampling: usize) -> Rc<Axis> {
        if let Some((_, axis)) = self.0.iter().find(|(own, _)| *own == (line, sampling)) {
            return axis.clone();
        }
        let axis = Rc::new(Axis::new(&line, sampling));
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        self.0.push(((line, sampling), axis.clone()));
        axis
    }
}

/// Resizing along one axis: every output is a weighted mean of a fixed number of neighbouring inputs.
pub(super) struct Axis {
    /// Number of inputs for one output.
    pub(super) taps: usize,
    /// First input of every output.
    pub(super) starts: Vec<usize>,
    /// Weights of the inputs of every output, in units of 2^-15; they add up to at most 2^15.
    pub(super) weights: Vec<i16>,
}

impl Axis {
    fn new(line: &Line, sampling: usize) -> Self {
        let inputs = line.pixels.div_ceil(sampling);
        let Weights { spans, shares } = match sampling {
            1 => line.weights(),
            _ => interpolated(&line.weights(), inputs),
        };
        let taps = spans.iter().map(Range::len).max().unwrap_or(1);
        let (mut starts, mut weights) =
            (Vec::with_capacity(spans.len()), Vec::with_capacity(spans.len() * taps));
        let mut shares = shares.as_slice();
        for span in spans {
            let (own, rest) = shares.split_at(span.len());
            shares = rest;
            // All outputs have the same number of taps; at the end of the line, unused taps, with weight 0, come first.
            let start = span.start.min(inputs - taps);
            starts.push(start);
            // Rounding the cumulative sum instead of the weights makes the rounded weights add up exactly.
            let (mut so_far, mut given) = (0.0, 0);
            for input in start..start + taps {
                so_far += if span.contains(&input) { own[input - span.start] } else { 0.0 };
                let rounded = (so_far * 32768.0 + 0.5) as i32;
                // A weight of 1 does not fit into 16 bits and is replaced by the largest that does.
                let weight = (rounded - given).min(i16::MAX.into());
                given += weight;
                weights.push(weight as i16);
            }
        }
        Self { taps, starts, weights }
    }

    /// Range of all inputs that contribute to the outputs.
    pub(super) fn window(&self) -> Range<usize> {
        let start = self.starts.iter().min().copied().unwrap_or(0);
        start..self.starts.iter().max().map_or(start, |last| last + self.taps)
    }

    /// First input and weights of one output.
    pub(super) fn of(&self, output: usize) -> (usize, &[i16]) {
        (self.starts[output], &self.weights[output * self.taps..][..self.taps])
    }
}

/// Weights of the `inputs` of a component with half the resolution, which have the effect of interpolating it to the full one
/// first, as libjpeg does: 3/4 of the nearer input and 1/4 of the next.
fn interpolated(whole: &Weights, inputs: usize) -> Weights {
    let mut weights = Weights::default();
    let mut shares = whole.shares.iter();
    for span in &whole.spans {
        let (begin, low) = (weights.shares.len(), (span.start / 2).saturating_sub(1));
        weights.shares.resize(begin + (span.end - 1) / 2 + 2 - low, 0.0);
        for (pixel, share) in span.clone().zip(&mut shares) {
            let near = pixel / 2;
            let next = if pixel % 2 == 0 { near.saturating_sub(1) } else { (near + 1).min(inputs - 1) };
            weights.shares[begin + near - low] += 0.75 * share;
            weights.shares[begin + next - low] += 0.25 * share;
        }
        let first = low + trim(&mut weights.shares, begin);
        weights.spans.push(first..first + weights.shares.len() - begin);
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Interpolation;

    fn line(pixels: usize, outputs: usize) -> Line {
        Line {
            pixels,
            from: (0, pixels),
            shrink: 1,
            resized: outputs,
            window: (0, outputs),
            flip: false,
            filter: Interpolation::Bilinear,
            antialias: true,
        }
    }

    #[test]
    fn weights_add_up_to_one_and_stay_inside() {
        for pixels in [1, 2, 7, 100, 375] {
            for outputs in [1, 3, 50, 224] {
                for margin in [0, pixels / 4] {
                    for sampling in [1, 2] {
                        for filter in [Interpolation::Bilinear, Interpolation::Box, Interpolation::Hamming] {
                            let from = (margin, pixels - 2 * margin);
                            let axis = Axis::new(&Line { from, filter, ..line(pixels, outputs) }, sampling);
                            assert!(axis.window().end <= pixels.div_ceil(sampling));
                            for output in 0..outputs {
                                let sum: i32 =
                                    axis.of(output).1.iter().map(|&weight| i32::from(weight)).sum();
                                assert!((32767..=32768).contains(&sum), "{pixels} to {outputs}: {sum}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn halving_uses_four_inputs_and_doubling_two() {
        let halved = Axis::new(&line(8, 4), 1);
        assert_eq!(halved.of(1), (1, [4096, 12288, 12288, 4096].as_slice()));
        let doubled = Axis::new(&line(4, 8), 1);
        assert_eq!(doubled.of(2), (0, [8192, 24576].as_slice()));
        assert_eq!(doubled.of(3), (1, [24576, 8192].as_slice()));
        assert_eq!(Axis::new(&line(5, 5), 1).of(3), (3, [32767].as_slice()));
    }

    #[test]
    fn a_component_of_half_the_resolution_is_interpolated_as_in_libjpeg() {
        let same = Axis::new(&line(6, 6), 2);
        assert_eq!(same.of(2), (0, [8192, 24576].as_slice()));
        assert_eq!(same.of(3), (1, [24576, 8192].as_slice()));
        // The line ends with its last input.
        assert_eq!(same.of(5), (1, [0, 32767].as_slice()));
    }

    #[test]
    fn a_window_has_the_weights_of_the_whole_and_a_flip_reverses_them() {
        let whole = Axis::new(&line(90, 40), 1);
        let part = Axis::new(&Line { window: (10, 20), flip: true, ..line(90, 40) }, 1);
        let places = |(start, weights): (usize, &[i16])| -> Vec<(usize, i16)> {
            let all = weights.iter().enumerate().map(|(at, &weight)| (start + at, weight));
            all.filter(|(_, weight)| *weight != 0).collect()
        };
        for output in 0..20 {
            assert_eq!(places(part.of(output)), places(whole.of(29 - output)));
        }
    }
}
