//! Checks the counts of calls against the counts that the reference implementation of the benchmark printed.

use std::time::Duration;

use penstock_bench::report::ReportState;
use penstock_bench::{BenchReport, BenchSpec};
use serde_json::{Value, json};

use crate::{in_memory, ran, run, synthetic, timed, unless};

fn counts(count: u32, load: Value) -> [u64; 5] {
    let report = ran(in_memory(count, load), synthetic(count, 100, Duration::ZERO));
    sound(&report);
    let counts = report.cells().next().unwrap().counts;
    [counts.getitem, counts.fetch, counts.worker_loop, counts.load_all, counts.benchmark]
}

fn sound(report: &BenchReport) {
    for cell in report.cells() {
        let wrong: Vec<_> = cell.books.checks.iter().filter(|check| !check.holds).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
    assert_eq!((report.balanced, &report.reason), (true, &None));
}

#[test]
fn the_local_disk_sample_with_ten_warm_ups_of_17_batches_has_the_reference_counts() {
    let load = json!({
        "modes": ["sync"], "workers": [16], "batch_size": 50, "repeats": 5,
        "warm_up": { "rounds": vec![17; 10] }
    });
    assert_eq!(counts(50_000, load), [258_500, 5_170, 240, 5, 1]);
}

#[test]
fn the_bucket_sample_with_an_inline_warm_up_has_the_reference_counts() {
    let load = json!({
        "modes": ["async"], "workers": [16], "batch_size": 50, "repeats": 1,
        "warm_up": { "rounds": [10], "how": "inline" }
    });
    assert_eq!(counts(50_000, load), [50_000, 1_000, 16, 1, 1]);
}

#[test]
fn two_workers_and_batches_of_eight_have_the_counts_of_the_raw_log() {
    let load = json!({
        "modes": ["sync"], "workers": [2], "batch_size": 8, "repeats": 1,
        "warm_up": { "rounds": [4, 4, 3, 3, 3, 3, 3, 3, 3, 3] }
    });
    assert_eq!(counts(50_000, load), [50_256, 6_282, 22, 1, 1]);
}

#[test]
fn an_incomplete_last_batch_counts_as_a_batch() {
    for mode in ["sync", "async"] {
        for assignment in ["static", "steal"] {
            let load = json!({
                "modes": [mode], "workers": [3], "batch_size": 10, "repeats": 1, "assignment": assignment
            });
            assert_eq!(counts(101, load), [101, 11, 3, 1, 1]);
        }
    }
}

#[test]
fn persistent_workers_have_one_lifetime() {
    let load = json!({
        "modes": ["async"], "workers": [4], "batch_size": 10, "repeats": 5, "persistent": true,
        "warm_up": { "rounds": [2, 2] }
    });
    assert_eq!(counts(100, load), [540, 54, 12, 5, 1]);
}

#[test]
fn an_inline_warm_up_is_left_out_of_the_figures() {
    let load = json!({
        "modes": ["sync"], "workers": [1], "batch_size": 10, "repeats": 1,
        "warm_up": { "rounds": [8], "how": "inline" }
    });
    timed(|| {
        let report = run(in_memory(100, load.clone()), synthetic(100, 1_000, Duration::from_millis(5)));
        sound(&report);
        let cell = report.cells().next().unwrap();
        assert_eq!((cell.warm_up.getitem, cell.warm_up.fetch, cell.items, cell.bytes), (80, 8, 20, 20_000));
        assert_eq!((cell.levels.getitem.unwrap().n, cell.levels.fetch.unwrap().n), (20, 2));
        // The measured part takes at least 0.1 s; it does not include the warm-up, which takes 0.4 s.
        assert!(cell.elapsed_s >= 0.1, "{}", cell.elapsed_s);
        unless(cell.elapsed_s < 0.4, &cell.elapsed_s)
    });
}

#[test]
fn a_warm_up_that_takes_the_whole_pass_is_refused() {
    for rounds in [10, 11] {
        let load = json!({
            "modes": ["sync"], "workers": [1], "batch_size": 10, "repeats": 2,
            "warm_up": { "rounds": [rounds], "how": "inline" }
        });
        let report = ran(in_memory(95, load), synthetic(95, 100, Duration::ZERO));
        let reason = format!(
            "the inline warm-up takes {rounds} batches, but the first pass has only 10; use fewer `rounds`"
        );
        assert_eq!((report.state, report.reason), (ReportState::Failed, Some(reason)));
    }
}

#[test]
fn concurrent_reads_multiply_the_rate() {
    let load = json!({
        "modes": ["sync", "async"], "workers": [2], "in_flight": 8, "batch_size": 40, "repeats": 1
    });
    timed(|| {
        let report = run(in_memory(240, load.clone()), synthetic(240, 1_000, Duration::from_millis(20)));
        sound(&report);
        let rates: Vec<f64> = report.cells().map(|cell| cell.items_per_s).collect();
        // Upper bounds of the rates: 2 workers with 1 read of 20 ms at a time reach 100 items/s, with 8 reads 800 items/s.
        assert!(rates[0] < 101.0 && rates[1] < 801.0, "{rates:?}");
        assert!(report.findings.iter().any(|found| found.contains("times as fast as one after another")));
        unless(rates[0] > 50.0 && rates[1] / rates[0] > 5.0, &rates)
    });
}

#[test]
fn an_action_with_nothing_to_time_is_refused() {
    let mut document = in_memory(10, json!({}));
    document["actions"] = json!([{ "index": {} }]);
    let faults = BenchSpec::from_value(document).unwrap_err();
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].pointer.as_str(), "/actions/0/index");
}

#[test]
fn a_pool_reads_as_many_objects_at_a_time_as_it_has_threads() {
    let document = json!({
        "source": { "memory": { "count": 50, "bytes": 100, "latency_ms": 10 } },
        "pool": 10, "actions": [{ "random": { "repeat": 100 } }]
    });
    timed(|| {
        let report = run(document.clone(), synthetic(50, 100, Duration::from_millis(10)));
        let calls = &serde_json::to_value(&report).unwrap()["actions"][0]["calls"];
        // 100 reads of 10 ms would take 1 s one after another; 10 at a time take about 0.1 s.
        let is_fast = calls["elapsed_s"].as_f64().unwrap() < 0.7;
        unless(is_fast && calls["time"]["median_s"].as_f64().unwrap() < 0.05, calls)
    });
}

#[test]
fn a_pool_runs_the_exact_number_of_repetitions() {
    let document = json!({
        "source": { "memory": { "count": 50, "bytes": 100 } },
        "pool": 7,
        "actions": [
            { "random": { "repeat": 2000 } }, { "single": { "repeat": 3 } },
            { "random_to_device": { "repeat": 10 } }, { "whole_set": { "workers": [1], "modes": ["sync"], "repeats": 1 } }
        ],
        "ceiling": false
    });
    let report = ran(document, synthetic(50, 100, Duration::ZERO));
    let report = serde_json::to_value(&report).unwrap();
    let calls = |place: usize| report["actions"][place]["calls"].clone();
    assert_eq!((calls(0)["time"]["n"].clone(), calls(0)["bytes"].clone()), (json!(2000), json!(200_000)));
    assert_eq!(calls(1)["time"]["n"], 3);
    assert_eq!(
        (calls(2)["action"].clone(), calls(2)["bytes"].clone()),
        (json!("random_to_device"), json!(469 * 387 * 4 * 10))
    );
    assert_eq!(report["actions"][3]["whole_set"][0]["items"], 50);
}
