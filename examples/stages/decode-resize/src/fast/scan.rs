//! Decoding of compressed data to planes of pixels.

use std::ops::Range;

use super::header::{Component, Header};
use super::huffman::Bits;
use super::idct::{POSITIONS, inverse};

/// Required part of one component's pixels, rounded to whole blocks.
#[derive(Default)]
pub(super) struct Plane {
    /// Column of the component where the plane starts, a multiple of 8.
    pub(super) left: usize,
    /// Row of the component where the plane starts, a multiple of 8.
    pub(super) top: usize,
    /// Number of pixels from one row to the next, a multiple of 16.
    pub(super) stride: usize,
    /// Pixels minus 128, rows first.
    pub(super) pixels: Vec<i8>,
}

/// Required blocks of a component.
struct Wanted {
    columns: Range<usize>,
    rows: Range<usize>,
}

impl Plane {
    /// Resizes the plane for the given columns and rows. Old content need not be cleared: every block is written before it is
    /// read.
    fn reserve(&mut self, columns: &Range<usize>, rows: &Range<usize>) -> Wanted {
        let wanted = Wanted {
            columns: columns.start / 8..columns.end.div_ceil(8),
            rows: rows.start / 8..rows.end.div_ceil(8),
        };
        self.left = wanted.columns.start * 8;
        self.top = wanted.rows.start * 8;
        self.stride = (wanted.columns.len() * 8).next_multiple_of(16);
        self.pixels.resize(self.stride * wanted.rows.len() * 8, 0);
        wanted
    }
}

/// Decodes the scan into `planes`, one per component, restricted to the columns and rows in `windows`, one per component.
/// Other blocks are parsed, since they cannot be skipped, but not transformed.
///
/// Returns `None` if the data is damaged, or if anything but the end of the image follows the scan.
pub(super) fn decode(
    header: &Header,
    windows: &[(Range<usize>, Range<usize>)],
    planes: &mut [Plane],
) -> Option<()> {
    let wanted: Vec<Wanted> = windows
        .iter()
        .zip(planes.iter_mut())
        .map(|((columns, rows), plane)| plane.reserve(columns, rows))
        .collect();
    let units_across = header.width.div_ceil(8 * header.most_across());
    let units = units_across * header.height.div_ceil(8 * header.most_down());

    let mut bits = Bits::new(header.scan);
    let mut previous = [0_i16; 3];
    let mut block = [0_i16; 64];
    for unit in 0..units {
        if header.restart_interval != 0 && unit != 0 && unit.is_multiple_of(header.restart_interval) {
            let number = unit / header.restart_interval - 1;
            if usize::from(bits.marker()?) != 0xd0 + number % 8 {
                return None;
            }
            previous = [0; 3];
        }
        let (row, column) = (unit / units_across, unit % units_across);
        for (index, component) in header.components.iter().enumerate() {
            let (wanted, plane, previous) = (&wanted[index], &mut planes[index], &mut previous[index]);
            for down in 0..component.down {
                let row = row * component.down + down;
                for across in 0..component.across {
                    let column = column * component.across + across;
                    if !wanted.rows.contains(&row) || !wanted.columns.contains(&column) {
                        read_block::<false>(&mut bits, component, previous, &mut block)?;
                        continue;
                    }
                    let last = read_block::<true>(&mut bits, component, previous, &mut block)?;
                    let start =
                        (row - wanted.rows.start) * 8 * plane.stride + (column - wanted.columns.start) * 8;
                    inverse(&block, last, &mut plane.pixels[start..], plane.stride);
                    block = [0; 64];
                }
            }
        }
    }
    (bits.marker()? == 0xd9).then_some(())
}

/// Reads the coefficients of one block, and returns the index, in the order of the scan, of the last coefficient that is not
/// zero. Without `WANTED`, the coefficients are skipped.
fn read_block<const WANTED: bool>(
    bits: &mut Bits,
    component: &Component,
    previous: &mut i16,
    block: &mut [i16; 64],
) -> Option<usize> {
    // A local copy stays in registers while the block is read.
    let mut local = *bits;
    let last = read_coefficients::<WANTED>(&mut local, component, previous, block);
    *bits = local;
    last
}

#[inline(always)]
fn read_coefficients<const WANTED: bool>(
    bits: &mut Bits,
    component: &Component,
    previous: &mut i16,
    block: &mut [i16; 64],
) -> Option<usize> {
    bits.refill();
    let entry = component.dc.entry(bits)?;
    bits.skip(entry.bits());
    let difference = if entry.is_complete() {
        entry.number()
    } else if entry.size() != 0 {
        bits.number(entry.size()) as i16
    } else {
        0
    };
    *previous = previous.wrapping_add(difference);
    if WANTED {
        block[0] = previous.wrapping_mul(component.steps[0]);
    }
    let (mut place, mut last) = (1, 0);
    while place < 64 {
        bits.refill();
        let entry = component.ac.entry(bits)?;
        bits.skip(entry.bits());
        place += entry.zeros();
        let number = if entry.is_complete() {
            entry.number()
        } else if entry.size() != 0 {
            bits.number(entry.size()) as i16
        } else if entry.zeros() == 15 {
            place += 1;
            continue;
        } else {
            // The rest of the block is zero.
            return (entry.zeros() == 0).then_some(last);
        };
        if place > 63 {
            return None;
        }
        if WANTED {
            block[usize::from(POSITIONS[place])] = number.wrapping_mul(component.steps[place]);
            last = place;
        }
        place += 1;
    }
    (place == 64).then_some(last)
}
