//! Queries of rows, errors and logs of one run.

use penstock_types::run::{FailureClass, RunError, Window};
use penstock_types::series::{Buckets, Level, Metric, Row, SeriesColumn, Thinned};
use penstock_types::stats::Histogram;
use penstock_wasm::LogLevel;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use super::buffer::{Held, RowBuffer};
use super::chunk::{MAX_ROWS, unpack, unpack_times};
use super::error::{HistoryError, undamaged};
use super::layout::Layout;
use super::runs::like;
use crate::wire::LogEntry;

#[derive(Clone, Debug, Default)]
pub(crate) struct ErrorFilter {
    pub(crate) stage: Option<String>,
    pub(crate) class: Option<FailureClass>,
    pub(crate) text: Option<String>,
    pub(crate) after: u64,
    pub(crate) limit: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LogFilter {
    pub(crate) stage: Option<String>,
    /// This one and what matters more.
    pub(crate) level: Option<LogLevel>,
    pub(crate) text: Option<String>,
    pub(crate) after: u64,
    pub(crate) limit: u32,
}

/// Rows that a live run holds, by level, taken before the file is read: what is written meanwhile is not read twice, and
/// what was written before is there.
pub(crate) struct HeldRows([Held; 3]);

impl HeldRows {
    pub(crate) fn of(buffer: Option<&RowBuffer>) -> Self {
        Self(Level::ALL.map(|level| buffer.map_or_else(Held::default, |buffer| buffer.held(level))))
    }

    /// End of the last row, in nanoseconds.
    pub(crate) fn end(&self) -> Option<u64> {
        self.0[0].rows.last().map(|row| (row.number + 1) * Level::Finest.width())
    }
}

/// These buckets as a run can fill them: none behind its end, and wider ones where only coarser rows are left. Nanoseconds since
/// its start.
pub(crate) fn buckets(
    connection: &Connection,
    run: &str,
    held: &HeldRows,
    wanted: Buckets,
    end: u64,
) -> Result<Buckets, HistoryError> {
    let mut buckets = until(wanted, end);
    for level in [Level::Middle, Level::Coarsest] {
        if level <= buckets.level {
            continue;
        }
        if !is_gone(connection, run, held, &buckets)? {
            break;
        }
        buckets = buckets.at(level);
    }
    Ok(buckets)
}

/// A run's rows in buckets.
pub(crate) fn thinned(
    connection: &Connection,
    run: &str,
    held: &HeldRows,
    buckets: Buckets,
) -> Result<Thinned, HistoryError> {
    let mut thinned = Thinned::new(buckets);
    gather(connection, run, held, &buckets, &mut thinned)?;
    Ok(thinned)
}

/// A run's rows in buckets, as people read them.
pub(crate) fn windows(
    connection: &Connection,
    run: &str,
    held: &HeldRows,
    layout: &Layout,
    buckets: Buckets,
) -> Result<Vec<Window>, HistoryError> {
    let thinned = thinned(connection, run, held, buckets)?;
    Ok(thinned.rows().iter().flatten().map(|row| layout.window(row)).collect())
}

/// The buckets that begin before `end`, the first one in any case. They keep their width, by which whoever asked counts.
fn until(buckets: Buckets, end: u64) -> Buckets {
    let filled = end.saturating_sub(buckets.from).div_ceil(buckets.width).max(1);
    Buckets { count: buckets.count.min(usize::try_from(filled).unwrap_or(usize::MAX)), ..buckets }
}

/// The asked columns of a run with this layout; all metrics when none is named.
pub(crate) fn columns(layout: &Layout, thinned: &Thinned, metrics: &[Metric]) -> Vec<SeriesColumn> {
    let wanted = |metric: &Metric| metrics.is_empty() || metrics.contains(metric);
    let stages = layout.stages.iter().enumerate().flat_map(|(place, stage)| {
        let metrics = Metric::STAGE.into_iter().filter(wanted);
        metrics.map(move |metric| thinned.stage(place, metric, &stage.id))
    });
    let queues = layout.queues.iter().enumerate().flat_map(|(place, queue)| {
        let metrics = Metric::QUEUE.into_iter().filter(wanted);
        metrics.map(move |metric| thinned.queue(place, metric, &queue.id))
    });
    stages.chain(queues).collect()
}

/// Task times of a stage over the whole run.
pub(crate) fn times(
    connection: &Connection,
    run: &str,
    stage: usize,
    held: Vec<(u64, Vec<Histogram>)>,
) -> Result<Histogram, HistoryError> {
    let mut all = Histogram::default();
    let mut statement = connection.prepare_cached("SELECT number, data FROM times WHERE run = ?1")?;
    let stored =
        statement.query_map([run], |row| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, Vec<u8>>(1)?)))?;
    for stored in stored {
        let (number, data) = stored?;
        if held.iter().any(|(held, _)| *held == number) {
            continue;
        }
        let times = unpack_times(&data)?;
        times.get(stage).into_iter().for_each(|times| all.merge(times));
    }
    held.iter().filter_map(|(_, times)| times.get(stage)).for_each(|times| all.merge(times));
    Ok(all)
}

/// End of the last stored row of a run, in nanoseconds since its start; 0 without any.
pub(crate) fn end(connection: &Connection, run: &str) -> Result<u64, HistoryError> {
    for level in Level::ALL {
        let last: Option<Vec<u8>> = connection
            .prepare_cached(
                "SELECT data FROM chunks WHERE run = ?1 AND level = ?2 ORDER BY number DESC LIMIT 1",
            )?
            .query_row(params![run, level.number()], |row| row.get(0))
            .optional()?;
        let Some(last) = last else { continue };
        let rows = unpack(&last)?;
        // Readings come a little after their moments; where only coarse rows are left, that cannot be told apart.
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

/// Returns true if rows of the buckets' level were removed and coarser ones were not.
fn is_gone(
    connection: &Connection,
    run: &str,
    held: &HeldRows,
    buckets: &Buckets,
) -> Result<bool, HistoryError> {
    let level = usize::from(buckets.level.number());
    if !held.0[level].rows.is_empty() {
        return Ok(false);
    }
    let has = |level: usize| -> Result<bool, HistoryError> {
        let Some(level) = Level::ALL.get(level) else { return Ok(false) };
        let (first, last) = chunks(*level, buckets);
        let found = connection
            .prepare_cached(
                "SELECT 1 FROM chunks WHERE run = ?1 AND level = ?2 AND number BETWEEN ?3 AND ?4 LIMIT 1",
            )?
            .exists(params![run, level.number(), first, last])?;
        Ok(found)
    };
    Ok(!has(level)? && has(level + 1)?)
}

/// Numbers of the first and the last chunk of a level that buckets touch.
fn chunks(level: Level, buckets: &Buckets) -> (i64, i64) {
    let chunk = level.width() * MAX_ROWS;
    ((buckets.from / chunk) as i64, (buckets.to() / chunk) as i64)
}

/// Adds the rows of the buckets' level, and behind the last of them finer ones: those of a process that died end early.
fn gather(
    connection: &Connection,
    run: &str,
    held: &HeldRows,
    buckets: &Buckets,
    thinned: &mut Thinned,
) -> Result<(), HistoryError> {
    let mut covered = 0;
    for level in Level::ALL.into_iter().rev().filter(|level| *level <= buckets.level) {
        let mut add = |row: &Row| {
            let begin = row.number.saturating_mul(level.width());
            if begin >= covered {
                thinned.add(level, row);
            }
            begin.saturating_add(level.width())
        };
        let held = &held.0[usize::from(level.number())];
        let (first, last) = chunks(level, buckets);
        let first = first.max((covered / (level.width() * MAX_ROWS)) as i64);
        let mut statement = connection.prepare_cached(
            "SELECT number, data FROM chunks WHERE run = ?1 AND level = ?2 AND number BETWEEN ?3 AND ?4 ORDER BY number",
        )?;
        let mut stored = statement.query(params![run, level.number(), first, last])?;
        let mut end = covered;
        while let Some(chunk) = stored.next()? {
            let number: i64 = chunk.get(0)?;
            if held.chunks.contains(&(number as u64)) {
                continue;
            }
            let rows = unpack(chunk.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)?;
            rows.iter().for_each(|row| end = end.max(add(row)));
        }
        held.rows.iter().for_each(|row| end = end.max(add(row)));
        covered = end;
    }
    Ok(())
}

/// Returns failed samples in order, and true if there are more.
pub(crate) fn errors(
    connection: &Connection,
    run: &str,
    filter: &ErrorFilter,
) -> Result<(Vec<RunError>, bool), HistoryError> {
    let mut query = Query::of(run, filter.after);
    query.equal("stage", filter.stage.clone());
    query.equal("class", filter.class.map(|class| class.name().to_owned()));
    query.like(&["key", "message"], filter.text.as_deref());
    let (text, values) = query.select("error", "errors", filter.limit);
    let mut statement = connection.prepare_cached(&text)?;
    let rows = statement.query_map(params_from_iter(values), |row| row.get::<_, String>(0))?;
    let mut found = Vec::new();
    for row in rows {
        let row = row.map(|text| serde_json::from_str(&text).map_err(HistoryError::from));
        found.push(undamaged("failed sample", row)?);
    }
    let (found, more) = cut(found, filter.limit);
    Ok((found.into_iter().flatten().collect(), more))
}

/// Returns log lines in order, and true if there are more.
pub(crate) fn logs(
    connection: &Connection,
    run: &str,
    filter: &LogFilter,
) -> Result<(Vec<LogEntry>, bool), HistoryError> {
    let mut query = Query::of(run, filter.after);
    query.equal("stage", filter.stage.clone());
    query.like(&["message"], filter.text.as_deref());
    if let Some(level) = filter.level {
        let level = query.value(Sql::Integer(i64::from(level as u8)));
        query.wanted.push(format!("level >= {level}"));
    }
    let (text, values) = query.select("number, stage, level, at_s, message", "logs", filter.limit);
    let mut statement = connection.prepare_cached(&text)?;
    let rows = statement.query_map(params_from_iter(values), |row| {
        let level = match row.get::<_, i64>(2)? {
            0 => LogLevel::Debug,
            1 => LogLevel::Info,
            2 => LogLevel::Warn,
            _ => LogLevel::Error,
        };
        Ok(LogEntry {
            number: row.get::<_, i64>(0)? as u64,
            stage: row.get(1)?,
            level,
            at_s: row.get(3)?,
            message: row.get(4)?,
        })
    })?;
    let found = rows.collect::<rusqlite::Result<_>>()?;
    Ok(cut(found, filter.limit))
}

fn cut<T>(mut found: Vec<T>, limit: u32) -> (Vec<T>, bool) {
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    (found, more)
}

/// A query of numbered lines of one run.
struct Query {
    wanted: Vec<String>,
    values: Vec<Sql>,
}

impl Query {
    fn of(run: &str, after: u64) -> Self {
        let values = vec![Sql::Text(run.to_owned()), Sql::Integer(i64::try_from(after).unwrap_or(i64::MAX))];
        Self { wanted: vec!["run = ?1 AND number > ?2".to_owned()], values }
    }

    fn value(&mut self, value: Sql) -> String {
        self.values.push(value);
        format!("?{}", self.values.len())
    }

    fn equal(&mut self, column: &str, wanted: Option<String>) {
        if let Some(wanted) = wanted {
            let value = self.value(Sql::Text(wanted));
            self.wanted.push(format!("{column} = {value}"));
        }
    }

    fn like(&mut self, columns: &[&str], text: Option<&str>) {
        if let Some(text) = text {
            let value = self.value(Sql::Text(like(text)));
            let any: Vec<String> =
                columns.iter().map(|column| format!("{column} LIKE {value} ESCAPE '\\'")).collect();
            self.wanted.push(format!("({})", any.join(" OR ")));
        }
    }

    fn select(mut self, columns: &str, table: &str, limit: u32) -> (String, Vec<Sql>) {
        let limit = self.value(Sql::Integer(i64::from(limit) + 1));
        let wanted = self.wanted.join(" AND ");
        (format!("SELECT {columns} FROM {table} WHERE {wanted} ORDER BY number LIMIT {limit}"), self.values)
    }
}
