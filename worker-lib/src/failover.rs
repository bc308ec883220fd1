//! Has another of the job's aggregators go on in place of a lost one (rules 36.8 and 36.9).
//!
//! Who notices the loss, a control thread or a driver, calls [`Failover::lose`]. From then on the
//! drivers of that aggregator's shards wait. A thread joins at the next aggregator, as a rank joins
//! any job, and leaves each driver its new way there. What was in flight is sent again by the data
//! path. Local sums are not made again.
//!
//! How a rank notices depends on the data plane. A data plane in software has died with its daemon,
//! so a broken connection is enough. An XDP data plane lives on, so the session tries to resume for
//! 10 s, unless the data path gets no answer before that.
//!
//! Ranks notice at different times. Some do not notice at all: the aggregator only stood still, or
//! only its daemon cannot be reached. So a rank that moves tells the lost aggregator
//! ([`Membership::lose`]). If its daemon lives, the daemon tells the other ranks, which then move
//! also. A daemon that loses the connection of a rank cannot tell whether the rank or the way to it
//! is gone. So ranks move, until the last aggregator says the same ([`Moves::lose`]).
//!
//! The job has another name at the next aggregator, made from a secret of the lost one
//! ([`moved_name`]). So missing ranks, tokens, TLS and timeouts are as for any job, and daemons
//! know nothing of moves.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use switchml_control::moved_name;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::ranks::Ranks;
use switchml_worker_core::engine::Limits;
use switchml_worker_core::moves::{Aggregator, LEAST_WAIT, Loss, Move, Moves};

use crate::control::{self, Access, Membership, Wish};
use crate::driver::{Arrival, Handover, Shared};
use crate::error::Error;
use crate::lock::lock;
use crate::paths::{Opened, Path};
use crate::transport::Medium;
use crate::warning::warn;

/// A rank's moves.
pub(crate) struct Failover {
    rank: Rank,
    /// The job's aggregators in the order of rule 36.2.
    aggregators: Vec<Known>,
    /// Where the stripes are.
    moves: Mutex<Moves>,
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
    pub standstill: Duration,
    pub limits: Limits,
    /// Lanes of a full chunk.
    pub lanes: u16,
    /// Whether packets to and from aggregators go by RDMA.
    pub rdma: bool,
    /// The share of large calls that each aggregator's shards have, wherever they are.
    pub shares: Vec<f64>,
}

/// One of the job's aggregators.
pub(crate) struct Known {
    pub access: Access,
    /// What the job's ranks name it with at another aggregator (rule 36.9).
    pub move_secret: u64,
    pub capabilities: Capabilities,
}

/// The shards that were at one aggregator when the job began.
struct Stripe {
    handovers: Vec<Arc<Handover>>,
    /// The session that a move waits for.
    joining: Mutex<Option<Arc<Membership>>>,
}

impl Failover {
    /// Moves for a job at these aggregators, with the handovers of the drivers at each.
    pub fn new(
        rank: Rank,
        aggregators: Vec<Known>,
        handovers: Vec<Vec<Arc<Handover>>>,
        departed: impl Fn() -> Ranks + Send + Sync + 'static,
        shared: &Arc<Shared>,
    ) -> Arc<Self> {
        let stripe = |handovers| Stripe { handovers, joining: Mutex::default() };
        let stripes = handovers.into_iter().map(stripe).collect();
        let known = |known: &Known| Aggregator {
            capabilities: known.capabilities,
            is_ranks_own: known.access.peer.is_some(),
        };
        let moves = Mutex::new(Moves::new(aggregators.iter().map(known).collect()));
        let (departed, shared) = (Arc::new(departed), Arc::clone(shared));
        let failover = Arc::new(Self { rank, aggregators, moves, stripes, departed, shared });
        let told = Arc::downgrade(&failover);
        failover.shared.on_fail(move |error| {
            told.upgrade().iter().for_each(|failover| failover.give_up(error));
        });
        failover
    }

    /// The handover of a driver.
    pub fn handover(&self, stripe: usize, shard: usize) -> Arc<Handover> {
        Arc::clone(&self.stripes[stripe].handovers[shard])
    }

    /// The aggregator of a stripe that has moved `moves` times has failed with this error. Whether
    /// that is a loss, and another aggregator may go on; otherwise the error ends the job. A loss
    /// in the middle of a move is another one (rule 36.13).
    pub fn lose(self: &Arc<Self>, stripe: usize, moves: u64, error: &Error) -> bool {
        if !is_loss(error) {
            return false;
        }
        let departed = (self.departed)();
        let mut places = lock(&self.moves);
        let names_ranks = !error.ranks().is_empty();
        let next = match places.lose(stripe, moves, names_ranks, &departed) {
            Loss::Moves(next) => next,
            Loss::IsKnown => return true,
            Loss::Ends => return false,
            Loss::HasNoOther => {
                self.warn(": no other aggregator can do what the lost one could");
                return false;
            }
        };
        self.stripes[stripe].handovers.iter().for_each(|handover| handover.lose());
        drop(places);
        let mover = Mover { failover: Arc::clone(self), next, error: error.clone() };
        let thread = thread::Builder::new().name("switchml-move".to_owned());
        if let Err(error) = thread.spawn(move || mover.run()) {
            self.shared.fail(Error::system("cannot start a thread")(error));
        }
        true
    }

    /// The communicator has failed: nobody waits for another aggregator any more.
    fn give_up(&self, error: &Error) {
        for stripe in &self.stripes {
            if let Some(membership) = &*lock(&stripe.joining) {
                membership.give_up(&error.cause(), error.ranks());
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
        // Its control plane would have said why.
        Error::AggregatorSilent { .. } | Error::Aborted { .. } => true,
        _ => false,
    }
}

/// Moves a stripe.
struct Mover {
    failover: Arc<Failover>,
    next: Move,
    /// Why it moves.
    error: Error,
}

impl Mover {
    fn run(self) {
        let (begin, failover) = (Instant::now(), Arc::clone(&self.failover));
        let mut refusals = String::new();
        let mut last = None;
        let candidates = lock(&failover.moves).candidates(&self.next);
        for at in candidates {
            match self.try_at(at) {
                Ok(found) => return self.arrive(at, found, begin),
                // Other aggregators would not be heard from either.
                Err(
                    error @ Error::Control(
                        control::Error::Missing { .. } | control::Error::NotReady { .. },
                    ),
                ) => return failover.shared.fail(error),
                Err(error) => {
                    let _ = write!(refusals, "; {error}");
                    last = Some(error);
                }
            }
            if failover.shared.failure().is_some() {
                return;
            }
        }
        failover.warn(format_args!(": no aggregator goes on with what the lost one did{refusals}"));
        let (loss, refusal) = (self.error.to_string(), last.unwrap_or(self.error));
        let (ranks, refusal) = (refusal.ranks(), refusal.to_string());
        failover.shared.fail(Error::NotMoved { refusal, loss, ranks });
    }

    /// Rule 36.9: joins at an aggregator, and waits until all ranks have.
    fn try_at(&self, at: usize) -> Result<(Arc<Membership>, Opened), Error> {
        let Failover { rank, aggregators, stripes, shared, .. } = &*self.failover;
        let stripe = &stripes[self.next.stripe];
        let access = Access { weight: 0, ..aggregators[at].access.clone() };
        let job = moved_name(&rank.job, aggregators[self.next.stripe].move_secret);
        let wish = Wish {
            job: &job,
            rank: rank.rank.into(),
            world_size: rank.ranks.into(),
            data_threads: Some(stripe.handovers.len() as u32),
            aggregators: 1,
            timeout: rank.join_timeout.max(LEAST_WAIT),
            standstill: rank.standstill,
            has_others: true,
            all: &[],
            in_place_of: &aggregators[self.next.from].access.address,
        };
        let membership = Arc::new(Membership::begin(access.clone(), &wish)?);
        *lock(&stripe.joining) = Some(Arc::clone(&membership));
        let outcome = match shared.failure() {
            Some(error) => Err(error.clone()),
            None => self.open(&membership, access),
        };
        lock(&stripe.joining).take();
        if let Err(error) = &outcome {
            membership.give_up(&error.cause(), error.ranks());
        }
        outcome.map(|opened| (membership, opened))
    }

    fn open(&self, membership: &Membership, access: Access) -> Result<Opened, Error> {
        let Failover { rank, stripes, .. } = &*self.failover;
        let handovers = &stripes[self.next.stripe].handovers;
        let mut assigned = membership.assigned()?;
        let moves = lock(&self.failover.moves);
        let has_all = moves.can_serve(self.next.stripe, assigned.capabilities);
        drop(moves);
        if !has_all || assigned.shards().count() != handovers.len() {
            let why = "it has too little left for the shards of another aggregator".to_owned();
            let address = access.address;
            return Err(control::Error::Refused { address, why }.into());
        }
        assigned.max_lanes = assigned.max_lanes.min(rank.lanes);
        let wakers = |shard: usize| handovers[shard].wakers().clone();
        let medium = Medium::to(&access, rank.rdma);
        let mut opened = Opened::at(access, assigned, (rank.rank, rank.ranks), medium, wakers)?;
        if opened.lanes() < rank.lanes {
            return Err(opened.too_narrow(rank.lanes));
        }
        membership.path_opened(rank.lanes, opened.needs_copies());
        membership.started()?;
        Ok(opened)
    }

    /// Shows the drivers their way to another aggregator, unless that is lost, too, by now.
    fn arrive(self, at: usize, (membership, opened): (Arc<Membership>, Opened), begin: Instant) {
        let Self { failover, next, error } = self;
        let Move { stripe, from, count } = next;
        let moving = &failover.stripes[stripe];
        let Opened { assigned, paths, .. } = opened;
        let mut places = lock(&failover.moves);
        if !places.arrive(&next, at) {
            return;
        }
        for (handover, path) in moving.handovers.iter().zip(paths) {
            let Rank { lanes, limits, ref shares, .. } = failover.rank;
            let (config, batch) = path.config(&assigned, lanes, limits, shares[stripe]);
            let Path { secret, group, transport, open, .. } = path;
            let (membership, rtt) = (Arc::clone(&membership), open.rtt);
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
        drop(places);
        let shared = &failover.shared;
        shared.count_move();
        match failover.aggregators[at].access.peer {
            Some(rank) => {
                let departed = Arc::clone(&failover.departed);
                hear_of_peer(&membership, shared, rank, move || departed());
            }
            None => hear_of_end(&membership, (stripe, count), shared, Some(&failover)),
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
            told.fail(error.into());
        }
    });
}

/// Has the drivers answer what the aggregator of a stripe asks.
pub(crate) fn answer(membership: &Membership, stripe: usize, shared: &Arc<Shared>) {
    let asked = Arc::clone(shared);
    membership.on_calls_wanted(move |last| asked.open_calls(last));
    let asked = Arc::clone(shared);
    membership.on_round_trips_wanted(move || asked.take_round_trips(stripe));
    let asked = Arc::clone(shared);
    membership.on_path_wanted(move || asked.path(stripe));
}
