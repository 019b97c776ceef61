use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::VerdictKind;
use super::judge::{Limit, Look};
use super::shape::StageTraits;
use super::slots::SlotUse;
use super::words::demanded;
use crate::amount::duration;
use crate::fault::Pointer;
use crate::kinds::Work;
use crate::policy::{Capacity, Order};
use crate::spec::Reads;

/// Maximum factor by which one suggestion aims to raise the rate; beyond this factor, another part becomes the limit.
const MOST: f64 = 4.0;
/// Factor by which a queue grows if it could not hold a burst.
const DEEPER: usize = 4;

/// A suggestion to improve a pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Advice {
    /// Benefit of following the advice.
    pub goal: Goal,
    /// Action and expected effect, in words.
    pub text: String,
    /// Settings to apply together: `penstock run --set POINTER=VALUE`. Empty if no setting achieves the effect.
    pub set: Vec<Setting>,
}

/// Benefit of following advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// A higher rate of items.
    Rate,
    /// The same rate with fewer resources.
    Saving,
}

/// A new value in the pipeline document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Place of the setting as an RFC 6901 pointer, e.g. `/stages/3/wasm/concurrency`.
    pub pointer: Pointer,
    /// New value of the setting.
    pub value: Value,
}

/// The text, with each setting as a flag of the command, which takes text without quotes.
impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        self.set.iter().try_for_each(|Setting { pointer, value }| match value {
            Value::String(text) => write!(f, " --set {pointer}={text}"),
            value => write!(f, " --set {pointer}={value}"),
        })
    }
}

pub(super) fn advice(look: &Look<'_>, kind: VerdictKind, limit: Option<Limit>) -> Vec<Advice> {
    match kind {
        VerdictKind::Consumer => {
            let stop = match look.has_failures() {
                true => {
                    "Only a faster consumer would raise the rate. Fix the failed samples: the messages name them."
                }
                false => "Only a faster consumer would make the run faster: no change is needed.",
            };
            std::iter::once(rate(stop)).chain(savings(look)).collect()
        }
        VerdictKind::Variance => deeper(look, limit).into_iter().chain(savings(look)).collect(),
        VerdictKind::Stage | VerdictKind::Storage => {
            let stage = look.stage(limit).filter(|_| !look.shape.deterministic);
            let out_of_order = stage.and_then(|(stage, slots)| completion_order(stage, slots));
            out_of_order
                .into_iter()
                .chain(full(look).filter(|_| is_on_thread(look, limit)).or_else(|| wider(look, limit)))
                .chain(faster(look, kind, limit))
                .collect()
        }
        VerdictKind::Threads => threads(look, limit),
        VerdictKind::Permits => {
            let faster = faster(look, VerdictKind::Storage, limit);
            permits(look, limit).into_iter().chain(faster).collect()
        }
        VerdictKind::Source => vec![source(look)],
        VerdictKind::Failures => vec![rate(
            "Fix the failures: the messages name the samples, and `penstock replay` retries dead letters.",
        )],
        VerdictKind::NothingWaits | VerdictKind::TooLittle => Vec::new(),
    }
}

/// Advice for a higher rate without settings.
fn rate(text: impl Into<String>) -> Advice {
    Advice { goal: Goal::Rate, text: text.into(), set: Vec::new() }
}

fn setting(pointer: Pointer, value: impl Into<Value>) -> Setting {
    Setting { pointer, value: value.into() }
}

/// Factor between the rate that the consumer could take and the current rate.
fn wanted(look: &Look<'_>) -> f64 {
    let ratio = look.demand().zip(look.rate()).map(|(demand, rate)| demand / rate);
    ratio.filter(|ratio| ratio.is_finite()).map_or(MOST, |ratio| ratio.clamp(1.0, MOST))
}

/// The same, as far as the threads and cores have room for more work.
fn reachable(look: &Look<'_>) -> f64 {
    wanted(look).min(look.room())
}

/// Goal of a suggestion, as the end of its sentence: the rate that the consumer could take, or up to `more` times the current rate.
fn wanted_in_words(look: &Look<'_>, more: f64) -> String {
    match look.demand().filter(|_| more < MOST && more >= wanted(look)) {
        Some(demand) => format!("for the {} that the consumer could take", demanded(look, demand)),
        None if more.fract() < 0.05 => format!("to get up to {more:.0} times the rate"),
        None => format!("to get up to {more:.1} times the rate, for which threads and cores have room"),
    }
}

/// True if the limit is a stage whose tasks need worker threads.
fn is_on_thread(look: &Look<'_>, limit: Option<Limit>) -> bool {
    look.stage(limit).is_some_and(|(stage, _)| stage.work.is_on_thread())
}

/// States which resource leaves no room for more work.
fn full(look: &Look<'_>) -> Option<Advice> {
    look.full().map(rate)
}

/// Suggests more slots for the limit and for every stage that could not sustain the wanted rate, and the threads these slots need;
/// `None` if the limit cannot have more. Where threads or cores have no room for more work, stages on worker threads keep theirs.
fn wider(look: &Look<'_>, limit: Option<Limit>) -> Option<Advice> {
    let is_full = look.full().is_some();
    let more = if is_full && !is_on_thread(look, limit) { wanted(look) } else { reachable(look) };
    // Further tasks would only wait for permits.
    let may_grow = |(place, stage): &(usize, &StageTraits)| {
        let has_room = !is_full || !stage.work.is_on_thread();
        stage.may_grow && has_room && !look.waits_for_permits(*place)
    };
    let stages = look.shape.stages.iter().enumerate().filter(may_grow);
    let slots =
        stages.filter_map(|(place, stage)| Some((Limit::Stage(place), stage, look.slots[place].as_ref()?)));
    let mut words = Vec::new();
    let mut set = Vec::new();
    let mut reads = String::new();
    let (mut needs_threads, mut is_limit_raised) = (false, false);
    for (place, stage, slots) in slots {
        let is_limit = limit == Some(place);
        if !is_limit && slots.in_use(stage) * more <= 1.0 {
            continue;
        }
        let least = slots.least_for(stage, more).max(slots.concurrency + 1);
        // Tasks beyond the number of cores would only wait for a thread.
        let most =
            if stage.work == Work::Computing { look.shape.cores.unwrap_or(u32::MAX) } else { u32::MAX };
        let least = least.min(most.max(slots.concurrency));
        if least > slots.concurrency {
            words.push(format!("`{}` from {} to {least}", stage.id, slots.concurrency));
            set.push(setting(stage.place.key("concurrency"), least));
            needs_threads |= stage.work.is_on_thread();
            is_limit_raised |= is_limit;
            if let Some(more_reads) = more_reads(stage, stage.reads_of(least)) {
                reads.push_str(&format!(" and {more_reads}"));
            }
        }
    }
    if !is_limit_raised {
        return None;
    }
    let mut text = format!("Raise the concurrency of {}{reads}", words.join(", of "));
    if let Some(threads) = needs_threads.then(|| enough_threads(look, more)).flatten() {
        text.push_str(&format!(" and `threads` from {} to {threads}", look.shape.threads));
        set.push(setting(Pointer::ROOT.key("threads"), threads));
    }
    Some(Advice { set, ..rate(format!("{text}, {}.", wanted_in_words(look, more))) })
}

/// Suggests more permits of the store that a stage waits for. The number of permits is set in the configuration, not in the
/// document.
fn permits(look: &Look<'_>, limit: Option<Limit>) -> Option<Advice> {
    let (stage, _) = look.stage(limit)?;
    let store = stage.store.as_ref()?;
    let more = wanted(look);
    let raise = match store.reads {
        Some(reads) => more_reads(stage, (f64::from(reads) * more).ceil().max(f64::from(reads) + 1.0) as u64),
        None => Some(format!("`reads` of store `{}` in the configuration", store.name)),
    };
    let raise = raise.map(|reads| format!("Raise {reads}, or let fewer"));
    let raise = raise.unwrap_or_else(|| "Let fewer".to_owned());
    Some(rate(format!("{raise} runs read from the store at a time, {}.", wanted_in_words(look, more))))
}

/// Text of the setting that raises the permits of the stage's store to `wanted`; `None` if the store has that many already or
/// cannot have more.
fn more_reads(stage: &StageTraits, wanted: u64) -> Option<String> {
    let store = stage.store.as_ref()?;
    let reads = store.reads?;
    let wanted = wanted.min(u64::from(Reads::MOST));
    (wanted > u64::from(reads))
        .then(|| format!("`reads` of store `{}` in the configuration from {reads} to {wanted}", store.name))
}

/// Number of threads needed for `more` times the rate, if the run has fewer and the machine allows them.
fn enough_threads(look: &Look<'_>, more: f64) -> Option<u32> {
    let least = look.threads?.least_for(more);
    Some(least.min(look.most_threads())).filter(|threads| *threads > look.shape.threads)
}

fn threads(look: &Look<'_>, limit: Option<Limit>) -> Vec<Advice> {
    let more = reachable(look);
    // Threads beyond the number of slots of all stages would never run an op.
    let on_threads = look.shape.stages.iter().filter(|stage| stage.work.is_on_thread());
    let slots = on_threads.fold(0_u32, |sum, stage| sum.saturating_add(stage.concurrency));
    let full = full(look);
    let wanted = enough_threads(look, more).map(|threads| threads.min(slots)).filter(|_| full.is_none());
    let wider = wanted.filter(|threads| *threads > look.shape.threads).map(|threads| {
        let text = format!(
            "Raise `threads` from {} to {threads}, {}.",
            look.shape.threads,
            wanted_in_words(look, more)
        );
        Advice { set: vec![setting(Pointer::ROOT.key("threads"), threads)], ..rate(text) }
    });
    full.into_iter().chain(wider).chain(faster(look, VerdictKind::Stage, limit)).collect()
}

/// Suggests the order of completion where a slow task delays the results of later tasks.
fn completion_order(stage: &StageTraits, slots: &SlotUse) -> Option<Advice> {
    let waits = slots.own_order_wait(stage) / slots.slots();
    (stage.order == Order::Input && waits >= 0.1).then(|| {
        let text =
            format!("Let `{}` pass results on as they complete, if the order does not matter.", stage.id);
        Advice { set: vec![setting(stage.place.key("order"), json!(Order::Completion))], ..rate(text) }
    })
}

/// Suggests a faster op or storage.
fn faster(look: &Look<'_>, kind: VerdictKind, limit: Option<Limit>) -> Option<Advice> {
    let Some(Limit::Stage(place)) = limit else { return None };
    let stage = &look.shape.stages[place];
    let time = look.measured.stages[place].ave_time_s?;
    let more = wanted(look);
    let needed = look.stage(limit).map_or(more, |(stage, slots)| more * slots.in_use(stage)).max(1.01);
    let what = match kind {
        VerdictKind::Storage => "Read from faster storage, or less of it",
        _ => "Make the op faster",
    };
    Some(rate(format!(
        "{what}: a task of `{}` takes {} and would have to take {}, {}.",
        stage.id,
        duration(time),
        duration(time / needed),
        wanted_in_words(look, more)
    )))
}

fn source(look: &Look<'_>) -> Advice {
    let text = match &look.shape.source.store {
        Some(store) => format!(
            "List the samples faster: the source reads their keys from store `{store}`; with an index (`penstock index create`), it reads one object instead of a listing."
        ),
        None => "Produce samples faster: no setting of the document achieves this.".to_owned(),
    };
    rate(text)
}

/// Suggests deeper queues for bursts: the queue behind the stage that causes them, and the one in front of the consumer.
fn deeper(look: &Look<'_>, limit: Option<Limit>) -> Option<Advice> {
    let Some(Limit::Stage(stage)) = limit else { return None };
    let stage = &look.shape.stages[stage];
    let deep = |items: usize| items.saturating_mul(DEEPER).min(Capacity::MOST as usize);
    let (own, sink) = (deep(stage.queue), deep(look.shape.sink_queue));
    let text = format!(
        "Enlarge two queues to absorb bursts: the one behind `{}` from {} to {own} items, the sink's from {} to {sink}.",
        stage.id, stage.queue, look.shape.sink_queue
    );
    let set =
        vec![setting(stage.place.key("queue"), own), setting(Pointer::ROOT.key("sink").key("queue"), sink)];
    Some(Advice { set, ..rate(text) })
}

/// Suggests removing slots and threads that the rate does not need.
fn savings(look: &Look<'_>) -> impl Iterator<Item = Advice> {
    let of_slots =
        look.slots.iter().flatten().filter(|slots| slots.least < slots.concurrency).filter_map(|slots| {
            let text = format!(
                "`{}` works in {:.1} of its {} slots: {} would be enough.",
                slots.stage, slots.busy, slots.concurrency, slots.least
            );
            Some(Advice { goal: Goal::Saving, text, set: vec![setting(slots.pointer.clone()?, slots.least)] })
        });
    let of_threads = look.threads.filter(|threads| threads.least < threads.threads).map(|threads| Advice {
        goal: Goal::Saving,
        text: format!(
            "Ops run on {:.1} of the {} worker threads: {} would be enough.",
            threads.busy, threads.threads, threads.least
        ),
        set: vec![setting(Pointer::ROOT.key("threads"), threads.least)],
    });
    of_slots.chain(of_threads)
}
