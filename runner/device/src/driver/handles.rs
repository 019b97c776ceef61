use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{CUcontext, CUdevice, CUevent, CUstream, CUuuid};

use super::symbols::{Function, ResultCode, Symbols};
use super::{Driver, NOT_READY};
use crate::error::DriverError;

/// A device's primary context, which all libraries of this process share, including PyTorch.
pub(crate) struct CudaContext {
    driver: &'static Driver,
    device: CUdevice,
    context: CUcontext,
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
}

/// A stream created by this crate, whose operations run independently of other streams.
pub(crate) struct CudaStream {
    context: Arc<CudaContext>,
    stream: CUstream,
}

pub(crate) struct CudaEvent {
    context: Arc<CudaContext>,
    event: CUevent,
}

/// Guard that makes the context current on this thread. Dropping the guard restores the previous context, on which a framework
/// may rely.
pub(super) struct Entered<'a>(&'a CudaContext);

const STREAM_NON_BLOCKING: u32 = 1;
const EVENT_DEFAULT: u32 = 0;
const EVENT_DISABLE_TIMING: u32 = 2;

// SAFETY: relies on the CUDA driver, whose contexts any thread may enter and leave.
unsafe impl Send for CudaContext {}
// SAFETY: relies on the driver's own locks, as its calls on one context from several threads at a time are allowed.
unsafe impl Sync for CudaContext {}
// SAFETY: relies on the driver, whose streams belong to a context and to no thread.
unsafe impl Send for CudaStream {}
// SAFETY: relies on the driver, whose events belong to a context and to no thread.
unsafe impl Send for CudaEvent {}
// SAFETY: a shared reference only passes the handle to the driver, which locks; nothing on this side changes.
unsafe impl Sync for CudaEvent {}

impl CudaContext {
    /// Opens the existing device with this number.
    pub(crate) fn open(driver: &'static Driver, number: u32) -> Result<Arc<Self>, DriverError> {
        let mut device: CUdevice = 0;
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: `cuDeviceGet` writes one number to `device`, which outlives the call.
        driver.call(|all| &all.device, |get| unsafe { get(&raw mut device, ordinal) })?;
        let name = name(driver, device)?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `cuDeviceGetUuid` writes 16 bytes, which `uuid` has.
        driver.call(|all| &all.device_uuid, |get| unsafe { get(&raw mut uuid, device) })?;
        let mut context: CUcontext = null_mut();
        // SAFETY: `cuDevicePrimaryCtxRetain` writes a handle to `context`; `Drop` gives it back, once.
        driver.call(|all| &all.retain, |retain| unsafe { retain(&raw mut context, device) })?;
        let uuid = uuid.bytes.map(|byte| byte.to_ne_bytes()[0]);
        Ok(Arc::new(Self { driver, device, context, number, name, uuid }))
    }

    pub(super) fn call<F: Copy>(
        &self,
        function: impl Fn(&Symbols) -> &Function<F>,
        call: impl FnOnce(F) -> ResultCode,
    ) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        self.driver.call(function, call)
    }

    /// Calls a driver function in this context that reports whether operations are complete.
    fn query<F: Copy>(
        &self,
        function: impl Fn(&Symbols) -> &Function<F>,
        call: impl FnOnce(F) -> ResultCode,
    ) -> Result<bool, DriverError> {
        let function = function(&self.driver.0);
        let _entered = self.enter()?;
        match call(function.call) {
            NOT_READY => Ok(false),
            code => self.driver.check(function, code).map(|()| true),
        }
    }

    /// Logs the failure of a release, which the caller cannot handle. No memory leaks if the device is lost or the process is
    /// exiting: the driver has then released everything already.
    pub(super) fn log_release(&self, what: &str, result: Result<(), DriverError>) {
        if let Err(error) = result {
            tracing::debug!(device = self.number, %error, "cannot release {what}");
        }
    }

    fn enter(&self) -> Result<Entered<'_>, DriverError> {
        // SAFETY: the context was retained by `open` and is released by `Drop` of `self`, which is borrowed.
        self.driver.call(|all| &all.push, |push| unsafe { push(self.context) })?;
        Ok(Entered(self))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped: CUcontext = null_mut();
        // SAFETY: `enter` pushed the context on this thread: guards are local variables of `call`, dropped in reverse order.
        let result = self.0.driver.call(|all| &all.pop, |pop| unsafe { pop(&raw mut popped) });
        self.0.log_release("a context", result);
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        // SAFETY: the context was retained once, and every object made in it keeps it alive, so none is left.
        let result = self.driver.call(|all| &all.release, |release| unsafe { release(self.device) });
        self.log_release("a context", result);
    }
}

impl fmt::Debug for CudaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaContext")
            .field("number", &self.number)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl CudaStream {
    /// Creates a stream that does not synchronise implicitly with the default stream.
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let mut stream: CUstream = null_mut();
        context.call(
            |all| &all.stream_create,
            // SAFETY: `cuStreamCreate` writes a handle to `stream`; `Drop` gives it back, once.
            |create| unsafe { create(&raw mut stream, STREAM_NON_BLOCKING) },
        )?;
        Ok(Self { context: context.clone(), stream })
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Makes all later operations of the stream wait for the event.
    pub(crate) fn wait_for(&self, event: &CudaEvent) -> Result<(), DriverError> {
        event.make_wait(self.stream)
    }

    /// Records the event after all operations in the stream.
    pub(crate) fn record(&self, event: &CudaEvent) -> Result<(), DriverError> {
        event.record_on(self.stream)
    }

    /// Fails if the driver accepts no more work for the stream. After the loss of a device, every call returns the reason of the
    /// loss.
    pub(crate) fn check(&self) -> Result<(), DriverError> {
        // SAFETY: `self` owns the stream until its drop.
        self.context.query(|all| &all.stream_query, |query| unsafe { query(self.stream) }).map(|_| ())
    }

    pub(super) fn handle(&self) -> CUstream {
        self.stream
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // SAFETY: `self` owns the stream and drops it once; the driver finishes the operations in it.
        let result = self.context.call(|all| &all.stream_destroy, |destroy| unsafe { destroy(self.stream) });
        self.context.log_release("a stream", result);
    }
}

impl CudaEvent {
    /// Creates an event with a timestamp.
    pub(crate) fn timed(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        Self::new(context, EVENT_DEFAULT)
    }

    pub(crate) fn untimed(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        Self::new(context, EVENT_DISABLE_TIMING)
    }

    fn new(context: &Arc<CudaContext>, flags: u32) -> Result<Self, DriverError> {
        let mut event: CUevent = null_mut();
        context.call(
            |all| &all.event_create,
            // SAFETY: `cuEventCreate` writes a handle to `event`; `Drop` gives it back, once.
            |create| unsafe { create(&raw mut event, flags) },
        )?;
        Ok(Self { context: context.clone(), event })
    }

    /// True if all operations before the event's last recording are done.
    pub(crate) fn is_complete(&self) -> Result<bool, DriverError> {
        // SAFETY: `self` owns the event until its drop.
        self.context.query(|all| &all.event_query, |query| unsafe { query(self.event) })
    }

    /// Time between an earlier event and this one. Both events must have timestamps and be complete.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Duration, DriverError> {
        let mut millis: f32 = 0.0;
        self.context.call(
            |all| &all.event_elapsed,
            // SAFETY: both events are borrowed, so they are alive, and one number is written to `millis`.
            |elapsed| unsafe { elapsed(&raw mut millis, earlier.event, self.event) },
        )?;
        Ok(Duration::try_from_secs_f32(millis / 1e3).unwrap_or_default())
    }

    /// Makes all later operations of the stream, which must be alive, wait for this event.
    pub(super) fn make_wait(&self, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the stream alive for the call, and `self` owns the event.
        self.context.call(|all| &all.stream_wait, |wait| unsafe { wait(stream, self.event, 0) })
    }

    /// Records the event after all operations in the stream, which must be alive.
    pub(super) fn record_on(&self, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the stream alive for the call, and `self` owns the event.
        self.context.call(|all| &all.event_record, |record| unsafe { record(self.event, stream) })
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: `self` owns the event and drops it once; as the driver documents, streams that wait for it continue to wait.
        let result = self.context.call(|all| &all.event_destroy, |destroy| unsafe { destroy(self.event) });
        self.context.log_release("an event", result);
    }
}

fn name(driver: &Driver, device: CUdevice) -> Result<String, DriverError> {
    let mut text: [c_char; 256] = [0; 256];
    // SAFETY: `cuDeviceGetName` writes at most the 256 bytes that `text` has, the last of them 0.
    driver.call(|all| &all.device_name, |get| unsafe { get(text.as_mut_ptr(), 256, device) })?;
    let bytes = text.map(|byte| byte.to_ne_bytes()[0]);
    Ok(CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned()))
}
