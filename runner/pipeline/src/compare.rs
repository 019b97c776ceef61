//! Compares runs: the changes in their documents, the effect on the rate, and its cause.

use std::collections::BTreeMap;

use penstock_types::run::{LabelsRecord, RunSnapshot, StageRecord};
use penstock_types::verdict::VerdictKind;
use schemars::JsonSchema;
use serde::Serialize;

use crate::files::{DocumentChange, differences};
use crate::predict::Recording;

/// Relative difference of two rates up to which they count as equal: two runs of the same document may differ by this much.
const SAME: f64 = 0.02;
/// Relative change of a stage's times up to which it is not reported as a cause.
const SAME_TIME: f64 = 0.05;
/// Minimum change in the share of a stage's op time with a core that is reported as a cause.
const DISTURBED: f64 = 0.1;

/// Maximum number of classes that a comparison names.
const FIRST_CLASSES: usize = 5;

/// Comparison of two runs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Comparison {
    /// Result in one sentence.
    pub sentence: String,
    /// Differences between the documents of the two runs.
    pub changes: Vec<DocumentChange>,
    /// Items that the consumer took per second.
    pub rate: Delta,
    /// Mean time that the consumer waited for an item, in seconds.
    pub wait_s: Delta,
    /// Readiness of the queue before the consumer.
    pub readiness: Delta,
    /// Limit of each run according to its verdict: a stage's id, `consumer`, `threads` or `nothing`.
    #[schemars(with = "[String; 2]")]
    pub limits: [Limit; 2],
    /// Sources whose classes differ: the same label then means different things.
    pub classes: Vec<ClassesDelta>,
    /// Stages that both runs have.
    pub stages: Vec<StageDelta>,
}

/// Classes of one source that differ between two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ClassesDelta {
    /// Id of the source; in a mixture, its name.
    pub source: String,
    /// Number of classes in the first and the second run.
    pub class_count: [u64; 2],
    /// Classes that only the first run has, the first five.
    pub only_first: Vec<String>,
    /// Classes that only the second run has, the first five.
    pub only_second: Vec<String>,
    /// First class that has another number, with its number in the first and the second run.
    pub moved: Option<(String, [u64; 2])>,
}

/// One figure of both runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Delta {
    /// Value of the first run.
    pub from: Option<f64>,
    /// Value of the second run.
    pub to: Option<f64>,
}

/// One stage in both runs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StageDelta {
    /// Id of the stage in the second run.
    pub id: String,
    /// Concurrency of the stage in the first and the second run.
    pub concurrency: [u32; 2],
    /// Mean time of an op, in seconds.
    pub ave_time_s: Delta,
    /// 99th percentile of the times of ops, in seconds.
    pub p99_time_s: Delta,
    /// Share of the time of ops on worker threads in which they had a core, 0.0 to 1.0.
    pub core_share: Delta,
}

/// Comparison of runs of one pipeline on several ranks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RankComparison {
    /// Result in one sentence.
    pub sentence: String,
    /// Ranks in order of their rates, slowest first.
    pub ranks: Vec<RankRate>,
}

/// Rate and limit of one rank.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RankRate {
    /// Number of the rank, from 0.
    pub rank: u32,
    /// Items that the consumer of the rank took per second.
    pub rate: f64,
    /// Ratio of the rate to the median rate.
    pub to_median: f64,
    /// Limit of the rank according to its verdict: a stage's id, `consumer`, `threads` or `nothing`.
    #[schemars(with = "String")]
    pub limit: Limit,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Limit {
    Consumer,
    Threads,
    Nothing,
    /// The stage, or the source, with this id.
    #[serde(untagged)]
    #[strum(to_string = "{0}")]
    Stage(String),
}

pub fn compare(first: &Recording, second: &Recording) -> Comparison {
    let (one, other) = (&first.snapshot, &second.snapshot);
    let stages: Vec<StageDelta> = other
        .stages
        .iter()
        .filter_map(|stage| {
            let before =
                one.stages.iter().find(|before| before.name == stage.name && before.kind == stage.kind);
            Some(StageDelta::of(before?, stage))
        })
        .collect();
    let limits = [Limit::of(first), Limit::of(second)];
    let rate = Delta { from: rate(one), to: rate(other) };
    Comparison {
        sentence: sentence(&rate, &limits, &stages, [one.threads, other.threads]),
        changes: differences(&first.document, &second.document),
        rate,
        wait_s: of_sink(one, other, |sink| sink.ave_get_time_s),
        readiness: of_sink(one, other, |sink| sink.readiness),
        limits,
        classes: differing_classes(one, other),
        stages,
    }
}

fn differing_classes(one: &RunSnapshot, other: &RunSnapshot) -> Vec<ClassesDelta> {
    let differs = |source: &String| {
        let (first, second) = (one.labels.get(source)?, other.labels.get(source)?);
        let is_same = first.class_count == second.class_count && first.classes == second.classes;
        (!is_same).then(|| ClassesDelta::of(source, first, second))
    };
    one.labels.keys().filter_map(differs).collect()
}

impl ClassesDelta {
    fn of(source: &str, first: &LabelsRecord, second: &LabelsRecord) -> Self {
        let numbers = |record: &LabelsRecord| -> BTreeMap<String, u64> {
            record.classes.iter().cloned().zip(0..).collect()
        };
        let (one, other) = (numbers(first), numbers(second));
        let only = |of: &BTreeMap<String, u64>, not: &BTreeMap<String, u64>| {
            of.keys().filter(|name| !not.contains_key(*name)).take(FIRST_CLASSES).cloned().collect()
        };
        let moved = first.classes.iter().find_map(|name| {
            let numbers = [*one.get(name)?, *other.get(name)?];
            (numbers[0] != numbers[1]).then(|| (name.clone(), numbers))
        });
        Self {
            source: source.to_owned(),
            class_count: [first.class_count, second.class_count],
            only_first: only(&one, &other),
            only_second: only(&other, &one),
            moved,
        }
    }
}

/// Compares the ranks of one pipeline; `None` unless every run's document has a different rank.
pub fn compare_ranks(runs: &[Recording]) -> Option<RankComparison> {
    let mut ranks = Vec::with_capacity(runs.len());
    for run in runs {
        let rank = run.document.pointer("/source")?.as_object()?.values().next()?.pointer("/shard/rank")?;
        ranks.push((u32::try_from(rank.as_u64()?).ok()?, run));
    }
    ranks.sort_by_key(|(rank, _)| *rank);
    if ranks.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return None;
    }
    let median = middle(runs.iter().map(|run| rate(&run.snapshot).unwrap_or(0.0)))?;
    let mut found: Vec<RankRate> = ranks
        .iter()
        .map(|(rank, run)| {
            let own = rate(&run.snapshot).unwrap_or(0.0);
            let to_median = if median > 0.0 { own / median } else { 1.0 };
            RankRate { rank: *rank, rate: own, to_median, limit: Limit::of(run) }
        })
        .collect();
    found.sort_by(|one, other| one.rate.total_cmp(&other.rate));
    let sentence = straggler(&ranks, &found);
    Some(RankComparison { sentence, ranks: found })
}

/// Names the slowest rank, and the stage that is slower on it than on other ranks.
fn straggler(ranks: &[(u32, &Recording)], found: &[RankRate]) -> String {
    let slowest = &found[0];
    if slowest.to_median >= 1.0 - SAME {
        return format!("No rank is slower than the others by more than {:.0} %.", SAME * 100.0);
    }
    let of_rank = |rank: u32| ranks.iter().find(|(found, _)| *found == rank).map(|(_, run)| &run.snapshot);
    let own = of_rank(slowest.rank).map_or(&[][..], |run| &run.stages);
    let slower = own.iter().filter_map(|stage| {
        let times = ranks.iter().filter_map(|(_, run)| {
            let same = run.snapshot.stages.iter().find(|other| other.id == stage.id)?;
            same.task.ave_time_s
        });
        let median = middle(times)?;
        let own = stage.task.ave_time_s?;
        (own > median * (1.0 + SAME_TIME)).then_some((own / median, stage, own, median))
    });
    let worst = slower.max_by(|(one, ..), (other, ..)| one.total_cmp(other));
    let why = worst.map_or_else(
        || format!("; `{}` limits it", slowest.limit),
        |(_, stage, own, median)| {
            format!(": an op of `{}` takes {} there and {} elsewhere", stage.id, millis(own), millis(median))
        },
    );
    format!(
        "Rank {} is the straggler: {:.1} items/s, {:.0} % less than the median{why}.",
        slowest.rank,
        slowest.rate,
        (1.0 - slowest.to_median) * 100.0
    )
}

/// Median of the figures; the larger of the two middle ones if their number is even. `None` without figures.
fn middle(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

fn sentence(rate: &Delta, limits: &[Limit; 2], stages: &[StageDelta], threads: [u32; 2]) -> String {
    let (Some(from), Some(to)) = (rate.from, rate.to) else {
        return "One of the runs delivered no items, so the runs cannot be compared.".to_owned();
    };
    let change = to / from - 1.0;
    if change.abs() <= SAME {
        return format!(
            "No difference: {to:.1} items/s after {from:.1}/s; the limit is {}.",
            limits[1].in_words()
        );
    }
    let direction = if change > 0.0 { "faster" } else { "slower" };
    // A gain is explained by the former limit, a loss by the current one.
    let explains = if change > 0.0 { &limits[0] } else { &limits[1] };
    let mut why = Vec::new();
    if threads[0] != threads[1] && limits.contains(&Limit::Threads) {
        why.push(format!("there are {} worker threads instead of {}", threads[1], threads[0]));
    }
    let name = |id: &str| id.split_once(':').map_or(id.to_owned(), |(_, name)| name.to_owned());
    if let Limit::Stage(limit) = explains {
        let limit = stages.iter().find(|stage| name(&stage.id) == name(limit));
        why.extend(limit.into_iter().flat_map(StageDelta::why));
    }
    let why = if why.is_empty() { String::new() } else { format!(", because {}", why.join(" and ")) };
    let now = if limits[0] == limits[1] {
        format!("the limit is still {}", limits[1].in_words())
    } else {
        format!("the limit was {} and is now {}", limits[0].in_words(), limits[1].in_words())
    };
    format!("{:.0} % {direction}: {to:.1} items/s instead of {from:.1}{why}; {now}.", change.abs() * 100.0)
}

impl Limit {
    fn of(run: &Recording) -> Self {
        let Some(verdict) = &run.snapshot.verdict else { return Self::Nothing };
        // A consumer that discards items takes no time, so variance in the arrival of items is caused by the loader.
        let discards =
            run.document.pointer("/consumer").is_none_or(|consumer| consumer.get("discard").is_some());
        match (verdict.kind, &verdict.stage) {
            (VerdictKind::Variance, Some(stage)) if discards => Self::Stage(stage.clone()),
            (VerdictKind::Consumer | VerdictKind::Variance, _) => Self::Consumer,
            (VerdictKind::Threads, _) => Self::Threads,
            (_, Some(stage)) => Self::Stage(stage.clone()),
            (_, None) => Self::Nothing,
        }
    }

    fn in_words(&self) -> String {
        match self {
            Self::Consumer => "the consumer".to_owned(),
            Self::Threads => "the number of worker threads".to_owned(),
            Self::Nothing => "nothing measurable".to_owned(),
            Self::Stage(stage) => format!("stage `{stage}`"),
        }
    }
}

fn rate(run: &RunSnapshot) -> Option<f64> {
    run.queues.last()?.figures.qps.filter(|rate| *rate > 0.0)
}

fn of_sink(
    one: &RunSnapshot,
    other: &RunSnapshot,
    figure: fn(&penstock_types::stats::QueueFigures) -> Option<f64>,
) -> Delta {
    let of = |run: &RunSnapshot| run.queues.last().and_then(|sink| figure(&sink.figures));
    Delta { from: of(one), to: of(other) }
}

fn millis(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

impl StageDelta {
    fn of(one: &StageRecord, other: &StageRecord) -> Self {
        Self {
            id: other.id.clone(),
            concurrency: [one.concurrency, other.concurrency],
            ave_time_s: Delta { from: one.task.ave_time_s, to: other.task.ave_time_s },
            p99_time_s: Delta { from: one.task.p99_time_s, to: other.task.p99_time_s },
            core_share: Delta { from: one.task.core_share(), to: other.task.core_share() },
        }
    }

    /// Changes of the stage that affect the rate.
    fn why(&self) -> Vec<String> {
        let mut why = Vec::new();
        let [from, to] = self.concurrency;
        if from != to {
            let tasks = if to == 1 { "task" } else { "tasks" };
            why.push(format!("`{}` runs {to} {tasks} at a time instead of {from}", self.id));
        }
        if let (Some(from), Some(to)) = (self.ave_time_s.from, self.ave_time_s.to)
            && (to / from - 1.0).abs() > SAME_TIME
        {
            why.push(format!("an op of `{}` takes {} instead of {}", self.id, millis(to), millis(from)));
        }
        if let (Some(from), Some(to)) = (self.core_share.from, self.core_share.to)
            && (to - from).abs() > DISTURBED
        {
            why.push(format!(
                "ops of `{}` had a core for {:.0} % of their time instead of {:.0} %, which points to other load on the machine",
                self.id,
                to * 100.0,
                from * 100.0
            ));
        }
        why
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_are_missing_added_or_moved_are_named() {
        let record = |classes: &[&str]| LabelsRecord {
            classes: classes.iter().map(|name| (*name).to_owned()).collect(),
            class_count: classes.len() as u64,
            ..LabelsRecord::default()
        };
        let delta = ClassesDelta::of("0:src", &record(&["a", "b", "c"]), &record(&["a", "c", "d"]));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let expected = ClassesDelta {
            source: "0:src".to_owned(),
            class_count: [3, 3],
            only_first: names(&["b"]),
            only_second: names(&["d"]),
            moved: Some(("c".to_owned(), [2, 1])),
        };
        assert_eq!(delta, expected);
    }
}
