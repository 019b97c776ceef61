use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream, CUuuid};

use crate::gpu::GpuError;

/// What every function answers. A number and not an enum: newer drivers answer what no enum of today knows.
pub(super) type Code = c_uint;

/// Writes a text about a code.
pub(super) type Tell = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

/// A function of the driver, and how it is called in messages.
pub(super) struct Function<F> {
    pub(super) name: &'static str,
    pub(super) call: F,
}

/// All functions of the driver that are used. They are looked up at once, and called by their addresses: those of cudarc are
/// looked up one by one when they are first called, and panic when there is none.
pub(super) struct Symbols {
    pub(super) init: Function<unsafe extern "C" fn(c_uint) -> Code>,
    pub(super) error_name: Function<Tell>,
    pub(super) error_string: Function<Tell>,
    pub(super) device_count: Function<unsafe extern "C" fn(*mut c_int) -> Code>,
    pub(super) device: Function<unsafe extern "C" fn(*mut CUdevice, c_int) -> Code>,
    pub(super) device_name: Function<unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> Code>,
    pub(super) device_uuid: Function<unsafe extern "C" fn(*mut CUuuid, CUdevice) -> Code>,
    pub(super) retain: Function<unsafe extern "C" fn(*mut CUcontext, CUdevice) -> Code>,
    pub(super) release: Function<unsafe extern "C" fn(CUdevice) -> Code>,
    pub(super) push: Function<unsafe extern "C" fn(CUcontext) -> Code>,
    pub(super) pop: Function<unsafe extern "C" fn(*mut CUcontext) -> Code>,
    pub(super) alloc: Function<unsafe extern "C" fn(*mut CUdeviceptr, usize) -> Code>,
    pub(super) free: Function<unsafe extern "C" fn(CUdeviceptr) -> Code>,
    pub(super) alloc_host: Function<unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> Code>,
    pub(super) free_host: Function<unsafe extern "C" fn(*mut c_void) -> Code>,
    pub(super) copy_to_device:
        Function<unsafe extern "C" fn(CUdeviceptr, *const c_void, usize, CUstream) -> Code>,
    pub(super) stream_create: Function<unsafe extern "C" fn(*mut CUstream, c_uint) -> Code>,
    pub(super) stream_destroy: Function<unsafe extern "C" fn(CUstream) -> Code>,
    pub(super) stream_query: Function<unsafe extern "C" fn(CUstream) -> Code>,
    pub(super) stream_wait: Function<unsafe extern "C" fn(CUstream, CUevent, c_uint) -> Code>,
    pub(super) event_create: Function<unsafe extern "C" fn(*mut CUevent, c_uint) -> Code>,
    pub(super) event_destroy: Function<unsafe extern "C" fn(CUevent) -> Code>,
    pub(super) event_record: Function<unsafe extern "C" fn(CUevent, CUstream) -> Code>,
    pub(super) event_query: Function<unsafe extern "C" fn(CUevent) -> Code>,
    pub(super) event_elapsed: Function<unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> Code>,
}

/// Loads the driver's library and finds all functions in it.
pub(super) fn load() -> Result<Symbols, GpuError> {
    // SAFETY: loading a driver runs its initialisers, as in every process that uses it.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    Ok(Symbols {
        init: find("cuInit")?,
        error_name: find("cuGetErrorName")?,
        error_string: find("cuGetErrorString")?,
        device_count: find("cuDeviceGetCount")?,
        device: find("cuDeviceGet")?,
        device_name: find("cuDeviceGetName")?,
        device_uuid: find("cuDeviceGetUuid_v2")?,
        retain: find("cuDevicePrimaryCtxRetain")?,
        release: find("cuDevicePrimaryCtxRelease_v2")?,
        push: find("cuCtxPushCurrent_v2")?,
        pop: find("cuCtxPopCurrent_v2")?,
        alloc: find("cuMemAlloc_v2")?,
        free: find("cuMemFree_v2")?,
        alloc_host: find("cuMemHostAlloc")?,
        free_host: find("cuMemFreeHost")?,
        copy_to_device: find("cuMemcpyHtoDAsync_v2")?,
        stream_create: find("cuStreamCreate")?,
        stream_destroy: find("cuStreamDestroy_v2")?,
        stream_query: find("cuStreamQuery")?,
        stream_wait: find("cuStreamWaitEvent")?,
        event_create: find("cuEventCreate")?,
        event_destroy: find("cuEventDestroy_v2")?,
        event_record: find("cuEventRecord")?,
        event_query: find("cuEventQuery")?,
        event_elapsed: find("cuEventElapsedTime")?,
    })
}

/// A function of the library, which is there. `F` is its type in the driver's header.
fn find<F: Copy>(name: &'static str) -> Result<Function<F>, GpuError> {
    // SAFETY: the library is loaded, stays so, and each name has the type that the driver's header gives it.
    let found = unsafe { sys::culib().get::<F>(name.as_bytes()).map(|symbol| *symbol) };
    found.map(|call| Function { name, call }).map_err(|_| GpuError::MissingSymbol { name })
}
