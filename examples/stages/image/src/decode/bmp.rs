//! BMP files of the widespread kinds, with the pixels that Pillow reads: 1 to 32 bits, palettes, masks, run lengths.

use penstock_guest::prelude::*;

use super::{Limits, bmp_runs};
use crate::image::Image;
use crate::step::Size;

/// Length of the header of the file, in bytes; the header of the image follows.
const FILE_HEADER: usize = 14;
/// Length of the oldest header of an image, in bytes: its fields are shorter than those of the others.
const OLD: usize = 12;
/// Lengths of the other headers.
const HEADERS: [usize; 6] = [40, 52, 56, 64, 108, 124];
/// Place of the masks behind the file's header: at the end of the shortest header, or in a longer one.
const MASKS_AT: usize = FILE_HEADER + 40;

/// Red, green and blue of each index.
type Palette = [[u8; 3]; 256];

/// A BMP whose header has been read.
struct Bmp<'a> {
    size: Size,
    /// True if the first stored row is the uppermost.
    is_top_down: bool,
    bits: usize,
    coding: Coding,
    file: &'a [u8],
    /// Place of the first pixel in the file.
    start: usize,
}

/// Form of the stored pixels.
enum Coding {
    /// Indices of 1, 2, 4 or 8 bits.
    Indices(Box<Palette>),
    /// Run lengths of indices; `nibbles` is true if a byte holds two indices.
    Runs { palette: Box<Palette>, nibbles: bool },
    /// Red, green and blue in two bytes, with this number of bits of green, and 5 bits of the others.
    Short { green: u32 },
    /// A byte of each colour, with the places of red, green and blue among the bytes of a pixel.
    Bytes([usize; 3]),
}

pub(super) fn header(bmp: &[u8], limits: Limits) -> Result<Size> {
    Bmp::read(bmp, limits).map(|bmp| bmp.size)
}

pub(super) fn decode(bmp: &[u8], limits: Limits) -> Result<Image> {
    Bmp::read(bmp, limits)?.decode()
}

/// A little-endian number of `LENGTH` bytes.
fn number<const LENGTH: usize>(bmp: &[u8], at: usize) -> Result<u32> {
    let bytes: &[u8; LENGTH] =
        bmp.get(at..).and_then(<[u8]>::first_chunk).context("the BMP is damaged: it ends in its header")?;
    Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte)))
}

impl<'a> Bmp<'a> {
    fn read(file: &'a [u8], limits: Limits) -> Result<Self> {
        let long = |at: usize| number::<4>(file, at);
        let short = |at: usize| number::<2>(file, at);
        let length = long(FILE_HEADER)? as usize;
        let is_old = length == OLD;
        ensure!(
            is_old || HEADERS.contains(&length),
            "the kind of the BMP is not supported: its header has {length} bytes; known are 12, 40, 52, 56, 64, 108 and 124"
        );
        ensure!(file.len() >= FILE_HEADER + length, "the BMP is damaged: it ends in its header");
        let (width, height, bits, compression) = match is_old {
            true => (short(18)?, short(20)?, short(24)?, 0),
            false => (long(18)?, long(22)?, short(28)?, long(30)?),
        };
        // As in Pillow, which looks at the uppermost byte alone.
        let is_top_down = !is_old && height >> 24 == 0xff;
        let height = if is_top_down { height.wrapping_neg() } else { height };
        let size = limits.check(file, width.into(), height.into(), 4)?;
        let mut after_header = FILE_HEADER + length;

        let coding = match (compression, bits) {
            (0..=2, 1 | 2 | 4 | 8) => {
                let stated = if is_old { 0 } else { long(46)? as usize };
                let count = if stated == 0 { 1 << bits } else { stated };
                let entry = if is_old { 3 } else { 4 };
                let palette = palette(file.get(after_header..).unwrap_or_default(), entry, count, bits);
                after_header = after_header.saturating_add(count.saturating_mul(entry));
                match compression {
                    0 => Coding::Indices(palette),
                    _ if bits < 4 => bail!(
                        "the kind of the BMP is not supported: run lengths with {bits} bits a pixel; known are 4 and 8"
                    ),
                    kind => Coding::Runs { palette, nibbles: kind == 2 },
                }
            }
            (0, 16) => Coding::Short { green: 5 },
            (0, 24 | 32) => Coding::Bytes([2, 1, 0]),
            (3, 16 | 24 | 32) => {
                let masks = [long(MASKS_AT)?, long(MASKS_AT + 4)?, long(MASKS_AT + 8)?];
                if length == 40 {
                    after_header += 12;
                }
                masked(bits, masks)?
            }
            (0, _) => {
                bail!(
                    "the kind of the BMP is not supported: {bits} bits a pixel; known are 1, 2, 4, 8, 16, 24 and 32"
                )
            }
            (kind, _) => {
                let name = match kind {
                    1 | 2 => "run lengths",
                    3 => "masks",
                    4 => "JPEG",
                    5 => "PNG",
                    6 => "masks with transparency",
                    _ => "unknown",
                };
                bail!(
                    "the kind of the BMP is not supported: its compression is {kind} ({name}), with {bits} bits a pixel"
                )
            }
        };
        // As in Pillow: some writers leave out the place of the pixels, or the palette before them.
        let has_palette = matches!(coding, Coding::Indices(_) | Coding::Runs { .. });
        let start = match long(10)? as usize {
            0 => after_header,
            start if has_palette && start == FILE_HEADER + length => after_header,
            start => start,
        };
        ensure!(start <= file.len(), "the BMP is damaged: its pixels would begin after its end");
        Ok(Self { size, is_top_down, bits: bits as usize, coding, file, start })
    }

    fn decode(&self) -> Result<Image> {
        let size = self.size;
        if let Coding::Runs { palette, nibbles } = &self.coding {
            let width = size.width as usize;
            let indices = bmp_runs::decode(self.file, self.start, size, *nibbles)?;
            let mut pixels = Vec::with_capacity(3 * size.pixels());
            for row in self.order() {
                let row = &indices[row * width..(row + 1) * width];
                pixels.extend(row.iter().flat_map(|&index| palette[usize::from(index)]));
            }
            return Ok(Image { size, channels: 3, pixels });
        }
        // Rows are padded to whole words; the last one may lack its padding.
        let row = u64::from(size.width) * self.bits as u64;
        let (used, stride) = (row.div_ceil(8), row.div_ceil(32) * 4);
        let stored = &self.file[self.start..];
        let is_whole = stored.len() as u64 >= stride * u64::from(size.height - 1) + used;
        ensure!(is_whole, "the BMP is damaged: it is truncated");
        let (used, stride) = (used as usize, stride as usize);
        let mut pixels = Vec::with_capacity(3 * size.pixels());
        for row in self.order() {
            let bytes = &stored[row * stride..][..used];
            match &self.coding {
                Coding::Indices(palette) | Coding::Runs { palette, .. } => {
                    self.add_indices(bytes, palette, &mut pixels);
                }
                Coding::Short { green } => add_short(bytes, *green, &mut pixels),
                Coding::Bytes(places) if self.bits == 24 => add_bytes::<3>(bytes, *places, &mut pixels),
                Coding::Bytes(places) => add_bytes::<4>(bytes, *places, &mut pixels),
            }
        }
        Ok(Image { size, channels: 3, pixels })
    }

    /// Stored rows in the order of the image.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (height, is_top_down) = (self.size.height as usize, self.is_top_down);
        (0..height).map(move |row| if is_top_down { row } else { height - 1 - row })
    }

    fn add_indices(&self, bytes: &[u8], palette: &Palette, pixels: &mut Vec<u8>) {
        let bits = self.bits;
        for column in 0..self.size.width as usize {
            let at = column * bits;
            let index = bytes[at / 8] >> (8 - bits - at % 8) & (0xff >> (8 - bits));
            pixels.extend(palette[usize::from(index)]);
        }
    }
}

/// Colours of a file, which has `count` of them with `entry` bytes each: blue, green, red. As in Pillow, missing colours are black, or go
/// on with the greys if the others are those that the indices stand for without a palette.
fn palette(stored: &[u8], entry: usize, count: usize, bits: u32) -> Box<Palette> {
    let mut palette: Box<Palette> = Box::new([[0; 3]; 256]);
    let grey = |index: usize| [if bits == 1 { index * 255 } else { index } as u8; 3];
    let stored = stored.chunks_exact(entry).map(|colour| [colour[2], colour[1], colour[0]]);
    let (mut known, mut is_grey) = (0, true);
    for (place, colour) in palette.iter_mut().zip(stored.take(count)) {
        *place = colour;
        is_grey &= colour == grey(known);
        known += 1;
    }
    if is_grey {
        (known..256).for_each(|index| palette[index] = grey(index));
    }
    palette
}

/// Form of pixels whose colours are at these bits.
fn masked(bits: u32, masks: [u32; 3]) -> Result<Coding> {
    let byte_of = |mask: u32| (0..4).find(|byte| mask == 0xff << (8 * byte));
    let bytes = masks.map(byte_of);
    match (bits, masks, bytes) {
        (16, [0x7c00, 0x3e0, 0x1f], _) => Ok(Coding::Short { green: 5 }),
        (16, [0xf800, 0x7e0, 0x1f], _) => Ok(Coding::Short { green: 6 }),
        (32, [0, 0, 0], _) => Ok(Coding::Bytes([2, 1, 0])),
        (24 | 32, _, [Some(red), Some(green), Some(blue)])
            if red != green
                && green != blue
                && blue != red
                && (bits == 32 || red.max(green).max(blue) < 3) =>
        {
            Ok(Coding::Bytes([red, green, blue]))
        }
        _ => {
            let [red, green, blue] = masks;
            bail!(
                "the kind of the BMP is not supported: the masks of red, green and blue are {red:x}, {green:x} and {blue:x} of {bits} bits; \
                 known are 5-5-5 and 5-6-5 of 16 bits, and whole bytes"
            )
        }
    }
}

/// Adds pixels of two bytes each.
fn add_short(bytes: &[u8], green_bits: u32, pixels: &mut Vec<u8>) {
    let most = (1 << green_bits) - 1;
    for &pixel in bytes.as_chunks().0 {
        let pixel = u32::from(u16::from_le_bytes(pixel));
        let (red, green, blue) = (pixel >> (5 + green_bits) & 31, pixel >> 5 & most, pixel & 31);
        pixels.extend([red * 255 / 31, green * 255 / most, blue * 255 / 31].map(|value| value as u8));
    }
}

/// Adds pixels of `LENGTH` bytes each, with red, green and blue at these places.
fn add_bytes<const LENGTH: usize>(bytes: &[u8], places: [usize; 3], pixels: &mut Vec<u8>) {
    match places {
        // Known places need no check of bounds.
        [2, 1, 0] => pixels
            .extend(bytes.as_chunks::<LENGTH>().0.iter().flat_map(|pixel| [pixel[2], pixel[1], pixel[0]])),
        _ => pixels
            .extend(bytes.as_chunks::<LENGTH>().0.iter().flat_map(|pixel| places.map(|place| pixel[place]))),
    }
}
