//! A batch and its arrays as Python classes.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock_device::DeviceBuffer;
use penstock_engine::clock::{Clock, MonotonicClock};
use penstock_engine::item::{Collated, Column, DeviceTensor, Dtype, Origin, Stacked, Tensor};
use penstock_types::fault::listed;
use penstock_types::stats::Tick;
use pyo3::exceptions::{PyBufferError, PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyList, PyTuple};

use crate::dlpack::{Device, Exported, address, consumer_stream};
use crate::errors::BatchesHeld;

/// Number of batches that Python code still holds, directly or through an array.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<AtomicUsize>);

/// Counts as one held batch until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease(Held);

/// Samples whose fields are stacked: a mapping from field to array, list of texts or list of bytes.
#[pyclass(frozen, mapping, module = "penstock")]
pub(crate) struct Batch {
    keys: Vec<Arc<str>>,
    origins: Vec<Origin>,
    columns: Vec<Column>,
    lease: Arc<Lease>,
}

/// An array in the memory of this process or of a GPU. Any library that supports DLPack reads it without a copy:
/// `torch.from_dlpack(array)`, `numpy.from_dlpack(array)`, `jax.dlpack.from_dlpack(array)`, `cupy.from_dlpack(array)`.
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Array {
    elements: Elements,
    lease: Arc<Lease>,
}

enum Elements {
    Host(Tensor),
    Device(DeviceTensor, DeviceBuffer),
}

/// Value of a field for Python.
#[derive(IntoPyObject)]
enum Value<'a> {
    Array(Array),
    Arrays(Vec<Array>),
    Texts(&'a [String]),
    Blobs(Vec<&'a [u8]>),
}

/// Maximum time to wait until the training loop releases an earlier batch, which it may do on another thread.
const PATIENCE: Duration = Duration::from_secs(5);

impl Held {
    /// True if fewer than `most` batches are held.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        self.0.load(Ordering::Acquire) < most
    }

    /// Waits until fewer than `most` batches are held, then counts one more. Fails after [`PATIENCE`].
    pub(crate) fn lease(&self, py: Python<'_>, most: usize) -> PyResult<Lease> {
        let clock = MonotonicClock::start();
        let one_more = |held: usize| (held < most).then_some(held + 1);
        while let Err(held) = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            if clock.now() >= Tick::ZERO.after(PATIENCE) {
                return Err(BatchesHeld::new_err(format!(
                    "{held} batches are still held by the training loop, the maximum (`max_held`), usually by a list \
                     of arrays or of losses, which hold the arrays that they were computed from: copy what you keep \
                     (`numpy.array(array)`, `tensor.clone()`), keep `loss.item()` instead of `loss`, or raise `max_held`",
                )));
            }
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            py.check_signals()?;
        }
        Ok(Lease(self.clone()))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Batch {
    pub(crate) fn new(batch: Collated, lease: Lease) -> Self {
        let Collated { keys, origins, fields } = batch;
        Self { keys, origins, columns: fields, lease: Arc::new(lease) }
    }

    fn value<'a>(&self, column: &'a Column) -> PyResult<Value<'a>> {
        let array = |elements| Array { elements, lease: self.lease.clone() };
        let host = |tensor: &Tensor| array(Elements::Host(tensor.clone()));
        Ok(match &column.values {
            Stacked::Texts(texts) => Value::Texts(texts),
            Stacked::Blobs(blobs) => Value::Blobs(blobs.iter().map(|blob| &**blob).collect()),
            Stacked::Tensors(tensors) => Value::Arrays(tensors.iter().map(host).collect()),
            Stacked::Tensor(tensor) => Value::Array(host(tensor)),
            Stacked::Device(tensor) => {
                let buffer = (&*tensor.memory as &dyn Any).downcast_ref::<DeviceBuffer>();
                let buffer = buffer.ok_or_else(|| {
                    PyBufferError::new_err("the array is on a device that this package does not support")
                })?;
                Value::Array(array(Elements::Device(tensor.clone(), buffer.clone())))
            }
        })
    }

    fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| &*column.name == name)
    }
}

#[pymethods]
impl Batch {
    fn __getitem__(&self, name: &str) -> PyResult<Value<'_>> {
        match self.column(name) {
            Some(column) => self.value(column),
            None => {
                let names = listed(self.columns.iter().map(|column| &*column.name));
                Err(PyKeyError::new_err(format!("`{name}`: the fields of this batch are {names}")))
            }
        }
    }

    #[pyo3(signature = (name, default=None))]
    fn get(&self, py: Python<'_>, name: &str, default: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        match self.column(name) {
            Some(column) => Ok(self.value(column)?.into_pyobject(py)?.unbind()),
            None => Ok(default.unwrap_or_else(|| py.None())),
        }
    }

    /// A value that is not a string is never the name of a field.
    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        name.extract::<String>().is_ok_and(|name| self.column(&name).is_some())
    }

    /// Number of fields of the batch.
    fn __len__(&self) -> usize {
        self.columns.len()
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(PyList::new(py, self.keys())?.try_iter()?.into_any().unbind())
    }

    /// Names of the fields.
    fn keys(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.to_string()).collect()
    }

    fn values(&self) -> PyResult<Vec<Value<'_>>> {
        self.columns.iter().map(|column| self.value(column)).collect()
    }

    fn items(&self) -> PyResult<Vec<(&str, Value<'_>)>> {
        self.columns.iter().map(|column| Ok((&*column.name, self.value(column)?))).collect()
    }

    /// Fields as PyTorch tensors on a device; texts and bytes as lists.
    #[pyo3(signature = (device, *, non_blocking=false))]
    fn to<'py>(
        slf: Bound<'py, Self>,
        device: Bound<'py, PyAny>,
        non_blocking: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = [("non_blocking", non_blocking)].into_py_dict(slf.py())?;
        slf.py().import("penstock.torch")?.call_method("tensors", (&slf, device), Some(&options))
    }

    /// Number of samples: the first dimension of every field.
    #[getter]
    fn size(&self) -> usize {
        self.keys.len()
    }

    /// Name of each sample: an object's key, a record's key, or an index.
    #[getter]
    fn samples(&self) -> Vec<&str> {
        self.keys.iter().map(|key| &**key).collect()
    }

    /// Pass over the source, from 0: a batch never contains samples of two passes.
    #[getter]
    fn epoch(&self) -> u32 {
        self.origins.first().map_or(0, |origin| origin.epoch)
    }

    /// Position of each sample in the unshuffled source, from 0.
    #[getter]
    fn indexes(&self) -> Vec<u64> {
        self.origins.iter().map(|origin| origin.index).collect()
    }

    fn __repr__(&self) -> String {
        let of = |column: &Column| {
            let values = match &column.values {
                Stacked::Tensor(tensor) => described(tensor.dtype, &tensor.shape),
                Stacked::Device(tensor) => format!("{} on a GPU", described(tensor.dtype, &tensor.shape)),
                Stacked::Tensors(tensors) => format!("{} tensors of different shapes", tensors.len()),
                Stacked::Texts(texts) => format!("{} texts", texts.len()),
                Stacked::Blobs(blobs) => format!("{} blobs", blobs.len()),
            };
            format!("{}: {values}", column.name)
        };
        let fields: Vec<String> = self.columns.iter().map(of).collect();
        format!("<penstock.Batch of {} samples: {}>", self.keys.len(), fields.join(", "))
    }
}

fn described(dtype: Dtype, shape: &[u32]) -> String {
    format!("{} {shape:?}", dtype.name())
}

impl Array {
    fn dtype(&self) -> Dtype {
        match &self.elements {
            Elements::Host(tensor) => tensor.dtype,
            Elements::Device(tensor, _) => tensor.dtype,
        }
    }

    fn sizes(&self) -> &[u32] {
        match &self.elements {
            Elements::Host(tensor) => &tensor.shape,
            Elements::Device(tensor, _) => &tensor.shape,
        }
    }

    /// View of the array by NumPy.
    fn numpy<'py>(&self, slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        if matches!(self.elements, Elements::Device(..)) {
            return Err(PyValueError::new_err(
                "the array is on a GPU; read it with `torch.from_dlpack` or `cupy.from_dlpack`",
            ));
        }
        slf.py().import("numpy")?.call_method1("from_dlpack", (slf,))
    }

    fn place(&self) -> Device {
        match &self.elements {
            Elements::Host(_) => Device::HOST,
            Elements::Device(_, buffer) => Device::cuda(buffer.device()),
        }
    }
}

#[pymethods]
impl Array {
    /// Dimensions, slowest first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.sizes())
    }

    /// Element type, by its name in NumPy and PyTorch.
    #[getter(dtype)]
    fn dtype_name(&self) -> &'static str {
        self.dtype().name()
    }

    /// Device of the array: `cpu` or `cuda:N`.
    #[getter]
    fn device(&self) -> String {
        match &self.elements {
            Elements::Host(_) => "cpu".to_owned(),
            Elements::Device(_, buffer) => format!("cuda:{}", buffer.device()),
        }
    }

    /// Size of the elements, in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        match &self.elements {
            Elements::Host(tensor) => tensor.data.len() as u64,
            Elements::Device(tensor, _) => tensor.bytes(),
        }
    }

    /// Exports the memory. On a GPU, `stream` is the consumer's stream, which waits for the copy: a stream given by its handle
    /// must outlive the array. `max_version` is the version of DLPack that the consumer supports.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        if copy == Some(true) {
            return Err(PyBufferError::new_err("arrays are exported without a copy; copy the result"));
        }
        if let Some(wanted) = dl_device.filter(|wanted| *wanted != self.place().pair()) {
            return Err(PyBufferError::new_err(format!(
                "the array is on {} and cannot be exported to the device {wanted:?}; export the array, then move the result",
                self.device()
            )));
        }
        let (data, keeps): (_, Box<dyn Send>) = match &self.elements {
            Elements::Host(tensor) => {
                if stream.is_some_and(|stream| stream != -1) {
                    return Err(PyBufferError::new_err("an array in host memory has no stream"));
                }
                (address(&tensor.data), Box::new((tensor.data.clone(), self.lease.clone())))
            }
            Elements::Device(_, buffer) => {
                let stream =
                    consumer_stream(stream).map_err(|fault| PyBufferError::new_err(fault.to_string()))?;
                buffer.prepare(stream).map_err(|error| PyBufferError::new_err(error.to_string()))?;
                let pointer = buffer.ptr() as *mut std::ffi::c_void;
                (pointer, Box::new((buffer.clone(), self.lease.clone())))
            }
        };
        let exported = Exported {
            data,
            device: self.place(),
            dtype: self.dtype(),
            shape: self.sizes().iter().map(|size| i64::from(*size)).collect(),
            keeps,
        };
        exported.capsule(py, max_version.is_some_and(|version| version >= (1, 0)))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.place().pair()
    }

    /// Converts the array for `numpy.asarray`.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let array = slf.get().numpy(&slf)?;
        match (dtype, copy) {
            (None, None | Some(false)) => Ok(array),
            (None, Some(true)) => array.call_method0("copy"),
            (Some(dtype), copy) => {
                let dtype = py.import("numpy")?.call_method1("dtype", (dtype,))?;
                if copy == Some(false) && !array.getattr("dtype")?.eq(&dtype)? {
                    return Err(PyValueError::new_err(format!(
                        "converting elements of type {} to {dtype} needs a copy, and `copy` is False",
                        slf.get().dtype().name()
                    )));
                }
                let options = [("copy", copy.unwrap_or(false))].into_py_dict(py)?;
                array.call_method("astype", (dtype,), Some(&options))
            }
        }
    }

    /// Indexes like NumPy, without a copy where NumPy makes none.
    fn __getitem__<'py>(slf: Bound<'py, Self>, index: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().numpy(&slf)?.get_item(index)
    }

    /// Iterates over the first dimension, like NumPy.
    fn __iter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Ok(slf.get().numpy(&slf)?.try_iter()?.into_any())
    }

    /// Size of the first dimension.
    fn __len__(&self) -> usize {
        self.sizes().first().map_or(0, |size| *size as usize)
    }

    fn __repr__(&self) -> String {
        format!("<penstock.Array {} on {}>", described(self.dtype(), self.sizes()), self.device())
    }
}
