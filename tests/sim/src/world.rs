//! One run: the scenario of a seed, from its first event to its last.

use std::panic::{self, AssertUnwindSafe};

use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};
use switchml_protocol::{DATA_PORT, LANES_PER_BLOCK, U32};
use switchml_worker_core::moves::LEAST_WAIT;
use tracing::debug;
use zerocopy::FromBytes;

use crate::combiner::Combiner;
use crate::daemon::Daemon;
use crate::hosts::Hosts;
use crate::net::{
    Above, Clock, Connection, Event, Message, Net, News, Place, STRANGER, Violation, binding_of,
};
use crate::oracle::{End, Oracle, Times};
use crate::scenario::{Change, Incident, JobPlan, Loss, MS, Manner, SECOND, Scenario, Time};
use crate::squatter::Squatter;
use crate::surroundings::Surroundings;
use crate::tally::{Fault, Tally};
use crate::worker::Worker;

/// The outcome of a seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// Faults and what happened.
    pub tally: Tally,
    /// The times of the calls, by session.
    pub sessions: Vec<Times>,
    /// The broken promise, if any.
    pub verdict: Result<(), Violation>,
}

/// Runs the scenario of a seed. A panic of the code under test is a violation.
pub fn simulate(seed: u64) -> Run {
    play(Scenario::draw(seed))
}

/// Runs the scenario of a seed, with combiners.
pub fn simulate_tree(seed: u64) -> Run {
    play(Scenario::draw_tree(seed))
}

/// Runs a scenario.
pub fn play(scenario: Scenario) -> Run {
    let mut world = World::new(scenario);
    let verdict = panic::catch_unwind(AssertUnwindSafe(|| world.run()));
    let verdict = verdict.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(panic.downcast_ref::<&str>().copied());
        Err(Violation(format!("panic: {}", text.unwrap_or("of an unknown kind"))))
    });
    let mut tally = world.net.tally;
    tally.runs = 1;
    tally.healed = world.scenario.heals_at.is_some().into();
    tally.time = world.net.now.into();
    let changes = tally.faults(Fault::Change) as usize;
    tally.changes[changes.min(tally.changes.len() - 1)] += 1;
    Run { tally, sessions: world.oracle.times(), verdict }
}

/// A worker: in the first job of those that it may be in, or one that it comes to later.
fn worker(scenario: &Scenario, index: usize) -> Worker {
    let of = |job: &JobPlan| job.workers.iter().position(|worker| *worker == index);
    let mut job = scenario.jobs.iter().position(|job| of(job).is_some()).unwrap_or_default();
    while let Some(change) = &scenario.jobs[job].change {
        job = change.from;
    }
    Worker::new(index, job, of(&scenario.jobs[job]).unwrap_or_default() as u16)
}

struct World {
    scenario: Scenario,
    net: Net,
    oracle: Oracle,
    daemons: Vec<Daemon>,
    hosts: Hosts,
    combiners: Vec<Combiner>,
    workers: Vec<Worker>,
    squatter: Squatter,
    /// The stages of jobs.
    stages: Vec<Stage>,
    healed: bool,
}

/// The stage of a job among those that its ranks go on in, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It comes after another one.
    Later,
    /// Its ranks are about to be told.
    Next,
    /// It is the one that its ranks are, or should be, in.
    Present,
    /// Its ranks have been told to go on in another one.
    Past,
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let stages = scenario.jobs.iter().map(|job| match job.change {
            None => Stage::Present,
            Some(_) => Stage::Later,
        });
        Self {
            workers: (0..scenario.links.len()).map(|index| worker(&scenario, index)).collect(),
            stages: stages.collect(),
            net: Net::new(&scenario),
            oracle: Oracle::default(),
            daemons: (0..scenario.aggregators())
                .map(|number| Daemon::new(&scenario, number))
                .collect(),
            hosts: Hosts::default(),
            combiners: (0..scenario.tree.combiners.len())
                .map(|index| Combiner::new(index, &scenario))
                .collect(),
            squatter: Squatter::default(),
            healed: false,
            scenario,
        }
    }

    fn run(&mut self) -> Result<(), Violation> {
        if self.scenario.is_calm {
            self.net.tally.fault(Fault::Calm);
        }
        self.plan();
        let limit = self.limit();
        let (mut moment, mut events) = (0, 0);
        while let Some(event) = self.net.pop() {
            events = if self.net.now == moment { events + 1 } else { 0 };
            moment = self.net.now;
            if events > 1_000_000 {
                return Err(Violation(format!(
                    "time stands still at {:.6} s",
                    moment as f64 / 1e9
                )));
            }
            if self.is_over() {
                break;
            }
            if self.net.now > limit {
                return Err(Violation(format!(
                    "not over after {:.3} s",
                    self.net.now as f64 / 1e9
                )));
            }
            self.handle(event)?;
        }
        self.conclude()
    }

    fn plan(&mut self) {
        for job in 0..self.scenario.jobs.len() {
            if self.stages[job] == Stage::Present {
                for place in 0..self.scenario.jobs[job].workers.len() {
                    let at = self.net.rng.below(20 * MS);
                    self.start_at(self.scenario.jobs[job].workers[place], at);
                }
            }
        }
        for (number, (at, _)) in self.scenario.incidents.iter().enumerate() {
            self.net.schedule(*at, Event::Incident(number));
        }
        if let Some(heals_at) = self.scenario.heals_at {
            self.net.schedule(heals_at, Event::Heal);
        }
        if let Some(period) = self.scenario.stranger {
            self.net.schedule(period, Event::Stranger);
        }
    }

    /// When everything must be over: no rank waits longer than for ranks to join, and again for
    /// them to be ready, and for a dead host to be noticed, and for a deadline; as often as ranks
    /// are started. The timeout is not needed: a rank that is there calls in time.
    fn limit(&self) -> Time {
        let Scenario { join_timeout, attempts, limits, heals_at, .. } = &self.scenario;
        let once = 2 * join_timeout + limits.deadline.as_nanos() as Time + 30 * SECOND;
        // With others left, ranks try to resume for 10 s, and wait for each other again at each.
        let patience = (*join_timeout).max(LEAST_WAIT.as_nanos() as Time);
        let once = once + self.scenario.others.len() as Time * (2 * patience + 30 * SECOND);
        let changes = self.scenario.jobs.iter().filter(|job| job.change.is_some()).count();
        let changes = 2 * changes as Time * once;
        changes
            + match heals_at {
                Some(heals_at) => heals_at + 3 * once,
                None => 20 * SECOND + u64::from(attempts + 1) * once,
            }
    }

    fn handle(&mut self, event: Event) -> Result<(), Violation> {
        if let Some(until) = self.frozen_until(&event) {
            self.net.schedule(until, event);
            return Ok(());
        }
        let actor = self.actor(&event);
        match event {
            Event::AtAggregator { aggregator, binding, packet, congested, header_intact } => {
                let daemon = &mut self.daemons[aggregator];
                daemon.serve(&mut self.net, &binding, &packet, congested, header_intact)?;
                if let Some(manner) = daemon.is_to_fail() {
                    self.fail(aggregator, manner);
                }
                return Ok(());
            }
            Event::AtCombiner { combiner, port, binding, packet, congested, intact } => {
                let from = (&binding, port);
                let combiner = &mut self.combiners[combiner];
                return combiner.serve(&mut self.net, from, &packet, congested, intact);
            }
            Event::Asked(connection, message) => self.pass_up(connection, *message),
            Event::Timer(aggregator, generation, timer) => {
                self.daemons[aggregator].on_timer(&mut self.net, generation, timer)
            }
            Event::CombinerTimer(combiner, generation, timer) => {
                self.combiners[combiner].on_timer(&mut self.net, generation, timer)
            }
            Event::AtWorker { worker, aggregator, port, packet, congested, intact } => {
                if worker == STRANGER {
                    return Ok(());
                }
                if let Some(until) = self.stalled(worker) {
                    if self.with(worker, |worker, world| worker.has_room(world)) {
                        let event =
                            Event::AtWorker { worker, aggregator, port, packet, congested, intact };
                        self.net.schedule(until, event);
                    }
                    return Ok(());
                }
                self.with(worker, |worker, world| {
                    worker.receive(world, (aggregator, port), &packet, congested, intact)
                })?;
            }
            Event::Turn(worker) => match self.stalled(worker) {
                // The turn comes after the waiting packets.
                Some(until) => self.net.schedule(until + 1, Event::Turn(worker)),
                None => self.with(worker, |worker, world| worker.scheduled_turn(world))?,
            },
            Event::Bell(worker) => self.with(worker, Worker::hear_bell),
            Event::Dial(connection, until) => self.net.dial(connection, until),
            Event::News(connection, news) => self.pass_down(connection, *news)?,
            Event::Start(worker) => self.with(worker, |worker, world| worker.start(world))?,
            Event::Change(job) => self.change(job)?,
            Event::Told(worker, job) => match self.stalled(worker) {
                Some(until) => self.net.schedule(until, Event::Told(worker, job)),
                None => self.with(worker, |worker, world| worker.hear_of_change(world, job))?,
            },
            Event::Incident(number) => self.incident(number)?,
            Event::Back(aggregator) => self.bring_back(aggregator),
            Event::CombinerBack(combiner) => self.combiners[combiner].start(&mut self.net),
            Event::Stranger => self.forge(),
            Event::Heal => self.heal(),
        }
        actor.into_iter().for_each(|worker| self.plan_changes(worker));
        // While a worker continues, no other worker is restarted.
        if actor.is_none_or(|worker| self.workers[worker].resting().is_some()) {
            self.settle();
        }
        Ok(())
    }

    /// A message reaches the upper end of a connection, unless the process there is gone.
    fn pass_up(&mut self, connection: Connection, message: Message) {
        match self.net.upper(connection) {
            None => {}
            Some(Above::Aggregator(number)) => {
                self.daemons[number].hear(&mut self.net, connection, message)
            }
            Some(Above::Combiner(combiner)) => {
                self.combiners[combiner].hear(&mut self.net, connection, message)
            }
        }
    }

    /// News reaches the lower end of a connection, unless the process there is gone.
    fn pass_down(&mut self, connection: Connection, news: News) -> Result<(), Violation> {
        match self.net.lower(connection) {
            Some(Place::Combiner(combiner)) => {
                self.combiners[combiner].learn(&mut self.net, connection, news)
            }
            Some(Place::Worker(worker)) => match self.stalled(worker) {
                Some(until) => {
                    self.net.schedule(until, Event::News(connection, Box::new(news)));
                }
                None => self.with(worker, |worker, world| worker.hear(world, connection, news))?,
            },
            Some(Place::Stranger) => self.squatter.hear(&mut self.net, connection, news),
            None => {}
        }
        Ok(())
    }

    /// The only worker that an event changes.
    fn actor(&self, event: &Event) -> Option<usize> {
        match event {
            Event::AtWorker { worker, .. }
            | Event::Turn(worker)
            | Event::Start(worker)
            | Event::Told(worker, _) => Some(*worker),
            Event::News(connection, _) => match self.net.lower(*connection) {
                Some(Place::Worker(worker)) => Some(worker),
                _ => None,
            },
            _ => None,
        }
    }

    /// Begins the reconfigurations that a worker's progress in its job brings about.
    fn plan_changes(&mut self, worker: usize) {
        let worker = &self.workers[worker];
        for (job, stage) in self.stages.iter_mut().enumerate() {
            let Some(Change { from, calls, delay, .. }) = &self.scenario.jobs[job].change else {
                continue;
            };
            let is_there = worker.job == *from && worker.resting().is_none();
            if *stage == Stage::Later && is_there && worker.made() >= *calls {
                *stage = Stage::Next;
                self.net.schedule(self.net.now + delay, Event::Change(job));
            }
        }
    }

    /// Ranks go on in a job, with others. Some are lost.
    fn change(&mut self, job: usize) -> Result<(), Violation> {
        let Some(Change { from, notice, losses, .. }) = self.scenario.jobs[job].change.clone()
        else {
            return Ok(());
        };
        let (old, new) = (&self.scenario.jobs[from].workers, &self.scenario.jobs[job].workers);
        debug!("{} ranks of job {from} {old:?} go on in job {job} {new:?}", Clock(self.net.now));
        (self.stages[from], self.stages[job]) = (Stage::Past, Stage::Present);
        let (left_out, new) = (self.scenario.left_out(from, job), new.clone());
        let newcomers = self.scenario.left_out(job, from);
        self.net.tally.fault(Fault::Change);
        left_out.iter().for_each(|_| self.net.tally.fault(Fault::LeftOut));
        newcomers.iter().for_each(|_| self.net.tally.fault(Fault::Newcomer));
        let in_it = self.workers.iter().filter(|worker| worker.job == from);
        let (made, states): (Vec<_>, Vec<_>) =
            in_it.map(|worker| (worker.made(), worker.is_joining())).unzip();
        if states.contains(&true) || made.is_empty() {
            self.net.tally.fault(Fault::ChangeInChange);
        }
        for (worker, loss) in losses {
            self.net.tally.fault(Fault::LossInChange);
            self.with(worker, |worker, world| match loss {
                Loss::Death | Loss::HostDeath => worker.kill(world, loss == Loss::HostDeath),
                Loss::Disconnect => {
                    worker.disconnect(world);
                    Ok(())
                }
            })?;
        }
        if left_out.is_empty() {
            // Where nobody is lost, ranks go on after the same call.
            let last = made.into_iter().max().unwrap_or_default();
            let in_it = self.workers.iter_mut().filter(|worker| worker.job == from);
            in_it.for_each(|worker| worker.stop_after(last));
        }
        for worker in new {
            let at = self.net.now + self.net.rng.below(notice + 1);
            self.net.schedule(at, Event::Told(worker, job));
        }
        Ok(())
    }

    fn heal(&mut self) {
        debug!("{} all faults end", Clock(self.net.now));
        self.healed = true;
        self.net.heal();
        self.daemons.iter_mut().for_each(Daemon::heal);
        self.combiners.iter_mut().for_each(|combiner| combiner.heal(&mut self.net));
        (0..self.daemons.len()).for_each(|aggregator| self.bring_back(aggregator));
    }

    fn bring_back(&mut self, aggregator: usize) {
        let daemon = &mut self.daemons[aggregator];
        if daemon.is_down() {
            daemon.start_anew(&mut self.net);
        }
    }

    fn stalled(&self, worker: usize) -> Option<Time> {
        Some(self.workers[worker].stalled_until).filter(|until| *until > self.net.now)
    }

    fn with<T>(
        &mut self,
        worker: usize,
        f: impl FnOnce(&mut Worker, &mut Surroundings<'_>) -> T,
    ) -> T {
        let Self { scenario, net, oracle, daemons, hosts, workers, healed, .. } = self;
        f(
            &mut workers[worker],
            &mut Surroundings { net, oracle, daemons, hosts, scenario, healed: *healed },
        )
    }

    fn incident(&mut self, number: usize) -> Result<(), Violation> {
        let (_, incident) = self.scenario.incidents[number];
        let now = self.net.now;
        debug!("{} {incident:?}", Clock(now));
        match incident {
            Incident::Crash { worker, silent, restart } => {
                self.with(worker, |worker, world| worker.kill(world, silent))?;
                if let Some(after) = restart {
                    self.start_at(worker, now + after);
                }
            }
            Incident::DieInTurn { worker, steps, restart } => {
                self.workers[worker].doom(steps, restart);
            }
            Incident::Stall { worker, time } => {
                self.with(worker, |worker, world| worker.stall(world, time))
            }
            Incident::Outage { worker, direction, time } => {
                self.net.tally.fault(Fault::Outage);
                let links = self.net.links_of(worker, direction);
                links.for_each(|link| link.go_down(now + time));
            }
            Incident::Disconnect { worker } => {
                self.with(worker, |worker, world| worker.disconnect(world))
            }
            Incident::CombinerCrash { combiner, orderly, after } => {
                self.crash(combiner, orderly, after)
            }
            Incident::CutOff { combiner } => {
                self.net.tally.fault(Fault::CutOff);
                self.lose_connections(combiner);
                self.combiners[combiner].cut_off(&mut self.net);
            }
            Incident::Forget { combiner } => {
                self.net.tally.fault(Fault::Forgotten);
                self.combiners[combiner].forget();
            }
            _ => self.incident_at_aggregator(incident),
        }
        Ok(())
    }

    fn incident_at_aggregator(&mut self, incident: Incident) {
        let now = self.net.now;
        match incident {
            Incident::Restart { aggregator, after } if !self.daemons[aggregator].is_down() => {
                self.net.tally.fault(Fault::Restart);
                self.about_to_break(aggregator);
                self.daemons[aggregator].kill(&mut self.net);
                self.net.schedule(now + after, Event::Back(aggregator));
            }
            Incident::Replace { aggregator, orderly, after } => {
                self.net.tally.fault(if orderly { Fault::OrderlyStop } else { Fault::Replacement });
                let manner = if orderly { Manner::Orderly } else { Manner::Killed };
                self.daemons[aggregator].stop(&mut self.net, manner);
                self.net.schedule(now + after, Event::Back(aggregator));
            }
            Incident::Death { aggregator, contributions, manner } => {
                self.daemons[aggregator].doom(contributions, manner);
            }
            Incident::Squat { rank } => {
                self.net.tally.fault(Fault::Squatter);
                self.squatter.begin(&mut self.net, &self.scenario, rank);
            }
            Incident::Unreachable { aggregator, time } => {
                self.net.tally.fault(Fault::Unreachable);
                self.about_to_break(aggregator);
                for direction in 0..2 {
                    let links = self.net.links_to(aggregator, direction);
                    links.for_each(|link| link.go_down(now + time));
                }
                self.net.cut_off(aggregator, None, now + time);
            }
            Incident::Slow { aggregator, time, by } => {
                self.net.tally.fault(Fault::Slow);
                self.net.links_to(aggregator, 1).for_each(|link| link.slow_down(now + time, by));
            }
            _ => {}
        }
    }

    /// An aggregator fails in the middle of its work.
    fn fail(&mut self, aggregator: usize, manner: Manner) {
        let now = self.net.now;
        debug!("{} aggregator {aggregator} fails: {manner:?}", Clock(now));
        let is_durable = self.scenario.aggregator(aggregator).durable;
        match manner {
            Manner::Frozen(time) => {
                self.net.tally.fault(Fault::Frozen);
                self.about_to_break(aggregator);
                self.net.freeze(aggregator, now + time);
            }
            Manner::Unheard(time) => {
                self.net.tally.fault(Fault::Unheard);
                self.about_to_break(aggregator);
                self.net.cut_off(aggregator, None, now + time);
            }
            Manner::Apart(worker, time) => {
                self.net.tally.fault(Fault::Apart);
                self.with(worker, |worker, world| worker.lose_connection(world, aggregator));
                let links = self.net.links_between(worker, aggregator);
                links.iter_mut().for_each(|link| link.go_down(now + time));
                self.net.cut_off(aggregator, Some(Place::Worker(worker)), now + time);
            }
            Manner::Orphaned if is_durable => {
                self.net.tally.fault(Fault::Orphaned);
                self.about_to_break(aggregator);
                self.daemons[aggregator].kill(&mut self.net);
            }
            _ => {
                self.net.tally.fault(Fault::Death);
                self.daemons[aggregator].stop(&mut self.net, manner);
            }
        }
    }

    /// Until when an event waits, because the aggregator that it concerns stands still.
    fn frozen_until(&self, event: &Event) -> Option<Time> {
        let aggregator = match *event {
            Event::AtAggregator { aggregator, .. } => {
                let is_durable = self.scenario.aggregator(aggregator).durable;
                Some(aggregator).filter(|_| !is_durable)
            }
            Event::Timer(aggregator, ..) => Some(aggregator),
            Event::Asked(connection, _) => match self.net.upper(connection) {
                Some(Above::Aggregator(number)) => Some(number),
                _ => None,
            },
            _ => None,
        };
        self.net.frozen_until(aggregator?)
    }

    /// The connections of all ranks with an aggregator are about to break.
    fn about_to_break(&mut self, aggregator: usize) {
        for worker in 0..self.workers.len() {
            self.with(worker, |worker, world| worker.lose_connection(world, aggregator));
        }
    }

    /// A combiner's host restarts, and with it the connections of the ranks below break.
    fn crash(&mut self, combiner: usize, orderly: bool, after: Time) {
        if self.combiners[combiner].is_down() {
            return;
        }
        let fault = if orderly { Fault::CombinerStop } else { Fault::CombinerCrash };
        self.net.tally.fault(fault);
        self.lose_connections(combiner);
        self.combiners[combiner].crash(&mut self.net, orderly);
        let back = self.net.now + after;
        self.net.schedule(back, Event::CombinerBack(combiner));
    }

    /// The connections of all ranks below a combiner are about to break.
    fn lose_connections(&mut self, combiner: usize) {
        for worker in 0..self.workers.len() {
            if self.scenario.tree.way(worker).any(|above| above == combiner) {
                self.with(worker, |worker, world| worker.lose_connection(world, 0));
            }
        }
    }

    /// Sends a packet that the stranger has seen again, or one made from it.
    fn forge(&mut self) {
        if self.healed {
            return;
        }
        let net = &mut self.net;
        if let Some(period) = self.scenario.stranger {
            net.schedule(net.now + period, Event::Stranger);
        }
        if net.seen.is_empty() {
            return;
        }
        let index = net.rng.below(net.seen.len() as u64) as usize;
        let mut packet = net.seen[index].clone();
        if let Ok((header, payload)) = Header::mut_from_prefix(&mut packet)
            && net.rng.one_in(2)
        {
            header.kind = match self.combiners.is_empty() {
                true => net.rng.pick(&[Kind::Contribution, Kind::Hello]),
                false => net.rng.pick(&[Kind::Contribution, Kind::Hello, Kind::Partial]),
            } as u8;
            header.rank.set(net.rng.below(4) as u16);
            header.slot.set(net.rng.below(16) as u16);
            header.round.set(header.round.get().wrapping_add(net.rng.below(3) as u32));
            header.aux.set(net.rng.any() as u32);
            let zeros = net.rng.one_in(3);
            // The check word fits.
            let sum =
                |lanes: &[U32]| lanes.iter().fold(0u32, |sum, lane| sum.wrapping_add(lane.get()));
            if zeros {
                header.flags |= flags::EMPTY;
                header.check.set(header.check_of(0, 1));
                packet.truncate(HEADER_LEN);
            } else if let Ok(lanes) = <[U32]>::ref_from_bytes(payload) {
                header.check.set(header.check_of(sum(lanes), 1));
            }
        }
        net.tally.fault(Fault::Forgery);
        debug_assert!(packet.len() < HEADER_LEN + 4 * 24 * LANES_PER_BLOCK + 1000);
        let binding = binding_of(STRANGER, 4_000, 1);
        let (packet, congested) = (packet.into(), false);
        let number = self.combiners.len() as u64;
        let event = match number > 0 && net.rng.one_in(2) {
            true => {
                let combiner = net.rng.below(number) as usize;
                let port = DATA_PORT + net.rng.below(8) as u16;
                Event::AtCombiner { combiner, port, binding, packet, congested, intact: false }
            }
            false => {
                // Nothing is drawn where there is one alone.
                let others = self.daemons.len() as u64 - 1;
                let aggregator = if others > 0 { net.rng.below(others + 1) as usize } else { 0 };
                let header_intact = false;
                Event::AtAggregator { aggregator, binding, packet, congested, header_intact }
            }
        };
        net.schedule(net.now, event);
    }

    fn start_at(&mut self, worker: usize, at: Time) {
        let worker = &mut self.workers[worker];
        if !worker.starts {
            worker.starts = true;
            self.net.schedule(at, Event::Start(worker.index));
        }
    }

    /// Restarts ranks that failed, and ranks that finished a session that others did not, like a
    /// job's launcher.
    fn settle(&mut self) {
        for job in 0..self.scenario.jobs.len() {
            if self.stages[job] != Stage::Present || self.is_done(job) {
                continue;
            }
            // Some may not have heard of it yet.
            let mut workers = self.scenario.jobs[job].workers.clone();
            workers.retain(|worker| self.workers[*worker].job == job);
            let mut ends = workers.iter().map(|worker| self.workers[*worker].resting());
            let is_over =
                ends.clone().any(|end| end.is_some_and(|end| end != Some(&End::Finished)))
                    || ends.all(|end| end.is_some());
            for number in workers {
                let worker = &self.workers[number];
                let may = self.healed || worker.attempts < self.scenario.attempts;
                let wants = match worker.resting() {
                    // A crash tells when the rank is restarted, if ever; after the end of faults it
                    // must be.
                    Some(Some(End::Killed)) => self.healed,
                    Some(Some(_)) => is_over,
                    _ => false,
                };
                if wants && may && !worker.starts && worker.attempts > 0 {
                    let after =
                        self.net.rng.magnitude(MS, if self.healed { 50 * MS } else { SECOND });
                    self.start_at(number, self.net.now + after);
                }
            }
        }
    }

    /// Whether all ranks of a job have finished the same session.
    fn is_done(&self, job: usize) -> bool {
        let plan = &self.scenario.jobs[job];
        let mut ranks = plan.workers.iter().map(|worker| &self.workers[*worker]);
        let session = self.workers[plan.workers[0]].session();
        let quits = plan.quitter.is_some() && ranks.clone().any(|rank| rank.attempts == 1);
        let finished = Some(Some(&End::Finished));
        ranks.all(|rank| rank.job == job && rank.resting() == finished && rank.session() == session)
            && !quits
    }

    fn is_over(&self) -> bool {
        let is_at_rest = |worker: &Worker| worker.resting().is_some() && !worker.starts;
        let all_done = || self.present().all(|job| self.is_done(job));
        self.workers.iter().all(is_at_rest)
            && self.all_know()
            && (self.scenario.heals_at.is_none() || all_done())
    }

    /// The jobs that their ranks are in, or should be.
    fn present(&self) -> impl Iterator<Item = usize> {
        let stages = self.stages.iter().enumerate();
        stages.filter(|(_, stage)| **stage == Stage::Present).map(|(job, _)| job)
    }

    /// Whether no rank has yet to hear in which job it goes on.
    fn all_know(&self) -> bool {
        let knows = |job: usize| {
            let mut workers = self.scenario.jobs[job].workers.iter();
            workers.all(|worker| self.workers[*worker].job == job)
        };
        !self.stages.contains(&Stage::Next) && self.present().all(knows)
    }

    fn conclude(&mut self) -> Result<(), Violation> {
        if let Some(heals_at) = self.scenario.heals_at {
            for job in self.present() {
                if !self.is_done(job) {
                    return Err(Violation(format!(
                        "job {job} did not finish after all faults had ended"
                    )));
                }
            }
            self.net.tally.slowest_recovery = self.net.now.saturating_sub(heals_at);
        }
        for worker in &self.workers {
            if worker.resting().is_none() {
                return Err(Violation(format!("worker {} waits for nothing", worker.index)));
            }
        }
        Ok(())
    }
}
