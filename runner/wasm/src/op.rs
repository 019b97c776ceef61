//! The op of a stage on one worker thread: calls the guest according to its mode, and replaces broken instances.

use std::sync::Arc;
use std::time::Duration;

use penstock_engine::item::{Item, Origin, Sample};
use penstock_engine::ports::{Failed, Fault, Items, Output, StopFlag, ThreadOp};
use penstock_types::manifest::Mode;
use penstock_types::run::FailureClass;
use penstock_types::text::printable;

use crate::bindings::exports::penstock::stage::transform::{ItemResult, Outcome};
use crate::convert::{Converter, Turned, broken, child_of, failed};
use crate::error::mib;
use crate::held::HeldSamples;
use crate::instance::{Instance, StageParts};
use crate::limits::{CallClock, MAX_CALL_OUTPUT_BYTES, MAX_CHILDREN, monotonic};
use crate::trap::CallEnd;

const SHOWN_KEY: usize = 64;

/// Op of one stage on one worker thread.
pub(crate) struct GuestOp {
    parts: Arc<StageParts>,
    stop: StopFlag,
    /// `None` after an error, until the next call.
    instance: Option<Instance>,
    /// Number of instances created since the last output in order to replace broken ones.
    made: u64,
    /// Monotonic time at which the current call got a new instance; `None` if it uses the existing one.
    renewed: Option<Duration>,
    converter: Converter,
    held: HeldSamples,
    /// Origin of the last sample, from which the origins of new items returned by `finish` are derived.
    last: Origin,
    /// State with which an instance begins; empty for a new one. `None` if the state is not saved.
    saved: Option<Arc<[u8]>>,
}

/// Size of the origin with which a state begins.
const ORIGIN_BYTES: usize = 20;

impl GuestOp {
    /// Creates an op with a running instance, which goes on from `saved`.
    pub(crate) fn start(
        parts: Arc<StageParts>,
        saved: Option<Arc<[u8]>>,
        stop: &StopFlag,
    ) -> Result<Self, CallEnd> {
        let manifest = parts.module.manifest();
        // `fan_out` does not apply to stateful modules, because these may also return held samples.
        let fan_out = manifest.fan_out.filter(|_| manifest.mode != Mode::Stateful);
        let mut op = Self {
            converter: Converter::new(parts.wants.clone(), parts.seed, parts.settings.output_bytes, fan_out),
            held: HeldSamples::new(parts.settings.held_bytes),
            instance: None,
            stop: stop.clone(),
            made: 0,
            renewed: None,
            last: Origin::default(),
            saved,
            parts,
        };
        op.instance = Some(op.new_instance()?);
        op.last = op.saved()?.map_or(op.last, |(origin, _)| origin);
        Ok(op)
    }

    /// An instance with the last saved state.
    fn new_instance(&self) -> Result<Instance, CallEnd> {
        let mut instance = Instance::start(&self.parts, self.stop.shared())?;
        if let Some((_, state)) = self.saved()? {
            instance.load(state)?;
        }
        Ok(instance)
    }

    /// Origin of the last sample before the state was saved, and the guest's state; `None` for a new state.
    fn saved(&self) -> Result<Option<(Origin, &[u8])>, CallEnd> {
        let Some(saved) = self.saved.as_ref().filter(|saved| !saved.is_empty()) else { return Ok(None) };
        let parts = saved.split_first_chunk();
        let (origin, state) = parts.ok_or_else(|| broken("was given a state that is too short"))?;
        Ok(Some((origin_of(origin), state)))
    }

    fn mode(&self) -> Mode {
        self.parts.module.manifest().mode
    }

    fn apply_sample(&mut self, sample: Sample) -> Output {
        let outcome = match self.call_one(&sample) {
            Ok(outcome) => outcome,
            Err(end) => return self.failed_call(end, vec![sample]),
        };
        let clock = clock_of(&mut self.instance);
        if let Err(end) = self.converter.check(&outcome, &sample, clock) {
            return self.failed_call(end, vec![sample]);
        }
        let mut output = Output::default();
        match self.converter.turn(outcome, sample, clock) {
            Ok(Turned::Keep(sample)) => output.items = Items::One(Item::Sample(sample)),
            Ok(Turned::Drop) => output.dropped = 1,
            Ok(Turned::Many(samples)) => output.items = several(samples),
            Ok(Turned::Failed(failed)) => output.failed.push(failed),
            Err((end, sample)) => return self.failed_call(end, vec![sample]),
        }
        self.done(output)
    }

    fn apply_batch(&mut self, batch: Vec<Sample>) -> Output {
        if batch.is_empty() {
            return Output::default();
        }
        let outcomes = match self.call(&batch) {
            Ok(outcomes) => outcomes,
            Err(end) => return self.failed_call(end, batch),
        };
        // All outcomes are checked before any sample is passed on: a guest that is wrong about one sample may be wrong about
        // others.
        if let Err(end) = self.check_batch(&outcomes, &batch) {
            return self.failed_call(end, batch);
        }
        let mut output = Output::default();
        let mut survivors = Vec::with_capacity(batch.len());
        let mut answered = outcomes.into_iter().zip(batch);
        while let Some((outcome, sample)) = answered.next() {
            match self.converter.turn(outcome, sample, clock_of(&mut self.instance)) {
                Ok(Turned::Keep(sample)) => survivors.push(sample),
                Ok(Turned::Drop) => output.dropped += 1,
                Ok(Turned::Many(samples)) => survivors.extend(samples),
                Ok(Turned::Failed(failed)) => output.failed.push(failed),
                Err((end, sample)) => {
                    // Samples converted so far are complete and checked; each of the remaining ones fails in its original form.
                    let rest = std::iter::once(sample).chain(answered.map(|(_, sample)| sample)).collect();
                    let mut ended = self.failed_call(end, rest);
                    output.failed.append(&mut ended.failed);
                    return Output {
                        items: batch_of(survivors),
                        failed: output.failed,
                        dropped: output.dropped,
                        ..ended
                    };
                }
            }
        }
        output.items = batch_of(survivors);
        self.done(output)
    }

    /// Checks all outcomes of a batch against the contract; the error states the first sample whose outcome breaks it.
    fn check_batch(&mut self, outcomes: &[Outcome], batch: &[Sample]) -> Result<(), CallEnd> {
        let clock = clock_of(&mut self.instance);
        let mut copied = 0_u64;
        for (outcome, sample) in outcomes.iter().zip(batch) {
            let bytes = self.converter.check(outcome, sample, clock).map_err(|end| match end {
                CallEnd::Fault(Fault { class: FailureClass::Contract, .. }) => {
                    end.at(&format!("sample `{}` of the batch: ", printable(&sample.key, SHOWN_KEY)))
                }
                end => end,
            })?;
            copied = copied.saturating_add(bytes);
        }
        if copied > MAX_CALL_OUTPUT_BYTES {
            let limit = mib(MAX_CALL_OUTPUT_BYTES);
            return Err(broken(format!(
                "made so many samples that copies of the fields that bypass the module would take {} MiB in one call, but the \
                 limit is {limit} MiB; fields named under `wants` do not bypass the module",
                mib(copied)
            ))
            .into());
        }
        Ok(())
    }

    fn apply_stateful(&mut self, sample: Sample) -> Output {
        self.last = sample.origin;
        let outcome = match self.call_one(&sample) {
            Ok(outcome) => outcome,
            Err(end) => return self.failed_call(end, vec![sample]),
        };
        let clock = clock_of(&mut self.instance);
        let mut output = Output::default();
        match outcome {
            Outcome::Held => output.dropped += self.held.push(sample),
            Outcome::Drop => output.dropped += 1,
            Outcome::Keep(item) => {
                match self.converter.check_items(std::slice::from_ref(&item), Some(&sample.key), clock) {
                    Ok(()) => return self.release(vec![item], sample, |origin, _| origin),
                    Err(end) => return self.failed_call(end, vec![sample]),
                }
            }
            Outcome::Many(items) => match self.converter.check_children(&items, &sample.key, clock) {
                Ok(()) if items.is_empty() => output.dropped += 1,
                Ok(()) => return self.release(items, sample, child_of),
                Err(end) => return self.failed_call(end, vec![sample]),
            },
            Outcome::Failed(reason) => output.failed.push(failed(sample, &reason)),
        }
        self.done(output)
    }

    /// Passes on the items returned by a stateful guest. An item with the key of a held sample replaces that sample and gets its
    /// origin and carried fields; any other item is made from the current sample. If all items replace held samples, the current
    /// sample becomes held.
    fn release(
        &mut self,
        items: Vec<ItemResult>,
        current: Sample,
        origin: fn(Origin, u64) -> Origin,
    ) -> Output {
        let earlier: Vec<Option<Sample>> = items
            .iter()
            .map(|item| if *item.key == *current.key { None } else { self.held.take(&item.key) })
            .collect();
        let made_of_current = earlier.iter().filter(|earlier| earlier.is_none()).count();
        if let Err(fault) = self.converter.check_copies(&current, made_of_current) {
            for sample in earlier.into_iter().flatten() {
                self.held.push(sample); // fails together with the others
            }
            return self.charge_all(fault, vec![current]);
        }
        let mut output = Output::default();
        let from = current.origin;
        let template = if made_of_current == 0 {
            output.dropped += self.held.push(current);
            None
        } else {
            Some(self.converter.template(current))
        };
        let mut samples = Vec::with_capacity(items.len());
        for ((item, earlier), number) in items.into_iter().zip(earlier).zip(0_u64..) {
            if self.stop.is_set() {
                break; // the engine accepts no more items
            }
            let sample = match earlier {
                Some(earlier) => self.converter.sample(item, earlier),
                None => {
                    let template = template
                        .as_ref()
                        .expect("the template exists if any item is made of the current sample");
                    let mut sample = self.converter.child(item, template, number);
                    sample.origin = origin(from, number);
                    sample
                }
            };
            samples.push(sample);
        }
        output.items = several(samples);
        self.done(output)
    }

    /// Calls `process` on the samples, with a new instance if there is none; returns one outcome per sample.
    fn call(&mut self, samples: &[Sample]) -> Result<Vec<Outcome>, CallEnd> {
        if self.instance.is_none() {
            let started = self.new_instance();
            self.renewed = Some(monotonic());
            self.instance = Some(started?);
            self.made += 1;
        }
        let instance = self.instance.as_mut().expect("made above");
        let converter = &self.converter;
        instance.begin(samples.len());
        let mut fields = Vec::with_capacity(samples.iter().map(|sample| sample.fields.len()).sum());
        let outcomes = if let [sample] = samples {
            converter.fields(sample, &mut fields);
            instance.clock().on_work(1 + sample.fields.len() as u64)?;
            instance.process(&[converter.item(sample, &fields)])?
        } else {
            let mut ends = Vec::with_capacity(samples.len());
            for sample in samples {
                converter.fields(sample, &mut fields);
                instance.clock().on_work(1 + sample.fields.len() as u64)?;
                ends.push(fields.len());
            }
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let ranges = starts.zip(ends.iter().copied());
            let items: Vec<_> = samples
                .iter()
                .zip(ranges)
                .map(|(sample, (start, end))| converter.item(sample, &fields[start..end]))
                .collect();
            instance.process(&items)?
        };
        if outcomes.len() == samples.len() {
            return Ok(outcomes);
        }
        let (found, expected) = (outcomes.len(), samples.len());
        let reason = format!("returned {found} outcomes instead of {expected}, one per sample");
        Err(CallEnd::Fault(broken(reason)))
    }

    fn call_one(&mut self, sample: &Sample) -> Result<Outcome, CallEnd> {
        let outcomes = self.call(std::slice::from_ref(sample))?;
        Ok(outcomes.into_iter().next().expect("one outcome per sample, as `call` checks"))
    }

    /// Saves the state behind a call, after which the samples that it held are part of the state. Without the state, what the call
    /// returned fails.
    fn save(&mut self, output: Output) -> Output {
        let (Some(_), Some(instance)) = (&self.saved, &mut self.instance) else { return output };
        let state = match instance.save() {
            Ok(state) => state,
            Err(end) => {
                let returned = match output.items {
                    Items::None => Vec::new(),
                    Items::One(item) => item.into_samples(),
                    Items::Many(items) => items.into_iter().flat_map(Item::into_samples).collect(),
                };
                let mut ended = self.failed_call(end, returned);
                ended.failed.extend(output.failed);
                return Output { dropped: output.dropped + ended.dropped, ..ended };
            }
        };
        let saved: Arc<[u8]> = match state.is_empty() {
            true => [].into(),
            false => [&bytes_of(self.last)[..], &state].concat().into(),
        };
        self.saved = Some(saved.clone());
        let merged = self.held.drain().len() as u64;
        Output { saved: Some(saved), dropped: output.dropped + merged, held: 0, held_bytes: 0, ..output }
    }

    /// Handles a failed call: fails its samples and all held samples.
    fn failed_call(&mut self, end: CallEnd, samples: Vec<Sample>) -> Output {
        match end {
            CallEnd::Fault(fault) => self.charge_all(fault, samples),
            CallEnd::Stopped => {
                // After a stop, the engine counts the samples inside a stage as left; none of them fails or is passed on.
                self.instance = None;
                self.renewed = None;
                Output { held: self.held.len() as u64, ..Output::default() }
            }
        }
    }

    /// Handles a failed `finish`. The next epoch begins with a new state.
    fn failed_finish(&mut self, end: CallEnd) -> Output {
        let is_stopped = matches!(end, CallEnd::Stopped);
        let output = self.failed_call(end, Vec::new());
        if is_stopped || self.saved.is_none() {
            return output;
        }
        self.saved = Some([].into());
        Output { saved: self.saved.clone(), ..output }
    }

    fn charge_all(&mut self, fault: Fault, samples: Vec<Sample>) -> Output {
        self.instance = None;
        let mut output = Output::default();
        let cause = samples.first().map(|sample| sample.key.clone());
        output.failed.extend(samples.into_iter().map(|sample| Failed { sample, fault: fault.clone() }));
        let held = self.held.drain();
        if !held.is_empty() {
            let when = cause.map_or_else(|| "in `finish`".to_owned(), |key| format!("on sample `{key}`"));
            let message = format!("held by a module instance that failed {when}: {}", fault.message);
            let fault = Fault::new(fault.class, message);
            output.failed.extend(held.into_iter().map(|sample| Failed { sample, fault: fault.clone() }));
        } else if output.failed.is_empty() {
            // `finish` failed while no samples were held. The fault is still reported, with a placeholder sample named `finish`.
            output.failed.push(Failed { sample: Sample::new("finish", self.last), fault });
        }
        self.done(output)
    }

    fn done(&mut self, mut output: Output) -> Output {
        output.held = self.held.len() as u64;
        output.held_bytes = self.held.bytes();
        output.instances = std::mem::take(&mut self.made);
        // The op's time starts after the creation of the new instance, which is not work on a sample.
        output.op_time = self.renewed.take().map(|renewed| monotonic().saturating_sub(renewed));
        output
    }
}

impl ThreadOp for GuestOp {
    fn apply(&mut self, item: Item, stop: &StopFlag) -> Output {
        if stop.is_set() {
            return Output { held: self.held.len() as u64, ..Output::default() };
        }
        match (self.mode(), item) {
            (Mode::Sample, Item::Sample(sample)) => self.apply_sample(sample),
            (Mode::Batch, Item::Batch(batch)) => self.apply_batch(batch),
            (Mode::Stateful, Item::Sample(sample)) => {
                let output = self.apply_stateful(sample);
                if output.items.samples() == 0 { output } else { self.save(output) }
            }
            (mode, other) => {
                let mut output = Output::default();
                output.failed.extend(misfits(mode, other));
                self.done(output)
            }
        }
    }

    fn finish(&mut self, stop: &StopFlag) -> Output {
        if self.mode() != Mode::Stateful || stop.is_set() {
            return Output { held: self.held.len() as u64, ..Output::default() };
        }
        if self.instance.is_none() && self.saved.as_ref().is_some_and(|saved| !saved.is_empty()) {
            match self.new_instance() {
                Ok(instance) => (self.instance, self.made) = (Some(instance), self.made + 1),
                Err(end) => return self.failed_finish(end),
            }
        }
        // Without an instance there is no state, so there are no held samples to return.
        let Some(instance) = self.instance.as_mut() else {
            return Output { saved: self.saved.clone(), ..Output::default() };
        };
        let held = self.held.len();
        let items = match instance.finish(held) {
            Ok(items) => items,
            Err(end) => return self.failed_finish(end),
        };
        let limit = MAX_CHILDREN.max(held);
        if items.len() > limit {
            let reason = format!("`finish` returned {} samples, but the limit is {limit}", items.len());
            return self.failed_finish(broken(reason).into());
        }
        let clock = instance.clock();
        let checked = items
            .iter()
            .try_for_each(|item| self.converter.check_items(std::slice::from_ref(item), None, clock));
        if let Err(end) = checked {
            return self.failed_finish(end.at("`finish` "));
        }
        let mut samples = Vec::with_capacity(items.len());
        for (item, number) in items.into_iter().zip(0_u64..) {
            if stop.is_set() {
                break; // the engine accepts no more items
            }
            let made_of = self
                .held
                .take(&item.key)
                .unwrap_or_else(|| Sample::new(item.key.as_str(), child_of(self.last, number)));
            samples.push(self.converter.sample(item, made_of));
        }
        let merged_into_others = self.held.drain().len() as u64;
        let output =
            self.done(Output { items: several(samples), dropped: merged_into_others, ..Output::default() });
        self.save(output)
    }
}

fn bytes_of(origin: Origin) -> [u8; ORIGIN_BYTES] {
    let mut bytes = [0; ORIGIN_BYTES];
    bytes[..4].copy_from_slice(&origin.epoch.to_le_bytes());
    bytes[4..12].copy_from_slice(&origin.index.to_le_bytes());
    bytes[12..].copy_from_slice(&origin.path.to_le_bytes());
    bytes
}

fn origin_of(bytes: &[u8; ORIGIN_BYTES]) -> Origin {
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let epoch = u32::from_le_bytes(std::array::from_fn(|byte| bytes[byte]));
    Origin { path: number(12), ..Origin::at(epoch, number(4)) }
}

/// Clock of the call that an instance has just answered.
fn clock_of(instance: &mut Option<Instance>) -> &mut CallClock {
    instance.as_mut().expect("it answered").clock()
}

fn batch_of(samples: Vec<Sample>) -> Items {
    if samples.is_empty() { Items::None } else { Items::One(Item::Batch(samples)) }
}

fn several(mut samples: Vec<Sample>) -> Items {
    match samples.len() {
        0 => Items::None,
        1 => samples.pop().map_or(Items::None, |sample| Items::One(Item::Sample(sample))),
        _ => Items::Many(samples.into_iter().map(Item::Sample).collect()),
    }
}

/// Fails every sample of an item that the module's mode cannot take. Such items are a defect, because plans are checked before
/// they run.
fn misfits(mode: Mode, item: Item) -> Vec<Failed> {
    let found = match item {
        Item::Sample(_) => "a single sample",
        Item::Batch(_) => "a batch",
        Item::Collated(_) => "a collated batch",
    };
    let remedy = match mode {
        Mode::Batch => "put an aggregate stage before it",
        Mode::Sample | Mode::Stateful => "put a disaggregate stage before it",
    };
    let fault = broken(format!("was given {found}, which its mode does not take; {remedy}"));
    item.into_samples().into_iter().map(|sample| Failed { sample, fault: fault.clone() }).collect()
}
