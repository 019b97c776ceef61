use std::collections::BTreeMap;

use penstock_pipeline::predict::Recording;
use penstock_tests::Chance;
use penstock_types::ledger::{RunBook, StageBook};
use penstock_types::plan::{Fields, Known, ModuleFacts, Plan};
use penstock_types::run::StageRecord;
use penstock_types::series::TaskTimes;
use penstock_types::spec::read_value;
use penstock_types::stats::{Histogram, TaskFigures};
use serde_json::{Value, json};

/// A random pipeline of stages that read, wait, sleep and compute, with the times of their tasks.
pub(super) struct Pipeline {
    pub(super) document: Value,
    pub(super) cores: f64,
    epochs: u64,
    /// Time of the source for a sample, in seconds.
    source_s: f64,
    /// Times of the tasks of each stage.
    times: Vec<Histogram>,
}

impl Pipeline {
    pub(super) fn new(number: u64) -> Self {
        let mut chance = Chance::new(number.wrapping_add(5_000));
        let reads = chance.once_in(2);
        let mut stages = Vec::new();
        if reads {
            let first = stage(&mut chance, "fetch");
            match chance.once_in(4) {
                true => stages.extend([aggregate(&mut chance), first, json!({ "disaggregate": {} })]),
                false => stages.push(first),
            }
        }
        for _ in 0..chance.below(3) {
            let kind = chance.pick(&["sleep", "wasm", "wasm"]);
            stages.push(stage(&mut chance, kind));
        }
        if chance.once_in(2) {
            stages.push(aggregate(&mut chance));
            for kind in ["collate", "transfer", "sleep"] {
                if kind == "collate" || chance.once_in(2) {
                    stages.push(stage(&mut chance, kind));
                }
            }
        }
        if stages.is_empty() {
            stages.push(stage(&mut chance, "sleep"));
        }
        let times = stages.iter().map(|_| times(&mut chance)).collect();
        let consumer = match chance.once_in(4) {
            true => json!({ "discard": {} }),
            false => json!({ "simulate": { "step_ms": chance.from(1, 60) } }),
        };
        let source = match reads {
            true => json!({ "list": { "store": "s" } }),
            false => json!({ "range": { "count": 1 } }),
        };
        let document = json!({
            "seed": number, "threads": chance.from(1, 6), "source": source, "stages": stages,
            "sink": { "queue": chance.from(1, 8) }, "consumer": consumer
        });
        let epochs = chance.pick(&[1, 1, 1, 4]);
        let cores = chance.from(1, 8) as f64;
        let source_s = if chance.once_in(3) { chance.from(1, 20) as f64 / 1e3 } else { 0.0 };
        Self { document, cores, epochs, source_s, times }
    }

    /// Plan of a document of this pipeline with `samples` samples.
    pub(super) fn plan(&self, document: &Value, samples: u64) -> Plan {
        let mut document = document.clone();
        for (kind, count) in [("list", "limit"), ("range", "count")] {
            if let Some(source) = document["source"].get_mut(kind) {
                source[count] = (samples / self.epochs).into();
                source["epochs"] = self.epochs.into();
            }
        }
        let manifest = json!({ "name": "m", "version": "1.0.0" });
        let module = ModuleFacts {
            name: "m".to_owned(),
            digest: format!("sha256:{}", "0".repeat(64)),
            manifest: serde_json::from_value(manifest).unwrap(),
        };
        let modules = BTreeMap::from([("m".to_owned(), module)]);
        let known = Known { modules: &modules, names: &[], fields: Some(Fields::UNKNOWN), stores: None };
        Plan::check(&read_value(document).unwrap(), known).unwrap()
    }

    /// A run of this plan with the times of the stages.
    pub(super) fn recording(&self, plan: &Plan) -> Recording {
        let book = |id: &str, samples: u64| StageBook {
            id: id.to_owned(),
            taken: samples,
            out: samples,
            ..StageBook::default()
        };
        let (mut stages, mut books, mut times) = (Vec::new(), vec![book("0:src", 1)], BTreeMap::new());
        for (place, (stage, recorded)) in plan.stages.iter().zip(&self.times).enumerate() {
            let id = stage.id.to_string();
            books.push(book(&id, plan.flow_into(place).samples));
            times.insert(id.clone(), TaskTimes::from(recorded));
            // The only op had a core all the time.
            let mean_s = mean_s(recorded);
            let task = TaskFigures {
                num_tasks: 1,
                ave_time_s: Some(mean_s),
                busy_s: mean_s,
                cpu_s: Some(mean_s),
                ..TaskFigures::default()
            };
            let (name, kind, label) = (stage.id.name().to_owned(), stage.kind.name(), id.clone());
            stages.push(StageRecord { id, name, kind, label, concurrency: 1, task });
        }
        let snapshot = json!({
            "id": "recorded", "name": "recorded", "state": "completed", "started_at": "", "elapsed_s": 1.0, "threads": 1,
            "modules": {}, "counters": {}, "stages": stages, "failures": [], "failures_not_listed": 0,
            "queues": [{ "id": "0:src_queue", "label": "", "capacity": 1, "num_items": 1, "elapsed_s": self.source_s }],
            "ledger": { "stages": books, "queues": [], "total": RunBook::default(), "balanced": true }
        });
        Recording::new(serde_json::from_value(snapshot).unwrap(), self.document.clone(), &times)
    }
}

fn stage(chance: &mut Chance, kind: &str) -> Value {
    let mut settings = json!({ "concurrency": chance.from(1, 6), "queue": chance.from(1, 8) });
    if chance.once_in(3) {
        settings["order"] = "input".into();
    }
    match kind {
        "wasm" => settings["module"] = "m".into(),
        "sleep" => {
            settings["mean_ms"] = chance.from(1, 60).into();
            settings["shape"] = chance.pick(&["uniform", "exponential"]).into();
            settings["on"] = chance.pick(&["async", "thread"]).into();
            if chance.once_in(6) {
                settings["fail_rate"] = chance.pick(&[0.02, 0.2, 0.6]).into();
            }
        }
        _ => {}
    }
    json!({ kind: settings })
}

fn aggregate(chance: &mut Chance) -> Value {
    json!({ "aggregate": { "size": chance.from(2, 6), "queue": chance.from(1, 8) } })
}

/// Times of a mean of 1 to 60 ms: constant, or exponential.
fn times(chance: &mut Chance) -> Histogram {
    let (mean, is_random) = (chance.from(1, 60) * 1_000_000, chance.once_in(2));
    let mut times = Histogram::default();
    for place in 0..100_u32 {
        let factor = if is_random { -(1.0 - (f64::from(place) + 0.5) / 100.0).ln() } else { 1.0 };
        times.record((mean as f64 * factor) as u64);
    }
    times
}

fn mean_s(times: &Histogram) -> f64 {
    let all = times.buckets().map(|(bucket, count)| {
        let (from, to) = Histogram::bounds(bucket);
        f64::midpoint(from as f64, to as f64) * count as f64
    });
    all.sum::<f64>() / times.count() as f64 / 1e9
}
