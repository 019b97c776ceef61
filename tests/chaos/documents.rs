//! Random pipelines, most of them valid, and modules to run in them.

use std::fmt;

use penstock_tests::Chance;
use serde_json::{Value, json};

/// Guests that a server has from its start: the names in their manifests, and their crates.
pub(crate) const GUESTS: [(&str, &str); 6] = [
    ("misbehaving", "guest-misbehaving"),
    ("carrying", "guest-carrying"),
    ("remembering", "guest-remembering"),
    ("batch", "guest-batch"),
    ("stateful", "guest-stateful"),
    ("text-filter", "text-filter"),
];
/// Kinds of misbehaviour of the guest `misbehaving`; all except `init-*` and `too-*` also with the suffix `-on-bad`.
const HOWS: &str = "init-error init-trap too-few too-many good loop log-loop memory recursion trap divide out-of-bounds panic abort \
    failed drop held shape shape-overflow rank nan zero-length huge twice fields long-key many many-none many-bomb log-flood log-long \
    count count-unknown";

/// A pipeline; its debug form lists its parts.
#[derive(Clone)]
pub(crate) struct Document(pub(crate) Value);

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind =
            |part: &Value| part.as_object().and_then(|part| part.keys().next().cloned()).unwrap_or_default();
        write!(f, "{}", kind(&self.0["source"]))?;
        for stage in self.0["stages"].as_array().into_iter().flatten() {
            match stage["wasm"]["module"].as_str() {
                Some(module) => write!(f, ">{module} {}", stage["wasm"]["params"])?,
                None => write!(f, ">{}", kind(stage))?,
            }
        }
        write!(f, ">{}", kind(&self.0["consumer"]))
    }
}

/// Files in both stores, by their keys.
pub(crate) fn objects(chance: &mut Chance) -> Vec<(String, Vec<u8>)> {
    let misdeeds = ["bad", "refuse", "drop", "trap", "burst", "shape", "late", "two"];
    let texts = ["split", "override", "forget", "field", "key", "reason", "ä text\n\nof two paragraphs"];
    let mut records = String::new();
    for number in 0..600 {
        let word = if chance.once_in(40) { chance.pick(&misdeeds) } else { "good" };
        let line = json!({ "key": format!("{word}-{number}"), "x": number, "text": chance.pick(&texts) });
        records.push_str(&format!("{line}\n"));
    }
    let object =
        |number: usize| (format!("objects/{number:03}.bin"), vec![number as u8; number * number * 29]);
    (0..60).map(object).chain([("records.ndjson".to_owned(), records.into_bytes())]).collect()
}

/// Creates a pipeline called `name`. One in six is endless, some need much computation, and some are invalid. `streams` lets it
/// hand batches to other processes.
pub(crate) fn document(chance: &mut Chance, name: &str, streams: bool) -> Document {
    let store = chance.pick(&["here", "bucket"]);
    let (kind, mut source) = match chance.below(3) {
        0 => ("range", json!({ "count": chance.from(0, 2_000) })),
        1 => ("records", json!({ "store": store, "key": "records.ndjson" })),
        _ => ("list", json!({ "store": store, "prefix": "objects/" })),
    };
    source["shuffle"] = json!(chance.once_in(2));
    source["epochs"] = chance.pick(&[json!(1), json!(1), json!(2), json!(2), json!(3), json!(null)]);
    let consumer = match chance.below(4) {
        _ if streams => json!({ "stream": { "ahead": chance.from(1, 4), "wait_s": 2 } }),
        0 => json!({ "files": { "store": "out", "prefix": name } }),
        1 => json!({ "simulate": { "step_ms": chance.from(0, 4) } }),
        _ => json!({ "discard": {} }),
    };
    let mut stages = Vec::new();
    if kind == "list" {
        stages.push(tasked(chance, "fetch", json!({})));
    }
    let mut flow = "samples";
    let count = chance.below(5);
    stages.extend((0..count).map(|_| stage(chance, &mut flow)));
    if consumer.get("files").or(consumer.get("stream")).is_some() {
        if flow == "samples" {
            stages.push(json!({ "aggregate": { "size": chance.from(1, 200) } }));
        }
        if flow != "collated" {
            stages.push(tasked(chance, "collate", json!({})));
        }
    }
    Document(json!({
        "name": name, "seed": chance.below(100), "threads": chance.from(1, 2), "source": { kind: source },
        "stages": stages, "sink": { "queue": chance.from(1, 4) }, "consumer": consumer,
        "buffer_mib": chance.pick(&[4, 16, 64]),
        "max_failures": chance.pick(&[json!(null), json!({ "count": 20 }), json!({ "rate": 0.5 })])
    }))
}

/// Text of an invalid document.
pub(crate) fn broken(chance: &mut Chance, name: &str) -> String {
    let mut document = document(chance, name, false).0;
    let many = chance.from(1, 9_000) as usize;
    match chance.below(4) {
        0 => return "[".repeat(many),
        1 => document["stages"] = json!(vec![json!({ "sleep": { "mean_ms": -1 } }); many]),
        2 => document["source"] = json!({ "list": { "store": "../../etc", "x".repeat(many): 1 } }),
        _ => {
            let text = document.to_string();
            return text[..many % text.len()].to_owned();
        }
    }
    document.to_string()
}

/// Random params for the guest `misbehaving`.
pub(crate) fn misdeed(chance: &mut Chance) -> Value {
    let how = chance.pick(&HOWS.split_whitespace().collect::<Vec<_>>());
    // Most kinds get the suffix, without which the runs would end at their first sample.
    let is_seldom = !how.starts_with("init") && !how.starts_with("too") && !chance.once_in(4);
    json!({ "how": format!("{how}{}", if is_seldom { "-on-bad" } else { "" }) })
}

/// Creates a stage for items of the kind `flow`, and sets `flow` to the kind of the stage's output.
fn stage(chance: &mut Chance, flow: &mut &'static str) -> Value {
    let kinds: &[&'static str] = match *flow {
        "samples" => &[
            "sleep",
            "misbehaving",
            "misbehaving",
            "carrying",
            "remembering",
            "text-filter",
            "stateful",
            "aggregate",
        ],
        "batches" => &["sleep", "batch", "disaggregate", "collate"],
        _ => &["sleep"],
    };
    match chance.pick(kinds) {
        "aggregate" => {
            *flow = "batches";
            json!({ "aggregate": { "size": chance.pick(&[1, 3, 16, 100, 5_000]), "drop_last": chance.once_in(4) } })
        }
        "disaggregate" => {
            *flow = "samples";
            json!({ "disaggregate": {} })
        }
        "collate" => {
            *flow = "collated";
            tasked(chance, "collate", json!({}))
        }
        "sleep" => {
            let (shape, on) = (chance.pick(&["uniform", "exponential"]), chance.pick(&["async", "thread"]));
            let fail_rate = chance.pick(&[0.0, 0.0, 0.01, 0.5]);
            let sleep =
                json!({ "mean_ms": chance.from(0, 4), "shape": shape, "on": on, "fail_rate": fail_rate });
            tasked(chance, "sleep", sleep)
        }
        module => {
            let params = if module == "misbehaving" { misdeed(chance) } else { json!({}) };
            let (deadline_ms, memory_mib) = (chance.from(20, 200), chance.pick(&[16, 64]));
            let wasm = json!({ "module": module, "params": params, "deadline_ms": deadline_ms, "memory_mib": memory_mib });
            let mut stage = tasked(chance, "wasm", wasm);
            if module == "stateful" {
                stage["wasm"]["concurrency"] = json!(1);
            }
            stage
        }
    }
}

/// Creates a stage with concurrent tasks that may fail.
fn tasked(chance: &mut Chance, kind: &str, mut settings: Value) -> Value {
    settings["concurrency"] = json!(chance.from(1, 4));
    settings["queue"] = json!(chance.from(1, 4));
    settings["order"] = json!(chance.pick(&["completion", "input"]));
    settings["on_error"] = json!(chance.pick(&["skip", "skip", "dead_letter", "fail"]));
    json!({ kind: settings })
}
