//! Random pipelines whose limit is known by construction.

use penstock_types::run::RunSnapshot;
use penstock_types::verdict::VerdictKind;
use serde_json::{Value, json};

/// A random pipeline of sleeping stages.
#[derive(Clone, Debug)]
pub struct RandomPipeline {
    pub document: Value,
    /// Names of the stages, then of the consumer, each with the time in seconds that it needs per item of the consumer; the
    /// largest time is that of the limit.
    pub demands: Vec<(String, f64)>,
}

/// Random numbers that depend only on the seed: the high bits of Knuth's MMIX generator.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Creates the generator for a seed. Sequences of neighbouring seeds are unrelated.
    pub fn new(seed: u64) -> Self {
        let mut chance = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        (0..8).for_each(|_| _ = chance.below(2));
        chance
    }

    /// Returns a number below `most`.
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    /// Returns a number from `least` to `most`, both included.
    pub fn from(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Returns true once in `times`, on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns a random element.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }
}

impl RandomPipeline {
    /// Creates pipeline number `number`: 1 to 5 stages of 5 to 50 ms, constant, uniform or exponential, with a concurrency of 1
    /// to 6 and queues of 1 to 8, some with an aggregate in between; and a consumer of 5 to 50 ms.
    pub fn new(number: u64) -> Self {
        let mut chance = Chance::new(number);
        let count = chance.from(1, 5);
        let aggregate = (chance.below(3) == 0).then(|| (chance.from(1, count), chance.from(2, 4)));
        let mut stages = Vec::new();
        let mut demands = Vec::new();
        for stage in 1..=count {
            let (mean_ms, concurrency) = (chance.from(5, 50), chance.from(1, 6));
            let (shape, jitter) = match chance.below(3) {
                0 => ("uniform", 0.0),
                1 => ("uniform", 0.5),
                _ => ("exponential", 0.0),
            };
            let name = format!("s{stage}");
            let mut sleep = json!({
                "name": name, "mean_ms": mean_ms, "shape": shape, "concurrency": concurrency, "queue": chance.from(1, 8)
            });
            if jitter > 0.0 {
                sleep["jitter"] = json!(jitter);
            }
            stages.push(json!({ "sleep": sleep }));
            // Stages before the aggregate run once for each sample of a batch.
            let times = aggregate.filter(|(after, _)| stage <= *after).map_or(1, |(_, size)| size);
            demands.push((name, mean_ms as f64 / 1e3 * times as f64 / concurrency as f64));
            if let Some((_, size)) = aggregate.filter(|(after, _)| stage == *after) {
                stages.push(json!({ "aggregate": { "size": size, "queue": chance.from(1, 8) } }));
            }
        }
        let step_ms = chance.from(5, 50);
        demands.push(("consumer".to_owned(), step_ms as f64 / 1e3));
        let document = json!({
            "name": format!("random-{number}"), "seed": number, "threads": 1,
            "source": { "range": { "count": 1_000_000 } },
            "stages": stages,
            "sink": { "queue": chance.from(1, 8) },
            "consumer": { "simulate": { "step_ms": step_ms } }
        });
        Self { document, demands }
    }

    /// Creates mixed pipeline number `number`: like [`Self::new`], with two sources by random weights.
    pub fn mixed(number: u64) -> Self {
        let mut chance = Chance::new(number.wrapping_add(2_000));
        let mut mixed = Self::new(number.wrapping_add(100));
        let mut source = || json!({ "source": { "range": { "count": 1_000_000, "shuffle": true } }, "weight": chance.from(1, 9) });
        let sources = json!({ "a": source(), "b": source() });
        mixed.document["source"] =
            json!({ "mix": { "sources": sources, "pick": chance.pick(&["even", "random"]) } });
        mixed
    }

    /// Creates routed pipeline number `number`, and the records that it reads from the key `records.ndjson` of the store `here`: a route
    /// with 2 or 3 paths of up to 2 stages, in any order, between two stages; one of the paths takes all samples without a name of a path.
    pub fn routed(number: u64) -> (Self, String) {
        let mut chance = Chance::new(number.wrapping_add(1_000));
        let mut demands = Vec::new();
        let mut stage = |chance: &mut Chance, share: f64| {
            let (mean_ms, concurrency) = (chance.from(5, 40), chance.from(1, 4));
            let name = format!("s{}", demands.len() + 1);
            let shape = chance.pick(&["uniform", "exponential"]);
            demands.push((name.clone(), mean_ms as f64 / 1e3 * share / concurrency as f64));
            let queue = chance.from(2, 8);
            json!({ "sleep": { "name": name, "mean_ms": mean_ms, "shape": shape, "concurrency": concurrency, "queue": queue } })
        };
        let weights: Vec<u64> = (0..chance.from(2, 3)).map(|_| chance.from(1, 4)).collect();
        let all: u64 = weights.iter().sum();
        let before = stage(&mut chance, 1.0);
        let mut paths: Vec<Vec<Value>> = Vec::new();
        for weight in &weights {
            let share = *weight as f64 / all as f64;
            paths.push((0..chance.below(3)).map(|_| stage(&mut chance, share)).collect());
        }
        let after = stage(&mut chance, 1.0);
        let step_ms = chance.from(5, 30);
        demands.push(("consumer".to_owned(), step_ms as f64 / 1e3));
        let order = chance.pick(&["completion", "input"]);
        let others = paths.pop();
        let paths: serde_json::Map<String, Value> =
            paths.into_iter().enumerate().map(|(name, stages)| (name.to_string(), stages.into())).collect();
        let document = json!({
            "name": format!("routed-{number}"), "seed": number, "threads": 1,
            "source": { "records": { "store": "here", "key": "records.ndjson", "epochs": null } },
            "stages": [
                before,
                { "route": { "by": { "field": "kind" }, "paths": paths, "else": others, "order": order, "queue": chance.from(2, 8) } },
                after
            ],
            "consumer": { "simulate": { "step_ms": step_ms } }
        });
        let records: String = (0..5_000)
            .map(|key| {
                let mut place = chance.below(all);
                let kind = weights
                    .iter()
                    .position(|weight| place.checked_sub(*weight).map(|rest| place = rest).is_none());
                format!("{}\n", json!({ "key": key.to_string(), "kind": kind }))
            })
            .collect();
        (Self { document, demands }, records)
    }

    /// True if the verdict of a run names the limit; `None` if the second largest demand is closer than `margin`, so that chance
    /// decides.
    pub fn names_the_limit(&self, snapshot: &RunSnapshot, margin: f64) -> Option<bool> {
        let (limit, found) = self.limit();
        let verdict = snapshot.verdict.as_ref().expect("a run has a verdict");
        let named = match verdict.kind {
            VerdictKind::Consumer | VerdictKind::Variance => "consumer",
            _ => {
                verdict.stage.as_deref().and_then(|stage| stage.rsplit_once(':')).map_or("", |(_, name)| name)
            }
        };
        (found > margin).then_some(named == limit)
    }

    /// Name of the limiting stage, or `consumer`, and the excess of its demand over the second largest: 0.15 is 15 % more.
    pub fn limit(&self) -> (&str, f64) {
        let mut demands: Vec<&(String, f64)> = self.demands.iter().collect();
        demands.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let margin = demands.get(1).map_or(f64::INFINITY, |(_, next)| demands[0].1 / next - 1.0);
        (&demands[0].0, margin)
    }
}
