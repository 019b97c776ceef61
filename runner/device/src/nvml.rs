use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use nvml_wrapper::error::NvmlError;
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_types::run::GpuRecord;
use penstock_types::stats::Tick;

use crate::gpu::Gpu;

/// Watches one GPU, for who looks at it from time to time and tells what he saw whenever he is asked.
#[derive(Debug)]
pub struct Watch {
    nvml: Nvml,
    /// The GPU's name, and not the GPU: that would stay open as long as somebody may ask.
    uuid: String,
    clock: MonotonicClock,
    last: LastLook,
}

/// What was seen at the last look, and when that was.
#[derive(Debug, Default)]
struct LastLook(Mutex<Option<(Tick, Option<GpuRecord>)>>);

/// How long there is nothing new to see.
const FRESH: Duration = Duration::from_millis(500);

/// NVML counts the bus in these.
const KILOBYTE: u64 = 1000;

impl Watch {
    /// Begins to watch a GPU; `None` where there is no NVML.
    pub fn of(gpu: &Gpu) -> Option<Self> {
        let nvml = Nvml::init().inspect_err(|error| tracing::debug!(%error, "no figures of GPUs")).ok()?;
        Some(Self { nvml, uuid: gpu.uuid(), clock: MonotonicClock::start(), last: LastLook::default() })
    }

    /// Looks at it, unless the last look was less than half a second ago. Takes up to 40 ms, so this is not for who is to answer
    /// at once.
    pub fn look(&self) {
        if self.last.is_due(self.clock.now()) {
            let seen = self.figures();
            self.last.set(self.clock.now(), seen);
        }
    }

    /// What was seen at the last look; `None` before the first one, and for a GPU that NVML does not know. Does not wait.
    pub fn record(&self) -> Option<GpuRecord> {
        self.last.seen()
    }

    /// What it does now; `None` if NVML does not know it. Takes its time on the bus, which is watched for 20 ms each way.
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

impl LastLook {
    /// Whether there may be something new to see.
    fn is_due(&self, now: Tick) -> bool {
        self.get().is_none_or(|(at, _)| now >= at.after(FRESH))
    }

    fn set(&self, at: Tick, seen: Option<GpuRecord>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, seen));
    }

    fn seen(&self) -> Option<GpuRecord> {
        self.get().and_then(|(_, seen)| seen)
    }

    fn get(&self) -> Option<(Tick, Option<GpuRecord>)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO.after(Duration::from_millis(millis))
    }

    #[test]
    fn what_was_seen_is_told_until_the_next_look_which_is_not_at_once() {
        let last = LastLook::default();
        assert!(last.is_due(Tick::ZERO));
        assert_eq!(last.seen(), None);
        let record = GpuRecord { utilisation: Some(0.5), ..GpuRecord::default() };
        last.set(at(100), Some(record));
        assert_eq!((last.is_due(at(599)), last.is_due(at(600))), (false, true));
        assert_eq!(last.seen(), Some(record), "also when a look is due");
    }

    #[test]
    fn a_device_that_is_not_known_is_not_asked_for_all_the_time() {
        let last = LastLook::default();
        last.set(at(100), None);
        assert_eq!((last.is_due(at(599)), last.seen()), (false, None));
    }
}
