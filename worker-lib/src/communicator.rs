//! The communicator: what a training job calls.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::builder::Builder;
use crate::collective::{Call, Kind};
use crate::driver::{Seat, Shared, Snapshot};
use crate::endpoint::Command;
use crate::engine::EngineStats;
use crate::error::Error;
use crate::hello::packet_len;
use crate::lend::lend;
use crate::numerics::{DType, Element, ReduceOp};
use crate::patience::WaitStats;
use crate::stats::CallStats;
use crate::task::{Handle, Task, owned};
use crate::transport::Udp;
use crate::waker::Waker;

/// A rank's membership in a job of `world_size` ranks, and the collectives among them.
///
/// Every rank must make the same calls in the same order, with the same operator, element type and number of elements; ranks that
/// disagree all get an [`Error`] that says which rank called what. Calls may come from several threads, if their order is the same on all ranks.
///
/// A failure is for good: all calls in flight and later ones return the error, and the other ranks fail at once too, naming the rank or
/// ranks at fault. Dropping the communicator waits for the calls in flight, then leaves the job.
pub struct Communicator {
    commands: Option<Sender<Command>>,
    /// That of the thread that drives, and that of the data thread.
    wakers: [Waker; 2],
    seat: Arc<Seat<Udp>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    info: Info,
}

/// What was agreed when the communicator was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// This process's rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Name of the job.
    pub job: String,
    /// 32-bit lanes in a full packet: the most that the path of every rank carries.
    pub chunk_lanes: u16,
    /// Slots of the aggregator that the job uses.
    pub slots: u16,
    /// The aggregator's data plane.
    pub aggregator: SocketAddrV4,
    /// How packets travel: "udp".
    pub transport: &'static str,
    /// Multicast group of results; `None` when the aggregator sends each rank a copy of its own.
    pub multicast: Option<SocketAddrV4>,
    /// Round trip of the first packet.
    pub hello_rtt: Duration,
}

impl Info {
    /// Bytes of a full packet: header and lanes, without UDP and below.
    pub fn packet_bytes(&self) -> usize {
        packet_len(self.chunk_lanes.into())
    }
}

/// What the data path has counted. All calls that have returned are in it; those in flight in part, but not in `calls`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Chunks, resends by cause, ignored packets by reason.
    pub engine: EngineStats,
    /// Packets that did not come from the aggregator.
    pub foreign: u64,
    /// Smoothed round-trip time.
    pub rtt: Option<Duration>,
    /// Chunks that may be outstanding.
    pub window: u32,
    /// How the data path waited.
    pub waits: WaitStats,
    /// All calls that have returned.
    pub calls: CallStats,
}

impl Communicator {
    /// A builder: `Communicator::builder().aggregator("10.0.0.1").job("train").rank(r).world_size(n).connect()?`.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects with the settings of the environment, see [`Builder::env`].
    ///
    /// # Errors
    /// As [`Builder::env`] and [`Builder::connect`].
    pub fn from_env() -> Result<Self, Error> {
        Self::builder().env()?.connect()
    }

    pub(crate) fn new(
        commands: Sender<Command>,
        wakers: [Waker; 2],
        seat: Arc<Seat<Udp>>,
        shared: Arc<Shared>,
        thread: JoinHandle<()>,
        info: Info,
    ) -> Self {
        Self { commands: Some(commands), wakers, seat, shared, thread: Some(thread), info }
    }

    /// Replaces `tensor` by the reduction of all ranks' tensors, element by element, and returns when it is here. Tells what it took.
    ///
    /// The result has the same bits on every rank. [`crate::numerics`] tells what it is for each type and operator.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the few combinations of type and operator that are not offered; otherwise why the communicator
    /// failed, and `tensor` holds partial results.
    pub fn all_reduce<T: Element>(&self, tensor: &mut [T], op: ReduceOp) -> Result<CallStats, Error> {
        let call = Call { kind: Kind::AllReduce(op), dtype: T::DTYPE, count: tensor.len() };
        self.run(call, true, bytemuck::cast_slice_mut(tensor))
    }

    /// Starts an all-reduce of a tensor that it takes, and returns at once. Any number may be in flight; they run in the order of their
    /// calls, overlapping.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; what happens later comes out of [`Handle::wait`].
    pub fn all_reduce_start<T: Element>(&self, tensor: Vec<T>, op: ReduceOp) -> Result<Handle<T>, Error> {
        let call = Call { kind: Kind::AllReduce(op), dtype: T::DTYPE, count: tensor.len() };
        let codec = call.codec(self.info.world_size)?;
        self.check()?;
        let (task, handle) = owned(tensor, &self.shared);
        self.submit(Command { call, codec, contributes: true, task });
        Ok(handle)
    }

    /// Replaces `tensor` by rank `root`'s, on every rank; the bits travel as they are.
    ///
    /// # Errors
    /// [`Error::Root`] when there is no such rank; otherwise as [`Communicator::all_reduce`].
    pub fn broadcast<T: Element>(&self, tensor: &mut [T], root: u32) -> Result<CallStats, Error> {
        let Info { rank, world_size, .. } = self.info;
        if root >= world_size {
            return Err(Error::Root { root, world_size });
        }
        let call = Call { kind: Kind::Broadcast { root }, dtype: T::DTYPE, count: tensor.len() };
        self.run(call, rank == root, bytemuck::cast_slice_mut(tensor))
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&self) -> Result<CallStats, Error> {
        let call = Call { kind: Kind::Barrier, dtype: DType::I32, count: 1 };
        self.run(call, true, &mut [0; 4])
    }

    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.info.rank
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.info.world_size
    }

    /// What was agreed when the communicator was made.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// What the data path has counted so far: all calls that have returned are in it.
    pub fn stats(&self) -> Stats {
        let Snapshot { engine, foreign, rtt, window, waits } = self.shared.snapshot();
        Stats { engine, foreign, rtt, window, waits, calls: self.shared.calls() }
    }

    /// Waits for the calls in flight, then leaves the job. The other ranks are not disturbed, unless they make further calls: those fail at once.
    ///
    /// # Errors
    /// Why the communicator failed, if it did.
    pub fn close(mut self) -> Result<(), Error> {
        self.end();
        self.check()
    }

    fn run(&self, call: Call, contributes: bool, bytes: &mut [u8]) -> Result<CallStats, Error> {
        let codec = call.codec(self.info.world_size)?;
        self.check()?;
        let finished = lend(bytes, |task: Box<dyn Task>| {
            if let Some(command) = self.seat.run(Command { call, codec, contributes, task }) {
                self.submit(command);
            }
        });
        finished.ok_or_else(|| self.shared.reason())
    }

    /// Hands a call to whoever drives. If the driver is gone, the task is dropped, which its owner hears.
    fn submit(&self, command: Command) {
        if let Some(commands) = &self.commands
            && commands.send(command).is_ok()
        {
            self.wake();
        }
    }

    fn wake(&self) {
        self.wakers.iter().for_each(Waker::wake);
    }

    fn check(&self) -> Result<(), Error> {
        self.shared.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn end(&mut self) {
        if std::thread::panicking() {
            // The other ranks must not wait for what will never be called.
            let _ = self.shared.failed.set(Error::Panicked);
        }
        self.commands = None;
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.end();
    }
}
