//! The fake driver: built once, and loaded by child processes that run the tests, because a process can load only one
//! driver.
#![expect(unsafe_code, reason = "the tests call C functions of the fake driver")]

use std::env;
use std::ffi::{c_long, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::ptr::{with_exposed_provenance, without_provenance_mut};
use std::slice::from_raw_parts;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use cudarc::driver::sys;
use penstock_device::{ConsumerStream, DeviceBuffer};
use penstock_engine::clock::{Clock, MonotonicClock};
use tempfile::TempDir;

/// Library that the child process loads as the driver.
#[derive(Clone, Copy)]
pub(crate) enum Library {
    /// The driver with all functions.
    Whole,
    /// A driver without `cuEventQuery`.
    Partial,
    /// A library that exports no function of the driver.
    Empty,
    /// No library at all.
    None,
}

/// Numbers of driver objects that have not been freed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) device_regions: i64,
    pub(crate) host_regions: i64,
    pub(crate) streams: i64,
    pub(crate) events: i64,
    pub(crate) contexts: i64,
    pub(crate) host_bytes: i64,
}

/// A stream that plays the role of a training loop's stream.
pub(crate) struct TrainingStream(*mut c_void);

/// Environment variable that marks a child process.
const CHILD: &str = "PENSTOCK_FAKE_CUDA_CHILD";

/// Time limit of a child process, longer than any test takes.
const MOST: Duration = Duration::from_secs(60);

impl Counts {
    pub(crate) const NOTHING: Self =
        Self { device_regions: 0, host_regions: 0, streams: 0, events: 0, contexts: 0, host_bytes: 0 };

    pub(crate) fn now() -> Self {
        let mut counts = [0 as c_long; 6];
        // SAFETY: the function writes six numbers.
        unsafe { function::<unsafe extern "C" fn(*mut c_long)>("fake_cuda_counts")(counts.as_mut_ptr()) };
        let [device_regions, host_regions, streams, events, contexts, host_bytes] = counts.map(i64::from);
        Self { device_regions, host_regions, streams, events, contexts, host_bytes }
    }
}

impl TrainingStream {
    /// Creates a stream of the open device.
    pub(crate) fn new(context: &OpenContext) -> Self {
        let mut stream = std::ptr::null_mut();
        context.within(|| {
            let create: unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_uint = function("cuStreamCreate");
            // SAFETY: the function writes a handle.
            assert_eq!(unsafe { create(&raw mut stream, 1) }, 0);
        });
        Self(stream)
    }

    /// The default stream of the calling thread.
    pub(crate) fn of_thread() -> Self {
        Self(without_provenance_mut(2))
    }

    pub(crate) fn consumer(&self) -> ConsumerStream {
        // SAFETY: the stream lives until the end of the process.
        unsafe { ConsumerStream::from_dlpack(Some(self.0.addr() as i64)) }.unwrap()
    }

    /// Enqueues a kernel that waits for `delay` and then adds up the bytes of the buffer; returns the address to which the kernel
    /// writes the sum.
    pub(crate) fn read_later(&self, buffer: &DeviceBuffer, delay: Duration) -> &'static u64 {
        self.add_up(buffer.ptr(), buffer.len(), delay)
    }

    /// Enqueues a kernel that takes `time` and reads nothing.
    pub(crate) fn be_busy(&self, time: Duration) {
        self.add_up(0, 0, time);
    }

    fn add_up(&self, begin: u64, len: usize, delay: Duration) -> &'static u64 {
        type ReadLater = unsafe extern "C" fn(*mut c_void, u64, usize, c_uint, *mut u64);
        let sum = Box::leak(Box::new(0_u64));
        let read_later: ReadLater = function("fake_cuda_read_later");
        // SAFETY: the memory that it reads and writes, including the fake device's, exists until the process ends.
        unsafe { read_later(self.0, begin, len, delay.as_micros() as c_uint, sum) };
        sum
    }
}

/// Bytes of an array: memory of the fake device is memory of the process.
pub(crate) fn bytes(buffer: &DeviceBuffer) -> Vec<u8> {
    let begin = with_exposed_provenance::<u8>(buffer.ptr() as usize);
    // SAFETY: the bytes exist as long as the buffer, and are no longer written to.
    unsafe { from_raw_parts(begin, buffer.len()) }.to_vec()
}

/// A context for functions that need a current one, like the context of a framework.
pub(crate) struct OpenContext(*mut c_void);

impl OpenContext {
    pub(crate) fn of_first_device() -> Self {
        let retain: unsafe extern "C" fn(*mut *mut c_void, i32) -> c_uint =
            function("cuDevicePrimaryCtxRetain");
        let mut context = std::ptr::null_mut();
        // SAFETY: the function writes a handle.
        assert_eq!(unsafe { retain(&raw mut context, 0) }, 0);
        Self(context)
    }

    /// Allocates memory of the device, as another program would.
    pub(crate) fn allocate(&self, len: usize) -> u64 {
        let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_uint = function("cuMemAlloc_v2");
        let mut begin = 0;
        // SAFETY: the function writes an address.
        self.within(|| assert_eq!(unsafe { allocate(&raw mut begin, len) }, 0));
        begin
    }

    /// Frees memory from [`Self::allocate`].
    pub(crate) fn free(&self, begin: u64) {
        let free: unsafe extern "C" fn(u64) -> c_uint = function("cuMemFree_v2");
        // SAFETY: the memory is no longer read.
        self.within(|| assert_eq!(unsafe { free(begin) }, 0));
    }

    fn within(&self, work: impl FnOnce()) {
        let push: unsafe extern "C" fn(*mut c_void) -> c_uint = function("cuCtxPushCurrent_v2");
        let pop: unsafe extern "C" fn(*mut *mut c_void) -> c_uint = function("cuCtxPopCurrent_v2");
        // SAFETY: the context is retained.
        assert_eq!(unsafe { push(self.0) }, 0);
        work();
        let mut popped = std::ptr::null_mut();
        // SAFETY: the context was pushed above.
        assert_eq!(unsafe { pop(&raw mut popped) }, 0);
    }
}

/// Waits for all operations in all streams.
pub(crate) fn finish() {
    // SAFETY: the function has no parameters and no result.
    unsafe { function::<unsafe extern "C" fn()>("fake_cuda_finish")() };
}

/// Looks up a function of the loaded driver, which is the fake one.
fn function<F: Copy>(name: &str) -> F {
    // SAFETY: the library is loaded, and callers pass the right types.
    unsafe { *sys::culib().get::<F>(name.as_bytes()).unwrap() }
}

/// True in a child process, which performs a test's work.
pub(crate) fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Runs a test's `work` in a child with the complete fake driver and these settings.
pub(crate) fn with_driver(settings: &[(&str, &str)], work: fn()) {
    with(Library::Whole, settings, work);
}

/// Runs a test's `work` in a child with this driver and these settings.
pub(crate) fn with(library: Library, settings: &[(&str, &str)], work: fn()) {
    if is_child() {
        return work();
    }
    let output = run(library, settings);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{settings:?}: {stdout}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the current test in a child process with the given library and settings.
fn run(library: Library, settings: &[(&str, &str)]) -> Output {
    let test = std::thread::current().name().expect("tests have names").to_owned();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", library.folder())
        .envs(settings.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if !ends(&mut child) {
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        panic!("{settings:?} hangs: {}", String::from_utf8_lossy(&output.stdout));
    }
    child.wait_with_output().unwrap()
}

fn ends(child: &mut Child) -> bool {
    let clock = MonotonicClock::start();
    let end = clock.now().after(MOST);
    while clock.now() < end {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        sleep(Duration::from_millis(2));
    }
    false
}

impl Library {
    /// Folder that contains the library.
    fn folder(self) -> PathBuf {
        static BUILT: OnceLock<TempDir> = OnceLock::new();
        let all = BUILT.get_or_init(|| {
            let all = tempfile::tempdir().unwrap();
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/libcuda.c");
            build(&all.path().join("whole"), &source, &[]);
            build(&all.path().join("partial"), &source, &["-DcuEventQuery=cuEventAsk"]);
            let nothing = all.path().join("nothing.c");
            std::fs::write(&nothing, "").unwrap();
            build(&all.path().join("empty"), &nothing, &[]);
            std::fs::create_dir(all.path().join("none")).unwrap();
            all
        });
        all.path().join(match self {
            Self::Whole => "whole",
            Self::Partial => "partial",
            Self::Empty => "empty",
            Self::None => "none",
        })
    }
}

/// Builds a driver in a separate folder, with the compiler that also links Rust programs.
fn build(folder: &Path, source: &Path, flags: &[&str]) {
    std::fs::create_dir(folder).unwrap();
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(folder.join("libcuda.so.1"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}
