//! DLPack: how array libraries hand memory to each other without a copy (<https://dmlc.github.io/dlpack/latest/>).
//!
//! A capsule named `dltensor` or, for who knows version 1, `dltensor_versioned`. Who takes it renames it and calls the deleter
//! when it is done, from any thread and without Python's lock; what nobody took is deleted with the capsule.
#![expect(unsafe_code, reason = "the exchange format is structs of C behind a pointer")]

use std::ffi::{CStr, c_void};
use std::ptr;

use penstock_device::{ConsumerStream, StreamFault};
use penstock_engine::item::Dtype;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;

const NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

/// The version whose structs these are.
const VERSION: Version = Version { major: 1, minor: 0 };

/// Where an array lies, in the format's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Device {
    kind: i32,
    number: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: RawTensor,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct ManagedVersioned {
    version: Version,
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: RawTensor,
}

/// An array as it is handed over: where it lies, and what keeps it there.
pub(crate) struct Exported {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<i64>,
    /// Dropped when nobody reads the array any more.
    pub(crate) keeps: Box<dyn Send>,
}

/// What the taker's struct points to.
struct Owner {
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Kept for its drop.
    _keeps: Box<dyn Send>,
}

impl Device {
    pub(crate) const HOST: Self = Self { kind: 1, number: 0 };

    pub(crate) fn cuda(number: u32) -> Self {
        Self { kind: 2, number: i32::try_from(number).unwrap_or(i32::MAX) }
    }

    /// As `__dlpack_device__` tells it.
    pub(crate) fn pair(self) -> (i32, i32) {
        (self.kind, self.number)
    }
}

impl DataType {
    fn of(dtype: Dtype) -> Self {
        let code = match dtype {
            Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => 0,
            Dtype::Uint8 | Dtype::Uint16 => 1,
            Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => 2,
            Dtype::Bfloat16 => 4,
            Dtype::Boolean => 6,
        };
        Self { code, bits: 8 * dtype.size() as u8, lanes: 1 }
    }
}

impl Exported {
    /// The capsule; `versioned` for who takes version 1.
    pub(crate) fn capsule(self, py: Python<'_>, versioned: bool) -> PyResult<Py<PyAny>> {
        let Self { data, device, dtype, shape, keeps } = self;
        let mut strides = vec![1; shape.len()];
        for place in (1..shape.len()).rev() {
            strides[place - 1] = strides[place] * shape[place];
        }
        let mut owner = Box::new(Owner { shape, strides, _keeps: keeps });
        let tensor = RawTensor {
            data,
            device,
            dimensions: owner.shape.len() as i32,
            dtype: DataType::of(dtype),
            shape: owner.shape.as_mut_ptr(),
            strides: owner.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let owner = Box::into_raw(owner).cast();
        if versioned {
            let managed = ManagedVersioned {
                version: VERSION,
                owner,
                deleter: Some(delete_versioned),
                flags: 0,
                tensor,
            };
            // SAFETY: `ManagedVersioned` is the struct that `VERSIONED_NAME` stands for, and `delete_versioned` is its deleter.
            unsafe { capsule(py, managed, VERSIONED_NAME, |managed| delete_versioned(managed)) }
        } else {
            let managed = Managed { tensor, owner, deleter: Some(delete) };
            // SAFETY: `Managed` is the struct that `NAME` stands for, and `delete` is its deleter.
            unsafe { capsule(py, managed, NAME, |managed| delete(managed)) }
        }
    }
}

/// A capsule of that name around `managed`.
///
/// # Safety
/// `managed` has to be the struct that `name` stands for, and `free` what its deleter does.
unsafe fn capsule<T>(
    py: Python<'_>,
    managed: T,
    name: &CStr,
    free: unsafe fn(*mut T),
) -> PyResult<Py<PyAny>> {
    let managed = Box::into_raw(Box::new(managed));
    // SAFETY: `py` says that this thread holds Python's lock; the pointer is not null, and the name is a constant.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), name.as_ptr(), Some(drop_capsule)) };
    if capsule.is_null() {
        // SAFETY: no capsule was made, so that this is the only pointer to it; `free` is its deleter, as the caller promises.
        unsafe { free(managed) };
        return Err(PyErr::take(py).unwrap_or_else(|| PyMemoryError::new_err("no memory for a capsule")));
    }
    // SAFETY: `PyCapsule_New` gave a new reference, which is not null, and which nothing else counts.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) }.unbind())
}

/// Deletes what nobody took.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule that `capsule` above made; its name says what is in it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    if !managed.is_null() {
        // SAFETY: `capsule` made it by `Box::into_raw`; by the format's contract its taker, or the capsule that was not taken, calls
        // the deleter once.
        unsafe { drop_owner(Box::from_raw(managed).owner) }
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    if !managed.is_null() {
        // SAFETY: as in `delete`.
        unsafe { drop_owner(Box::from_raw(managed).owner) }
    }
}

unsafe fn drop_owner(owner: *mut c_void) {
    if !owner.is_null() {
        // SAFETY: made by `Box::into_raw` in `Exported::capsule`, and dropped once.
        drop(unsafe { Box::from_raw(owner.cast::<Owner>()) });
    }
}

/// Where the bytes lie, for the struct of C. Array libraries take them as theirs to write to, which they are: arrays of a pipeline in this
/// process belong to their batch alone, and those of a stream are a private mapping of the server's memory, of which a page that is
/// written to becomes this process's own.
pub(crate) fn address(bytes: &[u8]) -> *mut c_void {
    if bytes.is_empty() { ptr::null_mut() } else { bytes.as_ptr().cast_mut().cast() }
}

/// The stream that a consumer names in `__dlpack__(stream=...)`.
pub(crate) fn consumer_stream(stream: Option<i64>) -> Result<ConsumerStream, StreamFault> {
    // SAFETY: our contract with who calls `Array.__dlpack__`, as its documentation says: a stream that is named by its handle
    // has to outlive the array. The format itself leaves open how long a stream lives.
    unsafe { ConsumerStream::from_dlpack(stream) }
}
