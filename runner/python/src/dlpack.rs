//! DLPack: the protocol by which array libraries share memory without a copy (<https://dmlc.github.io/dlpack/latest/>).
//!
//! The array is in a capsule named `dltensor` or, for consumers that support version 1, `dltensor_versioned`. The consumer
//! renames the capsule and calls the deleter at the end of its use, from any thread and without the GIL; a capsule without a
//! consumer deletes its array itself.
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

/// Version of the structs in this file.
const VERSION: Version = Version { major: 1, minor: 0 };

/// Device of an array, as numbered by DLPack.
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

// `Box<Owner>` is a pointer in C, the context of the manager, which only the deleter uses.
#[repr(C)]
struct Managed {
    tensor: RawTensor,
    _owner: Box<Owner>,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct ManagedVersioned {
    version: Version,
    _owner: Box<Owner>,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: RawTensor,
}

/// An array for export: its location, and the owner of its memory.
pub(crate) struct Exported {
    pub(crate) data: *mut c_void,
    pub(crate) device: Device,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<i64>,
    /// Owner of the memory, dropped when no consumer uses the array any more.
    pub(crate) keeps: Box<dyn Send>,
}

/// Data that the exported struct points to.
struct Owner {
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Owner of the memory, held only to be dropped with this struct.
    _keeps: Box<dyn Send>,
}

impl Device {
    pub(crate) const HOST: Self = Self { kind: 1, number: 0 };

    pub(crate) fn cuda(number: u32) -> Self {
        Self { kind: 2, number: i32::try_from(number).unwrap_or(i32::MAX) }
    }

    /// Value of `__dlpack_device__`.
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
    /// Wraps the array in a capsule; `versioned` for consumers that support version 1.
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
        if versioned {
            let managed =
                ManagedVersioned { version: VERSION, _owner: owner, deleter: Some(delete), flags: 0, tensor };
            // SAFETY: `ManagedVersioned` is the struct for the name `VERSIONED_NAME`.
            unsafe { capsule(py, managed, VERSIONED_NAME) }
        } else {
            let managed = Managed { tensor, _owner: owner, deleter: Some(delete) };
            // SAFETY: `Managed` is the struct for the name `NAME`.
            unsafe { capsule(py, managed, NAME) }
        }
    }
}

/// Creates a capsule with this name around `managed`.
///
/// # Safety
/// `managed` must be the struct for this `name`.
unsafe fn capsule<T>(py: Python<'_>, managed: T, name: &CStr) -> PyResult<Py<PyAny>> {
    let managed = Box::into_raw(Box::new(managed));
    // SAFETY: `py` proves that this thread holds the GIL; the pointer is not null, and the name is a constant.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), name.as_ptr(), Some(drop_capsule)) };
    if capsule.is_null() {
        // SAFETY: no capsule was created, so this is the only pointer to it.
        unsafe { delete(managed) };
        return Err(PyErr::take(py).unwrap_or_else(|| PyMemoryError::new_err("no memory for a capsule")));
    }
    // SAFETY: `PyCapsule_New` returned a new reference, which is not null, and which has no other owner.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) }.unbind())
}

/// Deletes the array of a capsule that no consumer took.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule created by `capsule` above; its name determines the type of its content.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete::<Managed>(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) == 1 {
            delete::<ManagedVersioned>(ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        }
    }
}

/// Deleter of `Managed` and `ManagedVersioned`.
unsafe extern "C" fn delete<T>(managed: *mut T) {
    if !managed.is_null() {
        // SAFETY: `capsule` created it with `Box::into_raw`; by the contract of the format, its consumer, or the capsule without
        // one, calls the deleter once.
        drop(unsafe { Box::from_raw(managed) });
    }
}

/// Address of the bytes for the C struct. Array libraries may write to the memory, which is safe: the arrays of a pipeline in
/// this process belong to their batch alone, and the arrays of a stream are a private mapping of the server's memory, in which a
/// page is copied for this process when it is written to.
pub(crate) fn address(bytes: &[u8]) -> *mut c_void {
    if bytes.is_empty() { ptr::null_mut() } else { bytes.as_ptr().cast_mut().cast() }
}

/// Stream that a consumer passes to `__dlpack__(stream=...)`.
pub(crate) fn consumer_stream(stream: Option<i64>) -> Result<ConsumerStream, StreamFault> {
    // SAFETY: callers of `Array.__dlpack__` guarantee, by its documentation, that a stream given by its handle outlives the
    // array. The format itself does not define the lifetime of a stream.
    unsafe { ConsumerStream::from_dlpack(stream) }
}
