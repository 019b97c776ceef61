//! The GPUs that the stages of a run bring batches to.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_device::{
    CudaTransfer, Gpu, GpuError, MOST_SLOTS, PinnedMemory, TransferFigures, Watch, pinned_share,
};
use penstock_engine::memory::{BatchMemory, Pool};
use penstock_engine::ops::HostTransfer;
use penstock_engine::ports::TaskOp;
use penstock_types::fault::{Pointer, SpecFault};
use penstock_types::plan::{Device, Plan, StageKind};
use penstock_types::run::TransferRecord;
use penstock_types::spec::{Spec, Stage};

/// The GPUs of a run, by number.
pub(crate) struct Gpus(BTreeMap<u32, Target>);

/// What stages copied to devices, by stage id, to be looked at while the run goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers(BTreeMap<String, Seen>);

/// A transfer, and the GPU that it leads to.
#[derive(Clone, Debug)]
struct Seen {
    figures: Arc<TransferFigures>,
    gpu: Option<Arc<Watch>>,
}

struct Target {
    gpu: Gpu,
    /// What it reads by itself: where batches are best stacked.
    memory: Pool<PinnedMemory>,
    watch: Option<Arc<Watch>>,
}

impl Gpus {
    /// Opens those that a plan names. `auto` is the first one, and none where there is none.
    pub(crate) fn of(plan: &Plan) -> Result<Self, GpuError> {
        let mut targets = BTreeMap::new();
        for stage in &plan.stages {
            let StageKind::Transfer { device } = stage.kind else { continue };
            let Some(number) = number(device) else { continue };
            if targets.contains_key(&number) {
                continue;
            }
            match Gpu::open(number) {
                Ok(gpu) => {
                    let memory = Pool::new(PinnedMemory::new(&gpu, pinned_share()));
                    let watch = Watch::of(&gpu).map(Arc::new);
                    targets.insert(number, Target { gpu, memory, watch });
                }
                Err(error) if device == Device::Auto => {
                    tracing::info!(stage = %stage.id, %error, "batches stay in the memory of the host");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self(targets))
    }

    /// None, for who only wants to know what a stage does.
    pub(crate) fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// What batches are best stacked in; `None` when they stay on the host.
    pub(crate) fn memory(&self) -> Option<Arc<dyn BatchMemory>> {
        let target = self.0.values().next()?;
        Some(Arc::new(target.memory.clone()))
    }

    /// What brings batches to a device.
    pub(crate) fn transfer(
        &self,
        stage: &str,
        device: Device,
        transfers: &mut Transfers,
    ) -> Result<Arc<dyn TaskOp>, GpuError> {
        let Some(target) = number(device).and_then(|number| self.0.get(&number)) else {
            return Ok(Arc::new(HostTransfer));
        };
        let transfer = CudaTransfer::start(&target.gpu, &target.memory, MOST_SLOTS)?;
        let seen = Seen { figures: transfer.figures(), gpu: target.watch.clone() };
        transfers.0.insert(stage.to_owned(), seen);
        Ok(Arc::new(transfer))
    }
}

impl Transfers {
    pub(crate) fn record(&self) -> BTreeMap<String, TransferRecord> {
        let record = |seen: &Seen| {
            let gpu = seen.gpu.as_ref().and_then(|gpu| gpu.record());
            TransferRecord { gpu, ..seen.figures.record() }
        };
        self.0.iter().map(|(stage, seen)| (stage.clone(), record(seen))).collect()
    }
}

/// The GPU that is meant.
fn number(device: Device) -> Option<u32> {
    match device {
        Device::Host => None,
        Device::Auto => Some(0),
        Device::Cuda(number) => Some(number),
    }
}

/// GPUs that a document names and that are not there.
pub(crate) fn check_devices(spec: &Spec) -> Vec<SpecFault> {
    let fault = |(index, stage): (usize, &Stage)| {
        let Stage::Transfer(transfer) = stage else { return None };
        let number = transfer.device.as_str().strip_prefix("cuda:")?.parse().ok()?;
        let error = Gpu::check(number).err()?;
        let place = Pointer::ROOT.key("stages").index(index).key("transfer").key("device");
        let message = format!(
            "found `{}`, but {error}; `auto` takes a GPU where there is one, and `host` none",
            transfer.device
        );
        Some(SpecFault::new(place, message))
    };
    spec.stages.iter().enumerate().filter_map(fault).collect()
}
