//! Reports of benchmarks as rows of a table. What they say is the business of who sends and reads them.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

use super::chunk::{compress, decompress};
use super::error::HistoryError;
use super::query::{PageQuery, first};
use crate::wire::KeptBenchmark;

/// Reports that are kept; the oldest go.
pub const MAX_BENCHMARKS: u32 = 1_000;
/// Most bytes of a report.
pub const MAX_BENCHMARK_BYTES: usize = 16 << 20;

/// A report on its way into the table.
#[derive(Debug)]
pub(crate) struct Packed {
    /// SHA-256 of the report.
    pub(crate) digest: [u8; 32],
    report: Vec<u8>,
}

impl Packed {
    /// Takes a while for a large report.
    pub(crate) fn new(digest: [u8; 32], report: &[u8]) -> Self {
        Self { digest, report: compress(report) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.report.len() as u64
    }
}

/// Keeps a report, and removes the oldest where there are too many. One that is known stays as it is: then that is what
/// comes back, and `false`.
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

/// Benchmarks with their numbers, newest first, from before the number `before`; and whether there are more.
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

/// Removes a benchmark; false when there is none.
pub(crate) fn remove(transaction: &Transaction<'_>, id: &str) -> Result<bool, HistoryError> {
    Ok(transaction.execute("DELETE FROM benchmarks WHERE id = ?1", [id])? > 0)
}

/// The columns `number, id, kept_at, summary`; the inner error is of what they hold.
fn read(row: &Row<'_>) -> rusqlite::Result<Result<(i64, KeptBenchmark), HistoryError>> {
    let (number, id, kept_at, summary): (i64, String, String, String) = row.try_into()?;
    let summary = serde_json::from_str(&summary).map_err(HistoryError::from);
    Ok(summary.map(|summary| (number, KeptBenchmark { id, kept_at, summary })))
}
