//! Target for the results of a guest, end to end: the engine's reading of its memory, and the checks of the values.

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
use crate::told::assert_printable;

/// Maximum number of calls of one input.
const MAX_CALLS: usize = 4;
const MAX_SAMPLES: usize = 4;
/// Limits of the contract.
pub(crate) const MAX_NAME_BYTES: usize = 256;
pub(crate) const MAX_KEY_BYTES: usize = 4096;
pub(crate) const MAX_RANK: usize = 16;
const MAX_FIELDS: usize = 256;
/// Field that every sample carries past the guest, and its value.
pub(crate) const CARRIED: &str = "carried";
pub(crate) const CARRIED_TEXT: &str = "past the guest";

/// A stage under test.
pub(crate) struct Stage {
    op: Box<dyn ThreadOp>,
    mode: Mode,
    /// Number of samples held, as reported by the stage.
    held: u64,
    made: u64,
    is_broken: bool,
}

/// Calls a guest that answers as the input specifies. Every sample must be accounted for, every output must satisfy the contract,
/// and an instance that violates it must be replaced by a working one.
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
            // From this answer on, the guest's allocator returns a wrong address, so that the next call fails; the failure is the
            // guest's.
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

/// Outcome of one sample with the key `a` for this answer: `kept`, or the failure with its class.
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
        let failed = after.failed.first().expect("the allocator returned a wrong address");
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

    /// Calls the guest with this many samples, or with one if its mode is `sample`.
    pub(crate) fn call(&mut self, samples: usize, answer: &Answer) -> Output {
        let samples = match self.mode {
            Mode::Batch => samples.clamp(1, MAX_SAMPLES),
            Mode::Sample | Mode::Stateful => 1,
        };
        let keys = &["a", "bä", "c/𝄞", "d"][..samples];
        let bytes = answer.bytes(keys);
        // The guest reads only its first sample.
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
        assert_eq!(output.instances, u64::from(was_broken), "the number of replaced instances is wrong");
        self.check(samples as u64, &output);
        output
    }

    fn sample(&mut self, key: &str, answer: &[u8]) -> Sample {
        let origin = Origin::at(0, self.made);
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

    /// Checks that the next call succeeds, even after a failed one.
    pub(crate) fn recovers(&mut self) {
        let output = self.call(1, &Answer::good(1));
        assert!(output.failed.is_empty(), "the next call failed: {:?}", output.failed);
        assert_eq!(output.items.samples(), 1, "the next call kept nothing: {output:?}");
    }

    /// Checks that every sample is accounted for, and that the output satisfies the contract.
    fn check(&mut self, given: u64, output: &Output) {
        let failed = output.failed.len() as u64;
        let (inside, gone) = (self.held + given, output.dropped + failed + output.held);
        let out = output.items.samples();
        // Additional samples come from fan-out; none may be missing.
        assert!(out + gone >= inside, "a sample is lost: {inside} held, then {output:?}");
        if self.mode != Mode::Stateful {
            assert_eq!(output.held, 0);
            assert!(
                output.dropped + failed <= given,
                "more samples are left out than were given: {output:?}"
            );
            let left = given - output.dropped - failed;
            assert_eq!(out == 0, left == 0, "the remaining samples do not match {output:?}");
        }
        for failed in &output.failed {
            assert_printable(&failed.fault.message);
            assert!(!failed.sample.key.is_empty());
        }
        let broke = output.failed.iter().any(|failed| failed.fault.class != FailureClass::Data);
        if broke {
            assert_eq!(out, 0, "a failed call returned samples");
            assert_eq!(output.dropped, 0, "a failed call dropped samples");
        }
        // `finish` is not called on a broken instance, and creates no new one.
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
