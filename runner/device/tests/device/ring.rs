//! Tests of the order and content of batches, and of the reuse of slots.

use std::time::Duration;

use futures::FutureExt;
use penstock_device::{Gpu, slots_for};
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::item::{Item, Origin, Sample};
use penstock_engine::ports::{Items, TaskOp};

use crate::fake::{Counts, OpenContext, TrainingStream, with_driver};
use crate::work::{MIB, SAMPLES, Wanted, Warnings, Work, assert_whole, buffer, outcome, sum, until};

const IMAGE: usize = 20_000;

#[test]
fn many_batches_arrive_complete_and_in_order_through_a_small_ring() {
    with_driver(&[("FAKE_CUDA_DELAY_US", "300")], || {
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted { most_slots: 2, ..Wanted::default() }).unwrap();
        let figures = work.transfer.figures();
        let mut number = 0;
        for batch in work.send(0..200, IMAGE, 3) {
            assert_whole(&batch.unwrap(), number, IMAGE);
            number += 1;
        }
        assert_eq!(number, 200);
        let record = figures.record();
        let labels = SAMPLES * 8;
        assert_eq!((record.device.as_str(), record.batches), ("cuda:0", 200));
        assert_eq!(record.bytes, 200 * (SAMPLES * IMAGE as u64 + labels));
        assert_eq!(record.staged_bytes, 200 * labels, "images were written to pinned memory by `collate`");
        assert!(record.slots <= 2 && record.copy_s >= 200.0 * 300e-6, "{record:?}");
        assert!(record.bytes_per_s.is_some_and(|rate| rate < 1e9), "{record:?}");
    });
}

#[test]
fn arrays_on_the_heap_are_staged_and_arrive_complete() {
    with_driver(&[("FAKE_CUDA_DELAY_US", "300")], || {
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted { is_pinned: false, ..Wanted::default() }).unwrap();
        for (number, batch) in (0..).zip(work.send(0..50, IMAGE, 3)) {
            assert_whole(&batch.unwrap(), number, IMAGE);
        }
        let record = work.transfer.figures().record();
        assert_eq!((record.batches, record.staged_bytes), (50, record.bytes));
    });
}

#[test]
fn batches_beyond_the_cap_use_the_heap_and_arrive_complete() {
    with_driver(&[("FAKE_CUDA_DELAY_US", "300")], || {
        let gpu = Gpu::open(0).unwrap();
        let cap_bytes = 50_000;
        let mut work = Work::start(&gpu, &Wanted { cap_bytes, ..Wanted::default() }).unwrap();
        let kept: Vec<_> = (100..103).map(|number| work.batch(number, IMAGE)).collect();
        assert_eq!(Counts::now().host_bytes, 40_960, "one batch fits");
        for (number, batch) in (0..).zip(work.send(0..20, IMAGE, 3)) {
            assert_whole(&batch.unwrap(), number, IMAGE);
        }
        assert!(Counts::now().host_bytes <= cap_bytes as i64);
        assert_eq!(kept.len(), 3);
    });
}

#[test]
fn batches_of_different_sizes_get_slots_of_their_size() {
    with_driver(&[], || {
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted { most_slots: 2, ..Wanted::default() }).unwrap();
        for (number, image) in (0..).zip([10, 3 * MIB, 0, 5000, 2 * MIB, 4 * MIB]) {
            assert_whole(&work.send_one(number, image).unwrap(), number, image);
        }
        assert!(work.transfer.figures().record().slots <= 2);
    });
}

#[test]
fn items_that_are_not_collated_pass_unchanged() {
    with_driver(&[], || {
        let work = Work::start(&Gpu::open(0).unwrap(), &Wanted::default()).unwrap();
        let item = Item::Sample(Sample::new("a", Origin::default()));
        let output = work.transfer.start(item.clone()).now_or_never().unwrap();
        assert!(matches!(output.items, Items::One(same) if same == item));
    });
}

/// Sends batches through a small ring to a training loop on another thread, which enqueues a delayed read of each batch on this
/// stream and drops the batch at once. Returns the number of read sums that do not match their batches.
fn corrupted(stream: &TrainingStream) -> usize {
    let gpu = Gpu::open(0).unwrap();
    let mut work = Work::start(&gpu, &Wanted { most_slots: 2, ..Wanted::default() }).unwrap();
    let mut sums = Vec::new();
    for batch in work.send(0..30, IMAGE, 2) {
        let batch = batch.unwrap();
        let images = buffer(&batch, 0);
        images.prepare(stream.consumer()).unwrap();
        sums.push(stream.read_later(images, Duration::from_millis(2)));
        std::thread::scope(|threads| {
            threads.spawn(move || drop(batch));
        });
    }
    crate::fake::finish();
    assert_eq!(sums.len(), 30);
    (0..).zip(sums).filter(|(number, found)| **found != sum(*number, IMAGE)).count()
}

#[test]
fn a_slot_is_written_again_only_after_its_reader_is_done() {
    with_driver(&[], || {
        assert_eq!(corrupted(&TrainingStream::new(&OpenContext::of_first_device())), 0);
    });
}

#[test]
fn a_reader_on_its_threads_stream_is_waited_for_even_if_another_thread_drops_the_batch() {
    with_driver(&[], || assert_eq!(corrupted(&TrainingStream::of_thread()), 0));
}

/// Validates the two tests above: with streams that do not wait for readers, sums must not match.
#[test]
fn streams_that_do_not_wait_for_readers_are_detected() {
    with_driver(&[("FAKE_CUDA_SKIP_WAIT", "1")], || {
        let corrupted = corrupted(&TrainingStream::new(&OpenContext::of_first_device()));
        assert!(corrupted > 0, "all 30 sums match although no stream waited");
    });
}

#[test]
fn a_consumer_that_keeps_all_slots_makes_the_next_batch_wait() {
    with_driver(&[], || {
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted { most_slots: 3, ..Wanted::default() }).unwrap();
        let figures = work.transfer.figures();
        let mut kept: Vec<_> = work.send(0..3, IMAGE, 1).map(Result::unwrap).collect();
        let first = figures.record();
        assert_eq!(first.slots, 3);
        let next = work.batch(3, IMAGE);
        let clock = MonotonicClock::start();
        let mut fourth = work.transfer.start(next);
        std::thread::sleep(Duration::from_millis(30));
        assert!((&mut fourth).now_or_never().is_none(), "there is no free slot yet");
        assert_whole(&kept[1], 1, IMAGE);
        // A clone of a single array of the batch keeps the batch's slot.
        let array = buffer(&kept[0], 1).clone();
        kept.remove(0);
        std::thread::sleep(Duration::from_millis(30));
        assert!((&mut fourth).now_or_never().is_none(), "the labels are still held");
        drop(array);
        let fourth = outcome(futures::executor::block_on(fourth)).unwrap();
        let waited = clock.now().nanos() as f64 / 1e9;
        assert_whole(&fourth, 3, IMAGE);
        assert_whole(&kept[0], 1, IMAGE);
        let record = figures.record();
        assert_eq!((record.slots, record.batches), (3, 4));
        let wait = record.ave_slot_wait_s.unwrap() * 4.0 - first.ave_slot_wait_s.unwrap() * 3.0;
        assert!(wait >= 0.06 && wait <= waited, "{wait} of {waited}");
    });
}

#[test]
fn a_consumer_that_holds_its_maximum_of_batches_still_receives_another_one() {
    with_driver(&[], || {
        assert_eq!([0, 14, 15, 16, usize::MAX].map(slots_for), [16, 16, 17, 18, usize::MAX]);
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted { most_slots: slots_for(16), ..Wanted::default() }).unwrap();
        let kept: Vec<_> = work.send(0..18, IMAGE, 1).map(Result::unwrap).collect();
        assert_eq!(work.transfer.figures().record().slots, 18);
        for (number, batch) in (0..).zip(&kept) {
            assert_whole(batch, number, IMAGE);
        }
    });
}

#[test]
fn a_dropped_task_returns_its_slot() {
    with_driver(&[("FAKE_CUDA_DELAY_US", "5000")], || {
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted { most_slots: 1, ..Wanted::default() }).unwrap();
        let first = work.batch(0, IMAGE);
        drop(work.transfer.start(first));
        assert_whole(&work.send_one(1, IMAGE).unwrap(), 1, IMAGE);
        let figures = work.transfer.figures();
        until("both were copied", || figures.record().batches == 2);
    });
}

#[test]
fn a_full_device_works_with_fewer_slots_and_fails_only_batches_that_never_fit() {
    let memory = (5 * MIB).to_string();
    with_driver(&[("FAKE_CUDA_MEMORY", &memory)], || {
        let gpu = Gpu::open(0).unwrap();
        let mut work = Work::start(&gpu, &Wanted::default()).unwrap();
        let mut kept: Vec<_> = work.send(0..2, IMAGE, 1).map(Result::unwrap).collect();
        let next = work.batch(2, IMAGE);
        let mut third = work.transfer.start(next);
        std::thread::sleep(Duration::from_millis(20));
        assert!((&mut third).now_or_never().is_none(), "the device has memory for two slots only");
        kept.clear();
        assert_whole(&outcome(futures::executor::block_on(third)).unwrap(), 2, IMAGE);
        let fault = work.send_one(3, 4 * MIB).unwrap_err();
        assert_eq!(
            &*fault.message,
            "cannot copy the batch to `cuda:0`: `cuMemAlloc_v2` returned CUDA_ERROR_OUT_OF_MEMORY (out of memory); use \
             smaller batches, or leave more of the device's memory free"
        );
        assert_whole(&work.send_one(4, IMAGE).unwrap(), 4, IMAGE);
    });
}

#[test]
fn a_full_device_is_logged_once_and_memory_freed_by_other_programs_is_noticed() {
    let memory = (5 * MIB).to_string();
    with_driver(&[("FAKE_CUDA_MEMORY", &memory)], || {
        let warnings = Warnings::listen();
        let gpu = Gpu::open(0).unwrap();
        let others = OpenContext::of_first_device();
        let theirs = others.allocate(2 * MIB);
        let mut work = Work::start(&gpu, &Wanted::default()).unwrap();
        let kept = work.send_one(0, IMAGE).unwrap();
        let next = work.batch(1, IMAGE);
        let second = work.transfer.start(next);
        until("the warning is logged", || warnings.count() == 1);
        others.free(theirs);
        let second = outcome(futures::executor::block_on(second)).unwrap();
        let next = work.batch(2, IMAGE);
        let third = work.transfer.start(next);
        std::thread::sleep(Duration::from_millis(120));
        drop(kept);
        assert_whole(&outcome(futures::executor::block_on(third)).unwrap(), 2, IMAGE);
        assert_whole(&second, 1, IMAGE);
        assert_eq!(warnings.count(), 1);
    });
}
