//! Several scans: progressive JPEGs, whose scans refine the coefficients of all blocks, and JPEGs with a scan for each component.

use super::header::{Component, Header, Segments};
use super::huffman::{Bits, Table};
use super::idct::POSITIONS;
use super::scan::{Plane, Wanted, write_pixels};

/// Coefficients of a component, and what is known of them.
struct Coefficients {
    /// Number of blocks from one row to the next: those of whole units.
    stride: usize,
    /// Number of blocks across and down that contain pixels of the image.
    size: [usize; 2],
    /// Not multiplied by their quantisation steps, in the order of the scan.
    blocks: Vec<[i16; 64]>,
    /// Number of low bits of each coefficient that are still missing; `None` before its first scan.
    missing: [Option<u32>; 64],
}

impl Coefficients {
    fn new(header: &Header, component: &Component) -> Self {
        let [units_across, units_down] = header.units();
        let stride = units_across * component.across;
        let blocks = |pixels: usize, most: usize, own: usize| pixels.div_ceil(most / own).div_ceil(8);
        Self {
            stride,
            size: [
                blocks(header.width, header.most_across(), component.across),
                blocks(header.height, header.most_down(), component.down),
            ],
            blocks: vec![[0; 64]; stride * units_down * component.down],
            missing: [None; 64],
        }
    }
}

/// Coefficients of every block that a scan contains.
struct Part {
    /// First and last coefficient, in the order of the scan.
    first: usize,
    last: usize,
    /// True if the scan adds one bit to numbers that are known up to this bit.
    refines: bool,
    /// Number of low bits that the scan leaves to later ones.
    missing: u32,
}

/// Place of a component in a scan.
struct Member {
    index: usize,
    /// Codes that the scan needs.
    dc: Option<Table>,
    ac: Option<Table>,
    /// The last first coefficient.
    previous: i16,
}

/// Decodes all scans into `planes`; the segment `next` starts the first one. `None` as for [`super::scan::decode`], and if a
/// coefficient is incomplete: libjpeg then smooths the blocks.
pub(super) fn decode<'a>(
    header: &Header,
    mut segments: Segments<'a>,
    mut next: &'a [u8],
    wanted: &[Wanted],
    planes: &mut [Plane],
) -> Option<()> {
    let mut all: Vec<Coefficients> =
        header.components.iter().map(|component| Coefficients::new(header, component)).collect();
    loop {
        let (part, mut members) = start(next, &segments, &mut all)?;
        segments.rest =
            read(header, segments.restart_interval, segments.rest, &part, &mut members, &mut all)?;
        match segments.next_scan()? {
            Some(segment) => next = segment,
            None => break,
        }
    }
    for (((component, coefficients), wanted), plane) in
        header.components.iter().zip(&all).zip(wanted).zip(planes)
    {
        if coefficients.missing.iter().any(|&missing| missing != Some(0)) {
            return None;
        }
        transform(component, coefficients, wanted, plane);
    }
    Some(())
}

/// Reads the segment that starts a scan. Every scan adds a bit that was missing, which limits their number.
fn start(segment: &[u8], segments: &Segments, all: &mut [Coefficients]) -> Option<(Part, Vec<Member>)> {
    let frame = segments.frame.as_ref()?;
    let (&count, rest) = segment.split_first()?;
    let (choices, &[first, last, bits]) = rest.split_last_chunk()?;
    let choices = choices.as_chunks::<2>().0;
    let (before, missing) = (u32::from(bits >> 4), u32::from(bits & 15));
    let part = Part { first: first.into(), last: last.into(), refines: before != 0, missing };
    let supported = match (frame.is_progressive, part.first, part.last) {
        (false, 0, 63) => bits == 0,
        (true, 0, 0) => true,
        (true, 1.., ..=63) => part.first <= part.last && count == 1,
        _ => false,
    };
    if !supported
        || count == 0
        || usize::from(count) != choices.len()
        || (part.refines && before != missing + 1)
    {
        return None;
    }
    let known = part.refines.then_some(before);
    let mut members: Vec<Member> = Vec::new();
    for &[id, tables] in choices {
        let index = frame.components.iter().position(|component| component.0 == id)?;
        // Components come in the order of the frame, each once.
        if members.last().is_some_and(|member| member.index >= index) {
            return None;
        }
        for coefficient in &mut all[index].missing[part.first..=part.last] {
            if *coefficient != known {
                return None;
            }
            *coefficient = Some(missing);
        }
        let dc = match part.first == 0 && !part.refines {
            true => Some(Table::for_differences(segments.code(0, tables >> 4)?)?),
            false => None,
        };
        let ac = if part.last == 0 { None } else { Some(Table::new(segments.code(1, tables & 15)?)?) };
        members.push(Member { index, dc, ac, previous: 0 });
    }
    Some((part, members))
}

/// Reads the data of a scan, and returns the marker that follows it with the rest of the data.
fn read<'a>(
    header: &Header,
    restart_interval: usize,
    data: &'a [u8],
    part: &Part,
    members: &mut [Member],
    all: &mut [Coefficients],
) -> Option<&'a [u8]> {
    let mut bits = Bits::new(data);
    // Number of blocks that follow without new coefficients.
    let mut run = 0;
    // A unit of several components has the blocks of the header; one of a single component is a block.
    let is_single = members.len() == 1;
    let [units_across, units_down] = if is_single { all[members[0].index].size } else { header.units() };
    for unit in 0..units_across * units_down {
        if bits.restarts(unit, restart_interval)? {
            run = 0;
            members.iter_mut().for_each(|member| member.previous = 0);
        }
        let (unit_row, unit_column) = (unit / units_across, unit % units_across);
        for member in &mut *members {
            let component = &header.components[member.index];
            let (across, down) = if is_single { (1, 1) } else { (component.across, component.down) };
            let Coefficients { stride, blocks, .. } = &mut all[member.index];
            for row in unit_row * down..(unit_row + 1) * down {
                let start = row * *stride + unit_column * across;
                for block in &mut blocks[start..start + across] {
                    read_block(&mut bits, part, member, &mut run, block)?;
                }
            }
        }
    }
    bits.end()
}

/// Reads what a scan contains of one block.
fn read_block(
    bits: &mut Bits,
    part: &Part,
    member: &mut Member,
    run: &mut u32,
    block: &mut [i16; 64],
) -> Option<()> {
    if part.first == 0 {
        bits.refill();
        match &member.dc {
            Some(codes) => {
                let entry = codes.entry(bits)?;
                member.previous = member.previous.wrapping_add(bits.number(entry));
                block[0] = member.previous << part.missing;
            }
            None => block[0] |= (bits.take(1) as i16) << part.missing,
        }
    }
    match &member.ac {
        None => Some(()),
        Some(codes) if part.refines => refine(bits, part, codes, run, block),
        Some(codes) => read_first(bits, part, codes, run, block),
    }
}

/// Reads coefficients of which nothing is known.
fn read_first(
    bits: &mut Bits,
    part: &Part,
    codes: &Table,
    run: &mut u32,
    block: &mut [i16; 64],
) -> Option<()> {
    if *run > 0 {
        *run -= 1;
        return Some(());
    }
    let mut place = part.first.max(1);
    while place <= part.last {
        bits.refill();
        let entry = codes.entry(bits)?;
        let number = bits.number(entry);
        match (entry.zeros(), entry.size()) {
            (15, 0) => place += 16,
            (size, 0) => {
                *run = (1 << size) - 1 + bits.take(size as u32);
                return Some(());
            }
            (zeros, _) => {
                place += zeros;
                if place > part.last {
                    return None;
                }
                block[place] = number << part.missing;
                place += 1;
            }
        }
    }
    Some(())
}

/// Reads one more bit of every coefficient.
fn refine(bits: &mut Bits, part: &Part, codes: &Table, run: &mut u32, block: &mut [i16; 64]) -> Option<()> {
    let bit = 1_i16 << part.missing;
    let mut place = part.first;
    while *run == 0 && place <= part.last {
        bits.refill();
        let entry = codes.entry(bits)?;
        let number = bits.number(entry);
        let mut zeros = match (entry.zeros(), entry.size()) {
            (size @ ..15, 0) => {
                *run = (1 << size) + bits.take(size as u32);
                break;
            }
            (zeros, 0 | 1) => zeros,
            _ => return None,
        };
        // Known coefficients among the zeros have their next bits here.
        while place <= part.last {
            if block[place] != 0 {
                refine_one(bits, bit, &mut block[place]);
            } else if zeros == 0 {
                break;
            } else {
                zeros -= 1;
            }
            place += 1;
        }
        if number != 0 {
            if place > part.last {
                return None;
            }
            block[place] = number * bit;
        }
        place += 1;
    }
    if *run > 0 {
        for coefficient in block.get_mut(place..=part.last)? {
            if *coefficient != 0 {
                refine_one(bits, bit, coefficient);
            }
        }
        *run -= 1;
    }
    Some(())
}

#[inline(always)]
fn refine_one(bits: &mut Bits, bit: i16, coefficient: &mut i16) {
    bits.refill();
    if bits.take(1) == 1 && *coefficient & bit == 0 {
        *coefficient += bit * coefficient.signum();
    }
}

/// Writes the pixels of the wanted blocks.
fn transform(component: &Component, coefficients: &Coefficients, wanted: &Wanted, plane: &mut Plane) {
    let edge = wanted.edge;
    for (down, row) in wanted.rows.clone().enumerate() {
        for (across, column) in wanted.columns.clone().enumerate() {
            let numbers = &coefficients.blocks[row * coefficients.stride + column];
            let (mut block, mut last) = ([0; 64], 0);
            for (place, &number) in numbers.iter().enumerate() {
                if number != 0 {
                    block[usize::from(POSITIONS[place] & 63)] = number.wrapping_mul(component.steps[place]);
                    last = place;
                }
            }
            let start = down * edge * plane.stride + across * edge;
            write_pixels(edge, &block, last, &mut plane.pixels[start..], plane.stride);
        }
    }
}
