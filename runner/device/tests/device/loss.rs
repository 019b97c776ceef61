//! Tests in which functions of the driver fail.

use std::env;
use std::error::Error;

use penstock_device::{ConsumerStream, Gpu, GpuError};
use penstock_types::run::FailureClass;

use crate::fake::{is_child, with_driver};
use crate::work::{Wanted, Work, assert_whole, buffer};

const IMAGE: usize = 20_000;

/// Setting of the fake driver that makes one call fail.
const FAIL: &str = "FAKE_CUDA_FAIL";

/// Sends batches through the transfer and returns the messages of those that fail; all others must be complete.
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

/// Messages of an error and of its cause.
fn messages(error: &GpuError) -> Vec<String> {
    let mut messages = vec![error.to_string()];
    messages.extend(error.source().map(ToString::to_string));
    messages
}

/// Makes the driver functions that are needed to open a device or to start a transfer fail, one at a time.
#[test]
fn a_failed_call_at_the_start_is_reported() {
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
                messages(&error),
                [
                    "the CUDA driver of this machine cannot be used".to_owned(),
                    format!("`{call}` returned CUDA_ERROR_INVALID_VALUE (invalid argument)")
                ]
            );
        });
        if is_child() {
            return;
        }
    }
}

/// Makes the driver functions that are needed to copy a batch fail, one at a time: this batch fails, and all later batches
/// arrive.
#[test]
fn a_failed_call_fails_one_batch() {
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
                "cannot copy the batch to `cuda:0`: `{name}` returned CUDA_ERROR_INVALID_VALUE (invalid argument)"
            );
            assert_eq!(faults(&mut work), [expected]);
        });
        if is_child() {
            return;
        }
    }
}

/// Makes driver functions fail that are not essential: the allocation of pinned memory, and all releases.
#[test]
fn a_failed_release_fails_no_batch() {
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

/// Makes driver functions fail that are called in many places: a failure is either reported with the function's name, or has no
/// effect.
#[test]
fn a_failed_call_anywhere_is_reported_or_has_no_effect() {
    for call in ["cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuStreamWaitEvent", "cuEventRecord"] {
        for time in 1..16 {
            with_driver(&[(FAIL, &format!("{call}:{time}"))], || {
                let call = env::var(FAIL).unwrap();
                let name = call.split(':').next().unwrap();
                let Ok(gpu) = Gpu::open(0) else { return };
                match Work::start(&gpu, &Wanted { most_slots: 2, ..Wanted::default() }) {
                    Err(error) => assert!(messages(&error).concat().contains(name), "{error:?}"),
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

/// The fake driver returns the error of a lost device for a given call and for every later call.
#[test]
fn a_lost_device_fails_all_remaining_batches_with_one_reason() {
    for lost in
        ["copying:9", "cuMemcpyHtoDAsync_v2:9", "cuEventQuery:9", "cuEventRecord:9", "cuMemAlloc_v2:2"]
    {
        with_driver(&[("FAKE_CUDA_LOST", lost), ("FAKE_CUDA_DELAY_US", "200")], || {
            let mut work = Work::start(&Gpu::open(0).unwrap(), &Wanted::default()).unwrap();
            let mut arrived = 0;
            let mut faults = Vec::new();
            for (number, batch) in (0..).zip(work.send(0..20, IMAGE, 3)) {
                match batch {
                    // After the loss, the content of batches that arrived earlier cannot be read.
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
            assert!(message.starts_with("cannot copy the batch to `cuda:0`: `cu"), "{message}");
            let end = "returned CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered); the device is lost to \
                       this process, so start it again";
            assert!(message.ends_with(end), "{message}");
            assert!(faults.iter().all(|fault| fault == &faults[0]), "{faults:?}");
        });
        if is_child() {
            return;
        }
    }
}
