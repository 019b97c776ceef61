//! Queries of rows, errors and logs of one run.

use std::cell::OnceCell;

use penstock_types::run::{RunError, Window};
use penstock_types::series::{Buckets, Level, Metric, Row, SeriesColumn, Thinned};
use penstock_types::stats::Histogram;
use penstock_types::tune::SettingChange;
use penstock_wasm::LogLevel;
use rusqlite::{Connection, params};

use super::buffer::{Held, RowBuffer};
use super::chunk::{MAX_ROWS, UnreadableChunk, unpack, unpack_books, unpack_times, unpack_with_times};
use super::error::HistoryError;
use super::layout::Layout;
use super::query::{PageQuery, first, like};
use crate::wire::{ErrorQuery, LogEntry, LogQuery, limit};

/// Rows of one run: the rows in the database, and the rows in the buffer of a live run.
pub(crate) struct RunRows<'a> {
    connection: &'a Connection,
    run: &'a str,
    buffer: Option<&'a RowBuffer>,
    /// Rows of a live run by level. The buffer is copied once, before the database is read, so that rows that are written in
    /// between are neither missing nor counted twice.
    held: OnceCell<[Held; 3]>,
}

impl<'a> RunRows<'a> {
    pub(crate) fn of(connection: &'a Connection, run: &'a str, buffer: Option<&'a RowBuffer>) -> Self {
        Self { connection, run, buffer, held: OnceCell::new() }
    }

    fn held(&self, level: Level) -> &Held {
        let held = |level| self.buffer.map_or_else(Held::default, |buffer| buffer.held(level));
        &self.held.get_or_init(|| Level::ALL.map(held))[usize::from(level.number())]
    }

    /// End of the last row, in nanoseconds since the run's start; 0 without rows.
    pub(crate) fn end(&self) -> Result<u64, HistoryError> {
        if let Some(last) = self.held(Level::Finest).rows.last() {
            return Ok((last.number + 1) * Level::Finest.width());
        }
        for level in Level::ALL {
            let query = "SELECT data FROM chunks WHERE run = ?1 AND level = ?2 ORDER BY number DESC LIMIT 1";
            let last = first::<Vec<u8>>(self.connection, query, params![self.run, level.number()])?;
            let Some(last) = last else { continue };
            let rows = unpack(&last)?;
            // Readings are taken slightly late, so a row of the finest level counts up to its nominal end. A coarser row may be
            // incomplete, so its actual end counts.
            let end = |row: &Row| {
                if level == Level::Finest {
                    row.number.saturating_add(1).saturating_mul(level.width())
                } else {
                    row.t1
                }
            };
            return Ok(rows.last().map_or(0, end));
        }
        Ok(0)
    }

    /// Restricts buckets to those that the run can fill: buckets after `end` (in nanoseconds since the run's start) are left out,
    /// and buckets become wider if only rows of coarser levels are left.
    pub(crate) fn buckets(&self, requested: Buckets, end: u64) -> Result<Buckets, HistoryError> {
        let mut buckets = until(requested, end);
        for level in [Level::Middle, Level::Coarsest] {
            if level <= buckets.level {
                continue;
            }
            if !self.is_gone(&buckets)? {
                break;
            }
            buckets = buckets.at(level);
        }
        Ok(buckets)
    }

    /// Reads the rows in buckets. After the last row of the buckets' level, rows of finer levels follow, because a killed process
    /// has not written its last coarse row.
    pub(crate) fn thinned(&self, buckets: Buckets) -> Result<Thinned, HistoryError> {
        self.gathered(Thinned::new(buckets), buckets, unpack)
    }

    /// Reads the rows like [`Self::thinned`] for these metrics, or all metrics if `metrics` is empty: with task times and waits if a
    /// metric needs them, and with spreads if `has_spreads`.
    pub(crate) fn lines(
        &self,
        buckets: Buckets,
        metrics: &[Metric],
        has_spreads: bool,
    ) -> Result<Thinned, HistoryError> {
        let empty = |buckets| {
            let empty = Thinned::new(buckets);
            if has_spreads { empty } else { empty.without_spreads() }
        };
        if !metrics.is_empty() && metrics.iter().all(|metric| metric.quantile_of(0).is_none()) {
            return self.gathered(empty(buckets), buckets, unpack);
        }
        let mut thinned = self.gathered(empty(buckets), buckets, unpack_with_times)?;
        if buckets.level == Level::Finest {
            let wider = buckets.at(Level::Middle);
            let middle = self.gathered(Thinned::new(wider).without_spreads(), wider, unpack_with_times)?;
            middle.rows().iter().flatten().for_each(|row| thinned.add_waits(row));
        }
        Ok(thinned)
    }

    fn gathered(
        &self,
        mut thinned: Thinned,
        buckets: Buckets,
        unpack: impl Fn(&[u8]) -> Result<Vec<Row>, UnreadableChunk>,
    ) -> Result<Thinned, HistoryError> {
        let mut covered = 0;
        for level in Level::ALL.into_iter().rev().filter(|level| *level <= buckets.level) {
            let mut add = |row: &Row| {
                let begin = row.number.saturating_mul(level.width());
                if begin >= covered {
                    thinned.add(level, row);
                }
                begin.saturating_add(level.width())
            };
            let held = self.held(level);
            let (first, last) = chunks(level, &buckets);
            let first = first.max((covered / (level.width() * MAX_ROWS)) as i64);
            let mut end = covered;
            self.each_stored(level, (first, last), "data", |data, _| {
                unpack(data)?.iter().for_each(|row| end = end.max(add(row)));
                Ok(())
            })?;
            held.rows.iter().for_each(|row| end = end.max(add(row)));
            covered = end;
        }
        Ok(thinned)
    }

    /// Returns the sum of all rows from `from` to `to`, in nanoseconds since the run's start; `None` if there are no rows. Reads
    /// the widest rows that fit into the range. Both bounds are moved outwards to bounds of the finest rows that are still
    /// stored.
    pub(crate) fn sum(&self, from: u64, to: u64) -> Result<Option<Row>, HistoryError> {
        let buckets = self.buckets(Buckets::every(from, to, to.saturating_sub(from)), u64::MAX)?;
        let mut sum: Option<Row> = None;
        let mut missing = vec![(buckets.from, buckets.to())];
        for level in Level::ALL.into_iter().rev().filter(|level| *level >= buckets.level) {
            let width = level.width();
            for (from, to) in std::mem::take(&mut missing) {
                let mut done = from;
                let (first, last) = (from.next_multiple_of(width), to / width * width);
                self.each_row(level, first, last, |row| {
                    let begin = row.number.saturating_mul(width);
                    missing.extend((done < begin).then_some((done, begin)));
                    done = begin + width;
                    match &mut sum {
                        Some(sum) => sum.merge(row),
                        empty => *empty = Some(row.clone()),
                    }
                })?;
                missing.extend((done < to).then_some((done, to)));
            }
        }
        Ok(sum)
    }

    /// Start of the first row that contains only measurements after `at`; both times are in nanoseconds since the run's start.
    pub(crate) fn begin_after(&self, at: u64) -> Result<u64, HistoryError> {
        let width = Level::Finest.width();
        // The readings of the row at `near` start slightly after `near`, and stored times are rounded: 1 µs is tolerated.
        let (near, mut begin) = (at / width * width, (at / width + 1) * width);
        self.each_row(Level::Finest, near, near + 1, |row| {
            if row.t0 + 1_000 >= at {
                begin = near;
            }
        })?;
        Ok(begin)
    }

    /// Calls `each`, in order, with the rows of a level that start in the range from `from` to `to`, in nanoseconds since the
    /// run's start.
    fn each_row(
        &self,
        level: Level,
        from: u64,
        to: u64,
        mut each: impl FnMut(&Row),
    ) -> Result<(), HistoryError> {
        if from >= to {
            return Ok(());
        }
        let mut row = |row: &Row| {
            if (from..to).contains(&row.number.saturating_mul(level.width())) {
                each(row);
            }
        };
        let chunk = level.width() * MAX_ROWS;
        let chunks = ((from / chunk) as i64, ((to - 1) / chunk) as i64);
        self.each_stored(level, chunks, "data, books", |data, chunk| {
            let mut rows = unpack_with_times(data)?;
            if let Some(books) = chunk.get_ref("books")?.as_blob_or_null().map_err(rusqlite::Error::from)? {
                unpack_books(books, &mut rows)?;
            }
            rows.iter().for_each(&mut row);
            Ok(())
        })?;
        self.held(level).rows.iter().for_each(row);
        Ok(())
    }

    /// Calls `each`, in order, with the data and these columns of the chunks of a level that are not in the buffer.
    fn each_stored(
        &self,
        level: Level,
        (first, last): (i64, i64),
        columns: &str,
        mut each: impl FnMut(&[u8], &rusqlite::Row<'_>) -> Result<(), HistoryError>,
    ) -> Result<(), HistoryError> {
        let mut statement = self.connection.prepare_cached(&format!(
            "SELECT number, {columns} FROM chunks WHERE run = ?1 AND level = ?2 AND number BETWEEN ?3 AND ?4 ORDER BY number",
        ))?;
        let mut stored = statement.query(params![self.run, level.number(), first, last])?;
        while let Some(chunk) = stored.next()? {
            let number: i64 = chunk.get(0)?;
            if !self.held(level).chunks.contains(&(number as u64)) {
                each(chunk.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?, chunk)?;
            }
        }
        Ok(())
    }

    /// Windows of a run with these changes of its settings; each has the settings at its end.
    pub(crate) fn windows(
        &self,
        layout: &Layout,
        changes: &[SettingChange],
        buckets: Buckets,
    ) -> Result<Vec<Window>, HistoryError> {
        let thinned = self.thinned(buckets)?;
        let window = |row: &Row| layout.at(changes, row.t1 as f64 / 1e9).window(row);
        Ok(thinned.rows().iter().flatten().map(window).collect())
    }

    pub(crate) fn times(&self, stage: usize) -> Result<Histogram, HistoryError> {
        // The buffer is copied before the database is read, so that no time that is written in between is missed; times found in both are counted once.
        let held = self.buffer.map_or_else(Vec::new, RowBuffer::held_times);
        let mut all = Histogram::default();
        let mut statement =
            self.connection.prepare_cached("SELECT number, data FROM times WHERE run = ?1")?;
        for stored in statement.query_map([self.run], |row| row.try_into())? {
            let (number, data): (i64, Vec<u8>) = stored?;
            if held.iter().any(|(held, _)| *held == number as u64) {
                continue;
            }
            let times = unpack_times(&data)?;
            times.get(stage).into_iter().for_each(|times| all.merge(times));
        }
        held.iter().filter_map(|(_, times)| times.get(stage)).for_each(|times| all.merge(times));
        Ok(all)
    }

    /// Returns true if the rows of the buckets' level were removed and rows of the next level remain.
    fn is_gone(&self, buckets: &Buckets) -> Result<bool, HistoryError> {
        if !self.held(buckets.level).rows.is_empty() {
            return Ok(false);
        }
        let level = usize::from(buckets.level.number());
        let has = |level: usize| -> Result<bool, HistoryError> {
            let Some(level) = Level::ALL.get(level) else { return Ok(false) };
            let (first, last) = chunks(*level, buckets);
            let query =
                "SELECT 1 FROM chunks WHERE run = ?1 AND level = ?2 AND number BETWEEN ?3 AND ?4 LIMIT 1";
            let params = params![self.run, level.number(), first, last];
            Ok(self.connection.prepare_cached(query)?.exists(params)?)
        };
        Ok(!has(level)? && has(level + 1)?)
    }
}

/// Keeps the buckets that begin before `end`, and at least the first bucket. The width of the buckets does not change.
fn until(buckets: Buckets, end: u64) -> Buckets {
    let filled = end.saturating_sub(buckets.from).div_ceil(buckets.width).max(1);
    Buckets { count: buckets.count.min(usize::try_from(filled).unwrap_or(usize::MAX)), ..buckets }
}

/// Returns the columns of the requested metrics and ids; all of them if `metrics` or `ids` is empty. If the rows have no times,
/// the columns of percentiles are left out.
pub(crate) fn columns(
    layout: &Layout,
    thinned: &Thinned,
    metrics: &[Metric],
    ids: &[String],
) -> Vec<SeriesColumn> {
    let has_times = thinned.has_times();
    let is_requested = |metric: &Metric| {
        (metrics.is_empty() || metrics.contains(metric)) && (has_times || metric.quantile_of(0).is_none())
    };
    let has_id = |id: &String| ids.is_empty() || ids.contains(id);
    let stages = layout.stages.iter().enumerate().filter(|(_, stage)| has_id(&stage.id));
    let stages = stages.flat_map(|(place, stage)| {
        let metrics = Metric::STAGE.into_iter().chain(Metric::STAGE_TIMES).filter(is_requested);
        metrics.map(move |metric| thinned.stage(place, metric, &stage.id))
    });
    let queues = layout.queues.iter().enumerate().filter(|(_, queue)| has_id(&queue.id));
    let queues = queues.flat_map(|(place, queue)| {
        let metrics = Metric::QUEUE.into_iter().chain(Metric::QUEUE_TIMES).filter(is_requested);
        metrics.map(move |metric| thinned.queue(place, metric, &queue.id))
    });
    stages.chain(queues).collect()
}

pub(crate) fn shorten(column: &mut SeriesColumn, digits: u32) {
    let digits = i32::try_from(digits).unwrap_or(i32::MAX);
    for value in [&mut column.mean, &mut column.min, &mut column.max].into_iter().flatten().flatten() {
        if *value == 0.0 || !value.is_finite() {
            continue;
        }
        let places = digits - 1 - value.abs().log10().floor() as i32;
        // A power of ten with a positive exponent is exact, so the quotient is the nearest number to the digits.
        let power = 10_f64.powi(places.abs());
        *value = if places < 0 { (*value / power).round() * power } else { (*value * power).round() / power };
    }
}

/// Numbers of the first and the last chunk of a level that overlap with the time range of `buckets`.
fn chunks(level: Level, buckets: &Buckets) -> (i64, i64) {
    let chunk = level.width() * MAX_ROWS;
    ((buckets.from / chunk) as i64, (buckets.to() / chunk) as i64)
}

/// Returns the failed samples with numbers above `after`, in order, and true if there are more.
pub(crate) fn errors(
    connection: &Connection,
    run: &str,
    query: ErrorQuery,
    after: i64,
) -> Result<(Vec<RunError>, bool), HistoryError> {
    let text = query.text.as_deref().map(like);
    PageQuery::default()
        .with("run = ?", Some(run.to_owned()))
        .with("number > ?", Some(after))
        .with("stage = ?", query.stage)
        .with("class = ?", query.class.map(|class| class.name().to_owned()))
        .with("(key LIKE ? ESCAPE '\\' OR message LIKE ? ESCAPE '\\')", text)
        .read(connection, ("failed sample", "error FROM errors", "number"), limit(query.limit), |row| {
            Ok(serde_json::from_str(&row.get::<_, String>(0)?).map_err(HistoryError::from))
        })
}

/// Returns the log lines with numbers above `after`, in order, and true if there are more.
pub(crate) fn logs(
    connection: &Connection,
    run: &str,
    query: LogQuery,
    after: i64,
) -> Result<(Vec<LogEntry>, bool), HistoryError> {
    let columns = "number, stage, level, at_s, message FROM logs";
    PageQuery::default()
        .with("run = ?", Some(run.to_owned()))
        .with("number > ?", Some(after))
        .with("stage = ?", query.stage)
        .with("level >= ?", query.level.map(|level| level as u8))
        .with("message LIKE ? ESCAPE '\\'", query.text.as_deref().map(like))
        .read(connection, ("log line", columns, "number"), limit(query.limit), |row| {
            let level = match row.get::<_, i64>(2)? {
                0 => LogLevel::Debug,
                1 => LogLevel::Info,
                2 => LogLevel::Warn,
                _ => LogLevel::Error,
            };
            let number = row.get::<_, i64>(0)? as u64;
            Ok(Ok(LogEntry { number, stage: row.get(1)?, level, at_s: row.get(3)?, message: row.get(4)? }))
        })
}
