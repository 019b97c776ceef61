use std::sync::Mutex;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper::error::NvmlError;
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::lock::locked;
use penstock_types::run::GpuRecord;
use penstock_types::stats::Tick;

use crate::gpu::Gpu;

/// Reads the figures of one GPU at intervals, and keeps the last reading.
#[derive(Debug)]
pub struct Watch {
    nvml: Nvml,
    /// UUID of the GPU. Stored instead of the [`Gpu`] itself, which would keep the GPU open.
    uuid: String,
    clock: MonotonicClock,
    last: LastReading,
}

/// Result and time of the last reading.
#[derive(Debug, Default)]
struct LastReading(Mutex<Option<(Tick, Option<GpuRecord>)>>);

/// Time for which a reading is considered current.
const FRESH: Duration = Duration::from_millis(500);

/// Unit in which NVML reports bus traffic.
const KILOBYTE: u64 = 1000;

impl Watch {
    /// Starts to monitor a GPU; `None` if NVML is not available.
    pub fn of(gpu: &Gpu) -> Option<Self> {
        let nvml = Nvml::init().inspect_err(|error| tracing::debug!(%error, "cannot load NVML")).ok()?;
        Some(Self { nvml, uuid: gpu.uuid(), clock: MonotonicClock::start(), last: LastReading::default() })
    }

    /// Reads the figures, unless the last reading is less than half a second old. Takes up to 40 ms: do not call it where a
    /// response must be immediate.
    pub fn look(&self) {
        if self.last.is_due(self.clock.now()) {
            let seen = self.figures();
            self.last.set(self.clock.now(), seen);
        }
    }

    /// The last reading; `None` before the first one, and for a GPU that NVML does not know. Never waits.
    pub fn record(&self) -> Option<GpuRecord> {
        self.last.seen()
    }

    /// Current figures; `None` if NVML does not know the GPU. Blocks while NVML measures the bus, for 20 ms in each direction.
    fn figures(&self) -> Option<GpuRecord> {
        let device = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
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

impl LastReading {
    /// True if the last reading is outdated.
    fn is_due(&self, now: Tick) -> bool {
        locked(&self.0).is_none_or(|(at, _)| now >= at.after(FRESH))
    }

    fn set(&self, at: Tick, seen: Option<GpuRecord>) {
        *locked(&self.0) = Some((at, seen));
    }

    fn seen(&self) -> Option<GpuRecord> {
        locked(&self.0).and_then(|(_, seen)| seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO.after(Duration::from_millis(millis))
    }

    #[test]
    fn a_reading_is_kept_until_the_next_one_at_least_half_a_second_later() {
        let last = LastReading::default();
        assert!(last.is_due(Tick::ZERO));
        assert_eq!(last.seen(), None);
        let record = GpuRecord { utilisation: Some(0.5), ..GpuRecord::default() };
        last.set(at(100), Some(record));
        assert_eq!((last.is_due(at(599)), last.is_due(at(600))), (false, true));
        assert_eq!(last.seen(), Some(record), "kept even when a new reading is due");
    }

    #[test]
    fn an_unknown_device_is_not_queried_more_often() {
        let last = LastReading::default();
        last.set(at(100), None);
        assert_eq!((last.is_due(at(599)), last.seen()), (false, None));
    }
}
