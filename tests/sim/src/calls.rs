//! A rank in a job that has started: makes its calls, cuts them into parts for its shards, and
//! gathers their results.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use switchml_control::Call;
use switchml_worker_core::CallStats;
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::Submission;
use switchml_worker_core::engine::{Failure, Identity};
use switchml_worker_core::issued::Issued;
use switchml_worker_core::session::Session;
use switchml_worker_core::shards::{self, Shards};
use tracing::debug;

use crate::hosts::Doom;
use crate::net::{Clock, Violation};
use crate::oracle::{Standing, element_key};
use crate::program::Step;
use crate::scenario::{JobPlan, Time};
use crate::shard::Shard;
use crate::surroundings::Surroundings;

/// A rank's calls, and its shards.
pub struct Calls {
    /// The worker's number.
    worker: usize,
    identity: Identity,
    /// Lanes of a full chunk.
    lanes: u16,
    shards: Vec<Shard>,
    /// When the process dies.
    doom: Doom,
    /// The shards that have failed, the first one first. The others go on until the rank knows why,
    /// as their threads do.
    failed: Vec<usize>,
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
    /// The parts of calls in flight, by place; those that have returned with their elements.
    parts: BTreeMap<usize, Vec<Option<Vec<u8>>>>,
    done: Done,
}

/// What follows a turn.
pub enum Turn {
    /// The next turn, at this time at the latest, or earlier if a packet comes.
    Next(Option<Time>),
    /// All calls have returned.
    Finished,
    /// The data path has failed.
    Failed(Failure),
    /// The process has died.
    Died,
}

/// Parts of calls that have returned: the call's place, the part's number, its elements.
type Done = Arc<Mutex<Vec<(usize, usize, Vec<u8>)>>>;

/// A part of a call's elements, put where the simulator finds it when it is done.
struct Part {
    place: usize,
    number: usize,
    bytes: Vec<u8>,
    done: Done,
}

impl Buffer for Part {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn finish(self: Box<Self>, _: CallStats) {
        let Self { place, number, bytes, done } = *self;
        done.lock().unwrap_or_else(PoisonError::into_inner).push((place, number, bytes));
    }
}

impl Calls {
    /// The calls of a worker's rank, which is `identity` in its first shard, in a job that starts
    /// with chunks of `lanes` lanes.
    pub fn new(
        worker: usize,
        (identity, lanes): (Identity, u16),
        (shards, doom): (Vec<Shard>, Doom),
        plan: &JobPlan,
        program: Vec<Step>,
        now: Time,
    ) -> Self {
        Self {
            worker,
            identity,
            lanes,
            shards,
            doom,
            failed: Vec::new(),
            issued: Issued::default(),
            program,
            pause: plan.pause,
            rest: plan.rest,
            next: 0,
            next_at: now.max(plan.begin),
            returned: 0,
            parts: BTreeMap::new(),
            done: Arc::default(),
        }
    }

    /// The session has resumed: the rank says HELLO again in each shard.
    pub fn greet(&mut self, now: Time, secret: u32) {
        self.shards.iter_mut().for_each(|shard| shard.data_path.greet(now, secret));
    }

    /// A datagram has arrived for a shard.
    pub fn receive(
        &mut self,
        world: &mut Surroundings<'_>,
        (number, packet): (usize, &[u8]),
        congested: bool,
        intact: bool,
    ) -> Result<(), Failure> {
        let is_over = self.failed.contains(&number);
        let Some(shard) = self.shards.get_mut(number).filter(|_| !is_over) else { return Ok(()) };
        shard.receive(world, packet, congested, intact).or_else(|why| self.fail(number, why))
    }

    /// A shard fails. The first failure counts.
    fn fail(&mut self, shard: usize, failure: Failure) -> Result<(), Failure> {
        self.failed.push(shard);
        if self.failed.len() == 1 { Err(failure) } else { Ok(()) }
    }

    /// Takes a turn of each shard. The rank was frozen until `stalled`.
    pub fn turn(
        &mut self,
        world: &mut Surroundings<'_>,
        session: &Session,
        stalled: Time,
    ) -> Result<Turn, Violation> {
        if self.failed.is_empty() {
            self.make_calls(world)?;
        }
        for number in 0..self.shards.len() {
            if self.failed.contains(&number) {
                continue;
            }
            let outcome = self.shards[number].turn(world, session, stalled)?;
            if self.doom.is_over() {
                return Ok(Turn::Died);
            }
            if let Err(failure) = outcome.or_else(|failure| self.fail(number, failure)) {
                return Ok(Turn::Failed(failure));
            }
        }
        let now = world.net.now;
        let has_news = self.gather(world)?;
        if has_news {
            self.next_at = self.next_at.max(now + self.rest);
        }
        let is_idle = self.shards.iter().all(|shard| shard.data_path.is_idle());
        if self.next == self.program.len() && is_idle && self.failed.is_empty() {
            return Ok(Turn::Finished);
        }
        let call = (self.next < self.program.len() && self.next_at > now).then_some(self.next_at);
        // The next call may have waited for these results.
        let call = if has_news { Some(now) } else { call };
        let going =
            self.shards.iter().enumerate().filter(|(number, _)| !self.failed.contains(number));
        let deadlines = going.filter_map(|(_, shard)| shard.data_path.deadline());
        Ok(Turn::Next(deadlines.chain(call.filter(|_| self.failed.is_empty())).min()))
    }

    /// Takes the parts that have returned. Returns whether they complete a call.
    fn gather(&mut self, world: &mut Surroundings<'_>) -> Result<bool, Violation> {
        let done = mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner));
        let returned = self.returned;
        for (place, number, bytes) in done {
            let Some(parts) = self.parts.get_mut(&place) else { continue };
            parts[number] = Some(bytes);
            if parts.iter().any(Option::is_none) {
                continue;
            }
            let parts = self.parts.remove(&place).unwrap_or_default();
            world.net.tally.cut += u64::from(parts.len() > 1);
            let whole = parts.into_iter().flatten().collect::<Vec<_>>().concat();
            self.returned += 1;
            self.issued.finish(place as u64);
            let Identity { rank, epoch, .. } = self.identity;
            world.oracle.result(world.net, epoch, rank, place, whole)?;
        }
        Ok(self.returned > returned)
    }

    /// Makes the calls whose time has come.
    fn make_calls(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let now = world.net.now;
        let pause = if world.healed { 0 } else { self.pause };
        let Identity { rank, epoch, .. } = self.identity;
        while let Some(step) = self.program.get(self.next).copied()
            && self.next_at <= now
            && (!step.waits || self.returned == self.next)
        {
            let Self { worker, next, .. } = *self;
            debug!("{} worker {worker} makes call {next}: {:?}", Clock(now), step.call);
            world.oracle.call(epoch, rank, next, step, now);
            self.submit(step)?;
            self.next += 1;
            self.next_at = now + world.net.rng.below(pause + 1);
        }
        Ok(())
    }

    /// Hands the parts of the next call to shards, like `Communicator::submit`.
    fn submit(&mut self, step: Step) -> Result<(), Violation> {
        let (Identity { rank, ranks, epoch, .. }, place) = (self.identity, self.next);
        let call = step.call;
        let Ok(codec) = call.codec(ranks.into()) else {
            return Err(Violation(format!("{call:?} is not offered")));
        };
        let bytes = step.elements(element_key(epoch, place), rank);
        let number = self.issued.issue(call);
        let shards = Shards::new(&[(self.shards.len(), 1)], 0);
        let parts = shards.cut(number, bytes.len(), codec, self.lanes);
        self.parts.insert(place, vec![None; parts.len()]);
        let (mut rest, mut first) = (bytes.as_slice(), 0);
        for (part, shards::Part { shard, len }) in parts.into_iter().enumerate() {
            let (bytes, behind) = rest.split_at(len);
            let (bytes, done) = (bytes.to_vec(), Arc::clone(&self.done));
            let buffer = Box::new(Part { place, number: part, bytes, done });
            let submission = Submission { number, call, codec, first, buffer };
            self.shards[shard].data_path.submit(submission);
            first += (len / call.dtype.size()) as u64;
            rest = behind;
        }
        Ok(())
    }

    /// Whether no results come by multicast to a shard.
    pub fn hears_no_group(&self) -> bool {
        self.shards.iter().any(|shard| shard.data_path.engine().hears_no_group())
    }

    /// Number of the last call in flight up to that of collective `last` of the shard that has
    /// failed.
    pub fn last_call(&self, last: u64) -> Option<u64> {
        let shard = &self.shards[*self.failed.first()?];
        shard.data_path.calls_in_flight(last).last().map(|(number, _)| number)
    }

    /// The calls to be reported up to call `last`.
    pub fn open(&self, last: u64) -> Vec<Call> {
        let calls = self.issued.open(last);
        calls.map(|(number, call)| Call { number: number + 1, call: call.to_string() }).collect()
    }

    /// The state of the rank, as the shard knows it that has failed.
    pub fn standing(&self, world: &Surroundings<'_>) -> Standing {
        self.shards[self.failed.first().copied().unwrap_or_default()].standing(world)
    }
}
