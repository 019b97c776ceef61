use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper::error::NvmlError;
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_types::run::GpuRecord;
use penstock_types::stats::Tick;

use crate::gpu::Gpu;

/// What watches over the GPUs of this machine.
#[derive(Debug)]
pub struct Nvml(nvml_wrapper::Nvml);

/// Watches one GPU, and no more often than it has something new to tell.
#[derive(Debug)]
pub struct Watch {
    nvml: Nvml,
    gpu: Gpu,
    clock: MonotonicClock,
    last: Mutex<Option<(Tick, Option<GpuRecord>)>>,
}

/// How long figures are told again.
const FRESH: Duration = Duration::from_millis(500);

/// NVML counts the bus in these.
const KILOBYTE: u64 = 1000;

impl Nvml {
    /// Loads it; `None` where there is none.
    pub fn load() -> Option<Self> {
        let loaded = nvml_wrapper::Nvml::init();
        loaded.inspect_err(|error| tracing::debug!(%error, "no figures of GPUs")).ok().map(Self)
    }

    /// What this GPU does; `None` for one that NVML does not know. Takes up to 40 ms, over which it watches the bus.
    pub fn figures(&self, gpu: &Gpu) -> Option<GpuRecord> {
        let device = self.0.device_by_uuid(gpu.uuid()).ok()?;
        let bus = |counter| -> Result<u64, NvmlError> {
            Ok(u64::from(device.pcie_throughput(counter)?) * KILOBYTE)
        };
        let memory = device.memory_info().ok();
        Some(GpuRecord {
            utilisation: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 100.0),
            used_bytes: memory.as_ref().map(|memory| memory.used),
            total_bytes: memory.map(|memory| memory.total),
            received_bytes_per_s: bus(PcieUtilCounter::Receive).ok(),
            sent_bytes_per_s: bus(PcieUtilCounter::Send).ok(),
        })
    }
}

impl Watch {
    /// Begins to watch a GPU; `None` where there is no NVML.
    pub fn of(gpu: &Gpu) -> Option<Self> {
        let nvml = Nvml::load()?;
        Some(Self { nvml, gpu: gpu.clone(), clock: MonotonicClock::start(), last: Mutex::default() })
    }

    /// What it does now, or did half a second ago.
    pub fn record(&self) -> Option<GpuRecord> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        match *last {
            Some((at, record)) if now < at.after(FRESH) => record,
            _ => {
                let record = self.nvml.figures(&self.gpu);
                *last = Some((self.clock.now(), record));
                record
            }
        }
    }
}
