use std::collections::BTreeMap;
use std::iter;
use std::num::NonZeroU32;
use std::path::Path;

use penstock_engine::item::Item;
use penstock_engine::running::{StopReason, Taken};
use penstock_types::run::RunState;
use penstock_types::spec::Spec;
use penstock_types::traversal::{Shard, Uneven};
use penstock_wasm::{Sandbox, SandboxSettings};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::*;
use crate::modules::Modules;
use crate::prepare::Outlets;
use crate::runner::{RunEnds, Runner};
use crate::stores::Stores;

const LONG: Duration = Duration::from_secs(60);

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..23 {
        fs::write(folder.path().join(format!("{number:02}.txt")), "x").unwrap();
    }
    let lines: String =
        (0..31).map(|number| format!("{{\"key\": \"{number}\", \"number\": {number}}}\n")).collect();
    fs::write(folder.path().join("lines.ndjson"), &lines).unwrap();
    fs::write(folder.path().join("lines.ndjson.gz"), gzip(lines.as_bytes())).unwrap();
    let rows: String = (0..29).map(|number| format!("{number};{number}\n")).collect();
    fs::write(folder.path().join("rows.csv"), gzip(format!("key;number\n{rows}").as_bytes())).unwrap();
    folder
}

/// Content in the form of gzip, not made smaller.
fn gzip(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap();
    let of_byte = |byte: u32| (0..8).fold(byte, |sum, _| (sum >> 1) ^ (0xedb8_8320 * (sum & 1)));
    let sum = content.iter().fold(!0, |sum: u32, byte| (sum >> 8) ^ of_byte((sum ^ u32::from(*byte)) & 0xff));
    let mut bytes = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01".to_vec();
    bytes.extend(length.to_le_bytes());
    bytes.extend((!length).to_le_bytes());
    bytes.extend(content);
    bytes.extend((!sum).to_le_bytes());
    bytes.extend(u32::from(length).to_le_bytes());
    bytes
}

fn document(source: &Value, order: &str) -> Value {
    json!({
        "source": source, "seed": 7, "threads": 2, "max_failures": null,
        "stages": [
            { "sleep": { "mean_ms": 0.2, "jitter": 1, "on": "async", "concurrency": 3, "order": order, "fail_rate": 0.1 } },
            { "aggregate": { "size": 3 } },
        ],
    })
}

fn prepared(runtime: &Runtime, folder: &Path, document: &Value) -> Prepared {
    let mut stores = Stores::default();
    stores.add_folder("here", folder).unwrap();
    let modules = Modules::new(Sandbox::new(SandboxSettings::default()).unwrap());
    let runner = Runner::new(runtime.handle().clone(), stores, modules);
    runner.prepare(&Spec::from_value(document.clone()).unwrap(), Outlets::ALL).unwrap()
}

/// A run whose batches the test takes.
fn taken() -> RunEnds {
    RunEnds { is_taken: true, max_held: 4, ..RunEnds::default() }
}

/// Takes up to `most` batches. Returns the keys in the order of delivery, and the state.
fn run(runtime: &Runtime, prepared: &Prepared, most: usize) -> (Vec<String>, Token) {
    let run = runtime.block_on(prepared.start(None, taken())).unwrap();
    let mut keys = Vec::new();
    for _ in 0..most {
        let Taken::Item(item) = run.handle.take(LONG) else { break };
        let origins: Vec<_> = item.origins().collect();
        run.handle.hand_out(&origins);
        let Item::Batch(samples) = item else { panic!("the document makes batches") };
        keys.extend(samples.into_iter().map(|sample| format!("{} of {}", sample.key, sample.origin.epoch)));
    }
    run.handle.stop(StopReason::Asked);
    let ended = run.wait();
    assert!(ended.snapshot.state != RunState::Failed, "{:?}", ended.snapshot.error);
    (keys, Token::read(ended.state.unwrap().as_bytes()).unwrap())
}

fn sorted(mut keys: Vec<String>) -> Vec<String> {
    keys.sort_unstable();
    keys
}

#[test]
fn runs_over_every_kind_of_source_continue_where_they_stopped() {
    let (runtime, folder) = (Runtime::new().unwrap(), folder());
    let list = json!({ "list": { "store": "here", "suffix": ".txt" } });
    let records = json!({ "records": { "store": "here", "key": "lines.ndjson", "epochs": 2 } });
    let part = |source: &Value| json!({ "source": source, "weight": 2 });
    let sources = [
        json!({ "range": { "count": 40, "shuffle": true, "epochs": 2 } }),
        json!({ "range": { "count": 40, "limit": 17, "epochs": 3 } }),
        list.clone(),
        json!({ "list": { "store": "here", "suffix": ".txt", "shuffle": true } }),
        records.clone(),
        json!({ "records": { "store": "here", "key": "lines.ndjson", "limit": 11, "epochs": 2 } }),
        json!({ "records": { "store": "here", "key": "lines.ndjson", "shuffle": true, "limit": 20 } }),
        json!({ "records": { "store": "here", "shards": "{lines.ndjson.gz,lines.ndjson}", "epochs": 2 } }),
        json!({ "csv": { "store": "here", "key": "rows.csv", "delimiter": ";", "types": { "number": "int" }, "epochs": 2 } }),
        json!({ "mix": { "sources": { "a": part(&list), "b": part(&json!({ "range": { "count": 9, "shuffle": true } })) }, "epochs": 2 } }),
    ];
    for source in sources {
        for order in ["completion", "input"] {
            let document = document(&source, order);
            let begun = prepared(&runtime, folder.path(), &document);
            let (whole, end) = run(&runtime, &begun, usize::MAX);
            assert!(end.settled().balances());
            for stop in [0, 1, 4, 9, 1000] {
                let (mut keys, state) = run(&runtime, &begun, stop);
                let mut second = prepared(&runtime, folder.path(), &document);
                second.resume(state, false).unwrap();
                let (rest, second_end) = run(&runtime, &second, usize::MAX);
                keys.extend(rest);
                match order {
                    // Each epoch's last batch may be cut elsewhere, but the order is the same.
                    "input" => assert_eq!(keys, whole, "{source} stopped after {stop}"),
                    _ => assert_eq!(sorted(keys), sorted(whole.clone()), "{source} stopped after {stop}"),
                }
                assert_eq!(second_end.settled(), end.settled(), "{source} stopped after {stop}");
            }
        }
    }
}

#[test]
fn ranks_of_another_number_continue_from_the_merged_states() {
    let (runtime, folder) = (Runtime::new().unwrap(), folder());
    for source in [
        json!({ "list": { "store": "here", "suffix": ".txt" } }),
        json!({ "range": { "count": 50, "shuffle": true } }),
        json!({ "records": { "store": "here", "key": "lines.ndjson" } }),
    ] {
        let document = document(&source, "completion");
        let whole = run(&runtime, &prepared(&runtime, folder.path(), &document), usize::MAX).0;
        for (world, later) in [(2, 3), (5, 1), (1, 4)] {
            let rank = |rank: u32, world: u32| {
                let mut prepared = prepared(&runtime, folder.path(), &document);
                let world = NonZeroU32::new(world).unwrap();
                prepared.plan.source.traversal.shard = Some(Shard { rank, world, uneven: Uneven::Keep });
                prepared
            };
            let (mut keys, mut states) = (Vec::new(), Vec::new());
            for number in 0..world {
                let (some, state) = run(&runtime, &rank(number, world), 1 + number as usize % 2);
                keys.extend(some);
                states.push(state);
            }
            let merged = Token::merge(states).unwrap();
            for number in 0..later {
                let mut prepared = rank(number, later);
                prepared.resume(merged.clone(), false).unwrap();
                keys.extend(run(&runtime, &prepared, usize::MAX).0);
            }
            assert_eq!(sorted(keys), sorted(whole.clone()), "{source} from {world} to {later}");
        }
    }
}

#[test]
fn ranks_continue_in_compressed_records_each_with_its_own_state() {
    let (runtime, folder) = (Runtime::new().unwrap(), folder());
    let source = json!({ "records": { "store": "here", "key": "lines.ndjson.gz", "epochs": 2 } });
    let document = document(&source, "completion");
    for (uneven, expected) in [(Uneven::Keep, 62), (Uneven::Drop, 60)] {
        let mut keys = Vec::new();
        let mut states = Vec::new();
        let rank = |rank: u32, world: u32| {
            let mut prepared = prepared(&runtime, folder.path(), &document);
            let world = NonZeroU32::new(world).unwrap();
            prepared.plan.source.traversal.shard = Some(Shard { rank, world, uneven });
            prepared
        };
        for number in 0..3 {
            let (some, state) = run(&runtime, &rank(number, 3), 2 * number as usize);
            keys.extend(some);
            let mut second = rank(number, 3);
            second.resume(state.clone(), false).unwrap();
            let (rest, end) = run(&runtime, &second, usize::MAX);
            keys.extend(rest);
            assert!(end.settled().balances());
            states.push(state);
        }
        // A tenth of the samples fail in the stage, the same in each run.
        let whole = (0..3).flat_map(|number| run(&runtime, &rank(number, 3), usize::MAX).0).collect();
        assert_eq!(sorted(keys), sorted(whole));
        let made = |rank: &Prepared| run(&runtime, rank, usize::MAX).1.settled().made;
        assert_eq!((0..3).map(|number| made(&rank(number, 3))).sum::<u64>(), expected);
        // Positions that are dealt anew are in no order.
        let mut dealt = rank(0, 2);
        dealt.resume(Token::merge(states).unwrap(), false).unwrap();
        let run = runtime.block_on(dealt.start(None, taken())).unwrap();
        assert!(matches!(run.handle.take(LONG), Taken::Over));
        let error = run.wait().snapshot.error.unwrap();
        assert!(error.contains("is compressed with gzip as a whole"), "{error}");
    }
}

#[test]
fn a_state_of_other_records_is_refused_before_the_first_sample() {
    let (runtime, folder) = (Runtime::new().unwrap(), folder());
    // The records are counted once all are read, which may be before the first stop.
    const DIFFERENCES: [&str; 2] =
        ["has 32 samples, and had 31", "has other files, keys, sizes or bytes than it had"];
    for (key, stop, told) in [
        ("lines.ndjson", 2, &DIFFERENCES[..]),
        ("lines.ndjson.gz", 2, &DIFFERENCES),
        ("lines.ndjson", 1000, &DIFFERENCES[..1]),
        ("lines.ndjson.gz", 1000, &DIFFERENCES[..1]),
    ] {
        let document = document(&json!({ "records": { "store": "here", "key": key, "epochs": 2 } }), "input");
        let (_, state) = run(&runtime, &prepared(&runtime, folder.path(), &document), stop);
        let before = fs::read(folder.path().join(key)).unwrap();
        let lines: String = (0..32).map(|number| format!("{{\"key\": \"{number}\"}}\n")).collect();
        let other = if key.ends_with(".gz") { gzip(lines.as_bytes()) } else { lines.into_bytes() };
        fs::write(folder.path().join(key), other).unwrap();
        let mut second = prepared(&runtime, folder.path(), &document);
        second.resume(state, false).unwrap();
        let run = runtime.block_on(second.start(None, taken())).unwrap();
        assert!(matches!(run.handle.take(LONG), Taken::Over));
        let error = run.wait().snapshot.error.unwrap();
        assert!(told.iter().any(|told| error.contains(told)), "{key} after {stop}: {error}");
        fs::write(folder.path().join(key), before).unwrap();
    }
}

#[test]
fn a_state_is_refused_with_what_differs_unless_it_is_forced() {
    let (runtime, folder) = (Runtime::new().unwrap(), folder());
    let source = |count: u32| json!({ "range": { "count": count } });
    let (_, state) = run(&runtime, &prepared(&runtime, folder.path(), &document(&source(40), "input")), 2);
    let refused = |document: &Value| {
        let mut prepared = prepared(&runtime, folder.path(), document);
        let fault = prepared.resume(state.clone(), false).unwrap_err().to_string();
        prepared.resume(state.clone(), true).unwrap();
        fault
    };
    let other = |pointer: &str, value: Value| {
        let mut document = document(&source(40), "input");
        *document.pointer_mut(pointer).unwrap() = value;
        document
    };
    assert_eq!(
        refused(&document(&source(41), "input")),
        "the state belongs to another run: `/source` differs"
    );
    assert_eq!(
        refused(&other("/stages/0/sleep/fail_rate", json!(0.2))),
        "the state belongs to another run: `/stages/0/sleep` differs"
    );
    assert_eq!(refused(&other("/seed", json!(8))), "the state belongs to another run: `/seed` differs");
    // These settings do not change the samples.
    for same in [other("/threads", json!(1)), other("/stages/0/sleep/order", json!("completion"))] {
        prepared(&runtime, folder.path(), &same).resume(state.clone(), false).unwrap();
    }
    let list = document(&json!({ "list": { "store": "here", "suffix": ".txt" } }), "input");
    let (_, state) = run(&runtime, &prepared(&runtime, folder.path(), &list), 100);
    fs::write(folder.path().join("later.txt"), "x").unwrap();
    let mut prepared = prepared(&runtime, folder.path(), &list);
    prepared.resume(state, false).unwrap();
    let run = runtime.block_on(prepared.start(None, taken())).unwrap();
    assert!(matches!(run.handle.take(LONG), Taken::Over));
    let error = run.wait().snapshot.error.unwrap();
    assert!(error.contains("the source has 24 samples, and had 23 when the state was written"), "{error}");
}

#[test]
fn a_state_file_is_written_atomically_and_its_folder_is_checked_first() {
    let folder = tempfile::tempdir().unwrap();
    assert!(StateFile::at(folder.path().join("missing/state.json")).is_err());
    let file = StateFile::at(folder.path().join("state.json")).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let settings = penstock_types::traversal::TraversalSettings::IN_ORDER;
    file.write(Token::new(BTreeMap::new(), &settings).to_json()).unwrap();
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["state.json"]);
}

/// All places of numbers in a document.
fn numbers(value: &Value, place: &str, into: &mut Vec<String>) {
    match value {
        Value::Number(_) => into.push(place.to_owned()),
        Value::Array(values) => {
            let places = values.iter().enumerate();
            places.for_each(|(number, value)| numbers(value, &format!("{place}/{number}"), into));
        }
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| numbers(value, &format!("{place}/{name}"), into));
        }
        _ => {}
    }
}

/// Changes of states, at random places, to values at the edges of what they can be: each is refused, or makes a run that ends and balances.
#[test]
fn states_with_changed_numbers_are_refused_or_run_to_an_end() {
    let (runtime, folder) = (Runtime::new().unwrap(), folder());
    let mut seed = 1_u64;
    let mut random = |most: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % most
    };
    let edges = [0, 1, 2, 3, 9, 29, 31, 40, 41, u64::from(u32::MAX), 1 << 40, i64::MAX as u64, u64::MAX];
    let sources = [
        json!({ "range": { "count": 40, "shuffle": true, "epochs": 2 } }),
        json!({ "records": { "store": "here", "key": "lines.ndjson", "epochs": 2 } }),
        json!({ "records": { "store": "here", "key": "lines.ndjson", "shuffle": true, "limit": 20, "epochs": 2 } }),
    ];
    let mut refused = 0;
    for source in &sources {
        let (mut tried, mut over) = (0, 0);
        let document = document(source, "completion");
        let begin = |world: Option<u32>| {
            let mut prepared = prepared(&runtime, folder.path(), &document);
            let traversal = &mut prepared.plan.source.traversal;
            traversal.first_epoch = 1;
            traversal.shard = world.map(|world| Shard {
                rank: 0,
                world: NonZeroU32::new(world).unwrap(),
                uneven: Uneven::Keep,
            });
            prepared
        };
        let states = [1, 5, 9].map(|stop| run(&runtime, &begin(None), stop).1.to_json());
        // Few of the changed states are sound.
        while tried < 100 || (over <= 10 && tried < 2_000) {
            tried += 1;
            let mut state: Value = serde_json::from_str(&states[random(3)]).unwrap();
            let mut places = Vec::new();
            numbers(&state, "", &mut places);
            for _ in 0..=random(2) {
                *state.pointer_mut(&places[random(places.len())]).unwrap() =
                    edges[random(edges.len())].into();
            }
            if random(4) == 0 {
                state["count"] = Value::Null;
            }
            let mut second = begin([None, Some(3), Some(u32::MAX)][random(3)]);
            let read = Token::read(state.to_string().as_bytes());
            if read.and_then(|token| second.resume(token, random(4) == 0)).is_err() {
                refused += 1;
                continue;
            }
            let run = runtime.block_on(second.start(None, taken())).unwrap();
            let batches = iter::from_fn(|| match run.handle.take(LONG) {
                Taken::Item(_) => Some(()),
                _ => None,
            });
            assert!(batches.take(1_000).count() < 1_000, "the run does not end: {state:#}");
            let ended = run.wait();
            assert!(ended.snapshot.ledger.balanced, "{state:#}");
            match ended.snapshot.state {
                RunState::Failed => refused += 1,
                _ => {
                    let text = ended.state.unwrap();
                    assert!(Token::read(text.as_bytes()).is_ok(), "{text} after {state:#}");
                    over += 1;
                }
            }
        }
        assert!(over > 10, "{over} of {tried} ran: {source}");
    }
    assert!(refused > 30, "{refused} were refused");
}
