//! Table of the performance figures that the design requires: ratios measured in one run, as medians of several. `make bench`
//! prepares the guests, the binary, and 2,000 photos in `demo/photos`.
#![expect(clippy::unwrap_used, reason = "a bench that cannot set up its case should say where")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it prints a table")]
#![expect(clippy::disallowed_methods, reason = "it measures from outside, with a separate clock")]

mod advice;
mod caching;
mod contended;
mod engine;
mod photos;
mod predict;
mod profiled;
mod s3;
mod sandbox;
mod serve;
mod storage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Number of runs of each case; the cases of one row alternate, so that a busy machine slows all of them.
const RUNS: usize = 7;

/// One row of the table.
struct Row {
    what: &'static str,
    must: Bound,
    aim: Bound,
    found: f64,
    /// Measurements from which the found value was computed.
    from: String,
}

type Measure = fn() -> Row;

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64, &'static str),
    AtLeast(f64, &'static str),
}

fn main() -> ExitCode {
    let rows: [(&str, Measure); 42] = [
        ("engine", engine::one_stage_against_crossbeam),
        ("engine-12", engine::three_stages_against_crossbeam),
        ("statistics", engine::cost_of_statistics),
        ("statistics-12", engine::cost_of_statistics_in_three_stages),
        ("changes", engine::cost_of_changes),
        ("lock-16", engine::sixteen_threads_at_one_lock),
        ("end", engine::last_item_to_end),
        ("timer", engine::timer_overshoot),
        ("identity", sandbox::cost_of_identity),
        ("decode", sandbox::decode_against_native),
        ("cold-start", sandbox::cold_start),
        ("second-instance", sandbox::second_instance),
        ("photos", photos::rate_against_native_loop),
        ("photos-peer", photos::rate_against_dataloader_rs),
        ("photos-cpu", photos::cpu_against_native_loop),
        ("memory", photos::peak_memory),
        ("predict-median", predict::median_error),
        ("predict-p95", predict::p95_error),
        ("contended-median", contended::median_error),
        ("contended-p95", contended::p95_error),
        ("contended-advice", contended::harmful_advice),
        ("contended-verdicts", contended::contradictory_verdicts),
        ("profiled-median", profiled::median_error),
        ("profiled-p95", profiled::p95_error),
        ("verdict-limits", predict::wrong_limits),
        ("advice", advice::advice),
        ("s3-16", s3::rate_with_16_in_flight),
        ("s3-32", s3::rate_with_32_in_flight),
        ("s3-256", s3::rate_with_256_in_flight),
        ("s3-cpu", s3::cpu_of_a_get),
        ("list", s3::first_sample_of_a_million),
        ("list-all", s3::listing_ahead),
        ("records", s3::records_ahead),
        ("cache-first", caching::first_pass),
        ("cache-second", caching::second_pass),
        ("storage-async", storage::several_at_a_time),
        ("storage-16", storage::sixteen_in_flight),
        ("storage-32", storage::thirty_two_in_flight),
        ("files", storage::small_files_in_memory),
        ("serve-run", serve::reference_run),
        ("serve-latency", serve::latency),
        ("serve-memory", serve::growth),
    ];
    // `cargo bench --workspace --exclude 'guest-*' --exclude text --bench table -- photos memory` measures only these rows.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    println!("{:<62} {:>10} {:>10} {:>10}  ", "what", "must", "aim", "found");
    let mut missed = 0;
    for (name, measure) in rows {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        let row = measure();
        let verdict = match (row.must.holds(row.found), row.aim.holds(row.found)) {
            (_, true) => "aim reached",
            (true, false) => "holds",
            (false, false) => "MISSED",
        };
        missed += usize::from(!row.must.holds(row.found));
        let (must, aim, found) = (row.must.to_string(), row.aim.to_string(), row.must.with_unit(row.found));
        println!("{:<62} {must:>10} {aim:>10} {found:>10}  {verdict}\n    {}", row.what, row.from);
    }
    if missed > 0 {
        eprintln!(
            "{missed} bounds missed; on a busy machine, repeat the measurement before drawing conclusions"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

impl Bound {
    fn holds(self, found: f64) -> bool {
        match self {
            Self::AtMost(most, _) => found <= most,
            Self::AtLeast(least, _) => found >= least,
        }
    }

    fn with_unit(self, value: f64) -> String {
        let (Self::AtMost(_, unit) | Self::AtLeast(_, unit)) = self;
        format!("{value:.2}{unit}")
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(most, unit) => write!(f, "<= {most}{unit}"),
            Self::AtLeast(least, unit) => write!(f, ">= {least}{unit}"),
        }
    }
}

/// Median of several measurements.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Medians of two alternating cases, in seconds, and the median of their ratio (first to second) turn by turn.
fn take_turns(mut first: impl FnMut() -> Duration, mut second: impl FnMut() -> Duration) -> (f64, f64, f64) {
    let turns: Vec<(f64, f64)> = (0..RUNS).map(|_| (first().as_secs_f64(), second().as_secs_f64())).collect();
    let of = |pick: fn(&(f64, f64)) -> f64| median(turns.iter().map(pick).collect());
    (of(|turn| turn.0), of(|turn| turn.1), of(|turn| turn.0 / turn.1))
}

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Folder into which cargo builds.
fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

fn guest(name: &str) -> Vec<u8> {
    let path = target_dir().join("wasm32-unknown-unknown/guest").join(name).with_extension("wasm");
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run `make guests` first", path.display()))
}

/// Photos of the demo, 500x375 JPEGs of about 60 kB.
fn photos_dir() -> PathBuf {
    let dir = workspace().join("demo/photos");
    assert!(dir.is_dir(), "{} is missing; run `make bench`, which creates it", dir.display());
    dir
}
