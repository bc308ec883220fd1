//! A rank's process: the real session, HELLO and data path, and the code that carries out their
//! decisions, like the product's control thread and data thread.

mod faults;
mod messages;
mod path;

use std::time::Duration;

use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::jobs::MemberId;
use switchml_worker_core::engine::{Config, Failure, Identity};
use switchml_worker_core::hello::{Hello, OpenPath};
use switchml_worker_core::session::{self, Action, Ending, Goodbye, Session};
use tracing::debug;

use crate::calls::{Calls, Turn};
use crate::hosts::{Doom, Shared};
use crate::net::{Clock, Connection, Event, Message, News, Place, Violation, port_of, shard_at};
use crate::oracle::{End, SessionKey, Standing, Who};
use crate::program::Step;
use crate::scenario::{JobPlan, Time};
use crate::shard::Shard;
use crate::surroundings::Surroundings;
use crate::tally::{Fate, Fault};

/// A rank's process.
pub struct Worker {
    /// The worker's number among all workers.
    pub index: usize,
    /// The job's number among all jobs.
    pub job: usize,
    /// The worker's rank in the job.
    pub rank: u16,
    /// How often the process was started.
    pub attempts: u32,
    /// Whether the next start is scheduled.
    pub starts: bool,
    /// The time until which the process is frozen.
    pub stalled_until: Time,
    /// The session, while there is a process.
    session: Option<Session>,
    phase: Phase,
    connection: Option<Connection>,
    /// Requests without an answer on this connection.
    unanswered: u32,
    assigned: Option<Assigned>,
    /// Whether the worker has reported, in this session, that it hears no group.
    hears_no_group: bool,
    /// Number of the sockets that it has opened, which differ in their ports.
    sockets: u16,
    /// When the process dies, if it is to die in a turn, and when it is restarted then.
    doom: Doom,
    restart: Option<Time>,
    /// The memory of this host's ranks, and the rank's place there, once it has met them.
    met: Option<(Shared, usize)>,
    turn_at: Option<Time>,
    /// Packets in the socket while the process is frozen.
    waiting: u32,
}

/// The phase of a rank's session.
enum Phase {
    /// There is no process, or its session is over.
    Rest(Option<End>),
    /// The rank waits to be let into a job.
    Joining,
    /// The rank opens the path of each shard, one after another; these are open.
    Greeting { hello: Hello, open: Vec<OpenPath> },
    /// The paths of all shards are open.
    Open(Vec<OpenPath>),
    /// The rank makes its calls.
    Running(Box<Calls>),
    /// The data path has failed.
    Failed { calls: Box<Calls>, failure: Failure, standing: Standing },
    /// The rank has left the job, with this end.
    Leaving(End),
}

/// The daemon's assignments.
#[derive(Clone)]
struct Assigned {
    /// The rank in the first shard.
    identity: Identity,
    /// The job numbers of all shards.
    shards: Vec<u16>,
    slots: u16,
    max_lanes: u16,
    capabilities: Capabilities,
    hello_secret: u32,
    control_secret: u64,
}

impl Assigned {
    /// The rank in a shard.
    fn identity(&self, shard: usize) -> Identity {
        Identity { job: self.shards[shard], ..self.identity }
    }
}

impl Worker {
    /// A worker that was never started.
    pub fn new(index: usize, job: usize, rank: u16) -> Self {
        Self {
            index,
            job,
            rank,
            attempts: 0,
            starts: false,
            stalled_until: 0,
            session: None,
            phase: Phase::Rest(None),
            connection: None,
            unanswered: 0,
            assigned: None,
            hears_no_group: false,
            sockets: 0,
            doom: Doom::default(),
            restart: None,
            met: None,
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

    /// The worker's session, or its last one.
    pub fn session(&self) -> Option<SessionKey> {
        self.assigned.as_ref().map(|assigned| assigned.identity.epoch)
    }

    /// Starts the process: it joins its job.
    pub fn start(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let Self { index, job, rank, .. } = *self;
        self.starts = false;
        if !matches!(self.phase, Phase::Rest(_)) {
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
        self.assigned = None;
        self.met = None;
        self.doom = Doom::default();
        self.hears_no_group = false;
        self.phase = Phase::Joining;
        let join_timeout = Duration::from_nanos(world.scenario.join_timeout);
        self.session = Some(Session::new(world.net.now, join_timeout));
        self.perform(world)
    }

    /// The worker's control thread is told something.
    pub fn hear(
        &mut self,
        world: &mut Surroundings<'_>,
        connection: Connection,
        news: News,
    ) -> Result<(), Violation> {
        if self.connection != Some(connection) {
            return Ok(());
        }
        debug!("{} worker {} hears {news:?}", Clock(world.net.now), self.index);
        let event = match news {
            News::Connected => session::Event::Connected,
            News::Unreachable => session::Event::Unreachable("nobody listens".to_owned()),
            News::Ended | News::Lost => session::Event::Lost("reset".to_owned()),
            News::Answer(answer) => {
                self.unanswered -= 1;
                if self.unanswered > 0 {
                    // The answer is to a request that was given up.
                    return Ok(());
                }
                session::Event::Answered(answer)
            }
            News::Event(event) => session::Event::Heard(self.understand(world, event)?),
        };
        self.tell_session(world, event)?;
        self.turn(world)
    }

    fn tell_session(
        &mut self,
        world: &mut Surroundings<'_>,
        event: session::Event,
    ) -> Result<(), Violation> {
        if let Some(session) = &mut self.session {
            session.handle(world.net.now, event);
        }
        self.perform(world)
    }

    /// Carries out the session's actions.
    fn perform(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        while let Some(action) = self.session.as_mut().and_then(Session::next_action) {
            match action {
                Action::Connect => self.connect(world),
                Action::Send(request) => self.send(world, request),
                Action::OpenPath => self.open_path(world),
                Action::Start { lanes } => self.run(world, lanes)?,
                Action::SayHello => self.say_hello(world),
                Action::NoReason => {
                    if let Phase::Failed { failure, standing, .. } = self.phase {
                        self.leave(world, End::Failed(failure), Some(standing))?;
                    }
                }
                Action::End(ending) => self.conclude(world, ending)?,
            }
        }
        if let Some(deadline) = self.session.as_ref().and_then(Session::deadline) {
            self.turn_by(world, deadline);
        }
        Ok(())
    }

    fn connect(&mut self, world: &mut Surroundings<'_>) {
        self.hang_up(world);
        self.connection = Some(world.net.connect(Place::Worker(self.index)));
        self.unanswered = 0;
    }

    fn say_hello(&mut self, world: &mut Surroundings<'_>) {
        if let (Phase::Running(calls), Some(assigned)) = (&mut self.phase, &self.assigned) {
            calls.greet(world.net.now, assigned.hello_secret);
            self.turn_by(world, world.net.now);
        }
    }

    /// Begins to run: all ranks are ready.
    fn run(&mut self, world: &mut Surroundings<'_>, lanes: u16) -> Result<(), Violation> {
        let (Phase::Open(paths), Some(assigned)) = (&self.phase, &self.assigned) else {
            return Err(Violation(format!("rank {} starts without a path", self.rank)));
        };
        let Assigned { identity, slots, capabilities, .. } = *assigned;
        world.oracle.start(identity.epoch, lanes)?;
        let (plan, now) = (self.plan(world), world.net.now);
        let shard = |(number, path): (usize, &OpenPath)| {
            let (identity, room) = (assigned.identity(number), plan.receive_room);
            let config = Config::new(identity, slots, lanes, room, world.scenario.limits);
            let config = Config { capabilities, ..config };
            let from = (self.index, self.port(world, number));
            let doom = self.doom.clone();
            let mut shard = Shard::new(from, (config, lanes), doom, path.rtt, plan, now);
            let others = self.met.as_ref().filter(|(shared, _)| shared.borrow().ranks.len() > 1);
            if let Some((shared, place)) = others {
                shard.add_up(shared, (number, *place), plan.batch);
            }
            shard
        };
        let shards = paths.iter().enumerate().map(shard).collect();
        let program = self.program(plan, world);
        let shards = (shards, self.doom.clone());
        let calls = Calls::new(self.index, (identity, lanes), shards, plan, program, now);
        self.phase = Phase::Running(Box::new(calls));
        Ok(())
    }

    /// The rank's calls: those of all ranks, except for mistakes the first time it runs.
    fn program(&self, plan: &JobPlan, world: &mut Surroundings<'_>) -> Vec<Step> {
        let mut program = plan.program.clone();
        if self.attempts > 1 {
            return program;
        }
        if let Some((rank, place, step)) = plan.mistake.filter(|(rank, ..)| *rank == self.rank) {
            debug!("rank {rank} makes a mistake in call {place}");
            world.net.tally.fault(Fault::Mistake);
            program[place] = step;
        }
        if let Some((_, calls)) = plan.quitter.filter(|(rank, _)| *rank == self.rank) {
            world.net.tally.fault(Fault::Quitter);
            program.truncate(calls);
        }
        program
    }

    /// A datagram reaches the worker's host.
    pub fn receive(
        &mut self,
        world: &mut Surroundings<'_>,
        port: u16,
        packet: &[u8],
        congested: bool,
        intact: bool,
    ) -> Result<(), Violation> {
        let now = world.net.now;
        let shard = shard_at(port);
        if port != self.port(world, shard) || matches!(self.phase, Phase::Rest(_)) {
            world.net.tally.fault(Fault::OldSession);
            return Ok(());
        }
        match &mut self.phase {
            Phase::Greeting { hello, open } if open.len() == shard => hello.receive(now, packet),
            Phase::Running(calls) | Phase::Failed { calls, .. } => {
                if let Err(failure) = calls.receive(world, (shard, packet), congested, intact) {
                    return self.fail(world, failure);
                }
            }
            _ => {}
        }
        let delay = world.net.rng.below(world.scenario.host_delay);
        self.turn_by(world, now + delay);
        Ok(())
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
        if let Some(session) = &mut self.session {
            session.on_timer(world.net.now);
        }
        self.perform(world)?;
        match &mut self.phase {
            Phase::Greeting { .. } => self.greet(world),
            Phase::Running(_) | Phase::Failed { .. } => {
                self.report_no_multicast(world)?;
                self.call(world)
            }
            _ => Ok(()),
        }
    }

    /// Reports that no results come by multicast, like the driver before it waits.
    fn report_no_multicast(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        match &self.phase {
            Phase::Running(calls) if calls.hears_no_group() => {}
            _ => return Ok(()),
        }
        if std::mem::replace(&mut self.hears_no_group, true) {
            return Ok(());
        }
        world.net.tally.fate(Fate::NoMulticast);
        self.tell_session(world, session::Event::HearsNoGroup)
    }

    fn call(&mut self, world: &mut Surroundings<'_>) -> Result<(), Violation> {
        let (Phase::Running(calls) | Phase::Failed { calls, .. }, Some(session)) =
            (&mut self.phase, &self.session)
        else {
            return Ok(());
        };
        match calls.turn(world, session, self.stalled_until)? {
            Turn::Next(Some(at)) => self.turn_by(world, at),
            Turn::Next(None) => {}
            Turn::Finished => return self.leave(world, End::Finished, None),
            Turn::Failed(failure) => return self.fail(world, failure),
            Turn::Died => return self.die(world),
        }
        Ok(())
    }

    /// The data path cannot go on.
    fn fail(&mut self, world: &mut Surroundings<'_>, failure: Failure) -> Result<(), Violation> {
        let phase = std::mem::replace(&mut self.phase, Phase::Joining);
        let Phase::Running(calls) = phase else {
            return Err(Violation(format!("rank {} fails without a data path", self.rank)));
        };
        let call = match failure {
            Failure::Mismatch { collective, .. } => calls.last_call(collective),
            _ => None,
        };
        let standing = calls.standing(world);
        self.phase = Phase::Failed { calls, failure, standing };
        self.tell_session(world, session::Event::Failed { failure, call })
    }

    /// The rank's part has ended, and it says goodbye.
    fn leave(
        &mut self,
        world: &mut Surroundings<'_>,
        end: End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        self.judge(world, &end, standing)?;
        let error = if end == End::Finished { String::new() } else { format!("{end:?}") };
        let goodbye = Goodbye { error, ranks: end.blames() };
        self.phase = Phase::Leaving(end);
        self.tell_session(world, session::Event::Leave(goodbye))
    }

    /// The session is over.
    fn conclude(&mut self, world: &mut Surroundings<'_>, ending: Ending) -> Result<(), Violation> {
        if let Phase::Leaving(end) = &self.phase {
            let end = end.clone();
            return self.rest_as(world, end);
        }
        let standing = match &self.phase {
            Phase::Running(calls) => Some(calls.standing(world)),
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
            Ending::Stopped(reason) => End::Aborted { reason, ranks: Vec::new() },
            Ending::Aborted { reason, ranks } => End::Aborted { reason, ranks },
            Ending::Mismatch { calls, .. } => End::Mismatch(calls),
        };
        self.rest(world, end, standing)
    }

    /// The rank's part has ended, and so has its process.
    fn rest(
        &mut self,
        world: &mut Surroundings<'_>,
        end: End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        self.judge(world, &end, standing)?;
        self.rest_as(world, end)
    }

    fn rest_as(&mut self, world: &mut Surroundings<'_>, end: End) -> Result<(), Violation> {
        self.hang_up(world);
        self.session = None;
        self.met = None;
        self.phase = Phase::Rest(Some(end));
        Ok(())
    }

    fn hang_up(&mut self, world: &mut Surroundings<'_>) {
        if let Some(connection) = self.connection.take() {
            world.net.ask(connection, Message::Gone);
        }
    }

    fn judge(
        &self,
        world: &mut Surroundings<'_>,
        end: &End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        debug!("{} worker {}: {end:?}", Clock(world.net.now), self.index);
        world.oracle.end(world.net, world.daemon, self.who(), end, standing)
    }

    fn who(&self) -> Who {
        Who { job: self.job, rank: self.rank, session: self.session() }
    }

    /// The worker's identity in messages; before it is assigned, that of no member.
    fn member(&self) -> MemberId {
        let rank = self.rank.into();
        match self.assigned {
            Some(Assigned {
                identity: Identity { job, epoch, .. },
                control_secret: secret,
                ..
            }) => MemberId { job: job.into(), epoch, rank, secret },
            None => MemberId { job: 0, epoch: 0, rank, secret: 0 },
        }
    }

    /// The UDP port of a shard.
    fn port(&self, world: &Surroundings<'_>, shard: usize) -> u16 {
        port_of(self.index - world.scenario.hosts[self.index], shard, self.sockets)
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
