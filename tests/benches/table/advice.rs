//! Rate reached by following the advice of verdicts, compared with an exhaustive search.

use penstock_tests::{Call, Folder};
use penstock_types::run::RunSnapshot;
use penstock_types::verdict::Goal;
use serde_json::{Value, json};

use crate::{Bound, Row, median, photos_dir};

/// Number of times that advice is followed.
const ROUNDS: usize = 3;
/// Number of the fastest settings that are run again.
const BEST: usize = 3;
/// Number of runs of each of the fastest settings.
const TURNS: usize = 7;

/// A pipeline with room for improvement.
struct Bad {
    document: Value,
    /// Settings, with the values to try for each.
    settings: Vec<(&'static str, &'static [u32])>,
    time: &'static str,
}

pub(crate) fn advice() -> Row {
    let found: Vec<(f64, String)> = bad().iter().map(reached).collect();
    let told: Vec<&str> = found.iter().map(|(_, told)| told.as_str()).collect();
    let least = found.iter().map(|(share, _)| *share).fold(f64::INFINITY, f64::min);
    Row {
        what: "rate after three rounds of advice, relative to the best tried",
        must: Bound::AtLeast(0.95, "x"),
        aim: Bound::AtLeast(1.0, "x"),
        found: least,
        from: told.join("; "),
    }
}

fn bad() -> Vec<Bad> {
    let pipeline = |name: &str, threads: u32, stages: Value| {
        json!({
            "name": name, "threads": threads, "source": { "range": { "count": 1_000_000 } },
            "stages": stages, "consumer": { "discard": {} }
        })
    };
    vec![
        Bad {
            document: pipeline("one-slot", 1, json!([{ "sleep": { "name": "load", "mean_ms": 40 } }])),
            settings: vec![("/stages/0/sleep/concurrency", &[1, 2, 4, 8, 16])],
            time: "3s",
        },
        Bad {
            document: pipeline(
                "second-too-slow",
                1,
                json!([
                    { "sleep": { "name": "load", "mean_ms": 10, "concurrency": 2 } },
                    { "sleep": { "name": "decode", "mean_ms": 60, "jitter": 0.3 } },
                    { "aggregate": { "size": 4 } }
                ]),
            ),
            settings: vec![
                ("/stages/0/sleep/concurrency", &[2, 4, 8]),
                ("/stages/1/sleep/concurrency", &[1, 4, 8, 16]),
            ],
            time: "3s",
        },
        Bad {
            document: pipeline(
                "one-thread",
                1,
                json!([{ "sleep": { "name": "work", "mean_ms": 20, "on": "thread", "concurrency": 8 } }]),
            ),
            settings: vec![("/threads", &[1, 2, 4, 8]), ("/stages/0/sleep/concurrency", &[8, 16])],
            time: "3s",
        },
        Bad {
            document: pipeline(
                "bursts",
                1,
                json!([
                    { "sleep": { "name": "load", "mean_ms": 20, "shape": "exponential", "concurrency": 2, "queue": 1 } },
                    { "sleep": { "name": "move", "mean_ms": 10, "shape": "exponential", "queue": 1 } }
                ]),
            ),
            settings: vec![
                ("/stages/0/sleep/concurrency", &[2, 4]),
                ("/stages/1/sleep/concurrency", &[1, 2, 4]),
                ("/stages/0/sleep/queue", &[1, 8]),
            ],
            time: "4s",
        },
        Bad {
            document: json!({
                "name": "photos", "threads": 1, "source": { "list": { "store": "photos", "epochs": null } },
                "stages": [
                    { "fetch": {} },
                    { "wasm": { "name": "preprocess", "module": "std/image", "params": { "ops": [{ "Resize": { "size": [224, 224] } }] } } },
                    { "aggregate": { "size": 4 } },
                    { "collate": {} }
                ],
                "consumer": { "discard": {} }
            }),
            settings: vec![
                ("/threads", &[1, 2, 4]),
                ("/stages/0/fetch/concurrency", &[1, 4]),
                ("/stages/1/wasm/concurrency", &[1, 2, 4]),
            ],
            time: "3s",
        },
    ]
}

/// Share of the best rate that following the advice reached, in items of the consumer per second, and a text with both rates.
///
/// The search runs each setting once, but the maximum of many noisy runs is biased: so the advised settings and the best few
/// others are then run again, in turns. The speed of a machine varies between turns, so shares are taken within turns.
fn reached(bad: &Bad) -> (f64, String) {
    let settings = all(&bad.settings);
    let mut tried: Vec<(f64, Value)> =
        settings.iter().map(|values| bad.with(values)).map(|it| bad.tried(it)).collect();
    tried.sort_by(|one, other| other.0.total_cmp(&one.0));
    let advised = bad.advised();
    let others: Vec<Value> = tried.into_iter().take(BEST).map(|(_, document)| document).collect();

    let mut rates = Vec::new();
    let mut shares = vec![Vec::new(); others.len()];
    for _ in 0..TURNS {
        let reached = rate(&run(&advised, bad.time));
        rates.push(reached);
        for (other, shares) in others.iter().zip(&mut shares) {
            shares.push(reached / rate(&run(other, bad.time)));
        }
    }
    let shares = shares.into_iter().map(median).zip(&others);
    let (share, best) = shares.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
    let [of_advised, of_best] = [&advised, best].map(|document| bad.shown(document));
    let name = bad.document["name"].as_str().unwrap();
    (share, format!("{name} {:.0}/s, {share:.2}x ({of_advised} against {of_best})", median(rates)))
}

impl Bad {
    /// Document in which the settings have these values.
    fn with(&self, values: &[u32]) -> Value {
        let mut document = self.document.clone();
        for ((pointer, _), value) in self.settings.iter().zip(values) {
            *place(&mut document, pointer) = json!(value);
        }
        document
    }

    /// Values of the settings in a document.
    fn shown(&self, document: &Value) -> String {
        let values = self
            .settings
            .iter()
            .map(|(pointer, _)| document.pointer(pointer).map_or("-".to_owned(), Value::to_string));
        values.collect::<Vec<_>>().join(",")
    }

    fn tried(&self, document: Value) -> (f64, Value) {
        (rate(&run(&document, self.time)), document)
    }

    /// The fastest of the documents obtained by following advice repeatedly, limited to the values of the search.
    fn advised(&self) -> Value {
        let mut document = self.document.clone();
        let mut found = Vec::new();
        for _ in 0..ROUNDS {
            let verdict = run(&document, self.time).verdict.unwrap();
            let mut advice = verdict.advice.into_iter();
            let Some(next) = advice.find(|advice| advice.goal == Goal::Rate && !advice.set.is_empty()) else {
                break;
            };
            for set in next.set {
                let pointer = set.pointer.to_string();
                let most =
                    self.settings.iter().find(|(of, _)| *of == pointer).and_then(|(_, values)| values.last());
                let value = match (most, set.value.as_u64()) {
                    (Some(most), Some(value)) => json!(value.min(u64::from(*most))),
                    _ => set.value,
                };
                *place(&mut document, &pointer) = value;
            }
            found.push(self.tried(document.clone()));
        }
        let best = found.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
        best.map_or_else(|| self.document.clone(), |(_, document)| document)
    }
}

/// Every combination of the values.
fn all(settings: &[(&str, &[u32])]) -> Vec<Vec<u32>> {
    settings.iter().fold(vec![Vec::new()], |found, (_, values)| {
        let with =
            |before: &Vec<u32>| values.iter().map(|value| [before.as_slice(), &[*value]].concat()).collect();
        found.iter().flat_map(|before: &Vec<u32>| -> Vec<Vec<u32>> { with(before) }).collect()
    })
}

/// Value at a pointer, created if it is missing.
fn place<'a>(document: &'a mut Value, pointer: &str) -> &'a mut Value {
    pointer.split('/').skip(1).fold(document, |value, step| match step.parse::<usize>() {
        Ok(index) => &mut value[index],
        Err(_) => &mut value[step],
    })
}

fn run(document: &Value, time: &str) -> RunSnapshot {
    let folder = Folder::new();
    let file = folder.write("pipeline.json", document.to_string());
    let call = Call::run(&file).argument("--for").argument(time).json().store("photos", &photos_dir());
    call.finish().exits(0).snapshot()
}

fn rate(snapshot: &RunSnapshot) -> f64 {
    snapshot.queues.last().unwrap().figures.qps.unwrap()
}
