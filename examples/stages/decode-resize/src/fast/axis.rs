//! Weights for resizing a line of pixels.

use std::ops::Range;
use std::rc::Rc;

/// Number of axes that are kept for later images.
const KEPT: usize = 16;

/// Axes of earlier images: photos of a data set often have the same size.
#[derive(Default)]
pub(super) struct Axes(Vec<(Arguments, Rc<Axis>)>);

/// Number of inputs, the part of them that is resized, and number of outputs.
type Arguments = (usize, Range<f64>, usize);

impl Axes {
    /// Axis for these arguments of [`Axis::new`].
    pub(super) fn of(&mut self, inputs: usize, from: Range<f64>, outputs: usize) -> Rc<Axis> {
        let arguments = (inputs, from, outputs);
        if let Some((_, axis)) = self.0.iter().find(|(own, _)| *own == arguments) {
            return axis.clone();
        }
        let axis = Rc::new(Axis::new(inputs, arguments.1.clone(), outputs));
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        self.0.push((arguments, axis.clone()));
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
    /// Computes the weights that resize `from`, a part of `inputs` pixels, to `outputs` pixels.
    ///
    /// Weights decrease linearly from the centre to both sides (bilinear). If `outputs` is smaller than the length of `from`, the
    /// weights cover more inputs in proportion to the scale, so that every input counts (antialiasing, as in Pillow).
    pub(super) fn new(inputs: usize, from: Range<f64>, outputs: usize) -> Self {
        let scale = (from.end - from.start) / outputs as f64;
        let reach = scale.max(1.0);
        let inputs_of = |output: usize| {
            let centre = from.start + (output as f64 + 0.5) * scale - 0.5;
            // Inputs whose distance from `centre` is less than `reach`: at least one, since `reach` is at least 1.
            let first = (centre - reach).floor() as isize + 1;
            let end = (centre + reach).ceil() as isize;
            let first = usize::try_from(first).unwrap_or(0).min(inputs - 1);
            (centre, first..usize::try_from(end).unwrap_or(0).clamp(first + 1, inputs))
        };
        let taps = (0..outputs).map(|output| inputs_of(output).1.len()).max().unwrap_or(1);
        let (mut starts, mut weights) = (Vec::with_capacity(outputs), Vec::with_capacity(outputs * taps));
        for output in 0..outputs {
            let (centre, near) = inputs_of(output);
            // All outputs have the same number of taps; at the end of the line, unused taps, with weight 0, come first.
            let start = near.start.min(inputs.saturating_sub(taps));
            starts.push(start);
            let weight = |input: usize| match near.contains(&input) {
                true => (reach - (input as f64 - centre).abs()).max(f64::EPSILON),
                false => 0.0,
            };
            let sum: f64 = near.clone().map(weight).sum();
            // Rounding the cumulative sum instead of the weights makes the rounded weights add up exactly.
            let (mut so_far, mut given) = (0.0, 0);
            for input in start..start + taps {
                so_far += weight(input);
                let rounded = (so_far / sum * 32768.0 + 0.5) as i32;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_to_one_and_stay_inside() {
        for inputs in [1, 2, 7, 100, 375] {
            for outputs in [1, 3, 50, 224] {
                for margin in [0.0, 0.25, inputs as f64 / 4.0] {
                    let axis = Axis::new(inputs, margin..inputs as f64 - margin, outputs);
                    assert!(axis.window().end <= inputs);
                    for output in 0..outputs {
                        let sum: i32 = axis.of(output).1.iter().map(|&weight| i32::from(weight)).sum();
                        assert!((32767..=32768).contains(&sum), "{inputs} to {outputs}: {sum}");
                    }
                }
            }
        }
    }

    #[test]
    fn halving_uses_four_inputs_and_doubling_two() {
        let halved = Axis::new(8, 0.0..8.0, 4);
        assert_eq!(halved.of(1), (1, [4096, 12288, 12288, 4096].as_slice()));
        let doubled = Axis::new(4, 0.0..4.0, 8);
        assert_eq!(doubled.of(2), (0, [8192, 24576].as_slice()));
        assert_eq!(doubled.of(3), (1, [24576, 8192].as_slice()));
        assert_eq!(Axis::new(5, 0.0..5.0, 5).of(3), (3, [32767].as_slice()));
    }
}
