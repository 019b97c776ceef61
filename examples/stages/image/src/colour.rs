//! Steps that change the colours of an image of bytes, with the arithmetic of torchvision on tensors of bytes.

use crate::image::Image;
use crate::step::Step;

/// Applies a step that changes colours; other steps change nothing.
pub(crate) fn apply(image: &mut Image, step: &Step) {
    match *step {
        Step::Brightness(factor) => map(image, |value| to_byte(f32::from(value) * factor)),
        Step::Contrast(factor) => {
            let mean = mean_grey(image) * (1.0 - factor);
            map(image, |value| to_byte(f32::from(value) * factor + mean));
        }
        Step::Saturation(factor) => {
            for_pixels(image, |pixel| {
                let grey = grey(*pixel).floor() * (1.0 - factor);
                *pixel = pixel.map(|value| to_byte(f32::from(value) * factor + grey));
            });
        }
        Step::Hue(shift) => for_pixels(image, |pixel| *pixel = shift_hue(*pixel, shift)),
        Step::Sharpness(factor) => sharpen(image, factor),
        Step::Posterize(bits) => {
            let mask = if bits >= 8 { 255 } else { !(255 >> bits) };
            map(image, |value| value & mask);
        }
        Step::Solarize(threshold) => {
            map(image, |value| if f32::from(value) >= threshold { 255 - value } else { value });
        }
        Step::AutoContrast => by_channel(image, stretch),
        Step::Equalize => by_channel(image, equalize),
        Step::Grayscale { channels } => to_grey(image, channels.into()),
        _ => {}
    }
}

/// Converts a number to a byte; the part after the point is cut.
fn to_byte(value: f32) -> u8 {
    value.clamp(0.0, 255.0) as u8
}

/// Brightness of a pixel, by the weights of torchvision.
fn grey([red, green, blue]: [u8; 3]) -> f32 {
    f32::from(red) * 0.2989 + f32::from(green) * 0.587 + f32::from(blue) * 0.114
}

/// Replaces each byte by that of a table.
fn map(image: &mut Image, of: impl Fn(u8) -> u8) {
    let table: [u8; 256] = std::array::from_fn(|value| of(value as u8));
    penstock_guest::update_chunks::<32, u8>(&mut image.pixels, |value| table[usize::from(value)]);
}

/// Changes each pixel of a colour image; grey images have no colours to change.
fn for_pixels(image: &mut Image, change: impl Fn(&mut [u8; 3])) {
    if image.channels == 3 {
        image.pixels.as_chunks_mut::<3>().0.iter_mut().for_each(change);
    }
}

fn mean_grey(image: &Image) -> f32 {
    let sum: u64 = match image.channels {
        3 => image.pixels.as_chunks::<3>().0.iter().map(|&pixel| grey(pixel) as u64).sum(),
        _ => image.pixels.iter().map(|&value| u64::from(value)).sum(),
    };
    (sum as f64 / image.size.pixels() as f64) as f32
}

fn to_grey(image: &mut Image, channels: usize) {
    match (image.channels, channels) {
        (3, 1) => {
            image.pixels = image.pixels.as_chunks::<3>().0.iter().map(|&pixel| grey(pixel) as u8).collect()
        }
        (3, _) => for_pixels(image, |pixel| *pixel = [grey(*pixel) as u8; 3]),
        (_, 3) => image.pixels = image.pixels.iter().flat_map(|&value| [value; 3]).collect(),
        _ => {}
    }
    image.channels = channels;
}

/// Applies to each channel the table made from its histogram.
fn by_channel(image: &mut Image, table: fn(&[u32; 256]) -> Option<[u8; 256]>) {
    let channels = image.channels;
    for channel in 0..channels {
        let mut counts = [0; 256];
        image
            .pixels
            .iter()
            .skip(channel)
            .step_by(channels)
            .for_each(|&value| counts[usize::from(value)] += 1);
        if let Some(table) = table(&counts) {
            for value in image.pixels.iter_mut().skip(channel).step_by(channels) {
                *value = table[usize::from(*value)];
            }
        }
    }
}

/// Stretches the values to the whole range.
fn stretch(counts: &[u32; 256]) -> Option<[u8; 256]> {
    let least = counts.iter().position(|&count| count > 0)? as f32;
    let most = counts.iter().rposition(|&count| count > 0)? as f32;
    let scale = (most - least) * (1.0 / 255.0);
    (most > least).then(|| std::array::from_fn(|value| to_byte((value as f32 - least) / scale)))
}

/// Makes all values about equally frequent.
fn equalize(counts: &[u32; 256]) -> Option<[u8; 256]> {
    let most = counts.iter().rposition(|&count| count > 0)?;
    let step = counts[..most].iter().sum::<u32>() / 255;
    let mut below = 0;
    (step > 0).then(|| {
        counts.map(|count| {
            let value = (below + step / 2) / step;
            below += count;
            value.min(255) as u8
        })
    })
}

/// Moves the hue by a part of the circle of colours.
fn shift_hue(pixel: [u8; 3], shift: f32) -> [u8; 3] {
    let [red, green, blue] = pixel.map(|value| f32::from(value) * (1.0 / 255.0));
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    let range = most - least;
    if range == 0.0 {
        return pixel.map(|_| (most * 255.999) as u8);
    }
    let [to_red, to_green, to_blue] = [red, green, blue].map(|value| (most - value) / range);
    let hue = if most == red {
        to_blue - to_green
    } else if most == green {
        to_red + 2.0 - to_blue
    } else {
        to_green + 4.0 - to_red
    };
    let hue = ((hue * (1.0 / 6.0) + 1.0) % 1.0 + shift).rem_euclid(1.0) * 6.0;
    let (sector, saturation) = (hue.floor(), range / most);
    let part = saturation * (hue - sector);
    let [low, falling, rising] =
        [1.0 - saturation, 1.0 - part, part + (1.0 - saturation)].map(|share| (share * most).clamp(0.0, 1.0));
    let colour = match sector as u8 % 6 {
        0 => [most, rising, low],
        1 => [falling, most, low],
        2 => [low, most, rising],
        3 => [low, falling, most],
        4 => [rising, low, most],
        _ => [most, low, falling],
    };
    colour.map(|value| (value * 255.999) as u8)
}

/// Blends the image with a blurred copy. Pixels at the edge stay.
fn sharpen(image: &mut Image, factor: f32) {
    let (stride, channels) = (image.stride(), image.channels);
    let (width, height) = (image.size.width as usize, image.size.height as usize);
    if width <= 2 || height <= 2 {
        return;
    }
    let source = image.pixels.clone();
    for row in 1..height - 1 {
        let above = &source[(row - 1) * stride..][..3 * stride];
        let out = &mut image.pixels[row * stride + channels..(row + 1) * stride - channels];
        for (at, out) in out.iter_mut().enumerate() {
            let line = |row: usize| {
                let start = row * stride + at;
                u32::from(above[start])
                    + u32::from(above[start + channels])
                    + u32::from(above[start + 2 * channels])
            };
            let value = f32::from(*out);
            let sum = line(0) + line(1) + line(2) + 4 * u32::from(*out);
            let blurred = (sum as f32 / 13.0).round_ties_even();
            *out = to_byte(value + (blurred - value) * (1.0 - factor));
        }
    }
}
