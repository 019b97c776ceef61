//! Decoding of compressed data to planes of pixels.

use std::ops::Range;

use super::header::{Component, Header};
use super::huffman::{Bits, Table};
use super::idct::{POSITIONS, inverse, inverse_1, inverse_2, inverse_4};

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

/// Required part of one component.
pub(super) struct Window {
    /// Number of pixels along the edge of a block: 8, or 4, 2 or 1 if the image is decoded at a fraction of its size.
    pub(super) edge: usize,
    pub(super) columns: Range<usize>,
    pub(super) rows: Range<usize>,
}

/// Required blocks of a component.
struct Wanted {
    edge: usize,
    columns: Range<usize>,
    rows: Range<usize>,
}

impl Plane {
    /// Resizes the plane for the given columns and rows. Old content need not be cleared: every block is written before it is
    /// read.
    fn reserve(&mut self, Window { edge, columns, rows }: &Window) -> Wanted {
        let wanted = Wanted {
            edge: *edge,
            columns: columns.start / edge..columns.end.div_ceil(*edge),
            rows: rows.start / edge..rows.end.div_ceil(*edge),
        };
        self.left = wanted.columns.start * edge;
        self.top = wanted.rows.start * edge;
        self.stride = (wanted.columns.len() * edge).next_multiple_of(16);
        self.pixels.resize(self.stride * wanted.rows.len() * edge, 0);
        wanted
    }
}

/// Decodes the scan into `planes`, one per component, restricted to `windows`, one per component. Other blocks are parsed, since
/// they cannot be skipped, but not transformed.
///
/// Returns `None` if the data is damaged, or if anything but the end of the image follows the scan.
pub(super) fn decode<'a>(
    header: &Header,
    windows: impl Iterator<Item = &'a Window>,
    planes: &mut [Plane],
) -> Option<()> {
    let wanted: Vec<Wanted> =
        windows.zip(planes.iter_mut()).map(|(window, plane)| plane.reserve(window)).collect();
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
                        read_block::<0>(&mut bits, component, previous, &mut block)?;
                        continue;
                    }
                    let last = match wanted.edge {
                        8 => read_block::<64>(&mut bits, component, previous, &mut block)?,
                        4 => read_block::<25>(&mut bits, component, previous, &mut block)?,
                        2 => read_block::<5>(&mut bits, component, previous, &mut block)?,
                        _ => read_block::<1>(&mut bits, component, previous, &mut block)?,
                    };
                    let left = (column - wanted.columns.start) * wanted.edge;
                    let start = (row - wanted.rows.start) * wanted.edge * plane.stride + left;
                    let pixels = &mut plane.pixels[start..];
                    match wanted.edge {
                        8 => inverse(&block, last, pixels, plane.stride),
                        4 => inverse_4(&block, pixels, plane.stride),
                        2 => inverse_2(&block, pixels, plane.stride),
                        _ => pixels[0] = inverse_1(&block),
                    }
                    block = [0; 64];
                }
            }
        }
    }
    (bits.marker()? == 0xd9).then_some(())
}

/// Reads the coefficients of one block, and returns an index, in the order of the scan, after which all are zero. Keeps at least
/// the first `NEEDED` coefficients; `previous` is the component's last first coefficient.
#[inline(never)]
fn read_block<const NEEDED: usize>(
    bits: &mut Bits,
    component: &Component,
    previous: &mut i16,
    block: &mut [i16; 64],
) -> Option<usize> {
    // A local copy stays in registers while the block is read.
    let mut local = *bits;
    let last = read_coefficients::<NEEDED>(&mut local, component, previous, block);
    *bits = local;
    last
}

#[inline(always)]
fn read_coefficients<const NEEDED: usize>(
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
    if NEEDED > 0 {
        block[0] = previous.wrapping_mul(component.steps[0]);
    }
    let mut put = |place: usize, number: i16| {
        // The mask changes nothing, and tells the compiler that the place is inside the block.
        let place = place & 63;
        block[usize::from(POSITIONS[place] & 63)] = number.wrapping_mul(component.steps[place]);
    };
    let codes = &*component.ac;
    let mut place = 1;
    while place < NEEDED {
        bits.refill();
        let step = codes.step(bits);
        let end = place + step.places();
        // Near the end of the block, the codes may belong to the next one.
        if end < 64 {
            bits.skip(step.bits());
            let first = place + step.zeros();
            let [number, next] = step.numbers();
            put(first, number);
            put(first + step.distance(), next);
            place = end;
            if step.is_end() {
                return Some(place - 1);
            }
        } else {
            match one_code(bits, &codes.one)? {
                Some((zeros, number)) => {
                    place += zeros;
                    if place > 63 {
                        return None;
                    }
                    put(place, number);
                    place += 1;
                }
                None => return Some(place - 1),
            }
        }
    }
    while NEEDED < 64 && place < 64 {
        bits.refill();
        let skip = codes.skip(bits);
        let end = place + skip.places();
        if end < 64 {
            bits.skip(skip.bits());
            place = end;
            if skip.is_end() {
                return Some(place - 1);
            }
        } else {
            match one_code(bits, &codes.one)? {
                Some((zeros, _)) => place += zeros + 1,
                None => return Some(place - 1),
            }
        }
    }
    (place == 64).then_some(63)
}

/// Reads one code with its number: count of zeros, and the number after them, where 16 zeros count as 15 zeros and the number 0.
/// `Some(None)` at the end of the block; `None` if the data is damaged.
#[inline(always)]
fn one_code(bits: &mut Bits, codes: &Table) -> Option<Option<(usize, i16)>> {
    let entry = codes.entry(bits)?;
    bits.skip(entry.bits());
    if entry.is_complete() {
        return Some(Some((entry.zeros(), entry.number())));
    }
    match (entry.size(), entry.zeros()) {
        (0, 15) => Some(Some((15, 0))),
        (0, zeros) => (zeros == 0).then_some(None),
        (size, zeros) => Some(Some((zeros, bits.number(size) as i16))),
    }
}
