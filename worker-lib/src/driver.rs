//! Moves packets between the transport and the data path, on the thread that drives: a caller's, or
//! the data thread.
//!
//! A caller that waits for its call anyway drives it itself, which saves waking up two threads. The
//! data thread drives what is in flight while nobody waits, and calls that were made while somebody
//! else drove; otherwise it sleeps. Between calls no thread reads the sockets.
//!
//! A driver is behind a lock, the [`DriverLock`]: the thread that has the lock drives. If a caller
//! lets go of the lock and work is left, it asks for a data thread's turn (`data_threads`). A call
//! that was started for a caller that waits at once ([`Communicator::all_reduce_deferred`]) asks
//! for a turn only if that caller does not wait.
//!
//! A turn of the loop is [`DataPath::turn`], over a [`Wire`] for the packets that leave. Packets
//! that arrive go into [`DataPath::receive`]. Between turns the driver waits, as [`Spin`] says.
//! The simulator and the fuzz targets have the same loop, over wires of their own.
//!
//! If a call fails, the last driver first tells the aggregator why, which takes at most a second.
//! The callers get the error after that: their process may end at once, and the other ranks must
//! learn the reason before that.
//!
//! [`Communicator::all_reduce_deferred`]: crate::Communicator::all_reduce_deferred

mod changeover;
mod in_calls;
mod moving;
#[cfg(test)]
mod orders;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddrV4;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use switchml_control as control;
use switchml_protocol::bpf_types::times::Times;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::header::Header;
use switchml_worker_core::WaitStats;
use switchml_worker_core::call::Submission;
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{EngineStats, Failure, Waiting};
use switchml_worker_core::issued::{Issued, Open};
use switchml_worker_core::local_sum::Outlet;
use switchml_worker_core::packet::len_of;
use switchml_worker_core::spin::Spin;
use switchml_worker_core::stats::{CallStats, RoundTrips};
use switchml_worker_core::wire::{TurnError, Wire};

use crate::control::{Membership, Sessions};
use crate::data_threads::{Drives, Turns};
use crate::error::Error;
use crate::interface::MacChange;
use crate::late_ranks::{LONG, LateRanks};
use crate::local_sums::{LocalResults, SharedMemory};
use crate::lock::lock;
use crate::no_multicast::NoMulticast;
use crate::transport::Transport;
use crate::waker::Wakers;
use crate::yield_core::Core;
pub(crate) use in_calls::InCalls;
pub(crate) use moving::{Arrival, Handover, Moves};

/// What [`changeover`] is made of.
mod sync {
    pub use std::sync::atomic::{AtomicBool, Ordering};
    pub use std::sync::{Mutex, MutexGuard, PoisonError};
}

/// State that the drivers share with each other and with the callers.
pub(crate) struct Shared {
    /// Why the communicator failed. The first reason counts.
    failed: OnceLock<Error>,
    shards: Vec<Shard>,
    issued: Mutex<Issued>,
    /// Statistics of all calls that were given back.
    calls: Mutex<CallStats>,
    /// What concerns one of the job's aggregators, by stripe.
    stripes: Vec<OfAggregator>,
    /// How long calls wait for other ranks.
    timeout: Mutex<Duration>,
    late_ranks: LateRanks,
    /// Called when the communicator fails.
    on_fail: OnceLock<OnFail>,
    /// Times that another aggregator went on in place of a lost one.
    moves: AtomicU64,
}

/// Called when the communicator fails.
type OnFail = Box<dyn Fn(&Error) + Send + Sync>;

struct OfAggregator {
    /// Round trips of calls' parts that were not reported to it yet.
    unreported_round_trips: Mutex<Times>,
    no_multicast: NoMulticast,
}

/// A driver, as seen by the other drivers.
struct Shard {
    stripe: usize,
    wakers: Wakers,
    stats: Mutex<Snapshot>,
}

/// The data path's counters at some moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub engine: EngineStats,
    pub foreign: u64,
    pub rtt: Option<Duration>,
    pub window: u32,
    pub waits: WaitStats,
    /// How long calls have been in flight.
    pub in_calls: Duration,
}

impl AddAssign<&Self> for Snapshot {
    fn add_assign(&mut self, other: &Self) {
        self.engine += &other.engine;
        self.foreign += other.foreign;
        self.rtt = self.rtt.max(other.rtt);
        self.window += other.window;
        self.waits += &other.waits;
        self.in_calls = self.in_calls.max(other.in_calls);
    }
}

impl Shared {
    /// The shared state of this rank's drivers: the stripe of each, and what wakes it.
    pub fn new(shards: Vec<(usize, Wakers)>, job: &str, rank: u32, timeout: Duration) -> Self {
        let stripes = shards.last().map_or(0, |(stripe, _)| stripe + 1);
        let of_aggregator = |_| OfAggregator {
            unreported_round_trips: Mutex::default(),
            no_multicast: NoMulticast::new(job.to_owned(), rank),
        };
        let shard = |(stripe, wakers)| Shard { stripe, wakers, stats: Mutex::default() };
        Self {
            failed: OnceLock::new(),
            shards: shards.into_iter().map(shard).collect(),
            issued: Mutex::default(),
            calls: Mutex::default(),
            stripes: (0..stripes).map(of_aggregator).collect(),
            timeout: Mutex::new(timeout),
            late_ranks: LateRanks::new(job.to_owned(), rank),
            on_fail: OnceLock::new(),
            moves: AtomicU64::new(0),
        }
    }

    /// Ends all drivers with this reason, unless there is one already.
    pub fn fail(&self, error: Error) {
        if self.failed.set(error.clone()).is_ok() {
            self.shards.iter().for_each(|shard| shard.wakers.wake());
            self.on_fail.get().into_iter().for_each(|on_fail| on_fail(&error));
        }
    }

    /// Has `on_fail` called if the communicator fails later. Only the first one counts.
    pub fn on_fail(&self, on_fail: impl Fn(&Error) + Send + Sync + 'static) {
        let _ = self.on_fail.set(Box::new(on_fail));
    }

    /// Counts a move of shards to another aggregator.
    pub fn count_move(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// How often shards went on at another aggregator.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Sets how long calls wait for other ranks, including calls in flight.
    pub fn set_timeout(&self, timeout: Duration) {
        *lock(&self.timeout) = timeout;
        self.shards.iter().for_each(|shard| shard.wakers.wake());
    }

    /// Why the communicator failed, if it did.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.get()
    }

    /// Why the drivers are gone.
    pub fn reason(&self) -> Error {
        self.failed.get().cloned().unwrap_or(Error::Closed)
    }

    /// The counters of all data paths together; the longest round trip.
    pub fn snapshot(&self) -> Snapshot {
        let mut sum = Snapshot::default();
        self.shards.iter().for_each(|shard| sum += &*lock(&shard.stats));
        sum
    }

    /// All calls that were given back.
    pub fn calls(&self) -> CallStats {
        lock(&self.calls).clone()
    }

    /// The calls so far, for one more.
    pub fn issued(&self) -> MutexGuard<'_, Issued> {
        lock(&self.issued)
    }

    /// A call is about to be given back.
    pub fn finish_call(&self, number: u64, stats: &CallStats) {
        self.issued().finish(number);
        self.late_ranks.forget(number);
        *lock(&self.calls) += stats;
    }

    /// A shard has done its part of a call, with these round trips.
    pub fn finish_part(&self, shard: usize, round_trips: &RoundTrips) {
        let stripe = self.shards.get(shard).and_then(|shard| self.stripes.get(shard.stripe));
        if let Some(stripe) = stripe {
            round_trips.add_to(&mut lock(&stripe.unreported_round_trips));
        }
    }

    /// The ranks that the oldest call has waited for long, ascending.
    pub fn late_ranks(&self) -> Vec<u32> {
        self.late_ranks.ranks()
    }

    /// Takes the round trips to an aggregator that were not reported to it yet.
    pub fn take_round_trips(&self, stripe: usize) -> Times {
        std::mem::take(&mut lock(&self.stripes[stripe].unreported_round_trips))
    }

    /// What became of this rank's packets to an aggregator, as far as drivers know.
    pub fn path(&self, stripe: usize) -> control::Path {
        let mut sum = Snapshot::default();
        let shards = self.shards.iter().filter(|shard| shard.stripe == stripe);
        shards.for_each(|shard| sum += &*lock(&shard.stats));
        control::Path {
            joined_ms: 0,
            in_calls_ms: sum.in_calls.as_millis() as u64,
            sent: sum.engine.chunks + sum.engine.resent(),
            resent: sum.engine.resent(),
            pending: sum.engine.pending,
            lost: sum.engine.lost(),
        }
    }

    /// The calls to be reported up to call `last`, with their numbers from 1, for people (rule
    /// 22.12).
    pub fn open_calls(&self, last: u64) -> Vec<control::Call> {
        let told = |&Open { number, call, cut }: &Open| {
            let (number, call) = (number + 1, call.to_string());
            control::Call { number, call, cut }
        };
        self.issued().open(last).map(told).collect()
    }
}

/// The driver. The thread that has the lock drives.
pub(crate) struct DriverLock {
    /// `None` once the communicator is closed or has failed.
    driver: Mutex<Option<Driver>>,
    /// When a data thread drives.
    turns: Turns,
    has_ended: OnceLock<()>,
}

/// The calls of drivers that have ended. Dropping them tells the callers that wait for them.
pub(crate) type Unanswered = Arc<Mutex<Vec<(DataPath, Receiver<Submission>)>>>;

/// The state of a driver.
pub(crate) struct Driver {
    /// The driver's index among the drivers.
    pub shard: usize,
    /// The index of its aggregator among those of the job.
    pub stripe: usize,
    /// Whether that is in another rank's process.
    pub is_peers: bool,
    pub transport: Box<dyn Transport>,
    pub data_path: DataPath,
    pub submissions: Receiver<Submission>,
    /// The session at the aggregator.
    pub membership: Arc<Membership>,
    /// Left by the last driver.
    pub sessions: Arc<Sessions>,
    /// Dropped by the last driver.
    pub unanswered: Unanswered,
    pub shared: Arc<Shared>,
    /// The multicast group of results for all, if they come by multicast.
    pub group: Option<SocketAddrV4>,
    /// When the data path's time starts.
    pub begin: Instant,
    pub spin: Spin,
    /// The secret that HELLOs carry, and how often the control plane asked for them again.
    pub hellos: (u32, u64),
    /// What it shares with other ranks of this host, if there are any.
    pub shared_memory: Option<SharedMemory>,
    /// How it gets to another aggregator, if the job has one.
    pub moves: Option<Moves>,
    /// Packets that came from elsewhere than earlier aggregators.
    pub foreign: u64,
    pub in_calls: InCalls,
}

impl Drives for DriverLock {
    /// A data thread's turn: drives calls that no caller waits for. Leaves the job if the
    /// communicator is closed, or something fails.
    fn serve(&self) {
        let mut end = End { lock: self, outcome: Some(Err(Error::Panicked)) };
        end.outcome = loop {
            self.turns.take();
            match self.drive_all() {
                Ok(true) if self.turns.is_asked_again() => {}
                Ok(true) => break None,
                Ok(false) => break Some(Ok(())),
                Err(error) => break Some(Err(error)),
            }
        };
    }
}

impl DriverLock {
    /// A lock around `driver`; callers must ask for one of `turns` when there are submissions, when
    /// they end, and when the communicator has failed.
    pub fn new(driver: Driver, turns: Turns) -> Self {
        Self { driver: Mutex::new(Some(driver)), turns, has_ended: OnceLock::new() }
    }

    /// Drives on this thread until call `number`, which is among the submissions, is done, or until
    /// `until`; false if another thread drives. The submission's buffer is gone on return, unless
    /// `until` has passed, or will be soon if something failed.
    pub fn run(&self, number: u64, until: Option<Instant>) -> bool {
        // Dropped last, so that the lock is free when the turn begins.
        let mut turn = TurnOnDrop { turns: &self.turns, is_needed: false };
        let Ok(mut guard) = self.driver.try_lock() else { return false };
        let Some(driver) = guard.as_mut() else { return false };
        turn.is_needed = true;
        turn.is_needed = driver.run(number, until).is_err() || !driver.data_path.is_idle();
        true
    }

    /// Sends what call `number` and those before it may send now, unless another thread drives.
    /// Asks for no turn: who waits for the call drives it, or has it driven.
    pub fn send(&self, number: u64) {
        let mut turn = TurnOnDrop { turns: &self.turns, is_needed: false };
        let Ok(mut guard) = self.driver.try_lock() else { return };
        let Some(driver) = guard.as_mut() else { return };
        turn.is_needed = true;
        turn.is_needed = driver.run(number, Some(Instant::now())).is_err();
    }

    /// Waits until the driver has ended.
    pub fn wait_for_end(&self) {
        self.has_ended.wait();
    }

    /// Drives until nothing is in flight. Returns whether there may be more later.
    fn drive_all(&self) -> Result<bool, Error> {
        if self.driver.is_poisoned() {
            return Err(Error::Panicked);
        }
        let mut guard = self.lock();
        let Some(driver) = guard.as_mut() else { return Ok(false) };
        let is_open = driver.take_submissions();
        driver.drive(DataPath::is_idle, None)?;
        if is_open {
            driver.publish();
        }
        Ok(is_open)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Driver>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks for a turn of a data thread if it is needed after this thread, also when this thread
/// unwinds.
struct TurnOnDrop<'a> {
    turns: &'a Turns,
    is_needed: bool,
}

impl Drop for TurnOnDrop<'_> {
    fn drop(&mut self) {
        if self.is_needed {
            self.turns.ask();
        }
    }
}

/// Ends the driver after a data thread's turn, if that has an outcome, and if it unwinds. That
/// tells the other drivers and the callers that wait for buffers.
struct End<'a> {
    lock: &'a DriverLock,
    outcome: Option<Result<(), Error>>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let Some(outcome) = self.outcome.take() else { return };
        let driver = self.lock.lock().take();
        if let Some(driver) = driver {
            driver.end(outcome);
        }
        self.lock.turns.end();
        let _ = self.lock.has_ended.set(());
    }
}

/// The transport, as what a turn's packets leave by.
struct Batches<'a>(&'a mut dyn Transport);

impl Wire for Batches<'_> {
    type Error = io::Error;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> io::Result<()> {
        self.0.packet(len_of(header)).map(fill)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Takes a turn's packets after a failure: no rank waits for them any more.
struct Nowhere;

impl Wire for Nowhere {
    type Error = Infallible;

    fn put(&mut self, _: &Header, _: impl FnOnce(&mut [u8])) -> Result<(), Infallible> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Driver {
    /// Ends the driver, after all collectives are done or because something failed. The last driver
    /// leaves the job.
    fn end(self, outcome: Result<(), Error>) {
        if let Err(error) = outcome {
            self.shared.fail(error);
        }
        self.publish();
        let Self { data_path, submissions, membership, sessions, unanswered, shared, .. } = self;
        // Those that wait for the last goodbye are the sessions.
        drop(membership);
        lock(&unanswered).push((data_path, submissions));
        let Some(sessions) = Arc::into_inner(sessions) else { return };
        // Who ended one session has told its ranks why; those at other aggregators hear it from
        // this rank.
        match shared.failure() {
            None => sessions.leave(),
            Some(Error::Control(_)) if sessions.all().len() == 1 => sessions.leave(),
            Some(own) => sessions.fail(&own.cause(), own.ranks()),
        }
        // Calls are dropped only now: the process may end as soon as one of its calls fails, and
        // the other ranks must hear why before they hear that it is gone. Callers find the reason
        // in `failed`.
        lock(&unanswered).clear();
    }

    /// Runs call `number`, and the calls in flight before it, until it is done, or until `until`.
    fn run(&mut self, number: u64, until: Option<Instant>) -> Result<(), Error> {
        let outcome = self.drive(|data_path| data_path.is_done(number), until);
        if let Err(error) = &outcome {
            self.shared.fail(error.clone());
        }
        outcome
    }

    /// Moves packets until `is_enough` returns true, or until `until`.
    fn drive(
        &mut self,
        is_enough: impl Fn(&DataPath) -> bool,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        let mut core = Core::default();
        loop {
            if let Some(error) = self.shared.failure().cloned() {
                self.take_last_results();
                return Err(error);
            }
            self.take_submissions();
            if !self.is_connected() {
                if is_enough(&self.data_path) || until.is_some_and(|until| Instant::now() >= until)
                {
                    return Ok(());
                }
                self.wait_for_another(until)?;
                continue;
            }
            let sent = self.send();
            let Some(mut packets) = self.unless_lost(sent)? else { continue };
            if is_enough(&self.data_path) || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            let received = self.read_or_receive();
            let Some(received) = self.unless_lost(received)? else { continue };
            packets += received;
            if packets > 0 {
                self.spin.end(self.now());
            } else if !self.spin.look_again(self.now(), || core.offer()) {
                self.publish();
                self.wait(until)?;
                core = Core::default();
                self.spin.end(self.now());
            }
        }
    }

    /// Takes the results that came before the news that the communicator failed, so that their
    /// calls succeed: a rank that has the same results may have ended because of that.
    fn take_last_results(&mut self) {
        while self.is_connected() && self.read_or_receive().is_ok_and(|packets| packets > 0) {
            // In a turn a call finds out that nothing is left to send.
            let others = self.others();
            let _ = self.data_path.turn(self.now(), others, &mut Nowhere);
            self.give_back();
        }
    }

    /// Takes new collectives. Returns whether there may be more.
    fn take_submissions(&mut self) -> bool {
        loop {
            match self.submissions.try_recv() {
                Ok(submission) => {
                    self.in_calls.begin(self.now());
                    self.data_path.submit(submission);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Takes the packets that have arrived. Returns their number. Where results come by shared
    /// memory, a look at the sockets costs a system call, and can wait until there are none.
    fn read_or_receive(&mut self) -> Result<usize, Error> {
        match self.read()? {
            0 => self.receive(),
            packets => Ok(packets),
        }
    }

    /// Reads what another rank of this host has posted.
    fn read(&mut self) -> Result<usize, Error> {
        let now = self.now();
        let Self { shared_memory, data_path, .. } = self;
        let mut packets = 0;
        let Some(memory) = shared_memory else { return Ok(0) };
        while let Some(packet) = memory.read(|slot, round| data_path.engine().awaits(slot, round)) {
            packets += 1;
            if let Err(failure) = data_path.receive(now, &packet, false) {
                return Err(self.explain(now, failure));
            }
        }
        self.give_back();
        Ok(packets)
    }

    /// Receives the packets that have come from the aggregator.
    fn receive(&mut self) -> Result<usize, Error> {
        let now = self.now();
        let Self { transport, data_path, shared_memory, .. } = self;
        let mut local_results = shared_memory.as_mut().and_then(SharedMemory::results);
        let mut failure = None;
        let packets = transport
            .receive(&mut |packet, congested| {
                let post = |header: &Header, payload: &[u8]| {
                    local_results.iter_mut().for_each(|results| results.post(header, payload));
                };
                if let Err(refused) = data_path.receive_and(now, packet, congested, post) {
                    // The first failure counts.
                    failure.get_or_insert(refused);
                }
            })
            .map_err(Error::system("cannot receive packets"))?;
        local_results.into_iter().for_each(LocalResults::ring);
        self.give_back();
        match failure {
            None => Ok(packets),
            Some(failure) => Err(self.explain(now, failure)),
        }
    }

    /// Sends the packets that are due and that the window allows. Returns their number.
    fn send(&mut self) -> Result<usize, Error> {
        let now = self.now();
        self.data_path.set_timeout(*lock(&self.shared.timeout));
        let others = self.others();
        self.greet(now);
        let packets = match self.turn(now, others) {
            Ok(packets) => packets,
            Err(TurnError::DataPath(failure)) => return Err(self.explain(now, failure)),
            // The MTU of the host's own interface has become smaller.
            Err(TurnError::Wire(error)) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                return Err(self.path_shrank());
            }
            Err(TurnError::Wire(error)) => {
                return Err(Error::system("cannot send packets")(error));
            }
        };
        self.say_who_is_late(now);
        self.give_back();
        Ok(packets)
    }

    /// What the control plane knows of the other ranks.
    fn others(&self) -> Others {
        Others {
            departed: self.membership.departed(),
            // Rule 14.3: with others left, the session ends by itself.
            are_watched: self.moves.is_some() || self.membership.is_watched(),
            stand_still: self.is_peers && self.membership.stands_still(),
        }
    }

    /// A turn of the data path, whose packets go to memory that serves them, or to the aggregator.
    fn turn(&mut self, now: u64, others: Others) -> Result<usize, TurnError<io::Error>> {
        let local_sums = match &mut self.shared_memory {
            Some(SharedMemory::Slots(slots)) => {
                let turn = self.data_path.turn(now, others, slots);
                return turn.map_err(|error| match error {
                    TurnError::DataPath(failure) => TurnError::DataPath(failure),
                    TurnError::Wire(never) => match never {},
                });
            }
            Some(SharedMemory::Sums(sums, _)) => Some(sums),
            None => None,
        };
        let wire = Batches(self.transport.as_mut());
        self.data_path.turn(now, others, &mut Outlet { wire, local_sums })
    }

    /// Has the data path say HELLO again if the control plane wants that.
    fn greet(&mut self, now: u64) {
        let (secret, asked) = &mut self.hellos;
        let hellos = self.membership.hellos();
        if std::mem::replace(asked, hellos) != hellos {
            self.data_path.greet(now, *secret);
        }
    }

    fn say_who_is_late(&self, now: u64) {
        if let Some((Waiting { ranks, time, .. }, number, call)) =
            self.data_path.waiting_for(LONG, now)
        {
            self.shared.late_ranks.report(
                Instant::now(),
                Duration::from_nanos(time),
                &ranks,
                number,
                call,
            );
        }
    }

    /// Ends the calls that are done, after adding them to the statistics.
    fn give_back(&mut self) {
        if self.data_path.has_done() {
            if self.data_path.is_idle() {
                self.in_calls.end(self.now());
            }
            self.publish();
            self.data_path.give_back();
        }
    }

    /// Waits for packets, or until `until`.
    fn wait(&mut self, until: Option<Instant>) -> Result<(), Error> {
        let now = self.now();
        self.say_if_no_group_is_heard();
        let due = self.data_path.deadline().map(|at| Duration::from_nanos(at.saturating_sub(now)));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = [due, left].into_iter().flatten().min();
        let Self { transport, shared_memory, .. } = self;
        let outcome = match shared_memory {
            Some(memory) => memory.wait(|bell| transport.wait(timeout, bell)),
            None => transport.wait(timeout, None),
        };
        outcome.map_err(Error::system("cannot wait for packets"))
    }

    /// Results that do not come by multicast keep the rank waiting, so it comes by here.
    fn say_if_no_group_is_heard(&self) {
        let engine = self.data_path.engine();
        let gets_copies = engine.config().capabilities.contains(Capabilities::GROUP_HELLOS);
        if let Some(group) = self.group
            && engine.hears_no_group()
            && self.shared.stripes[self.stripe].no_multicast.report(group, gets_copies)
        {
            self.membership.report_no_multicast();
        }
    }

    /// The error that a failure is, in the control plane's words if it has any.
    fn explain(&mut self, now: u64, failure: Failure) -> Error {
        let call = match failure {
            Failure::Mismatch { collective, .. } => {
                self.data_path.calls_in_flight(collective).last().map(|(number, _)| number)
            }
            _ => None,
        };
        if let Some(reason) = self.membership.explain(failure, call) {
            return reason.into();
        }
        if failure == Failure::Silent && self.transport.take_too_long() {
            return self.path_shrank();
        }
        if failure == Failure::Silent
            && let Some(MacChange { interface, before, now }) = self.transport.mac_change()
        {
            let aggregator = self.transport.aggregator().into();
            return Error::MacChanged { aggregator, interface, before, now }
                .served_by(self.membership.peer());
        }
        let engine = self.data_path.engine();
        let waited = match failure {
            // The time that had passed when the call failed, in tenths of a second.
            Failure::Missing(_) => {
                engine.waiting(now).map_or(0, |waiting| waiting.time / 100_000_000 * 100_000_000)
            }
            _ => engine.config().deadline,
        };
        let waited = Duration::from_nanos(waited);
        Error::from_failure(failure, self.transport.aggregator(), waited)
            .served_by(self.membership.peer())
    }

    fn path_shrank(&self) -> Error {
        let aggregator = self.transport.aggregator().into();
        Error::PathShrank { aggregator }.served_by(self.membership.peer())
    }

    fn publish(&self) {
        let engine = self.data_path.engine();
        let snapshot = Snapshot {
            engine: engine.stats().clone(),
            foreign: self.foreign + self.transport.foreign(),
            rtt: engine.rtt().map(Duration::from_nanos),
            window: engine.window(),
            waits: self.spin.stats(),
            in_calls: self.in_calls.total(self.now()),
        };
        *lock(&self.shared.shards[self.shard].stats) = snapshot;
    }

    /// The data path's time.
    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}
