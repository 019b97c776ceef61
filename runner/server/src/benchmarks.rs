//! Stored reports of benchmarks, which ran on other machines and were uploaded.

use rusqlite::Connection;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::RunsError;
use crate::history::benchmarks::{self, MAX_BENCHMARK_BYTES, Packed};
use crate::history::{freeing, now};
use crate::queries::{after, page};
use crate::runs::{Runs, apart, turn};
use crate::wire::{BenchmarkQuery, KeptBenchmark, Page, PushedBenchmark};

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
        if summary.to_string().len() > MAX_SUMMARY_BYTES {
            return Err(RunsError::Refused(format!(
                "the summary of a benchmark may be at most {MAX_SUMMARY_BYTES} bytes long"
            )));
        }
        let turn = turn(&self.0.permits.checks, self.client(), "checks of documents").await?;
        let pack = move || {
            let _turn = turn;
            Ok(Packed::new(Sha256::digest(&report).into(), &report))
        };
        let packed = apart(self, pack).await?;
        let bytes = packed.bytes();
        self.0.workshop.take_room(bytes)?;
        let benchmark = KeptBenchmark { id: uuid::Uuid::now_v7().to_string(), kept_at: now(), summary };
        let write = move |transaction: &rusqlite::Transaction<'_>| {
            benchmarks::insert(transaction, benchmark, &packed)
        };
        let written = self.history().write(write).await;
        if !written.as_ref().is_ok_and(|(_, is_new)| *is_new) {
            self.0.workshop.disk.give_back(bytes);
        }
        let (benchmark, is_new) = written?;
        Ok(PushedBenchmark { benchmark, is_new })
    }

    /// Lists a page of benchmarks, newest first. A cursor stays valid when benchmarks are added.
    pub async fn benchmarks(&self, query: BenchmarkQuery) -> Result<Page<KeptBenchmark>, RunsError> {
        let after: Option<benchmarks::Place> = after(query.cursor.as_ref())?;
        let found =
            self.history().read(move |connection| benchmarks::list(connection, &query, after)).await?;
        let Page { items, next } = page(found, |(place, _)| place.clone());
        Ok(Page { items: items.into_iter().map(|(_, benchmark)| benchmark).collect(), next })
    }

    /// Returns one benchmark in the form in which lists show it.
    pub async fn benchmark(&self, id: &str) -> Result<KeptBenchmark, RunsError> {
        let own = id.to_owned();
        let found = self.history().read(move |connection: &Connection| benchmarks::find(connection, &own));
        found.await?.ok_or_else(|| RunsError::not_found("benchmark", id))
    }

    /// Returns the bytes of the report of a benchmark, as they were stored.
    pub async fn benchmark_report(&self, id: &str) -> Result<Vec<u8>, RunsError> {
        let own = id.to_owned();
        let found = self.history().read(move |connection: &Connection| benchmarks::report(connection, &own));
        found.await?.ok_or_else(|| RunsError::not_found("benchmark", id))
    }

    pub async fn delete_benchmark(&self, id: &str) -> Result<(), RunsError> {
        let own = id.to_owned();
        let write = move |transaction: &rusqlite::Transaction<'_>| {
            freeing(transaction, || benchmarks::remove(transaction, &own))
        };
        let (is_removed, freed) = self.history().write(write).await?;
        self.0.workshop.disk.give_back(freed);
        if is_removed { Ok(()) } else { Err(RunsError::not_found("benchmark", id)) }
    }
}
