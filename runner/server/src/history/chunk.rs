//! Rows as bytes: columns of differences, as short as they are small, compressed.

use penstock_types::series::{QueueRow, Row, Spread, TaskRow};
use penstock_types::stats::Histogram;

use super::compress::{compressed, decompressed};

/// The form of what follows.
const FORM: u64 = 2;
/// Most bytes that a chunk is when it is not compressed: 256 rows of the longest pipeline there can be.
const MAX_BYTES: usize = 256 << 20;
/// Most rows of a chunk.
pub(crate) const MAX_ROWS: u64 = 256;
/// Most stages, with room to spare.
const MAX_NODES: u64 = 1024;

/// Why bytes are no chunk.
#[derive(Debug, thiserror::Error)]
#[error("a stored chunk cannot be read: {0}")]
pub(crate) struct Unreadable(&'static str);

/// Rows of one run and level, in order.
pub(crate) fn pack(rows: &[Row]) -> Vec<u8> {
    let Some(first) = rows.first() else { return Vec::new() };
    let (stages, queues) = (first.stages.len(), first.queues.len());
    let mut out = Writer(Vec::with_capacity(rows.len() * (stages + queues) * 8));
    for number in [FORM, rows.len() as u64, stages as u64, queues as u64, first.spreads.len() as u64] {
        out.number(number);
    }
    out.column(rows.iter().map(|row| row.slot));
    out.column(rows.iter().map(|row| row.t0));
    out.column(rows.iter().map(|row| row.t1));
    for stage in 0..stages {
        let numbers: Vec<_> = rows.iter().map(|row| row.stages[stage].numbers()).collect();
        (0..TaskRow::WIDTH).for_each(|column| out.column(numbers.iter().map(|numbers| numbers[column])));
    }
    for queue in 0..queues {
        let numbers: Vec<_> = rows.iter().map(|row| row.queues[queue].numbers()).collect();
        (0..QueueRow::WIDTH).for_each(|column| out.column(numbers.iter().map(|numbers| numbers[column])));
    }
    for spread in 0..first.spreads.len() {
        let ends = |row: &Row| row.spreads.get(spread).copied().unwrap_or(Spread::NONE).ends();
        rows.iter().for_each(|row| out.0.extend(ends(row).0.to_le_bytes()));
        rows.iter().for_each(|row| out.0.extend(ends(row).1.to_le_bytes()));
    }
    compressed(&out.0)
}

/// The rows again.
pub(crate) fn unpack(packed: &[u8]) -> Result<Vec<Row>, Unreadable> {
    if packed.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = decompressed(packed, MAX_BYTES).map_err(Unreadable)?;
    let mut input = Reader(&bytes);
    let [form, count, stages, queues, spreads] = input.numbers()?;
    let wanted = Row::spread_count(stages.min(MAX_NODES) as usize, queues.min(MAX_NODES) as usize) as u64;
    if form != FORM || count > MAX_ROWS || stages > MAX_NODES || queues > MAX_NODES {
        return Err(Unreadable("it is of another form"));
    }
    if spreads != 0 && spreads != wanted {
        return Err(Unreadable("its spreads are not those of its stages and queues"));
    }
    let (count, stages, queues) = (count as usize, stages as usize, queues as usize);
    let mut rows = vec![Row::empty(0, 0, stages, queues); count];
    input.column(&mut rows, |row, value| row.slot = value)?;
    input.column(&mut rows, |row, value| row.t0 = value)?;
    input.column(&mut rows, |row, value| row.t1 = value)?;
    let mut numbers = vec![[0; TaskRow::WIDTH]; count];
    for stage in 0..stages {
        for column in 0..TaskRow::WIDTH {
            input.column(&mut numbers, |row, value| row[column] = value)?;
        }
        rows.iter_mut()
            .zip(&numbers)
            .for_each(|(row, numbers)| row.stages[stage] = TaskRow::of_numbers(*numbers));
    }
    let mut numbers = vec![[0; QueueRow::WIDTH]; count];
    for queue in 0..queues {
        for column in 0..QueueRow::WIDTH {
            input.column(&mut numbers, |row, value| row[column] = value)?;
        }
        rows.iter_mut()
            .zip(&numbers)
            .for_each(|(row, numbers)| row.queues[queue] = QueueRow::of_numbers(*numbers));
    }
    for _ in 0..spreads {
        let least = input.floats(count)?;
        let greatest = input.floats(count)?;
        for (row, (least, greatest)) in rows.iter_mut().zip(least.zip(greatest)) {
            row.spreads.push(Spread::of_ends(least, greatest));
        }
    }
    Ok(rows)
}

/// A histogram for each stage.
pub(crate) fn pack_times(times: &[Histogram]) -> Vec<u8> {
    let mut out = Writer(Vec::new());
    out.number(FORM);
    out.number(times.len() as u64);
    for histogram in times {
        out.number(histogram.longest());
        out.number(histogram.buckets().count() as u64);
        let mut before = 0;
        for (bucket, count) in histogram.buckets() {
            out.number((bucket - before) as u64);
            out.number(count);
            before = bucket;
        }
    }
    compressed(&out.0)
}

/// The histograms again.
pub(crate) fn unpack_times(packed: &[u8]) -> Result<Vec<Histogram>, Unreadable> {
    let bytes = decompressed(packed, MAX_BYTES).map_err(Unreadable)?;
    let mut input = Reader(&bytes);
    let [form, stages] = input.numbers()?;
    if form != FORM || stages > MAX_NODES {
        return Err(Unreadable("it is of another form"));
    }
    let mut times = Vec::with_capacity(stages as usize);
    for _ in 0..stages {
        let [longest, count] = input.numbers()?;
        let mut buckets = Vec::new();
        let mut bucket = 0_u64;
        for _ in 0..count {
            let [further, counted] = input.numbers()?;
            bucket = bucket.saturating_add(further);
            buckets.push((usize::try_from(bucket).unwrap_or(usize::MAX), counted));
        }
        times.push(Histogram::of_buckets(buckets, longest).ok_or(Unreadable("a histogram is none"))?);
    }
    Ok(times)
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Each value as its difference to the one before, small ones short whichever way they go.
    fn column(&mut self, values: impl Iterator<Item = u64>) {
        let mut before = 0_u64;
        for value in values {
            let difference = value.wrapping_sub(before) as i64;
            self.number(((difference << 1) ^ (difference >> 63)) as u64);
            before = value;
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Result<u64, Unreadable> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Unreadable("it ends too early"))?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Unreadable("a number is too long"))
    }

    fn numbers<const N: usize>(&mut self) -> Result<[u64; N], Unreadable> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.number()?;
        }
        Ok(numbers)
    }

    fn column<R>(&mut self, rows: &mut [R], set: impl Fn(&mut R, u64)) -> Result<(), Unreadable> {
        let mut before = 0_u64;
        for row in rows {
            let number = self.number()?;
            let difference = (number >> 1) ^ (number & 1).wrapping_neg();
            before = before.wrapping_add(difference);
            set(row, before);
        }
        Ok(())
    }

    fn floats(&mut self, count: usize) -> Result<impl Iterator<Item = f32> + use<>, Unreadable> {
        let (bytes, rest) = self.0.split_at_checked(count * 4).ok_or(Unreadable("it ends too early"))?;
        self.0 = rest;
        let floats: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("chunks of four bytes")))
            .collect();
        Ok(floats.into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(slot: u64, value: u64) -> Row {
        let mut row = Row::empty(slot, slot * 7, 2, 3);
        row.t1 = row.t0 + 6;
        row.stages[1] =
            TaskRow::of_numbers(std::array::from_fn(|column| value.wrapping_mul(column as u64 + 1)));
        row.queues[2] = QueueRow::of_numbers(std::array::from_fn(|column| value.wrapping_add(column as u64)));
        row
    }

    #[test]
    fn rows_come_back_bit_by_bit_whatever_their_numbers_are() {
        let values = [0, 1, u64::MAX, 250_000_123, 1 << 63, u64::MAX - 1, 42];
        let rows: Vec<Row> = values.iter().zip(0..).map(|(value, slot)| row(slot, *value)).collect();
        assert_eq!(unpack(&pack(&rows)).unwrap(), rows);
        let mut wide: Vec<Row> = rows.into_iter().map(|row| row.widened(3)).collect();
        wide[1].spreads[0] = Spread::of(Some(0.1));
        let again = unpack(&pack(&wide)).unwrap();
        for (again, wide) in again.iter().zip(&wide) {
            assert_eq!((&again.stages, &again.queues, again.slot), (&wide.stages, &wide.queues, 3));
            let ends = |row: &Row| {
                row.spreads.iter().map(|spread| (spread.least(), spread.greatest())).collect::<Vec<_>>()
            };
            assert_eq!(ends(again), ends(wide));
        }
        assert_eq!(unpack(&pack(&[])).unwrap(), []);
    }

    #[test]
    fn histograms_come_back() {
        let mut histogram = Histogram::default();
        [3, 1_000_000, 1_000_001, u64::MAX].into_iter().for_each(|nanos| histogram.record(nanos));
        let times = [histogram, Histogram::default()];
        assert_eq!(unpack_times(&pack_times(&times)).unwrap(), times);
    }

    #[test]
    fn damaged_chunks_are_told_and_take_no_memory() {
        let rows = [row(0, 1), row(1, 2)];
        let packed = pack(&rows);
        for cut in 0..packed.len() {
            assert!(unpack(&packed[..cut]).is_err() || cut == 0);
        }
        for place in 0..packed.len() {
            let mut damaged = packed.clone();
            damaged[place] ^= 0x55;
            assert!(unpack_times(&damaged).map_or(0, |times| times.len()) <= MAX_NODES as usize);
        }
        for place in 0..packed.len() * 8 {
            let mut damaged = packed.clone();
            damaged[place / 8] ^= 1 << (place % 8);
            // One bit of the head means nothing.
            assert!(unpack(&damaged).map_or(true, |found| found == rows), "bit {place} is not noticed");
        }
        assert!(unpack(b"not a chunk").is_err());
    }
}
