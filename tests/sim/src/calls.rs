//! A rank in a job that has started: makes its calls, and moves packets like the product's data
//! thread.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use switchml_control::Call;
use switchml_protocol::header::Header;
use switchml_worker_core::CallStats;
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::Submission;
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{Config, Engine, Failure, Identity, Limits};
use switchml_worker_core::issued::Issued;
use switchml_worker_core::packet::len_of;
use switchml_worker_core::session::Session;
use switchml_worker_core::wire::{TurnError, Wire};
use tracing::debug;
use zerocopy::FromBytes;

use crate::net::{Clock, Net, Violation, ensure};
use crate::oracle::{Standing, element_key};
use crate::program::Step;
use crate::scenario::{JobPlan, MS, Time};
use crate::surroundings::Surroundings;
use crate::tally::Fault;

/// A rank's calls, and its data path.
pub struct Calls {
    /// The worker's number, and its UDP port.
    worker: usize,
    port: u16,
    identity: Identity,
    data_path: DataPath,
    issued: Issued,
    program: Vec<Step>,
    /// Longest pause before a call, while faults last.
    pause: Time,
    /// Pause after each call.
    rest: Time,
    /// Place of the next call, and when it is made.
    next: usize,
    next_at: Time,
    returned: usize,
    tensors: Results,
    /// The time of the last progress: a result, or the first chunk after a pause.
    progress_at: Time,
    results: u64,
    /// When an intact answer to the oldest chunk has come without a result since then.
    answered_at: Option<Time>,
    /// Since when the rank would not be told of ranks that died.
    unwatched_since: Option<Time>,
    /// When the rank was last told that other ranks are waited for, in an intact packet or one with
    /// bytes appended.
    told_at: Time,
}

/// What follows a turn.
pub enum Turn {
    /// The next turn, at this time at the latest, or earlier if a packet comes.
    Next(Option<Time>),
    /// All calls have returned.
    Finished,
    /// The data path has failed.
    Failed(Failure),
}

/// Calls that have returned, by place, with their elements.
type Results = Arc<Mutex<Vec<(usize, Vec<u8>)>>>;

/// A call's elements, put where the simulator finds them when they are done.
struct Tensor {
    place: usize,
    bytes: Vec<u8>,
    done: Results,
}

impl Buffer for Tensor {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn finish(self: Box<Self>, _: CallStats) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push((self.place, self.bytes));
    }
}

/// The rank's cable, which loses packets one by one: of a superpacket some may arrive.
struct Outlet<'a> {
    net: &'a mut Net,
    worker: usize,
    port: u16,
    /// Packets of this turn.
    packets: u32,
    /// Packets of the superpacket, and how many of them are lost.
    together: u32,
    lost: u32,
}

impl Wire for Outlet<'_> {
    type Error = Violation;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Violation> {
        self.packets += 1;
        ensure!(self.packets <= 1 << 16, "worker {} sends without end", self.worker);
        let mut packet = vec![0xEE; len_of(header)];
        fill(&mut packet);
        let arrives = self.net.to_aggregator(self.worker, self.port, &packet);
        self.together += 1;
        self.lost += u32::from(!arrives);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Violation> {
        if 0 < self.lost && self.lost < self.together {
            self.net.tally.fault(Fault::TornBundle);
        }
        (self.together, self.lost) = (0, 0);
        Ok(())
    }
}

impl Calls {
    /// The calls of a worker's rank in a job that starts with chunks of `lanes` lanes.
    pub fn new(
        (worker, port): (usize, u16),
        (config, lanes): (Config, u16),
        rtt: Duration,
        plan: &JobPlan,
        program: Vec<Step>,
        now: Time,
    ) -> Self {
        let mut engine =
            Engine::starting_at(config, u64::from(plan.origin) * u64::from(config.slots));
        engine.sample_rtt(0, rtt.as_nanos() as u64);
        Self {
            worker,
            port,
            identity: config.identity,
            data_path: DataPath::new(engine, lanes, plan.batch),
            issued: Issued::default(),
            program,
            pause: plan.pause,
            rest: plan.rest,
            next: 0,
            next_at: now.max(plan.begin),
            returned: 0,
            tensors: Arc::default(),
            progress_at: now,
            results: 0,
            answered_at: None,
            unwatched_since: None,
            told_at: 0,
        }
    }

    /// The session has resumed: the rank says HELLO again.
    pub fn greet(&mut self, now: Time, secret: u32) {
        self.data_path.greet(now, secret);
    }

    /// A datagram has arrived.
    pub fn receive(
        &mut self,
        world: &mut Surroundings<'_>,
        packet: &[u8],
        congested: bool,
        intact: bool,
    ) -> Result<(), Failure> {
        let now = world.net.now;
        let before = self.data_path.engine().stats().clone();
        let oldest = self.data_path.engine().oldest();
        self.data_path.receive(now, packet, congested)?;
        let after = self.data_path.engine().stats();
        for ((total, before), after) in
            world.net.tally.ignored.iter_mut().zip(before.ignored).zip(after.ignored)
        {
            *total += after - before;
        }
        if after.pending > before.pending {
            self.told_at = now;
        }
        let counts = after.results == before.results && after.ignored == before.ignored;
        if intact && counts && answers(packet, oldest, self.identity.epoch) {
            self.answered_at = Some(now);
        }
        Ok(())
    }

    /// Takes a turn, like `Driver::drive`. The rank was frozen until `stalled`.
    pub fn turn(
        &mut self,
        world: &mut Surroundings<'_>,
        session: &Session,
        stalled: Time,
    ) -> Result<Turn, Violation> {
        self.make_calls(world)?;
        let now = world.net.now;
        let Identity { rank, epoch, .. } = self.identity;
        let outstanding = self.data_path.engine().outstanding();
        let others = Others { departed: session.departed(), are_watched: session.is_watched() };
        let unwatched_since = self.unwatched_since.unwrap_or(now);
        self.unwatched_since = (!session.is_watched()).then_some(unwatched_since);
        let mut outlet = Outlet {
            net: &mut *world.net,
            worker: self.worker,
            port: self.port,
            packets: 0,
            together: 0,
            lost: 0,
        };
        match self.data_path.turn(now, others, &mut outlet) {
            Ok(_) => {}
            Err(TurnError::DataPath(failure)) => return Ok(Turn::Failed(failure)),
            Err(TurnError::Wire(violation)) => return Err(violation),
        }
        for stats in self.data_path.done() {
            world.net.tally.ahead += stats.speculative;
            world.net.tally.ahead_in_vain += stats.misspeculated;
            world.net.tally.empty += stats.empty;
            world.net.tally.rooms += stats.rooms;
        }
        self.data_path.give_back();
        self.note_progress(now, outstanding);
        self.check_waits(now, stalled, world)?;
        let done = mem::take(&mut *self.tensors.lock().unwrap_or_else(PoisonError::into_inner));
        let has_news = !done.is_empty();
        self.returned += done.len();
        if has_news {
            self.next_at = self.next_at.max(now + self.rest);
        }
        for (place, bytes) in done {
            self.issued.finish(place as u64);
            world.oracle.result(world.net, epoch, rank, place, bytes)?;
        }
        let is_idle = self.data_path.is_idle();
        if self.next == self.program.len() && is_idle {
            return Ok(Turn::Finished);
        }
        let deadline = self.data_path.deadline();
        ensure!(
            is_idle || deadline.is_some(),
            "rank {rank} has calls in flight, and waits for nothing"
        );
        let call = (self.next < self.program.len() && self.next_at > now).then_some(self.next_at);
        // The next call may have waited for these results.
        let call = if has_news { Some(now) } else { call };
        Ok(Turn::Next(deadline.into_iter().chain(call).min()))
    }

    /// Makes the calls whose time has come.
    fn make_calls(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let now = world.net.now;
        let pause = if world.healed { 0 } else { self.pause };
        let Identity { rank, ranks, epoch, .. } = self.identity;
        while let Some(step) = self.program.get(self.next).copied()
            && self.next_at <= now
            && (!step.waits || self.returned == self.next)
        {
            let Self { worker, next, .. } = *self;
            debug!("{} worker {worker} makes call {next}: {:?}", Clock(now), step.call);
            let Ok(codec) = step.call.codec(ranks.into()) else {
                return Err(Violation(format!("{:?} is not offered", step.call)));
            };
            world.oracle.call(epoch, rank, next, step, now);
            let bytes = step.elements(element_key(epoch, next), rank);
            let buffer = Box::new(Tensor { place: next, bytes, done: Arc::clone(&self.tensors) });
            let number = self.issued.issue(step.call);
            let call = step.call;
            let submission = Submission { number, call, codec, first: 0, buffer };
            self.data_path.submit(submission);
            self.next += 1;
            self.next_at = now + world.net.rng.below(pause + 1);
        }
        Ok(())
    }

    /// Whether no results come by multicast.
    pub fn hears_no_group(&self) -> bool {
        self.data_path.engine().hears_no_group()
    }

    /// Number of the last call in flight up to that of collective `last`.
    pub fn last_call(&self, last: u64) -> Option<u64> {
        self.data_path.calls_in_flight(last).last().map(|(number, _)| number)
    }

    /// The calls to be reported up to call `last`.
    pub fn open(&self, last: u64) -> Vec<Call> {
        let calls = self.issued.open(last);
        calls.map(|(number, call)| Call { number: number + 1, call: call.to_string() }).collect()
    }

    /// The state of the rank.
    pub fn standing(&self, world: &Surroundings<'_>) -> Standing {
        Standing {
            rank: self.identity.rank,
            epoch: self.identity.epoch,
            oldest: self.data_path.engine().oldest(),
            answered_at: self.answered_at,
            now: world.net.now,
            deadline: world.scenario.limits.deadline.as_nanos() as Time,
        }
    }

    fn note_progress(&mut self, now: Time, outstanding_before: u32) {
        let engine = self.data_path.engine();
        if engine.stats().results > self.results
            || (outstanding_before == 0 && engine.outstanding() > 0)
        {
            self.results = engine.stats().results;
            self.progress_at = now;
            self.answered_at = None;
        }
    }

    /// Checks that the rank does not wait for the aggregator beyond the deadline, or for other
    /// ranks beyond the timeout. For a rank that was frozen until `stalled`, the deadline starts
    /// again then; while the other ranks are not watched, the deadline counts for them from then on
    /// (rule 14.3).
    fn check_waits(
        &self,
        now: Time,
        stalled: Time,
        world: &Surroundings<'_>,
    ) -> Result<(), Violation> {
        let Limits { deadline, timeout } = world.scenario.limits;
        let end = |from: Time, limit: Duration| from.saturating_add(limit.as_nanos() as Time);
        let since = self.progress_at.max(stalled.min(now));
        let silence = end(since.max(self.told_at), deadline);
        let alone = since.max(self.unwatched_since.unwrap_or_default());
        let wait = end(self.progress_at, timeout).max(end(alone, deadline));
        ensure!(
            self.data_path.engine().outstanding() == 0 || now < silence.min(wait) + MS,
            "rank {} waits since {}, told why at {}, beyond {:?}",
            self.identity.rank,
            Clock(self.progress_at),
            Clock(self.told_at),
            world.scenario.limits
        );
        Ok(())
    }
}

/// Whether an answer belongs to this chunk of this session. A HELLO that comes back is no answer
/// (rule 14.1).
fn answers(packet: &[u8], chunk: Option<(u16, u32)>, epoch: u32) -> bool {
    Header::ref_from_prefix(packet).is_ok_and(|(header, _)| {
        header.kind != switchml_protocol::header::Kind::Hello as u8
            && Some((header.slot.get(), header.round.get())) == chunk
            && header.epoch.get() == epoch
    })
}
