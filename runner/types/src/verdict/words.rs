//! Sentences and evidence of a verdict.

use super::judge::{Limit, Look};
use super::shape::{SAMPLES, StageTraits};
use super::slots::SlotUse;
use super::{Answer, VerdictKind};
use crate::amount::{count, duration, percent, plural, rate};

/// Minimum share of time in use at which a stage has no reserve.
const NO_RESERVE: f64 = 0.95;
/// Minimum share of a slot's time for a wait to be reported: a wait for a worker thread, or for earlier results where the order of the input is kept.
const REPORTED: f64 = 0.1;
/// Share of failed samples from which failures are reported.
const REPORTED_FAILURES: f64 = 0.01;

pub(super) fn sentence(look: &Look<'_>, kind: VerdictKind, limit: Option<Limit>) -> String {
    let wait = percent(look.consumer_wait().unwrap_or(0.0));
    let (name, rate) = (name(look, limit), through(look));
    let bottleneck = match look.shape.discards {
        true => "Data loading is all that is measured",
        false => "Data loading is the bottleneck",
    };
    let demand = demand(look);
    match kind {
        VerdictKind::Consumer => {
            let but = match look.failed_samples() {
                0 => String::new(),
                failed => format!(" {} failed.", plural(failed, "sample")),
            };
            format!(
                "The consumer is the limit, data loading is not: the consumer waits {wait} of the time.{but}"
            )
        }
        VerdictKind::Variance if look.shape.discards => format!(
            "{bottleneck}: {rate} are delivered, and no stage is in use for much of the time, because {name} delivers in bursts."
        ),
        VerdictKind::Variance if look.answer(kind) == Answer::Yes => format!(
            "{bottleneck}: the consumer waits {wait} of the time, because {name} delivers in bursts, although it has spare capacity."
        ),
        VerdictKind::Variance => format!(
            "The consumer is the limit most of the time, but waits {wait} of it, because {name} delivers in bursts, although it has spare capacity."
        ),
        VerdictKind::Threads => match look.shape.threads {
            1 => format!(
                "{bottleneck}: the only worker thread is always in use and lets {rate} through{demand}."
            ),
            threads => format!(
                "{bottleneck}: the {} worker threads are all in use and let {rate} through{demand}.",
                count(u64::from(threads))
            ),
        },
        VerdictKind::Permits => {
            format!(
                "{bottleneck}: the permits of {}, which {name} waits for, let {rate} through{demand}.",
                store(look, limit)
            )
        }
        VerdictKind::Failures => {
            let share = match limit {
                Some(Limit::Stage(stage)) => look.failed_share(stage),
                _ => 0.0,
            };
            let fail = format!("samples fail, {} of those that {name} gets", percent(share));
            let joint = if look.shape.discards { "and" } else { "because" };
            match look.rate().filter(|rate| *rate > 0.0) {
                Some(_) => format!("{bottleneck}, {joint} {fail}: {rate} are left{demand}."),
                None => format!("{bottleneck}, {joint} {fail}: no sample is left."),
            }
        }
        VerdictKind::Stage => format!("{bottleneck}: stage {name} lets {rate} through{demand}."),
        VerdictKind::Storage => {
            format!("{bottleneck}: storage, which {name} reads, lets {rate} through{demand}.")
        }
        VerdictKind::Source => format!("{bottleneck}: the source {name} gives {rate}{demand}."),
        VerdictKind::NothingWaits => {
            format!("Nothing is the limit: the consumer gets {rate} and waits {} for each item.", waits(look))
        }
        VerdictKind::TooLittle => {
            let sink = look.measured.queues.last();
            let (items, elapsed_s) = sink.map_or((0, 0.0), |sink| (sink.num_items, sink.elapsed_s));
            too_little(&look.shape.unit, items, elapsed_s, look.measured.is_over)
        }
    }
}

/// Evidence of the verdict: two to six lines.
pub(super) fn evidence(look: &Look<'_>, kind: VerdictKind, limit: Option<Limit>) -> Vec<String> {
    if look.rate().is_none() || matches!(kind, VerdictKind::TooLittle) {
        return failures(look).into_iter().collect();
    }
    let mut lines = vec![consumer(look)];
    if let Some((stage, slots)) = look.stage(limit) {
        lines.push(slots_in_words(stage, slots));
        lines.extend(sides(look, limit));
        lines.extend(held_up(stage, slots));
    }
    if limit == Some(Limit::Source) {
        lines.extend(sides(look, limit));
    }
    if kind == VerdictKind::Permits {
        lines.extend(permits(look, limit));
    }
    if kind == VerdictKind::Threads {
        lines.extend(look.threads.map(|threads| {
            format!(
                "The worker threads run ops for {} of their time: {:.1} of {}.",
                percent(threads.share()),
                threads.busy,
                threads.threads
            )
        }));
    }
    lines.extend(next(look, limit));
    lines.extend(failures(look));
    lines.extend(look.measured.machine.and_then(|machine| machine.disturbance(look.core_share()?)));
    lines
}

/// Throughput of the pipeline in words.
fn through(look: &Look<'_>) -> String {
    let items_per_s = look.rate().unwrap_or(0.0);
    let items = format!("{} {}/s", rate(items_per_s), look.shape.unit);
    match samples_per_batch(look) {
        Some(samples) => format!("{} {SAMPLES}/s ({items})", rate(items_per_s * samples)),
        None => items,
    }
}

/// The demand of the consumer in the unit that a sentence states first.
pub(super) fn demanded(look: &Look<'_>, items_per_s: f64) -> String {
    match samples_per_batch(look) {
        Some(samples) => format!("{} {SAMPLES}/s", rate(items_per_s * samples)),
        None => format!("{}/s", rate(items_per_s)),
    }
}

/// Mean number of samples in an item of the sink queue; `None` if the items are single samples.
fn samples_per_batch(look: &Look<'_>) -> Option<f64> {
    look.samples_per_item().filter(|_| look.shape.unit != SAMPLES)
}

/// Throughput that the consumer could take, and its waiting time.
fn demand(look: &Look<'_>) -> String {
    let wait = percent(look.consumer_wait().unwrap_or(0.0));
    match look.demand() {
        Some(demand) => format!(
            " of the {} that the consumer could take; the consumer waits {wait} of the time",
            demanded(look, demand)
        ),
        None if look.shape.discards => ", and the consumer takes them at once".to_owned(),
        None => format!("; the consumer waits {wait} of the time"),
    }
}

fn name(look: &Look<'_>, limit: Option<Limit>) -> String {
    match limit {
        Some(Limit::Stage(stage)) => format!("`{}`", look.shape.stages[stage].id),
        Some(Limit::Source) => format!("`{}`", look.shape.source.id),
        Some(Limit::Consumer) | None => "the consumer".to_owned(),
    }
}

/// Store that the stage reads from, in words.
fn store(look: &Look<'_>, limit: Option<Limit>) -> String {
    let name = look.stage(limit).and_then(|(stage, _)| stage.store.as_ref());
    name.map_or_else(|| "the store".to_owned(), |store| format!("store `{}`", store.name))
}

/// Compares the number of reads that the stage requests at a time with the number of permits of its store.
fn permits(look: &Look<'_>, limit: Option<Limit>) -> Option<String> {
    let (stage, _) = look.stage(limit)?;
    let reads = stage.store.as_ref()?.reads?;
    Some(format!(
        "The tasks of `{}` request up to {} permits at a time; {} has {} for all runs together.",
        stage.id,
        count(stage.reads_of(stage.concurrency)),
        store(look, limit),
        count(u64::from(reads)),
    ))
}

/// States how many items were delivered in a time that is too short for a verdict.
pub(super) fn too_little(unit: &str, delivered: u64, elapsed_s: f64, is_over: bool) -> String {
    match (delivered, is_over) {
        (0, true) => "Nothing was delivered.".to_owned(),
        (0, false) => "Not warmed up yet: nothing has been delivered.".to_owned(),
        (some, true) => format!("Too few {unit} were delivered for a verdict: {}.", count(some)),
        (some, false) => {
            format!(
                "Not warmed up yet: {unit} delivered so far: {}, in {}.",
                count(some),
                duration(elapsed_s)
            )
        }
    }
}

/// Mean time that the consumer waits for an item, in words.
fn waits(look: &Look<'_>) -> String {
    let wait = look.measured.queues.last().and_then(|sink| sink.ave_get_time_s);
    wait.map_or_else(|| "in vain".to_owned(), duration)
}

fn consumer(look: &Look<'_>) -> String {
    let Some(sink) = look.measured.queues.last() else { return String::new() };
    let ready = sink
        .readiness
        .map_or_else(String::new, |ready| format!(", the sink queue is ready {}", percent(ready)));
    let room = sink
        .ave_put_time_s
        .map_or_else(String::new, |room| format!(", the sink {} for room", duration(room)));
    format!("The consumer waits {} for an item{room}{ready}.", waits(look))
}

fn slots_in_words(stage: &StageTraits, slots: &SlotUse) -> String {
    let share = |slots_of: f64| percent(slots_of / slots.slots());
    let mut parts = vec![format!("busy {}", share(slots.busy))];
    let others = [
        ("waiting for a thread", slots.thread_wait),
        ("waiting for a permit", slots.permit_wait),
        ("waiting for earlier results", slots.order_wait),
        ("blocked", slots.blocked),
        ("idle", slots.idle),
    ];
    parts.extend(
        others.iter().filter(|(_, held)| *held > 0.0).map(|(what, held)| format!("{what} {}", share(*held))),
    );
    let slots =
        if slots.concurrency == 1 { "1 slot".to_owned() } else { format!("{} slots", slots.concurrency) };
    format!("`{}` with {slots}: {}.", stage.id, parts.join(", "))
}

/// Waiting times at the queue behind the stage, of its reader and of the stage itself, and the share of time without input.
fn sides(look: &Look<'_>, limit: Option<Limit>) -> Option<String> {
    let behind = match limit? {
        Limit::Source => 0,
        Limit::Stage(stage) => stage + 1,
        Limit::Consumer => return None,
    };
    let queues = &look.measured.queues;
    let starved = |queue: usize| queues.get(queue).and_then(|queue| queue.starved);
    let name = name(look, limit);
    let after = starved(behind).map(percent)?;
    let room = queues[behind].ave_put_time_s.map(|room| format!("{} for room", duration(room)));
    let input = behind.checked_sub(1).and_then(starved);
    let input = input.map(|share| format!("{} of the time for input", percent(share)));
    let own: Vec<String> = [room, input].into_iter().flatten().collect();
    let own =
        if own.is_empty() { String::new() } else { format!("; {name} itself waits {}", own.join(" and ")) };
    Some(format!("The stage or consumer after {name} waits {after} of the time{own}."))
}

/// Evidence of slots that wait without doing work.
fn held_up(stage: &StageTraits, slots: &SlotUse) -> Option<String> {
    let share = slots.own_order_wait(stage) / slots.slots();
    (share >= REPORTED).then(|| {
        format!("Results of `{}` wait {} of the time for slower tasks ahead of them, because the stage keeps the order of the input.", stage.id, percent(share))
    })
}

/// The stage that would be the next limit.
fn next(look: &Look<'_>, limit: Option<Limit>) -> Option<String> {
    let others = look.uses().filter(|(stage, _)| limit != Some(Limit::Stage(*stage)));
    let (stage, in_use) = others.reduce(|most, next| if next.1 > most.1 { next } else { most })?;
    let id = &look.shape.stages[stage].id;
    Some(match (limit, in_use >= NO_RESERVE) {
        (Some(Limit::Consumer), true) => {
            format!("`{id}` has no reserve: it is in use {} of its time.", percent(in_use))
        }
        (Some(Limit::Consumer), false) => {
            format!(
                "The stage with the least reserve is `{id}`: it is in use {} of its time.",
                percent(in_use)
            )
        }
        (_, true) => format!("`{id}` is equally slow: it is in use {} of its time.", percent(in_use)),
        (_, false) => {
            format!("The next limit would be `{id}`: it is in use {} of its time.", percent(in_use))
        }
    })
}

fn failures(look: &Look<'_>) -> Option<String> {
    let (Some(stage), _) = look.failing() else { return None };
    let share = look.failed_share(stage);
    let id = &look.shape.stages[stage].id;
    let group = look.measured.failures.iter().find(|group| group.stage == *id);
    let most = group.map_or_else(String::new, |group| {
        format!(", most often because: {}", crate::text::printable(&group.message, 200))
    });
    (share >= REPORTED_FAILURES)
        .then(|| format!("Of the samples that `{id}` gets, {} fail{most}.", percent(share)))
}
