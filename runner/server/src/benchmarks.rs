//! Stored reports of benchmarks, which ran on other machines and were uploaded.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::RunsError;
use crate::history::{
    HistoryError, NO_FIGURE, PageQuery, compress, decompress, first, freeing, json_of, now,
};
use crate::queries::{after, page};
use crate::runs::{Runs, apart, turn};
use crate::wire::{BenchmarkColumn, BenchmarkQuery, KeptBenchmark, Page, PushedBenchmark, limit};

/// Maximum number of stored reports; a further report replaces the oldest.
pub const MAX_BENCHMARKS: u32 = 1_000;
pub const MAX_BENCHMARK_BYTES: usize = 16 << 20;
/// Maximum size of a summary, in bytes: a page of a list has up to 200 summaries.
const MAX_SUMMARY_BYTES: usize = 32 << 10;

impl Runs {
    /// Stores a report, which is JSON of at most [`MAX_BENCHMARK_BYTES`], and the summary that lists show. If there are more
    /// reports than the limit, the oldest one is removed.
    pub async fn keep_benchmark(
        &self,
        summary: Value,
        report: Vec<u8>,
    ) -> Result<PushedBenchmark, RunsError> {
        if report.len() > MAX_BENCHMARK_BYTES {
            let limit_bytes = MAX_BENCHMARK_BYTES as u64;
            return Err(RunsError::TooLarge { what: "the report of a benchmark", limit_bytes });
        }
        RunsError::refuse_unless(summary.to_string().len() <= MAX_SUMMARY_BYTES, || {
            format!("the summary of a benchmark may be at most {MAX_SUMMARY_BYTES} bytes long")
        })?;
        let turn = turn(&self.0.permits.checks, self.client(), "checks of documents").await?;
        let packed = apart(self, move || {
            let _turn = turn;
            Ok((Sha256::digest(&report).into(), compress(&report)))
        });
        let (digest, report) = packed.await?;
        let bytes = report.len() as u64;
        self.0.workshop.take_room(bytes)?;
        let benchmark = KeptBenchmark { id: uuid::Uuid::now_v7().to_string(), kept_at: now(), summary };
        let write = move |transaction: &Transaction<'_>| insert(transaction, benchmark, digest, &report);
        let written = self.history().write(write).await;
        if !written.as_ref().is_ok_and(|(_, is_new)| *is_new) {
            self.0.workshop.disk.give_back(bytes);
        }
        let (benchmark, is_new) = written?;
        Ok(PushedBenchmark { benchmark, is_new })
    }

    /// Lists a page of benchmarks, newest first. A cursor stays valid when benchmarks are added.
    pub async fn benchmarks(&self, query: BenchmarkQuery) -> Result<Page<KeptBenchmark>, RunsError> {
        let after: Option<Place> = after(query.cursor.as_ref())?;
        let found = self.history().read(move |connection| list(connection, &query, after)).await?;
        let Page { items, next } = page(found, |(place, _)| place.clone());
        Ok(Page { items: items.into_iter().map(|(_, benchmark)| benchmark).collect(), next })
    }

    pub async fn benchmark(&self, id: &str) -> Result<KeptBenchmark, RunsError> {
        self.find("benchmark", id, find).await
    }

    pub async fn benchmark_report(&self, id: &str) -> Result<Vec<u8>, RunsError> {
        self.find("benchmark", id, report).await
    }

    pub async fn delete_benchmark(&self, id: &str) -> Result<(), RunsError> {
        let own = id.to_owned();
        let removed = self.history().write(move |work| freeing(work, || remove(work, &own)));
        let (is_removed, freed) = removed.await?;
        self.0.workshop.disk.give_back(freed);
        if is_removed { Ok(()) } else { Err(RunsError::not_found("benchmark", id)) }
    }
}

/// Stores a compressed report with the SHA-256 of its JSON, and removes the oldest if there are too many. If the same report is already
/// stored, returns the stored benchmark and `false`.
fn insert(
    transaction: &Transaction<'_>,
    benchmark: KeptBenchmark,
    digest: [u8; 32],
    report: &[u8],
) -> Result<(KeptBenchmark, bool), HistoryError> {
    let query = "SELECT number, id, kept_at, summary FROM benchmarks WHERE digest = ?1";
    if let Some(known) = transaction.query_row(query, [digest], read).optional()? {
        return Ok((known?.1, false));
    }
    transaction.execute(
        "INSERT INTO benchmarks (id, kept_at, digest, summary, report) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![benchmark.id, benchmark.kept_at, digest, benchmark.summary.to_string(), report],
    )?;
    let delete = "DELETE FROM benchmarks WHERE number <= \
         (SELECT number FROM benchmarks ORDER BY number DESC LIMIT 1 OFFSET ?1)";
    transaction.execute(delete, [MAX_BENCHMARKS])?;
    Ok((benchmark, true))
}

/// Position of a benchmark in a sorted list: the value in the column by which the list is sorted, and the number of the
/// benchmark.
type Place = (Value, i64);

/// Lists the benchmarks of a page with their positions; also returns true if there are more. `after` is the position of the last
/// benchmark of the previous page.
fn list(
    connection: &Connection,
    query: &BenchmarkQuery,
    after: Option<Place>,
) -> Result<(Vec<(Place, KeptBenchmark)>, bool), HistoryError> {
    let column = column(query.sort.by);
    let after = after.map(|(last, number)| (last, number.into()));
    let (page, order) = PageQuery::default().sorted((&column, "number"), query.sort.is_descending, after);
    let columns = format!("number, id, kept_at, summary, {column} AS place FROM benchmarks");
    page.read(connection, ("benchmark", &columns, &order), limit(query.limit), |row| {
        let place = json_of(row.get("place")?);
        Ok(read(row)?.map(|(number, benchmark)| ((place, number), benchmark)))
    })
}

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

fn find(connection: &Connection, id: &str) -> Result<Option<KeptBenchmark>, HistoryError> {
    let query = "SELECT number, id, kept_at, summary FROM benchmarks WHERE id = ?1";
    let found = connection.query_row(query, [id], read).optional()?.transpose()?;
    Ok(found.map(|(_, benchmark)| benchmark))
}

fn report(connection: &Connection, id: &str) -> Result<Option<Vec<u8>>, HistoryError> {
    let packed: Option<Vec<u8>> = first(connection, "SELECT report FROM benchmarks WHERE id = ?1", [id])?;
    let damaged = |why| HistoryError::Damaged(format!("the report of a benchmark cannot be read: {why}"));
    packed.map(|packed| decompress(&packed, MAX_BENCHMARK_BYTES).map_err(damaged)).transpose()
}

fn remove(transaction: &Transaction<'_>, id: &str) -> Result<bool, HistoryError> {
    Ok(transaction.execute("DELETE FROM benchmarks WHERE id = ?1", [id])? > 0)
}

/// Reads the columns `number`, `id`, `kept_at` and `summary`. The inner error reports damaged content.
fn read(row: &Row<'_>) -> rusqlite::Result<Result<(i64, KeptBenchmark), HistoryError>> {
    let (number, id, kept_at) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let summary: String = row.get(3)?;
    let summary = serde_json::from_str(&summary).map_err(HistoryError::from);
    Ok(summary.map(|summary| (number, KeptBenchmark { id, kept_at, summary })))
}
