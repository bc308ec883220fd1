//! A group of ranks whose all-reduces go through the aggregator, each group in its own job.

use crate::abi::{HANDLE_BYTES, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR};
use crate::elements::Elements;
use crate::log::{Failure, info};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use switchml_worker::{Communicator, Error, Handle, Reduction};

/// How long to wait for the other ranks of a group: NCCL starts all of them within moments. If one
/// is missing, NCCL continues without CollNet.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

const MAGIC: [u8; 8] = *b"switchml";
const SECRET_BYTES: usize = 16;

/// Writes a unique handle. The handle of rank 0 names the group's job.
pub fn write_handle(bytes: &mut [u8; HANDLE_BYTES]) {
    let secret: [u8; SECRET_BYTES] = rand::random();
    bytes.fill(0);
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..8 + SECRET_BYTES].copy_from_slice(&secret);
}

fn job(handle: &[u8; HANDLE_BYTES]) -> Result<String, Failure> {
    if handle[..8] != MAGIC {
        let why = "a handle that this plugin has not made";
        return Err(Failure::new(INVALID_ARGUMENT, why));
    }
    let mut name = "nccl-".to_owned();
    for byte in &handle[8..8 + SECRET_BYTES] {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(name)
}

/// This rank's place in a group.
pub struct Group {
    /// `None` once the memory of calls in flight was taken back.
    communicator: Mutex<Option<Communicator>>,
    in_flight: Arc<AtomicUsize>,
}

/// A call in flight.
pub struct Request {
    /// `None` once the call has failed.
    handle: Option<Handle<Elements>>,
    bytes: usize,
    in_flight: Arc<AtomicUsize>,
}

impl Group {
    /// Joins the group whose rank 0 has this handle, and waits until all its ranks have joined.
    pub fn join(first: &[u8; HANDLE_BYTES], rank: u32, ranks: u32) -> Result<Self, Failure> {
        let builder = Communicator::builder().env().map_err(failure)?;
        let builder = builder.job(job(first)?).rank(rank).world_size(ranks);
        let communicator = builder.join_timeout(JOIN_TIMEOUT).connect().map_err(failure)?;
        let stripes = communicator.info().stripes.iter();
        let aggregators: Vec<_> = stripes.map(|stripe| stripe.aggregator.to_string()).collect();
        info(&format!("rank {rank} of {ranks} sums up at {}", aggregators.join(", ")));
        Ok(Self {
            communicator: Mutex::new(Some(communicator)),
            in_flight: Arc::new(AtomicUsize::new(0)),
        })
    }

    /// Begins an all-reduce.
    pub fn all_reduce(&self, elements: Elements, op: Reduction) -> Result<Request, Failure> {
        let communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        let communicator = communicator.as_ref().ok_or_else(|| failure(Error::Closed))?;
        let bytes = elements.len();
        let handle = communicator.all_reduce_start(elements, op).map_err(failure)?;
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Ok(Request { handle: Some(handle), bytes, in_flight: Arc::clone(&self.in_flight) })
    }

    /// Returns when no call uses NCCL's memory any more. Calls in flight, which NCCL has given up,
    /// fail on all ranks.
    pub fn take_back_memory(&self) {
        if self.in_flight.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(communicator) = communicator.take() {
            communicator.abort();
            // This ends the threads, which used the borrowed memory.
            drop(communicator);
        }
    }

    /// Leaves the group.
    pub fn leave(self) {
        self.take_back_memory();
    }
}

impl Request {
    /// The number of bytes that the call has summed, once it is done.
    pub fn test(&mut self) -> Result<Option<usize>, Failure> {
        let failed = || Failure::new(REMOTE_ERROR, "the call failed before");
        if !self.handle.as_mut().ok_or_else(failed)?.is_done() {
            return Ok(None);
        }
        if let Some(handle) = self.handle.take() {
            handle.wait().map_err(failure)?;
        }
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        Ok(Some(self.bytes))
    }
}

fn failure(error: Error) -> Failure {
    let code = match error {
        Error::Setting { .. } => INVALID_USAGE,
        Error::Unsupported(_) => INVALID_ARGUMENT,
        Error::Closed | Error::AbortedHere | Error::AbortedWithout { .. } => INTERNAL_ERROR,
        _ => REMOTE_ERROR,
    };
    Failure::new(code, error.to_string())
}
