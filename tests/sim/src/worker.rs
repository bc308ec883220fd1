//! A rank's process: the real sessions, HELLOs and data paths, and the code that carries out their
//! decisions, like the product's control threads and data threads.

mod changes;
mod faults;
mod membership;
mod messages;
mod moving;
mod path;

use std::collections::BTreeMap;
use std::time::Duration;

use switchml_worker_core::engine::{Config, Failure};
use switchml_worker_core::hello::OpenPath;
use switchml_worker_core::session::{self, Action, Ending, Goodbye, Session};
use switchml_worker_core::shards::Shards;
use switchml_worker_core::stripes;
use tracing::debug;

use crate::calls::{Calls, Job, Turn};
use crate::hosts::Doom;
use crate::net::{Clock, Connection, Event, Message, News, Place, Violation, port_of};
use crate::oracle::{End, SessionKey, Standing, Told, Who};
use crate::program::Step;
use crate::scenario::{JobPlan, Time};
use crate::shard::{Shard, Way};
use crate::surroundings::Surroundings;
use crate::tally::{Fate, Fault};
use membership::{Membership, Path, Role};
use moving::Moving;

/// A rank's process.
pub struct Worker {
    /// The worker's number among all workers.
    pub index: usize,
    /// The number of its present job among all jobs.
    pub job: usize,
    /// The worker's rank in the job.
    pub rank: u16,
    /// The job that it is to go on in.
    next: Option<usize>,
    /// The calls after which a job ends, if that is earlier than planned.
    stop: Option<(usize, usize)>,
    /// How often the process was started.
    pub attempts: u32,
    /// Whether the next start is scheduled.
    pub starts: bool,
    /// The time until which the process is frozen.
    pub stalled_until: Time,
    /// The memberships of the process, and the number of those before.
    members: BTreeMap<usize, Membership>,
    joined: usize,
    /// The epochs of its sessions: once it is in all, that of the job's first aggregator first.
    sessions: Vec<SessionKey>,
    /// Whether it is, or was, in a session at each of the job's aggregators.
    is_in_all: bool,
    phase: Phase,
    moving: Option<Moving>,
    /// Number of the sockets that it has opened, which differ in their ports.
    sockets: u16,
    /// When the process dies, if it is to die in a turn, and when it is restarted then.
    doom: Doom,
    restart: Option<Time>,
    turn_at: Option<Time>,
    /// Packets in the socket while the process is frozen.
    waiting: u32,
}

/// The phase of a rank in its job.
enum Phase {
    /// There is no process, or its sessions are over.
    Rest(Option<End>),
    /// The rank waits to be let in, opens its paths, and waits for the other ranks' paths.
    Joining,
    /// The rank makes its calls.
    Running(Box<Calls>),
    /// The rank has left the job, with this end.
    Leaving(End),
}

impl Worker {
    /// A worker that was never started.
    pub fn new(index: usize, job: usize, rank: u16) -> Self {
        Self {
            index,
            job,
            rank,
            next: None,
            stop: None,
            attempts: 0,
            starts: false,
            stalled_until: 0,
            members: BTreeMap::new(),
            joined: 0,
            sessions: Vec::new(),
            is_in_all: false,
            phase: Phase::Rest(None),
            moving: None,
            sockets: 0,
            doom: Doom::default(),
            restart: None,
            turn_at: None,
            waiting: 0,
        }
    }

    /// The end of the last session, if the worker rests; `None` while it does not.
    pub fn resting(&self) -> Option<Option<&End>> {
        match &self.phase {
            Phase::Rest(end) => Some(end.as_ref()),
            _ => None,
        }
    }

    /// The worker's session at the job's first aggregator, or its last one.
    pub fn session(&self) -> Option<SessionKey> {
        self.sessions.first().copied().filter(|_| self.is_in_all)
    }

    /// Starts the process: it joins its job at each aggregator.
    pub fn start(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let Self { index, job, rank, .. } = *self;
        self.starts = false;
        // Who has yet to come may be restarted, too, after a crash before.
        let is_in_job = self.plan(world).workers.get(usize::from(rank)) == Some(&index);
        if !is_in_job || !matches!(self.phase, Phase::Rest(_)) {
            return Ok(());
        }
        if self.attempts > 0 {
            world.net.tally.fault(Fault::Rejoin);
        }
        self.attempts += 1;
        // The system gives any free port, now and then the old one.
        if world.net.rng.one_in(2) {
            self.sockets += 1;
        }
        debug!("{} worker {index} starts: rank {rank} of job {job}", Clock(world.net.now));
        (self.sessions, self.is_in_all, self.moving) = (Vec::new(), false, None);
        self.doom = Doom::default();
        self.phase = Phase::Joining;
        let join_timeout = Duration::from_nanos(world.scenario.join_timeout);
        let aggregators = world.scenario.aggregators();
        for stripe in 0..aggregators {
            let session = Session::new(world.net.now, join_timeout);
            let session = if aggregators > 1 { session.with_others() } else { session };
            // Ranks are given the aggregators in any order.
            let aggregator = (stripe + index) % aggregators;
            let member = Membership::new(aggregator, Role::Serves(stripe), session, self.sockets);
            let id = self.add(member);
            self.perform(world, id)?;
        }
        Ok(())
    }

    fn add(&mut self, member: Membership) -> usize {
        self.joined += 1;
        self.members.insert(self.joined, member);
        self.joined
    }

    /// The memberships in the order of the stripes that they serve.
    fn stripes(&self) -> Vec<&Membership> {
        let serving = |member: &&Membership| matches!(member.role, Role::Serves(_));
        let mut members: Vec<_> = self.members.values().filter(serving).collect();
        members.sort_by_key(|member| match member.role {
            Role::Serves(stripe) => stripe,
            Role::Awaits(_) | Role::Leaves => usize::MAX,
        });
        members
    }

    /// The membership that serves a stripe.
    fn serving(&self, stripe: usize) -> Option<usize> {
        let mut members = self.members.iter();
        members.find(|(_, member)| member.role == Role::Serves(stripe)).map(|(id, _)| *id)
    }

    /// A control thread is told something.
    pub fn hear(
        &mut self,
        world: &mut Surroundings<'_>,
        connection: Connection,
        news: News,
    ) -> Result<(), Violation> {
        let mut members = self.members.iter_mut();
        let of = |(_, member): &(&usize, &mut Membership)| member.connection == Some(connection);
        let Some((id, member)) = members.find(of) else { return Ok(()) };
        let id = *id;
        debug!("{} worker {} hears {news:?}", Clock(world.net.now), self.index);
        let event = match news {
            News::Connected => session::Event::Connected,
            News::Unreachable => session::Event::Unreachable("nobody listens".to_owned()),
            News::Ended | News::Lost => session::Event::Lost("reset".to_owned()),
            News::Answer(answer) => {
                member.unanswered -= 1;
                if member.unanswered > 0 {
                    // The answer is to a request that was given up.
                    return Ok(());
                }
                session::Event::Answered(answer)
            }
            News::Event(event) => session::Event::Heard(self.understand(world, id, event)?),
        };
        self.tell(world, id, event)?;
        self.turn(world)
    }

    fn tell(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        event: session::Event,
    ) -> Result<(), Violation> {
        if let Some(member) = self.members.get_mut(&id) {
            member.session.handle(world.net.now, event);
        }
        self.perform(world, id)
    }

    /// Carries out a session's actions.
    fn perform(&mut self, world: &mut Surroundings<'_>, id: usize) -> Result<(), Violation> {
        while let Some(action) =
            self.members.get_mut(&id).and_then(|member| member.session.next_action())
        {
            match action {
                Action::Connect => self.connect(world, id),
                Action::Send(request) => self.send(world, id, request),
                Action::OpenPath => self.open_path(world, id)?,
                Action::Start { lanes } => self.begin(world, id, lanes)?,
                Action::SayHello => self.say_hello(world, id),
                Action::NoReason => self.fail_without_reason(world, id)?,
                Action::End(ending) => self.conclude(world, id, ending)?,
            }
        }
        let member = self.members.get(&id);
        if let Some(deadline) = member.and_then(|member| member.session.deadline()) {
            self.turn_by(world, deadline);
        }
        Ok(())
    }

    fn connect(&mut self, world: &mut Surroundings<'_>, id: usize) {
        let place = Place::Worker(self.index);
        if let Some(member) = self.members.get_mut(&id) {
            hang_up(world, member);
            member.connection = Some(world.net.connect(place, member.aggregator));
            member.unanswered = 0;
        }
    }

    fn say_hello(&mut self, world: &mut Surroundings<'_>, id: usize) {
        let Some(Membership { role: Role::Serves(stripe), assigned: Some(assigned), .. }) =
            self.members.get(&id)
        else {
            return;
        };
        if let Phase::Running(calls) = &mut self.phase {
            calls.greet(world.net.now, *stripe, assigned.hello_secret);
            self.turn_by(world, world.net.now);
        }
    }

    /// All ranks are ready at an aggregator.
    fn begin(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        lanes: u16,
    ) -> Result<(), Violation> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        member.started = Some(lanes);
        match member.role {
            Role::Awaits(stripe) => self.arrive(world, id, stripe),
            Role::Leaves => Ok(()),
            Role::Serves(_) => {
                let started: Option<Vec<_>> =
                    self.members.values().map(|member| member.started).collect();
                match started.and_then(|lanes| lanes.into_iter().min()) {
                    Some(lanes) => self.run(world, lanes),
                    None => Ok(()),
                }
            }
        }
    }

    /// Begins to run: all ranks are ready everywhere.
    fn run(&mut self, world: &mut Surroundings<'_>, lanes: u16) -> Result<(), Violation> {
        let Some(key) = self.session() else {
            return Err(Violation(format!("rank {} starts without a path", self.rank)));
        };
        world.oracle.start(key, self.rank, lanes)?;
        let plan = self.plan(world);
        let members = self.stripes();
        let weights = weights(&members, &world.scenario.weights);
        let shares = stripes::shares(&weights).into_iter().map(|share| f64::from(share) / 1e4);
        let shares: Vec<f64> = shares.collect();
        let shards: Vec<_> =
            (members.iter().enumerate()).map(|at| self.shards(world, at, lanes, &shares)).collect();
        let sizes: Vec<_> = shards.iter().map(Vec::len).zip(weights).collect();
        let links = members.iter().filter_map(|member| Some(member.assigned.as_ref()?.links));
        let least_part = stripes::least_part(&links.collect::<Vec<_>>());
        let shards = shards.into_iter().flatten().collect();
        let (rank, ranks) = (self.rank, plan.ranks);
        let job = Job { key, rank, ranks, lanes, cut: Shards::new(&sizes, least_part) };
        self.moving = (members.len() > 1).then(|| Moving::new(&members, lanes, shares));
        let program = self.program(plan, world);
        let shards = (shards, self.doom.clone());
        let calls = Calls::new(self.index, job, shards, plan, program, world.net.now);
        self.phase = Phase::Running(Box::new(calls));
        self.go_on(world)
    }

    /// The shards of a stripe, which has one of these shares of calls. With others, they may move.
    fn shards(
        &self,
        world: &Surroundings<'_>,
        (stripe, member): (usize, &&Membership),
        lanes: u16,
        shares: &[f64],
    ) -> Vec<Shard> {
        let (Some(assigned), Path::Open(open)) = (&member.assigned, &member.path) else {
            return Vec::new();
        };
        let (plan, now) = (self.plan(world), world.net.now);
        let shard = |(number, path): (usize, &OpenPath)| {
            let (identity, room) = (assigned.identity(number), plan.receive_room);
            let config = Config::new(identity, assigned.slots, lanes, room, world.scenario.limits)
                .for_share(shares[stripe]);
            let config = Config { capabilities: assigned.capabilities, ..config };
            let port = port_of(self.place(world), number, member.sockets);
            let way = Way { aggregator: member.aggregator, port, config, rtt: path.rtt };
            let mut shard = Shard::new((self.index, stripe), way, lanes, &self.doom, plan, now);
            if shares.len() > 1 {
                shard.data_path.keep_for_another(lanes);
            }
            let others = member.met.as_ref().filter(|(met, _)| met.borrow().ranks.len() > 1);
            let has_combiners = !world.scenario.tree.combiners.is_empty();
            let is_whole = world.scenario.in_memory && shares.len() == 1 && !has_combiners;
            let whole = others
                .filter(|(met, _)| is_whole && met.borrow().ranks.len() == usize::from(plan.ranks));
            if let Some((shared, place)) = whole {
                shard.share_slots(shared, (number, *place), assigned.slots, plan.origin);
            } else if let Some((shared, place)) = others {
                shard.add_up(shared, (number, *place), plan.batch, plan.origin);
                shard.share_results(shared, (number, *place), member.taker.is_some());
            }
            shard
        };
        open.iter().enumerate().map(shard).collect()
    }

    /// The rank's calls: those of all ranks, except for mistakes the first time it runs.
    fn program(&self, plan: &JobPlan, world: &mut Surroundings<'_>) -> Vec<Step> {
        let mut program = plan.program.clone();
        if let Some((_, calls)) = self.stop.filter(|(job, _)| *job == self.job) {
            program.truncate(calls);
        }
        if self.attempts > 1 {
            return program;
        }
        if let Some((rank, place, step)) = plan.mistake.filter(|(rank, ..)| *rank == self.rank) {
            debug!("rank {rank} makes a mistake in call {place}");
            world.net.tally.fault(Fault::Mistake);
            if let Some(right) = program.get_mut(place) {
                *right = step;
            }
        }
        if let Some((_, calls)) = plan.quitter.filter(|(rank, _)| *rank == self.rank) {
            world.net.tally.fault(Fault::Quitter);
            program.truncate(calls);
        }
        program
    }

    /// A datagram of an aggregator's reaches the worker's host.
    pub fn receive(
        &mut self,
        world: &mut Surroundings<'_>,
        (aggregator, port): (usize, u16),
        packet: &[u8],
        congested: bool,
        intact: bool,
    ) -> Result<(), Violation> {
        let (now, place) = (world.net.now, self.place(world));
        let members = self.members.values_mut();
        let mut there = members.filter(|member| member.aggregator == aggregator);
        let found = there.find_map(|member| member.shard_at(place, port).map(|at| (member, at)));
        let Some((member, shard)) = found else {
            world.net.tally.fault(Fault::OldSession);
            return Ok(());
        };
        match (&mut member.path, &mut self.phase, member.role) {
            (Path::Greeting { hello, open }, ..) if open.len() == shard => {
                hello.receive(now, packet)
            }
            (Path::Open(_), Phase::Running(calls), Role::Serves(stripe)) => {
                let to = (stripe, shard);
                if let Err(failure) = calls.receive(world, to, packet, (congested, intact)) {
                    return self.fail(world, stripe, failure);
                }
            }
            _ => {}
        }
        let delay = world.net.rng.below(world.scenario.host_delay);
        self.turn_by(world, now + delay);
        Ok(())
    }

    /// Another worker of the host has posted results: takes a turn soon.
    pub fn hear_bell(&mut self, world: &mut Surroundings<'_>) {
        let delay = world.net.rng.below(world.scenario.host_delay);
        self.turn_by(world, world.net.now + delay);
    }

    /// Takes the scheduled turn.
    pub fn scheduled_turn(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        self.waiting = 0;
        if self.turn_at.is_some_and(|at| at <= world.net.now) {
            self.turn_at = None;
            self.turn(world)?;
        }
        Ok(())
    }

    /// Runs the process: timers, packets, calls.
    fn turn(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let ids: Vec<_> = self.members.keys().copied().collect();
        for id in &ids {
            if let Some(member) = self.members.get_mut(id) {
                member.session.on_timer(world.net.now);
            }
            self.perform(world, *id)?;
        }
        for id in &ids {
            self.greet(world, *id)?;
        }
        if matches!(self.phase, Phase::Running(_)) {
            for id in ids {
                self.report_no_multicast(world, id)?;
            }
            self.call(world)?;
        }
        Ok(())
    }

    /// Reports that no results come by multicast, like the driver before it waits.
    fn report_no_multicast(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
    ) -> Result<(), Violation> {
        let (Phase::Running(calls), Some(member)) = (&self.phase, self.members.get_mut(&id)) else {
            return Ok(());
        };
        let Role::Serves(stripe) = member.role else { return Ok(()) };
        let is_due = member.failure.is_none() && calls.hears_no_group(stripe);
        if !is_due || std::mem::replace(&mut member.hears_no_group, true) {
            return Ok(());
        }
        world.net.tally.fate(Fate::NoMulticast);
        self.tell(world, id, session::Event::HearsNoGroup)
    }

    fn call(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let Phase::Running(calls) = &mut self.phase else { return Ok(()) };
        let may_move = self.moving.is_some();
        let serving = self.members.values().filter_map(|member| match member.role {
            Role::Serves(stripe) => Some((stripe, member.others(may_move))),
            _ => None,
        });
        match calls.turn(world, &serving.collect(), self.stalled_until)? {
            Turn::Next(Some(at)) => self.turn_by(world, at),
            Turn::Next(None) => {}
            Turn::Finished => return self.end_all(world, None, End::Finished, None),
            Turn::Failed(stripe, failure) => {
                self.fail(world, stripe, failure)?;
                // The shards behind it have not had their turn.
                let has_others = self.moving.is_some();
                if has_others {
                    self.turn_by(world, world.net.now);
                }
            }
            Turn::Died => return self.die(world),
        }
        Ok(())
    }

    /// The data path of a stripe cannot go on.
    fn fail(
        &mut self,
        world: &mut Surroundings<'_>,
        stripe: usize,
        failure: Failure,
    ) -> Result<(), Violation> {
        let id = self.serving(stripe);
        let (Phase::Running(calls), Some(id)) = (&self.phase, id) else {
            return Err(Violation(format!("rank {} fails without a data path", self.rank)));
        };
        let call = match failure {
            Failure::Mismatch { collective, .. } => calls.last_call(stripe, collective),
            _ => None,
        };
        let standing = calls.standing(world, stripe);
        if let Some(member) = self.members.get_mut(&id) {
            member.failure = Some((failure, standing));
        }
        self.tell(world, id, session::Event::Failed { failure, call })
    }

    /// The control plane cannot explain the failure of a stripe's data path.
    fn fail_without_reason(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
    ) -> Result<(), Violation> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        let (Some((failure, standing)), Role::Serves(stripe)) = (member.failure, member.role)
        else {
            return Ok(());
        };
        if self.lose_unsaid(world, id, (stripe, failure), &standing)? {
            return Ok(());
        }
        self.end_all(world, Some(id), End::Failed(failure), Some(standing))
    }

    /// A session is over.
    fn conclude(
        &mut self,
        world: &mut Surroundings<'_>,
        id: usize,
        ending: Ending,
    ) -> Result<(), Violation> {
        let Some(member) = self.members.get(&id) else { return Ok(()) };
        let (role, told) = (member.role, self.told(world, Some(id)));
        if let (Phase::Leaving(_), _) | (_, Role::Leaves) = (&self.phase, role) {
            self.forget(world, id);
            return self.rest_if_over(world);
        }
        let standing = match (&self.phase, role, member.failure) {
            (Phase::Running(calls), Role::Serves(stripe), None) => {
                Some(calls.standing(world, stripe))
            }
            _ => None,
        };
        let end = match ending {
            Ending::Left => return Err(Violation(format!("rank {} left unasked", self.rank))),
            Ending::Nonsense(what) => return Err(Violation(format!("a rank hears {what}"))),
            Ending::Unreachable(_) => End::Unreachable,
            Ending::Lost(_) => End::Lost,
            Ending::Forgotten(_) => End::Forgotten,
            Ending::Refused(why) => End::Refused(why),
            Ending::Missing(ranks) => End::NotJoined(ranks),
            Ending::NotReady(ranks) => End::NotReady(ranks),
            Ending::Stopped { reason, ranks } => End::Stopped { reason, ranks },
            Ending::Aborted { reason, ranks } => End::Aborted { reason, ranks },
            Ending::Mismatch { calls, .. } => End::Mismatch(calls),
        };
        self.forget(world, id);
        match role {
            Role::Serves(stripe) => {
                world.oracle.is_right_to_part(world.net, &told, &end)?;
                if self.lose(world, stripe, &end)? {
                    return Ok(());
                }
                self.end_all_told(world, told, end, standing)
            }
            Role::Awaits(stripe) => self.end_of_move(world, stripe, end),
            Role::Leaves => Ok(()),
        }
    }

    /// The rank's part ends as one of its sessions tells, if any does: it says goodbye in all of
    /// them.
    fn end_all(
        &mut self,
        world: &mut Surroundings<'_>,
        id: Option<usize>,
        end: End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        let told = self.told(world, id);
        self.end_all_told(world, told, end, standing)
    }

    fn end_all_told(
        &mut self,
        world: &mut Surroundings<'_>,
        told: Told,
        end: End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        self.judge(world, &told, &end, standing)?;
        let error = if end == End::Finished { String::new() } else { format!("{end:?}") };
        let goodbye = Goodbye { error, ranks: end.at_fault(), lost_aggregator: false };
        self.phase = Phase::Leaving(end);
        let ids: Vec<_> = self.members.keys().copied().collect();
        for id in ids {
            self.tell(world, id, session::Event::Leave(goodbye.clone()))?;
        }
        self.rest_if_over(world)
    }

    /// The process ends once its last session has.
    fn rest_if_over(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        if let Phase::Leaving(end) = &self.phase
            && self.members.is_empty()
        {
            let end = end.clone();
            self.rest_as(world, end);
        }
        Ok(())
    }

    fn rest_as(&mut self, world: &mut Surroundings<'_>, end: End) {
        let ids: Vec<_> = self.members.keys().copied().collect();
        ids.into_iter().for_each(|id| self.forget(world, id));
        self.moving = None;
        self.phase = Phase::Rest(Some(end));
        self.enter_next(world);
    }

    fn forget(&mut self, world: &mut Surroundings<'_>, id: usize) {
        if let Some(mut member) = self.members.remove(&id) {
            hang_up(world, &mut member);
        }
    }

    fn judge(
        &self,
        world: &mut Surroundings<'_>,
        told: &Told,
        end: &End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        debug!("{} worker {}: {end:?}", Clock(world.net.now), self.index);
        world.oracle.end((world.net, world.daemons), &self.who(), told, end, standing)
    }

    /// By which of its sessions the rank is told something.
    fn told(&self, world: &Surroundings<'_>, id: Option<usize>) -> Told {
        let member = id.and_then(|id| self.members.get(&id));
        let session = member.and_then(Membership::key);
        let was_disturbed =
            member.is_some_and(|member| world.net.was_disturbed(self.index, member.aggregator));
        Told { session: session.or(self.session()), was_disturbed }
    }

    fn who(&self) -> Who {
        let Self { job, rank, is_in_all, .. } = *self;
        Who { job, rank, sessions: self.sessions.clone(), is_in_all }
    }

    /// The worker's place on its host.
    fn place(&self, world: &Surroundings<'_>) -> usize {
        self.index - world.scenario.hosts[self.index]
    }

    fn plan<'a>(&self, world: &Surroundings<'a>) -> &'a JobPlan {
        &world.scenario.jobs[self.job]
    }

    /// Ensures that there is a turn at this time at the latest.
    fn turn_by(&mut self, world: &mut Surroundings<'_>, at: Time) {
        if self.turn_at.is_none_or(|scheduled| at < scheduled) {
            self.turn_at = Some(at);
            world.net.schedule(at, Event::Turn(self.index));
        }
    }
}

/// The weight of each stripe, given those of the scenario.
fn weights(members: &[&Membership], weights: &[u32]) -> Vec<u32> {
    let known = |member: &&Membership| {
        let given = weights.get(member.aggregator).copied().unwrap_or_default();
        Some((given, member.assigned.as_ref()?.links))
    };
    stripes::agreed_weights(&members.iter().filter_map(known).collect::<Vec<_>>())
}

fn hang_up(world: &mut Surroundings<'_>, member: &mut Membership) {
    if let Some(connection) = member.connection.take() {
        world.net.ask(connection, Message::Gone);
    }
}
