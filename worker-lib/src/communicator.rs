//! The communicator, which a training job calls.

use std::net::{SocketAddr, SocketAddrV4};
use std::ops::Range;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Once};
use std::time::Duration;

use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::ranks::Ranks;
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::{Call, Kind, Submission};
use switchml_worker_core::engine::EngineStats;
use switchml_worker_core::issued::Issued;
use switchml_worker_core::numerics::{Codec, DType, Element, Precision, Reduction};
use switchml_worker_core::packet::{ip_packet_len, packet_len};
use switchml_worker_core::shards::{Part, Shards};
use switchml_worker_core::spin::WaitStats;
use switchml_worker_core::stats::CallStats;
use switchml_worker_core::stripes::{self, Links};

use crate::buffers::{Tensor, give, lend};
use crate::commons::Commons;
use crate::driver::{DriverLock, Shared, Snapshot};
use crate::error::Error;
use crate::handle::{Deferred, Handle, Whole};
use crate::meeting::Host;
use crate::narrow_path::Narrow;
use crate::peers::OwnAggregator;
use crate::settings::{Form, LONGEST_WAIT, Value};
use crate::waker::Wakers;
use crate::warning::warn;

/// A rank's membership in a job of `world_size` ranks, and the collectives among them.
///
/// Every rank must make the same calls in the same order, with the same operator, element type and
/// number of elements; ranks that disagree all get an [`Error`] that says which rank called what.
/// Calls may come from several threads, if their order is the same on all ranks.
///
/// If one of several aggregators is lost, another one goes on with its part, and calls only take
/// longer. Any other failure is for good: all calls in flight and later ones return the error, and
/// the other ranks fail at once too, naming the rank or ranks at fault. Dropping the communicator
/// waits for the calls in flight, then leaves the job.
pub struct Communicator {
    /// Drivers by shard.
    drivers: Vec<Shard>,
    /// How calls are cut among them.
    shards: Shards,
    shared: Arc<Shared>,
    info: Info,
    /// The ranks that have left normally.
    departed: Box<dyn Fn() -> Ranks + Send + Sync>,
    /// The aggregator of this rank, if it has brought one; dropped after the drivers have ended.
    _own: Option<Arc<OwnAggregator>>,
    /// Where its ranks have met, on the rank that listens there.
    _host: Option<Arc<Host>>,
    _commons: Arc<Commons>,
    /// Set once the user was told that 8 bits travel as 16.
    widened: Once,
}

/// When a call that was started has a data thread drive it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wakes {
    AtOnce,
    /// Unless the thread that waits for it does.
    IfNotAwaited,
}

/// A shard's driver, for the threads that make calls.
pub(crate) struct Shard {
    pub submissions: Sender<Submission>,
    pub wakers: Wakers,
    pub driver: Arc<DriverLock>,
}

/// The values agreed on when the communicator was made.
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
    /// The narrow path, where the path to an aggregator carries less than both ends take.
    pub narrow: Option<Narrow>,
    /// The shortest round trip of the HELLOs that opened the data path.
    pub hello_rtt: Duration,
    /// The job's parts at its aggregators, at least one, in the same order on all ranks.
    pub stripes: Vec<Stripe>,
}

impl Info {
    /// The part of large calls that each aggregator takes, in the order of `stripes`; together they
    /// are 1, up to rounding.
    pub fn shares(&self) -> Vec<f64> {
        let weights: Vec<_> = self.stripes.iter().map(|stripe| stripe.weight).collect();
        stripes::shares(&weights).into_iter().map(|share| f64::from(share) / 1e4).collect()
    }
}

/// The part of a job that one of its aggregators adds up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The aggregator's control plane, as given.
    pub control: String,
    /// The rank that has brought the aggregator; `None` if it is a daemon.
    pub peer: Option<u16>,
    /// The aggregator's data plane.
    pub aggregator: SocketAddr,
    /// How much it takes of large calls, in proportion to the others.
    pub weight: u32,
    /// The links between it and the ranks, which the weight is computed from.
    pub links: Links,
    /// Data threads of each rank: large calls are cut into as many parts, which run side by side.
    pub data_threads: usize,
    /// Slots of the aggregator that each of them uses.
    pub slots: u16,
    /// Bytes of the tag that tells genuine packets from forged ones; 0 if the aggregator wants
    /// none.
    pub tag_len: usize,
    /// Multicast group of results; `None` when the aggregator sends each rank a copy of its own.
    pub multicast: Option<SocketAddrV4>,
    /// The RDMA device that packets to and from it go by; `None` for sockets.
    pub device: Option<String>,
    /// The capabilities of the aggregator's data plane. Without `CHECKED_MAXIMA` the ranks prove
    /// maxima to each other with one more packet, which costs small calls of floats a round trip.
    pub capabilities: Capabilities,
    /// The ranks of this host that add up before they send, with this one; none if it does not.
    pub local_ranks: Vec<u16>,
    /// Whether these are all ranks of the job, and add up in their memory in place of the
    /// aggregator.
    pub is_in_memory: bool,
}

impl Stripe {
    /// How results for all reach this rank from the start, and why; for people.
    pub fn results(&self) -> String {
        if let Some(device) = &self.device {
            return format!("by copies for this rank alone, by RDMA: {device}");
        }
        match self.multicast {
            Some(group) => format!("by multicast to {group}"),
            None if self.aggregator.is_ipv6() => {
                "by copies for this rank alone: there is no multicast over IPv6".to_owned()
            }
            None if self.capabilities.contains(Capabilities::GROUP_HELLOS) => {
                "by copies for this rank alone: multicast does not reach it".to_owned()
            }
            None => "by copies for this rank alone: the aggregator sends all results this way"
                .to_owned(),
        }
    }

    /// Bytes of the IP packet that carries a chunk of `lanes` lanes.
    pub fn ip_packet_bytes(&self, lanes: u16) -> usize {
        ip_packet_len(packet_len(lanes.into()) + self.tag_len, self.aggregator.is_ipv6())
    }
}

/// Counters of the data path. They include all calls that have returned, and part of the calls in
/// flight; `calls` counts only those that have returned.
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
    /// Times that an aggregator was lost, and another one has gone on with its part of calls.
    pub moves: u64,
}

impl Communicator {
    pub(crate) fn new(
        drivers: Vec<Shard>,
        shared: Arc<Shared>,
        info: Info,
        departed: impl Fn() -> Ranks + Send + Sync + 'static,
        (own, commons): (Option<Arc<OwnAggregator>>, Arc<Commons>),
    ) -> Self {
        Self {
            drivers,
            shards: info.shards(),
            shared,
            info,
            departed: Box::new(departed),
            _own: own,
            _host: None,
            _commons: commons,
            widened: Once::new(),
        }
    }

    /// The same, whose ranks have met here. It ends if ranks of another job may have come, too.
    pub(crate) fn met_at(mut self, host: Arc<Host>) -> Self {
        let shared = Arc::clone(&self.shared);
        host.on_mixed_up(move |error| shared.fail(error));
        self._host = Some(host);
        self
    }

    /// Replaces `tensor` by the reduction of all ranks' tensors, element by element, and waits for
    /// the result. Returns the call's statistics.
    ///
    /// The result has the same bits on every rank. [`switchml_worker_core::numerics`] specifies it
    /// for each type and operator. In sums and averages of floats an infinity or a NaN stays where
    /// it is if the tensor has at most 1024 elements of f32, f16 or bf16, and the elements travel
    /// with all their bits. Otherwise it makes all elements of its packet NaN, hundreds of them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for the few combinations of type and operator that are not offered,
    /// otherwise the reason why the communicator failed, and `tensor` holds partial results.
    pub fn all_reduce<T: Element>(
        &self,
        tensor: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<CallStats, Error> {
        let kind = Kind::AllReduce(op.into());
        let call = Call { kind, dtype: T::DTYPE, count: tensor.len() };
        self.run(call, bytemuck::cast_slice_mut(tensor))
    }

    /// Starts an all-reduce of a tensor, which it takes, and returns at once. Any number of calls
    /// may be in flight; they run in the order in which they were made, and overlap.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; later ones come out of [`Handle::wait`].
    pub fn all_reduce_start<T: Tensor>(
        &self,
        tensor: T,
        op: impl Into<Reduction>,
    ) -> Result<Handle<T>, Error> {
        self.start(Kind::AllReduce(op.into()), tensor, Wakes::AtOnce)
    }

    /// Starts an all-reduce for a caller that waits for it at once, and drives it meanwhile: unless
    /// the tensor is large, no other thread is woken up, which would take longer than a small call.
    /// If the caller does not wait, it runs once the handle is asked or dropped. All else is as of
    /// [`Communicator::all_reduce_start`].
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce_start`].
    pub fn all_reduce_deferred<T: Tensor>(
        &self,
        tensor: T,
        op: impl Into<Reduction>,
    ) -> Result<Handle<T>, Error> {
        self.start(Kind::AllReduce(op.into()), tensor, Wakes::IfNotAwaited)
    }

    /// Replaces `tensor` by rank `root`'s, on every rank; the bits are not changed.
    ///
    /// # Errors
    /// [`Error::Root`] when there is no such rank; otherwise the errors of
    /// [`Communicator::all_reduce`].
    pub fn broadcast<T: Element>(&self, tensor: &mut [T], root: u32) -> Result<CallStats, Error> {
        self.check_root(root)?;
        let call = Call { kind: Kind::Broadcast { root }, dtype: T::DTYPE, count: tensor.len() };
        self.run(call, bytemuck::cast_slice_mut(tensor))
    }

    /// Starts a broadcast of a tensor, which it takes, and returns at once, like
    /// [`Communicator::all_reduce_start`].
    ///
    /// # Errors
    /// The errors of [`Communicator::broadcast`]; later ones come out of [`Handle::wait`].
    pub fn broadcast_start<T: Tensor>(&self, tensor: T, root: u32) -> Result<Handle<T>, Error> {
        self.check_root(root)?;
        self.start(Kind::Broadcast { root }, tensor, Wakes::AtOnce)
    }

    /// Replaces this rank's [part](Self::part) of `tensor` by its reduction over all ranks, element
    /// by element; what is in the other parts then is not specified.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`].
    pub fn reduce_scatter<T: Element>(
        &self,
        tensor: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<CallStats, Error> {
        let kind = Kind::ReduceScatter(op.into());
        let call = Call { kind, dtype: T::DTYPE, count: tensor.len() };
        self.run(call, bytemuck::cast_slice_mut(tensor))
    }

    /// Starts a reduce-scatter of a tensor, which it takes, and returns at once, like
    /// [`Communicator::all_reduce_start`].
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; later ones come out of [`Handle::wait`].
    pub fn reduce_scatter_start<T: Tensor>(
        &self,
        tensor: T,
        op: impl Into<Reduction>,
    ) -> Result<Handle<T>, Error> {
        self.start(Kind::ReduceScatter(op.into()), tensor, Wakes::AtOnce)
    }

    /// Replaces each rank's [part](Self::part) of `tensor` by that rank's elements; the bits are
    /// not changed.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`].
    pub fn all_gather<T: Element>(&self, tensor: &mut [T]) -> Result<CallStats, Error> {
        let call = Call { kind: Kind::AllGather, dtype: T::DTYPE, count: tensor.len() };
        self.run(call, bytemuck::cast_slice_mut(tensor))
    }

    /// Starts an all-gather of a tensor, which it takes, and returns at once, like
    /// [`Communicator::all_reduce_start`].
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; later ones come out of [`Handle::wait`].
    pub fn all_gather_start<T: Tensor>(&self, tensor: T) -> Result<Handle<T>, Error> {
        self.start(Kind::AllGather, tensor, Wakes::AtOnce)
    }

    /// Starts an all-gather for a caller that waits for it at once, like
    /// [`Communicator::all_reduce_deferred`].
    ///
    /// # Errors
    /// The errors of [`Communicator::all_gather_start`].
    pub fn all_gather_deferred<T: Tensor>(&self, tensor: T) -> Result<Handle<T>, Error> {
        self.start(Kind::AllGather, tensor, Wakes::IfNotAwaited)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`].
    pub fn barrier(&self) -> Result<CallStats, Error> {
        let call = Call { kind: Kind::Barrier, dtype: DType::I32, count: 1 };
        self.run(call, &mut [0; 4])
    }

    /// Starts a barrier and returns at once, like [`Communicator::all_reduce_start`].
    ///
    /// # Errors
    /// The errors of [`Communicator::all_reduce`]; later ones come out of [`Handle::wait`].
    pub fn barrier_start(&self) -> Result<Handle<Vec<i32>>, Error> {
        self.start(Kind::Barrier, vec![0], Wakes::AtOnce)
    }

    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.info.rank
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.info.world_size
    }

    /// Rule 17.8: which of a tensor's `count` elements are a rank's part in reduce-scatters and
    /// all-gathers: from `count * rank / world_size` on, rounded down. Empty for a rank that is not
    /// in the job.
    pub fn part(&self, rank: u32, count: usize) -> Range<usize> {
        let call = Call { kind: Kind::AllGather, dtype: DType::F32, count };
        let start = |rank: u32| call.part_start(rank.min(self.world_size()), self.world_size());
        start(rank)..start(rank.saturating_add(1))
    }

    /// The values agreed on when the communicator was made.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The data path's counters so far, which include all calls that have returned.
    pub fn stats(&self) -> Stats {
        let Snapshot { engine, foreign, rtt, window, waits, .. } = self.shared.snapshot();
        let (calls, moves) = (self.shared.calls(), self.shared.moves());
        Stats { engine, foreign, rtt, window, waits, calls, moves }
    }

    /// The ranks that calls in flight have waited for for 5 s or longer, ascending.
    pub fn late_ranks(&self) -> Vec<u32> {
        self.shared.late_ranks()
    }

    /// Why the communicator has failed, if it has. No call is needed to hear of it.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failure().cloned()
    }

    /// The ranks that have left normally so far, ascending.
    pub fn departed(&self) -> Vec<u16> {
        (self.departed)().iter().collect()
    }

    /// Sets how long calls wait for other ranks from now on, including calls in flight; see
    /// [`Builder::timeout`](crate::Builder::timeout).
    ///
    /// # Errors
    /// [`Error::Setting`] for less than 0.1 s.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), Error> {
        Form::Seconds.check("timeout", &Value::Seconds(timeout))?;
        self.shared.set_timeout(timeout.min(LONGEST_WAIT));
        Ok(())
    }

    /// Ends all calls in flight, and all later ones, with [`Error::AbortedHere`], whichever ranks
    /// they wait for. It does not wait for these calls to end. The calls of the other ranks fail,
    /// too, and name this rank.
    pub fn abort(&self) {
        self.shared.fail(Error::AbortedHere);
    }

    /// As [`Self::abort`], because this rank and others go on without these ranks, in another job
    /// (rule 22.18). The calls fail with [`Error::AbortedWithout`], and those of the other ranks
    /// name the same ranks.
    ///
    /// ```no_run
    /// use switchml_worker::Communicator;
    ///
    /// # fn main() -> Result<(), switchml_worker::Error> {
    /// # let communicator = Communicator::from_env()?;
    /// // Rank 1 of 3 is lost. The other two go on, with another rank that comes as rank 2.
    /// communicator.abort_without(&[1]);
    /// let rank = if communicator.rank() == 0 { 0 } else { 1 };
    /// let next = Communicator::builder().env()?.job("train, second time").rank(rank);
    /// let communicator = next.world_size(3).connect()?;
    /// # communicator.close()
    /// # }
    /// ```
    pub fn abort_without(&self, ranks: &[u16]) {
        self.shared.fail(Error::AbortedWithout { ranks: ranks.to_vec() });
    }

    /// Waits for the calls in flight, then leaves the job. The other ranks are not disturbed,
    /// unless they make further calls, which fail at once.
    ///
    /// # Errors
    /// The reason why the communicator failed, if it did.
    pub fn close(mut self) -> Result<(), Error> {
        self.end();
        self.check()
    }

    fn run(&self, call: Call, bytes: &mut [u8]) -> Result<CallStats, Error> {
        let codec = self.codec(&call)?;
        self.check()?;
        let mut issued = self.shared.issued();
        let (number, turn) = issued.issue(call);
        let parts = self.cut(turn, call.kind, bytes.len(), codec);
        Self::note_cut(&mut issued, &parts, call.dtype);
        let whole = |answer| Whole::new(number, parts.len(), Arc::clone(&self.shared), answer);
        let finished = lend(bytes, &parts, whole, |buffers| {
            self.submit(number, call, codec, &parts, buffers);
            drop(issued);
            let mut shards = parts.iter().map(|part| &self.drivers[part.shard]);
            let first = shards.next();
            shards.for_each(|shard| shard.wakers.wake());
            // This thread waits anyway, so it drives the first part, unless another thread already
            // drives that shard.
            first
                .filter(|shard| !shard.driver.run(number, None))
                .inspect(|shard| shard.wakers.wake());
        });
        finished.ok_or_else(|| self.shared.reason())
    }

    fn start<T: Tensor>(
        &self,
        kind: Kind,
        mut tensor: T,
        wakes: Wakes,
    ) -> Result<Handle<T>, Error> {
        let (dtype, bytes) = (tensor.dtype(), tensor.bytes().len());
        let call = Call { kind, dtype, count: bytes / dtype.size() };
        let codec = self.codec(&call)?;
        self.check()?;
        let (answer, answers) = mpsc::channel();
        let mut issued = self.shared.issued();
        let (number, turn) = issued.issue(call);
        let parts = self.cut(turn, call.kind, bytes, codec);
        Self::note_cut(&mut issued, &parts, dtype);
        let whole = Whole::new(number, parts.len(), Arc::clone(&self.shared), answer);
        let (buffers, tensor) = give(tensor, &parts, whole);
        self.submit(number, call, codec, &parts, buffers);
        drop(issued);
        let mut shards = parts.iter().map(|part| &self.drivers[part.shard]);
        let first = shards.next();
        shards.for_each(|shard| shard.wakers.wake());
        let driver = first.map(|shard| Arc::clone(&shard.driver));
        let mut deferred = Deferred::new(first.map(|shard| shard.wakers.clone()));
        if wakes == Wakes::AtOnce {
            deferred.wake();
        }
        Ok(Handle::new((number, driver, deferred), answers, tensor, Arc::clone(&self.shared)))
    }

    /// How a call's elements travel. If that is in more bits than asked for, says so once.
    fn codec(&self, call: &Call) -> Result<Codec, Error> {
        let Info { job, rank, world_size, .. } = &self.info;
        let codec = call.codec(*world_size)?;
        if let Kind::AllReduce(Reduction { precision: Precision::Bits8, .. })
        | Kind::ReduceScatter(Reduction { precision: Precision::Bits8, .. }) = call.kind
            && codec.precision() != Precision::Bits8
        {
            self.widened.call_once(|| {
                let what = ": calls in 8 bits travel in 16, because more than 32 ranks would leave \
                            too few steps for each";
                warn(job, *rank, what);
            });
        }
        Ok(codec)
    }

    fn check_root(&self, root: u32) -> Result<(), Error> {
        let world_size = self.info.world_size;
        if root < world_size { Ok(()) } else { Err(Error::Root { root, world_size }) }
    }

    /// The parts of a call, one for each data thread that runs one.
    fn cut(&self, turn: u64, kind: Kind, bytes: usize, codec: Codec) -> Vec<Part> {
        self.shards.cut(turn, kind, bytes, codec, self.info.chunk_lanes)
    }

    /// Notes for reports how the last call was cut.
    fn note_cut(issued: &mut Issued, parts: &[Part], dtype: DType) {
        issued.note_cut(parts.iter().map(|part| (part.len / dtype.size()) as u64));
    }

    /// Hands the parts of a call to their drivers, which the caller must wake. If a driver is gone,
    /// its part is dropped, which the owner notices.
    fn submit(
        &self,
        number: u64,
        call: Call,
        codec: Codec,
        parts: &[Part],
        buffers: Vec<Box<dyn Buffer>>,
    ) {
        let mut first = 0;
        for (part, buffer) in parts.iter().zip(buffers) {
            let elements = (buffer.bytes().len() / call.dtype.size()) as u64;
            let submission = Submission { number, call, codec, first, buffer };
            let _ = self.drivers[part.shard].submissions.send(submission);
            first += elements;
        }
    }

    fn check(&self) -> Result<(), Error> {
        self.shared.failure().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn end(&mut self) {
        if std::thread::panicking() {
            // The other ranks must not wait for calls that will never be made.
            self.shared.fail(Error::Panicked);
        }
        end(std::mem::take(&mut self.drivers));
    }
}

/// Lets drivers finish their work, and waits until they have ended.
fn end(drivers: Vec<Shard>) {
    let end = |Shard { submissions, wakers, driver }| {
        drop(submissions);
        wakers.wake();
        driver
    };
    // All end at the same time: the last one leaves the job.
    let drivers: Vec<_> = drivers.into_iter().map(end).collect();
    drivers.iter().for_each(|driver| driver.wait_for_end());
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.end();
    }
}
