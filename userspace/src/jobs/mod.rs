//! The job table: which ranks are there, and what follows from it. Pure: requests in, [`Effect`]s out.
//!
//! ```text
//!   Waiting ──all ranks joined──▶ Assigned ──all ranks ready──▶ Started ──all ranks left──▶ (gone)
//!      │                             │                             │
//!      │ last rank gone              └──────── a rank failed ──────┤
//!      ▼                                                           ▼
//!   (gone)                                                      Aborted ──all ranks gone──▶ (gone)
//! ```
//!
//! A job takes its slots, number and epoch when its first rank joins, and gives them back when the last is gone. Ranks
//! of an aborted job may linger; whoever joins under its name meanwhile starts a new job, with an epoch of its own.

mod error;
mod job;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use rand::{Rng, rngs::StdRng};
use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_protocol::job::Place;
use switchml_protocol::maps::MAX_JOBS;
use switchml_protocol::{LANES_PER_BLOCK, MAX_RANKS};
use tracing::{info, warn};

use crate::data_plane::{Fanout, JobSpec, Limits};
use crate::slots::SlotPool;
pub use error::{JoinError, MemberError};
use job::{Job, Member, State};

/// Longest job name, in bytes.
pub const MAX_NAME_LEN: usize = 200;
/// UDP port of the multicast groups.
pub const GROUP_PORT: u16 = 48866;
/// Longest text that a failing rank may give to the others, in characters.
const MAX_REASON_LEN: usize = 500;

/// A rank's stream of events.
pub type Session = u64;

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Open the job in the data plane.
    Open(JobSpec),
    /// Tell the data plane that all ranks of the job are ready.
    Start(u16),
    /// Abort the job in the data plane.
    Abort(u16),
    /// Close the job in the data plane.
    Close(u16),
    /// Send the event to a rank.
    Tell(Session, Event),
    /// End a rank's stream.
    End(Session),
}

/// A rank that wants to join.
#[derive(Clone, Debug)]
pub struct Joiner {
    /// Name of the job.
    pub name: String,
    /// The rank.
    pub rank: u32,
    /// Number of ranks of the job.
    pub world_size: u32,
    /// Where its control connection comes from.
    pub peer: IpAddr,
    /// The address by which it reached the daemon, if it is an IPv4 one.
    pub local: Option<Ipv4Addr>,
}

/// How a member refers to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberId {
    /// Number of the job.
    pub job: u32,
    /// Epoch of the job.
    pub epoch: u32,
    /// The rank.
    pub rank: u32,
}

/// All jobs.
#[derive(Debug)]
pub struct JobTable {
    limits: Limits,
    /// The address that workers send to, if it is not the one that they joined by.
    data_address: Option<Ipv4Addr>,
    rng: StdRng,
    pool: SlotPool,
    jobs: BTreeMap<u16, Job>,
    /// Job and rank of every stream that has not ended.
    sessions: HashMap<Session, (u16, u32)>,
    next_session: Session,
    used_epochs: HashSet<u32>,
}

impl JobTable {
    /// A table without jobs, over a data plane's pool.
    pub fn new(limits: Limits, data_address: Option<Ipv4Addr>, rng: StdRng) -> Self {
        Self {
            limits,
            data_address,
            rng,
            pool: SlotPool::new(limits.slots),
            jobs: BTreeMap::new(),
            sessions: HashMap::new(),
            next_session: 0,
            used_epochs: HashSet::from([0]),
        }
    }

    /// The pool of slots.
    pub fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// All jobs, by number.
    pub fn list(&self) -> Vec<control::Job> {
        self.jobs.values().map(Job::describe).collect()
    }

    /// A rank joins. Its stream is the session that is returned; the effects may tell it something at once.
    ///
    /// # Errors
    ///
    /// [`JoinError`]; the table is as before.
    pub fn join(&mut self, joiner: &Joiner) -> Result<(Session, Vec<Effect>), JoinError> {
        check_joiner(joiner)?;
        let local = self.data_address.or(joiner.local).ok_or(JoinError::NoIpv4)?;
        let number = match self.jobs.values().find(|job| job.name == joiner.name && !job.is_ending()) {
            Some(job) => {
                check_fits(job, joiner)?;
                job.number
            }
            None => self.create(joiner)?,
        };
        let session = self.next_session;
        self.next_session += 1;
        let secret = self.rng.next_u32();
        let member = Member { session, peer: joiner.peer, local, secret, ready: None, here: true };
        let Some(job) = self.jobs.get_mut(&number) else { unreachable!("found or created above") };
        job.members[joiner.rank as usize] = Some(member);
        self.sessions.insert(session, (number, joiner.rank));
        let missing = job.missing();
        info!(
            "job {number} {:?}: rank {} of {} joined from {}, {} missing",
            job.name,
            joiner.rank,
            joiner.world_size,
            joiner.peer,
            missing.len()
        );
        let effects = if missing.is_empty() { self.assign(number) } else { self.tell_missing(number) };
        Ok((session, effects))
    }

    /// A rank's path is open for packets of `lanes`; `place` is where the data plane has heard it, if it has.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn ready(&mut self, id: MemberId, lanes: u32, place: Option<Place>) -> Result<Vec<Effect>, MemberError> {
        let max_lanes = self.limits.max_lanes;
        let job = self.job_of(id)?;
        let Some(member) = job.members.get_mut(id.rank as usize).and_then(Option::as_mut) else {
            return Err(MemberError::NoRank { job: id.job, rank: id.rank });
        };
        let lanes = match u16::try_from(lanes) {
            Ok(lanes) if lanes > 0 && usize::from(lanes) % LANES_PER_BLOCK == 0 && lanes <= max_lanes => lanes,
            _ => return Err(MemberError::Lanes { lanes, max_lanes }),
        };
        if job.state != State::Assigned {
            return Err(MemberError::NotAssigned { rank: id.rank, state: job.state.name() });
        }
        let place = place.ok_or(MemberError::NoHello(id.rank))?;
        member.ready = Some(lanes);
        let from = SocketAddrV4::new(place.ip.into(), place.port.get());
        info!("job {} {:?}: rank {} ready at {from}, {lanes} lanes", job.number, job.name, id.rank);
        let Some(lanes) = job.common_lanes() else { return Ok(Vec::new()) };
        job.state = State::Started { lanes };
        info!("job {} {:?}: started, {lanes} lanes", job.number, job.name);
        let mut effects = vec![Effect::Start(job.number)];
        effects.extend(job.tell_all(&Event::Started(control::Started { lanes: lanes.into() })));
        Ok(effects)
    }

    /// A rank says goodbye, in good order or with an error.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn leave(&mut self, id: MemberId, error: &str) -> Result<Vec<Effect>, MemberError> {
        let job = self.job_of(id)?;
        let Some((_, member)) = job.present().find(|(rank, _)| *rank == id.rank) else {
            return Err(MemberError::NoRank { job: id.job, rank: id.rank });
        };
        let session = member.session;
        let reason = match (error, &job.state) {
            ("", State::Started { .. }) => None,
            ("", _) => Some("left before all ranks were ready".to_owned()),
            (error, _) => Some(format!("failed: {}", one_line(error))),
        };
        let mut effects = self.depart(session, reason.as_deref());
        effects.push(Effect::End(session));
        Ok(effects)
    }

    /// A rank's stream has ended. Nothing follows if the rank had left before.
    pub fn disconnect(&mut self, session: Session) -> Vec<Effect> {
        self.depart(session, Some("is gone: its process ended, or its host cannot be reached"))
    }

    /// The data plane failed a job: all its ranks are told so.
    pub fn fail(&mut self, number: u16, reason: &str) -> Vec<Effect> {
        self.abort(number, reason, Vec::new())
    }

    /// The daemon stops: aborts all jobs, and ends all streams.
    pub fn shut_down(&mut self) -> Vec<Effect> {
        let numbers: Vec<_> = self.jobs.keys().copied().collect();
        let mut effects: Vec<_> =
            numbers.into_iter().flat_map(|number| self.abort(number, "the aggregator stops", Vec::new())).collect();
        effects.extend(self.sessions.keys().map(|session| Effect::End(*session)));
        effects
    }

    /// A member goes, and takes its job with it if there is a `reason` and the job has begun.
    fn depart(&mut self, session: Session, reason: Option<&str>) -> Vec<Effect> {
        let Some((number, rank)) = self.sessions.remove(&session) else { return Vec::new() };
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        let Some(place) = job.members.get_mut(rank as usize) else { return Vec::new() };
        let Some(member) = place else { return Vec::new() };
        member.here = false;
        let who = format!("rank {rank} ({})", member.peer);
        if job.state == State::Waiting {
            *place = None;
            info!("job {number} {:?}: {who} gave up", job.name);
            return self.remove_if_empty(number).unwrap_or_else(|| self.tell_missing(number));
        }
        let mut effects = match reason {
            Some(reason) => self.abort(number, &format!("{who} {reason}"), vec![rank]),
            None => {
                info!("job {number} {:?}: {who} left", job.name);
                Vec::new()
            }
        };
        effects.extend(self.remove_if_empty(number).into_iter().flatten());
        effects
    }

    /// The job of that number and epoch.
    fn job_of(&mut self, id: MemberId) -> Result<&mut Job, MemberError> {
        let number = u16::try_from(id.job).ok();
        let job = number.and_then(|number| self.jobs.get_mut(&number)).filter(|job| job.epoch == id.epoch);
        job.ok_or(MemberError::NoJob { job: id.job, epoch: id.epoch })
    }

    /// A new job without members. Its number is the lowest that is free.
    fn create(&mut self, joiner: &Joiner) -> Result<u16, JoinError> {
        let number =
            (0..MAX_JOBS as u16).find(|number| !self.jobs.contains_key(number)).ok_or(JoinError::TooManyJobs)?;
        let (total, free) = (self.pool.size(), self.pool.free());
        let slots = self.pool.lend().ok_or(JoinError::NoSlots { total, free })?;
        let job = Job {
            number,
            name: joiner.name.clone(),
            epoch: self.new_epoch(),
            slots,
            state: State::Waiting,
            members: (0..joiner.world_size).map(|_| None).collect(),
        };
        self.jobs.insert(number, job);
        Ok(number)
    }

    /// Random, never 0, and never used before.
    fn new_epoch(&mut self) -> u32 {
        loop {
            let epoch = self.rng.next_u32();
            if self.used_epochs.insert(epoch) {
                return epoch;
            }
        }
    }

    /// All ranks of the job are there.
    fn assign(&mut self, number: u16) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        job.state = State::Assigned;
        let Some((_, first)) = job.joined().next() else { return Vec::new() };
        let spec = JobSpec {
            number,
            epoch: job.epoch,
            secrets: job.joined().map(|(_, member)| member.secret).collect(),
            slots: job.slots.clone(),
            address: first.local,
            group: (group_address(number), GROUP_PORT),
        };
        info!("job {number} {:?}: assigned, epoch {:#010x}, slots {:?}", job.name, job.epoch, job.slots);
        let mut effects = vec![Effect::Open(spec.clone())];
        effects.extend(job.joined().map(|(_, member)| {
            Effect::Tell(member.session, Event::Assigned(assigned(&self.limits, &spec, member.secret)))
        }));
        effects
    }

    fn tell_missing(&self, number: u16) -> Vec<Effect> {
        let Some(job) = self.jobs.get(&number) else { return Vec::new() };
        job.tell_all(&Event::Waiting(control::Waiting { missing_ranks: job.missing() })).collect()
    }

    fn abort(&mut self, number: u16, reason: &str, ranks: Vec<u32>) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        if job.state == State::Aborted {
            return Vec::new();
        }
        job.state = State::Aborted;
        warn!("job {number} {:?}: aborted, {reason}", job.name);
        let mut effects = vec![Effect::Abort(number)];
        effects.extend(job.tell_all(&Event::Aborted(control::Aborted { reason: reason.to_owned(), ranks })));
        effects
    }

    /// Ends a job that nobody is in any more.
    fn remove_if_empty(&mut self, number: u16) -> Option<Vec<Effect>> {
        let job = self.jobs.get(&number)?;
        if job.present().next().is_some() {
            return None;
        }
        let job = self.jobs.remove(&number)?;
        self.pool.take_back(&job.slots);
        info!("job {number} {:?}: ended", job.name);
        let opened = job.state != State::Waiting;
        Some(opened.then_some(Effect::Close(number)).into_iter().collect())
    }
}

fn check_joiner(joiner: &Joiner) -> Result<(), JoinError> {
    let &Joiner { rank, world_size, .. } = joiner;
    if !(1..=MAX_NAME_LEN).contains(&joiner.name.len()) {
        return Err(JoinError::Name(joiner.name.len()));
    }
    if !(1..=MAX_RANKS as u32).contains(&world_size) {
        return Err(JoinError::WorldSize(world_size));
    }
    if rank >= world_size {
        return Err(JoinError::Rank { rank, world_size });
    }
    Ok(())
}

/// Whether the job has the place that the rank wants.
fn check_fits(job: &Job, joiner: &Joiner) -> Result<(), JoinError> {
    if job.world_size() != joiner.world_size as usize {
        return Err(JoinError::OtherWorldSize {
            name: joiner.name.clone(),
            expected: job.world_size(),
            given: joiner.world_size,
        });
    }
    match &job.members[joiner.rank as usize] {
        Some(member) => {
            Err(JoinError::DuplicateRank { name: joiner.name.clone(), rank: joiner.rank, from: member.peer })
        }
        None => Ok(()),
    }
}

fn assigned(limits: &Limits, spec: &JobSpec, secret: u32) -> control::Assigned {
    let (group_address, group_port) = match limits.fanout {
        Fanout::Multicast => (spec.group.0.to_string(), spec.group.1),
        Fanout::Unicast => (String::new(), 0),
    };
    control::Assigned {
        job: spec.number.into(),
        epoch: spec.epoch,
        slots: spec.slots.end - spec.slots.start,
        data_address: spec.address.to_string(),
        data_port: limits.port.into(),
        group_address,
        group_port: group_port.into(),
        hello_secret: secret,
        max_lanes: limits.max_lanes.into(),
    }
}

/// The job's multicast group, of those that stay within a site (RFC 2365).
fn group_address(job: u16) -> Ipv4Addr {
    let [high, low] = job.to_be_bytes();
    Ipv4Addr::new(239, 255, high, low)
}

/// What a rank says of its failure, fit for one line of a log.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(MAX_REASON_LEN).collect()
}
