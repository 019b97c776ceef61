//! Explains a plan in words, for readers who did not write the document.

use super::{Fields, Flow, Plan, SourcePlan, StageKind, StagePlan, Unit};
use crate::amount::{count, percent, plural};
use crate::fault::listed;
use crate::kinds::Work;
use crate::policy::{Capacity, FailureLimit, OnError, Order, USUAL_NEEDS_SAMPLES, USUAL_RATE};
use crate::text::shown;
use crate::traversal::{Shard, Uneven};

impl Plan {
    /// Describes the pipeline: each part in order with its settings, then the queue behind it, with the items of an epoch in
    /// which no sample fails, is dropped or fans out. The last line names the fields of the samples that come out.
    pub fn explain(&self) -> String {
        let mut flow = Flow::of_source(self.source.spec.rules().samples(self.source.traversal));
        let flows = self.flows(flow);
        let mut lines = vec![self.source.in_words()];
        lines.extend(self.source.share_in_words());
        lines.extend(self.source.partial_fields_in_words());
        lines.push(queue(self.source.queue, flow));
        let mut parts = vec![(self.source.id.to_string(), lines)];
        for (stage, behind) in self.stages.iter().zip(flows) {
            flow = behind;
            let rules = stage.kind.rules();
            let mut lines = vec![rules.in_words()];
            lines.extend(rules.limits_in_words());
            lines.extend(stage.tasks_in_words());
            lines.extend(stage.joins_in_words());
            lines.push(queue(stage.queue, flow));
            parts.push((stage.label(), lines));
        }
        let handed = "passes them to the consumer".to_owned();
        parts.push((self.sink.id.to_string(), vec![handed, queue(self.sink.queue, flow)]));
        let width = parts.iter().map(|(label, _)| label.len()).max().unwrap_or_default();
        let mut text = vec![self.in_words()];
        for (label, lines) in parts {
            let labels = std::iter::once(label.as_str()).chain(std::iter::repeat(""));
            text.extend(labels.zip(&lines).map(|(label, line)| format!("{label:width$}  {line}")));
        }
        text.push(self.fields.explained());
        text.join("\n")
    }

    /// Ids of source, stages and sink in the order in which samples pass them, with the tasks of each stage:
    /// `[0:src] -> [1:fetch[4]] -> [2:sink]`. The paths of a route stand in braces: `{image: [...] | else: -} -> [3:route]`.
    pub fn chain(&self) -> String {
        let mut text = format!("[{}]", self.source.id);
        let mut is_empty = false;
        for stage in &self.stages {
            match &stage.kind {
                StageKind::Path(path) => {
                    let begin = match (path.index, is_empty) {
                        (0, false) => " -> {",
                        (0, true) => " {",
                        (_, false) => " | ",
                        (_, true) => " - | ",
                    };
                    text += &format!("{begin}{}:", stage.id.name());
                }
                StageKind::Route(_) => {
                    text += if is_empty { " -" } else { "" };
                    text += &format!("}} -> [{}]", stage.label());
                }
                _ => text += &format!("{}[{}]", if is_empty { " " } else { " -> " }, stage.label()),
            }
            is_empty = matches!(stage.kind, StageKind::Path(_));
        }
        text + &format!(" -> [{}]", self.sink.id)
    }

    fn in_words(&self) -> String {
        let threads = match self.threads {
            Some(threads) => plural(u64::from(threads), "worker thread"),
            None => "a worker thread for each core".to_owned(),
        };
        let mib = count(self.buffer_bytes >> 20);
        let failures = limit_in_words(self.max_failures, "samples");
        format!("{}: seed {}, {threads}, {mib} MiB between stages{failures}", self.name, self.seed)
    }
}

impl SourcePlan {
    /// Fields that only some sources of a mixture have.
    fn partial_fields_in_words(&self) -> Option<String> {
        let fields = Fields::partial(self.spec.rules().parts()?).into_iter().map(|(field, sources)| {
            let sources = listed(sources.iter().map(|name| name.as_str()));
            format!("`{}` from {sources}", shown(&field))
        });
        let fields: Vec<String> = fields.collect();
        (!fields.is_empty()).then(|| format!("fields of only some sources: {}", fields.join("; ")))
    }

    fn in_words(&self) -> String {
        let mut words = self.spec.rules().in_words();
        let visits = &self.traversal;
        if let Some(limit) = visits.limit {
            words += &format!(", {} at most", count(limit));
        }
        words +=
            if visits.shuffle { ", in another order each epoch" } else { ", in the same order each epoch" };
        words += &match visits.epochs {
            Some(epochs) => format!(", {} a run", plural(u64::from(epochs.get()), "epoch")),
            None => ", endless epochs".to_owned(),
        };
        words
    }

    fn share_in_words(&self) -> Option<String> {
        let Shard { rank, world, uneven } = self.traversal.shard?;
        let last = match uneven {
            Uneven::Drop => "drops",
            Uneven::Keep => "keeps",
        };
        Some(format!("rank {rank} of {world}, {last} the entries beyond a multiple of {world}"))
    }
}

impl StagePlan {
    /// Tasks, order and handling of failures; `None` for stages without tasks.
    fn tasks_in_words(&self) -> Option<String> {
        let on = match self.kind.rules().work() {
            Work::Moving => return None,
            work if work.is_on_thread() => "on worker threads",
            _ => "outside the worker threads",
        };
        let (order, tasks) = (self.order_in_words(), plural(u64::from(self.concurrency.get()), "task"));
        Some(format!(
            "{tasks} at a time {on}, results {order}; {}",
            self.failures_in_words("failed samples", "failed sample")
        ))
    }

    /// Order of a route's samples, and handling of those without a path; `None` for other stages.
    fn joins_in_words(&self) -> Option<String> {
        let StageKind::Route(route) = &self.kind else { return None };
        let others = match route.has_else {
            true => String::new(),
            false => {
                format!("; {}", self.failures_in_words("samples without a path", "sample without a path"))
            }
        };
        Some(format!("samples leave {}{others}", self.order_in_words()))
    }

    fn order_in_words(&self) -> &'static str {
        match self.order {
            Order::Completion => "in order of completion",
            Order::Input => "in input order",
        }
    }

    /// Handling of failures; `samples` and `sample` name what fails.
    fn failures_in_words(&self, samples: &str, sample: &str) -> String {
        let failed = match self.on_error {
            OnError::Skip => format!("skips {samples}"),
            OnError::DeadLetter => format!("keeps {samples} as dead letters"),
            OnError::Fail => format!("fails with the first {sample}"),
        };
        failed + &limit_in_words(self.max_failures, "tasks")
    }
}

impl FailureLimit {
    /// Describes the limit as a noun phrase: `more than 100 failed samples`. `of` is the unit of a rate: the samples of a run,
    /// the tasks of a stage.
    pub fn in_words(self, of: &str) -> String {
        match self {
            Self::Count(samples) => format!("more than {}", plural(samples, "failed sample")),
            Self::Rate(rate) => format!("more than {} failed {of}", percent(rate)),
            Self::Usual => format!(
                "more than {} failed samples (checked after {} samples, and at the end of each epoch)",
                percent(USUAL_RATE),
                count(USUAL_NEEDS_SAMPLES)
            ),
        }
    }
}

fn limit_in_words(limit: Option<FailureLimit>, of: &str) -> String {
    limit.map(|limit| format!(", fails after {}", limit.in_words(of))).unwrap_or_default()
}

/// Describes the queue and its items.
fn queue(capacity: Capacity, flow: Flow) -> String {
    let of = match flow.unit {
        Unit::Samples => String::new(),
        Unit::Batches | Unit::Collated => format!(" of {}", plural(flow.samples, "sample")),
    };
    let epoch = flow.epoch.map(|epoch| format!("; {} an epoch", count(epoch.items))).unwrap_or_default();
    format!("-> queue of {}: {}{of}{epoch}", capacity.get(), flow.unit.name())
}
