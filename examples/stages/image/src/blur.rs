//! Gaussian blur of an image, in one pass over its rows.

use crate::image::Image;

/// Blurs the image. The kernel has odd lengths, less than twice the image's; pixels outside are those mirrored at the edge.
pub(crate) fn blur(image: &mut Image, kernel: [u32; 2], sigma: [f64; 2]) {
    let [across, down] = [0, 1].map(|axis| weights(kernel[axis], sigma[axis]));
    let (stride, channels) = (image.stride(), image.channels);
    let (width, height) = (image.size.width as usize, image.size.height as usize);
    let mut sums = vec![0.0_f32; stride];
    // One row with its mirrored ends.
    let ends = across.len() / 2;
    let mut row = vec![0.0_f32; (width + 2 * ends) * channels];
    let source = image.pixels.clone();
    for (y, out) in image.pixels.chunks_exact_mut(stride).enumerate() {
        sums.fill(0.0);
        for (tap, &weight) in down.iter().enumerate() {
            let from = &source[mirrored(y + tap, down.len() / 2, height) * stride..][..stride];
            add_weighted(&mut sums, from, weight);
        }
        for (x, out) in row.chunks_exact_mut(channels).enumerate() {
            let from = mirrored(x, ends, width) * channels;
            out.copy_from_slice(&sums[from..from + channels]);
        }
        sums.fill(0.0);
        for (tap, &weight) in across.iter().enumerate() {
            for (sum, &value) in sums.iter_mut().zip(&row[tap * channels..]) {
                *sum += value * weight;
            }
        }
        for (out, &sum) in out.iter_mut().zip(&sums) {
            *out = sum.round_ties_even() as u8;
        }
    }
}

fn add_weighted(sums: &mut [f32], from: &[u8], weight: f32) {
    for (sum, &value) in sums.iter_mut().zip(from) {
        *sum += f32::from(value) * weight;
    }
}

/// Place in a line of `length` pixels for the place `at` of a line with `margin` mirrored pixels on both sides.
fn mirrored(at: usize, margin: usize, length: usize) -> usize {
    let at = at.abs_diff(margin);
    if at < length { at } else { 2 * (length - 1) - at }
}

fn weights(length: u32, sigma: f64) -> Vec<f32> {
    let middle = f64::from(length / 2);
    let weights: Vec<f64> =
        (0..length).map(|at| (-((f64::from(at) - middle) / sigma).powi(2) / 2.0).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| (weight / sum) as f32).collect()
}
