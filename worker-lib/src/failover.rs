//! Has another of the job's aggregators go on in place of a lost one (rules 36.8 and 36.9).
//!
//! Who notices the loss, a control thread or a driver, calls [`Failover::lose`]. From then on the
//! drivers of that aggregator's shards wait. A thread joins at the next aggregator, as a rank joins
//! any job, and leaves each driver its new way there. What was in flight is sent again by the data
//! path.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use switchml_control::moved_name;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::ranks::Ranks;
use switchml_worker_core::engine::Limits;

use crate::control::{self, Access, Membership, Wish};
use crate::driver::{Arrival, Handover, Shared};
use crate::error::Error;
use crate::paths::{Opened, Path};
use crate::transport::Udp;
use crate::warning::warn;

/// What decides on the chunks of calls (rule 36.8).
const SHAPING: Capabilities = Capabilities::CHECKED_MAXIMA
    .union(Capabilities::EMPTY_CONTRIBUTIONS)
    .union(Capabilities::AUDIENCES);
/// Least time to wait for the other ranks. Those that make no call notice the death of a host by
/// their connection: after 15 s, and 10 s more where the data plane might live on.
const LEAST_WAIT: Duration = Duration::from_secs(30);

/// A rank's moves.
pub(crate) struct Failover {
    rank: Rank,
    /// The job's aggregators in the order of rule 36.2.
    aggregators: Vec<Known>,
    stripes: Vec<Stripe>,
    /// The ranks that have left normally.
    departed: Arc<dyn Fn() -> Ranks + Send + Sync>,
    shared: Arc<Shared>,
}

/// What a rank joins with.
pub(crate) struct Rank {
    pub job: String,
    pub rank: u16,
    pub ranks: u16,
    pub join_timeout: Duration,
    pub limits: Limits,
    /// Lanes of a full chunk.
    pub lanes: u16,
    /// The share of large calls that each aggregator's shards have, wherever they are.
    pub shares: Vec<f64>,
}

/// One of the job's aggregators.
pub(crate) struct Known {
    pub access: Access,
    /// The aggregator's number for rule 36.2.
    pub number: u64,
    pub capabilities: Capabilities,
}

/// The shards that were at one aggregator when the job began.
struct Stripe {
    place: Mutex<Place>,
    handovers: Vec<Arc<Handover<Udp>>>,
    /// The session that a move waits for.
    joining: Mutex<Option<Arc<Membership>>>,
}

/// Where a stripe is.
struct Place {
    /// The index of the aggregator.
    at: usize,
    /// Moves so far.
    moves: u64,
}

impl Failover {
    /// Moves for a job at these aggregators, with the handovers of the drivers at each.
    pub fn new(
        rank: Rank,
        aggregators: Vec<Known>,
        handovers: Vec<Vec<Arc<Handover<Udp>>>>,
        departed: impl Fn() -> Ranks + Send + Sync + 'static,
        shared: &Arc<Shared>,
    ) -> Arc<Self> {
        let stripe = |(at, handovers)| {
            let place = Mutex::new(Place { at, moves: 0 });
            Stripe { place, handovers, joining: Mutex::default() }
        };
        let stripes = handovers.into_iter().enumerate().map(stripe).collect();
        let (departed, shared) = (Arc::new(departed), Arc::clone(shared));
        let failover = Arc::new(Self { rank, aggregators, stripes, departed, shared });
        let told = Arc::downgrade(&failover);
        failover.shared.on_fail(move |error| {
            told.upgrade().iter().for_each(|failover| failover.give_up(error));
        });
        failover
    }

    /// The handover of a driver.
    pub fn handover(&self, stripe: usize, shard: usize) -> Arc<Handover<Udp>> {
        Arc::clone(&self.stripes[stripe].handovers[shard])
    }

    /// The aggregator of a stripe that has moved `moves` times has failed with this error. Whether
    /// that is a loss, and another aggregator may go on; otherwise the error ends the job. A loss
    /// in the middle of a move is another one (rule 36.13).
    pub fn lose(self: &Arc<Self>, stripe: usize, moves: u64, error: &Error) -> bool {
        if !is_loss(error) || !(self.departed)().is_empty() {
            return false;
        }
        let moving = &self.stripes[stripe];
        let mut place = lock(&moving.place);
        if place.moves != moves {
            return true;
        }
        // Rule 36.7: with an aggregator that a rank has brought, that rank is lost.
        if self.aggregators[place.at].access.peer.is_some() {
            return false;
        }
        if self.candidates(stripe, place.at).next().is_none() {
            self.warn(": no other aggregator can do what the lost one could");
            return false;
        }
        place.moves += 1;
        moving.handovers.iter().for_each(|handover| handover.lose());
        let (from, moves) = (place.at, place.moves);
        drop(place);
        let error = error.clone();
        let mover = Move { failover: Arc::clone(self), stripe, from, moves, error };
        let thread = thread::Builder::new().name("switchml-move".to_owned());
        if let Err(error) = thread.spawn(move || mover.run()) {
            self.shared.fail(Error::system("cannot start a thread")(error));
        }
        true
    }

    /// The aggregators that may go on with a stripe that is at one of them, in the order of rule
    /// 36.9.
    fn candidates(&self, stripe: usize, from: usize) -> impl Iterator<Item = usize> {
        let needed = self.needed(stripe);
        let behind = (from + 1..self.aggregators.len()).chain(0..from);
        behind.filter(move |at| self.aggregators[*at].capabilities.contains(needed))
    }

    /// The capabilities that an aggregator must have to go on with a stripe.
    fn needed(&self, stripe: usize) -> Capabilities {
        self.aggregators[stripe].capabilities & SHAPING
    }

    /// The communicator has failed: nobody waits for another aggregator any more.
    fn give_up(&self, error: &Error) {
        for stripe in &self.stripes {
            if let Some(membership) = &*lock(&stripe.joining) {
                membership.give_up(&error.to_string(), error.ranks());
            }
        }
    }

    fn warn(&self, what: impl std::fmt::Display) {
        warn(&self.rank.job, self.rank.rank.into(), what);
    }
}

/// Rule 36.8: whether an error says that the aggregator is lost, and no rank is at fault.
fn is_loss(error: &Error) -> bool {
    match error {
        Error::Control(error) => error.means_lost(),
        Error::AggregatorSilent { .. } => true,
        _ => false,
    }
}

/// A move of a stripe.
struct Move {
    failover: Arc<Failover>,
    stripe: usize,
    /// The index of the lost aggregator.
    from: usize,
    /// Moves of the stripe, with this one.
    moves: u64,
    /// Why it moves.
    error: Error,
}

impl Move {
    fn run(self) {
        let (begin, failover) = (Instant::now(), Arc::clone(&self.failover));
        let mut refusals = String::new();
        for at in failover.candidates(self.stripe, self.from) {
            match self.try_at(at) {
                Ok(found) => return self.arrive(at, found, begin),
                // Other aggregators would not be heard from either.
                Err(
                    error @ Error::Control(
                        control::Error::Missing { .. } | control::Error::NotReady { .. },
                    ),
                ) => return failover.shared.fail(error),
                Err(error) => drop(write!(refusals, "; {error}")),
            }
            if failover.shared.failure().is_some() {
                return;
            }
        }
        failover.warn(format_args!(": no aggregator goes on with what the lost one did{refusals}"));
        failover.shared.fail(self.error);
    }

    /// Rule 36.9: joins at an aggregator, and waits until all ranks have.
    fn try_at(&self, at: usize) -> Result<(Arc<Membership>, Opened), Error> {
        let Failover { rank, aggregators, stripes, shared, .. } = &*self.failover;
        let stripe = &stripes[self.stripe];
        let access = Access { weight: 0, ..aggregators[at].access.clone() };
        let job = moved_name(&rank.job, aggregators[self.stripe].number);
        let wish = Wish {
            job: &job,
            rank: rank.rank.into(),
            world_size: rank.ranks.into(),
            data_threads: Some(stripe.handovers.len() as u32),
            aggregators: 1,
            timeout: rank.join_timeout.max(LEAST_WAIT),
            has_others: true,
        };
        let membership = Arc::new(Membership::begin(access.clone(), &wish)?);
        *lock(&stripe.joining) = Some(Arc::clone(&membership));
        let outcome = match shared.failure() {
            Some(error) => Err(error.clone()),
            None => self.open(&membership, access),
        };
        lock(&stripe.joining).take();
        if let Err(error) = &outcome {
            membership.give_up(&error.to_string(), error.ranks());
        }
        outcome.map(|opened| (membership, opened))
    }

    fn open(&self, membership: &Membership, access: Access) -> Result<Opened, Error> {
        let Failover { rank, stripes, .. } = &*self.failover;
        let handovers = &stripes[self.stripe].handovers;
        let mut assigned = membership.assigned()?;
        let has_all = assigned.capabilities.contains(self.failover.needed(self.stripe));
        if !has_all || assigned.shards().count() != handovers.len() {
            let why = "it has too little left for the shards of another aggregator".to_owned();
            let address = access.address;
            return Err(control::Error::Refused { address, why }.into());
        }
        assigned.max_lanes = assigned.max_lanes.min(rank.lanes);
        let wakers = |shard: usize| Ok(handovers[shard].wakers().clone());
        let mut opened = Opened::at(access, assigned, (rank.rank, rank.ranks), wakers)?;
        if opened.lanes() < rank.lanes {
            return Err(opened.too_narrow(rank.lanes));
        }
        membership.path_opened(rank.lanes, opened.needs_copies());
        membership.started()?;
        Ok(opened)
    }

    /// Shows the drivers their way to another aggregator, unless that is lost, too, by now.
    fn arrive(self, at: usize, (membership, opened): (Arc<Membership>, Opened), begin: Instant) {
        let Self { failover, stripe, moves, from, error } = self;
        let moving = &failover.stripes[stripe];
        let Opened { assigned, paths, .. } = opened;
        let mut place = lock(&moving.place);
        if place.moves != moves {
            return;
        }
        place.at = at;
        for (handover, path) in moving.handovers.iter().zip(paths) {
            let Rank { lanes, limits, ref shares, .. } = failover.rank;
            let (config, batch) = path.config(&assigned, lanes, limits, shares[stripe]);
            let Path { secret, group, transport, open, .. } = path;
            let (membership, rtt, count) = (Arc::clone(&membership), open.rtt, moves);
            handover.arrive(Arrival {
                transport,
                config,
                rtt,
                batch,
                group,
                secret,
                membership,
                count,
            });
        }
        drop(place);
        let shared = &failover.shared;
        shared.count_move();
        match failover.aggregators[at].access.peer {
            Some(rank) => {
                let departed = Arc::clone(&failover.departed);
                hear_of_peer(&membership, shared, rank, move || departed());
            }
            None => hear_of_end(&membership, (stripe, moves), shared, Some(&failover)),
        }
        answer(&membership, stripe, shared);
        let address = |at: usize| &failover.aggregators[at].access.address;
        let (lost, next, time) = (address(from), address(at), begin.elapsed().as_secs_f64());
        failover.warn(format_args!(
            ": the aggregator at {next} goes on with the part of {lost} after {time:.2} s ({error})"
        ));
    }
}

/// Hears of the end of a session of a stripe that has moved so often.
pub(crate) fn hear_of_end(
    membership: &Membership,
    (stripe, moves): (usize, u64),
    shared: &Arc<Shared>,
    failover: Option<&Arc<Failover>>,
) {
    let (told, failover) = (Arc::clone(shared), failover.cloned());
    membership.on_end(move |error| {
        let error = error.into();
        // An earlier failure of this rank's own stays the reason.
        if !failover.is_some_and(|failover| failover.lose(stripe, moves, &error)) {
            told.fail(error);
        }
    });
}

/// Hears of the end of a session at the aggregator that `rank` has brought.
pub(crate) fn hear_of_peer(
    membership: &Membership,
    shared: &Arc<Shared>,
    rank: u16,
    departed: impl Fn() -> Ranks + Send + 'static,
) {
    let told = Arc::clone(shared);
    membership.on_end(move |error| {
        // Rule 36.7: it may have made all calls, and its aggregator have ended with its process.
        // Later calls fail then, because it makes none.
        if !departed().contains(rank) {
            told.fail(of_peer(error, rank).into());
        }
    });
}

/// Rule 36.7: if a session broke with the process that the aggregator is in, that rank is to blame.
fn of_peer(error: control::Error, rank: u16) -> control::Error {
    match error {
        control::Error::Lost { why, .. } | control::Error::Forgotten { why, .. } => {
            let reason = format!("rank {rank} is gone, and with it its aggregator ({why})");
            control::Error::Aborted { reason, ranks: vec![rank] }
        }
        error => error,
    }
}

/// Has the drivers answer what the aggregator of a stripe asks.
pub(crate) fn answer(membership: &Membership, stripe: usize, shared: &Arc<Shared>) {
    let asked = Arc::clone(shared);
    membership.on_calls_wanted(move |last| asked.open_calls(last));
    let asked = Arc::clone(shared);
    membership.on_round_trips_wanted(move || asked.take_round_trips(stripe));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
