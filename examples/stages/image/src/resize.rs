//! Resizing with the arithmetic of Pillow: columns first, then rows, with bytes in between.

use crate::filter::{Line, Weights};
use crate::image::Image;
use crate::step::{Rect, Size};
use crate::view::{Resizing, View};

/// Number of fractional bits of the weights.
const BITS: u32 = 22;

/// The image at another size.
pub(crate) fn resize(image: &Image, resizing: Resizing) -> Image {
    let whole =
        View { resize: Some(resizing), window: Rect::whole(resizing.size), ..View::whole(image.size) };
    view(image, &whole, 1)
}

/// The part of the image that the view names. Lengths of the view's crop refer to an image that is larger by `reduction`.
pub(crate) fn view(image: &Image, view: &View, reduction: u32) -> Image {
    let Size { width, height } = image.size;
    let [columns, rows] = Line::of(view, width as usize, height as usize, reduction as usize);
    let (across, down) = (Taps::new(&columns.weights()), Taps::new(&rows.weights()));
    let size = view.size();
    let narrow = match image.channels {
        1 => resize_columns::<1>(image, &across, down.first..down.end),
        _ => resize_columns::<3>(image, &across, down.first..down.end),
    };
    let stride = size.width as usize * image.channels;
    let mut pixels = vec![0; stride * size.height as usize];
    let mut sums = vec![0; stride];
    for ((start, weights), out) in down.iter().zip(pixels.chunks_exact_mut(stride)) {
        let rows = &narrow[(start - down.first) * stride..];
        if let [1] = *weights {
            out.copy_from_slice(&rows[..stride]);
            continue;
        }
        sums.fill(1 << (BITS - 1));
        for (row, &weight) in rows.chunks_exact(stride).zip(weights) {
            add_row(row, weight, &mut sums);
        }
        penstock_guest::map_chunks::<32, i32, u8>(&sums, out, to_byte);
    }
    Image { size, channels: image.channels, pixels }
}

/// Inputs of each output with whole weights, in units of 2^-22; the single weight `[1]` stands for a copy.
struct Taps {
    spans: Vec<(usize, usize)>,
    weights: Vec<i32>,
    /// First of all inputs, and the end of them.
    first: usize,
    end: usize,
}

impl Taps {
    fn new(weights: &Weights) -> Self {
        let spans = weights.spans.iter().map(|span| (span.start, span.len())).collect();
        let whole = |&share: &f64| (share * f64::from(1 << BITS)).round() as i32;
        let mut whole: Vec<i32> = weights.shares.iter().map(whole).collect();
        let mut at = 0;
        for span in &weights.spans {
            if span.len() == 1 {
                whole[at] = 1;
            }
            at += span.len();
        }
        Self {
            spans,
            weights: whole,
            first: weights.spans.iter().map(|span| span.start).min().unwrap_or(0),
            end: weights.spans.iter().map(|span| span.end).max().unwrap_or(0),
        }
    }

    /// First input and weights of every output.
    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let mut rest = self.weights.as_slice();
        self.spans.iter().map(move |&(start, count)| {
            let (weights, after) = rest.split_at(count);
            rest = after;
            (start, weights)
        })
    }
}

/// Resizes the columns of some rows.
fn resize_columns<const CHANNELS: usize>(
    image: &Image,
    across: &Taps,
    rows: std::ops::Range<usize>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * across.spans.len() * CHANNELS);
    for row in image.rows().skip(rows.start).take(rows.len()) {
        let (row, _) = row.as_chunks::<CHANNELS>();
        for (start, weights) in across.iter() {
            let pixels = &row[start..start + weights.len()];
            if let ([1], [pixel]) = (weights, pixels) {
                out.extend_from_slice(pixel);
                continue;
            }
            let mut sums = [1 << (BITS - 1); CHANNELS];
            for (pixel, &weight) in pixels.iter().zip(weights) {
                for (sum, &value) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(value) * weight;
                }
            }
            out.extend(sums.map(to_byte));
        }
    }
    out
}

fn add_row(row: &[u8], weight: i32, sums: &mut [i32]) {
    let (rows, row_rest) = row.as_chunks::<32>();
    let (chunks, rest) = sums.as_chunks_mut::<32>();
    for (row, sums) in rows.iter().zip(chunks) {
        for at in 0..32 {
            sums[at] += i32::from(row[at]) * weight;
        }
    }
    for (&value, sum) in row_rest.iter().zip(rest) {
        *sum += i32::from(value) * weight;
    }
}

fn to_byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}
