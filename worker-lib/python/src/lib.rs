//! The worker library for Python: calls on memory that Python owns. `switchml/__init__.py` finds
//! that memory, and is what people import.

#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use switchml_worker::control::{ClientTls, Token};
use switchml_worker::{CallStats, Communicator, DType, Error, Handle, ReduceOp, Reduction, Tensor};

/// Elements that a Python object holds.
struct Borrowed {
    address: usize,
    bytes: usize,
    dtype: DType,
    /// Where what they lose goes, if that is wanted.
    residual: Option<usize>,
    /// Keeps all of that alive.
    _owner: Py<PyAny>,
}

// SAFETY: whoever calls from Python vouches for the address, and leaves the elements alone until
// the call is over: that is the contract of `all_reduce_start` and `broadcast_start` below. `owner`
// keeps them where they are.
unsafe impl Tensor for Borrowed {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn bytes(&mut self) -> *mut [u8] {
        self.at(self.address)
    }

    fn residual(&mut self) -> Option<*mut [u8]> {
        self.residual.map(|address| self.at(address))
    }
}

impl Borrowed {
    fn new(address: usize, count: usize, dtype: &str, owner: Py<PyAny>) -> Result<Self, Error> {
        let dtype: DType = dtype.parse()?;
        // An empty tensor may have no address; a slice must have one.
        let address = if count == 0 { align_of::<u64>() } else { address };
        Ok(Self { address, bytes: count * dtype.size(), dtype, residual: None, _owner: owner })
    }

    fn set_residual(&mut self, address: Option<usize>) -> Result<(), Error> {
        self.residual = address.filter(|_| self.bytes > 0);
        if self.residual.is_some_and(|address| address.abs_diff(self.address) < self.bytes) {
            return Err(Error::Setting {
                name: "residual",
                given: "the tensor's own memory".to_owned(),
                allowed: "other memory is allowed",
            });
        }
        Ok(())
    }

    fn at(&self, address: usize) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(
            std::ptr::with_exposed_provenance_mut(address),
            self.bytes,
        )
    }
}

/// A rank's membership in a job.
#[pyclass(name = "Communicator", frozen)]
struct PyCommunicator {
    /// None once it is closed.
    inner: RwLock<Option<Arc<Communicator>>>,
    rank: u32,
    world_size: u32,
}

#[pymethods]
impl PyCommunicator {
    #[new]
    #[pyo3(signature = (
        *, aggregator, job, rank, world_size, deadline, timeout, join_timeout, data_threads,
        tls_fingerprint, tls_ca, tls_cert, tls_key, token_file
    ))]
    #[expect(clippy::too_many_arguments, reason = "one for each setting, by name")]
    fn new(
        py: Python<'_>,
        aggregator: Option<String>,
        job: Option<String>,
        rank: Option<u32>,
        world_size: Option<u32>,
        deadline: Option<f64>,
        timeout: Option<f64>,
        join_timeout: Option<f64>,
        data_threads: Option<u32>,
        tls_fingerprint: Option<String>,
        tls_ca: Option<PathBuf>,
        tls_cert: Option<PathBuf>,
        tls_key: Option<PathBuf>,
        token_file: Option<PathBuf>,
    ) -> PyResult<Self> {
        let connect = || {
            let tls = ClientTls {
                fingerprint: tls_fingerprint,
                ca: tls_ca,
                cert: tls_cert,
                key: tls_key,
            };
            let mut builder = Communicator::builder().env()?.tls(tls);
            let token = token_file.map(Token::File);
            builder = given(builder, token, switchml_worker::Builder::token);
            builder = given(builder, aggregator, switchml_worker::Builder::aggregator);
            builder = given(builder, job, switchml_worker::Builder::job);
            builder = given(builder, rank, switchml_worker::Builder::rank);
            builder = given(builder, world_size, switchml_worker::Builder::world_size);
            builder =
                given(builder, seconds("deadline", deadline)?, switchml_worker::Builder::deadline);
            builder =
                given(builder, seconds("timeout", timeout)?, switchml_worker::Builder::timeout);
            builder = given(
                builder,
                seconds("join timeout", join_timeout)?,
                switchml_worker::Builder::join_timeout,
            );
            given(builder, data_threads, switchml_worker::Builder::data_threads).connect()
        };
        let inner = py.detach(connect).map_err(|error| raised(py, &error))?;
        let (rank, world_size) = (inner.rank(), inner.world_size());
        Ok(Self { inner: RwLock::new(Some(Arc::new(inner))), rank, world_size })
    }

    /// Starts an all-reduce of the `count` elements at `address`, which are `owner`'s. What they
    /// lose goes to as many at `residual`, unless that is None.
    #[expect(clippy::too_many_arguments, reason = "private to the package")]
    fn all_reduce_start(
        &self,
        py: Python<'_>,
        address: usize,
        count: usize,
        dtype: &str,
        op: &str,
        precision: &str,
        residual: Option<usize>,
        owner: Py<PyAny>,
    ) -> PyResult<PyHandle> {
        let start = || {
            let reduction = Reduction::new(op.parse()?, precision.parse()?);
            let mut tensor = Borrowed::new(address, count, dtype, owner)?;
            tensor.set_residual(residual)?;
            self.inner()?.all_reduce_start(tensor, reduction)
        };
        start().map(PyHandle::new).map_err(|error| raised(py, &error))
    }

    /// Starts a broadcast of rank `root`'s, as `all_reduce_start`.
    fn broadcast_start(
        &self,
        py: Python<'_>,
        address: usize,
        count: usize,
        dtype: &str,
        root: u32,
        owner: Py<PyAny>,
    ) -> PyResult<PyHandle> {
        let start =
            || self.inner()?.broadcast_start(Borrowed::new(address, count, dtype, owner)?, root);
        start().map(PyHandle::new).map_err(|error| raised(py, &error))
    }

    /// Starts a reduce-scatter in place, as `all_reduce_start`.
    fn reduce_scatter_start(
        &self,
        py: Python<'_>,
        address: usize,
        count: usize,
        dtype: &str,
        op: &str,
        owner: Py<PyAny>,
    ) -> PyResult<PyHandle> {
        let start = || {
            let reduction = Reduction::from(op.parse::<ReduceOp>()?);
            let tensor = Borrowed::new(address, count, dtype, owner)?;
            self.inner()?.reduce_scatter_start(tensor, reduction)
        };
        start().map(PyHandle::new).map_err(|error| raised(py, &error))
    }

    /// Starts an all-gather in place, as `all_reduce_start`.
    fn all_gather_start(
        &self,
        py: Python<'_>,
        address: usize,
        count: usize,
        dtype: &str,
        owner: Py<PyAny>,
    ) -> PyResult<PyHandle> {
        let start = || self.inner()?.all_gather_start(Borrowed::new(address, count, dtype, owner)?);
        start().map(PyHandle::new).map_err(|error| raised(py, &error))
    }

    /// Returns when every rank has called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let barrier = || self.inner()?.barrier();
        py.detach(barrier).map(drop).map_err(|error| raised(py, &error))
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    #[getter]
    fn world_size(&self) -> u32 {
        self.world_size
    }

    /// What was agreed when the communicator was made.
    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner().map_err(|error| raised(py, &error))?;
        let info = inner.info();
        let dict = PyDict::new(py);
        dict.set_item("job", &info.job)?;
        dict.set_item("aggregator", info.aggregator.to_string())?;
        dict.set_item("chunk_lanes", info.chunk_lanes)?;
        dict.set_item("slots", info.slots)?;
        dict.set_item("data_threads", info.data_threads)?;
        dict.set_item("multicast", info.multicast.map(|group| group.to_string()))?;
        dict.set_item("results", info.results())?;
        dict.set_item("hello_rtt", info.hello_rtt.as_secs_f64())?;
        Ok(dict)
    }

    /// What all calls that have returned took together.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner().map_err(|error| raised(py, &error))?;
        told(py, &inner.stats().calls)
    }

    /// The ranks that calls in flight have waited for for long; none once it is closed.
    fn late_ranks(&self) -> Vec<u32> {
        self.inner().map(|inner| inner.late_ranks()).unwrap_or_default()
    }

    /// Ends all calls in flight, and all later ones.
    fn abort(&self) {
        // One that is closed has none.
        if let Ok(inner) = self.inner() {
            inner.abort();
        }
    }

    /// Waits for the calls in flight, then leaves the job.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.write().unwrap_or_else(PoisonError::into_inner).take();
        let close = || match inner.map(Arc::try_unwrap) {
            Some(Ok(inner)) => inner.close(),
            // Somebody is in a call: leaving follows it.
            Some(Err(_)) | None => Ok(()),
        };
        py.detach(close).map_err(|error| raised(py, &error))
    }
}

impl PyCommunicator {
    fn inner(&self) -> Result<Arc<Communicator>, Error> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Error::Closed)
    }
}

impl Drop for PyCommunicator {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // It waits for calls in flight, and other threads of Python may have to go on for that.
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}

/// A call in flight.
#[pyclass(name = "Handle", frozen)]
struct PyHandle {
    state: Mutex<State>,
}

enum State {
    Flying(Handle<Borrowed>),
    Over(Result<CallStats, Error>),
}

#[pymethods]
impl PyHandle {
    /// Waits for the result; what the call took.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match py.detach(|| self.outcome()) {
            Ok(stats) => told(py, &stats),
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// Whether `wait` would return at once.
    fn is_done(&self) -> bool {
        match self.state.try_lock().as_deref_mut() {
            Ok(State::Flying(handle)) => handle.is_done(),
            Ok(State::Over(_)) => true,
            // Somebody waits.
            Err(_) => false,
        }
    }
}

impl PyHandle {
    fn new(handle: Handle<Borrowed>) -> Self {
        Self { state: Mutex::new(State::Flying(handle)) }
    }

    fn outcome(&self) -> Result<CallStats, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let over = match std::mem::replace(&mut *state, State::Over(Err(Error::Closed))) {
            State::Flying(handle) => handle.wait_with_stats().map(|(_, stats)| stats),
            State::Over(outcome) => outcome,
        };
        *state = State::Over(over.clone());
        over
    }
}

fn given<T, V>(builder: T, value: Option<V>, set: impl FnOnce(T, V) -> T) -> T {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

fn seconds(name: &'static str, value: Option<f64>) -> Result<Option<Duration>, Error> {
    let wrong = |value: f64| Error::Setting {
        name,
        given: value.to_string(),
        allowed: "seconds from 0 are allowed",
    };
    value.map(|value| Duration::try_from_secs_f64(value).map_err(|_| wrong(value))).transpose()
}

fn told<'py>(py: Python<'py>, stats: &CallStats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("calls", stats.calls)?;
    dict.set_item("bytes", stats.bytes)?;
    dict.set_item("seconds", stats.duration.as_secs_f64())?;
    dict.set_item("chunks", stats.chunks)?;
    dict.set_item("skipped", stats.skipped)?;
    dict.set_item("skipped_bytes", stats.skipped_bytes)?;
    dict.set_item("empty", stats.empty)?;
    dict.set_item("rooms", stats.rooms)?;
    dict.set_item("resent", stats.resent_by_timer + stats.resent_by_overtaking)?;
    let late: Vec<_> = stats
        .stragglers()
        .map(|(rank, straggler)| (rank, straggler.waited.as_secs_f64()))
        .collect();
    dict.set_item("late", late.into_py_dict(py)?)?;
    Ok(dict)
}

/// The exception that says this.
fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let made = py
        .import("switchml._error")
        .and_then(|module| module.getattr("Error")?.call1((error.to_string(), error.ranks())));
    made.map_or_else(|error| error, PyErr::from_value)
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{PyCommunicator, PyHandle};
}
