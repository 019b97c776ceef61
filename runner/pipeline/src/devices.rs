//! The GPUs that the stages of a run bring batches to.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_device::{
    CudaTransfer, Gpu, GpuError, PinnedMemory, TransferFigures, Watch, pinned_share, slots_for,
};
use penstock_engine::memory::{BatchMemory, Pool};
use penstock_engine::ops::HostTransfer;
use penstock_engine::ports::TaskOp;
use penstock_types::fault::SpecFault;
use penstock_types::plan::{Device, Plan, StageKind, StagePlan};
use penstock_types::run::TransferRecord;
use penstock_types::text::with_causes;

/// The GPUs of a run; by default none, for a caller that asks what a stage does.
#[derive(Default)]
pub(crate) struct Gpus {
    /// By number.
    targets: BTreeMap<u32, Target>,
    /// How many batches who takes them may hold at a time.
    max_held: usize,
}

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
    /// Opens those that a plan names. `auto` is the first one, and none where there is none. `max_held` is how many batches who
    /// takes them may hold at a time.
    pub(crate) fn of(plan: &Plan, max_held: usize) -> Result<Self, GpuError> {
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
                Err(error) if may_stay(device, &error) => {
                    tracing::info!(stage = %stage.id, %error, "batches stay in the memory of the host");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self { targets, max_held })
    }

    /// What batches are best stacked in; `None` when they stay on the host.
    pub(crate) fn memory(&self) -> Option<Arc<dyn BatchMemory>> {
        let target = self.targets.values().next()?;
        Some(Arc::new(target.memory.clone()))
    }

    /// What brings batches to a device.
    pub(crate) fn transfer(
        &self,
        stage: &str,
        device: Device,
        transfers: &mut Transfers,
    ) -> Result<Arc<dyn TaskOp>, GpuError> {
        let Some(target) = number(device).and_then(|number| self.targets.get(&number)) else {
            return Ok(Arc::new(HostTransfer));
        };
        let transfer = CudaTransfer::start(&target.gpu, &target.memory, slots_for(self.max_held))?;
        let seen = Seen { figures: transfer.figures(), gpu: target.watch.clone() };
        transfers.0.insert(stage.to_owned(), seen);
        Ok(Arc::new(transfer))
    }
}

impl Transfers {
    /// Looks at the GPUs, if there may be something new to see. Takes up to 40 ms for each of them.
    pub(crate) fn look(&self) {
        self.0.values().filter_map(|seen| seen.gpu.as_ref()).for_each(|gpu| gpu.look());
    }

    /// What was copied so far, and what was seen of the GPUs at the last look.
    pub(crate) fn record(&self) -> BTreeMap<String, TransferRecord> {
        let record = |seen: &Seen| {
            let gpu = seen.gpu.as_ref().and_then(|gpu| gpu.record());
            TransferRecord { gpu, ..seen.figures.record() }
        };
        self.0.iter().map(|(stage, seen)| (stage.clone(), record(seen))).collect()
    }
}

/// Whether batches stay on the host when the GPU cannot be opened: somebody who has one wants to know what is wrong with it.
fn may_stay(device: Device, error: &GpuError) -> bool {
    device == Device::Auto && matches!(error, GpuError::NoDriver | GpuError::NoDevice)
}

/// The GPU that is meant.
fn number(device: Device) -> Option<u32> {
    match device {
        Device::Host => None,
        Device::Auto => Some(0),
        Device::Cuda(number) => Some(number),
    }
}

/// Checks that the GPUs that a document names are there.
pub(crate) fn check_devices(plan: &Plan) -> Vec<SpecFault> {
    let fault = |stage: &StagePlan| {
        let StageKind::Transfer { device: Device::Cuda(number) } = stage.kind else { return None };
        let error = Gpu::check(number).err()?;
        let found = format!("found `cuda:{number}`, but {}", with_causes(&error));
        let fault = SpecFault::new(stage.place().key("device"), found);
        Some(fault.hint("`auto` takes a GPU where there is one, and `host` none"))
    };
    plan.stages.iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests {
    use penstock_device::DriverError;

    use super::*;

    fn refused() -> GpuError {
        GpuError::Driver(DriverError {
            call: "cuInit",
            code: 999,
            name: "CUDA_ERROR_UNKNOWN".to_owned(),
            meaning: "unknown error".to_owned(),
        })
    }

    #[test]
    fn only_where_there_is_no_gpu_do_batches_stay_on_the_host() {
        for absent in [GpuError::NoDriver, GpuError::NoDevice] {
            assert!(may_stay(Device::Auto, &absent), "{absent}");
            assert!(!may_stay(Device::Cuda(0), &absent), "{absent}");
        }
        let broken = [
            GpuError::MissingSymbol { name: "cuInit" },
            GpuError::NoSuchDevice { number: 0, count: 0 },
            GpuError::Thread("no more threads".to_owned()),
            refused(),
        ];
        for error in broken {
            assert!(!may_stay(Device::Auto, &error), "{error}");
        }
    }

    #[test]
    fn what_the_driver_answered_is_told_once() {
        assert_eq!(
            with_causes(&refused()),
            "the CUDA driver here cannot be used: `cuInit` answered CUDA_ERROR_UNKNOWN (unknown error)"
        );
    }
}
