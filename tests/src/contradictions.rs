//! Rules that a verdict follows by the definitions of starved, ready and in use, checked against the figures it was made of.

use penstock_types::policy::StageKindName;
use penstock_types::run::{QueueRecord, StageRecord};
use penstock_types::verdict::{Advice, Answer, Goal, Verdict, VerdictKind};

/// Share of time from which a wait matters.
const WAITS: f64 = 0.05;
/// Difference by which another stage is clearly busier.
const BUSIER: f64 = 0.1;

/// Figures that a verdict was made of.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    pub stages: &'a [StageRecord],
    pub queues: &'a [QueueRecord],
    /// Cores that ops of the run may use; `None` if they are not known.
    pub cores: Option<f64>,
    /// Share of the measured time that the verdict excludes, such as the warm-up, 0.0 to 1.0.
    pub apart: f64,
}

/// Contradictions found so far.
#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn unless(&mut self, holds: bool, message: impl FnOnce() -> String) {
        if !holds {
            self.0.push(message());
        }
    }
}

impl Figures<'_> {
    /// Statements of a verdict that these figures contradict.
    pub fn contradictions(&self, verdict: &Verdict) -> Vec<String> {
        let mut found = Found::default();
        if self.queues.len() == self.stages.len() + 2 {
            self.numbers(verdict, &mut found);
            self.limit(verdict, &mut found);
            self.evidence(verdict, &mut found);
            self.advice(verdict, &mut found);
        }
        found.0
    }

    /// Members of the verdict that repeat figures.
    fn numbers(&self, verdict: &Verdict, found: &mut Found) {
        let sink = &self.sink().figures;
        let near = |told: Option<f64>, measured: Option<f64>| match (told, measured) {
            (Some(told), Some(measured)) => self.is_near(told, measured),
            (told, measured) => told == measured || self.apart > 0.0,
        };
        found.unless(near(verdict.consumer_wait, sink.starved), || {
            format!("the consumer waits {:?}, not {:?}", sink.starved, verdict.consumer_wait)
        });
        found.unless(self.apart > 0.0 || near(verdict.rate, sink.qps), || {
            format!("the rate is {:?}, not {:?}", sink.qps, verdict.rate)
        });
        for slots in &verdict.slots {
            let Some(stage) = self.stages.iter().find(|stage| stage.id == slots.stage) else {
                found.0.push(format!("there is no stage `{}`", slots.stage));
                continue;
            };
            let (all, told) = (f64::from(slots.concurrency), self.shares(stage));
            let parts = [
                slots.busy,
                slots.thread_wait,
                slots.permit_wait,
                slots.order_wait,
                slots.blocked,
                slots.idle,
            ];
            let sum: f64 = parts.iter().sum();
            found.unless((sum - all).abs() < 1e-6 * all, || format!("slots do not add up: {slots:?}"));
            let agree = parts.iter().zip(told).all(|(part, told)| self.is_near(part / all, told));
            found.unless(agree, || format!("{slots:?} are not {told:?}"));
            found.unless(f64::from(slots.least) >= slots.busy.floor(), || {
                format!("too few are enough: {slots:?}")
            });
        }
        if let (Some(threads), true) = (verdict.threads, self.apart == 0.0) {
            let busy = self.threads_busy();
            found
                .unless(self.is_near(threads.busy, busy), || format!("{busy} threads are busy: {threads:?}"));
        }
    }

    /// The kind of the limit and the stage that is named.
    fn limit(&self, verdict: &Verdict, found: &mut Found) {
        let wait = verdict.consumer_wait.unwrap_or(0.0);
        let kind = verdict.kind;
        if kind == VerdictKind::TooLittle {
            return;
        }
        let works = verdict.demand.is_some();
        found.unless(kind != VerdictKind::Consumer || wait < WAITS, || {
            format!("the consumer waits {wait} and is named")
        });
        let is_none_named = matches!(kind, VerdictKind::Consumer | VerdictKind::NothingWaits);
        found.unless(is_none_named || wait >= WAITS, || format!("the consumer waits only {wait}"));
        let answer = match kind {
            VerdictKind::Consumer => Answer::No,
            VerdictKind::NothingWaits => Answer::NothingWaits,
            VerdictKind::Variance if works && wait < 0.5 => Answer::No,
            _ => Answer::Yes,
        };
        found.unless(verdict.answer == answer, || format!("{:?} for {kind:?}", verdict.answer));
        if kind == VerdictKind::NothingWaits {
            let wait_s = self.sink().figures.ave_get_time_s.unwrap_or(f64::INFINITY);
            found.unless(wait_s < 0.001 * (1.0 + 4.0 * self.apart), || {
                format!("the consumer waits {wait_s} s for each item")
            });
        }
        if self.stages.iter().any(|stage| stage.kind == StageKindName::Path) {
            // The paths of a route share its input, so that the queues do not follow each other.
            return;
        }
        let Some(name) = verdict.stage.as_deref() else { return };
        if name == "0:src" {
            let first = &self.queues[0].figures;
            let blocked = first.ave_put_time_s.unwrap_or(0.0) * first.num_items as f64
                / first.elapsed_s.max(f64::MIN_POSITIVE);
            found.unless(self.starved_behind(0) >= WAITS - self.apart, || {
                "nothing waits for the source".to_owned()
            });
            found.unless(kind == VerdictKind::Variance || blocked < 0.5 + self.apart, || {
                format!("the source waits {blocked} of the time for room")
            });
            return;
        }
        let Some(stage) = self.stages.iter().position(|stage| stage.id == name) else {
            found.0.push(format!("there is no stage `{name}`"));
            return;
        };
        let [busy, thread_wait, permit_wait, _, blocked, idle] = self.shares(&self.stages[stage]);
        found.unless(self.works(stage), || format!("`{name}` only moves samples"));
        if kind == VerdictKind::Failures {
            let failed = self.stages[stage].task.failed_samples;
            found.unless(failed > 0, || format!("no sample fails in `{name}`"));
            return;
        }
        let after = self.starved_behind(stage + 1);
        found
            .unless(after >= WAITS - self.apart, || format!("the reader behind `{name}` waits only {after}"));
        let (held, in_use) = (busy + thread_wait + permit_wait, 1.0 - idle - blocked);
        let busier =
            (0..self.stages.len()).filter(|other| *other != stage && self.works(*other)).find(|other| {
                let starves_more = self.starved_behind(other + 1) + self.apart >= after;
                starves_more && self.busy(*other) > in_use + BUSIER + self.apart
            });
        found.unless(busier.is_none(), || {
            format!("`{name}` is in use {in_use}, less than one whose reader waits longer: {busier:?}")
        });
        if kind == VerdictKind::Variance {
            let full = self.behind(stage + 1).map(|queue| self.full(queue)).fold(0.0, f64::max);
            found.unless(full >= 0.01 - self.apart, || format!("`{name}` waits only {full} for room"));
            found.unless(held < 0.95 + self.apart, || format!("`{name}` has no spare capacity: {held}"));
            let busiest = (0..self.stages.len())
                .filter(|stage| self.works(*stage) && self.starved_behind(stage + 1) >= WAITS)
                .map(|stage| self.busy(stage))
                .fold(0.0, f64::max);
            found.unless(!works || busiest <= 1.0 - wait + BUSIER + self.apart, || {
                format!("a stage is busier than the consumer: {busiest} against {}", 1.0 - wait)
            });
            return;
        }
        found.unless(blocked < 0.5 + self.apart, || format!("`{name}` waits {blocked} of the time for room"));
        found.unless(in_use >= 0.5 - self.apart, || format!("`{name}` is idle {idle} and blocked {blocked}"));
        match kind {
            VerdictKind::Threads => {
                let threads =
                    verdict.threads.map_or(1.0, |threads| threads.busy / f64::from(threads.threads));
                found.unless(thread_wait > 0.0 && threads >= 0.8, || {
                    format!("tasks wait {thread_wait} for threads in use {threads}")
                });
            }
            VerdictKind::Permits => {
                let asks = verdict.evidence.iter().any(|line| line.contains("permits at a time"));
                found.unless(permit_wait > 0.0 || asks, || "no task waits for a permit".to_owned());
            }
            VerdictKind::Storage => {
                found.unless(self.stages[stage].kind == StageKindName::Fetch, || {
                    format!("`{name}` reads from no store")
                });
                found.unless(permit_wait <= busy + self.apart, || {
                    format!("permits are the limit: {permit_wait}")
                });
            }
            _ => found.unless(self.stages[stage].kind != StageKindName::Fetch, || {
                format!("`{name}` reads from a store")
            }),
        }
    }

    /// Numbers in the sentence and in the lines of evidence.
    fn evidence(&self, verdict: &Verdict, found: &mut Found) {
        if self.apart > 0.0 {
            return;
        }
        let sink = &self.sink().figures;
        let mut told = |line: &str, label: &str, unit: &str, measured: Option<f64>| {
            let Some(number) = after(line, label, unit) else { return };
            // Shares have one decimal place in percent, durations at least two digits or two places of a millisecond.
            let step = |measured: f64| if unit == "%" { 0.0006 } else { f64::max(measured * 0.06, 6e-6) };
            let is_right = measured.is_some_and(|measured| (number - measured).abs() <= step(measured));
            found.unless(is_right, || format!("{label}: {number}, not {measured:?}, in: {line}"));
        };
        told(&verdict.sentence, "the consumer waits", "%", sink.starved);
        for line in &verdict.evidence {
            let names = line.split('`').skip(1).step_by(2);
            let stage = names.last().and_then(|name| self.stages.iter().position(|stage| stage.id == name));
            if line.starts_with("The consumer waits") {
                told(line, "consumer waits", "s", sink.ave_get_time_s);
                told(line, "the sink", "s", sink.ave_put_time_s);
                told(line, "sink queue is ready", "%", sink.readiness);
            } else if line.starts_with("The stage or consumer after `0:src`") {
                told(line, "` waits", "%", self.queues[0].figures.starved);
            } else if let Some(stage) = stage {
                let [busy, thread_wait, permit_wait, order_wait, blocked, idle] =
                    self.shares(&self.stages[stage]);
                if line.starts_with('`') && line.contains("slot") {
                    told(line, ": busy", "%", Some(busy));
                    told(line, "for a thread", "%", Some(thread_wait));
                    told(line, "for a permit", "%", Some(permit_wait));
                    told(line, "earlier results", "%", Some(order_wait));
                    told(line, "blocked", "%", Some(blocked));
                    told(line, "idle", "%", Some(idle));
                } else if line.starts_with("The stage or consumer after") {
                    let [input, output] = [stage, stage + 1].map(|queue| &self.queues[queue].figures);
                    told(line, "` waits", "%", output.starved);
                    told(line, "itself waits", "s", output.ave_put_time_s);
                    told(line, "for room and", "%", input.starved);
                }
            }
        }
    }

    /// Advice that leaves the limit as it is, or for which there is no room.
    fn advice(&self, verdict: &Verdict, found: &mut Found) {
        let is_limit = |stage: &str| verdict.stage.as_deref() == Some(stage);
        for advice in &verdict.advice {
            let threads = setting(advice, "/threads");
            for slots in &verdict.slots {
                let Some(stage) = self.stages.iter().position(|stage| stage.id == slots.stage) else {
                    continue;
                };
                let Some(wanted) =
                    slots.pointer.as_ref().and_then(|pointer| setting(advice, pointer.as_str()))
                else {
                    continue;
                };
                let (name, now) = (&slots.stage, f64::from(slots.concurrency));
                if advice.goal == Goal::Saving {
                    found.unless(wanted < now && wanted >= slots.busy, || {
                        format!("{} of {now} slots are used: {advice:?}", slots.busy)
                    });
                    continue;
                }
                found.unless(wanted > now, || format!("`{name}` has {now} slots: {advice:?}"));
                let idle = (slots.idle + slots.blocked) / now;
                found.unless(idle <= 0.75 || is_limit(name), || {
                    format!("slots of `{name}` are free for {idle}: {advice:?}")
                });
                found.unless(slots.permit_wait < slots.busy.max(WAITS), || {
                    format!("`{name}` waits for permits: {advice:?}")
                });
                let on_threads = self.stages[stage].task.cpu_s.is_some();
                if let (true, Some(use_of), None) = (on_threads, verdict.threads, threads) {
                    let free = f64::from(use_of.threads) - use_of.busy;
                    found.unless(free >= 0.04 * f64::from(use_of.threads) - self.apart, || {
                        format!("no thread is free for `{name}`: {advice:?}")
                    });
                }
                if let (true, Some(cores)) = (computes(&self.stages[stage]), self.cores) {
                    let used = self.cores_used();
                    found.unless(used < 0.96 * cores + self.apart, || {
                        format!("{used} of {cores} cores are used: {advice:?}")
                    });
                }
            }
            if let (Some(wanted), Some(use_of)) = (threads, verdict.threads) {
                let is_right = match advice.goal {
                    Goal::Rate => wanted > f64::from(use_of.threads),
                    Goal::Saving => wanted < f64::from(use_of.threads) && wanted >= use_of.busy,
                };
                found.unless(is_right, || format!("{advice:?} for {use_of:?}"));
            }
            let unneeded = matches!(
                verdict.kind,
                VerdictKind::Consumer | VerdictKind::NothingWaits | VerdictKind::TooLittle
            );
            found.unless(!unneeded || advice.goal == Goal::Saving || advice.set.is_empty(), || {
                format!("no setting is needed: {advice:?}")
            });
        }
        let first = verdict.advice.iter().find(|advice| advice.goal == Goal::Rate && !advice.set.is_empty());
        if let (Some(first), VerdictKind::Stage | VerdictKind::Storage) = (first, verdict.kind) {
            let place = verdict
                .slots
                .iter()
                .find(|slots| is_limit(&slots.stage))
                .and_then(|slots| slots.pointer.as_ref());
            let of_limit = |pointer: &str| {
                place.is_none_or(|place| pointer.starts_with(place.as_str().trim_end_matches("concurrency")))
            };
            let touches = first.set.iter().any(|set| of_limit(set.pointer.as_str()));
            found.unless(touches, || format!("the limit is `{:?}`: {first:?}", verdict.stage));
        }
    }

    fn is_near(&self, one: f64, other: f64) -> bool {
        (one - other).abs() <= 1e-6 * one.abs().max(1.0) + self.apart
    }

    fn sink(&self) -> &QueueRecord {
        self.queues.last().expect("a pipeline has a queue behind its sink")
    }

    /// Share of the whole interval in which the reader of a queue waited for an item.
    fn starved(&self, queue: usize) -> f64 {
        let (figures, whole) = (&self.queues[queue].figures, self.sink().figures.elapsed_s);
        figures.starved.unwrap_or(0.0) * figures.elapsed_s / whole.max(f64::MIN_POSITIVE)
    }

    /// A queue, and those behind it that get its items only moved.
    fn behind(&self, queue: usize) -> impl Iterator<Item = usize> {
        // The node with number i is stage i - 1; the sink only moves items.
        let moves = |node: &usize| *node > self.stages.len() || !self.works(node - 1);
        std::iter::once(queue).chain((queue + 1..self.queues.len()).take_while(moves))
    }

    /// Largest share of the whole interval in which the reader of one of these queues waited.
    fn starved_behind(&self, queue: usize) -> f64 {
        self.behind(queue).map(|queue| self.starved(queue)).fold(0.0, f64::max)
    }

    /// Mean number of puts that waited for room in a queue.
    fn full(&self, queue: usize) -> f64 {
        let (figures, whole) = (&self.queues[queue].figures, self.sink().figures.elapsed_s);
        figures.ave_put_time_s.unwrap_or(0.0) * figures.num_items as f64 / whole.max(f64::MIN_POSITIVE)
    }

    /// Shares of a stage's slots: busy, waiting for a thread, for a permit, for earlier results, blocked, idle.
    fn shares(&self, stage: &StageRecord) -> [f64; 6] {
        let task = &stage.task;
        let times = [
            task.busy_s,
            task.thread_wait_s,
            task.permit_wait_s,
            task.order_wait_s,
            task.blocked_s,
            task.idle_s,
        ];
        times.map(|time| time / (task.elapsed_s * f64::from(stage.concurrency)).max(f64::MIN_POSITIVE))
    }

    /// Share of the whole interval in which ops ran in the slots of a stage.
    fn busy(&self, stage: usize) -> f64 {
        let stage = &self.stages[stage];
        stage.task.busy_s
            / f64::from(stage.concurrency)
            / self.sink().figures.elapsed_s.max(f64::MIN_POSITIVE)
    }

    fn works(&self, stage: usize) -> bool {
        use StageKindName::{Aggregate, Disaggregate, Path, Route};
        !matches!(self.stages[stage].kind, Aggregate | Disaggregate | Path | Route)
    }

    fn threads_busy(&self) -> f64 {
        let tasks = self
            .stages
            .iter()
            .map(|stage| &stage.task)
            .filter(|task| task.cpu_s.is_some() && task.elapsed_s > 0.0);
        tasks.map(|task| task.busy_s / task.elapsed_s).sum()
    }

    fn cores_used(&self) -> f64 {
        let tasks = self
            .stages
            .iter()
            .filter(|stage| computes(stage))
            .map(|stage| &stage.task)
            .filter(|task| task.elapsed_s > 0.0);
        tasks.map(|task| task.cpu_s.unwrap_or(0.0) / task.elapsed_s).sum()
    }
}

fn computes(stage: &StageRecord) -> bool {
    matches!(stage.kind, StageKindName::Wasm | StageKindName::Collate)
}

/// Value that the advice sets at a pointer.
fn setting(advice: &Advice, pointer: &str) -> Option<f64> {
    advice.set.iter().find(|set| set.pointer.as_str() == pointer).and_then(|set| set.value.as_f64())
}

/// The number behind a label: a share of 1 if its unit is `%`, otherwise seconds.
fn after(line: &str, label: &str, unit: &str) -> Option<f64> {
    let mut words = line.split_once(label)?.1.split_whitespace();
    let number: f64 = words.next()?.replace(',', "").parse().ok()?;
    let found = words.next()?.trim_end_matches([',', '.', ';']);
    let scale = match found {
        "%" => 1e-2,
        "sec" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return None,
    };
    ((found == "%") == (unit == "%")).then_some(number * scale)
}
