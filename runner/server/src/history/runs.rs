//! The table of runs.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use penstock_types::run::{RunError, RunId, RunSnapshot, RunState, RunSummary};
use penstock_types::stats::per_second;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params, params, params_from_iter};
use serde_json::{Map, Value};

use super::buffer::Unwritten;
use super::error::{HistoryError, undamaged};
use super::layout::Layout;
use super::schema;
use crate::wire::{LogEntry, RunColumn, RunSort};

/// Errors of one run that are kept: the first ones.
pub(crate) const MAX_ERRORS: u64 = 10_000;
/// Log lines of one run that are kept: the last ones.
pub(crate) const MAX_LOGS: u64 = 10_000;
/// Time for which a key stands for its request, in seconds.
const KEY_SECONDS: i64 = 24 * 3600;
/// Time for which the finest rows are kept, in seconds.
const FINEST_SECONDS: i64 = 7 * 24 * 3600;

/// The unchanging facts of a submitted run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Registered {
    pub(crate) id: RunId,
    pub(crate) name: String,
    pub(crate) submitted_at: String,
    pub(crate) threads: u32,
    pub(crate) memory_mib: u64,
    /// `name@version`, in the order of stages.
    pub(crate) modules: Vec<String>,
    /// Digests by stage id.
    pub(crate) digests: BTreeMap<String, String>,
    pub(crate) document: Value,
    pub(crate) layout: Layout,
    pub(crate) for_s: Option<f64>,
    pub(crate) cloned_from: Option<RunId>,
}

/// A key that makes a request safe to repeat, and the digest of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    pub(crate) key: String,
    pub(crate) request: [u8; 32],
}

#[derive(Clone, Debug)]
pub(crate) struct StoredRun {
    pub(crate) summary: RunSummary,
    pub(crate) snapshot: Option<RunSnapshot>,
    pub(crate) cloned_from: Option<String>,
    pub(crate) history: Option<String>,
    pub(crate) errors_left_out: u64,
    pub(crate) logs_left_out: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct StoredDocument {
    pub(crate) document: Value,
    /// Digests by stage id.
    pub(crate) digests: BTreeMap<String, String>,
    pub(crate) for_s: Option<f64>,
}

#[derive(Clone, Debug)]
pub(crate) struct RunFilter {
    pub(crate) states: Vec<RunState>,
    pub(crate) name: Option<String>,
    pub(crate) module: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) sort: RunSort,
    /// Value of the sorted column and id of the last run of the page before.
    pub(crate) after: Option<(Value, String)>,
    pub(crate) limit: u32,
}

/// Meaning of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    No,
    /// The run of the same request.
    Same(RunId),
    Other,
}

/// Everything of a run to write at a time.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) summary: Option<(RunSummary, Option<RunSnapshot>)>,
    pub(crate) history: Option<String>,
    pub(crate) errors: Vec<RunError>,
    pub(crate) logs: Vec<LogEntry>,
    pub(crate) errors_left_out: u64,
    pub(crate) logs_left_out: u64,
}

/// Members of a [`RunSummary`] that are columns of `runs` and stay as they were submitted.
const SUBMITTED: [&str; 6] = ["id", "name", "submitted_at", "threads", "memory_mib", "modules"];
/// Members of a [`RunSummary`] that change as the run goes on, with the types of their columns. A file without one of these
/// columns gets it.
pub(crate) const CHANGING: [(&str, &str); 11] = [
    ("state", "TEXT"),
    ("error", "TEXT"),
    ("started_at", "TEXT"),
    ("ended_at", "TEXT"),
    ("elapsed_s", "REAL"),
    ("samples", "INTEGER"),
    ("expected", "INTEGER"),
    ("failed_samples", "INTEGER"),
    ("readiness", "REAL"),
    ("wait_s", "REAL"),
    ("qps", "REAL"),
];

/// Marks the runs of a server that has ended as interrupted.
pub(crate) fn interrupt_all(connection: &Connection) -> rusqlite::Result<usize> {
    connection.execute(
        "UPDATE runs SET state = 'interrupted', ended_at = ?1, \
         snapshot = CASE WHEN snapshot IS NULL OR NOT json_valid(snapshot) THEN snapshot ELSE json_set(snapshot, '$.state', 'interrupted') END \
         WHERE state IN ('queued', 'running', 'draining')",
        [now()],
    )
}

pub(crate) fn now() -> String {
    humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string()
}

pub(crate) fn insert(
    transaction: &Transaction<'_>,
    run: &Registered,
    repeat: Option<&Repeat>,
) -> Result<Known, HistoryError> {
    if let Some(repeat) = repeat {
        transaction.execute(
            "UPDATE runs SET key = NULL, request = NULL WHERE key = ?1 AND submitted_at < ?2",
            params![repeat.key, seconds_ago(KEY_SECONDS)],
        )?;
        let known = find_key(transaction, repeat)?;
        if known != Known::No {
            return Ok(known);
        }
    }
    transaction.execute(
        "INSERT INTO runs (id, name, state, submitted_at, threads, memory_mib, modules, digests, document, layout, for_s, cloned_from, key, request) \
         VALUES (:id, :name, 'queued', :submitted_at, :threads, :memory_mib, :modules, :digests, :document, :layout, :for_s, :cloned_from, :key, :request)",
        named_params! {
            ":id": &*run.id,
            ":name": run.name,
            ":submitted_at": run.submitted_at,
            ":threads": run.threads,
            ":memory_mib": run.memory_mib as i64,
            ":modules": serde_json::to_string(&run.modules)?,
            ":digests": serde_json::to_string(&run.digests)?,
            ":document": run.document.to_string(),
            ":layout": serde_json::to_string(&run.layout)?,
            ":for_s": run.for_s,
            ":cloned_from": run.cloned_from.as_deref(),
            ":key": repeat.map(|repeat| &repeat.key),
            ":request": repeat.map(|repeat| repeat.request.as_slice()),
        },
    )?;
    for digest in run.digests.values() {
        transaction.execute(
            "INSERT OR IGNORE INTO run_modules (run, digest) VALUES (?1, ?2)",
            params![&*run.id, digest],
        )?;
    }
    Ok(Known::No)
}

pub(crate) fn find_key(connection: &Connection, repeat: &Repeat) -> Result<Known, HistoryError> {
    let found: Option<(String, Vec<u8>)> = connection
        .query_row(
            "SELECT id, request FROM runs WHERE key = ?1 AND submitted_at >= ?2",
            params![repeat.key, seconds_ago(KEY_SECONDS)],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    Ok(match found {
        None => Known::No,
        Some((id, request)) if request == repeat.request => Known::Same(id.into()),
        Some(_) => Known::Other,
    })
}

pub(crate) fn write(
    transaction: &Transaction<'_>,
    run: &str,
    entry: &Entry,
    unwritten: &Unwritten,
) -> Result<(), HistoryError> {
    let at = unix_now();
    let mut chunk = transaction.prepare_cached(
        "INSERT OR REPLACE INTO chunks (run, level, number, last_row, written_at, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for written in &unwritten.chunks {
        let (level, number, last) = (written.level.number(), written.number as i64, written.last_row as i64);
        chunk.execute(params![run, level, number, last, at, written.data])?;
    }
    let mut times =
        transaction.prepare_cached("INSERT OR REPLACE INTO times (run, number, data) VALUES (?1, ?2, ?3)")?;
    for (number, data, _) in &unwritten.times {
        times.execute(params![run, *number as i64, data])?;
    }
    let mut error = transaction.prepare_cached(
        "INSERT OR REPLACE INTO errors (run, number, stage, class, key, message, error) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for written in &entry.errors {
        let failure = &written.failure;
        let (number, class, whole) =
            (written.number as i64, failure.class.name(), serde_json::to_string(written)?);
        error.execute(params![run, number, failure.stage, class, failure.key, failure.message, whole])?;
    }
    let mut log = transaction.prepare_cached(
        "INSERT OR REPLACE INTO logs (run, number, stage, level, at_s, message) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for line in &entry.logs {
        log.execute(params![run, line.number as i64, line.stage, line.level as u8, line.at_s, line.message])?;
    }
    if let Some(last) = entry.logs.last().filter(|last| last.number > MAX_LOGS) {
        transaction.execute(
            "DELETE FROM logs WHERE run = ?1 AND number <= ?2",
            params![run, (last.number - MAX_LOGS) as i64],
        )?;
    }
    transaction.execute(
        "UPDATE runs SET history = ?2, errors_left_out = ?3, logs_left_out = ?4 WHERE id = ?1",
        params![run, entry.history, entry.errors_left_out as i64, entry.logs_left_out as i64],
    )?;
    if let Some((summary, snapshot)) = &entry.summary {
        write_summary(transaction, summary, snapshot.as_ref())?;
    }
    Ok(())
}

pub(crate) fn write_summary(
    transaction: &Transaction<'_>,
    summary: &RunSummary,
    snapshot: Option<&RunSnapshot>,
) -> Result<(), HistoryError> {
    let members = serde_json::to_value(summary)?;
    let snapshot = snapshot.map(serde_json::to_string).transpose()?;
    let mut values = vec![Sql::Text(summary.id.clone()), snapshot.map_or(Sql::Null, Sql::Text)];
    let mut set = "snapshot = coalesce(?2, snapshot)".to_owned();
    for (column, _) in CHANGING {
        values.push(match &members[column] {
            Value::Null => Sql::Null,
            Value::String(text) => Sql::Text(text.clone()),
            number => {
                number.as_i64().map(Sql::Integer).or(number.as_f64().map(Sql::Real)).unwrap_or(Sql::Null)
            }
        });
        set.push_str(&format!(", {column} = ?{}", values.len()));
    }
    let mut update = transaction.prepare_cached(&format!("UPDATE runs SET {set} WHERE id = ?1"))?;
    update.execute(params_from_iter(values))?;
    Ok(())
}

/// Writes the end of a run, and the reason why its history is incomplete.
pub(crate) fn write_end(
    transaction: &Transaction<'_>,
    summary: &RunSummary,
    snapshot: Option<&RunSnapshot>,
    history: Option<&str>,
) -> Result<(), HistoryError> {
    write_summary(transaction, summary, snapshot)?;
    transaction.execute("UPDATE runs SET history = ?2 WHERE id = ?1", params![summary.id, history])?;
    Ok(())
}

pub(crate) fn find(connection: &Connection, id: &str) -> Result<Option<StoredRun>, HistoryError> {
    let found = connection
        .query_row(
            &format!("SELECT {}, snapshot, cloned_from, history, errors_left_out, logs_left_out FROM runs WHERE id = ?1", columns()),
            [id],
            |row| {
                let snapshot: Option<String> = row.get("snapshot")?;
                let left_out: (i64, i64) = (row.get("errors_left_out")?, row.get("logs_left_out")?);
                let history: Option<String> = row.get("history")?;
                Ok((summary(row)?, snapshot, row.get("cloned_from")?, history, left_out))
            },
        )
        .optional()?;
    let Some((summary, snapshot, cloned_from, history, (errors, logs))) = found else { return Ok(None) };
    let snapshot = snapshot.map(|text| serde_json::from_str(&text).map(RunSnapshot::completed)).transpose();
    let damage = snapshot.as_ref().err().map(|_| "its last snapshot is damaged".to_owned());
    let history: Vec<String> = history.into_iter().chain(damage).collect();
    Ok(Some(StoredRun {
        summary: summary?,
        snapshot: snapshot.unwrap_or(None),
        cloned_from,
        history: (!history.is_empty()).then(|| history.join("; ")),
        errors_left_out: errors as u64,
        logs_left_out: logs as u64,
    }))
}

pub(crate) fn document(connection: &Connection, id: &str) -> Result<Option<StoredDocument>, HistoryError> {
    let found: Option<(String, String, Option<f64>)> = connection
        .query_row("SELECT document, digests, for_s FROM runs WHERE id = ?1", [id], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((document, digests, for_s)) = found else { return Ok(None) };
    let (document, digests) = (serde_json::from_str(&document)?, serde_json::from_str(&digests)?);
    Ok(Some(StoredDocument { document, digests, for_s }))
}

pub(crate) fn layout(connection: &Connection, id: &str) -> Result<Option<Layout>, HistoryError> {
    let found: Option<String> =
        connection.query_row("SELECT layout FROM runs WHERE id = ?1", [id], |row| row.get(0)).optional()?;
    Ok(found.map(|text| serde_json::from_str(&text)).transpose()?)
}

/// Returns the runs of a page, and true if there are more.
pub(crate) fn list(
    connection: &Connection,
    filter: &RunFilter,
) -> Result<(Vec<RunSummary>, bool), HistoryError> {
    let mut wanted = vec!["1".to_owned()];
    let mut values: Vec<Sql> = Vec::new();
    let mut value = |value: Sql| {
        values.push(value);
        format!("?{}", values.len())
    };
    if !filter.states.is_empty() {
        let states: Vec<String> =
            filter.states.iter().map(|state| value(Sql::Text(state.name().to_owned()))).collect();
        wanted.push(format!("state IN ({})", states.join(", ")));
    }
    if let Some(name) = &filter.name {
        wanted.push(format!("name = {}", value(Sql::Text(name.clone()))));
    }
    if let Some(module) = &filter.module {
        let module = value(Sql::Text(module.clone()));
        wanted.push(format!("id IN (SELECT run FROM run_modules WHERE digest = {module})"));
    }
    if let Some(text) = &filter.text {
        let like = value(Sql::Text(like(text)));
        wanted.push(format!(
            "(name LIKE {like} ESCAPE '\\' OR id LIKE {like} ESCAPE '\\' OR modules LIKE {like} ESCAPE '\\')"
        ));
    }
    let column = column(filter.sort.by);
    let (order, beyond) = if filter.sort.is_descending { ("DESC", "<") } else { ("ASC", ">") };
    if let Some((last, id)) = &filter.after {
        let last = value(match last {
            Value::Number(number) => Sql::Real(number.as_f64().unwrap_or(-1.0)),
            other => Sql::Text(other.as_str().unwrap_or_default().to_owned()),
        });
        let id = value(Sql::Text(id.clone()));
        wanted.push(format!("({column}, id) {beyond} ({last}, {id})"));
    }
    let limit = value(Sql::Integer(i64::from(filter.limit) + 1));
    let query = format!(
        "SELECT {} FROM runs WHERE {} ORDER BY {column} {order}, id {order} LIMIT {limit}",
        columns(),
        wanted.join(" AND ")
    );
    let mut statement = connection.prepare_cached(&query)?;
    let rows = statement.query_map(params_from_iter(values), summary)?;
    let mut found = Vec::new();
    let mut count = 0;
    for row in rows {
        count += 1;
        if count <= filter.limit {
            found.extend(undamaged("run", row)?);
        }
    }
    Ok((found, count > filter.limit))
}

/// Value of the sorted column, as a cursor holds it.
pub(crate) fn sort_value(summary: &RunSummary, by: RunColumn) -> Value {
    let number = |number: Option<f64>| Value::from(number.unwrap_or(-1.0));
    match by {
        RunColumn::SubmittedAt => summary.submitted_at.clone().into(),
        RunColumn::Name => summary.name.clone().into(),
        RunColumn::State => summary.state.name().into(),
        RunColumn::ElapsedS => number(summary.elapsed_s),
        RunColumn::Samples => number(summary.samples.map(|count| count as f64)),
        RunColumn::FailedSamples => number(Some(summary.failed_samples as f64)),
        RunColumn::Readiness => number(summary.readiness),
        RunColumn::WaitS => number(summary.wait_s),
        RunColumn::Qps => number(summary.qps),
    }
}

/// The order of two runs in a list, as the database has it.
pub(crate) fn compare(one: &RunSummary, other: &RunSummary, sort: RunSort) -> Ordering {
    let (first, second) = (sort_value(one, sort.by), sort_value(other, sort.by));
    let order = match (first.as_f64(), second.as_f64()) {
        (Some(first), Some(second)) => first.total_cmp(&second),
        _ => first.as_str().cmp(&second.as_str()),
    };
    let order = order.then_with(|| one.id.cmp(&other.id));
    if sort.is_descending { order.reverse() } else { order }
}

fn column(by: RunColumn) -> &'static str {
    match by {
        RunColumn::SubmittedAt => "submitted_at",
        RunColumn::Name => "name",
        RunColumn::State => "state",
        RunColumn::ElapsedS => "coalesce(elapsed_s, -1)",
        RunColumn::Samples => "coalesce(samples, -1)",
        RunColumn::FailedSamples => "failed_samples",
        RunColumn::Readiness => "coalesce(readiness, -1)",
        RunColumn::WaitS => "coalesce(wait_s, -1)",
        RunColumn::Qps => "coalesce(qps, -1)",
    }
}

/// The text anywhere, taken literally.
pub(crate) fn like(text: &str) -> String {
    format!("%{}%", text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_"))
}

/// Removes a run in any state.
pub(crate) fn unregister(transaction: &Transaction<'_>, id: &str) -> Result<(), HistoryError> {
    transaction.execute("DELETE FROM runs WHERE id = ?1", [id])?;
    Ok(())
}

/// The oldest runs that are over, where there are more than are `kept`; so many of them at most.
pub(crate) fn oldest(connection: &Connection, kept: u64, most: u32) -> Result<Vec<RunId>, HistoryError> {
    let count: i64 = connection.query_row("SELECT count(*) FROM runs", [], |row| row.get(0))?;
    let beyond = (count as u64).saturating_sub(kept).min(u64::from(most));
    if beyond == 0 {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare_cached(
        "SELECT id FROM runs WHERE state NOT IN ('queued', 'running', 'draining') ORDER BY submitted_at, id LIMIT ?1",
    )?;
    let ids = statement.query_map([beyond as i64], |row| Ok(row.get::<_, String>(0)?.into()))?;
    Ok(ids.collect::<rusqlite::Result<_>>()?)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    Yes,
    NotThere,
    Alive,
}

/// Removes a run that is over, and all that is kept of it.
pub(crate) fn remove(transaction: &Transaction<'_>, id: &str) -> Result<Removed, HistoryError> {
    let removed = transaction
        .execute("DELETE FROM runs WHERE id = ?1 AND state NOT IN ('queued', 'running', 'draining')", [id])?;
    if removed > 0 {
        return Ok(Removed::Yes);
    }
    let is_there = transaction.prepare_cached("SELECT 1 FROM runs WHERE id = ?1")?.exists([id])?;
    Ok(if is_there { Removed::Alive } else { Removed::NotThere })
}

pub(crate) fn count_by_state(connection: &Connection) -> Result<BTreeMap<RunState, u64>, HistoryError> {
    let mut statement = connection.prepare_cached("SELECT state, count(*) FROM runs GROUP BY state")?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
    let mut counts: BTreeMap<RunState, u64> = RunState::ALL.iter().map(|state| (*state, 0)).collect();
    for row in rows {
        let (state, count) = row?;
        counts.extend(state.parse::<RunState>().ok().map(|state| (state, count as u64)));
    }
    Ok(counts)
}

/// Removes the finest rows that are old and whose time coarser ones cover.
pub(crate) fn sweep(transaction: &Transaction<'_>) -> Result<usize, HistoryError> {
    Ok(transaction.execute(
        "DELETE FROM chunks WHERE level = 0 AND written_at < ?1 AND EXISTS (SELECT 1 FROM chunks AS wider \
         WHERE wider.run = chunks.run AND wider.level = 1 AND wider.last_row * 16 + 15 >= chunks.last_row)",
        [unix_now() - FINEST_SECONDS],
    )?)
}

fn unix_now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn seconds_ago(seconds: i64) -> String {
    let past = std::time::SystemTime::now() - std::time::Duration::from_secs(seconds.unsigned_abs());
    humantime::format_rfc3339_millis(past).to_string()
}

/// Names of the columns that [`summary`] reads.
fn columns() -> String {
    let changing = CHANGING.iter().map(|(column, _)| *column);
    SUBMITTED.into_iter().chain(changing).collect::<Vec<_>>().join(", ")
}

/// Reads the [`columns`] of a row; the inner error is of what they hold.
fn summary(row: &Row<'_>) -> rusqlite::Result<Result<RunSummary, HistoryError>> {
    let mut members = Map::new();
    for column in SUBMITTED.into_iter().chain(CHANGING.iter().map(|(column, _)| *column)) {
        let member = match row.get(column)? {
            Sql::Integer(number) => number.into(),
            Sql::Real(number) => number.into(),
            Sql::Text(text) => text.into(),
            Sql::Null | Sql::Blob(_) => Value::Null,
        };
        members.insert(column.to_owned(), member);
    }
    let parts = || -> Result<RunSummary, HistoryError> {
        members["modules"] = serde_json::from_str(members["modules"].as_str().unwrap_or_default())?;
        let summary: RunSummary = serde_json::from_value(members.into())?;
        let rate = summary.samples.zip(summary.elapsed_s);
        Ok(RunSummary {
            samples_per_s: rate.and_then(|(samples, elapsed_s)| per_second(samples, elapsed_s)),
            ..summary
        })
    };
    Ok(parts())
}

const _: () = assert!(schema::VERSION == 3, "look through the queries here when the schema changes");
