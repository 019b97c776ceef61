use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream, CUuuid};

use crate::error::GpuError;

/// Result code of every driver function. A number instead of an enum, because newer drivers return codes that this version does
/// not know.
pub(super) type ResultCode = c_uint;

/// Driver function that returns a text for a result code.
pub(super) type Describe = unsafe extern "C" fn(ResultCode, *mut *const c_char) -> ResultCode;

/// A function of the driver, with its name for messages.
pub(super) struct Function<F> {
    pub(super) name: &'static str,
    pub(super) call: F,
}

/// Driver functions in use, each with its name and type in the driver's header. All functions are looked up at once when the
/// driver is loaded, and called by address. The functions of cudarc are not used: they are looked up at their first call, which
/// panics if a function is missing.
macro_rules! symbols {
    ($($field:ident: $name:literal, fn($($argument:ty),*);)+) => {
        pub(super) struct Symbols {
            $(pub(super) $field: Function<unsafe extern "C" fn($($argument),*) -> ResultCode>,)+
        }

        /// Loads the driver's library and looks up all functions.
        pub(super) fn load() -> Result<Symbols, GpuError> {
            // SAFETY: loading a driver runs its initialisers, as in every process that uses it.
            if !unsafe { sys::is_culib_present() } {
                return Err(GpuError::NoDriver);
            }
            Ok(Symbols { $($field: find($name)?,)+ })
        }
    };
}

symbols! {
    init: "cuInit", fn(c_uint);
    error_name: "cuGetErrorName", fn(ResultCode, *mut *const c_char);
    error_string: "cuGetErrorString", fn(ResultCode, *mut *const c_char);
    device_count: "cuDeviceGetCount", fn(*mut c_int);
    device: "cuDeviceGet", fn(*mut CUdevice, c_int);
    device_name: "cuDeviceGetName", fn(*mut c_char, c_int, CUdevice);
    device_uuid: "cuDeviceGetUuid_v2", fn(*mut CUuuid, CUdevice);
    retain: "cuDevicePrimaryCtxRetain", fn(*mut CUcontext, CUdevice);
    release: "cuDevicePrimaryCtxRelease_v2", fn(CUdevice);
    push: "cuCtxPushCurrent_v2", fn(CUcontext);
    pop: "cuCtxPopCurrent_v2", fn(*mut CUcontext);
    alloc: "cuMemAlloc_v2", fn(*mut CUdeviceptr, usize);
    free: "cuMemFree_v2", fn(CUdeviceptr);
    alloc_host: "cuMemHostAlloc", fn(*mut *mut c_void, usize, c_uint);
    free_host: "cuMemFreeHost", fn(*mut c_void);
    copy_to_device: "cuMemcpyHtoDAsync_v2", fn(CUdeviceptr, *const c_void, usize, CUstream);
    stream_create: "cuStreamCreate", fn(*mut CUstream, c_uint);
    stream_destroy: "cuStreamDestroy_v2", fn(CUstream);
    stream_query: "cuStreamQuery", fn(CUstream);
    stream_wait: "cuStreamWaitEvent", fn(CUstream, CUevent, c_uint);
    event_create: "cuEventCreate", fn(*mut CUevent, c_uint);
    event_destroy: "cuEventDestroy_v2", fn(CUevent);
    event_record: "cuEventRecord", fn(CUevent, CUstream);
    event_query: "cuEventQuery", fn(CUevent);
    event_elapsed: "cuEventElapsedTime", fn(*mut f32, CUevent, CUevent);
}

/// Looks up a function of the loaded library. `F` is the function's type in the driver's header.
fn find<F: Copy>(name: &'static str) -> Result<Function<F>, GpuError> {
    // SAFETY: the library stays loaded, and each name has the type that the driver's header declares.
    let found = unsafe { sys::culib().get::<F>(name.as_bytes()).map(|symbol| *symbol) };
    found.map(|call| Function { name, call }).map_err(|_| GpuError::MissingSymbol { name })
}
