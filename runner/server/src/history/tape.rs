use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_engine::ports::Sums;
use penstock_types::series::{Level, Row};
use penstock_types::stats::Histogram;

use super::chunk::{MAX_ROWS, pack, pack_times};
use super::layout::Layout;

/// Length of time for which task times are counted together: a chunk of the middle level, in nanoseconds.
const TIMES_NANOS: u64 = Level::Middle.width() * MAX_ROWS;
/// Chunks that wait to be written at most; what comes on top is lost, and said to be.
const MAX_WAITING: usize = 16;

/// The rows of one run that are not written yet: those of the open chunk of each level, and of chunks that wait.
#[derive(Debug)]
pub(crate) struct Tape {
    state: Mutex<Reel>,
}

#[derive(Debug)]
struct Reel {
    stages: usize,
    queues: usize,
    /// By level.
    levels: [Ladder; 3],
    times: VecDeque<Times>,
    /// Chunks that were given up.
    lost: u64,
}

#[derive(Debug, Default)]
struct Ladder {
    /// The row that goes on.
    open: Option<Row>,
    /// Closed rows by chunk, oldest first; the last one may grow.
    chunks: VecDeque<Chunk>,
}

#[derive(Clone, Debug)]
struct Chunk {
    number: u64,
    rows: Vec<Row>,
    /// How many of the rows are written.
    written: usize,
}

#[derive(Clone, Debug)]
struct Times {
    number: u64,
    histograms: Vec<Histogram>,
    is_written: bool,
}

/// What is to be written: chunks as bytes.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    pub(crate) chunks: Vec<UnwrittenChunk>,
    pub(crate) times: Vec<(u64, Vec<u8>, u64)>,
}

#[derive(Debug)]
pub(crate) struct UnwrittenChunk {
    pub(crate) level: Level,
    pub(crate) number: u64,
    pub(crate) last_slot: u64,
    pub(crate) data: Vec<u8>,
    rows: usize,
}

/// Rows of a tape, and the chunks they stand for, which are not to be read elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) rows: Vec<Row>,
    pub(crate) chunks: Vec<u64>,
}

impl Tape {
    /// An empty tape of a run with this layout.
    pub(crate) fn new(layout: &Layout) -> Self {
        let reel = Reel {
            stages: layout.stages.len(),
            queues: layout.queues.len(),
            levels: Default::default(),
            times: VecDeque::new(),
            lost: 0,
        };
        Self { state: Mutex::new(reel) }
    }

    /// Takes in what the run added up. Gives the finest row that this completes, if it does.
    pub(crate) fn add(&self, stretch: &Sums) -> Option<Row> {
        self.lock().add(stretch)
    }

    /// Completes all rows: nothing comes after. Gives the last finest one, if it was not complete.
    pub(crate) fn finish(&self) -> Option<Row> {
        let mut reel = self.lock();
        let last = reel.levels[0].open.clone();
        for level in Level::ALL {
            reel.close(level);
        }
        last
    }

    /// What was not written yet.
    pub(crate) fn unwritten(&self) -> Unwritten {
        let (chunks, times) = {
            let reel = self.lock();
            let chunks: Vec<(Level, Chunk)> = Level::ALL
                .into_iter()
                .zip(&reel.levels)
                .flat_map(|(level, ladder)| ladder.chunks.iter().map(move |chunk| (level, chunk)))
                .filter(|(_, chunk)| chunk.written < chunk.rows.len())
                .map(|(level, chunk)| (level, chunk.clone()))
                .collect();
            let times: Vec<Times> = reel.times.iter().filter(|times| !times.is_written).cloned().collect();
            (chunks, times)
        };
        // Without the lock: a run goes on meanwhile.
        let chunk = |(level, chunk): (Level, Chunk)| UnwrittenChunk {
            level,
            number: chunk.number,
            last_slot: chunk.rows.last().map_or(0, |row| row.slot),
            data: pack(&chunk.rows),
            rows: chunk.rows.len(),
        };
        let times = times.into_iter().map(|times| {
            let counted = times.histograms.iter().map(Histogram::count).sum();
            (times.number, pack_times(&times.histograms), counted)
        });
        Unwritten { chunks: chunks.into_iter().map(chunk).collect(), times: times.collect() }
    }

    /// This was written.
    pub(crate) fn on_written(&self, unwritten: &Unwritten) {
        let mut reel = self.lock();
        for written in &unwritten.chunks {
            let ladder = &mut reel.levels[usize::from(written.level.number())];
            if let Some(chunk) = ladder.chunks.iter_mut().find(|chunk| chunk.number == written.number) {
                chunk.written = written.rows;
            }
            while ladder.chunks.len() > 1
                && ladder.chunks.front().is_some_and(|chunk| chunk.written == chunk.rows.len())
            {
                ladder.chunks.pop_front();
            }
        }
        for (number, _, counted) in &unwritten.times {
            if let Some(times) = reel.times.iter_mut().find(|times| times.number == *number) {
                let now: u64 = times.histograms.iter().map(Histogram::count).sum();
                times.is_written = now == *counted;
            }
        }
        while reel.times.len() > 1 && reel.times.front().is_some_and(|times| times.is_written) {
            reel.times.pop_front();
        }
    }

    /// Chunks that were given up because they could not be written for too long.
    pub(crate) fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// All rows of a level that are held, the open one included.
    pub(crate) fn held(&self, level: Level) -> Held {
        let reel = self.lock();
        let ladder = &reel.levels[usize::from(level.number())];
        let rows = ladder.chunks.iter().flat_map(|chunk| &chunk.rows).chain(&ladder.open);
        Held {
            rows: rows.cloned().collect(),
            chunks: ladder.chunks.iter().map(|chunk| chunk.number).collect(),
        }
    }

    /// The histograms that are held, by number.
    pub(crate) fn held_times(&self) -> Vec<(u64, Vec<Histogram>)> {
        self.lock().times.iter().map(|times| (times.number, times.histograms.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Reel> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reel {
    fn add(&mut self, stretch: &Sums) -> Option<Row> {
        let (t0, t1) = (stretch.t0.nanos(), stretch.t1.nanos());
        self.count_times(t1, stretch);
        let width = Level::Finest.width();
        // By its middle: readings come a little after their moments.
        let slot = (t0 + t1) / 2 / width;
        let mut complete = None;
        if self.levels[0].open.as_ref().is_some_and(|open| open.slot != slot) {
            complete = self.close(Level::Finest);
        }
        let (stages, queues) = (self.stages, self.queues);
        let open = self.levels[0].open.get_or_insert_with(|| Row::empty(slot, t0, stages, queues));
        open.add(t1, &stretch.stages, &stretch.queues);
        let row = open.clone();
        self.widen(Level::Middle, stretch, slot / 16, t0);
        self.widen(Level::Coarsest, stretch, slot / 256, t0);
        if t1 >= (slot + 1) * width {
            self.close(Level::Finest);
            return Some(row);
        }
        complete
    }

    /// Adds the stretch to the open row of a coarser level. Its spreads come when the finest row is complete.
    fn widen(&mut self, level: Level, stretch: &Sums, slot: u64, t0: u64) {
        let place = usize::from(level.number());
        if self.levels[place].open.as_ref().is_some_and(|open| open.slot != slot) {
            self.close(level);
        }
        let (stages, queues) = (self.stages, self.queues);
        let open = self.levels[place].open.get_or_insert_with(|| {
            let mut row = Row::empty(slot, t0, stages, queues);
            row.spreads = vec![penstock_types::series::Spread::NONE; Row::spread_count(stages, queues)];
            row
        });
        open.add(stretch.t1.nanos(), &stretch.stages, &stretch.queues);
    }

    /// Completes the open row of a level.
    fn close(&mut self, level: Level) -> Option<Row> {
        let place = usize::from(level.number());
        let row = self.levels[place].open.take()?;
        if level == Level::Finest {
            for wider in &mut self.levels[1..] {
                if let Some(open) = &mut wider.open {
                    open.spread(&row);
                }
            }
        }
        let number = row.slot / MAX_ROWS;
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

    fn count_times(&mut self, at: u64, stretch: &Sums) {
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
        for (histogram, sums) in times.histograms.iter_mut().zip(&stretch.stages) {
            if sums.op_times.count() > 0 {
                histogram.merge(&sums.op_times);
                times.is_written = false;
            }
        }
    }
}
