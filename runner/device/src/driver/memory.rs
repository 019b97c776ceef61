use std::ffi::c_void;
use std::ptr::{null_mut, slice_from_raw_parts, slice_from_raw_parts_mut};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::{Context, DriverError};

/// Memory of a device.
pub(crate) struct DeviceRegion {
    context: Arc<Context>,
    begin: CUdeviceptr,
    len: usize,
}

/// Memory of this process that stays where it is, so that devices read it by themselves.
pub(crate) struct HostRegion {
    context: Arc<Context>,
    begin: *mut u8,
    len: usize,
}

/// Memory that every context of the process takes for pinned. Not write-combined: a stage that read it would crawl.
const PORTABLE: u32 = 1;

// SAFETY: it owns its memory.
unsafe impl Send for HostRegion {}
// SAFETY: as above; a shared reference reads only.
unsafe impl Sync for HostRegion {}

impl DeviceRegion {
    /// Takes `len` bytes, at least one.
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DriverError> {
        let mut begin: CUdeviceptr = 0;
        // SAFETY: it writes an address; `Drop` gives it back, once.
        context.call(|all| &all.alloc, |alloc| unsafe { alloc(&raw mut begin, len) })?;
        Ok(Self { context: context.clone(), begin, len })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
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
        // SAFETY: it is ours and used no more: the driver waits for what the device still does with it.
        let result = self.context.call(|all| &all.free, |free| unsafe { free(self.begin) });
        self.context.give_back("memory of the device", result);
    }
}

impl HostRegion {
    /// Takes `len` bytes, at least one; they are 0.
    pub(crate) fn new(context: &Arc<Context>, len: usize) -> Result<Self, DriverError> {
        let mut begin: *mut c_void = null_mut();
        // SAFETY: it writes an address; `Drop` gives it back, once.
        context.call(|all| &all.alloc_host, |alloc| unsafe { alloc(&raw mut begin, len, PORTABLE) })?;
        let begin = begin.cast::<u8>();
        // SAFETY: so many bytes are there, and nobody else knows of them.
        unsafe { begin.write_bytes(0, len) };
        Ok(Self { context: context.clone(), begin, len })
    }
}

impl AsRef<[u8]> for HostRegion {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: so many bytes are there, all of them written, and it owns them.
        unsafe { &*slice_from_raw_parts(self.begin, self.len) }
    }
}

impl AsMut<[u8]> for HostRegion {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { &mut *slice_from_raw_parts_mut(self.begin, self.len) }
    }
}

impl Drop for HostRegion {
    fn drop(&mut self) {
        let begin = self.begin.cast::<c_void>();
        // SAFETY: it is ours and used no more.
        let result = self.context.call(|all| &all.free_host, |free| unsafe { free(begin) });
        self.context.give_back("pinned memory", result);
    }
}
