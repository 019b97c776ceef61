//! Every call of the driver may fail.

use std::env;
use std::error::Error;

use penstock_device::{ConsumerStream, Gpu, GpuError};
use penstock_types::run::FailureClass;

use crate::fake::{is_child, with_driver};
use crate::work::{Wanted, Work, assert_whole, buffer};

const IMAGE: usize = 20_000;

/// The setting of the fake driver that lets one call fail.
const FAIL: &str = "FAKE_CUDA_FAIL";

/// Sends batches through and gives what is wrong with those that fail; all others are whole.
fn faults(work: &mut Work) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, batch) in (0..).zip(work.send(0..12, IMAGE, 2)) {
        match batch {
            Ok(batch) => {
                assert_whole(&batch, number, IMAGE);
                let prepared = buffer(&batch, 0).prepare(ConsumerStream::DEFAULT);
                faults.extend(prepared.err().map(|error| error.to_string()));
            }
            Err(fault) => {
                assert_eq!(fault.class, FailureClass::Bug);
                faults.push(fault.message.to_string());
            }
        }
    }
    faults
}

/// What an error says, and what its cause says.
fn told(error: &GpuError) -> Vec<String> {
    let mut told = vec![error.to_string()];
    told.extend(error.source().map(ToString::to_string));
    told
}

/// Calls that stand in the way of opening a device, or of starting a transfer to it.
#[test]
fn a_call_that_fails_at_the_start_is_told() {
    let calls = [
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetUuid_v2",
        "cuDevicePrimaryCtxRetain",
        "cuStreamCreate",
    ];
    for call in calls {
        with_driver(&[(FAIL, &format!("{call}:1"))], || {
            let call = env::var(FAIL).unwrap().replace(":1", "");
            let started = Gpu::open(0).and_then(|gpu| Work::start(&gpu, &Wanted::default()));
            let Err(error) = started else { panic!("`{call}` did not fail") };
            assert!(matches!(error, GpuError::Driver(_)), "{error:?}");
            assert_eq!(
                told(&error),
                [
                    "the CUDA driver here cannot be used".to_owned(),
                    format!("`{call}` answered CUDA_ERROR_INVALID_VALUE (invalid argument)")
                ]
            );
        });
        if is_child() {
            return;
        }
    }
}

/// Calls without which a batch does not arrive: it fails, and those after it arrive.
#[test]
fn a_call_that_fails_costs_one_batch() {
    let calls = [
        "cuMemAlloc_v2:1",
        "cuMemAlloc_v2:2",
        "cuMemcpyHtoDAsync_v2:1",
        "cuMemcpyHtoDAsync_v2:6",
        "cuEventCreate:1",
        "cuEventCreate:2",
        "cuEventRecord:1",
        "cuEventRecord:2",
        "cuEventQuery:1",
        "cuEventElapsedTime:3",
    ];
    for call in calls {
        with_driver(&[(FAIL, call), ("FAKE_CUDA_DELAY_US", "200")], || {
            let call = env::var(FAIL).unwrap();
            let name = call.split(':').next().unwrap();
            let mut work = Work::start(&Gpu::open(0).unwrap(), &Wanted::default()).unwrap();
            let expected = format!(
                "the batch cannot be copied to `cuda:0`: `{name}` answered CUDA_ERROR_INVALID_VALUE (invalid argument)"
            );
            assert_eq!(faults(&mut work), [expected]);
        });
        if is_child() {
            return;
        }
    }
}

/// Calls that can be done without: pinned memory, and all that gives back.
#[test]
fn a_call_that_fails_on_the_way_back_costs_nothing() {
    let calls = [
        "cuMemHostAlloc:1",
        "cuMemHostAlloc:2",
        "cuMemFree_v2:1",
        "cuMemFreeHost:1",
        "cuStreamDestroy_v2:1",
        "cuEventDestroy_v2:1",
        "cuDevicePrimaryCtxRelease_v2:1",
    ];
    for call in calls {
        with_driver(&[(FAIL, call)], || {
            let mut work = Work::start(&Gpu::open(0).unwrap(), &Wanted::default()).unwrap();
            assert_eq!(faults(&mut work), [""; 0]);
        });
        if is_child() {
            return;
        }
    }
}

/// Calls that are made from many places: whatever they hit, it is told by their name, or nothing of it is seen.
#[test]
fn a_call_that_fails_anywhere_is_told_or_costs_nothing() {
    for call in ["cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamWaitEvent", "cuEventRecord"] {
        for time in 1..16 {
            with_driver(&[(FAIL, &format!("{call}:{time}"))], || {
                let call = env::var(FAIL).unwrap();
                let name = call.split(':').next().unwrap();
                let Ok(gpu) = Gpu::open(0) else { return };
                match Work::start(&gpu, &Wanted { most_slots: 2, ..Wanted::default() }) {
                    Err(error) => assert!(told(&error).concat().contains(name), "{error:?}"),
                    Ok(mut work) => {
                        let faults = faults(&mut work);
                        assert!(
                            faults.len() <= 1 && faults.iter().all(|fault| fault.contains(name)),
                            "{faults:?}"
                        );
                    }
                }
            });
            if is_child() {
                return;
            }
        }
    }
}

/// From some copy on the device answers nothing but its loss.
#[test]
fn a_lost_device_fails_all_that_is_left_with_one_reason() {
    for lost in
        ["copying:9", "cuMemcpyHtoDAsync_v2:9", "cuEventQuery:9", "cuEventRecord:9", "cuMemAlloc_v2:2"]
    {
        with_driver(&[("FAKE_CUDA_LOST", lost), ("FAKE_CUDA_DELAY_US", "200")], || {
            let mut work = Work::start(&Gpu::open(0).unwrap(), &Wanted::default()).unwrap();
            let mut arrived = 0;
            let mut faults = Vec::new();
            for (number, batch) in (0..).zip(work.send(0..20, IMAGE, 3)) {
                match batch {
                    // What has arrived before cannot be read any more.
                    Ok(batch) => {
                        assert!(faults.is_empty(), "batch {number} arrived after the loss");
                        assert_eq!(batch.origins[0].index, number * 2);
                        arrived += 1;
                    }
                    Err(fault) => faults.push(fault),
                }
            }
            assert_eq!(arrived + faults.len(), 20);
            let message = &faults[0].message;
            assert!(message.starts_with("the batch cannot be copied to `cuda:0`: `cu"), "{message}");
            let end = "answered CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered); the device is lost to \
                       this process, so start it again";
            assert!(message.ends_with(end), "{message}");
            assert!(faults.iter().all(|fault| fault == &faults[0]), "{faults:?}");
        });
        if is_child() {
            return;
        }
    }
}
