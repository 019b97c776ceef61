//! Runs that continue where an earlier one was interrupted.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use penstock_tests::{Call, Folder};
use penstock_types::run::{RunSnapshot, RunState};
use serde_json::{Value, json};

use crate::files::{BATCHES, SAMPLES, batches, call, header, objects, prepared, random};

/// Number of kills of a run.
const KILLS: u64 = 10;

fn with_state(call: Call, state: &Path) -> Call {
    let call = call.argument("--state").argument(state);
    if state.exists() { call.argument("--resume").argument(state) } else { call }
}

/// Keys of the samples in all batches, sorted.
fn keys(objects: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let batches = objects.iter().filter(|(name, _)| name.starts_with("batch-"));
    let mut keys: Vec<String> = batches
        .flat_map(|(_, file)| {
            let metadata = header(file)["__metadata__"]["penstock"].as_str().unwrap().to_owned();
            let metadata: Value = serde_json::from_str(&metadata).unwrap();
            serde_json::from_value::<Vec<String>>(metadata["keys"].clone()).unwrap()
        })
        .collect();
    keys.sort_unstable();
    keys
}

/// Kills runs twice, each time after another number of batches and some milliseconds, and lets a third one end. `resumed` adds the
/// arguments by which a run continues.
fn kill_and_resume(order: &str, resumed: impl Fn(Call, &Path) -> Call) {
    let set = |call: Call| call.set(&format!("/stages/0/sleep/order={order}"));
    let (reference, document) = prepared();
    set(call(&reference, &document)).finish().exits(0);
    let reference = objects(&reference.join("out"));
    let mut seed = 11;
    let mut in_the_middle = 0;
    let kills: u64 = env::var("PENSTOCK_TEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    for kill in 0..kills {
        let (folder, document) = prepared();
        let out = folder.join("out");
        // Half a second, in which the state is written several times.
        let slow = || set(call(&folder, &document).set("/interval_s=0.1").set("/stages/0/sleep/mean_ms=10"));
        let run = || resumed(slow(), folder.path());
        for after in [kill * BATCHES / kills / 2, kill * BATCHES / kills] {
            let call = run();
            let mut child = call.start();
            while batches(&objects(&out)) < after && child.try_wait().unwrap().is_none() {
                sleep(Duration::from_millis(1));
            }
            sleep(Duration::from_micros(random(&mut seed) % 30_000));
            child.kill().unwrap();
            call.finished(child);
        }
        let snapshot = run().finish().exits(0).snapshot();
        let earlier = snapshot.resumed.unwrap_or_default();
        in_the_middle += u64::from(earlier.delivered > 0 && earlier.delivered < SAMPLES);
        assert_eq!(earlier.delivered + snapshot.ledger.total.delivered, SAMPLES, "kill {kill}");
        let found = objects(&out);
        if order == "input" {
            assert!(found == reference, "kill {kill}: the files differ from those of an undisturbed run");
        }
        assert_eq!(keys(&found), keys(&reference), "kill {kill}");
    }
    assert!(in_the_middle > 0, "no run was resumed in its middle");
}

#[test]
fn a_killed_run_continues_from_its_state_with_the_same_files() {
    kill_and_resume("input", |call, folder| with_state(call, &folder.join("state.json")));
}

#[test]
fn a_killed_run_in_any_order_continues_from_the_state_beside_its_batches() {
    kill_and_resume("completion", |call, folder| match batches(&objects(&folder.join("out"))) {
        0 => call,
        _ => call.argument("--resume-files"),
    });
}

#[test]
fn a_run_that_was_stopped_reports_earlier_samples_and_all_of_them() {
    let folder = Folder::new();
    let state = folder.join("state.json");
    let document = folder.document(&json!({
        "source": { "range": { "count": 100_000, "shuffle": true } }, "interval_s": 0.1,
        "stages": [{ "sleep": { "mean_ms": 1, "concurrency": 4, "fail_rate": 0.1 } }],
        "max_failures": null
    }));
    let first = with_state(Call::run(&document).json().set("/source/range/count=300"), &state);
    let first = first.argument("--for=100ms").finish().exits(0).snapshot();
    let second = with_state(Call::run(&document).json().set("/source/range/count=300"), &state);
    let second: RunSnapshot = second.finish().exits(0).snapshot();
    let earlier = second.resumed.clone().unwrap();
    assert_eq!((first.state, second.state), (RunState::Completed, RunState::Completed));
    assert!(earlier.balances() && earlier.left == 0, "{earlier:?}");
    assert_eq!(earlier.delivered, first.ledger.total.delivered);
    let all = earlier.plus(&second.ledger.total);
    assert_eq!((all.made, all.left, all.delivered + all.skipped), (300, 0, 300));
    let text =
        with_state(Call::run(&document).set("/source/range/count=300"), &state).finish().exits(0).stdout;
    let rows: Vec<&str> = text.lines().filter(|line| line.contains(" runs ")).collect();
    assert!(rows.len() == 2 && rows[1].contains("300"), "{text}");
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let folder = Folder::new();
    let state = folder.join("state.json");
    let document = folder.document(&json!({ "source": { "range": { "count": 10 } }, "stages": [] }));
    with_state(Call::run(&document).json(), &state).finish().exits(0);
    let other = || with_state(Call::run(&document).json().set("/source/range/count=20"), &state);
    let stderr = other().finish().exits(2).stderr;
    assert!(stderr.contains("`/source` differs; pass `--force` to resume nevertheless"), "{stderr}");
    let snapshot = other().argument("--force").finish().exits(0).snapshot();
    assert_eq!(snapshot.ledger.total.delivered, 10);
    for (text, reason) in [("{", "not a state"), ("{\"version\": 9}", "version 9")] {
        folder.write("bad.json", text);
        let call = Call::run(&document).argument("--resume").argument(folder.join("bad.json"));
        let stderr = call.finish().exits(2).stderr;
        assert!(stderr.contains(reason), "{stderr}");
    }
    let call = Call::run(&document).argument("--state").argument(folder.join("missing/state.json"));
    assert!(call.finish().exits(2).stderr.contains("cannot write"));
}

#[test]
fn a_state_that_no_run_has_written_is_refused_with_what_was_found() {
    let folder = Folder::new();
    let state = folder.join("state.json");
    let document = folder.document(
        &json!({ "source": { "range": { "count": 1_000, "epochs": 2 } }, "stages": [], "interval_s": 0.1 }),
    );
    let slow = Call::run(&document).json().set("/consumer={\"simulate\": {\"step_ms\": 5}}");
    with_state(slow, &state).argument("--for=300ms").finish().exits(0);
    let valid: Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    let begun = json!([{ "epoch": 0, "frontier": 2, "ended": u64::MAX }]);
    let settled: Vec<[u64; 2]> = (0..300_000).map(|number| [2 * number + 1, 1]).collect();
    for (place, value, reason) in [
        ("/first_epoch", json!(u32::MAX), "rank 0 has begun epoch 0, and the run began with 4294967295"),
        ("/ranks/0/epochs", begun, "has settled 18446744073709551615 positions of epoch 0"),
        (
            "/ranks/0/epochs",
            json!([{ "epoch": 0, "frontier": 1_001 }]),
            "has settled 1001 positions of epoch 0",
        ),
        (
            "/ranks/0/epochs",
            json!([{ "epoch": 0, "frontier": 0, "settled": settled }]),
            "has settled 600000 positions",
        ),
        ("/world", json!(u32::MAX), "rank 0 of 4294967295 has settled"),
        ("/ranks/0/settled/made", json!(u64::MAX), "samples are not the sum of their outcomes"),
    ] {
        let mut state = valid.clone();
        *state.pointer_mut(place).unwrap() = value;
        folder.write("bad.json", state.to_string());
        let call = Call::run(&document).argument("--resume").argument(folder.join("bad.json"));
        let stderr = call.finish().exits(2).stderr;
        assert!(stderr.contains(reason), "{place}: {stderr}");
    }
    // Without their number in the state, the samples of the source tell.
    let mut uncounted = valid.clone();
    uncounted["count"] = Value::Null;
    uncounted["ranks"]["0"]["epochs"] = json!([{ "epoch": 0, "frontier": 1_001 }]);
    folder.write("bad.json", uncounted.to_string());
    let call = Call::run(&document).argument("--resume").argument(folder.join("bad.json"));
    let stderr = call.finish().exits(2).stderr;
    assert!(
        stderr.contains("position 1000 of an epoch is settled, and the source has 1000 samples"),
        "{stderr}"
    );
    // A rank of billions gets its part of what is left, and no memory is taken for the others.
    let ranks = json!({ "rank": 3, "world": u32::MAX, "uneven": "keep" });
    let call = Call::run(&document).json().set(&format!("/source/range/shard={ranks}"));
    let rank = call.argument("--resume").argument(&state).finish().exits(0).snapshot();
    assert!((1..=2).contains(&rank.ledger.total.delivered), "{:?}", rank.ledger.total);
}
