//! Tests that resources are released.

use std::time::Duration;

use penstock_device::{ConsumerStream, Gpu, PinnedMemory};
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::memory::Maker;

use crate::fake::{Counts, OpenContext, TrainingStream, finish, with_driver};
use crate::work::{Wanted, Work, assert_whole, buffer, until};

const IMAGE: usize = 20_000;

/// Cap of pinned memory in bytes.
const CAP: usize = 4 * 4096;

#[test]
fn everything_is_released_at_the_end() {
    with_driver(&[], || {
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted::default()).unwrap();
        for batch in work.send(0..20, IMAGE, 3) {
            buffer(&batch.unwrap(), 0).prepare(ConsumerStream::DEFAULT).unwrap();
        }
        let held = Counts::now();
        assert!(held.device_regions > 0 && held.host_regions > 0 && held.events > 0, "{held:?}");
        assert_eq!((held.streams, held.contexts), (1, 1));
        drop((work, gpu));
        assert_eq!(Counts::now(), Counts::NOTHING);
    });
}

#[test]
fn all_memories_of_a_process_share_the_cap_of_pinned_bytes() {
    with_driver(&[], || {
        let gpu = Gpu::open(0).unwrap();
        let memories = [(); 2].map(|()| PinnedMemory::new(&gpu, CAP));
        let region = memories[0].make(CAP).unwrap();
        assert!(memories[1].make(1).is_none(), "the other memory has used up the cap");
        drop(region);
        let region = memories[1].make(CAP).unwrap();
        assert!(memories[0].make(1).is_none());
        assert_eq!(Counts::now().host_bytes, CAP as i64);
        drop(region);
        assert_eq!(Counts::now().host_bytes, 0);
    });
}

#[test]
fn memory_counts_as_pinned_until_the_driver_has_freed_it() {
    with_driver(&[], || {
        let gpu = Gpu::open(0).unwrap();
        let memory = PinnedMemory::new(&gpu, CAP);
        let region = memory.make(CAP).unwrap();
        // Keeps the device busy, so that dropping the region takes time: the driver waits for the device before it frees any
        // memory.
        TrainingStream::new(&OpenContext::of_first_device()).be_busy(Duration::from_millis(200));
        std::thread::scope(|threads| {
            threads.spawn(move || drop(region));
            let next = loop {
                match memory.make(CAP) {
                    Some(next) => break next,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            assert_eq!(Counts::now().host_bytes, CAP as i64, "more than the cap");
            drop(next);
        });
    });
}

#[test]
fn a_batch_outlives_its_transfer() {
    with_driver(&[], || {
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted::default()).unwrap();
        let batch = work.send_one(7, IMAGE).unwrap();
        drop((work, gpu));
        assert_whole(&batch, 7, IMAGE);
        assert_eq!(Counts::now(), Counts { device_regions: 1, events: 2, contexts: 1, ..Counts::NOTHING });
        buffer(&batch, 0).prepare(ConsumerStream::DEFAULT).unwrap();
        drop(batch);
        assert_eq!(Counts::now(), Counts::NOTHING);
    });
}

#[test]
fn dropping_a_transfer_lets_copies_finish() {
    with_driver(&[("FAKE_CUDA_DELAY_US", "30000")], || {
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted::default()).unwrap();
        let sent: Vec<_> = (0..3)
            .map(|number| {
                let batch = work.batch(number, IMAGE);
                penstock_engine::ports::TaskOp::start(&work.transfer, batch)
            })
            .collect();
        let figures = work.transfer.figures();
        until("slots are made", || figures.record().slots == 3);
        drop((sent, work, gpu));
        assert_eq!(figures.record().batches, 3);
        assert_eq!(Counts::now(), Counts::NOTHING);
    });
}

#[test]
fn dropping_a_transfer_does_not_wait_for_a_device_that_does_not_respond() {
    with_driver(&[], || {
        let gpu = Gpu::open(0).unwrap();
        let stream = TrainingStream::new(&OpenContext::of_first_device());
        let mut work = Work::start(&gpu, &Wanted { most_slots: 1, ..Wanted::default() }).unwrap();
        let batch = work.send_one(0, IMAGE).unwrap();
        buffer(&batch, 0).prepare(stream.consumer()).unwrap();
        stream.read_later(buffer(&batch, 0), Duration::from_secs(5));
        drop(batch);
        // The next copy cannot start: on the device, it waits for the kernel that reads the slot.
        let next = work.batch(1, IMAGE);
        let unanswered = penstock_engine::ports::TaskOp::start(&work.transfer, next);
        std::thread::sleep(Duration::from_millis(50));
        let clock = MonotonicClock::start();
        drop((unanswered, work.transfer));
        let took = Duration::from_nanos(clock.now().nanos());
        assert!(took < Duration::from_millis(2000), "{took:?}");
        assert!(Counts::now().device_regions == 1, "memory that the kernel reads is not freed");
        finish();
    });
}
