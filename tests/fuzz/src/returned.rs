//! What a guest gives back, end to end: the engine's reading of its memory, and the checks of what was read.

use std::time::Duration;

use bytes::Bytes;
use penstock_engine::item::{Item as EngineItem, Origin, Sample, Value as EngineValue};
use penstock_engine::ports::{Items, Output, StopFlag, ThreadOp, ThreadOpFactory};
use penstock_types::manifest::Mode;
use penstock_types::run::FailureClass;
use penstock_wasm::StageSettings;
use serde_json::json;

use crate::answer::Answer;
use crate::guest::{Encoding, load};
use crate::input::Input;
use crate::told::assert_fit_for_people;

/// Most calls of one input, and most samples of one call.
const MAX_CALLS: usize = 4;
const MAX_SAMPLES: usize = 4;
/// The contract's limits, as guests are told of them.
pub(crate) const MAX_NAME_BYTES: usize = 256;
pub(crate) const MAX_KEY_BYTES: usize = 4096;
pub(crate) const MAX_RANK: usize = 16;
const MAX_FIELDS: usize = 256;
/// What every sample carries past the guest, and its value.
pub(crate) const CARRIED: &str = "carried";
pub(crate) const CARRIED_TEXT: &str = "past the guest";

/// A stage under test.
pub(crate) struct Stage {
    op: Box<dyn ThreadOp>,
    mode: Mode,
    /// Samples inside, as the stage says.
    held: u64,
    made: u64,
    is_broken: bool,
}

/// Calls a guest that answers as the input says. Every sample is accounted for, whatever comes out keeps the contract, and
/// an instance that broke it is replaced by one that works.
pub fn returned(input: &[u8]) {
    let mut input = Input(input);
    let mode = [Mode::Sample, Mode::Batch, Mode::Stateful][usize::from(input.u8() % 3)];
    let encoding = [Encoding::UTF8, Encoding::UTF16, Encoding::CompactUTF16][usize::from(input.u8() % 3)];
    let mut stage = Stage::start(mode, encoding);
    for _ in 0..MAX_CALLS {
        let (samples, ends_epoch) = (usize::from(input.u8()) % MAX_SAMPLES, input.flag());
        let answer = Answer::read(&mut input);
        stage.call(samples, &answer);
        if ends_epoch {
            stage.finish();
        }
        if answer.lie.is_some() {
            // The host is lied to as soon as it passes something in; how that ends is the guest's fault.
            stage.call(1, &Answer::good(1));
        }
        if answer.lie.is_none() && !answer.traps_after {
            stage.recovers();
        }
        if input.0.is_empty() {
            break;
        }
    }
}

/// What one answer makes of one sample named `a`: `kept`, or the failure with its class.
pub fn outcome_of(answer: &Answer) -> String {
    let mut stage = Stage::start(Mode::Sample, Encoding::UTF8);
    let output = stage.call(1, answer);
    let told = match output.failed.first() {
        Some(failed) => format!("{}: {}", failed.fault.class.name(), failed.fault.message),
        None if output.dropped > 0 => "dropped".to_owned(),
        None => format!("{} out", output.items.samples()),
    };
    if answer.lie.is_some() {
        let after = stage.call(1, &Answer::good(1));
        let failed = after.failed.first().expect("the host was lied to");
        stage.recovers();
        return format!("{told}, then {}: {}", failed.fault.class.name(), failed.fault.message);
    }
    stage.recovers();
    told
}

impl Stage {
    pub(crate) fn start(mode: Mode, encoding: Encoding) -> Self {
        let settings = StageSettings {
            name: "answering".into(),
            params: json!({}),
            deadline: Duration::from_secs(10),
            memory_bytes: 16 << 20,
            output_bytes: 128 << 20,
            held_bytes: 16 << 20,
            assets: [].into(),
            document_seed: 7,
        };
        let stage = load(mode, encoding).stage(settings);
        let op = stage.build(&StopFlag::default()).expect("the guest starts");
        Self { op, mode, held: 0, made: 0, is_broken: false }
    }

    /// Calls the guest with so many samples, one where the mode takes no more.
    pub(crate) fn call(&mut self, samples: usize, answer: &Answer) -> Output {
        let samples = match self.mode {
            Mode::Batch => samples.clamp(1, MAX_SAMPLES),
            Mode::Sample | Mode::Stateful => 1,
        };
        let keys = &["a", "bä", "c/𝄞", "d"][..samples];
        let bytes = answer.bytes(keys);
        // The guest reads its first sample only.
        let answers = std::iter::once(bytes.as_slice()).chain(std::iter::repeat(&[][..]));
        let batch: Vec<Sample> =
            keys.iter().zip(answers).map(|(key, answer)| self.sample(key, answer)).collect();
        let item = match self.mode {
            Mode::Batch => EngineItem::Batch(batch),
            Mode::Sample | Mode::Stateful => {
                EngineItem::Sample(batch.into_iter().next().expect("there is one"))
            }
        };
        let was_broken = self.is_broken;
        let output = self.op.apply(item, &StopFlag::default());
        assert_eq!(output.instances, u64::from(was_broken), "an instance was replaced without need, or not");
        self.check(samples as u64, &output);
        output
    }

    fn sample(&mut self, key: &str, answer: &[u8]) -> Sample {
        let origin = Origin { epoch: 0, index: self.made, path: 0 };
        self.made += 1;
        let mut sample = Sample::new(key, origin);
        sample.set("answer", EngineValue::Blob(Bytes::copy_from_slice(answer)));
        sample.set(CARRIED, EngineValue::Text(CARRIED_TEXT.into()));
        sample
    }

    fn finish(&mut self) {
        let output = self.op.finish(&StopFlag::default());
        self.check(0, &output);
        assert_eq!(output.held, 0, "samples are held beyond the epoch's end");
    }

    /// Whatever happened, the next call works.
    pub(crate) fn recovers(&mut self) {
        let output = self.call(1, &Answer::good(1));
        assert!(output.failed.is_empty(), "the next call failed: {:?}", output.failed);
        assert_eq!(output.items.samples(), 1, "the next call kept nothing: {output:?}");
    }

    /// The books, and what came out.
    fn check(&mut self, given: u64, output: &Output) {
        let failed = output.failed.len() as u64;
        let (inside, gone) = (self.held + given, output.dropped + failed + output.held);
        let out = output.items.samples();
        // What is too much was made by fan-out; nothing may be missing.
        assert!(out + gone >= inside, "a sample is lost: {inside} inside, then {output:?}");
        if self.mode != Mode::Stateful {
            assert_eq!(output.held, 0);
            assert!(output.dropped + failed <= given, "more are left out than came in: {output:?}");
            let left = given - output.dropped - failed;
            assert_eq!(out == 0, left == 0, "what is left came out as {output:?}");
        }
        for failed in &output.failed {
            assert_fit_for_people(&failed.fault.message);
            assert!(!failed.sample.key.is_empty());
        }
        let broke = output.failed.iter().any(|failed| failed.fault.class != FailureClass::Data);
        if broke {
            assert_eq!(out, 0, "a call that broke gave something");
            assert_eq!(output.dropped, 0, "a call that broke dropped something");
        }
        // An epoch's end asks a broken instance for nothing, and needs no new one.
        self.is_broken = broke || (given == 0 && self.is_broken);
        self.held = output.held;
        match &output.items {
            Items::None => {}
            Items::One(item) => self.check_item(item),
            Items::Many(items) => items.iter().for_each(|item| self.check_item(item)),
        }
    }

    fn check_item(&self, item: &EngineItem) {
        match (self.mode, item) {
            (Mode::Batch, EngineItem::Batch(samples)) => samples.iter().for_each(check_sample),
            (Mode::Sample | Mode::Stateful, EngineItem::Sample(sample)) => check_sample(sample),
            (mode, item) => panic!("{mode:?} gave {item:?}"),
        }
    }
}

fn check_sample(sample: &Sample) {
    assert!((1..=MAX_KEY_BYTES).contains(&sample.key.len()), "a key of {} bytes", sample.key.len());
    assert!(sample.fields.len() <= MAX_FIELDS + 2);
    for (number, field) in sample.fields.iter().enumerate() {
        assert!((1..=MAX_NAME_BYTES).contains(&field.name.len()), "a name of {} bytes", field.name.len());
        assert!(sample.fields[..number].iter().all(|other| other.name != field.name), "{sample:?}");
        if let EngineValue::Tensor(tensor) = &field.value {
            assert!(tensor.shape.len() <= MAX_RANK, "{tensor:?}");
            let elements = tensor.shape.iter().try_fold(1_usize, |all, one| all.checked_mul(*one as usize));
            let bytes = elements.and_then(|elements| elements.checked_mul(tensor.dtype.size()));
            assert_eq!(bytes, Some(tensor.data.len()), "{tensor:?}");
        }
    }
}
