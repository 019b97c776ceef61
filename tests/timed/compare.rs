//! Comparisons of runs.

use std::path::PathBuf;
use std::thread;

use penstock_tests::{Call, Folder};
use serde_json::{Value, json};

use crate::timed;

fn document() -> Value {
    json!({
        "name": "compared", "threads": 1, "source": { "range": { "count": 100_000 } },
        "stages": [
            { "sleep": { "name": "load", "mean_ms": 10 } },
            { "sleep": { "name": "decode", "mean_ms": 60 } }
        ],
        "consumer": { "simulate": { "step_ms": 25 } }
    })
}

/// Runs documents concurrently, for two seconds each; returns their output folders.
fn ran<const N: usize>(folder: &Folder, documents: [Value; N]) -> [PathBuf; N] {
    thread::scope(|scope| {
        std::array::from_fn::<_, N, _>(|number| {
            let document = folder.write(&format!("{number}.json"), documents[number].to_string());
            let out = folder.join(&format!("out-{number}"));
            let call = Call::run(&document).argument("--for=3s").argument("-q").out(&out);
            scope.spawn(move || call.finish().exits(0));
            out
        })
    })
}

fn compared(runs: &[PathBuf]) -> Call {
    runs.iter().fold(Call::new(&["compare"]), |call, run| call.argument(run))
}

#[test]
fn a_gain_is_reported_with_its_reason_and_the_new_limit() {
    timed(|| {
        let folder = Folder::new();
        let mut faster = document();
        faster["stages"][1]["sleep"]["concurrency"] = json!(4);
        let runs = ran(&folder, [document(), faster]);
        let report: Value = serde_json::from_str(&compared(&runs).json().finish().exits(0).stdout).unwrap();
        assert_eq!(report["limits"], json!(["2:decode", "consumer"]), "{report:#}");
        let changes = json!([{ "pointer": "/stages/1/sleep/concurrency", "from": "1", "to": "4" }]);
        assert_eq!(report["changes"], changes);
        let sentence = report["sentence"].as_str().unwrap();
        assert!(sentence.contains(" % faster: "), "{sentence}");
        assert!(sentence.contains(", because `2:decode` runs 4 tasks at a time instead of 1"), "{sentence}");
        assert!(
            sentence.ends_with("; the limit was stage `2:decode` and is now the consumer."),
            "{sentence}"
        );
        let words = compared(&runs).finish().exits(0).stdout;
        assert!(words.contains("/stages/1/sleep/concurrency") && words.contains("[2:decode] ave"), "{words}");

        // In the opposite order, the comparison reports a loss, explained by the new limit.
        let back = compared(&[runs[1].clone(), runs[0].clone()]).finish().exits(0).stdout;
        assert!(
            back.contains(" % slower: ") && back.contains("runs 1 task at a time instead of 4"),
            "{back}"
        );
        let same = compared(&[runs[0].clone(), runs[0].clone()]).finish().exits(0).stdout;
        assert!(
            same.starts_with("No difference: ") && same.contains("The documents are the same."),
            "{same}"
        );
    });
}

#[test]
fn the_straggler_of_several_ranks_is_named_with_its_slower_part() {
    timed(|| {
        let folder = Folder::new();
        let rank = |rank: u32| {
            let mut document = document();
            document["source"]["range"]["shard"] = json!({ "rank": rank, "world": 3 });
            document["stages"][0]["sleep"]["mean_ms"] = json!(if rank == 1 { 120 } else { 10 });
            document
        };
        let runs = ran(&folder, [rank(0), rank(1), rank(2)]);
        let told = compared(&runs).finish().exits(0).stdout;
        assert!(told.starts_with("Rank 1 is the straggler: "), "{told}");
        assert!(told.contains("an op of `1:load` takes 12"), "{told}");
    });
}

#[test]
fn runs_that_cannot_be_compared_are_reported() {
    let folder = Folder::new();
    let runs = ran(&folder, [document(), document(), document()]);
    let told = compared(&runs).finish().exits(2).stderr;
    assert!(told.contains("these 3 runs are not ranks of one pipeline"), "{told}");
    let told = compared(&[runs[0].clone(), folder.join("none")]).finish().exits(2).stderr;
    assert!(told.contains("contains no finished run"), "{told}");
    compared(&runs[..1]).finish().exits(2);
}
