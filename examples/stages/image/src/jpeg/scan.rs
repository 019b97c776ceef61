//! Decoding of compressed data to planes of pixels.

use std::ops::Range;

use penstock_guest::prelude::*;

use super::header::{Coding, Component, Frame, Header, Tables};
use super::huffman::{Bits, END, Table};
use super::idct::{POSITIONS, inverse, inverse_1, inverse_2, inverse_4};
use super::scans;

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
pub(super) struct Wanted {
    pub(super) edge: usize,
    pub(super) columns: Range<usize>,
    pub(super) rows: Range<usize>,
}

impl Plane {
    /// Resizes the plane for the given columns and rows. Old content need not be cleared: every block is written before it is
    /// read.
    pub(super) fn reserve(&mut self, Window { edge, columns, rows }: &Window) -> Wanted {
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

/// Decodes the image into `planes`, one per component, restricted to `windows`, one per component. Other blocks are parsed, since
/// they cannot be skipped, but not transformed. Fails if the data is damaged.
pub(super) fn decode<'a>(
    header: &Header,
    windows: impl Iterator<Item = &'a Window>,
    planes: &mut [Plane],
) -> Result<()> {
    let wanted: Vec<Wanted> =
        windows.zip(planes.iter_mut()).map(|(window, plane)| plane.reserve(window)).collect();
    match &header.coding {
        Coding::One { tables, restart_interval, data } => {
            decode_one(&header.frame, tables, *restart_interval, data, &wanted, planes)
                .ok_or_else(|| header.damage())
        }
        Coding::Several { segments, first } => {
            scans::decode(header, (**segments).clone(), first, &wanted, planes)
        }
    }
}

/// `None` if the data is damaged. Anything may lie between the last unit and the next marker, as in libjpeg.
fn decode_one(
    frame: &Frame,
    tables: &[Tables],
    restart_interval: usize,
    data: &[u8],
    wanted: &[Wanted],
    planes: &mut [Plane],
) -> Option<()> {
    let [units_across, units_down] = frame.units();
    let mut bits = Bits::new(data);
    let mut previous = [0_i16; 4];
    let mut block = [0_i16; 64];
    let mut blocks = Vec::new();
    for unit_row in 0..units_down {
        blocks.clear();
        for (index, component) in frame.components.iter().enumerate() {
            for down in 0..component.down {
                let row = unit_row * component.down + down;
                blocks.extend((0..component.across).map(|across| {
                    let own = (index, component, &tables[index]);
                    Block::new(&wanted[index], planes[index].stride, own, row, across)
                }));
            }
        }
        for unit_column in 0..units_across {
            let unit = unit_row * units_across + unit_column;
            if bits.restarts(unit, restart_interval)? {
                previous = [0; 4];
            }
            for next in &mut blocks {
                let (plane, previous) = (&mut planes[next.index], &mut previous[next.index]);
                if next.column < next.columns {
                    let pixels = &mut plane.pixels[next.start + next.column * next.edge..];
                    (next.read)(&mut bits, next.tables, previous, &mut block, pixels, plane.stride)?;
                } else {
                    read_block(&mut bits, next.tables, previous, &mut block)?;
                }
                next.column = next.column.wrapping_add(next.step);
            }
        }
        // A few bytes may state many rows.
        bits.end()?;
    }
    bits.marker().map(|_| ())
}

/// A block in each unit of a row of units.
struct Block<'a> {
    index: usize,
    tables: &'a Tables,
    read: Read,
    /// Number of wanted columns of blocks; 0 if the row of blocks is not wanted.
    columns: usize,
    /// Column of blocks in the current unit, counted from the first wanted one; wraps before it.
    column: usize,
    /// Number of columns of blocks from one unit to the next.
    step: usize,
    /// Place in the plane of the first wanted pixel.
    start: usize,
    edge: usize,
}

type Read = fn(&mut Bits, &Tables, &mut i16, &mut [i16; 64], &mut [i8], usize) -> Option<()>;

impl<'a> Block<'a> {
    fn new(
        wanted: &Wanted,
        stride: usize,
        (index, component, tables): (usize, &Component, &'a Tables),
        row: usize,
        across: usize,
    ) -> Self {
        let row = row.wrapping_sub(wanted.rows.start);
        let is_wanted = row < wanted.rows.len();
        Self {
            index,
            tables,
            read: match wanted.edge {
                8 => read_pixels::<8>,
                4 => read_pixels::<4>,
                2 => read_pixels::<2>,
                _ => read_pixels::<1>,
            },
            columns: if is_wanted { wanted.columns.len() } else { 0 },
            column: across.wrapping_sub(wanted.columns.start),
            step: component.across,
            start: if is_wanted { row * wanted.edge * stride } else { 0 },
            edge: wanted.edge,
        }
    }
}

/// Reads one block without its pixels; `block` stays as it is.
#[inline(never)]
fn read_block(bits: &mut Bits, tables: &Tables, previous: &mut i16, block: &mut [i16; 64]) -> Option<usize> {
    read_coefficients(0, bits, tables, previous, block)
}

/// Reads one block, and writes its pixels, minus 128, to the first columns of the first rows: `EDGE` of each. `block` is zero before
/// and after.
#[inline(never)]
fn read_pixels<const EDGE: usize>(
    bits: &mut Bits,
    tables: &Tables,
    previous: &mut i16,
    block: &mut [i16; 64],
    pixels: &mut [i8],
    stride: usize,
) -> Option<()> {
    // Number of coefficients that contain all that a block of this edge needs.
    let needed = [1, 5, 25, 64][EDGE.ilog2() as usize];
    let last = read_coefficients(needed, bits, tables, previous, block)?;
    write_pixels(EDGE, block, last, pixels, stride);
    *block = [0; 64];
    Some(())
}

/// Writes the pixels of a block, minus 128, to the first `edge` columns of as many rows. `last` is as for [`inverse`].
#[inline(always)]
pub(super) fn write_pixels(edge: usize, block: &[i16; 64], last: usize, pixels: &mut [i8], stride: usize) {
    match edge {
        8 => inverse(block, last, pixels, stride),
        4 => inverse_4(block, pixels, stride),
        2 => inverse_2(block, pixels, stride),
        _ => pixels[0] = inverse_1(block),
    }
}

/// Reads the coefficients of one block, and returns an index, in the order of the scan, after which all are zero. Keeps at least
/// the first `needed` coefficients; `previous` is the component's last first coefficient.
#[inline(always)]
fn read_coefficients(
    needed: usize,
    bits: &mut Bits,
    tables: &Tables,
    previous: &mut i16,
    block: &mut [i16; 64],
) -> Option<usize> {
    // A local copy stays in registers while the block is read.
    let mut local = *bits;
    let last = coefficients(needed, &mut local, tables, previous, block);
    *bits = local;
    last
}

#[inline(always)]
fn coefficients(
    needed: usize,
    bits: &mut Bits,
    tables: &Tables,
    previous: &mut i16,
    block: &mut [i16; 64],
) -> Option<usize> {
    let Tables { steps, dc, ac: codes } = tables;
    bits.refill();
    let entry = dc.entry(bits)?;
    let difference = bits.number(entry);
    *previous = previous.wrapping_add(difference);
    if needed > 0 {
        block[0] = previous.wrapping_mul(steps[0]);
    }
    let mut put = |place: usize, number: i16| {
        // The mask changes nothing, and tells the compiler that the place is inside the block.
        let place = place & 63;
        block[usize::from(POSITIONS[place] & 63)] = number.wrapping_mul(steps[place]);
    };
    let mut place = 1;
    // Numbers at low frequencies are large: few steps would contain one.
    while needed == 5 && place < needed {
        bits.refill();
        let Some((zeros, number)) = one_code(bits, &codes.one)? else { return Some(place - 1) };
        place += zeros;
        put(place.min(63), number);
        place += 1;
    }
    while place < needed {
        bits.fill();
        // The codes of four lookups fit into the filled window.
        for _ in 0..4 {
            let step = codes.step(bits);
            let end = place + step.places();
            // Near the end of the block, the codes may belong to the next one.
            if end >= 64 && !is_end(end) {
                bits.refill();
                let Some((zeros, number)) = one_code(bits, &codes.one)? else { return Some(place - 1) };
                // As in libjpeg, the last place stands for those beyond the block.
                place += zeros;
                put(place.min(63), number);
                place += 1;
                break;
            }
            bits.skip(step.bits());
            let first = place + step.zeros();
            let [number, next] = step.numbers();
            put(first, number);
            put(first + step.distance(), next);
            if end >= 64 {
                return Some(end - END - 1);
            }
            place = end;
            if place >= needed {
                break;
            }
        }
    }
    while needed < 64 && place < 64 {
        bits.fill();
        for _ in 0..4 {
            let skip = codes.skip(bits);
            let end = place + skip.places();
            if end >= 64 {
                if is_end(end) {
                    bits.skip(skip.bits());
                    return Some(end - END - 1);
                }
                bits.refill();
                let Some((zeros, _)) = one_code(bits, &codes.one)? else { return Some(place - 1) };
                place += zeros + 1;
                break;
            }
            bits.skip(skip.bits());
            place = end;
        }
    }
    Some(63)
}

/// True if a step or skip to `end` ends the block within its 64 places.
#[inline(always)]
fn is_end(end: usize) -> bool {
    (END..END + 64).contains(&end)
}

/// Reads one code with its number: count of zeros, and the number after them, where 16 zeros count as 15 zeros and the number 0.
/// `Some(None)` at the end of the block; `None` if the data is damaged.
#[inline(always)]
fn one_code(bits: &mut Bits, codes: &Table) -> Option<Option<(usize, i16)>> {
    let entry = codes.entry(bits)?;
    let number = bits.number(entry);
    match (entry.size(), entry.zeros()) {
        (0, ..15) => Some(None),
        (_, zeros) => Some(Some((zeros, number))),
    }
}
