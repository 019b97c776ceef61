//! Comparison of two benchmark reports.

use std::fs;
use std::path::Path;

use anyhow::Result;
use penstock_bench::BenchReport;
use penstock_bench::compare::{Change, Comparison, compare as compared};
use penstock_bench::report::REPORT_VERSION;

use crate::args::BenchCompareArgs;
use crate::input::{bad, unreadable};
use crate::report::table;
use crate::text::{paragraphs, say_as, warn};
use crate::{COMPLETED, FAILED};

pub(crate) fn compare(args: &BenchCompareArgs) -> Result<u8> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let comparison = compared(&before, &after);
    say_as(args.json, &comparison, in_words)?;
    let Some(percent) = args.fail_if_slower else { return Ok(COMPLETED) };
    // A load without a confidence interval does not count as passed.
    let cells = &comparison.cells;
    let is_judged = !cells.is_empty()
        && cells.len() == before.cells().count()
        && cells.iter().all(|cell| cell.rate.between.is_some());
    let too_slow = cells.iter().any(|cell| cell.rate.is_surely_below(-percent / 100.0));
    if !is_judged {
        warn(
            "error: some loads could not be compared: use the same loads in both reports, with `repeats` of 2 or more",
        );
    }
    Ok(if too_slow || !is_judged || !after.is_sound() { FAILED } else { COMPLETED })
}

fn read(path: &Path) -> Result<BenchReport> {
    let file = if path.is_dir() { path.join("report.json") } else { path.to_owned() };
    let shown = file.display();
    let bytes = fs::read(&file).map_err(|error| unreadable(&file, &error))?;
    let report: BenchReport = serde_json::from_slice(&bytes)
        .map_err(|error| bad(format!("`{shown}` is not a report of a storage benchmark: {error}")))?;
    if report.version != REPORT_VERSION {
        let found = report.version;
        return Err(bad(format!(
            "`{shown}` has version {found}, and this program compares {REPORT_VERSION}"
        )));
    }
    Ok(report)
}

fn in_words(comparison: &Comparison) -> String {
    let of = |change: &Change| {
        let between = change.between.map_or_else(
            || "?".to_owned(),
            |[low, high]| format!("{:+.1} to {:+.1} %", low * 100.0, high * 100.0),
        );
        [format!("{:+.1} %", change.change * 100.0), between]
    };
    let header = ["load", "items/s", "", "change", "95 %", "median", "95 %", "p99", "95 %"];
    let rows = comparison.cells.iter().map(|cell| {
        let mut row =
            vec![cell.load.clone(), format!("{:.1}", cell.rate.before), format!("{:.1}", cell.rate.after)];
        row.extend([&cell.rate, &cell.median_s, &cell.p99_s].into_iter().flat_map(of));
        row
    });
    let notes = std::iter::once(&comparison.sentence).chain(&comparison.notes).cloned();
    paragraphs(notes.chain((!comparison.cells.is_empty()).then(|| table(&header, rows))))
}
