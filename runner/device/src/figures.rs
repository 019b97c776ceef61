use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use penstock_types::run::TransferRecord;

/// What a transfer did so far: counted by the thread that copies, looked at by anybody.
#[derive(Debug)]
pub struct TransferFigures {
    device: String,
    batches: AtomicU64,
    bytes: AtomicU64,
    staged_bytes: AtomicU64,
    copy_nanos: AtomicU64,
    slot_wait_nanos: AtomicU64,
    device_wait_nanos: AtomicU64,
    slots: AtomicU32,
}

/// One batch that was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopiedBatch {
    pub(crate) bytes: usize,
    /// Those of them that were copied to pinned memory first.
    pub(crate) staged_bytes: usize,
    /// From its arrival until it had a slot.
    pub(crate) slot_wait: Duration,
    /// From then until it was seen to be on the device.
    pub(crate) under_way: Duration,
    /// The part of that in which the device copied it, by the device's clock.
    pub(crate) copying: Duration,
}

impl TransferFigures {
    pub(crate) fn of(device: String) -> Self {
        Self {
            device,
            batches: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            staged_bytes: AtomicU64::new(0),
            copy_nanos: AtomicU64::new(0),
            slot_wait_nanos: AtomicU64::new(0),
            device_wait_nanos: AtomicU64::new(0),
            slots: AtomicU32::new(0),
        }
    }

    pub(crate) fn count(&self, batch: CopiedBatch) {
        let add = |sum: &AtomicU64, time: Duration| {
            sum.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        };
        self.bytes.fetch_add(batch.bytes as u64, Ordering::Relaxed);
        self.staged_bytes.fetch_add(batch.staged_bytes as u64, Ordering::Relaxed);
        add(&self.copy_nanos, batch.copying);
        add(&self.slot_wait_nanos, batch.slot_wait);
        add(&self.device_wait_nanos, batch.under_way.saturating_sub(batch.copying));
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_slots(&self, slots: usize) {
        self.slots.store(u32::try_from(slots).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// What it did so far.
    pub fn record(&self) -> TransferRecord {
        let seconds = |sum: &AtomicU64| Duration::from_nanos(sum.load(Ordering::Relaxed)).as_secs_f64();
        let batches = self.batches.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        let copy_s = seconds(&self.copy_nanos);
        let mean = |sum: &AtomicU64| (batches > 0).then(|| seconds(sum) / batches as f64);
        TransferRecord {
            device: self.device.clone(),
            batches,
            bytes,
            staged_bytes: self.staged_bytes.load(Ordering::Relaxed),
            copy_s,
            bytes_per_s: (copy_s > 0.0).then(|| bytes as f64 / copy_s),
            ave_slot_wait_s: mean(&self.slot_wait_nanos),
            ave_device_wait_s: mean(&self.device_wait_nanos),
            slots: self.slots.load(Ordering::Relaxed),
            gpu: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        let record = TransferFigures::of("cuda:0".to_owned()).record();
        assert_eq!((record.batches, record.bytes, record.slots), (0, 0, 0));
        assert_eq!(
            (record.bytes_per_s, record.ave_slot_wait_s, record.ave_device_wait_s),
            (None, None, None)
        );
    }

    #[test]
    fn the_device_is_waited_for_whenever_it_does_not_copy() {
        let figures = TransferFigures::of("cuda:1".to_owned());
        let batch = CopiedBatch {
            bytes: 1000,
            staged_bytes: 8,
            slot_wait: Duration::from_millis(500),
            under_way: Duration::from_millis(750),
            copying: Duration::from_millis(250),
        };
        figures.count(batch);
        figures.count(CopiedBatch { staged_bytes: 0, slot_wait: Duration::ZERO, ..batch });
        let record = figures.record();
        assert_eq!((record.batches, record.bytes, record.staged_bytes), (2, 2000, 8));
        assert_eq!((record.copy_s, record.bytes_per_s), (0.5, Some(4000.0)));
        assert_eq!((record.ave_slot_wait_s, record.ave_device_wait_s), (Some(0.25), Some(0.5)));
    }
}
