//! Rotation, shearing and translation.

use crate::image::Image;
use crate::params::Interpolation;
use crate::step::Size;

/// Transforms the image; see [`Step::Affine`](crate::step::Step::Affine). Places outside of the image count as 0, or become
/// `fill`. Computes in the precision and order of torchvision, so that the same pixels are the nearest ones.
pub(crate) fn transform(
    image: &Image,
    matrix: &[f64; 6],
    size: Size,
    interpolation: Interpolation,
    fill: Option<[f32; 3]>,
) -> Image {
    let channels = image.channels;
    let (width, height) = (image.size.width as f32, image.size.height as f32);
    let [a, b, c, d, e, f] = matrix.map(|number| number as f32);
    let across = [a, b, c].map(|number| number / (0.5 * width));
    let down = [d, e, f].map(|number| number / (0.5 * height));
    // Place in pixels for a number of -1 to 1 from edge to edge.
    let place = |row: [f32; 3], x: f32, y: f32, length: f32| {
        let number = x * row[0] + y * row[1] + row[2];
        ((number + 1.0) * length - 1.0) / 2.0
    };
    let mut pixels = vec![0; size.pixels() * channels];
    for (y, row) in pixels.chunks_exact_mut(size.width as usize * channels).enumerate() {
        let y = y as f32 - (size.height as f32 - 1.0) * 0.5;
        for (x, out) in row.chunks_exact_mut(channels).enumerate() {
            let x = x as f32 - (size.width as f32 - 1.0) * 0.5;
            let (x, y) = (place(across, x, y, width), place(down, x, y, height));
            match interpolation.is_nearest() {
                true => nearest(image, x, y, fill, out),
                false => bilinear(image, x, y, fill, out),
            }
        }
    }
    Image { size, channels, pixels }
}

/// Pixel at whole numbers, if it is inside of the image.
fn pixel(image: &Image, x: f32, y: f32) -> Option<&[u8]> {
    let inside = 0.0 <= x && x < image.size.width as f32 && 0.0 <= y && y < image.size.height as f32;
    inside
        .then(|| &image.pixels[y as usize * image.stride() + x as usize * image.channels..][..image.channels])
}

fn nearest(image: &Image, x: f32, y: f32, fill: Option<[f32; 3]>, out: &mut [u8]) {
    match (pixel(image, x.round_ties_even(), y.round_ties_even()), fill) {
        (Some(pixel), _) => out.copy_from_slice(pixel),
        (None, Some(fill)) => {
            out.iter_mut().zip(fill).for_each(|(out, fill)| *out = fill.round_ties_even() as u8)
        }
        (None, None) => out.fill(0),
    }
}

fn bilinear(image: &Image, x: f32, y: f32, fill: Option<[f32; 3]>, out: &mut [u8]) {
    let (left, top) = (x.floor(), y.floor());
    let (right_share, lower_share) = (x - left, y - top);
    let (mut sums, mut inside) = ([0.0; 3], 0.0);
    for (x, across) in [(left, 1.0 - right_share), (left + 1.0, right_share)] {
        for (y, down) in [(top, 1.0 - lower_share), (top + 1.0, lower_share)] {
            if let Some(pixel) = pixel(image, x, y) {
                inside += across * down;
                for (sum, &value) in sums.iter_mut().zip(pixel) {
                    *sum += f32::from(value) * across * down;
                }
            }
        }
    }
    for (channel, out) in out.iter_mut().enumerate() {
        let value = match fill {
            // As in torchvision, which weights the sum of the pixels inside a second time.
            Some(fill) => (sums[channel] - fill[channel]) * inside + fill[channel],
            None => sums[channel],
        };
        *out = value.round_ties_even() as u8;
    }
}
