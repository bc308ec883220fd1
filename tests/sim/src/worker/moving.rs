//! The shards of a lost aggregator go on at another one, like the product's `Failover` has them.

use std::collections::VecDeque;
use std::time::Duration;

use switchml_control::moved_name;
use switchml_protocol::ranks::Ranks;
use switchml_worker_core::engine::{Config, Failure};
use switchml_worker_core::moves::{Aggregator, LEAST_WAIT, Loss, Move, Moves};
use switchml_worker_core::session::{Event, Goodbye, Session};
use tracing::debug;

use super::membership::{Assigned, Membership, Path, Role};
use super::{Phase, Worker};
use crate::net::{Clock, Violation};
use crate::oracle::{Choice, End, Standing};
use crate::shard::Way;
use crate::surroundings::Surroundings;
use crate::tally::Fate;

/// A rank's moves.
pub(super) struct Moving {
    moves: Moves,
    /// How often each stripe has moved, and to which aggregator, as its drivers know.
    counts: Vec<u64>,
    at: Vec<usize>,
    /// The job's aggregators in the order of rule 36.2, and their secrets for moves.
    aggregators: Vec<(usize, u64)>,
    /// Shards of each stripe.
    shards: Vec<usize>,
    /// Lanes of a full chunk.
    lanes: u16,
    /// The share of calls of each stripe.
    shares: Vec<f64>,
    /// The moves under way, by stripe.
    movers: Vec<Option<Mover>>,
}

/// A move under way.
struct Mover {
    next: Move,
    /// The aggregators to try after this one.
    candidates: VecDeque<usize>,
    /// Why the stripe moves.
    why: End,
}

impl Moving {
    /// The moves of a job with these memberships, in chunks of `lanes` lanes.
    pub fn new(memberships: &[&Membership], lanes: u16, shares: Vec<f64>) -> Self {
        let assigned = || memberships.iter().filter_map(|member| member.assigned.as_ref());
        let known = |assigned: &Assigned| Aggregator {
            capabilities: assigned.capabilities,
            is_ranks_own: false,
        };
        let secrets = assigned().map(|assigned| assigned.move_secret);
        let aggregators = memberships.iter().map(|member| member.aggregator).zip(secrets);
        Self {
            moves: Moves::new(assigned().map(known).collect()),
            counts: vec![0; memberships.len()],
            at: memberships.iter().map(|member| member.aggregator).collect(),
            aggregators: aggregators.collect(),
            shards: assigned().map(|assigned| assigned.shards.len()).collect(),
            lanes,
            shares,
            movers: memberships.iter().map(|_| None).collect(),
        }
    }

    /// The name and the number of data threads with which a rank joins `job` for a stripe.
    pub fn wish(&self, job: &str, stripe: usize) -> (String, u32) {
        let (_, secret) = self.aggregators[stripe];
        (moved_name(job, secret), self.shards[stripe] as u32)
    }

    /// Whether an aggregator has what a stripe needs.
    fn suits(&self, stripe: usize, assigned: &Assigned) -> bool {
        self.moves.can_serve(stripe, assigned.capabilities)
            && assigned.shards.len() == self.shards[stripe]
    }
}

impl Worker {
    /// A stripe's aggregator is lost by this end of its session, or of its data path. Whether
    /// another one may go on.
    pub(super) fn lose(
        &mut self,
        world: &mut Surroundings<'_>,
        stripe: usize,
        end: &End,
    ) -> Result<bool, Violation> {
        let departed = self.departed();
        let (Some(moving), Phase::Running(calls)) = (&mut self.moving, &mut self.phase) else {
            return Ok(false);
        };
        let names_ranks = match end {
            End::Stopped { ranks, .. } => !ranks.is_empty(),
            End::Lost | End::Forgotten | End::Failed(Failure::Silent | Failure::Aborted) => false,
            _ => return Ok(false),
        };
        let count = moving.counts[stripe];
        let next = match moving.moves.lose(stripe, count, names_ranks, &departed) {
            Loss::Moves(next) => next,
            Loss::IsKnown => return Ok(true),
            Loss::HasNoOther | Loss::Ends => return Ok(false),
        };
        debug!("{} worker {} moves: {next:?} ({end:?})", Clock(world.net.now), self.index);
        calls.lose(stripe);
        let candidates: VecDeque<_> = moving.moves.candidates(&next).collect();
        let choice = Choice {
            session: self.sessions.first().copied().unwrap_or_default(),
            first: moving.aggregators[stripe].0,
            from: moving.at[stripe],
            departed,
            next: candidates.iter().map(|at| moving.aggregators[*at].0).collect(),
        };
        world.oracle.choose(world.scenario, self.rank, choice)?;
        moving.movers[stripe] = Some(Mover { next, candidates, why: end.clone() });
        self.try_next(world, stripe)?;
        Ok(true)
    }

    /// The ranks that have left normally, as far as any aggregator has told.
    fn departed(&self) -> Ranks {
        let sessions = self.members.values().map(|member| member.session.departed());
        sessions.fold(Ranks::NONE, |all, ranks| all.union(&ranks))
    }

    /// Joins at the next aggregator that may go on with a stripe.
    fn try_next(&mut self, world: &mut Surroundings<'_>, stripe: usize) -> Result<(), Violation> {
        let Some(moving) = &mut self.moving else { return Ok(()) };
        let Some(mover) = &mut moving.movers[stripe] else { return Ok(()) };
        let Some(at) = mover.candidates.pop_front() else {
            let why = mover.why.clone();
            return self.end_all(world, None, why, None);
        };
        let (aggregator, _) = moving.aggregators[at];
        let wait = Duration::from_nanos(world.scenario.join_timeout).max(LEAST_WAIT);
        let session = Session::new(world.net.now, wait).with_others();
        self.sockets += 1;
        let member = Membership::new(aggregator, Role::Awaits(stripe), session, self.sockets);
        let id = self.add(member);
        self.perform(world, id)
    }

    /// All ranks have joined there: opens the paths, if it has what the stripe needs.
    pub(super) fn open_for_move(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        stripe: usize,
    ) -> Result<(), Violation> {
        let (Some(moving), Some(member)) = (&self.moving, self.members.get_mut(&id)) else {
            return Ok(());
        };
        let Some(assigned) = &mut member.assigned else { return Ok(()) };
        if !moving.suits(stripe, assigned) {
            return self.refuse(world, id, stripe);
        }
        assigned.max_lanes = assigned.max_lanes.min(moving.lanes);
        self.begin_to_greet(world, id);
        self.turn_by(world, world.net.now);
        Ok(())
    }

    /// The paths are open there: the rank is ready, if they carry the job's chunks.
    pub(super) fn ready_for_move(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        stripe: usize,
    ) -> Result<(), Violation> {
        let (Some(moving), Some(member)) = (&self.moving, self.members.get(&id)) else {
            return Ok(());
        };
        if member.lanes() < moving.lanes {
            return self.refuse(world, id, stripe);
        }
        let (lanes, needs_copies) = (moving.lanes, member.needs_copies());
        self.tell(world, id, Event::PathOpen { lanes, needs_copies })
    }

    /// The rank does not go on there, and tries the next one.
    pub(super) fn refuse(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        stripe: usize,
    ) -> Result<(), Violation> {
        self.part(world, id, "it cannot go on here", false)?;
        self.try_next(world, stripe)
    }

    /// The session that a move waits for has ended.
    pub(super) fn end_of_move(
        &mut self,
        world: &mut Surroundings<'_>,
        stripe: usize,
        end: End,
    ) -> Result<(), Violation> {
        match end {
            // Other aggregators would not be heard from either.
            End::NotJoined(_) | End::NotReady(_) => self.end_all(world, None, end, None),
            _ => self.try_next(world, stripe),
        }
    }

    /// All ranks are ready there: the stripe goes on.
    pub(super) fn arrive(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        stripe: usize,
    ) -> Result<(), Violation> {
        let place = self.place(world);
        let (Some(moving), Some(member), Phase::Running(calls)) =
            (&mut self.moving, self.members.get_mut(&id), &mut self.phase)
        else {
            return Ok(());
        };
        let Some(Mover { next, .. }) = moving.movers[stripe].take() else { return Ok(()) };
        let is_there = |(other, _): &(usize, u64)| *other == member.aggregator;
        let at = moving.aggregators.iter().position(is_there).unwrap_or_default();
        if !moving.moves.arrive(&next, at) {
            return Err(Violation(format!("rank {} arrives from an old move", self.rank)));
        }
        moving.counts[stripe] = next.count;
        moving.at[stripe] = member.aggregator;
        member.role = Role::Serves(stripe);
        let (Some(assigned), Path::Open(open)) = (&member.assigned, &member.path) else {
            return Ok(());
        };
        let plan = &world.scenario.jobs[self.job];
        let ways = open.iter().enumerate().map(|(shard, path)| {
            let (identity, room) = (assigned.identity(shard), plan.receive_room);
            let limits = world.scenario.limits;
            let config = Config::new(identity, assigned.slots, moving.lanes, room, limits)
                .for_share(moving.shares[stripe]);
            let capabilities = assigned.capabilities;
            let port = crate::net::port_of(place, shard, member.sockets);
            let config = Config { capabilities, ..config };
            Way { aggregator: member.aggregator, port, config, rtt: path.rtt }
        });
        calls.resume(stripe, ways.collect(), plan.batch, world.net.now)?;
        debug!("{} worker {}: stripe {stripe} goes on", Clock(world.net.now), self.index);
        world.net.tally.fate(Fate::Moved);
        self.turn_by(world, world.net.now);
        Ok(())
    }

    /// The data path of a stripe has failed, and its session does not say why: the aggregator may
    /// be lost by that.
    pub(super) fn lose_unsaid(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        (stripe, failure): (usize, Failure),
        standing: &Standing,
    ) -> Result<bool, Violation> {
        if !self.lose(world, stripe, &End::Failed(failure))? {
            return Ok(false);
        }
        let key = self.members.get(&id).and_then(Membership::key);
        world.oracle.lose(world.daemons, &self.who(), (key, failure), standing)?;
        self.part(world, id, "the aggregator does not answer", true)?;
        Ok(true)
    }

    /// Leaves one of its sessions alone, maybe because the aggregator is lost.
    fn part(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        error: &str,
        lost_aggregator: bool,
    ) -> Result<(), Violation> {
        if let Some(member) = self.members.get_mut(&id) {
            member.role = Role::Leaves;
        }
        let (error, ranks) = (error.to_owned(), Vec::new());
        let goodbye = Goodbye { error, ranks, lost_aggregator };
        self.tell(world, id, Event::Leave(goodbye))
    }
}
