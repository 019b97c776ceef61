//! Text form of a benchmark's report.

use penstock_bench::BenchReport;
use penstock_bench::report::{ActionReport, CallsReport, LoadReport, Spread};

use crate::report::{columns, table};
use crate::text::{count, duration, paragraphs, percent};

pub(super) fn report(report: &BenchReport) -> String {
    let mut parts = vec![report.findings.join("\n"), objects(report)];
    for action in &report.actions {
        match action {
            ActionReport::WholeSet(cells) if cells.is_empty() => {}
            ActionReport::WholeSet(cells) => parts.extend([grid(cells), levels(cells)]),
            ActionReport::Calls(one) => parts.push(calls(one)),
        }
    }
    if let Some(cell) = report.fastest() {
        parts.extend([consists(cell), counts(cell)]);
    }
    parts.extend([accelerators(report), without(report), failures(report)]);
    paragraphs(parts)
}

fn objects(report: &BenchReport) -> String {
    let objects = &report.objects;
    let (what, about, listed) = match report.document.source.format() {
        None => ("objects".to_owned(), "", "listed"),
        Some(format) => (format!("samples (`{format}`)"), "about ", "opened"),
    };
    let median = objects
        .median_bytes
        .map_or_else(String::new, |bytes| format!(", median {:.1} kB", bytes as f64 / 1e3));
    let bytes = objects
        .bytes
        .map_or_else(String::new, |bytes| format!(", {about}{:.1} MB{median}", bytes as f64 / 1e6));
    let sizes = |time| format!(", sizes read in {}", duration(Some(time)));
    let survey = objects.survey_s.map_or_else(String::new, sizes);
    format!(
        "{} {what} of store `{}` ({}){bytes}; {listed} in {}{survey}. Cache: {}. {} cores.",
        count(objects.count),
        objects.store,
        <&str>::from(objects.kind),
        duration(Some(objects.index_s)),
        <&str>::from(report.document.cache),
        report.machine.cores
    )
}

fn grid(cells: &[LoadReport]) -> String {
    columns(
        cells,
        &[
            ("load", &|cell| cell.label()),
            ("items/s", &|cell| format!("{:.1}", cell.items_per_s)),
            ("MB/s", &|cell| format!("{:.1}", cell.mb_per_s)),
            ("in flight", &|cell| format!("{:.1}", cell.little.in_flight)),
            ("of", &|cell| cell.permits.to_string()),
            ("getitem p50", &|cell| duration(cell.levels.getitem.map(|time| time.median_s))),
            ("p99", &|cell| duration(cell.levels.getitem.map(|time| time.p99_s))),
            ("busy", &|cell| percent(Some(cell.busy))),
            ("ceiling", &|cell| percent(cell.ceiling.map(|ceiling| ceiling.reached))),
            ("ledger", &|cell| if cell.books.balanced { "balances" } else { "VOID" }.to_owned()),
        ],
    )
}

fn levels(cells: &[LoadReport]) -> String {
    type Level = (&'static str, fn(&LoadReport) -> Option<Spread>);
    let header = ["level", "load", "n", "mean", "median", "min", "max", "p90", "p99", "p99.9"];
    let levels: [Level; 5] = [
        ("getitem", |cell| cell.levels.getitem),
        ("fetch", |cell| cell.levels.fetch),
        ("worker_loop", |cell| cell.levels.worker_loop),
        ("load_all", |cell| cell.levels.load_all),
        ("benchmark", |cell| cell.levels.benchmark),
    ];
    let rows = levels.into_iter().flat_map(|(name, of)| {
        cells.iter().filter_map(move |cell| Some(row(vec![name.to_owned(), cell.label()], &of(cell)?)))
    });
    table(&header, rows)
}

fn row(mut row: Vec<String>, spread: &Spread) -> Vec<String> {
    row.push(count(spread.n));
    let Spread { mean_s, median_s, min_s, max_s, p90_s, p99_s, p999_s, .. } = *spread;
    row.extend([mean_s, median_s, min_s, max_s, p90_s, p99_s, p999_s].map(|time| duration(Some(time))));
    row
}

fn consists(cell: &LoadReport) -> String {
    let title = format!("{}: parts", cell.label());
    let header = [title.as_str(), "n", "mean", "median", "max", "p99", "share"];
    let rows = cell.parts.iter().map(|part| {
        let time = &part.time;
        let times = [time.mean_s, time.median_s, time.max_s, time.p99_s].map(|time| duration(Some(time)));
        let mut row = vec![part.name.clone(), count(time.n)];
        row.extend(times);
        row.push(percent(Some(part.share)));
        row
    });
    table(&header, rows)
}

fn counts(cell: &LoadReport) -> String {
    let found = &cell.counts;
    format!(
        "Get item {}\nFetch {}\nWorker loop {}\nload all {}\nbenchmark {}",
        found.getitem, found.fetch, found.worker_loop, found.load_all, found.benchmark
    )
}

fn calls(calls: &CallsReport) -> String {
    let pool = if calls.pool == 0 { String::new() } else { format!(", {} at a time", calls.pool) };
    let title = format!("{}{pool}", calls.action);
    let header =
        [title.as_str(), "n", "mean", "median", "min", "max", "p90", "p99", "p99.9", "per s", "MB/s"];
    let mut only = row(vec![String::new()], &calls.time);
    only.extend(
        [calls.per_s, calls.bytes as f64 / 1e6 / calls.elapsed_s.max(1e-9)].map(|rate| format!("{rate:.1}")),
    );
    table(&header, std::iter::once(only))
}

fn accelerators(report: &BenchReport) -> String {
    let Some(found) = &report.accelerators else { return String::new() };
    let trials = columns(
        &found.trials,
        &[
            ("accelerators", &|trial| trial.accelerators.to_string()),
            ("utilisation", &|trial| percent(Some(trial.utilisation))),
            ("samples/s", &|trial| format!("{:.1}", trial.samples_per_s)),
            ("steps", &|trial| count(trial.steps)),
        ],
    );
    let presets = columns(
        &found.presets,
        &[
            ("workload, by bytes alone", &|preset| preset.name.clone()),
            ("sample", &|preset| format!("{:.1} kB", preset.sample_bytes as f64 / 1e3)),
            ("needs MB/s", &|preset| format!("{:.1}", preset.needs_mb_per_s)),
            ("fed", &|preset| format!("{:.2}", preset.supported_by_bytes)),
        ],
    );
    format!("{trials}\n\n{presets}")
}

fn without(report: &BenchReport) -> String {
    if report.counterfactuals.is_empty() {
        return String::new();
    }
    columns(
        &report.counterfactuals,
        &[
            ("without", &|one| one.without.clone()),
            ("instead", &|one| one.instead.clone()),
            ("items/s", &|one| format!("{:.1}", one.items_per_s)),
            ("gain", &|one| format!("{:+.1} %", one.gain * 100.0)),
            ("costs in a pass", &|one| duration(Some(one.costs_s.max(0.0)))),
        ],
    )
}

fn failures(report: &BenchReport) -> String {
    let loads = report.actions.iter().flat_map(|action| match action {
        ActionReport::WholeSet(cells) => cells.iter().map(|cell| (cell.label(), &cell.failures)).collect(),
        ActionReport::Calls(calls) => vec![(calls.action.clone(), &calls.failures)],
    });
    let lines = loads.flat_map(|(load, groups)| {
        groups.iter().map(move |group| {
            let (count, keys) = (count(group.count), group.keys.join(", "));
            format!("{load}: {count} failed in {}: {} ({keys})", group.what, group.message)
        })
    });
    lines.collect::<Vec<_>>().join("\n")
}
