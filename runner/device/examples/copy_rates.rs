//! Measures copy rates to a GPU, as JSON: from pinned and from ordinary memory with plain driver calls, and through the ring.
//!
//! `cargo run --release -p penstock-device --example copy_rates [-- MEGABYTES_PER_SIZE]`
#![expect(
    unsafe_code,
    reason = "the reference is a copy without the ring: a loop over the driver's functions"
)]

use std::env::args;
use std::ffi::c_void;
use std::io::{Write, stdout};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use futures::StreamExt;
use futures::executor::block_on_stream;
use futures::stream::iter;
use penstock_device::{CudaTransfer, Gpu, PinnedMemory, pinned_share, slots_for};
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::item::{Dtype, Item, Origin, Sample, Tensor, Value};
use penstock_engine::memory::Pool;
use penstock_engine::ops::{Collate, Usual};
use penstock_engine::ports::{Items, StopFlag, TaskOp, ThreadOpFactory};
use penstock_types::plan::CollatePlan;
use serde_json::{Value as Json, json};

type Error = Box<dyn std::error::Error>;

/// Driver objects for plain copies that run one after another.
struct Bare {
    stream: sys::CUstream,
    done: sys::CUevent,
    device: sys::CUdeviceptr,
    pinned: *mut c_void,
    len: usize,
}

const MEGABYTE: usize = 1_000_000;

/// Copy sizes in megabytes. A batch of 32 images of 3 x 224 x 224 float32 values has 19 MB.
const SIZES: [usize; 5] = [1, 4, 19, 64, 256];

/// Default number of megabytes copied for each size.
const MEGABYTES_PER_SIZE: usize = 8192;

/// Number of batches in progress at the same time.
const AT_A_TIME: usize = 3;

fn main() -> Result<(), Error> {
    let most = match args().nth(1) {
        Some(megabytes) => megabytes.parse()?,
        None => MEGABYTES_PER_SIZE,
    };
    let gpu = Gpu::open(0)?;
    let sizes: Result<Vec<Json>, Error> =
        SIZES.iter().map(|megabytes| rates(&gpu, *megabytes, most)).collect();
    let report = json!({ "device": gpu.name(), "uuid": gpu.uuid(), "sizes": sizes? });
    writeln!(stdout(), "{report:#}")?;
    Ok(())
}

/// Copy rates for batches of `megabytes`, in bytes per second. All three methods copy the same number of times and are measured
/// from the first call to the last byte.
fn rates(gpu: &Gpu, megabytes: usize, most: usize) -> Result<Json, Error> {
    let len = megabytes * MEGABYTE;
    let count = (most / megabytes).max(4);
    let bytes = (len * count) as f64;
    let ordinary = vec![7_u8; len];
    let bare = Bare::new(len)?;
    bare.copy(bare.pinned, 2)?;
    let pinned = bytes / timed(|| bare.copy(bare.pinned, count))?;
    let ordinary = bytes / timed(|| bare.copy(ordinary.as_ptr().cast(), count))?;
    drop(bare);

    let memory = Pool::new(PinnedMemory::new(gpu, pinned_share()));
    let transfer = CudaTransfer::start(gpu, &memory, slots_for(AT_A_TIME))?;
    let batch = batch(&memory, len)?;
    let send = |count: usize| {
        let sent = iter((0..count).map(|_| transfer.start(batch.clone()))).buffered(AT_A_TIME);
        let failed = block_on_stream(sent).find_map(|output| output.failed.into_iter().next());
        failed.map_or(Ok(()), |failed| Err(Error::from(failed.fault)))
    };
    send(AT_A_TIME)?;
    let ours = bytes / timed(|| send(count))?;
    let record = transfer.figures().record();
    Ok(json!({
        "megabytes": megabytes,
        "copies": count,
        "pinned_bytes_per_s": pinned,
        "ordinary_bytes_per_s": ordinary,
        "ours_bytes_per_s": ours,
        "ours_while_copying_bytes_per_s": record.bytes_per_s,
        "ours_of_pinned": ours / pinned,
        "pinned_of_ordinary": pinned / ordinary,
        "ours_staged_bytes": record.staged_bytes,
    }))
}

/// Duration of `work` in seconds.
fn timed(work: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
    let clock = MonotonicClock::start();
    work()?;
    Ok(Duration::from_nanos(clock.now().nanos()).as_secs_f64())
}

/// A collated batch with one array of `len` bytes in pinned memory.
fn batch(memory: &Pool<PinnedMemory>, len: usize) -> Result<Item, Error> {
    let mut sample = Sample::new("0", Origin::default());
    let image = Tensor { dtype: Dtype::Uint8, shape: vec![u32::try_from(len)?], data: vec![7; len].into() };
    sample.set("image", Value::Tensor(image));
    let stop = StopFlag::default();
    let mut collate = Collate::new(CollatePlan::default(), Usual::default(), Some(Arc::new(memory.clone())))
        .build(&stop)?;
    match collate.apply(Item::Batch(vec![sample]), &stop).items {
        Items::One(batch) => Ok(batch),
        Items::None | Items::Many(_) => Err("one sample makes one batch".into()),
    }
}

impl Bare {
    fn new(len: usize) -> Result<Self, Error> {
        let mut bare = Self { stream: null_mut(), done: null_mut(), device: 0, pinned: null_mut(), len };
        let mut context = null_mut();
        // SAFETY: each call writes a handle or an address; the context is the one that the open GPU holds.
        unsafe {
            check(sys::cuDevicePrimaryCtxRetain(&raw mut context, 0))?;
            check(sys::cuCtxPushCurrent_v2(context))?;
            check(sys::cuStreamCreate(&raw mut bare.stream, 1))?;
            check(sys::cuEventCreate(&raw mut bare.done, 0))?;
            check(sys::cuMemAlloc_v2(&raw mut bare.device, len))?;
            check(sys::cuMemHostAlloc(&raw mut bare.pinned, len, sys::CU_MEMHOSTALLOC_PORTABLE))?;
        }
        Ok(bare)
    }

    /// Starts `count` copies from `from`, and waits for the last one.
    fn copy(&self, from: *const c_void, count: usize) -> Result<(), Error> {
        // SAFETY: both sides have `self.len` bytes and outlive the last copy, which is waited for.
        unsafe {
            for _ in 0..count {
                check(sys::cuMemcpyHtoDAsync_v2(self.device, from, self.len, self.stream))?;
            }
            check(sys::cuEventRecord(self.done, self.stream))?;
            while sys::cuEventQuery(self.done) == CUresult::CUDA_ERROR_NOT_READY {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: `self` owns all of these, and they are no longer in use. An error here only affects the end of a measurement.
        let codes = unsafe {
            [
                sys::cuMemFreeHost(self.pinned),
                sys::cuMemFree_v2(self.device),
                sys::cuEventDestroy_v2(self.done),
                sys::cuStreamDestroy_v2(self.stream),
                sys::cuCtxPopCurrent_v2(&raw mut popped),
                sys::cuDevicePrimaryCtxRelease_v2(0),
            ]
        };
        debug_assert!(codes.iter().all(|code| *code == CUresult::CUDA_SUCCESS), "{codes:?}");
    }
}

fn check(code: CUresult) -> Result<(), Error> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("the driver returned {code:?}").into()) }
}
