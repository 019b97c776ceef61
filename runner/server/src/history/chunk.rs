//! Stored form of chunks of rows and of histograms: encoded by `postcard`, compressed, and validated when read.

use std::mem::replace;

use penstock_types::series::{Metric, Row, RowTimes, Spread};
use penstock_types::stats::{BookRow, Histogram, QueueRow, TaskRow};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::HistoryError;

/// Compression level of zstd; higher levels cost more time and save almost no space.
const COMPRESSION: i32 = 3;
/// Maximum size of a chunk before compression, in bytes, which suffices for 256 rows of the longest possible pipeline.
const MAX_BYTES: usize = 256 << 20;
pub(crate) const MAX_ROWS: u64 = 256;
/// First byte of stored histograms, and of rows stored by schema 2 and earlier.
const SCHEMA_2: u8 = 2;
/// First byte of [`Columns`] stored by schema 3.
const SCHEMA_3: u8 = 3;
/// First byte of [`Columns`] stored by schemas 4 to 6.
const SCHEMA_6: u8 = 4;
/// First byte of [`Columns`] that are followed by [`Times`].
const COLUMNS: u8 = 5;
/// First byte of stored ledgers.
const BOOKS: u8 = 1;
/// Number of sums of a stage up to schema 3. Schema 4 added the wait for permits, schema 7 the replaced instances.
const OLD_SUMS: usize = TaskRow::WIDTH - 2;
/// Number of metrics of a stage up to schema 3. Schema 4 added the last metric, the wait for permits.
const OLD_METRICS: usize = Metric::STAGE.len() - 1;
/// Number of sums of a stage in schemas 4 to 6.
const SUMS_OF_SCHEMA_6: usize = TaskRow::WIDTH - 1;
/// Number of columns before the columns of the stages.
const HEAD: usize = 3;
/// Maximum number of stages, and of queues; more than any pipeline has.
const MAX_NODES: u64 = 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum UnreadableChunk {
    #[error("the content is larger than {most} bytes")]
    TooLarge { most: usize },
    #[error("the content cannot be decompressed")]
    Compression(#[source] std::io::Error),
    #[error("the content has an unknown form")]
    Form,
    #[error("{0}")]
    Content(#[from] postcard::Error),
    #[error("a histogram has counts outside its range")]
    Histogram,
}

impl From<UnreadableChunk> for HistoryError {
    fn from(error: UnreadableChunk) -> Self {
        Self::Damaged(format!("a stored chunk cannot be read: {error}"))
    }
}

pub(crate) fn compress(bytes: &[u8]) -> Vec<u8> {
    let compress = || {
        let mut compressor = zstd::bulk::Compressor::new(COMPRESSION)?;
        // Without a checksum, a flipped bit on the disk would change a figure unnoticed.
        compressor.include_checksum(true)?;
        compressor.compress(bytes)
    };
    compress().expect("compressing into memory does not fail")
}

/// Decompresses at most `most` bytes, so that a damaged length cannot take all memory.
pub(crate) fn decompress(packed: &[u8], most: usize) -> Result<Vec<u8>, UnreadableChunk> {
    let size = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten().unwrap_or(0);
    let size =
        usize::try_from(size).ok().filter(|size| *size <= most).ok_or(UnreadableChunk::TooLarge { most })?;
    zstd::bulk::decompress(packed, size).map_err(UnreadableChunk::Compression)
}

/// Stored form of rows, by column. Stored row by row, the data would take 1.8 times as many bytes.
#[derive(Serialize, Deserialize)]
struct Columns {
    stages: usize,
    queues: usize,
    /// Columns of numbers; each value is stored as the difference from the previous row.
    numbers: Vec<Vec<i64>>,
    /// Two columns for each spread: the minimum and the maximum.
    spreads: Vec<[Vec<f32>; 2]>,
}

impl Columns {
    fn of(rows: &[Row]) -> Self {
        let numbers = |row: &Row| -> Vec<u64> {
            let stages = row.stages.iter().flat_map(TaskRow::numbers);
            let queues = row.queues.iter().flat_map(QueueRow::numbers);
            [row.number, row.t0, row.t1].into_iter().chain(stages).chain(queues).collect()
        };
        let numbers: Vec<Vec<u64>> = rows.iter().map(numbers).collect();
        let column = |column: usize| differences(numbers.iter().map(|row| row[column]));
        let ends = |spread: usize| -> (Vec<f32>, Vec<f32>) {
            rows.iter().map(|row| row.spreads[spread].ends()).unzip()
        };
        let first = rows.first();
        Self {
            stages: first.map_or(0, |row| row.stages.len()),
            queues: first.map_or(0, |row| row.queues.len()),
            numbers: (0..numbers.first().map_or(0, Vec::len)).map(column).collect(),
            spreads: (0..first.map_or(0, |row| row.spreads.len()))
                .map(|spread| ends(spread).into())
                .collect(),
        }
    }

    /// Reads columns in the form of schemas 1 and 2: all sizes first, and then the columns without a length in front of each.
    fn of_schema_2(mut input: &[u8]) -> Result<Self, UnreadableChunk> {
        let [count, stages, queues, spreads] = next::<[u64; 4]>(&mut input)?;
        if count > MAX_ROWS || stages.max(queues) > MAX_NODES || spreads > 16 * MAX_NODES {
            return Err(UnreadableChunk::Form);
        }
        let (stages, queues) = (stages as usize, queues as usize);
        let mut numbers = || (0..count).map(|_| next(&mut input)).collect();
        let columns = width(OLD_SUMS, stages, queues);
        let numbers = (0..columns).map(|_| numbers()).collect::<Result<_, _>>()?;
        let mut floats = || (0..count).map(|_| next(&mut input)).collect::<Result<_, _>>();
        let spreads =
            (0..spreads).map(|_| Ok([floats()?, floats()?])).collect::<Result<_, postcard::Error>>()?;
        Ok(Self { stages, queues, numbers, spreads })
    }

    /// Adds the sums and metrics that stages lack in rows of earlier schemas, which have only `sums` sums and `metrics` metrics
    /// for each stage. Up to schema 3, tasks that waited for permits counted as busy, and no metric showed these waits; up to
    /// schema 6, replaced instances were not counted separately.
    fn widened(mut self, sums: usize, metrics: usize) -> Option<Self> {
        let is_whole = self.stages.max(self.queues) <= MAX_NODES as usize
            && (self.numbers.is_empty() || self.numbers.len() == width(sums, self.stages, self.queues))
            && (self.spreads.is_empty() || self.spreads.len() >= self.stages * metrics);
        let rows = is_whole.then(|| self.numbers.first().map_or(0, Vec::len))?;
        // Inserts from the last stage to the first, so that the positions of the remaining stages do not change.
        for stage in (1..=self.stages).rev() {
            for _ in sums..TaskRow::WIDTH {
                if !self.numbers.is_empty() {
                    self.numbers.insert(HEAD + stage * sums, vec![0; rows]);
                }
            }
            for _ in metrics..Metric::STAGE.len() {
                if !self.spreads.is_empty() {
                    self.spreads.insert(stage * metrics, [vec![f32::NAN; rows], vec![f32::NAN; rows]]);
                }
            }
        }
        Some(self)
    }

    fn rows(self) -> Option<Vec<Row>> {
        let Self { stages, queues, numbers, spreads } = self;
        let Some(count) = numbers.first().map(Vec::len) else { return Some(Vec::new()) };
        let is_whole = stages.max(queues) <= MAX_NODES as usize
            && numbers.len() == width(TaskRow::WIDTH, stages, queues)
            && numbers.iter().all(|column| column.len() == count)
            && (spreads.is_empty() || spreads.len() == Row::spread_count(stages, queues))
            && spreads.iter().flatten().all(|ends| ends.len() == count);
        let mut rows = is_whole.then(|| vec![vec![0_u64; numbers.len()]; count])?;
        for (place, column) in numbers.iter().enumerate() {
            let mut value = 0_u64;
            for (row, difference) in rows.iter_mut().zip(column) {
                value = value.wrapping_add_signed(*difference);
                row[place] = value;
            }
        }
        let row = |(place, numbers): (usize, Vec<u64>)| {
            let (of_stages, of_queues) = numbers[HEAD..].split_at(stages * TaskRow::WIDTH);
            let (of_stages, of_queues) = (of_stages.as_chunks().0, of_queues.as_chunks().0);
            let spreads = spreads.iter().map(|[least, most]| Spread::of_ends(least[place], most[place]));
            Row {
                number: numbers[0],
                t0: numbers[1],
                t1: numbers[2],
                stages: of_stages.iter().map(|numbers| TaskRow::of_numbers(*numbers)).collect(),
                queues: of_queues.iter().map(|numbers| QueueRow::of_numbers(*numbers)).collect(),
                books: Vec::new(),
                spreads: spreads.collect(),
                times: None,
            }
        };
        Some(rows.into_iter().enumerate().map(row).collect())
    }
}

/// Difference of each number from the one before.
fn differences(numbers: impl Iterator<Item = u64>) -> Vec<i64> {
    let mut before = 0;
    numbers.map(|number| number.wrapping_sub(replace(&mut before, number)).cast_signed()).collect()
}

/// Packs the ledgers of rows of one run and level, in order; each number is stored as the difference from the previous row.
pub(crate) fn pack_books(rows: &[Row]) -> Vec<u8> {
    let nodes = rows.first().map_or(0, |row| row.books.len());
    let column = |place: usize| {
        differences(rows.iter().map(|row| {
            row.books.get(place / BookRow::WIDTH).map_or(0, |book| book.numbers()[place % BookRow::WIDTH])
        }))
    };
    let columns: Vec<Vec<i64>> = (0..nodes * BookRow::WIDTH).map(column).collect();
    compress(&postcard::to_allocvec(&(BOOKS, columns)).expect("counts are plain data"))
}

/// Reads stored ledgers into the rows that [`unpack`] returned.
pub(crate) fn unpack_books(packed: &[u8], rows: &mut [Row]) -> Result<(), UnreadableChunk> {
    let bytes = decompress(packed, MAX_BYTES)?;
    let (form, columns): (u8, Vec<Vec<i64>>) = postcard::from_bytes(&bytes)?;
    let is_whole = form == BOOKS
        && columns.len() % BookRow::WIDTH == 0
        && columns.len() / BookRow::WIDTH <= MAX_NODES as usize
        && columns.iter().all(|column| column.len() == rows.len());
    if !is_whole {
        return Err(UnreadableChunk::Form);
    }
    let mut before = vec![0_u64; columns.len()];
    for (place, row) in rows.iter_mut().enumerate() {
        for (number, column) in before.iter_mut().zip(&columns) {
            *number = number.wrapping_add_signed(column[place]);
        }
        row.books = before.as_chunks().0.iter().map(|numbers| BookRow::of_numbers(*numbers)).collect();
    }
    Ok(())
}

/// Stored form of the task times and waits of rows, which are pairs of a key and a count. Keys and counts are stored separately,
/// because numbers of the same kind compress better.
#[derive(Serialize, Deserialize)]
struct Times {
    /// Number of pairs of each row.
    lengths: Vec<usize>,
    /// Difference between the key of each pair and the previous key of the same row.
    distances: Vec<u32>,
    counts: Vec<u64>,
}

impl Times {
    fn of(rows: &[Row]) -> Self {
        let mut times = Self { lengths: Vec::new(), distances: Vec::new(), counts: Vec::new() };
        for row in rows {
            let (mut before, length) = (0, times.counts.len());
            for (key, count) in row.times.iter().flat_map(RowTimes::pairs) {
                times.distances.push(key - replace(&mut before, key));
                times.counts.push(count);
            }
            times.lengths.push(times.counts.len() - length);
        }
        times
    }

    /// Adds the times to their rows. Returns `None` if the stored lengths do not match the rows and pairs.
    fn add_to(self, rows: &mut [Row]) -> Option<()> {
        let (mut distances, mut counts) = (self.distances.iter(), self.counts.iter());
        for (row, length) in rows.iter_mut().zip(&self.lengths) {
            let mut key = 0_u32;
            let pairs = distances.by_ref().zip(counts.by_ref()).take(*length).map(|(distance, count)| {
                key = key.checked_add(*distance)?;
                Some((key, *count))
            });
            row.times = Some(RowTimes::of_pairs(pairs.collect::<Option<Vec<_>>>()?));
        }
        (self.lengths.len() == rows.len() && distances.next().is_none() && counts.next().is_none())
            .then_some(())
    }
}

/// Packs rows of one run and level, in order.
pub(crate) fn pack(rows: &[Row]) -> Vec<u8> {
    let stored = (COLUMNS, Columns::of(rows), Times::of(rows));
    compress(&postcard::to_allocvec(&stored).expect("rows are plain data"))
}

/// Unpacks rows without their times.
pub(crate) fn unpack(packed: &[u8]) -> Result<Vec<Row>, UnreadableChunk> {
    Ok(columns(&decompress(packed, MAX_BYTES)?)?.0)
}

/// Unpacks rows with their times; rows of earlier versions have no times.
pub(crate) fn unpack_with_times(packed: &[u8]) -> Result<Vec<Row>, UnreadableChunk> {
    let bytes = decompress(packed, MAX_BYTES)?;
    let (mut rows, rest) = columns(&bytes)?;
    if bytes.first() == Some(&COLUMNS) {
        let times: Times = postcard::from_bytes(rest)?;
        times.add_to(&mut rows).ok_or(UnreadableChunk::Form)?;
    }
    Ok(rows)
}

/// Splits an unpacked chunk into its rows and the remaining bytes.
fn columns(bytes: &[u8]) -> Result<(Vec<Row>, &[u8]), UnreadableChunk> {
    let mut rest = bytes.get(1..).ok_or(UnreadableChunk::Form)?;
    let columns = match bytes[0] {
        COLUMNS => Some(next(&mut rest)?),
        SCHEMA_6 => next::<Columns>(&mut rest)?.widened(SUMS_OF_SCHEMA_6, Metric::STAGE.len()),
        SCHEMA_3 => next::<Columns>(&mut rest)?.widened(OLD_SUMS, OLD_METRICS),
        SCHEMA_2 => Columns::of_schema_2(rest)?.widened(OLD_SUMS, OLD_METRICS),
        _ => None,
    };
    Ok((columns.and_then(Columns::rows).ok_or(UnreadableChunk::Form)?, rest))
}

/// Number of columns of rows with `sums` sums for each of `stages` stages, and with `queues` queues.
fn width(sums: usize, stages: usize, queues: usize) -> usize {
    HEAD + stages * sums + queues * QueueRow::WIDTH
}

fn next<T: DeserializeOwned>(input: &mut &[u8]) -> Result<T, postcard::Error> {
    let (value, rest) = postcard::take_from_bytes(input)?;
    *input = rest;
    Ok(value)
}

/// Stored form of a histogram: the longest duration; and for each non-empty bucket, the distance from the previous one and the
/// count.
type StoredHistogram = (u64, Vec<(usize, u64)>);

pub(crate) fn pack_times(times: &[Histogram]) -> Vec<u8> {
    let stored = |histogram: &Histogram| -> StoredHistogram {
        let mut before = 0;
        let counts =
            histogram.buckets().map(|(bucket, count)| (bucket - replace(&mut before, bucket), count));
        (histogram.longest(), counts.collect())
    };
    let stored: Vec<StoredHistogram> = times.iter().map(stored).collect();
    compress(&postcard::to_allocvec(&(SCHEMA_2, stored)).expect("counts are plain data"))
}

pub(crate) fn unpack_times(packed: &[u8]) -> Result<Vec<Histogram>, UnreadableChunk> {
    let bytes = decompress(packed, MAX_BYTES)?;
    let (form, stored): (u8, Vec<StoredHistogram>) = postcard::from_bytes(&bytes)?;
    if form != SCHEMA_2 {
        return Err(UnreadableChunk::Form);
    }
    let histogram = |(longest, counts): StoredHistogram| {
        let mut bucket = 0_usize;
        let counts = counts.into_iter().map(|(further, count)| {
            bucket = bucket.saturating_add(further);
            (bucket, count)
        });
        Histogram::of_buckets(counts.collect::<Vec<_>>(), longest).ok_or(UnreadableChunk::Histogram)
    };
    stored.into_iter().map(histogram).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u64, value: u64) -> Row {
        let mut row = Row::empty(number, number * 7, 2, 3);
        row.t1 = row.t0 + 6;
        row.stages[1] =
            TaskRow::of_numbers(std::array::from_fn(|column| value.wrapping_mul(column as u64 + 1)));
        row.queues[2] = QueueRow::of_numbers(std::array::from_fn(|column| value.wrapping_add(column as u64)));
        row
    }

    #[test]
    fn rows_are_restored_exactly_for_all_numbers() {
        let values = [0, 1, u64::MAX, 250_000_123, 1 << 63, u64::MAX - 1, 42];
        let rows: Vec<Row> = values.iter().zip(0..).map(|(value, number)| row(number, *value)).collect();
        assert_eq!(unpack(&pack(&rows)).unwrap(), rows);
        let mut wide: Vec<Row> = rows.into_iter().map(|row| row.widened(3)).collect();
        wide[1].spreads[0] = Spread::of(Some(0.1));
        let again = unpack(&pack(&wide)).unwrap();
        for (again, wide) in again.iter().zip(&wide) {
            assert_eq!((&again.stages, &again.queues, again.number), (&wide.stages, &wide.queues, 3));
            let ends = |row: &Row| {
                row.spreads.iter().map(|spread| (spread.least(), spread.greatest())).collect::<Vec<_>>()
            };
            assert_eq!(ends(again), ends(wide));
        }
        assert_eq!(unpack(&pack(&[])).unwrap(), []);
    }

    #[test]
    fn times_of_rows_come_back_where_they_are_asked_for() {
        let mut rows = vec![row(0, 1), row(1, 2), row(2, 3)];
        for (row, pairs) in
            rows.iter_mut().zip([vec![], vec![(0, 1), (511, 7), (513, u64::MAX)], vec![(u32::MAX, 3)]])
        {
            row.times = Some(RowTimes::of_pairs(pairs));
        }
        let packed = pack(&rows);
        assert_eq!(unpack_with_times(&packed).unwrap(), rows);
        assert!(unpack(&packed).unwrap().iter().all(|row| row.times.is_none()));
        let fits = |rows: usize, lengths: &[usize], distances: &[u32]| {
            let times = Times { lengths: lengths.into(), distances: distances.into(), counts: vec![1, 1] };
            times.add_to(&mut vec![Row::default(); rows]).is_some()
        };
        assert!(fits(1, &[2], &[1, 2]) && fits(3, &[1, 0, 1], &[5, 5]));
        assert!(!fits(1, &[1], &[1, 2]), "a pair belongs to no row");
        assert!(!fits(2, &[2], &[1, 2]), "a row has no length");
        assert!(!fits(1, &[2], &[u32::MAX, 1]), "a key is too large");
    }

    /// Checks rows of schema 5 (a run of three stages) against the figures that a server with that schema reported.
    #[test]
    fn rows_of_schema_5_come_back_without_times() {
        for packed in [
            include_bytes!("../../tests/data/form-4-finest.bin").as_slice(),
            include_bytes!("../../tests/data/form-4-middle.bin"),
        ] {
            let rows = unpack_with_times(packed).unwrap();
            assert_eq!(unpack(packed).unwrap().len(), rows.len());
            let mut all = rows[0].clone();
            rows[1..].iter().for_each(|row| all.merge(row));
            let told = [(796, 47_907_216_878, 104_977_854), (781, 0, 212_320_383), (194, 5_669_584_890, 0)];
            assert!(
                all.stages.iter().map(|stage| (stage.tasks, stage.busy, stage.blocked)).eq(told),
                "{:?}",
                all.stages
            );
            assert!(
                all.queues.iter().map(|queue| queue.gets).eq([800, 781, 195, 194, 194]),
                "{:?}",
                all.queues
            );
            assert!(all.stages.iter().all(|stage| stage.replaced == 0) && all.times.is_none());
        }
    }

    /// Checks rows of schema 3 (a run of three stages) against the figures that a server with that schema reported.
    #[test]
    fn rows_of_schema_3_are_read_without_a_wait_for_permits() {
        let finest = unpack(include_bytes!("../../tests/data/form-3-finest.bin")).unwrap();
        let middle = unpack(include_bytes!("../../tests/data/form-3-middle.bin")).unwrap();
        for rows in [&finest, &middle] {
            let mut all = rows[0].clone();
            rows[1..].iter().for_each(|row| all.merge(row));
            let tasks = all.stages.iter().map(|stage| (stage.tasks, stage.busy, stage.blocked));
            let expected = [(595, 18_007_179_269, 3_959_275), (587, 0, 74_407_357), (146, 3_241_002_518, 0)];
            assert!(tasks.eq(expected), "{:?}", all.stages);
            assert!(all.stages.iter().all(|stage| stage.permit_wait == 0));
            assert!(
                all.queues.iter().map(|queue| queue.gets).eq([598, 587, 146, 146, 146]),
                "{:?}",
                all.queues
            );
        }
        // Every spread is read into its own position: merged over all rows, each spread of the middle level equals that of the finest level.
        let mut spreads = vec![Spread::NONE; Row::spread_count(3, 5)];
        for row in finest {
            let row = row.widened(0);
            spreads.iter_mut().zip(&row.spreads).for_each(|(all, one)| all.merge(*one));
        }
        let mut stored = vec![Spread::NONE; spreads.len()];
        for row in &middle {
            stored.iter_mut().zip(&row.spreads).for_each(|(all, one)| all.merge(*one));
        }
        for (place, (stored, spread)) in stored.iter().zip(&spreads).enumerate() {
            let is_new = place < 3 * Metric::STAGE.len()
                && Metric::STAGE[place % Metric::STAGE.len()] == Metric::PermitWait;
            let expected = if is_new { (None, None) } else { (spread.least(), spread.greatest()) };
            assert_eq!((stored.least(), stored.greatest()), expected, "{place}");
        }
    }

    #[test]
    fn histograms_are_restored_exactly() {
        let mut histogram = Histogram::default();
        [3, 1_000_000, 1_000_001, u64::MAX].into_iter().for_each(|nanos| histogram.record(nanos));
        let times = [histogram, Histogram::default()];
        assert_eq!(unpack_times(&pack_times(&times)).unwrap(), times);
    }

    #[test]
    fn damaged_chunks_are_reported_and_take_little_memory() {
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
            // A bit of the frame header may have no effect; any other damage must be detected.
            assert!(
                unpack(&damaged).map_or(true, |found| found == rows),
                "the damage of bit {place} was not detected"
            );
        }
        assert!(unpack(b"not a chunk").is_err());
    }
}
