//! One photo-like JPEG.

use jpeg_encoder::{ColorType, Encoder, EncodingError, SamplingFactor};

use crate::noise::{PARTS, Plane};
use crate::random::Random;

/// What all photos of a set have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhotoSettings {
    /// In pixels, not 0.
    pub width: u16,
    /// In pixels, not 0.
    pub height: u16,
    /// As libjpeg counts it, 1 to 100.
    pub quality: u8,
}

/// Why a photo could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PhotoFault {
    /// No JPEG looks like this.
    #[error(
        "{width}x{height} pixels at quality {quality} is no photo; sides from 1 and qualities from 1 to 100 would do"
    )]
    Settings {
        /// In pixels.
        width: u16,
        /// In pixels.
        height: u16,
        /// As libjpeg counts it.
        quality: u8,
    },
    /// The encoder refused.
    #[error("a photo could not be encoded")]
    Encoding(#[source] EncodingError),
}

/// Names the way photos are made; another number for every change of their bytes.
const RECIPE: u32 = 1;

/// The JPEG segment that says how a photo was made: APP15, which nobody else uses.
const NOTE_SEGMENT: u8 = 15;

/// A thing in the picture: a slanted ellipse or box, of one colour and with hard edges.
struct Shape {
    is_round: bool,
    centre: (i32, i32),
    /// Half its width and half its height, in pixels.
    reach: (i32, i32),
    /// Pixels to the side per 256 pixels downwards.
    slant: i32,
    luma: i32,
    blue: i32,
    red: i32,
}

/// The photo number `index` of the set that `seed` names: colours, soft light, things with edges, areas with and
/// without texture, and grain. At 500x375 and quality 85 about 60 kB (half of them 50 to 70 kB), 4:2:0, baseline.
pub fn photo(seed: u64, index: u64, settings: &PhotoSettings) -> Result<Vec<u8>, PhotoFault> {
    let PhotoSettings { width, height, quality } = *settings;
    if width == 0 || height == 0 || !(1..=100).contains(&quality) {
        return Err(PhotoFault::Settings { width, height, quality });
    }
    let pixels = paint(&mut Random::new(seed, index), usize::from(width), usize::from(height));
    let mut jpeg = Vec::with_capacity(pixels.len() / 4);
    let mut encoder = Encoder::new(&mut jpeg, quality);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.add_app_segment(NOTE_SEGMENT, note(seed, index, settings)).map_err(PhotoFault::Encoding)?;
    encoder.encode(&pixels, width, height, ColorType::Ycbcr).map_err(PhotoFault::Encoding)?;
    Ok(jpeg)
}

/// What stands in a photo about its making, so that a file can be told from one made otherwise without making it.
pub(crate) fn note(seed: u64, index: u64, settings: &PhotoSettings) -> Vec<u8> {
    let PhotoSettings { width, height, quality } = settings;
    format!("penstock make-data {RECIPE}: seed {seed}, photo {index}, {width}x{height}, quality {quality}\0")
        .into()
}

/// YCbCr, u8, [height, width, 3], rows first.
fn paint(random: &mut Random, width: usize, height: usize) -> Vec<u8> {
    let mut luma = Plane::filled(width, height, random.between(90, 150));
    for (cell_bits, amplitude) in [(8, 50), (7, 36), (6, 22), (5, 12), (4, 7)] {
        luma.add_noise(random, cell_bits, amplitude);
    }
    let mut blue = Plane::filled(width, height, 128 + random.between(-14, 14));
    let mut red = Plane::filled(width, height, 128 + random.between(-14, 14));
    for plane in [&mut blue, &mut red] {
        for (cell_bits, amplitude) in [(7, 20), (5, 8)] {
            plane.add_noise(random, cell_bits, amplitude);
        }
    }
    for _ in 0..random.between(5, 14) {
        let shape = Shape::random(random, width, height);
        shape.draw(&mut luma, shape.luma);
        shape.draw(&mut blue, shape.blue);
        shape.draw(&mut red, shape.red);
    }

    let mut texture = Plane::filled(width, height, 0);
    let strength = random.between(16, 110);
    for (cell_bits, share) in [(3, 10), (2, 8), (1, 6)] {
        texture.add_noise(random, cell_bits, strength * share / 6);
    }
    // Where the texture shows: from nowhere to fully, in soft patches.
    let mut patches = Plane::filled(width, height, 8);
    patches.add_noise(random, 7, 16);
    patches.add_noise(random, 5, 8);

    let grain = random.between(14, 66);
    let mut pixels = Vec::with_capacity(width * height * 3);
    let mut bits = 0;
    for position in 0..width * height {
        // Two random bytes per pixel: their sum is bell-shaped enough for grain.
        bits = if position % 4 == 0 { random.next_bits() } else { bits >> 16 };
        let speck = (bits & 0xff) as i32 + (bits >> 8 & 0xff) as i32 - 255;
        let shown = patches.values[position].clamp(0, 16 * PARTS);
        let value =
            luma.values[position] + texture.values[position] * shown / (16 * PARTS) + speck * grain / 64;
        pixels.push(level(value));
        pixels.push(level(blue.values[position]));
        pixels.push(level(red.values[position]));
    }
    pixels
}

fn level(value: i32) -> u8 {
    (value / PARTS).clamp(0, 255) as u8
}

impl Shape {
    fn random(random: &mut Random, width: usize, height: usize) -> Self {
        let (width, height) = (width as i32, height as i32);
        Self {
            is_round: random.one_in(2),
            centre: (random.between(0, width), random.between(0, height)),
            reach: (random.between(width / 40, width / 5) + 1, random.between(height / 40, height / 4) + 1),
            slant: random.between(-160, 160),
            luma: random.between(-70, 70),
            blue: random.between(-30, 30),
            red: random.between(-30, 30),
        }
    }

    /// Adds `levels` wherever the shape covers `plane`.
    fn draw(&self, plane: &mut Plane, levels: i32) {
        let (reach_x, reach_y) = (i64::from(self.reach.0), i64::from(self.reach.1));
        for (y, line) in plane.values.chunks_exact_mut(plane.width).enumerate() {
            let down = y as i32 - self.centre.1;
            if down.abs() > self.reach.1 {
                continue;
            }
            let middle = self.centre.0 + down * self.slant / 256;
            for (x, value) in line.iter_mut().enumerate() {
                let (across, down) = (i64::from(x as i32 - middle), i64::from(down));
                let is_inside = match self.is_round {
                    true => (across * reach_y).pow(2) + (down * reach_x).pow(2) <= (reach_x * reach_y).pow(2),
                    false => across.abs() <= reach_x,
                };
                if is_inside {
                    *value += levels * PARTS;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jpeg_decoder::{Decoder, PixelFormat};
    use sha2::{Digest, Sha256};

    use super::*;

    const PHOTO: PhotoSettings = PhotoSettings { width: 500, height: 375, quality: 85 };

    #[test]
    fn photos_are_the_same_bytes_on_every_machine() {
        let mut digest = Sha256::new();
        for index in 0..4 {
            digest.update(photo(1, index, &PHOTO).unwrap());
        }
        let found: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, "b8317c65005f0707c83f739addd79e319364b00f9222e670aa8666fbed640e92");
    }

    #[test]
    fn photos_are_about_as_large_as_real_ones_and_differ() {
        let mut sizes: Vec<usize> = (0..60).map(|index| photo(1, index, &PHOTO).unwrap().len()).collect();
        sizes.sort_unstable();
        let (least, median, most) = (sizes[0], sizes[30], sizes[59]);
        assert!((55_000..=65_000).contains(&median), "median {median}, from {least} to {most}");
        assert!(least < median - 10_000 && most > median + 10_000, "median {median}, from {least} to {most}");
    }

    #[test]
    fn a_decoder_finds_the_size_and_more_than_grain() {
        let jpeg = photo(7, 3, &PhotoSettings { width: 161, height: 77, quality: 90 }).unwrap();
        let mut decoder = Decoder::new(jpeg.as_slice());
        let pixels = decoder.decode().unwrap();
        let info = decoder.info().unwrap();
        assert_eq!((info.width, info.height, info.pixel_format), (161, 77, PixelFormat::RGB24));
        let (darkest, brightest) = (pixels.iter().min().unwrap(), pixels.iter().max().unwrap());
        assert!(brightest - darkest > 80, "{darkest} to {brightest}");
    }

    #[test]
    fn settings_that_no_photo_has_are_refused() {
        for (width, height, quality) in [(0, 1, 85), (1, 0, 85), (1, 1, 0), (1, 1, 101)] {
            assert!(matches!(
                photo(1, 1, &PhotoSettings { width, height, quality }),
                Err(PhotoFault::Settings { .. })
            ));
        }
        assert!(photo(1, 1, &PhotoSettings { width: 1, height: 1, quality: 1 }).is_ok());
    }
}
