//! Weights for resizing a line of pixels, as Pillow computes them.

use std::ops::Range;

use crate::params::Interpolation;
use crate::step::{Rect, Size};
use crate::view::View;

/// One direction of an image, and its view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    /// Length of the decoded image in pixels.
    pub(crate) pixels: usize,
    /// Start and length of the part that is resized, in pixels of the image at its full size.
    pub(crate) from: (usize, usize),
    /// Divisor of the size at which the image is decoded.
    pub(crate) shrink: usize,
    /// Length of the resized part.
    pub(crate) resized: usize,
    /// Start and length of the part of it that is needed.
    pub(crate) window: (usize, usize),
    /// Reverses the order of the outputs.
    pub(crate) flip: bool,
    pub(crate) filter: Interpolation,
    /// Takes the mean of all covered pixels if the line becomes shorter.
    pub(crate) antialias: bool,
}

/// Inputs of each output of a line, with their weights, which add up to 1.
#[derive(Default)]
pub(crate) struct Weights {
    pub(crate) spans: Vec<Range<usize>>,
    /// Weights of all spans, one after the other.
    pub(crate) shares: Vec<f64>,
}

impl Line {
    /// The columns and the rows of a view of an image that is decoded at its size divided by `shrink`.
    pub(crate) fn of(view: &View, width: usize, height: usize, shrink: usize) -> [Self; 2] {
        let [crop, window] = [view.crop, view.window].map(|Rect { left, top, width, height }| {
            [(left, width), (top, height)].map(|(start, length)| (start as usize, length as usize))
        });
        let Size { width: resized_width, height: resized_height } = view.resized();
        let line = |axis: usize| Self {
            pixels: [width, height][axis],
            from: crop[axis],
            shrink,
            resized: [resized_width, resized_height][axis] as usize,
            window: window[axis],
            flip: [view.flip_across, view.flip_down][axis],
            filter: view.resize.map_or(Interpolation::Box, |resize| resize.interpolation),
            antialias: view.resize.is_none_or(|resize| resize.antialias),
        };
        [line(0), line(1)]
    }

    /// Start and length of the part that is resized, in decoded pixels.
    fn part(&self) -> (f64, f64) {
        (self.from.0 as f64 / self.shrink as f64, self.from.1 as f64 / self.shrink as f64)
    }

    /// Decoded pixels of the part. Others do not count, since torchvision crops first.
    fn limits(&self) -> Range<usize> {
        let end = (self.from.0 + self.from.1).div_ceil(self.shrink).min(self.pixels);
        (self.from.0 / self.shrink).min(end - 1)..end
    }

    /// Places of the needed outputs in the resized part, in the order of the result.
    fn outputs(&self) -> impl Iterator<Item = usize> {
        let (first, count) = self.window;
        let flip = self.flip;
        (0..count).map(move |at| first + if flip { count - 1 - at } else { at })
    }

    /// Inputs of all needed outputs, in the order of the result.
    pub(crate) fn weights(&self) -> Weights {
        let mut weights = Weights::default();
        let ((start, length), limits) = (self.part(), self.limits());
        let scale = length / self.resized as f64;
        let places = self.filter.is_nearest().then(|| self.nearest_places(start, scale));
        for output in self.outputs() {
            let begin = weights.shares.len();
            let first = if let Some(places) = &places {
                weights.shares.push(1.0);
                places[output].clamp(limits.start, limits.end - 1)
            } else {
                let centre = start + (output as f64 + 0.5) * scale;
                match self.antialias
                    || !matches!(self.filter, Interpolation::Bilinear | Interpolation::Bicubic)
                {
                    true => self.covered(centre, scale.max(1.0), &limits, &mut weights.shares),
                    false => self.between(centre, &limits, &mut weights.shares),
                }
            };
            let first = first + trim(&mut weights.shares, begin);
            weights.spans.push(first..first + weights.shares.len() - begin);
        }
        weights
    }

    /// Nearest pixel of every output, with the rounding errors of Pillow, which adds up the steps.
    fn nearest_places(&self, start: f64, scale: f64) -> Vec<usize> {
        let mut place = scale * 0.5;
        let last = self.window.0 + self.window.1;
        let places = (0..last).map(|_| {
            let at = (start + place.floor()) as usize;
            place += scale;
            at
        });
        places.collect()
    }

    /// Weights of all inputs that the filter covers; returns the first.
    fn covered(&self, centre: f64, stretch: f64, limits: &Range<usize>, shares: &mut Vec<f64>) -> usize {
        let support = stretch * support(self.filter);
        let begin = shares.len();
        let first = ((centre - support + 0.5).max(0.0) as usize).clamp(limits.start, limits.end - 1);
        let end = ((centre + support + 0.5).max(0.0) as usize).clamp(first + 1, limits.end);
        shares.extend(
            (first..end).map(|pixel| shape(self.filter, (pixel as f64 - centre + 0.5) * (1.0 / stretch))),
        );
        let sum: f64 = shares[begin..].iter().sum();
        match sum {
            // A single pixel at the edge of the filter may have no weight.
            0.0 => shares[begin..].fill(1.0 / (end - first) as f64),
            _ => shares[begin..].iter_mut().for_each(|share| *share *= 1.0 / sum),
        }
        first
    }

    /// Weights of the 2 or 4 inputs around the centre, as torchvision interpolates without antialiasing; returns the first. The
    /// pixel at an edge stands for those beyond it.
    fn between(&self, centre: f64, limits: &Range<usize>, shares: &mut Vec<f64>) -> usize {
        let centre = if self.filter == Interpolation::Bilinear {
            (centre - 0.5).max(limits.start as f64)
        } else {
            centre - 0.5
        };
        let (before, reach) = (centre.floor(), support(self.filter));
        let inside = |pixel: f64| pixel.clamp(limits.start as f64, (limits.end - 1) as f64) as usize;
        let (first, last) = (inside(before - reach + 1.0), inside(before + reach));
        let begin = shares.len();
        shares.resize(begin + last - first + 1, 0.0);
        for tap in 0..2 * reach as usize {
            let pixel = before - reach + 1.0 + tap as f64;
            let distance = (pixel - centre).abs();
            let weight = match self.filter {
                Interpolation::Bicubic => cubic(distance, -0.75),
                _ => shape(self.filter, distance),
            };
            shares[begin + inside(pixel) - first] += weight;
        }
        first
    }
}

/// Removes the ends without weight of the numbers from `begin` on; returns how many were removed in front.
pub(crate) fn trim(shares: &mut Vec<f64>, begin: usize) -> usize {
    let is_nothing = |share: &f64| share.abs() <= f64::EPSILON;
    while shares.len() > begin + 1 && shares.last().is_some_and(is_nothing) {
        shares.pop();
    }
    let skipped = shares[begin..shares.len() - 1].iter().take_while(|share| is_nothing(share)).count();
    shares.drain(begin..begin + skipped);
    skipped
}

/// Distance from the centre beyond which the weights are 0.
fn support(filter: Interpolation) -> f64 {
    match filter {
        Interpolation::Bilinear | Interpolation::Hamming => 1.0,
        Interpolation::Bicubic => 2.0,
        Interpolation::Lanczos => 3.0,
        Interpolation::Box | Interpolation::Nearest | Interpolation::NearestExact => 0.5,
    }
}

/// Weight by the distance from the centre.
fn shape(filter: Interpolation, distance: f64) -> f64 {
    let sinc =
        |x: f64| if x == 0.0 { 1.0 } else { (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI) };
    let away = distance.abs();
    match filter {
        Interpolation::Bilinear => (1.0 - away).max(0.0),
        Interpolation::Bicubic => cubic(away, -0.5),
        Interpolation::Hamming if away < 1.0 => {
            sinc(distance) * (0.54 + 0.46 * (distance * std::f64::consts::PI).cos())
        }
        Interpolation::Lanczos if away < 3.0 => sinc(distance) * sinc(distance / 3.0),
        Interpolation::Hamming | Interpolation::Lanczos => 0.0,
        Interpolation::Box | Interpolation::Nearest | Interpolation::NearestExact => {
            f64::from(-0.5 < distance && distance <= 0.5)
        }
    }
}

/// Cubic with the slope `a` at distance 1.
fn cubic(away: f64, a: f64) -> f64 {
    if away < 1.0 {
        ((a + 2.0) * away - (a + 3.0)) * away * away + 1.0
    } else if away < 2.0 {
        (((away - 5.0) * away + 8.0) * away - 4.0) * a
    } else {
        0.0
    }
}
