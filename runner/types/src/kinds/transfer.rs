use super::rules::{Recipe, Rules, Work, Written, only_behind_route};
use super::settings::{Settings, tasked_stage};
use crate::fault::Pointer;
use crate::plan::{Faults, Flow, Unit};
use crate::policy::OnError;
use crate::spec::{DeviceName, Name};

tasked_stage! {
    /// Copies batches to the training device.
    Transfer {
        /// `auto` (the first device found, otherwise the host), `host`, or `cuda:N`.
        #[serde(default = "default_device")]
        device: DeviceName,
    }
}

/// Target device of `transfer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The memory of this process.
    Host,
    /// The first GPU of the machine that runs the pipeline, or host memory where it has none.
    Auto,
    /// The GPU with this number, from 0, in CUDA's numbering of the visible devices.
    Cuda(u32),
}

impl Transfer {
    /// Resolves the target. Consumers that read batches need them in host memory.
    pub(super) fn plan(&self, faults: &mut Faults<'_>, place: &Pointer) -> Device {
        let device = self.device.as_str();
        let Some(number) = device.strip_prefix("cuda:") else {
            let is_auto = device == "auto" && faults.host_reader.is_none();
            return if is_auto { Device::Auto } else { Device::Host };
        };
        if let Some(consumer) = faults.host_reader {
            let found =
                format!("found `{device}`, but the consumer `{consumer}` reads batches from host memory");
            faults.fault(place.key("device"), found, "use `host`, or omit the stage");
        }
        // A number that is out of range was reported when the document was read.
        Device::Cuda(number.parse().unwrap_or_default())
    }
}

impl Written for Transfer {
    fn settings(&self) -> Settings<'_> {
        self.all_settings()
    }

    fn prepare_for_replay(&mut self, on_error: OnError, _store: Option<&Name>) {
        self.fail_by(on_error);
    }
}

impl Rules for Device {
    fn work(&self) -> Work {
        Work::Waiting
    }

    fn takes(&self) -> &'static [Unit] {
        match self {
            Self::Cuda(_) => &[Unit::Collated],
            Self::Host | Self::Auto => &[Unit::Samples, Unit::Batches, Unit::Collated],
        }
    }

    fn gives(&self, before: Flow) -> (Flow, bool) {
        match self {
            Self::Cuda(_) => (Flow { unit: Unit::Collated, ..before }, true),
            Self::Host | Self::Auto => (before, false),
        }
    }

    fn recipe(&self) -> Recipe<'_> {
        Recipe { omits: &["device"], has_order: true, ..Recipe::default() }
    }

    fn in_words(&self) -> String {
        match self {
            Self::Host => "keeps batches in the memory of the host".to_owned(),
            Self::Auto => {
                "copies batches to the first GPU, or keeps them on the host if there is none".to_owned()
            }
            Self::Cuda(number) => format!("copies batches to GPU {number}"),
        }
    }

    fn misfit_in_route(&self, _keeps_order: bool) -> Option<(String, &'static str)> {
        Some(only_behind_route("`transfer` is for batches"))
    }
}

fn default_device() -> DeviceName {
    DeviceName::new("auto").expect("`auto` is a device")
}
