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

/// Pinned memory of this process, which devices can read directly.
pub(crate) struct HostRegion {
    context: Arc<CudaContext>,
    begin: *mut u8,
    len: usize,
}

/// Flag for memory that is pinned for every context of the process. Write-combined memory would be very slow for a stage to read.
const PORTABLE: u32 = 1;

// SAFETY: the region is the only owner of its memory, which any thread may free: the driver gave it out as portable.
unsafe impl Send for HostRegion {}
// SAFETY: a shared reference only gives out `&[u8]`, and writing needs a unique one.
unsafe impl Sync for HostRegion {}

impl DeviceRegion {
    /// Allocates `len` bytes, at least one.
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
        // SAFETY: `self` owns the memory and drops it once; `cuMemFree` waits for operations of the device on it.
        let result = self.context.call(|all| &all.free, |free| unsafe { free(self.begin) });
        self.context.log_release("memory of the device", result);
    }
}

impl HostRegion {
    /// Allocates `len` zeroed bytes, at least one.
    pub(crate) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        let mut begin: *mut c_void = null_mut();
        // SAFETY: `cuMemHostAlloc` writes an address to `begin`; `Drop` gives it back, once.
        context.call(|all| &all.alloc_host, |alloc| unsafe { alloc(&raw mut begin, len, PORTABLE) })?;
        let begin = begin.cast::<u8>();
        // SAFETY: the driver has just returned `len` bytes at `begin`, and there is no other pointer to them.
        unsafe { begin.write_bytes(0, len) };
        Ok(Self { context: context.clone(), begin, len })
    }
}

impl AsRef<[u8]> for HostRegion {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `new` got `len` bytes at `begin` and wrote all of them; only `Drop` frees them, so they outlive `&self`.
        unsafe { &*slice_from_raw_parts(self.begin, self.len) }
    }
}

impl AsMut<[u8]> for HostRegion {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_ref`, and `&mut self` is the only reference to them.
        unsafe { &mut *slice_from_raw_parts_mut(self.begin, self.len) }
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        let begin = self.begin.cast::<c_void>();
        // SAFETY: `self` owns the memory and drops it once; copies that read it hold the region as `Bytes`, so none is in progress.
        let result = self.context.call(|all| &all.free_host, |free| unsafe { free(begin) });
        self.context.log_release("pinned memory", result);
    }
}

/// Copies to a device that were started on one stream, and the source bytes of these copies. The bytes are dropped once the
/// copies are known to be done, and leaked if that never becomes known, because the device may still be reading them.
#[derive(Default)]
pub(crate) struct Copies(Vec<Bytes>);

impl Copies {
    /// Starts a copy. From pinned memory it runs asynchronously; from other memory, the driver waits for the operations in the
    /// stream and reads the bytes before it returns.
    ///
    /// # Panics
    /// If the bytes do not fit into the region.
    pub(crate) fn begin(
        &mut self,
        stream: &CudaStream,
        bytes: Bytes,
        to: &DeviceRegion,
        at: usize,
    ) -> Result<(), DriverError> {
        let len = bytes.len();
        assert!(at <= to.len() && len <= to.len() - at, "the region has {} bytes", to.len());
        if len == 0 {
            return Ok(());
        }
        let (from, to) = (bytes.as_ptr().cast::<c_void>(), to.address() + at as u64);
        // Kept even if the driver reports an error: the copy may have begun.
        self.0.push(bytes);
        stream.context().call(
            |all| &all.copy_to_device,
            // SAFETY: `to` has room for `len` bytes, as asserted above, and `self` keeps `from` alive until the copy is done.
            |copy| unsafe { copy(to, from, len, stream.handle()) },
        )
    }

    /// True if the copies are done. `behind` must have been recorded on the same stream after the copies.
    pub(crate) fn are_done(&mut self, behind: &CudaEvent) -> Result<bool, DriverError> {
        let are_done = behind.is_complete()?;
        if are_done {
            self.0.clear();
        }
        Ok(are_done)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        std::mem::take(&mut self.0).into_iter().for_each(std::mem::forget);
    }
}
