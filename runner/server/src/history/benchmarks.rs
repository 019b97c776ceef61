//! The table of benchmark reports, whose content is opaque to the server.

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::Value;

use super::chunk::{compress, decompress};
use super::error::HistoryError;
use super::query::{PageQuery, first};
use crate::wire::{BenchmarkColumn, BenchmarkQuery, KeptBenchmark, limit};

/// Maximum number of stored reports; a further report replaces the oldest.
pub const MAX_BENCHMARKS: u32 = 1_000;
/// Maximum size of a report, in bytes.
pub const MAX_BENCHMARK_BYTES: usize = 16 << 20;

/// Compressed report to store in the table.
#[derive(Debug)]
pub(crate) struct Packed {
    /// SHA-256 of the report.
    pub(crate) digest: [u8; 32],
    report: Vec<u8>,
}

impl Packed {
    /// Compresses a report; blocks for a noticeable time if the report is large.
    pub(crate) fn new(digest: [u8; 32], report: &[u8]) -> Self {
        Self { digest, report: compress(report) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.report.len() as u64
    }
}

/// Stores a report, and removes the oldest if there are too many. If the same report is already stored, returns the stored
/// benchmark and `false`.
pub(crate) fn insert(
    transaction: &Transaction<'_>,
    benchmark: KeptBenchmark,
    packed: &Packed,
) -> Result<(KeptBenchmark, bool), HistoryError> {
    let known = transaction
        .query_row(
            "SELECT number, id, kept_at, summary FROM benchmarks WHERE digest = ?1",
            [packed.digest],
            read,
        )
        .optional()?;
    if let Some(known) = known {
        return Ok((known?.1, false));
    }
    transaction.execute(
        "INSERT INTO benchmarks (id, kept_at, digest, summary, report) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![benchmark.id, benchmark.kept_at, packed.digest, benchmark.summary.to_string(), packed.report],
    )?;
    transaction.execute(
        "DELETE FROM benchmarks WHERE number <= \
         (SELECT number FROM benchmarks ORDER BY number DESC LIMIT 1 OFFSET ?1)",
        [MAX_BENCHMARKS],
    )?;
    Ok((benchmark, true))
}

/// Position of a benchmark in a sorted list: the value in the column by which the list is sorted, and the number of the
/// benchmark.
pub(crate) type Place = (Value, i64);

/// Lists the benchmarks of a page with their positions; also returns true if there are more. `after` is the position of the last
/// benchmark of the previous page.
pub(crate) fn list(
    connection: &Connection,
    query: &BenchmarkQuery,
    after: Option<Place>,
) -> Result<(Vec<(Place, KeptBenchmark)>, bool), HistoryError> {
    let (order, than) = if query.sort.is_descending { ("DESC", "<") } else { ("ASC", ">") };
    let column = column(query.sort.by);
    let mut page = PageQuery::default();
    if let Some((last, number)) = after {
        let last = match last {
            Value::String(text) => Sql::Text(text),
            other => Sql::Real(other.as_f64().unwrap_or(NO_FIGURE)),
        };
        page = page.beyond((&column, "number"), than, (last, number.into()));
    }
    let columns = format!("number, id, kept_at, summary, {column} AS place FROM benchmarks");
    let order = format!("{column} {order}, number {order}");
    page.read(connection, ("benchmark", &columns, &order), limit(query.limit), |row| {
        let place = match row.get("place")? {
            Sql::Text(text) => text.into(),
            Sql::Integer(number) => number.into(),
            Sql::Real(number) => number.into(),
            Sql::Null | Sql::Blob(_) => Value::Null,
        };
        Ok(read(row)?.map(|(number, benchmark)| ((place, number), benchmark)))
    })
}

/// Value by which benchmarks that lack the figure of a column are sorted.
const NO_FIGURE: f64 = -1.0;

/// SQL expression of a column. `penstock_web` writes the summaries; a summary that lacks the member is sorted among the smallest
/// values.
fn column(by: BenchmarkColumn) -> String {
    let text = |member: &str| format!("coalesce(json_extract(summary, '$.{member}'), '')");
    let figure = |member: &str| format!("coalesce(json_extract(summary, '$.{member}'), {NO_FIGURE})");
    match by {
        BenchmarkColumn::KeptAt => "number".to_owned(),
        BenchmarkColumn::Name => text("name"),
        BenchmarkColumn::State => text("state"),
        BenchmarkColumn::Store => text("store"),
        BenchmarkColumn::StartedAt => text("started_at"),
        BenchmarkColumn::Objects => figure("objects"),
        BenchmarkColumn::ItemsPerS => figure("fastest.items_per_s"),
        BenchmarkColumn::ElapsedS => figure("elapsed_s"),
    }
}

/// Returns a benchmark in the form in which lists show it; `None` if there is no such benchmark.
pub(crate) fn find(connection: &Connection, id: &str) -> Result<Option<KeptBenchmark>, HistoryError> {
    let query = "SELECT number, id, kept_at, summary FROM benchmarks WHERE id = ?1";
    let found = connection.query_row(query, [id], read).optional()?.transpose()?;
    Ok(found.map(|(_, benchmark)| benchmark))
}

pub(crate) fn report(connection: &Connection, id: &str) -> Result<Option<Vec<u8>>, HistoryError> {
    let packed: Option<Vec<u8>> = first(connection, "SELECT report FROM benchmarks WHERE id = ?1", [id])?;
    let damaged = |why| HistoryError::Damaged(format!("the report of a benchmark cannot be read: {why}"));
    packed.map(|packed| decompress(&packed, MAX_BENCHMARK_BYTES).map_err(damaged)).transpose()
}

/// Removes a benchmark; returns false if there is no such benchmark.
pub(crate) fn remove(transaction: &Transaction<'_>, id: &str) -> Result<bool, HistoryError> {
    Ok(transaction.execute("DELETE FROM benchmarks WHERE id = ?1", [id])? > 0)
}

/// Reads the columns `number`, `id`, `kept_at` and `summary`. The inner error reports damaged content.
fn read(row: &Row<'_>) -> rusqlite::Result<Result<(i64, KeptBenchmark), HistoryError>> {
    let (number, id, kept_at) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let summary: String = row.get(3)?;
    let summary = serde_json::from_str(&summary).map_err(HistoryError::from);
    Ok(summary.map(|summary| (number, KeptBenchmark { id, kept_at, summary })))
}
