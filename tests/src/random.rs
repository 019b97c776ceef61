//! Pipelines made up by chance, whose limit is known because it was built in.

use penstock_types::run::RunSnapshot;
use penstock_types::verdict::VerdictKind;
use serde_json::{Value, json};

/// A pipeline of sleeping stages.
#[derive(Clone, Debug)]
pub struct RandomPipeline {
    /// The document.
    pub document: Value,
    /// Seconds of each stage, and last of the consumer, for an item of the consumer; the largest limits.
    pub demands: Vec<(String, f64)>,
}

/// Numbers that are the same for the same seed: Knuth's MMIX generator, of which the high bits are good.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The numbers of a seed. Those of neighbouring seeds have nothing in common.
    pub fn new(seed: u64) -> Self {
        let mut chance = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        (0..8).for_each(|_| _ = chance.below(2));
        chance
    }

    /// A number below `most`.
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    /// A number from `least` to `most`, both included.
    pub fn from(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of them.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }
}

impl RandomPipeline {
    /// The `number`-th of them: 1 to 5 stages of 5 to 50 ms, constant, uniform or exponential, with a concurrency of 1 to 6 and
    /// queues of 1 to 8, some with an aggregate in between; and a consumer of 5 to 50 ms.
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
            // Before the aggregate as often as a batch has samples.
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

    /// Whether a run of it was told what limits it; `None` where the next one is nearer than `margin`, and chance decides.
    pub fn is_told_right(&self, snapshot: &RunSnapshot, margin: f64) -> Option<bool> {
        let (limit, found) = self.limit();
        let verdict = snapshot.verdict.as_ref().expect("a run has a verdict");
        let named = match verdict.kind {
            VerdictKind::Consumer | VerdictKind::Variance => "consumer",
            _ => {
                verdict.stage.as_deref().and_then(|stage| stage.split_once(':')).map_or("", |(_, name)| name)
            }
        };
        (found > margin).then_some(named == limit)
    }

    /// What limits it, a stage's name or `consumer`, and by how much more than the next one: 0.15 is 15 %.
    pub fn limit(&self) -> (&str, f64) {
        let mut demands: Vec<&(String, f64)> = self.demands.iter().collect();
        demands.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let margin = demands.get(1).map_or(f64::INFINITY, |(_, next)| demands[0].1 / next - 1.0);
        (&demands[0].0, margin)
    }
}
