//! The table of benchmark reports, whose content is opaque to the server.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::chunk::{compress, decompress};
use super::error::HistoryError;
use super::query::{PageQuery, first};
use crate::wire::KeptBenchmark;

/// Maximum number of stored reports; a further report replaces the oldest.
pub const MAX_BENCHMARKS: u32 = 1_000;
/// Largest size of a report, in bytes.
pub const MAX_BENCHMARK_BYTES: usize = 16 << 20;

/// Compressed report to store in the table.
#[derive(Debug)]
pub(crate) struct Packed {
    /// SHA-256 of the report.
    pub(crate) digest: [u8; 32],
    report: Vec<u8>,
}

impl Packed {
    /// Compresses a report, which takes a while if it is large.
    pub(crate) fn new(digest: [u8; 32], report: &[u8]) -> Self {
        Self { digest, report: compress(report) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.report.len() as u64
    }
}

/// Stores a report, and removes the oldest if there are too many. If the same report is stored already, returns that benchmark and
/// `false`.
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

/// Lists benchmarks with their numbers, newest first, from before the number `before`; also returns true if there are more.
pub(crate) fn list(
    connection: &Connection,
    before: i64,
    limit: u32,
) -> Result<(Vec<(i64, KeptBenchmark)>, bool), HistoryError> {
    let columns = "number, id, kept_at, summary FROM benchmarks";
    PageQuery::default().with("number < ?", Some(before)).read(
        connection,
        ("benchmark", columns, "number DESC"),
        limit,
        read,
    )
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

/// Reads the columns `number, id, kept_at, summary`. The inner error reports damaged content.
fn read(row: &Row<'_>) -> rusqlite::Result<Result<(i64, KeptBenchmark), HistoryError>> {
    let (number, id, kept_at, summary): (i64, String, String, String) = row.try_into()?;
    let summary = serde_json::from_str(&summary).map_err(HistoryError::from);
    Ok(summary.map(|summary| (number, KeptBenchmark { id, kept_at, summary })))
}
