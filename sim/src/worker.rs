//! A rank's process: the real HELLO and the real endpoint, and around them what the data thread and
//! the control thread do in the product.

use std::mem;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use switchml_control::{Aborted, Call, join_event};
use switchml_protocol::header::{HEADER_LEN, Header};
use switchml_userspace_core::control_plane::{PING_INTERVAL, PING_TIMEOUT};
use switchml_userspace_core::jobs::{Joiner, MemberId, Threads};
use switchml_worker_core::CallStats;
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::{Kind, Submission};
use switchml_worker_core::data_path::DataPath;
use switchml_worker_core::engine::{Config, Engine, Failure, Identity, Limits};
use switchml_worker_core::hello::{Hello, HelloStep, OpenPath};
use switchml_worker_core::issued::Issued;
use tracing::debug;
use zerocopy::{FromBytes, IntoBytes};

use crate::daemon::Daemon;
use crate::net::{
    AGGREGATOR, Clock, Connection, Event, Message, Net, News, Violation, binding_of, ensure,
};
use crate::oracle::{End, Oracle, SessionKey, Standing, Who, element_key};
use crate::program::Step;
use crate::scenario::{JobPlan, MS, SECOND, Scenario, Time};
use crate::tally::Fault;

/// How long the data thread waits to hear why the job was aborted.
const REASON: Time = SECOND;
/// How often the daemon pings, and how long it waits for an answer.
const PING: (Time, Time) = (PING_INTERVAL.as_nanos() as Time, PING_TIMEOUT.as_nanos() as Time);

/// A rank's process.
pub struct Worker {
    /// Its number among all workers.
    pub index: usize,
    /// Its job among all jobs.
    pub job: usize,
    /// Its rank in it.
    pub rank: u16,
    /// How often it was started.
    pub attempts: u32,
    /// The next start is scheduled.
    pub starts: bool,
    /// The time until which it stands still.
    pub stalled_until: Time,
    phase: Phase,
    connection: Option<Connection>,
    /// The connection broke, and it tries to come back over another one.
    resuming: bool,
    /// Bitmap of the ranks that have left in good order.
    departed: u64,
    assigned: Option<Assigned>,
    port: u16,
    turn_at: Option<Time>,
    /// Packets that its socket holds while it stands still.
    waiting: u32,
}

/// What a rank does.
enum Phase {
    /// There is no process, or it has nothing to do any more.
    Rest(Option<End>),
    /// It waits for the other ranks.
    Joining { until: Time, missing: Vec<u32> },
    /// It opens its data path.
    Greeting(Hello),
    /// It waits for the other ranks' paths.
    Ready { path: OpenPath, until: Time },
    /// It calls collectives.
    Running(Box<Running>),
    /// Its data path has failed for a reason that the daemon knows more of; that is on its way.
    AskingWhy { failure: Failure, until: Time },
}

/// What the daemon gave.
#[derive(Clone, Copy)]
struct Assigned {
    identity: Identity,
    slots: u16,
    unchecked_maxima: bool,
    control_secret: u64,
}

struct Running {
    endpoint: DataPath,
    issued: Issued,
    program: Vec<Step>,
    /// Place of the next call, and when it is made.
    next: usize,
    next_at: Time,
    returned: usize,
    tensors: Results,
    /// When there was progress last: a result, or the first chunk after a pause.
    progress_at: Time,
    results: u64,
    /// When an intact answer to its oldest chunk came since that brought no result.
    answered_at: Option<Time>,
    /// When it was told last that others are waited for, whole or with something behind it.
    told_at: Time,
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

/// What a worker acts on.
pub struct World<'a> {
    /// The network and the time.
    pub net: &'a mut Net,
    /// Who watches.
    pub oracle: &'a mut Oracle,
    /// The aggregator, for the oracle to look at.
    pub daemon: &'a Daemon,
    /// The plan.
    pub scenario: &'a Scenario,
    /// All faults have ended.
    pub healed: bool,
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
            phase: Phase::Rest(None),
            connection: None,
            resuming: false,
            departed: 0,
            assigned: None,
            port: 40_000,
            turn_at: None,
            waiting: 0,
        }
    }

    /// Whether it does nothing; how its last part ended.
    pub fn resting(&self) -> Option<Option<&End>> {
        match &self.phase {
            Phase::Rest(end) => Some(end.as_ref()),
            _ => None,
        }
    }

    /// Its session, or its last one.
    pub fn session(&self) -> Option<SessionKey> {
        self.assigned.map(|assigned| assigned.identity.epoch)
    }

    /// Starts the process: it joins its job.
    pub fn start(&mut self, world: &mut World<'_>) {
        let Self { index, job, rank, .. } = *self;
        self.starts = false;
        if !matches!(self.phase, Phase::Rest(_)) {
            return;
        }
        if self.attempts > 0 {
            world.net.tally.fault(Fault::Rejoin);
        }
        self.attempts += 1;
        // The system gives any free port, now and then the old one.
        if world.net.rng.one_in(2) {
            self.port += 1;
        }
        debug!("{} worker {index} starts: rank {rank} of job {job}", Clock(world.net.now));
        self.assigned = None;
        self.departed = 0;
        self.resuming = false;
        let connection = world.net.connect(index);
        self.connection = Some(connection);
        let joiner = Joiner {
            name: format!("job {job}"),
            rank: rank.into(),
            world_size: self.plan(world).ranks.into(),
            peer: Ipv4Addr::from(binding_of(index, 0).ip).into(),
            local: Some(*AGGREGATOR.ip()),
            threads: Threads::default(),
        };
        world.net.tell_daemon(connection, Message::Join(joiner));
        let until = world.net.now + world.scenario.join_timeout;
        self.phase = Phase::Joining { until, missing: Vec::new() };
        self.turn_by(world, until);
    }

    /// Kills the process; its host too if `silent`, so that no connection is closed.
    pub fn kill(&mut self, world: &mut World<'_>, silent: bool) -> Result<(), Violation> {
        if matches!(self.phase, Phase::Rest(_)) {
            return Ok(());
        }
        world.net.tally.fault(if silent { Fault::HostDeath } else { Fault::Crash });
        if let Some(connection) = self.connection.take() {
            if silent {
                let after = PING.1 + world.net.rng.below(PING.0);
                world.net.go_silent(connection, after);
            } else {
                world.net.tell_daemon(connection, Message::Gone);
            }
        }
        self.end(world, End::Killed, None)
    }

    /// Breaks its control connection.
    pub fn disconnect(&mut self, world: &mut World<'_>) {
        if let Some(connection) = self.connection {
            world.net.tally.fault(Fault::Disconnect);
            self.break_connection(world, connection);
        }
    }

    /// Stops the process for a while. The daemon gives it up when it does not answer for too long.
    pub fn stall(&mut self, world: &mut World<'_>, time: Time) {
        if matches!(self.phase, Phase::Rest(_)) {
            return;
        }
        world.net.tally.fault(Fault::Stall);
        self.stalled_until = self.stalled_until.max(world.net.now + time);
        let patience = PING.1 + world.net.rng.below(PING.0);
        if let Some(connection) = self.connection.filter(|_| time > patience) {
            world.oracle.disconnect(self.who());
            world.net.go_silent(connection, patience);
            world.net.tell_worker(connection, News::Lost);
        }
    }

    /// Ends a stall, if the scenario does.
    pub fn wake(&mut self, now: Time) {
        self.stalled_until = self.stalled_until.min(now);
    }

    fn break_connection(&mut self, world: &mut World<'_>, connection: Connection) {
        world.oracle.disconnect(self.who());
        world.net.tell_daemon(connection, Message::Gone);
        world.net.tell_worker(connection, News::Lost);
    }

    /// Something reaches the worker's control thread.
    pub fn hear(
        &mut self,
        world: &mut World<'_>,
        connection: Connection,
        news: News,
    ) -> Result<(), Violation> {
        if self.connection != Some(connection) {
            return Ok(());
        }
        debug!("{} worker {} hears {news:?}", Clock(world.net.now), self.index);
        match news {
            News::Lost if matches!(self.phase, Phase::Running(_)) && !self.resuming => {
                self.resume(world)
            }
            News::Lost => self.fail(world, End::Lost),
            News::Refused(_) if self.resuming => self.fail(world, End::Lost),
            News::Refused(why) => self.fail(world, End::Refused(why)),
            News::Event(join_event::Event::Waiting(waiting)) => {
                ensure!(
                    !waiting.missing_ranks.contains(&self.rank.into()),
                    "rank {} is told that it is missing itself",
                    self.rank
                );
                if let Phase::Joining { missing, .. } = &mut self.phase {
                    *missing = waiting.missing_ranks;
                }
                Ok(())
            }
            News::Event(join_event::Event::Assigned(assigned)) => {
                self.assign(world, &assigned);
                self.turn(world)
            }
            News::Event(join_event::Event::Started(_)) if self.resuming => {
                self.resuming = false;
                Ok(())
            }
            News::Event(join_event::Event::Started(started)) => {
                self.run(world, started.lanes as u16)?;
                self.turn(world)
            }
            News::Event(join_event::Event::Aborted(aborted)) => {
                let Aborted { reason, ranks, calls } = aborted;
                self.fail(world, End::Aborted { reason, ranks, calls })
            }
            News::Event(join_event::Event::CallsWanted(_)) => {
                self.report_calls(world, u64::MAX, Vec::new());
                Ok(())
            }
            News::Event(join_event::Event::Left(left)) => {
                self.departed |= 1 << left.rank;
                Ok(())
            }
        }
    }

    /// Comes back over another connection: the aggregator may only have taken it for dead, and
    /// tells it so.
    fn resume(&mut self, world: &mut World<'_>) -> Result<(), Violation> {
        let Some(id) = self.member() else { return self.fail(world, End::Lost) };
        let connection = world.net.connect(self.index);
        self.connection = Some(connection);
        self.resuming = true;
        world.net.tell_daemon(connection, Message::Resume(id));
        Ok(())
    }

    fn assign(&mut self, world: &mut World<'_>, assigned: &switchml_control::Assigned) {
        let ranks = self.plan(world).ranks;
        let identity =
            Identity { job: assigned.job as u16, epoch: assigned.epoch, rank: self.rank, ranks };
        let (slots, max_lanes) = (assigned.slots as u16, assigned.max_lanes as u16);
        let &switchml_control::Assigned { unchecked_maxima, control_secret, .. } = assigned;
        self.assigned = Some(Assigned { identity, slots, unchecked_maxima, control_secret });
        world.oracle.join(identity.epoch, ranks);
        // What the interface takes: the path may pass less.
        let largest = world.net.largest_packet(self.index) + world.net.rng.below(256) as usize;
        self.phase =
            Phase::Greeting(Hello::new(identity, assigned.hello_secret, largest, max_lanes));
    }

    /// All ranks are ready.
    fn run(&mut self, world: &mut World<'_>, lanes: u16) -> Result<(), Violation> {
        let (Phase::Ready { path, .. }, Some(assigned)) = (&self.phase, self.assigned) else {
            return Ok(());
        };
        let plan = self.plan(world);
        ensure!(
            lanes > 0 && lanes <= path.lanes,
            "chunks of {lanes} lanes for a path that carries {}",
            path.lanes
        );
        let Assigned { identity, slots, unchecked_maxima, .. } = assigned;
        world.oracle.start(identity.epoch, lanes)?;
        let config = Config::new(identity, slots, lanes, plan.receive_room, world.scenario.limits);
        let config = Config { unchecked_maxima, ..config };
        let mut engine = Engine::starting_at(config, u64::from(plan.origin) * u64::from(slots));
        engine.sample_rtt(0, path.rtt.as_nanos() as u64);
        self.phase = Phase::Running(Box::new(Running {
            endpoint: DataPath::new(engine, lanes, plan.batch),
            issued: Issued::default(),
            program: self.program(plan, world),
            next: 0,
            next_at: world.net.now,
            returned: 0,
            tensors: Arc::default(),
            progress_at: world.net.now,
            results: 0,
            answered_at: None,
            told_at: 0,
        }));
        Ok(())
    }

    /// What it calls: what all ranks do, except mistakes in its first life.
    fn program(&self, plan: &JobPlan, world: &mut World<'_>) -> Vec<Step> {
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
        world: &mut World<'_>,
        port: u16,
        packet: &[u8],
        congested: bool,
        intact: bool,
    ) -> Result<(), Violation> {
        let now = world.net.now;
        let epoch = self.session();
        if port != self.port || matches!(self.phase, Phase::Rest(_)) {
            world.net.tally.fault(Fault::OldSession);
            return Ok(());
        }
        match &mut self.phase {
            Phase::Greeting(hello) => hello.receive(now, packet),
            Phase::Running(running) => {
                let before = running.endpoint.engine().stats().clone();
                let oldest = running.endpoint.engine().oldest();
                if let Err(failure) = running.endpoint.receive(now, packet, congested) {
                    return self.fail(world, End::Failed(failure));
                }
                let after = running.endpoint.engine().stats();
                for ((total, before), after) in
                    world.net.tally.ignored.iter_mut().zip(before.ignored).zip(after.ignored)
                {
                    *total += after - before;
                }
                if after.pending > before.pending {
                    running.told_at = now;
                }
                if intact && after.results == before.results && answers(packet, oldest, epoch) {
                    running.answered_at = Some(now);
                }
            }
            _ => {}
        }
        let delay = world.net.rng.below(world.scenario.host_delay);
        self.turn_by(world, now + delay);
        Ok(())
    }

    /// Takes a packet into the socket's buffer while the process stands still; false if that is
    /// full.
    pub fn has_room(&mut self, world: &mut World<'_>) -> bool {
        let room = self.waiting < self.plan(world).socket_room;
        if room {
            self.waiting += 1
        } else {
            world.net.tally.fault(Fault::SocketFull)
        }
        room
    }

    /// The scheduled turn has come.
    pub fn scheduled_turn(&mut self, world: &mut World<'_>) -> Result<(), Violation> {
        self.waiting = 0;
        if self.turn_at.is_some_and(|at| at <= world.net.now) {
            self.turn_at = None;
            self.turn(world)?;
        }
        Ok(())
    }

    /// What the process does when it runs: timers, packets, calls.
    fn turn(&mut self, world: &mut World<'_>) -> Result<(), Violation> {
        let now = world.net.now;
        match &mut self.phase {
            Phase::Rest(_) => Ok(()),
            Phase::Joining { until, .. } if now < *until => {
                let until = *until;
                self.turn_by(world, until);
                Ok(())
            }
            Phase::Joining { missing, .. } => {
                let missing = mem::take(missing);
                self.fail(world, End::NotJoined(missing))
            }
            Phase::Ready { until, .. } if now < *until => {
                let until = *until;
                self.turn_by(world, until);
                Ok(())
            }
            Phase::Ready { .. } => self.fail(world, End::NotReady),
            Phase::AskingWhy { until, .. } if now < *until => {
                let until = *until;
                self.turn_by(world, until);
                Ok(())
            }
            Phase::AskingWhy { failure, .. } => {
                let end = End::Failed(*failure);
                self.rest_after_leave(world, end, None)
            }
            Phase::Greeting(_) => self.greet(world),
            Phase::Running(_) => self.collect(world),
        }
    }

    fn greet(&mut self, world: &mut World<'_>) -> Result<(), Violation> {
        let (index, port) = (self.index, self.port);
        let Phase::Greeting(hello) = &mut self.phase else { return Ok(()) };
        loop {
            match hello.step(world.net.now) {
                HelloStep::Send(header) => {
                    let mut packet = vec![0; HEADER_LEN + 4 * usize::from(header.lanes.get())];
                    packet[..HEADER_LEN].copy_from_slice(header.as_bytes());
                    world.net.to_aggregator(index, port, &packet);
                }
                HelloStep::Wait(until) => {
                    self.turn_by(world, until);
                    return Ok(());
                }
                HelloStep::Open(path) => {
                    if let (Some(connection), Some(id)) = (self.connection, self.member()) {
                        world.net.tell_daemon(connection, Message::Ready(id, path.lanes));
                    }
                    let until = world.net.now + world.scenario.join_timeout;
                    self.phase = Phase::Ready { path, until };
                    self.turn_by(world, until);
                    return Ok(());
                }
                HelloStep::Failed(_) => return self.fail(world, End::PathClosed),
            }
        }
    }

    /// As `Driver::serve` does, without the waiting.
    fn collect(&mut self, world: &mut World<'_>) -> Result<(), Violation> {
        self.make_calls(world)?;
        let now = world.net.now;
        let (index, port, rank) = (self.index, self.port, self.rank);
        let Phase::Running(running) = &mut self.phase else { return Ok(()) };
        let outstanding = running.endpoint.engine().outstanding();
        running.endpoint.note_departed(self.departed);
        running.endpoint.note_watched(now, !self.resuming);
        if let Err(failure) = running.endpoint.on_timer(now) {
            return self.fail(world, End::Failed(failure));
        }
        let mut sent = 0;
        while let Some(transmission) = running.endpoint.next(now) {
            sent += 1;
            ensure!(sent <= 1 << 16, "rank {rank} sends without end");
            let mut packet = vec![0xEE; transmission.packet_len()];
            running.endpoint.fill(&transmission, &mut packet);
            world.net.to_aggregator(index, port, &packet);
        }
        for stats in running.endpoint.done() {
            world.net.tally.ahead += stats.speculative;
            world.net.tally.ahead_in_vain += stats.misspeculated;
        }
        running.endpoint.give_back();
        running.note_progress(now, outstanding);
        running.check_waits(now, self.stalled_until, rank, world)?;
        let session = self.assigned.map_or(0, |assigned| assigned.identity.epoch);
        let done = mem::take(&mut *running.tensors.lock().unwrap_or_else(PoisonError::into_inner));
        let has_news = !done.is_empty();
        running.returned += done.len();
        for (place, bytes) in done {
            running.issued.finish(place as u64);
            world.oracle.result(world.net, session, rank, place, bytes)?;
        }
        if running.next == running.program.len() && running.endpoint.is_idle() {
            return self.rest_after_leave(world, End::Finished, None);
        }
        if has_news {
            // The next call may have waited for this.
            self.turn_by(world, now);
        }
        let Phase::Running(running) = &self.phase else { return Ok(()) };
        let deadline = running.endpoint.deadline();
        ensure!(
            running.endpoint.is_idle() || deadline.is_some(),
            "rank {rank} has calls in flight, and waits for nothing"
        );
        let call = (running.next < running.program.len() && running.next_at > now)
            .then_some(running.next_at);
        if let Some(at) = deadline.into_iter().chain(call).min() {
            self.turn_by(world, at);
        }
        Ok(())
    }

    /// Makes the calls whose time has come.
    fn make_calls(&mut self, world: &mut World<'_>) -> Result<(), Violation> {
        let now = world.net.now;
        let pause = if world.healed { 0 } else { self.plan(world).pause };
        let (rank, index) = (self.rank, self.index);
        let (Phase::Running(running), Some(assigned)) = (&mut self.phase, self.assigned) else {
            return Ok(());
        };
        while let Some(step) = running.program.get(running.next).copied()
            && running.next_at <= now
            && (!step.waits || running.returned == running.next)
        {
            let session = assigned.identity.epoch;
            debug!("{} worker {index} makes call {}: {:?}", Clock(now), running.next, step.call);
            let Ok(codec) = step.call.codec(assigned.identity.ranks.into()) else {
                return Err(Violation(format!("{:?} is not offered", step.call)));
            };
            world.oracle.call(session, rank, running.next, step, now);
            let bytes = step.elements(element_key(session, running.next), rank);
            let buffer =
                Box::new(Tensor { place: running.next, bytes, done: Arc::clone(&running.tensors) });
            let contributes =
                !matches!(step.call.kind, Kind::Broadcast { root } if root != u32::from(rank));
            let number = running.issued.issue(step.call);
            running.endpoint.submit(Submission {
                number,
                call: step.call,
                codec,
                contributes,
                buffer,
            });
            running.next += 1;
            running.next_at = now + world.net.rng.below(pause + 1);
        }
        Ok(())
    }

    /// The process cannot go on.
    fn fail(&mut self, world: &mut World<'_>, end: End) -> Result<(), Violation> {
        let standing = self.standing(world);
        match end {
            End::Failed(failure @ (Failure::Aborted | Failure::Mismatch { .. })) => {
                if let Failure::Mismatch { first, dissenter, collective } = failure {
                    let last = self.last_call(collective);
                    self.report_calls(world, last, vec![first.into(), dissenter.into()]);
                }
                // The data thread waits for the reason.
                let until = world.net.now + REASON;
                self.phase = Phase::AskingWhy { failure, until };
                self.turn_by(world, until);
                Ok(())
            }
            // The control thread has ended with the news: nothing is said.
            End::Lost | End::Aborted { .. } => {
                self.hang_up(world);
                self.end(world, end, standing)
            }
            own => self.rest_after_leave(world, own, standing),
        }
    }

    /// Number of the last call in flight up to that of collective `last`.
    fn last_call(&self, last: u64) -> u64 {
        let Phase::Running(running) = &self.phase else { return 0 };
        running.endpoint.calls_in_flight(last).last().map_or(0, |(number, _)| number)
    }

    /// Tells the daemon which calls are open, up to call `last`, and which ranks the data plane has
    /// named.
    fn report_calls(&self, world: &mut World<'_>, last: u64, named: Vec<u32>) {
        if let Phase::Running(running) = &self.phase
            && let (Some(connection), Some(id)) = (self.connection, self.member())
        {
            let calls = running.issued.open(last);
            let calls =
                calls.map(|(number, call)| Call { number: number + 1, call: call.to_string() });
            world.net.tell_daemon(connection, Message::ReportCalls(id, calls.collect(), named));
        }
    }

    /// Says goodbye, with an error if there is one.
    fn rest_after_leave(
        &mut self,
        world: &mut World<'_>,
        end: End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        if let (Some(connection), Some(id)) = (self.connection, self.member()) {
            let error = if end == End::Finished { String::new() } else { format!("{end:?}") };
            world.net.tell_daemon(connection, Message::Leave(id, error, end.blames()));
        }
        self.hang_up(world);
        self.end(world, end, standing)
    }

    fn hang_up(&mut self, world: &mut World<'_>) {
        if let Some(connection) = self.connection.take() {
            world.net.tell_daemon(connection, Message::Gone);
        }
    }

    fn end(
        &mut self,
        world: &mut World<'_>,
        end: End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        debug!("{} worker {}: {end:?}", Clock(world.net.now), self.index);
        world.oracle.end(world.net, world.daemon, self.who(), &end, standing)?;
        self.phase = Phase::Rest(Some(end));
        Ok(())
    }

    fn standing(&self, world: &World<'_>) -> Option<Standing> {
        let (Phase::Running(running), Some(epoch)) = (&self.phase, self.session()) else {
            return None;
        };
        Some(Standing {
            rank: self.rank,
            epoch,
            oldest: running.endpoint.engine().oldest(),
            answered_at: running.answered_at,
            now: world.net.now,
            deadline: world.scenario.limits.deadline.as_nanos() as Time,
        })
    }

    fn who(&self) -> Who {
        Who { job: self.job, rank: self.rank, session: self.session() }
    }

    fn member(&self) -> Option<MemberId> {
        let Assigned {
            identity: Identity { job, epoch, rank, .. }, control_secret: secret, ..
        } = self.assigned?;
        Some(MemberId { job: job.into(), epoch, rank: rank.into(), secret })
    }

    fn plan<'a>(&self, world: &World<'a>) -> &'a JobPlan {
        &world.scenario.jobs[self.job]
    }

    /// Sees to it that there is a turn at this time at the latest.
    fn turn_by(&mut self, world: &mut World<'_>, at: Time) {
        if self.turn_at.is_none_or(|scheduled| at < scheduled) {
            self.turn_at = Some(at);
            world.net.schedule(at, Event::Turn(self.index));
        }
    }
}

/// Whether an answer is to this chunk of this session.
fn answers(packet: &[u8], chunk: Option<(u16, u32)>, epoch: Option<SessionKey>) -> bool {
    Header::ref_from_prefix(packet).is_ok_and(|(header, _)| {
        Some((header.slot.get(), header.round.get())) == chunk && Some(header.epoch.get()) == epoch
    })
}

impl Running {
    fn note_progress(&mut self, now: Time, outstanding_before: u32) {
        let engine = self.endpoint.engine();
        if engine.stats().results > self.results
            || (outstanding_before == 0 && engine.outstanding() > 0)
        {
            self.results = engine.stats().results;
            self.progress_at = now;
            self.answered_at = None;
        }
    }

    /// Nobody waits for the aggregator beyond the deadline, or for other ranks beyond the timeout.
    /// A rank that stood still until `stalled` begins again with the former.
    fn check_waits(
        &self,
        now: Time,
        stalled: Time,
        rank: u16,
        world: &World<'_>,
    ) -> Result<(), Violation> {
        let Limits { deadline, timeout } = world.scenario.limits;
        let end = |from: Time, limit: Duration| from.saturating_add(limit.as_nanos() as Time);
        let since = self.progress_at.max(stalled.min(now));
        let silence = end(since.max(self.told_at), deadline);
        let wait = end(self.progress_at, timeout).max(end(since, deadline));
        ensure!(
            self.endpoint.engine().outstanding() == 0 || now < silence.min(wait) + MS,
            "rank {rank} waits since {}, told why at {}, beyond {:?}",
            Clock(self.progress_at),
            Clock(self.told_at),
            world.scenario.limits
        );
        Ok(())
    }
}
