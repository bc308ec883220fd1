//! A rank in a job that has started: makes its calls, cuts them into parts for its shards, and
//! gathers their results.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use switchml_control::Call;
use switchml_worker_core::CallStats;
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::Submission;
use switchml_worker_core::data_path::Others;
use switchml_worker_core::engine::Failure;
use switchml_worker_core::issued::{Issued, Open};
use switchml_worker_core::shards::{self, Shards};
use tracing::debug;

use crate::hosts::Doom;
use crate::net::{Clock, Violation, ensure};
use crate::oracle::{SessionKey, Standing, element_key};
use crate::program::Step;
use crate::scenario::{JobPlan, Time};
use crate::shard::{Shard, Way};
use crate::surroundings::Surroundings;

/// A rank's calls, and its shards.
pub struct Calls {
    /// The worker's number.
    worker: usize,
    job: Job,
    /// The shards, stripe by stripe.
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
    /// Longest pause before the rank leaves, and when it does.
    linger: Time,
    leaves_at: Option<Time>,
    /// Place of the next call, and when it is made.
    next: usize,
    next_at: Time,
    returned: usize,
    /// The parts of calls in flight, by place; those that have returned with their elements.
    parts: BTreeMap<usize, Vec<Option<Vec<u8>>>>,
    done: Done,
}

/// The rank's part in its job.
#[derive(Clone, Debug)]
pub struct Job {
    /// The session.
    pub key: SessionKey,
    /// The rank.
    pub rank: u16,
    /// The number of ranks.
    pub ranks: u16,
    /// Lanes of a full chunk.
    pub lanes: u16,
    /// How calls are cut among the shards.
    pub cut: Shards,
}

/// What follows a turn.
pub enum Turn {
    /// The next turn, at this time at the latest, or earlier if a packet comes.
    Next(Option<Time>),
    /// All calls have returned.
    Finished,
    /// The data path of a stripe has failed.
    Failed(usize, Failure),
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
    /// The calls of a worker's rank in a job that starts.
    pub fn new(
        worker: usize,
        job: Job,
        (shards, doom): (Vec<Shard>, Doom),
        plan: &JobPlan,
        program: Vec<Step>,
        now: Time,
    ) -> Self {
        Self {
            worker,
            job,
            shards,
            doom,
            failed: Vec::new(),
            issued: Issued::default(),
            program,
            pause: plan.pause,
            rest: plan.rest,
            linger: plan.linger,
            leaves_at: None,
            next: 0,
            next_at: now.max(plan.begin),
            returned: 0,
            parts: BTreeMap::new(),
            done: Arc::default(),
        }
    }

    /// The number of calls made.
    pub fn made(&self) -> usize {
        self.next
    }

    /// Whether calls are in flight.
    pub fn are_in_flight(&self) -> bool {
        self.returned < self.next
    }

    /// Makes no calls after so many.
    pub fn stop_after(&mut self, calls: usize) {
        self.program.truncate(calls);
    }

    /// The session of a stripe has resumed: the rank says HELLO again in each of its shards.
    pub fn greet(&mut self, now: Time, stripe: usize, secret: u32) {
        self.of_stripe(stripe).for_each(|shard| shard.data_path.greet(now, secret));
    }

    fn of_stripe(&mut self, stripe: usize) -> impl Iterator<Item = &mut Shard> {
        self.shards.iter_mut().filter(move |shard| shard.stripe == stripe)
    }

    /// The aggregator of a stripe is lost: its shards wait.
    pub fn lose(&mut self, stripe: usize) {
        let Self { failed, shards, .. } = self;
        failed.retain(|shard| shards[*shard].stripe != stripe);
        self.of_stripe(stripe).for_each(Shard::lose);
    }

    /// The shards of a stripe go on by these ways.
    pub fn resume(
        &mut self,
        stripe: usize,
        ways: Vec<Way>,
        batch: u32,
        now: Time,
    ) -> Result<(), Violation> {
        for (shard, way) in self.of_stripe(stripe).zip(ways) {
            ensure!(shard.resume(way, batch, now), "a shard has kept nothing for another");
        }
        Ok(())
    }

    /// A datagram has arrived for a shard of a stripe.
    pub fn receive(
        &mut self,
        world: &mut Surroundings<'_>,
        (stripe, place): (usize, usize),
        packet: &[u8],
        (congested, intact): (bool, bool),
    ) -> Result<(), Failure> {
        let mut shards = self.shards.iter_mut().enumerate();
        let first = shards.find(|(_, shard)| shard.stripe == stripe).map(|(number, _)| number);
        let number = first.unwrap_or_default() + place;
        let is_over = self.failed.contains(&number);
        let is_there = |shard: &&mut Shard| shard.stripe == stripe && !shard.is_lost && !is_over;
        let Some(shard) = self.shards.get_mut(number).filter(is_there) else { return Ok(()) };
        let outcome = shard.receive(world, packet, congested, intact);
        outcome.or_else(|why| if self.fail(number) { Err(why) } else { Ok(()) })
    }

    /// A shard fails. Whether it is the first one of its stripe, whose failure counts.
    fn fail(&mut self, shard: usize) -> bool {
        let stripe = self.shards[shard].stripe;
        let is_first = self.failed.iter().all(|other| self.shards[*other].stripe != stripe);
        self.failed.push(shard);
        is_first
    }

    /// Takes a turn of each shard, given what is known of the other ranks in each stripe. The rank
    /// was frozen until `stalled`.
    pub fn turn(
        &mut self,
        world: &mut Surroundings<'_>,
        others: &BTreeMap<usize, Others>,
        stalled: Time,
    ) -> Result<Turn, Violation> {
        if self.failed.is_empty() {
            self.make_calls(world)?;
        }
        for number in 0..self.shards.len() {
            let shard = &mut self.shards[number];
            let stripe = shard.stripe;
            let Some(others) = others.get(&stripe).filter(|_| !shard.is_lost) else { continue };
            if self.failed.contains(&number) {
                continue;
            }
            let outcome = shard.turn(world, *others, stalled)?;
            if self.doom.is_over() {
                return Ok(Turn::Died);
            }
            if let Err(failure) = outcome
                && self.fail(number)
            {
                return Ok(Turn::Failed(stripe, failure));
            }
        }
        let now = world.net.now;
        let has_news = self.gather(world)?;
        if has_news {
            self.next_at = self.next_at.max(now + self.rest);
        }
        let is_idle = self.shards.iter().all(|shard| shard.data_path.is_idle());
        let is_done = self.next == self.program.len() && is_idle && self.failed.is_empty();
        if is_done && self.leaves_at(world) <= now {
            let waits = self.shards.iter().any(|shard| shard.is_lost);
            ensure!(!waits, "worker {} leaves while others may need it", self.worker);
            return Ok(Turn::Finished);
        }
        let call = (self.next < self.program.len() && self.next_at > now).then_some(self.next_at);
        // The next call may have waited for these results.
        let call = if has_news { Some(now) } else { call };
        let goes_on =
            |(number, shard): &(usize, &Shard)| !self.failed.contains(number) && !shard.is_lost;
        let going = self.shards.iter().enumerate().filter(goes_on);
        let deadlines = going.filter_map(|(_, shard)| shard.data_path.deadline());
        let call = call.filter(|_| self.failed.is_empty());
        let leaves = self.leaves_at.filter(|_| is_done);
        Ok(Turn::Next(deadlines.chain(call).chain(leaves).min()))
    }

    /// When the rank leaves, whose calls have returned. Nothing is drawn where no rank waits.
    fn leaves_at(&mut self, world: &mut Surroundings<'_>) -> Time {
        let (now, linger) = (world.net.now, self.linger);
        let pause = if linger > 0 { world.net.rng.below(linger) } else { 0 };
        *self.leaves_at.get_or_insert(now + pause)
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
            let Job { key, rank, .. } = self.job;
            world.oracle.result(world.net, key, rank, place, whole)?;
        }
        Ok(self.returned > returned)
    }

    /// Makes the calls whose time has come.
    fn make_calls(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let now = world.net.now;
        let pause = if world.healed { 0 } else { self.pause };
        let Job { key, rank, .. } = self.job;
        while let Some(step) = self.program.get(self.next).copied()
            && self.next_at <= now
            && (!step.waits || self.returned == self.next)
        {
            let Self { worker, next, .. } = *self;
            debug!("{} worker {worker} makes call {next}: {:?}", Clock(now), step.call);
            world.oracle.call(key, rank, next, step, now);
            self.submit(step)?;
            self.next += 1;
            self.next_at = now + world.net.rng.below(pause + 1);
        }
        Ok(())
    }

    /// Hands the parts of the next call to shards, like `Communicator::submit`.
    fn submit(&mut self, step: Step) -> Result<(), Violation> {
        let (&Job { key, rank, ranks, lanes, .. }, place) = (&self.job, self.next);
        let call = step.call;
        let Ok(codec) = call.codec(ranks.into()) else {
            return Err(Violation(format!("{call:?} is not offered")));
        };
        let bytes = step.elements(element_key(key, place), rank);
        let (number, turn) = self.issued.issue(call);
        let parts = self.job.cut.cut(turn, call.kind, bytes.len(), codec, lanes);
        self.issued.note_cut(parts.iter().map(|part| (part.len / call.dtype.size()) as u64));
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

    /// Whether no results come by multicast to a shard of a stripe.
    pub fn hears_no_group(&self, stripe: usize) -> bool {
        let mut shards = self.shards.iter().filter(|shard| shard.stripe == stripe);
        shards.any(|shard| shard.data_path.engine().hears_no_group())
    }

    /// Number of the last call in flight up to that of collective `last` of the stripe's shard that
    /// has failed.
    pub fn last_call(&self, stripe: usize, last: u64) -> Option<u64> {
        let mut failed = self.failed.iter().map(|shard| &self.shards[*shard]);
        let shard = failed.find(|shard| shard.stripe == stripe)?;
        shard.data_path.calls_in_flight(last).last().map(|(number, _)| number)
    }

    /// The calls to be reported up to call `last`.
    pub fn open(&self, last: u64) -> Vec<Call> {
        let calls = self.issued.open(last);
        let told =
            |&Open { number, call, cut }| Call { number: number + 1, call: call.to_string(), cut };
        calls.map(told).collect()
    }

    /// The state of the rank, as the stripe's shard knows it that has failed, or its first one.
    pub fn standing(&self, world: &Surroundings<'_>, stripe: usize) -> Standing {
        let failed = self.failed.iter().map(|shard| &self.shards[*shard]);
        let mut shards = failed.chain(&self.shards).filter(|shard| shard.stripe == stripe);
        shards.next().unwrap_or(&self.shards[0]).standing(world)
    }
}
