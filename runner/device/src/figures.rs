use std::sync::Mutex;
use std::time::Duration;

use penstock_engine::lock::locked;
use penstock_types::run::TransferRecord;

/// Figures of a transfer so far: updated by the thread that copies, read by any thread.
#[derive(Debug)]
pub struct TransferFigures {
    device: String,
    sums: Mutex<TransferSums>,
}

#[derive(Clone, Copy, Debug, Default)]
struct TransferSums {
    batches: u64,
    bytes: u64,
    staged_bytes: u64,
    copying: Duration,
    slot_wait: Duration,
    device_wait: Duration,
    /// Number of slots in the ring at the last update.
    slots: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopiedBatch {
    pub(crate) bytes: usize,
    /// Bytes that were copied to pinned memory first; included in `bytes`.
    pub(crate) staged_bytes: usize,
    /// Time from the batch's arrival until a slot was available for it.
    pub(crate) slot_wait: Duration,
    /// Time from the allocation of the slot until the copy was found to be done.
    pub(crate) under_way: Duration,
    /// Part of `under_way` in which the device copied, measured by the device.
    pub(crate) copying: Duration,
}

impl TransferFigures {
    pub(crate) fn of(device: String) -> Self {
        Self { device, sums: Mutex::default() }
    }

    pub(crate) fn count(&self, batch: CopiedBatch) {
        let mut sums = locked(&self.sums);
        sums.batches += 1;
        sums.bytes += batch.bytes as u64;
        sums.staged_bytes += batch.staged_bytes as u64;
        sums.copying += batch.copying;
        sums.slot_wait += batch.slot_wait;
        sums.device_wait += batch.under_way.saturating_sub(batch.copying);
    }

    pub(crate) fn set_slots(&self, slots: usize) {
        locked(&self.sums).slots = u32::try_from(slots).unwrap_or(u32::MAX);
    }

    pub fn record(&self) -> TransferRecord {
        let sums = *locked(&self.sums);
        let copy_s = sums.copying.as_secs_f64();
        let mean = |sum: Duration| (sums.batches > 0).then(|| sum.as_secs_f64() / sums.batches as f64);
        TransferRecord {
            device: self.device.clone(),
            batches: sums.batches,
            bytes: sums.bytes,
            staged_bytes: sums.staged_bytes,
            copy_s,
            bytes_per_s: (copy_s > 0.0).then(|| sums.bytes as f64 / copy_s),
            ave_slot_wait_s: mean(sums.slot_wait),
            ave_device_wait_s: mean(sums.device_wait),
            slots: sums.slots,
            gpu: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: CopiedBatch = CopiedBatch {
        bytes: 1000,
        staged_bytes: 8,
        slot_wait: Duration::from_millis(500),
        under_way: Duration::from_millis(750),
        copying: Duration::from_millis(250),
    };

    #[test]
    fn figures_are_absent_before_the_first_measurement() {
        let record = TransferFigures::of("cuda:0".to_owned()).record();
        assert_eq!((record.batches, record.bytes, record.slots), (0, 0, 0));
        assert_eq!(
            (record.bytes_per_s, record.ave_slot_wait_s, record.ave_device_wait_s),
            (None, None, None)
        );
    }

    #[test]
    fn the_device_wait_is_the_time_under_way_without_the_copy() {
        let figures = TransferFigures::of("cuda:1".to_owned());
        figures.count(BATCH);
        figures.count(CopiedBatch { staged_bytes: 0, slot_wait: Duration::ZERO, ..BATCH });
        let record = figures.record();
        assert_eq!((record.batches, record.bytes, record.staged_bytes), (2, 2000, 8));
        assert_eq!((record.copy_s, record.bytes_per_s), (0.5, Some(4000.0)));
        assert_eq!((record.ave_slot_wait_s, record.ave_device_wait_s), (Some(0.25), Some(0.5)));
    }

    #[test]
    fn all_figures_of_a_record_belong_to_the_same_moment() {
        let figures = TransferFigures::of("cuda:0".to_owned());
        figures.count(BATCH);
        std::thread::scope(|threads| {
            let counting = threads.spawn(|| (0..100_000).for_each(|_| figures.count(BATCH)));
            while !counting.is_finished() {
                let record = figures.record();
                assert_eq!(record.bytes, 1000 * record.batches);
                assert_eq!(record.bytes_per_s, Some(4000.0));
                assert_eq!((record.ave_slot_wait_s, record.ave_device_wait_s), (Some(0.5), Some(0.5)));
            }
        });
    }
}
