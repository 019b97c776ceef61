//! Output folder of a benchmark, and the upload of its report.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use penstock_bench::record::{Fetch, ItemRead, LoadRecord};
use penstock_bench::{BenchReport, BenchStep, Follow};
use serde::Deserialize;
use serde_json::{Value, json};
use ureq::http::Method;

use crate::args::BenchStorageArgs;
use crate::client::Client;
use crate::input::bad;
use crate::text::warn;

/// Observer of a benchmark: reports progress and records every read.
pub(super) struct Kept {
    quiet: bool,
    folder: Option<PathBuf>,
    /// Writer of `reads.ndjson`; opened at the first line.
    reads: Option<BufWriter<File>>,
    /// First error while writing `reads.ndjson`.
    broken: Option<io::Error>,
}

#[derive(Deserialize)]
struct Stored {
    id: String,
}

impl Kept {
    pub(super) fn new(args: &BenchStorageArgs) -> Result<Self> {
        args.out.as_deref().map_or(Ok(()), check)?;
        Ok(Self { quiet: args.quiet, folder: args.out.clone(), reads: None, broken: None })
    }

    pub(super) fn finish(self, report: &BenchReport) -> Result<()> {
        let Some(folder) = self.folder else { return Ok(()) };
        let broken = || format!("cannot write to `{}`", folder.display());
        if let Some(error) = self.broken {
            return Err(error).with_context(broken);
        }
        if let Some(mut reads) = self.reads {
            reads.flush().with_context(broken)?;
        }
        let json = serde_json::to_string_pretty(report)?;
        fs::write(folder.join("report.json"), &json).with_context(broken)?;
        match penstock_web::report_page(report) {
            Ok(page) => fs::write(folder.join("report.html"), page).with_context(broken),
            Err(error) => {
                warn(&format!("cannot write report.html: {error}"));
                Ok(())
            }
        }
    }

    fn write(&mut self, record: &LoadRecord, key: &dyn Fn(u32) -> Arc<str>) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let out = match &mut self.reads {
            Some(out) => out,
            none => none.insert(BufWriter::new(File::create_new(folder.join("reads.ndjson"))?)),
        };
        let label = record.load.label();
        let warm_up = record.warm_up.iter().map(|pass| (None, pass));
        let passes = record.passes.iter().enumerate().map(|(number, pass)| (Some(number + 1), pass));
        for (number, pass) in warm_up.chain(passes) {
            for fetch in &pass.fetches {
                let is_warm_up = number.is_none() || (number == Some(1) && fetch.batch < record.inline);
                for item in &fetch.items {
                    let key = key(item.object);
                    serde_json::to_writer(&mut *out, &line(&label, number, is_warm_up, fetch, item, &key))?;
                    out.write_all(b"\n")?;
                }
            }
        }
        Ok(())
    }
}

impl Follow for Kept {
    fn step(&mut self, step: &BenchStep) {
        if !self.quiet {
            super::tell(step);
        }
    }

    fn record(&mut self, load: &LoadRecord, key: &dyn Fn(u32) -> Arc<str>) {
        if self.broken.is_none() {
            self.broken = self.write(load, key).err();
        }
    }
}

/// Fails if the folder already contains a report, or cannot be written.
fn check(folder: &Path) -> Result<()> {
    let taken = ["report.json", "report.html", "reads.ndjson"].iter().any(|name| folder.join(name).exists());
    if taken {
        let shown = folder.display();
        return Err(bad(format!("`{shown}` already holds a report; choose another folder or remove it")));
    }
    let broken = |error: io::Error| bad(format!("cannot write to `{}`: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(broken)
}

/// Uploads a report to a server; returns the page that shows it.
pub(super) fn push(client: &Client, report: &BenchReport) -> Result<String> {
    let report = serde_json::to_vec(report)?;
    let stored: Stored = client.ask(Method::POST, "/benchmarks", Some(("application/json", &report)), &[])?;
    Ok(client.page(&format!("/bench/{}", stored.id)))
}

/// Line of `reads.ndjson`. `pass` starts at 1, and is `None` in a separate warm-up round; a failed read has no `bytes`.
fn line(load: &str, pass: Option<usize>, warm_up: bool, fetch: &Fetch, item: &ItemRead, key: &str) -> Value {
    let parts = &item.parts;
    json!({
        "load": load,
        "pass": pass,
        "warm_up": warm_up,
        "worker": fetch.worker,
        "batch": fetch.batch,
        "key": key,
        "start_s": item.span.start.seconds(),
        "end_s": item.span.end.seconds(),
        "elapsed_s": item.span.seconds(),
        "permit_s": item.permit_ns as f64 * 1e-9,
        "retry_s": parts.retry.as_secs_f64(),
        "connect_s": parts.connect.as_secs_f64(),
        "first_byte_s": parts.first_byte.as_secs_f64(),
        "body_s": parts.body.as_secs_f64(),
        "verify_s": parts.verify.as_secs_f64(),
        "attempts": parts.attempts,
        "retries": parts.retries,
        "new_connections": parts.new_connections,
        "bytes": item.bytes,
    })
}
