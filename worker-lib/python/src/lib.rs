//! The worker library for Python: calls on memory that Python owns. `switchml/__init__.py`, which
//! people import, finds that memory.

#![allow(unsafe_code)]

mod own;
mod settings;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use own::Own;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use switchml_worker::control;
use switchml_worker::{
    CallStats, Communicator, DType, Error, Handle, OwnAggregator, Reduction, Tensor,
};

/// How long a wait keeps Python from running handlers of signals, such as Ctrl-C's.
const INTERVAL: Duration = Duration::from_millis(100);

/// Elements that a Python object holds.
struct Borrowed {
    address: usize,
    bytes: usize,
    dtype: DType,
    /// Address for what the elements lose, if the caller wants that.
    residual: Option<usize>,
    /// Keeps elements and residual alive.
    _owner: Py<PyAny>,
}

// SAFETY: the caller in Python ensures that the address is right, and does not touch the elements
// until the call is over: that is the contract of `all_reduce_start` and `broadcast_start` below.
// `owner` keeps them in place.
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

/// An aggregator inside this process, until a communicator takes it.
#[pyclass(name = "OwnAggregator", frozen)]
struct PyOwnAggregator {
    inner: Own<Mutex<Option<OwnAggregator>>>,
    peer: String,
}

#[pymethods]
impl PyOwnAggregator {
    /// The process's, for a rank of this job, at the address from which this host reaches
    /// `towards`.
    #[new]
    fn new(py: Python<'_>, towards: &str, job: &str) -> PyResult<Self> {
        let own = OwnAggregator::start(towards, job).map_err(|error| raised(py, &error))?;
        let peer = own.peer().to_string();
        Ok(Self { inner: Own::new(Mutex::new(Some(own))), peer })
    }

    /// Where ranks join, and the secret with which they do: `IP:PORT/SECRET`.
    #[getter]
    fn peer(&self) -> &str {
        &self.peer
    }
}

impl PyOwnAggregator {
    fn take(&self) -> Option<OwnAggregator> {
        self.inner.get().ok()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A rank's membership in a job.
#[pyclass(name = "Communicator", frozen)]
struct PyCommunicator {
    /// None once it is closed.
    inner: Own<RwLock<Option<Arc<Communicator>>>>,
    rank: u32,
    world_size: u32,
}

#[pymethods]
impl PyCommunicator {
    #[new]
    #[pyo3(signature = (*, is_wanted, peers, **settings))]
    fn new(
        py: Python<'_>,
        is_wanted: Py<PyAny>,
        peers: Option<(Bound<'_, PyOwnAggregator>, Vec<String>)>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let given = settings.map(settings::given).transpose()?.unwrap_or_default();
        let peers = peers.map(|(own, all)| (own.get().take(), all));
        let connect = move || {
            let mut builder = Communicator::builder().env()?.with(given);
            if let Some((Some(own), all)) = peers {
                builder = builder.peers(own, all.iter().filter_map(|peer| peer.parse().ok()));
            }
            builder.connect()
        };
        let inner = joined(py, connect, &is_wanted)?;
        let (rank, world_size) = (inner.rank(), inner.world_size());
        Ok(Self { inner: Own::new(RwLock::new(Some(Arc::new(inner)))), rank, world_size })
    }

    /// Starts an all-reduce of the `count` elements at `address`, which are `owner`'s. What they
    /// lose goes to as many at `residual`, unless that is None. Deferred, it runs once it is waited
    /// for.
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
        deferred: bool,
    ) -> PyResult<PyHandle> {
        let inner = self.inner(py)?;
        let start = || {
            let reduction = Reduction::new(op.parse()?, precision.parse()?);
            let mut tensor = Borrowed::new(address, count, dtype, owner)?;
            tensor.set_residual(residual)?;
            if deferred {
                inner.all_reduce_deferred(tensor, reduction)
            } else {
                inner.all_reduce_start(tensor, reduction)
            }
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
        let inner = self.inner(py)?;
        let start = || inner.broadcast_start(Borrowed::new(address, count, dtype, owner)?, root);
        start().map(PyHandle::new).map_err(|error| raised(py, &error))
    }

    /// Starts a reduce-scatter in place, as `all_reduce_start`.
    #[expect(clippy::too_many_arguments, reason = "private to the package")]
    fn reduce_scatter_start(
        &self,
        py: Python<'_>,
        address: usize,
        count: usize,
        dtype: &str,
        op: &str,
        precision: &str,
        owner: Py<PyAny>,
    ) -> PyResult<PyHandle> {
        let inner = self.inner(py)?;
        let start = || {
            let reduction = Reduction::new(op.parse()?, precision.parse()?);
            let tensor = Borrowed::new(address, count, dtype, owner)?;
            inner.reduce_scatter_start(tensor, reduction)
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
        deferred: bool,
    ) -> PyResult<PyHandle> {
        let inner = self.inner(py)?;
        let start = || {
            let tensor = Borrowed::new(address, count, dtype, owner)?;
            if deferred {
                inner.all_gather_deferred(tensor)
            } else {
                inner.all_gather_start(tensor)
            }
        };
        start().map(PyHandle::new).map_err(|error| raised(py, &error))
    }

    /// Starts a call that is over when every rank has made it.
    fn barrier_start(&self, py: Python<'_>) -> PyResult<PyHandle> {
        let started = self.inner(py)?.barrier_start();
        started.map(PyHandle::new).map_err(|error| raised(py, &error))
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
        let inner = self.inner(py)?;
        let info = inner.info();
        let dict = PyDict::new(py);
        dict.set_item("job", &info.job)?;
        dict.set_item("chunk_lanes", info.chunk_lanes)?;
        dict.set_item("data_threads", info.data_threads())?;
        dict.set_item("hello_rtt", info.hello_rtt.as_secs_f64())?;
        let aggregators = info.stripes.iter().zip(info.shares()).map(|(stripe, share)| {
            let dict = PyDict::new(py);
            dict.set_item("aggregator", stripe.aggregator.to_string())?;
            dict.set_item("weight", stripe.weight)?;
            dict.set_item("share", share)?;
            dict.set_item("slots", stripe.slots)?;
            dict.set_item("data_threads", stripe.data_threads)?;
            dict.set_item("multicast", stripe.multicast.map(|group| group.to_string()))?;
            dict.set_item("results", stripe.results())?;
            Ok(dict)
        });
        dict.set_item("aggregators", aggregators.collect::<PyResult<Vec<_>>>()?)?;
        Ok(dict)
    }

    /// What all calls that have returned took together.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner(py)?;
        told(py, &inner.stats().calls)
    }

    /// The ranks that calls in flight have waited for for long; none once it is closed.
    fn late_ranks(&self) -> Vec<u32> {
        self.open().ok().flatten().map(|inner| inner.late_ranks()).unwrap_or_default()
    }

    /// Why it has failed, the ranks at fault, and whether that was their loss; None if it has not,
    /// or is closed.
    fn failure(&self) -> Option<(String, Vec<u16>, bool)> {
        let error = self.open().ok().flatten()?.failure()?;
        let is_loss = matches!(error, Error::Control(control::Error::Aborted { .. }));
        Some((error.to_string(), error.ranks(), is_loss))
    }

    /// The ranks that have left normally; none once it is closed.
    fn departed(&self) -> Vec<u16> {
        self.open().ok().flatten().map(|inner| inner.departed()).unwrap_or_default()
    }

    /// Has calls wait so long for other ranks, those in flight, too.
    fn set_timeout(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let inner = self.inner(py)?;
        let set = || inner.set_timeout(settings::seconds("timeout", timeout)?);
        set().map_err(|error| raised(py, &error))
    }

    /// Ends all calls in flight, and all later ones. If that is to go on without ranks, the errors
    /// name these.
    fn abort(&self, without: Vec<u16>) {
        match self.open() {
            Ok(Some(inner)) if without.is_empty() => inner.abort(),
            Ok(Some(inner)) => inner.abort_without(&without),
            // A communicator that is closed has no calls.
            _ => {}
        }
    }

    /// Waits for the calls in flight, then leaves the job.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // A fork was never in it.
        let Ok(inner) = self.inner.get() else { return Ok(()) };
        let inner = inner.write().unwrap_or_else(PoisonError::into_inner).take();
        let close = || match inner.map(Arc::try_unwrap) {
            Some(Ok(inner)) => inner.close(),
            // A call is in progress: the communicator leaves after it.
            Some(Err(_)) | None => Ok(()),
        };
        py.detach(close).map_err(|error| raised(py, &error))
    }
}

impl PyCommunicator {
    fn inner(&self, py: Python<'_>) -> PyResult<Arc<Communicator>> {
        let open = self.open().map_err(|forked| raised_with(py, forked, Vec::new()))?;
        open.ok_or_else(|| raised(py, &Error::Closed))
    }

    /// The communicator; `None` once it is closed.
    fn open(&self) -> Result<Option<Arc<Communicator>>, String> {
        let inner = self.inner.get()?;
        Ok(inner.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Drop for PyCommunicator {
    fn drop(&mut self) {
        let Ok(inner) = self.inner.get() else { return };
        let inner = inner.write().unwrap_or_else(PoisonError::into_inner).take();
        // The drop waits for calls in flight, and other threads of Python may have to run for that.
        Python::attach(|py| py.detach(|| drop(inner)));
    }
}

/// Joins the job on a separate thread, so that this one can give up. A job that was joined too late
/// is left again.
fn joined(
    py: Python<'_>,
    connect: impl FnOnce() -> Result<Communicator, Error> + Send + 'static,
    is_wanted: &Py<PyAny>,
) -> PyResult<Communicator> {
    let (answer, answers) = mpsc::channel();
    let thread = std::thread::Builder::new().name("switchml-join".to_owned());
    // The send fails if this function has given up.
    thread.spawn(move || drop(answer.send(connect())))?;
    let answers = Mutex::new(answers);
    loop {
        let answer: Result<_, _> = py.detach(|| lock(&answers).recv_timeout(INTERVAL));
        match answer {
            Ok(outcome) => return outcome.map_err(|error| raised(py, &error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(raised(py, &Error::Panicked)),
        }
        if !is_wanted.bind(py).call0()?.is_truthy()? {
            return Err(raised(py, &Error::AbortedHere));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call in flight.
#[pyclass(name = "Handle", frozen)]
struct PyHandle {
    state: Own<Mutex<State>>,
}

#[expect(clippy::large_enum_variant, reason = "each comes to be the large one")]
enum State {
    Flying(Box<dyn Flying>),
    Over(Result<CallStats, Error>),
}

/// A handle of a call, whatever the type of its tensor.
trait Flying: Send {
    /// Sends a deferred call's first packets.
    fn send(&self);
    /// Whether the call is over, now or within `time`.
    fn is_over_within(&mut self, time: Duration) -> bool;
    /// The call's statistics, once it is over.
    fn outcome(self: Box<Self>) -> Result<CallStats, Error>;
}

impl<T: Send + Sync + 'static> Flying for Handle<T> {
    fn send(&self) {
        Handle::send(self);
    }

    fn is_over_within(&mut self, time: Duration) -> bool {
        self.wait_for(time)
    }

    fn outcome(self: Box<Self>) -> Result<CallStats, Error> {
        self.wait_with_stats().map(|(_, stats)| stats)
    }
}

#[pymethods]
impl PyHandle {
    /// Waits for the result; what the call took.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state.get().map_err(|forked| raised_with(py, forked, Vec::new()))?;
        while !py.detach(|| lock(state).is_over_within(INTERVAL)) {
            py.check_signals()?;
        }
        match py.detach(|| lock(state).outcome()) {
            Ok(stats) => told(py, &stats),
            Err(error) => Err(raised(py, &error)),
        }
    }

    /// Sends a deferred call's first packets.
    fn send(&self, py: Python<'_>) {
        let Ok(state) = self.state.get() else { return };
        py.detach(|| {
            if let State::Flying(handle) = &*lock(state) {
                handle.send();
            }
        });
    }

    /// Whether `wait` would return at once.
    fn is_done(&self) -> bool {
        let Ok(state) = self.state.get() else { return true };
        match state.try_lock() {
            Ok(mut state) => state.is_over_within(Duration::ZERO),
            // Another thread waits.
            Err(_) => false,
        }
    }
}

impl PyHandle {
    fn new(handle: impl Flying + 'static) -> Self {
        Self { state: Own::new(Mutex::new(State::Flying(Box::new(handle)))) }
    }
}

impl State {
    /// Whether the call is over, now or within `time`.
    fn is_over_within(&mut self, time: Duration) -> bool {
        match self {
            Self::Flying(handle) => handle.is_over_within(time),
            Self::Over(_) => true,
        }
    }

    fn outcome(&mut self) -> Result<CallStats, Error> {
        let over = match std::mem::replace(self, Self::Over(Err(Error::Closed))) {
            Self::Flying(handle) => handle.outcome(),
            Self::Over(outcome) => outcome,
        };
        *self = Self::Over(over.clone());
        over
    }
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
    raised_with(py, error.to_string(), error.ranks())
}

/// The exception with this text, and the ranks at fault.
fn raised_with(py: Python<'_>, text: String, ranks: Vec<u16>) -> PyErr {
    let made = py
        .import("switchml._error")
        .and_then(|module| module.getattr("Error")?.call1((text, ranks)));
    made.map_or_else(|error| error, PyErr::from_value)
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{PyCommunicator, PyHandle, PyOwnAggregator};
}
