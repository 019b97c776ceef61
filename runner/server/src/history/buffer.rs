use std::collections::VecDeque;
use std::mem::take;
use std::sync::Mutex;

use penstock_engine::lock::locked;
use penstock_engine::ports::Sums;
use penstock_types::series::{Level, Row, RowTimes, Spread};
use penstock_types::stats::Histogram;

use super::chunk::{MAX_ROWS, pack, pack_books, pack_times};
use super::layout::Layout;

/// Interval whose task times share a histogram, in nanoseconds: the duration of a chunk of the middle level.
const TIMES_NANOS: u64 = Level::Middle.width() * MAX_ROWS;
/// Number of rows of the finest level in a second. Task times are stored once per second, and waits only in rows of coarser
/// levels: stored in each row, they would take more space than all sums.
const QUARTERS: u64 = 4;
/// Maximum number of chunks of a level that wait to be written. If there are more, the oldest chunk is dropped and counted as
/// lost.
const MAX_WAITING: usize = 16;

/// Rows of one run that are not yet in the database: the incomplete chunk of each level, and the chunks that wait to be written.
#[derive(Debug)]
pub(crate) struct RowBuffer(Mutex<Buffered>);

#[derive(Debug, Default)]
struct Buffered {
    stages: usize,
    queues: usize,
    /// Rows by level, finest level first.
    levels: [LevelRows; 3],
    times: VecDeque<Times>,
    /// Task times of the current second, which is incomplete.
    second: RowTimes,
    lost: u64,
}

#[derive(Debug, Default)]
struct LevelRows {
    open: Option<Row>,
    /// Complete rows by chunk, oldest first; further rows are added to the last chunk.
    chunks: VecDeque<Chunk>,
}

#[derive(Clone, Debug)]
struct Chunk {
    number: u64,
    rows: Vec<Row>,
    /// Number of rows that are in the database.
    written: usize,
}

#[derive(Clone, Debug)]
struct Times {
    number: u64,
    histograms: Vec<Histogram>,
    is_written: bool,
}

/// Packed chunks and histograms to write.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    pub(crate) chunks: Vec<UnwrittenChunk>,
    /// For each interval: its number, its packed histograms, and the number of durations in all of them.
    pub(crate) times: Vec<(u64, Vec<u8>, u64)>,
}

#[derive(Debug)]
pub(crate) struct UnwrittenChunk {
    pub(crate) level: Level,
    pub(crate) number: u64,
    pub(crate) last_row: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) books: Vec<u8>,
    rows: usize,
}

/// Copy of the buffered rows of a level, and the numbers of their chunks; the stored versions of these chunks are out of date.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) rows: Vec<Row>,
    pub(crate) chunks: Vec<u64>,
}

impl RowBuffer {
    pub(crate) fn new(layout: &Layout) -> Self {
        let (stages, queues) = (layout.stages.len(), layout.queues.len());
        Self(Mutex::new(Buffered { stages, queues, ..Buffered::default() }))
    }

    /// Adds the sums of one pulse, an interval of at most 250 ms. Returns the row of the finest level that the pulse completes,
    /// if any.
    pub(crate) fn add(&self, pulse: &Sums) -> Option<Row> {
        locked(&self.0).add(pulse)
    }

    /// Completes all rows at the end of the run. Returns the last row of the finest level if it was incomplete.
    pub(crate) fn finish(&self) -> Option<Row> {
        let mut buffered = locked(&self.0);
        let second = take(&mut buffered.second);
        buffered.count_row_times(Level::Finest, &second);
        let last = buffered.levels[0].open.clone();
        for level in Level::ALL {
            buffered.close(level);
        }
        last
    }

    pub(crate) fn unwritten(&self) -> Unwritten {
        let (chunks, times) = {
            let buffered = locked(&self.0);
            let chunks: Vec<(Level, Chunk)> = Level::ALL
                .into_iter()
                .zip(&buffered.levels)
                .flat_map(|(level, rows)| rows.chunks.iter().map(move |chunk| (level, chunk)))
                .filter(|(_, chunk)| chunk.written < chunk.rows.len())
                .map(|(level, chunk)| (level, chunk.clone()))
                .collect();
            let times: Vec<Times> =
                buffered.times.iter().filter(|times| !times.is_written).cloned().collect();
            (chunks, times)
        };
        // Chunks are packed after the lock has been released, so that the run does not wait for the compression.
        let chunk = |(level, chunk): (Level, Chunk)| UnwrittenChunk {
            level,
            number: chunk.number,
            last_row: chunk.rows.last().map_or(0, |row| row.number),
            data: pack(&chunk.rows),
            books: pack_books(&chunk.rows),
            rows: chunk.rows.len(),
        };
        let times = times.into_iter().map(|times| {
            let counted = times.histograms.iter().map(Histogram::count).sum();
            (times.number, pack_times(&times.histograms), counted)
        });
        Unwritten { chunks: chunks.into_iter().map(chunk).collect(), times: times.collect() }
    }

    /// Records a successful write, and drops chunks that are complete and written.
    pub(crate) fn on_written(&self, unwritten: &Unwritten) {
        let mut buffered = locked(&self.0);
        for written in &unwritten.chunks {
            let chunks = &mut buffered.levels[usize::from(written.level.number())].chunks;
            if let Some(chunk) = chunks.iter_mut().find(|chunk| chunk.number == written.number) {
                chunk.written = written.rows;
            }
            while chunks.len() > 1 && chunks.front().is_some_and(|chunk| chunk.written == chunk.rows.len()) {
                chunks.pop_front();
            }
        }
        for (number, _, counted) in &unwritten.times {
            if let Some(times) = buffered.times.iter_mut().find(|times| times.number == *number) {
                let now: u64 = times.histograms.iter().map(Histogram::count).sum();
                times.is_written = now == *counted;
            }
        }
        while buffered.times.len() > 1 && buffered.times.front().is_some_and(|times| times.is_written) {
            buffered.times.pop_front();
        }
    }

    /// Number of chunks that were dropped because too many chunks waited to be written.
    pub(crate) fn lost(&self) -> u64 {
        locked(&self.0).lost
    }

    /// Copies all buffered rows of a level, including the incomplete row.
    pub(crate) fn held(&self, level: Level) -> Held {
        let buffered = locked(&self.0);
        let LevelRows { open, chunks } = &buffered.levels[usize::from(level.number())];
        Held {
            rows: chunks.iter().flat_map(|chunk| &chunk.rows).chain(open).cloned().collect(),
            chunks: chunks.iter().map(|chunk| chunk.number).collect(),
        }
    }

    pub(crate) fn held_times(&self) -> Vec<(u64, Vec<Histogram>)> {
        locked(&self.0).times.iter().map(|times| (times.number, times.histograms.clone())).collect()
    }
}

impl Buffered {
    fn add(&mut self, pulse: &Sums) -> Option<Row> {
        let (t0, t1) = (pulse.t0.nanos(), pulse.t1.nanos());
        self.count_times(t1, pulse);
        // The middle of the pulse determines its row, because the readings at the start and the end are taken slightly late.
        let number = (t0 + t1) / 2 / Level::Finest.width();
        let completed = self.add_at(Level::Finest, number, pulse);
        self.add_at(Level::Middle, number / 16, pulse);
        self.add_at(Level::Coarsest, number / 256, pulse);
        self.second.merge(&RowTimes::of(&pulse.stages, &[]));
        let times = RowTimes::of(&pulse.stages, &pulse.queues);
        self.count_row_times(Level::Middle, &times);
        self.count_row_times(Level::Coarsest, &times);
        let is_complete = t1 >= (number + 1) * Level::Finest.width();
        if is_complete { self.close(Level::Finest) } else { completed }
    }

    /// Adds the sums of a pulse to the open (incomplete) row of a level. Returns the previous row if the pulse begins a new row.
    /// The spreads of coarser rows are updated once a row of the finest level is complete.
    fn add_at(&mut self, level: Level, number: u64, pulse: &Sums) -> Option<Row> {
        let place = usize::from(level.number());
        let is_new = self.levels[place].open.as_ref().is_some_and(|open| open.number != number);
        let completed = if is_new { self.close(level) } else { None };
        let (stages, queues) = (self.stages, self.queues);
        let open = self.levels[place].open.get_or_insert_with(|| {
            let spreads = if level == Level::Finest { 0 } else { Row::spread_count(stages, queues) };
            let row = Row::empty(number, pulse.t0.nanos(), stages, queues);
            Row { spreads: vec![Spread::NONE; spreads], times: Some(RowTimes::default()), ..row }
        });
        open.add(pulse.t1.nanos(), &pulse.stages, &pulse.queues, &pulse.books);
        completed
    }

    fn close(&mut self, level: Level) -> Option<Row> {
        let place = usize::from(level.number());
        let mut row = self.levels[place].open.take()?;
        if level == Level::Finest {
            if row.number % QUARTERS == QUARTERS - 1 {
                row.times.get_or_insert_default().merge(&take(&mut self.second));
            }
            for wider in &mut self.levels[1..] {
                if let Some(open) = &mut wider.open {
                    open.spread(&row);
                }
            }
        }
        let number = row.number / MAX_ROWS;
        let chunks = &mut self.levels[place].chunks;
        match chunks.back_mut().filter(|chunk| chunk.number == number) {
            Some(chunk) => chunk.rows.push(row.clone()),
            None => {
                chunks.push_back(Chunk { number, rows: vec![row.clone()], written: 0 });
                if chunks.len() > 1 && chunks[0].written == chunks[0].rows.len() {
                    chunks.pop_front();
                }
                if chunks.len() > MAX_WAITING {
                    chunks.pop_front();
                    self.lost += 1;
                }
            }
        }
        Some(row)
    }

    fn count_row_times(&mut self, level: Level, times: &RowTimes) {
        if let Some(open) = &mut self.levels[usize::from(level.number())].open {
            open.times.get_or_insert_default().merge(times);
        }
    }

    fn count_times(&mut self, at: u64, pulse: &Sums) {
        let number = at / TIMES_NANOS;
        if self.times.back().is_none_or(|times| times.number != number) {
            let histograms = vec![Histogram::default(); self.stages];
            self.times.push_back(Times { number, histograms, is_written: false });
            if self.times.len() > MAX_WAITING {
                self.times.pop_front();
                self.lost += 1;
            }
        }
        let Some(times) = self.times.back_mut() else { return };
        for (histogram, sums) in times.histograms.iter_mut().zip(&pulse.stages) {
            if sums.op_times.count() > 0 {
                histogram.merge(&sums.op_times);
                times.is_written = false;
            }
        }
    }
}
