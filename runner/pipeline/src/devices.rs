//! Opens the GPUs of a run and builds the transfers to them.

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

/// GPUs of a run; empty by default, for callers that only inspect a stage.
#[derive(Default)]
pub(crate) struct Gpus {
    /// GPUs with their memory, by number.
    targets: BTreeMap<u32, Target>,
    /// Maximum number of batches that the reader of the run's output may hold at a time.
    max_held: usize,
}

/// Figures of transfers by stage id, updated during the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers(BTreeMap<String, Seen>);

#[derive(Clone, Debug)]
struct Seen {
    figures: Arc<TransferFigures>,
    gpu: Option<Arc<Watch>>,
}

struct Target {
    gpu: Gpu,
    /// Pinned memory that the GPU reads directly: the best place to stack batches.
    memory: Pool<PinnedMemory>,
    watch: Option<Arc<Watch>>,
}

impl Gpus {
    /// Opens the GPUs that a plan names. `auto` is the first GPU, or none if the machine has none. `max_held` is the maximum
    /// number of batches that the reader of the run's output may hold at a time.
    pub(crate) fn of(plan: &Plan, max_held: usize) -> Result<Self, GpuError> {
        let mut targets = BTreeMap::new();
        for stage in &plan.stages {
            let StageKind::Transfer(device) = stage.kind else { continue };
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
                    tracing::info!(stage = %stage.id, %error, "batches stay in host memory");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self { targets, max_held })
    }

    /// Memory in which batches are best stacked; `None` when they stay on the host.
    pub(crate) fn memory(&self) -> Option<Arc<dyn BatchMemory>> {
        let target = self.targets.values().next()?;
        Some(Arc::new(target.memory.clone()))
    }

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
    /// Updates the state of the GPUs, if this state may have changed. Takes up to 40 ms per GPU.
    pub(crate) fn look(&self) {
        self.0.values().filter_map(|seen| seen.gpu.as_ref()).for_each(|gpu| gpu.look());
    }

    /// Figures of the copies so far, and the state of the GPUs at the last update.
    pub(crate) fn record(&self) -> BTreeMap<String, TransferRecord> {
        let record = |seen: &Seen| {
            let gpu = seen.gpu.as_ref().and_then(|gpu| gpu.record());
            TransferRecord { gpu, ..seen.figures.record() }
        };
        self.0.iter().map(|(stage, seen)| (stage.clone(), record(seen))).collect()
    }
}

/// True if a device that cannot be opened means that batches stay on the host: only for `auto` on a machine without a driver or
/// GPU.
fn may_stay(device: Device, error: &GpuError) -> bool {
    device == Device::Auto && matches!(error, GpuError::NoDriver | GpuError::NoDevice)
}

/// Number of the GPU that a device selects.
fn number(device: Device) -> Option<u32> {
    match device {
        Device::Host => None,
        Device::Auto => Some(0),
        Device::Cuda(number) => Some(number),
    }
}

pub(crate) fn check_devices(plan: &Plan) -> Vec<SpecFault> {
    let fault = |stage: &StagePlan| {
        let StageKind::Transfer(Device::Cuda(number)) = stage.kind else { return None };
        let error = Gpu::check(number).err()?;
        let found = format!("found `cuda:{number}`, but {}", with_causes(&error));
        let fault = SpecFault::new(stage.place.key("device"), found);
        Some(fault.hint("use `auto`, which takes a GPU if there is one, or `host`"))
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
    fn batches_stay_on_the_host_only_if_there_is_no_gpu() {
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
    fn the_drivers_answer_is_reported_once() {
        assert_eq!(
            with_causes(&refused()),
            "the CUDA driver of this machine cannot be used: `cuInit` returned CUDA_ERROR_UNKNOWN (unknown error)"
        );
    }
}
