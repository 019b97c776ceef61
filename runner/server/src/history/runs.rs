//! The table of runs.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use penstock_types::run::{RunDetail, RunError, RunId, RunSnapshot, RunState, RunSummary};
use penstock_types::stats::per_second;
use penstock_types::tags::Tags;
use penstock_types::verdict::VerdictKind;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params, params, params_from_iter};
use serde_json::{Map, Value};

use super::buffer::Unwritten;
use super::error::HistoryError;
use super::layout::Layout;
use super::query::{NO_FIGURE, PageQuery, all, count, first, json_of, like};
use super::schema;
use crate::error::RunsError;
use crate::wire::{LogEntry, RunColumn, RunQuery, RunSort, RunSpec, limit};

/// Maximum number of stored errors of one run; the first ones are kept.
pub(crate) const MAX_ERRORS: u64 = 10_000;
/// Maximum number of stored log lines of one run; the last ones are kept.
pub(crate) const MAX_LOGS: u64 = 10_000;
/// Lifetime of an `Idempotency-Key`, in seconds.
const KEY_SECONDS: i64 = 24 * 3600;
/// Time for which rows of the finest level are kept, in seconds.
const FINEST_SECONDS: i64 = 7 * 24 * 3600;

/// Facts of a submitted run that do not change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Registered {
    /// Summary of the run as of its submission.
    pub(crate) summary: RunSummary,
    pub(crate) layout: Layout,
    pub(crate) for_s: Option<f64>,
    pub(crate) cloned_from: Option<RunId>,
    pub(crate) resumes: Option<RunId>,
}

/// `Idempotency-Key` of a submission, and the digest of the request. Keys of different tokens are different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    pub(crate) token: String,
    pub(crate) key: String,
    pub(crate) request: [u8; 32],
}

impl Repeat {
    /// Key as stored. Neither names of tokens nor keys contain blanks, so a key of an earlier version, which was stored without a
    /// token, is never equal.
    fn stored_key(&self) -> String {
        format!("{} {}", self.token, self.key)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) summary: Option<(RunSummary, Option<RunSnapshot>)>,
    pub(crate) history: Option<String>,
    pub(crate) errors: Vec<RunError>,
    pub(crate) logs: Vec<LogEntry>,
    pub(crate) errors_left_out: u64,
    pub(crate) logs_left_out: u64,
    /// State of a run that has started; the inner `None` if it cannot be resumed.
    pub(crate) state: Option<Option<String>>,
}

/// Fields of a [`RunSummary`] that are columns of `runs` and do not change after the submission.
const SUBMITTED: [&str; 6] = ["id", "name", "submitted_at", "threads", "memory_mib", "modules"];
/// Fields of a [`RunSummary`] that change during the run, with the types of their columns. A column that is missing in a file is
/// added; the column of a field that is not optional has a default.
pub(crate) const CHANGING: [(&str, &str); 13] = [
    ("state", "TEXT NOT NULL DEFAULT 'interrupted'"),
    ("error", "TEXT"),
    ("started_at", "TEXT"),
    ("ended_at", "TEXT"),
    ("elapsed_s", "REAL"),
    ("samples", "INTEGER"),
    ("expected", "INTEGER"),
    ("failed_samples", "INTEGER NOT NULL DEFAULT 0"),
    ("readiness", "REAL"),
    ("wait_s", "REAL"),
    ("qps", "REAL"),
    ("verdict", "TEXT"),
    ("verdict_stage", "TEXT"),
];
/// Name and type of the column of tags, which only clients change. The column is added to files that lack it.
pub(crate) const TAGS: (&str, &str) = ("tags", "TEXT NOT NULL DEFAULT '[]'");
/// Statement that fills missing verdicts in the summaries of runs from the snapshots of these runs.
pub(crate) const FILL_VERDICTS: &str = "UPDATE runs SET verdict = json_extract(snapshot, '$.verdict.kind'), \
     verdict_stage = json_extract(snapshot, '$.verdict.stage') WHERE json_valid(snapshot)";

/// Marks the unfinished runs of an earlier start of the server as interrupted.
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

/// Stores a submitted run, with the state from which it begins if it resumes another one. Returns the run of an earlier submission
/// with the same key instead, if there is one.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    run: &Registered,
    spec: &RunSpec,
    begins_at: Option<&str>,
    repeat: Option<&Repeat>,
) -> Result<Result<Option<RunId>, RunsError>, HistoryError> {
    let summary = &run.summary;
    if let Some(repeat) = repeat {
        let forget = "UPDATE runs SET key = NULL, request = NULL WHERE key = ?1 AND submitted_at < ?2";
        transaction.execute(forget, [repeat.stored_key(), seconds_ago(KEY_SECONDS)])?;
        let known = find_key(transaction, repeat)?;
        if !matches!(known, Ok(None)) {
            return Ok(known);
        }
    }
    transaction.execute(
        "INSERT INTO runs (id, name, state, submitted_at, threads, memory_mib, modules, tags, digests, document, layout, for_s, cloned_from, resumes, key, request) \
         VALUES (:id, :name, 'queued', :submitted_at, :threads, :memory_mib, :modules, :tags, :digests, :document, :layout, :for_s, :cloned_from, :resumes, :key, :request)",
        named_params! {
            ":id": &*summary.id,
            ":name": summary.name,
            ":submitted_at": summary.submitted_at,
            ":threads": summary.threads,
            ":memory_mib": summary.memory_mib as i64,
            ":modules": serde_json::to_string(&summary.modules)?,
            ":tags": serde_json::to_string(&summary.tags)?,
            ":digests": serde_json::to_string(&spec.modules)?,
            ":document": spec.document.to_string(),
            ":layout": serde_json::to_string(&run.layout)?,
            ":for_s": run.for_s,
            ":cloned_from": run.cloned_from.as_deref(),
            ":resumes": run.resumes.as_deref(),
            ":key": repeat.map(Repeat::stored_key),
            ":request": repeat.map(|repeat| repeat.request.as_slice()),
        },
    )?;
    for digest in spec.modules.values() {
        let insert = "INSERT OR IGNORE INTO run_modules (run, digest) VALUES (?1, ?2)";
        transaction.execute(insert, [&*summary.id, digest])?;
    }
    if begins_at.is_some() {
        write_state(transaction, &summary.id, begins_at)?;
    }
    Ok(Ok(None))
}

/// Finds the run that was submitted with the key: by the same token, else by a server of an earlier version, on which all tokens
/// shared their keys.
pub(crate) fn find_key(
    connection: &Connection,
    repeat: &Repeat,
) -> Result<Result<Option<RunId>, RunsError>, HistoryError> {
    let query = "SELECT id, request FROM runs WHERE key IN (?1, ?2) AND submitted_at >= ?3 ORDER BY key = ?1 DESC LIMIT 1";
    let params = params![repeat.stored_key(), repeat.key, seconds_ago(KEY_SECONDS)];
    let found = connection.query_row(query, params, |row| <(String, Vec<u8>)>::try_from(row)).optional()?;
    Ok(match found {
        Some((_, request)) if request != repeat.request => Err(RunsError::KeyReused),
        found => Ok(found.map(|(id, _)| id.into())),
    })
}

pub(crate) fn write(
    transaction: &Transaction<'_>,
    run: &str,
    entry: &Entry,
    unwritten: &Unwritten,
) -> Result<(), HistoryError> {
    let mut chunk = transaction.prepare_cached(
        "INSERT OR REPLACE INTO chunks (run, level, number, last_row, written_at, data, books) VALUES (?1, ?2, ?3, ?4, unixepoch(), ?5, ?6)",
    )?;
    for written in &unwritten.chunks {
        let (level, number, last) = (written.level.number(), written.number as i64, written.last_row as i64);
        chunk.execute(params![run, level, number, last, written.data, written.books])?;
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
        let delete = "DELETE FROM logs WHERE run = ?1 AND number <= ?2";
        transaction.execute(delete, params![run, (last.number - MAX_LOGS) as i64])?;
    }
    transaction.execute(
        "UPDATE runs SET history = ?2, errors_left_out = ?3, logs_left_out = ?4 WHERE id = ?1",
        params![run, entry.history, entry.errors_left_out as i64, entry.logs_left_out as i64],
    )?;
    if let Some((summary, snapshot)) = &entry.summary {
        write_summary(transaction, summary, snapshot.as_ref())?;
    }
    if let Some(state) = &entry.state {
        write_state(transaction, run, state.as_deref())?;
    }
    Ok(())
}

fn write_state(transaction: &Transaction<'_>, run: &str, state: Option<&str>) -> Result<(), HistoryError> {
    let write = "INSERT OR REPLACE INTO resume_states (run, state) VALUES (?1, ?2)";
    transaction.prepare_cached(write)?.execute(params![run, state])?;
    Ok(())
}

/// Returns the state from which a run is resumed, if it has one; the inner `None` if the run cannot be resumed.
pub(crate) fn state(connection: &Connection, id: &str) -> Result<Option<Option<String>>, HistoryError> {
    Ok(first(connection, "SELECT state FROM resume_states WHERE run = ?1", [id])?)
}

pub(crate) fn write_summary(
    transaction: &Transaction<'_>,
    summary: &RunSummary,
    snapshot: Option<&RunSnapshot>,
) -> Result<(), HistoryError> {
    let members = serde_json::to_value(summary)?;
    let snapshot = snapshot.map(serde_json::to_string).transpose()?;
    let mut values = vec![Sql::Text(summary.id.to_string()), snapshot.map_or(Sql::Null, Sql::Text)];
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

/// Writes the end of a run, and the reason why the history of the run is incomplete.
pub(crate) fn write_end(
    transaction: &Transaction<'_>,
    summary: &RunSummary,
    snapshot: Option<&RunSnapshot>,
    history: Option<&str>,
) -> Result<(), HistoryError> {
    write_summary(transaction, summary, snapshot)?;
    transaction.execute("UPDATE runs SET history = ?2 WHERE id = ?1", params![&*summary.id, history])?;
    Ok(())
}

pub(crate) fn find(connection: &Connection, id: &str) -> Result<Option<RunDetail>, HistoryError> {
    let query = format!(
        "SELECT {}, snapshot, cloned_from, resumes, history, errors_left_out, logs_left_out, \
         EXISTS (SELECT 1 FROM resume_states WHERE run = id AND resume_states.state IS NOT NULL) AS has_state FROM runs WHERE id = ?1",
        columns().collect::<Vec<_>>().join(", ")
    );
    let found = connection.query_row(&query, [id], |row| {
        let snapshot: Option<String> = row.get("snapshot")?;
        let snapshot =
            snapshot.map(|text| serde_json::from_str(&text).map(RunSnapshot::completed)).transpose();
        let damage = snapshot.as_ref().err().map(|_| "the last snapshot is damaged".to_owned());
        let history: Vec<String> = row.get::<_, Option<_>>("history")?.into_iter().chain(damage).collect();
        let left_out = |column: &str| row.get::<_, i64>(column).map(|count| count as u64);
        let (errors_left_out, logs_left_out) = (left_out("errors_left_out")?, left_out("logs_left_out")?);
        let other = |column: &str| row.get::<_, Option<String>>(column).map(|id| id.map(RunId::from));
        let (cloned_from, resumes) = (other("cloned_from")?, other("resumes")?);
        let has_state: bool = row.get("has_state")?;
        Ok(summary(row)?.map(|summary| RunDetail {
            resumable: has_state && summary.state.is_over(),
            summary,
            waiting: None,
            snapshot: snapshot.unwrap_or(None),
            cloned_from,
            resumes,
            history: (!history.is_empty()).then(|| history.join("; ")),
            errors_left_out,
            logs_left_out,
        }))
    });
    found.optional()?.transpose()
}

/// Returns the document of a run, and the `for_s` of its submission.
pub(crate) fn document(
    connection: &Connection,
    id: &str,
) -> Result<Option<(RunSpec, Option<f64>)>, HistoryError> {
    let found: Option<(String, String, Option<f64>)> = connection
        .query_row("SELECT document, digests, for_s FROM runs WHERE id = ?1", [id], |row| row.try_into())
        .optional()?;
    let Some((document, digests, for_s)) = found else { return Ok(None) };
    let (document, modules) = (serde_json::from_str(&document)?, serde_json::from_str(&digests)?);
    Ok(Some((RunSpec { document, modules }, for_s)))
}

pub(crate) fn layout(connection: &Connection, id: &str) -> Result<Option<Layout>, HistoryError> {
    let found: Option<String> = first(connection, "SELECT layout FROM runs WHERE id = ?1", [id])?;
    Ok(found.map(|text| serde_json::from_str(&text)).transpose()?)
}

/// Returns the runs of a page, and true if there are more. `after` has the [`sort_value`] and the id of the last run of the
/// previous page.
pub(crate) fn list(
    connection: &Connection,
    query: RunQuery,
    after: Option<(Value, RunId)>,
) -> Result<(Vec<RunSummary>, bool), HistoryError> {
    let (column, limit) = (column(query.sort.by), limit(query.limit));
    let states = (!query.states.is_empty()).then(|| serde_json::to_string(&query.states)).transpose()?;
    let mut page = PageQuery::default()
        .with("state IN (SELECT value FROM json_each(?))", states)
        .with("name = ?", query.name)
        .with("id IN (SELECT run FROM run_modules WHERE digest = ?)", query.module)
        .with(
            "(name LIKE ? ESCAPE '\\' OR id LIKE ? ESCAPE '\\' OR modules LIKE ? ESCAPE '\\' OR tags LIKE ? ESCAPE '\\')",
            query.text.as_deref().map(like),
        );
    for tag in query.tags.iter() {
        page = page.with("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)", Some(tag.clone()));
    }
    let after = after.map(|(last, id)| (last, Sql::Text(id.to_string())));
    let (page, order) = page.sorted((&column, "id"), query.sort.is_descending, after);
    let columns = format!("{} FROM runs", columns().collect::<Vec<_>>().join(", "));
    page.read(connection, ("run", &columns, &order), limit, summary)
}

/// Value of a run in the column by which the list is sorted, as stored in cursors.
pub(crate) fn sort_value(summary: &RunSummary, by: RunColumn) -> Value {
    let figure = match by {
        RunColumn::SubmittedAt => return summary.submitted_at.clone().into(),
        RunColumn::Name => return summary.name.clone().into(),
        RunColumn::State => return summary.state.name().into(),
        RunColumn::Verdict => return summary.verdict.map_or("", VerdictKind::name).into(),
        RunColumn::Modules => return serde_json::to_string(&summary.modules).unwrap_or_default().into(),
        RunColumn::ElapsedS => summary.elapsed_s,
        RunColumn::Samples => summary.samples.map(|count| count as f64),
        RunColumn::FailedSamples => Some(summary.failed_samples as f64),
        RunColumn::Readiness => summary.readiness,
        RunColumn::WaitS => summary.wait_s,
        RunColumn::Qps => summary.qps,
        RunColumn::SamplesPerS => summary.samples_per_s,
    };
    figure.unwrap_or(NO_FIGURE).into()
}

/// Compares two runs for the order of a list, with the same result as in the database.
pub(crate) fn compare(one: &RunSummary, other: &RunSummary, sort: RunSort) -> Ordering {
    let (first, second) = (sort_value(one, sort.by), sort_value(other, sort.by));
    let order = match (first.as_f64(), second.as_f64()) {
        (Some(first), Some(second)) => first.total_cmp(&second),
        _ => first.as_str().cmp(&second.as_str()),
    };
    let order = order.then_with(|| one.id.cmp(&other.id));
    if sort.is_descending { order.reverse() } else { order }
}

fn column(by: RunColumn) -> String {
    match by {
        // Column names without an expression, so that SQLite can use an index.
        RunColumn::SubmittedAt | RunColumn::Name | RunColumn::State | RunColumn::Modules => {
            <&str>::from(by).to_owned()
        }
        RunColumn::Verdict => "coalesce(verdict, '')".to_owned(),
        // The same formula as in `per_second`, which computes this figure of the summary.
        RunColumn::SamplesPerS => {
            format!(
                "coalesce(CASE WHEN elapsed_s > 0 THEN CAST(samples AS REAL) / elapsed_s END, {NO_FIGURE})"
            )
        }
        figure => format!("coalesce({}, {NO_FIGURE})", <&str>::from(figure)),
    }
}

/// Replaces the tags of a run; false for an unknown run.
pub(crate) fn set_tags(transaction: &Transaction<'_>, id: &str, tags: &Tags) -> Result<bool, HistoryError> {
    let tags = serde_json::to_string(tags)?;
    Ok(transaction.execute("UPDATE runs SET tags = ?2 WHERE id = ?1", [id, &tags])? > 0)
}

pub(crate) fn unregister(transaction: &Transaction<'_>, id: &str) -> Result<(), HistoryError> {
    transaction.execute("DELETE FROM runs WHERE id = ?1", [id])?;
    Ok(())
}

/// Returns the oldest ended runs that must be removed so that at most `kept` runs remain, but at most `most` of them.
pub(crate) fn oldest(connection: &Connection, kept: u64, most: u32) -> Result<Vec<RunId>, HistoryError> {
    let beyond = count(connection, "SELECT count(*) FROM runs", [])?.saturating_sub(kept).min(most.into());
    let query = "SELECT id FROM runs WHERE state NOT IN ('queued', 'running', 'draining') ORDER BY submitted_at, id LIMIT ?1";
    let ids: Vec<String> = all(connection, query, [beyond as i64])?;
    Ok(ids.into_iter().map(RunId::from).collect())
}

/// Removes a run that has ended, with all of its rows in other tables; false if there is no such run.
pub(crate) fn remove(transaction: &Transaction<'_>, id: &str) -> Result<bool, HistoryError> {
    let remove = "DELETE FROM runs WHERE id = ?1 AND state NOT IN ('queued', 'running', 'draining')";
    Ok(transaction.execute(remove, [id])? > 0)
}

pub(crate) fn count_by_state(connection: &Connection) -> Result<BTreeMap<RunState, u64>, HistoryError> {
    let mut statement = connection.prepare_cached("SELECT state, count(*) FROM runs GROUP BY state")?;
    let mut counts: BTreeMap<RunState, u64> = RunState::ALL.iter().map(|state| (*state, 0)).collect();
    for row in statement.query_map([], |row| row.try_into())? {
        let (state, count): (String, i64) = row?;
        counts.extend(state.parse::<RunState>().ok().map(|state| (state, count as u64)));
    }
    Ok(counts)
}

/// Removes old rows of the finest level for which rows of the next coarser level exist.
pub(crate) fn sweep(transaction: &Transaction<'_>) -> Result<usize, HistoryError> {
    Ok(transaction.execute(
        "DELETE FROM chunks WHERE level = 0 AND written_at < unixepoch() - ?1 AND EXISTS (SELECT 1 FROM chunks AS wider \
         WHERE wider.run = chunks.run AND wider.level = 1 AND wider.last_row * 16 + 15 >= chunks.last_row)",
        [FINEST_SECONDS],
    )?)
}

fn seconds_ago(seconds: i64) -> String {
    let past = std::time::SystemTime::now() - std::time::Duration::from_secs(seconds.unsigned_abs());
    humantime::format_rfc3339_millis(past).to_string()
}

/// Names of the columns that [`summary`] reads.
fn columns() -> impl Iterator<Item = &'static str> {
    SUBMITTED.into_iter().chain([TAGS.0]).chain(CHANGING.iter().map(|(column, _)| *column))
}

/// Reads the [`columns`] of a row. The inner error reports damaged content.
fn summary(row: &Row<'_>) -> rusqlite::Result<Result<RunSummary, HistoryError>> {
    let mut members = Map::new();
    for column in columns() {
        members.insert(column.to_owned(), json_of(row.get(column)?));
    }
    let parts = || -> Result<RunSummary, HistoryError> {
        for list in ["modules", TAGS.0] {
            members[list] = serde_json::from_str(members[list].as_str().unwrap_or_default())?;
        }
        let summary: RunSummary = serde_json::from_value(members.into())?;
        let rate = summary.samples.zip(summary.elapsed_s);
        Ok(RunSummary {
            samples_per_s: rate.and_then(|(samples, elapsed_s)| per_second(samples, elapsed_s)),
            ..summary
        })
    };
    Ok(parts())
}

const _: () = assert!(schema::VERSION == 8, "check the queries in this file when the schema changes");
