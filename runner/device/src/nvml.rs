use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper::error::NvmlError;

use crate::gpu::Gpu;

/// What watches over the GPUs of this machine.
#[derive(Debug)]
pub struct Nvml(nvml_wrapper::Nvml);

/// A GPU at one moment, all processes together; `None` where it does not tell, as in many virtual machines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuFigures {
    /// Share of the last moments in which any kernel ran, 0.0 to 1.0. Copies do not count.
    pub utilisation: Option<f64>,
    /// Bytes of its memory in use.
    pub used_bytes: Option<u64>,
    /// Bytes of its memory.
    pub total_bytes: Option<u64>,
    /// Bytes per second that came to it over the bus.
    pub received_bytes_per_s: Option<u64>,
    /// Bytes per second that it sent over the bus.
    pub sent_bytes_per_s: Option<u64>,
}

/// NVML counts the bus in these.
const KILOBYTE: u64 = 1000;

impl Nvml {
    /// Loads it; `None` where there is none.
    pub fn load() -> Option<Self> {
        let loaded = nvml_wrapper::Nvml::init();
        loaded.inspect_err(|error| tracing::debug!(%error, "no figures of GPUs")).ok().map(Self)
    }

    /// What this GPU does; `None` for one that NVML does not know. Takes up to 40 ms, over which it watches the bus.
    pub fn figures(&self, gpu: &Gpu) -> Option<GpuFigures> {
        let device = self.0.device_by_uuid(gpu.uuid()).ok()?;
        let bus = |counter| -> Result<u64, NvmlError> {
            Ok(u64::from(device.pcie_throughput(counter)?) * KILOBYTE)
        };
        let memory = device.memory_info().ok();
        Some(GpuFigures {
            utilisation: device.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 100.0),
            used_bytes: memory.as_ref().map(|memory| memory.used),
            total_bytes: memory.map(|memory| memory.total),
            received_bytes_per_s: bus(PcieUtilCounter::Receive).ok(),
            sent_bytes_per_s: bus(PcieUtilCounter::Send).ok(),
        })
    }
}
