//! Several scans: progressive JPEGs, whose scans refine the coefficients of all blocks, and JPEGs with a scan for each component.

use penstock_guest::prelude::*;

use super::header::{BAD_CODES, Component, Frame, Header, Segments};
use super::huffman::{Bits, Table};
use super::idct::POSITIONS;
use super::scan::{Plane, Wanted, write_pixels};
use super::smooth::{ESTIMATED, smooth};

/// Coefficients of a component, and what is known of them.
struct Coefficients {
    /// Number of blocks from one row to the next: those of whole units.
    stride: usize,
    /// Number of rows of blocks in a unit of several components.
    down: usize,
    /// Number of blocks across and down that contain pixels of the image.
    size: [usize; 2],
    /// Not multiplied by their quantisation steps, in the order of the scan.
    blocks: Vec<[i16; 64]>,
    /// Number of low bits of each coefficient that are still missing; `None` before its first scan.
    missing: [Option<u32>; 64],
    /// Quantisation steps, as they are at the component's first scan.
    steps: Option<[i16; 64]>,
}

impl Coefficients {
    fn new(frame: &Frame, component: &Component) -> Self {
        let blocks = |pixels: usize, most: usize, own: usize| (pixels * own).div_ceil(8 * most);
        let [stride, rows] = stored_blocks(frame, component);
        Self {
            stride,
            down: component.down,
            size: [
                blocks(frame.width, frame.most_across(), component.across),
                blocks(frame.height, frame.most_down(), component.down),
            ],
            blocks: vec![[0; 64]; stride * rows],
            missing: [None; 64],
            steps: None,
        }
    }

    /// True if the first coefficients are known, at least in part, and estimates of others can be divided by their steps.
    fn has_means(&self) -> bool {
        self.missing[0].is_some()
            && self.steps.is_some_and(|steps| steps[..ESTIMATED].iter().all(|&step| step != 0))
    }

    /// True if all coefficients are known that could be estimated.
    fn is_complete(&self) -> bool {
        self.missing[1..ESTIMATED].iter().all(|&missing| missing == Some(0))
    }

    /// Means of the blocks around a block, rows first; blocks at the edges stand for those beyond.
    fn means(&self, row: usize, column: usize) -> [[i16; 5]; 5] {
        let columns: [usize; 5] =
            std::array::from_fn(|at| (column + at).saturating_sub(2).min(self.size[0] - 1));
        self.rows_around(row).map(|row| columns.map(|column| self.blocks[row * self.stride + column][0]))
    }

    /// Row of blocks with two before and two after it. As in libjpeg, rows that only complete a unit count, except in the last unit,
    /// and in that unit rows are counted as if all units had as many.
    fn rows_around(&self, row: usize) -> [usize; 5] {
        let units = self.size[1].div_ceil(self.down);
        let unit = row / self.down;
        let rows = if unit + 1 < units { self.down } else { (self.size[1] - 1) % self.down + 1 };
        let before = unit * rows + row % self.down;
        let after = units * rows - 1 - before;
        [row - before.min(2), row - before.min(1), row, row + after.min(1), row + after.min(2)]
    }
}

/// Number of blocks of a component that are kept, across and down.
fn stored_blocks(frame: &Frame, component: &Component) -> [usize; 2] {
    let [units_across, units_down] = frame.units();
    [units_across * component.across, units_down * component.down]
}

/// Memory that the coefficients of all components take, in bytes.
pub(super) fn memory(frame: &Frame) -> u64 {
    let of = |component| stored_blocks(frame, component).iter().map(|count| *count as u64).product::<u64>();
    frame.components.iter().map(of).sum::<u64>() * size_of::<[i16; 64]>() as u64
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

/// Decodes all scans into `planes`; the segment `next` starts the first one.
pub(super) fn decode<'a>(
    header: &Header,
    mut segments: Segments<'a>,
    mut next: &'a [u8],
    wanted: &[Wanted],
    planes: &mut [Plane],
) -> Result<()> {
    let frame = &header.frame;
    let mut all: Vec<Coefficients> =
        frame.components.iter().map(|component| Coefficients::new(frame, component)).collect();
    loop {
        let (part, mut members) = start(frame, next, &segments, &mut all)?;
        segments.rest = read(frame, segments.restart_interval, segments.rest, &part, &mut members, &mut all)
            .ok_or_else(|| header.damage())?;
        match segments.next_scan()? {
            Some(segment) => next = segment,
            None => break,
        }
    }
    let smooths = frame.is_progressive && all.iter().all(Coefficients::has_means);
    for ((coefficients, wanted), plane) in all.iter().zip(wanted).zip(planes) {
        transform(coefficients, smooths && !coefficients.is_complete(), wanted, plane);
    }
    Ok(())
}

/// Reads the segment that starts a scan. Every scan adds a bit that was missing, which limits their number.
fn start(
    frame: &Frame,
    segment: &[u8],
    segments: &Segments,
    all: &mut [Coefficients],
) -> Result<(Part, Vec<Member>)> {
    const BAD: &str = "the JPEG is corrupt: the start of a scan is damaged";
    let (&count, rest) = segment.split_first().context(BAD)?;
    let (choices, &[first, last, bits]) = rest.split_last_chunk().context(BAD)?;
    let choices = choices.as_chunks::<2>().0;
    ensure!(count > 0 && usize::from(count) == choices.len(), "{BAD}");
    let part = match frame.is_progressive {
        // As in libjpeg, the range of coefficients in the segment is ignored.
        false => Part { first: 0, last: 63, refines: false, missing: 0 },
        true => {
            Part { first: first.into(), last: last.into(), refines: bits >= 16, missing: (bits & 15).into() }
        }
    };
    let is_legal = match (part.first, part.last) {
        (0, 0) => true,
        (0, 63) => !frame.is_progressive,
        (1.., ..=63) => part.first <= part.last && count == 1,
        _ => false,
    };
    let known = part.refines.then_some(part.missing + 1);
    ensure!(
        is_legal && part.missing <= 13 && (!part.refines || u32::from(bits >> 4) == part.missing + 1),
        "{BAD}"
    );
    let mut members: Vec<Member> = Vec::new();
    for &[id, tables] in choices {
        // Some files give several components the same id.
        let index = frame
            .components
            .iter()
            .enumerate()
            .position(|(index, own)| own.id == id && members.iter().all(|member| member.index != index))
            .context(BAD)?;
        let coefficients = &mut all[index];
        for missing in &mut coefficients.missing[part.first..=part.last] {
            ensure!(*missing == known, "the JPEG is corrupt: its scans are not in order");
            *missing = Some(part.missing);
        }
        if coefficients.steps.is_none() {
            coefficients.steps = Some(segments.steps(&frame.components[index])?);
        }
        let dc = match part.first == 0 && !part.refines {
            true => Some(Table::for_differences(segments.code(0, tables >> 4)?).context(BAD_CODES)?),
            false => None,
        };
        let ac = match part.last {
            0 => None,
            _ => Some(Table::new(segments.code(1, tables & 15)?).context(BAD_CODES)?),
        };
        members.push(Member { index, dc, ac, previous: 0 });
    }
    Ok((part, members))
}

/// Reads the data of a scan, and returns the data that follows. `None` if it is damaged.
fn read<'a>(
    frame: &Frame,
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
    let [units_across, units_down] = if is_single { all[members[0].index].size } else { frame.units() };
    for unit in 0..units_across * units_down {
        if bits.restarts(unit, restart_interval)? {
            run = 0;
            members.iter_mut().for_each(|member| member.previous = 0);
        }
        let (unit_row, unit_column) = (unit / units_across, unit % units_across);
        if unit_column == 0 {
            bits.end()?;
        }
        for member in &mut *members {
            let component = &frame.components[member.index];
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
            // Only progressive files end several blocks at once.
            (_, 0) if part.first == 0 => return Some(()),
            (size, 0) => {
                *run = (1 << size) - 1 + bits.take(size as u32);
                return Some(());
            }
            (zeros, _) => {
                // As in libjpeg, the last place stands for those beyond the block.
                place += zeros;
                block[place.min(63)] = number << part.missing;
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
            block[place.min(63)] = number * bit;
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
        *coefficient = coefficient.wrapping_add(bit * coefficient.signum());
    }
}

/// Writes the pixels of the wanted blocks.
fn transform(coefficients: &Coefficients, smooths: bool, wanted: &Wanted, plane: &mut Plane) {
    let (edge, steps) = (wanted.edge, coefficients.steps.unwrap_or([0; 64]));
    for (down, row) in wanted.rows.clone().enumerate() {
        for (across, column) in wanted.columns.clone().enumerate() {
            let numbers = &coefficients.blocks[row * coefficients.stride + column];
            let smoothed = smooths.then(|| {
                let mut numbers = *numbers;
                let means = coefficients.means(row, column);
                smooth(&mut numbers, &means, &coefficients.missing, &steps);
                numbers
            });
            let numbers = smoothed.as_ref().unwrap_or(numbers);
            let (mut block, mut last) = ([0; 64], 0);
            for (place, &number) in numbers.iter().enumerate() {
                if number != 0 {
                    block[usize::from(POSITIONS[place] & 63)] = number.wrapping_mul(steps[place]);
                    last = place;
                }
            }
            let start = down * edge * plane.stride + across * edge;
            write_pixels(edge, &block, last, &mut plane.pixels[start..], plane.stride);
        }
    }
}
