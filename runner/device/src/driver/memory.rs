use std::ffi::c_void;
use std::ptr::{null_mut, slice_from_raw_parts, slice_from_raw_parts_mut};
use std::sync::Arc;

use bytes::Bytes;
use cudarc::driver::sys::CUdeviceptr;

use super::{CudaContext, CudaEvent, CudaStream};
use crate::error::DriverError;

pub(crate) struct DeviceRegion {
    context: Arc<CudaContext>,
    begin: CUdeviceptr,
    len: usize,
}

/// Memory of this process that stays where it is, so that devices read it by themselves.
pub(crate) struct HostRegion {
    context: Arc<CudaContext>,
    begin: *mut u8,
    len: usize,
}

/// Memory that every context of the process takes for pinned. Not write-combined: a stage that read it would crawl.
const PORTABLE: u32 = 1;

// SAFETY: the region is the only owner of its memory, which any thread may free: the driver gave it out as portable.
unsafe impl Send for HostRegion {}
// SAFETY: a shared reference gives out `&[u8]` alone, and writing takes a unique one.
unsafe impl Sync for HostRegion {}

impl DeviceRegion {
    /// Takes `len` bytes, at least one.
    pub(crate) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        let mut begin: CUdeviceptr = 0;
        // SAFETY: `cuMemAlloc` writes an address to `begin`; `Drop` gives it back, once.
        context.call(|all| &all.alloc, |alloc| unsafe { alloc(&raw mut begin, len) })?;
        Ok(Self { context: context.clone(), begin, len })
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub(crate) fn address(&self) -> u64 {
        self.begin
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for DeviceRegion {
    fn drop(&mut self) {
        // SAFETY: `self` owns it and drops it once; `cuMemFree` waits for what the device still does with it.
        let result = self.context.call(|all| &all.free, |free| unsafe { free(self.begin) });
        self.context.give_back("memory of the device", result);
    }
}

impl HostRegion {
    /// Takes `len` bytes, at least one; they are 0.
    pub(crate) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        let mut begin: *mut c_void = null_mut();
        // SAFETY: `cuMemHostAlloc` writes an address to `begin`; `Drop` gives it back, once.
        context.call(|all| &all.alloc_host, |alloc| unsafe { alloc(&raw mut begin, len, PORTABLE) })?;
        let begin = begin.cast::<u8>();
        // SAFETY: the driver has just given out `len` bytes from `begin` on, and there is no other pointer to them.
        unsafe { begin.write_bytes(0, len) };
        Ok(Self { context: context.clone(), begin, len })
    }
}

impl AsRef<[u8]> for HostRegion {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `new` got `len` bytes from `begin` on and wrote all of them; they are freed by `Drop` alone, so they outlive `&self`.
        unsafe { &*slice_from_raw_parts(self.begin, self.len) }
    }
}

impl AsMut<[u8]> for HostRegion {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_ref`, and `&mut self` says that there is no other reference to them.
        unsafe { &mut *slice_from_raw_parts_mut(self.begin, self.len) }
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        let begin = self.begin.cast::<c_void>();
        // SAFETY: `self` owns it and drops it once; copies that read it hold the region as `Bytes`, so none is under way.
        let result = self.context.call(|all| &all.free_host, |free| unsafe { free(begin) });
        self.context.give_back("pinned memory", result);
    }
}

/// Copies to a device that were begun on one stream, and what they read. That is let go once they are known to be done, and
/// never if that does not come to be known: the device reads on its own time.
#[derive(Default)]
pub(crate) struct Copies {
    reads: Vec<Bytes>,
}

impl Copies {
    /// Begins a copy. From pinned memory it goes on by itself; from any other the driver reads it at once, and waits for all
    /// that is in the stream.
    ///
    /// # Panics
    /// When the bytes have no room there.
    pub(crate) fn begin(
        &mut self,
        stream: &CudaStream,
        bytes: Bytes,
        to: &DeviceRegion,
        at: usize,
    ) -> Result<(), DriverError> {
        let len = bytes.len();
        assert!(at <= to.len() && len <= to.len() - at, "there are {} bytes of room", to.len());
        if len == 0 {
            return Ok(());
        }
        let (from, to) = (bytes.as_ptr().cast::<c_void>(), to.address() + at as u64);
        // Kept whatever the driver says: it may have begun.
        self.reads.push(bytes);
        stream.context().call(
            |all| &all.copy_to_device,
            // SAFETY: `to` has room for `len` bytes, as asserted above, and `from` stays: `self.reads` holds it until the copy is done.
            |copy| unsafe { copy(to, from, len, stream.handle()) },
        )
    }

    /// Whether they are done; `behind` was recorded behind them on their stream.
    pub(crate) fn are_done(&mut self, behind: &CudaEvent) -> Result<bool, DriverError> {
        let are_done = behind.is_complete()?;
        if are_done {
            self.reads.clear();
        }
        Ok(are_done)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        std::mem::take(&mut self.reads).into_iter().for_each(std::mem::forget);
    }
}
