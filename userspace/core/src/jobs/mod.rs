//! The job table: which ranks are there, and what follows from it. Pure: requests in, [`Effect`]s
//! out.
//!
//! ```text
//!   Waiting ──all ranks joined──▶ Assigned ──all ranks ready──▶ Started ──all ranks left──▶ (gone)
//!      │                             │                             │
//!      │ last rank gone              └──────── a rank failed ──────┤
//!      ▼                                                           ▼
//!   (gone)                                                      Aborted ──all ranks gone──▶ (gone)
//! ```
//!
//! A job takes its numbers, and with them its slots, and its epoch when its last rank has joined,
//! and gives them back when the last is gone; while it waits it has none of them. Ranks of an
//! aborted job may linger; whoever joins under its name meanwhile starts a new job, with an epoch
//! of its own.
//!
//! Over a durable data plane a job that has started outlives the daemon: each change of it is saved
//! ([`Effect::Save`]) before anything else is done about it. The next daemon's table takes it back
//! ([`JobTable::restore`]), its ranks come back ([`JobTable::resume`]), and those that do not are
//! taken for dead ([`JobTable::expire`]).

mod epochs;
mod error;
mod job;
mod mismatch;
mod recent_aborts;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use rand::{Rng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::job::Binding;

use crate::job_spec::JobSpec;
use crate::limits::{Fanout, Limits};
use crate::slots::power_of_two_up_to;
pub use epochs::Epochs;
pub use error::{JoinError, MemberError};
pub use job::{Job, MAX_SAVED_LEN};
use job::{Member, Presence, State};
pub use mismatch::GATHERING;
use recent_aborts::RecentAborts;
pub use threads::Threads;

/// Longest job name, in bytes.
pub const MAX_NAME_LEN: usize = 200;
/// Longest name of a host, in bytes: a boot id has 36.
pub const MAX_HOST_LEN: usize = 64;
/// Most jobs that wait for ranks: they cost memory alone, a few KB each.
pub const MAX_WAITING: usize = 4096;
/// Most that wait of those whose first rank came from one host, so that one host does not keep all
/// others out.
pub const MAX_WAITING_OF_HOST: usize = 256;
/// UDP port of the multicast groups.
pub const GROUP_PORT: u16 = 48866;
/// Longest text that a failing rank may give to the others, in characters.
const MAX_REASON_LEN: usize = 500;
/// Longest reason of an abort that is kept for ranks which come back, in characters.
const MAX_SAVED_REASON_LEN: usize = 2000;

/// A rank's stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(u64);

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Have the data plane keep for the next daemon that the job of this number uses the last of
    /// these epochs.
    KeepEpochs(u16, Epochs),
    /// Open the job in the data plane.
    Open(JobSpec),
    /// Tell the data plane that all ranks of the job are ready.
    Start(u16),
    /// Abort the job in the data plane.
    Abort(u16),
    /// Close the job in the data plane, which keeps nothing of it.
    Close(u16),
    /// Have the data plane keep the job for the next daemon, in place of what it kept of it before.
    Save(Box<Job>),
    /// Send the event to a rank.
    Tell(StreamId, Event),
    /// End a rank's stream.
    End(StreamId),
    /// Call [`JobTable::conclude`] with the job and its epoch when [`GATHERING`] is over.
    Gather(u16, u32),
    /// Log a line.
    Log(Level, String),
}

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What goes as it should.
    Info,
    /// A job that came to no good end.
    Warn,
    /// The daemon itself could not do something.
    Error,
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
    /// How many data threads it has use for.
    pub threads: Threads,
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
    /// What the rank alone was given, to prove that it is this member.
    pub secret: u64,
}

/// Which job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JobKey {
    /// That waits under this name.
    Waiting(String),
    /// That has this number.
    Assigned(u16),
}

/// All jobs.
#[derive(Debug)]
pub struct JobTable {
    limits: Limits,
    /// The address that workers send to, if it is not the one that they joined by.
    data_address: Option<Ipv4Addr>,
    rng: StdRng,
    /// Jobs whose ranks are not all there, by name.
    waiting: BTreeMap<String, Job>,
    /// All others, by number.
    jobs: BTreeMap<u16, Job>,
    /// Whose every stream is that has not ended.
    streams: BTreeMap<StreamId, (JobKey, u32)>,
    recent_aborts: RecentAborts,
    next_stream: StreamId,
    epochs: Epochs,
}

impl JobTable {
    /// A table without jobs, over a data plane's pool.
    pub fn new(limits: Limits, data_address: Option<Ipv4Addr>, mut rng: StdRng) -> Self {
        Self {
            limits,
            data_address,
            epochs: Epochs::new(&mut rng),
            rng,
            waiting: BTreeMap::new(),
            jobs: BTreeMap::new(),
            streams: BTreeMap::new(),
            recent_aborts: RecentAborts::default(),
            next_stream: StreamId(0),
        }
    }

    /// Goes on with the epochs of an earlier daemon, after those that it used.
    pub fn continue_epochs(&mut self, epochs: Epochs) {
        self.epochs = epochs;
    }

    /// Takes back a job that an earlier daemon saved, before any rank has joined. Its ranks are
    /// awaited. The effects have the data plane do again what may have been saved and not done.
    pub fn restore(&mut self, mut job: Job) -> Vec<Effect> {
        let number = job.number;
        if !self.has_room_for(&job) {
            let log = warn(format!(
                "job {number} {:?}: not restored, its numbers {:?} are not free",
                job.name, job.shards
            ));
            return [log].into_iter().chain(job.on_shards(Effect::Close)).collect();
        }
        for member in job.members.iter_mut().flatten().filter(|member| !member.is_gone()) {
            member.presence = Presence::Awaited;
        }
        self.recent_aborts.note(&job);
        let log = info(format!("job {number} {:?}: restored, {}", job.name, job.state.name()));
        let again = match job.state {
            State::Aborted { .. } => Effect::Abort,
            _ => Effect::Start,
        };
        let mut effects: Vec<_> = [log].into_iter().chain(job.on_shards(again)).collect();
        self.jobs.insert(number, job);
        effects.extend(self.remove_if_empty(number));
        effects
    }

    /// A rank of a job that has started comes back, over a connection from `peer`. Its stream is
    /// returned, in place of an earlier one; the effects tell it how the job is. One that was taken
    /// for dead hears why, and that is all.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn resume(
        &mut self,
        id: MemberId,
        peer: IpAddr,
    ) -> Result<(StreamId, Vec<Effect>), MemberError> {
        let stream = self.next_stream;
        let job = match self.job_of(id) {
            Ok(job) => job,
            Err(error) => {
                let aborted = self.recent_aborts.of(id).ok_or(error)?;
                self.next_stream.0 += 1;
                return Ok((
                    stream,
                    vec![Effect::Tell(stream, Event::Aborted(aborted)), Effect::End(stream)],
                ));
            }
        };
        let news = job.news();
        if news.is_empty() {
            return Err(MemberError::NotStarted { rank: id.rank, state: job.state.name() });
        }
        let Some(member) = job.member_mut(id.rank) else { unreachable!("found above") };
        let before = std::mem::replace(&mut member.presence, Presence::Here(stream));
        member.peer = peer;
        let (number, awaited) = (job.number, job.awaited().len());
        let mut effects = vec![info(format!(
            "job {number} {:?}: rank {} came back from {peer}, {awaited} awaited still",
            job.name, id.rank
        ))];
        self.next_stream.0 += 1;
        self.streams.insert(stream, (JobKey::Assigned(number), id.rank));
        if let Presence::Here(earlier) = before {
            self.streams.remove(&earlier);
            effects.push(Effect::End(earlier));
        }
        effects.extend(news.into_iter().map(|event| Effect::Tell(stream, event)));
        Ok((stream, effects))
    }

    /// Ranks that are awaited still have had their time: they are taken for dead.
    pub fn expire(&mut self) -> Vec<Effect> {
        let numbers: Vec<_> = self.jobs.keys().copied().collect();
        let mut effects = Vec::new();
        for number in numbers {
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            let ranks = job.awaited();
            if ranks.is_empty() {
                continue;
            }
            for member in job
                .members
                .iter_mut()
                .flatten()
                .filter(|member| member.presence == Presence::Awaited)
            {
                member.presence = Presence::Gone;
            }
            let reason = format!(
                "{} did not come back after the aggregator was restarted",
                job.in_words(&ranks)
            );
            effects.extend(match job.state {
                State::Aborted { .. } => self.save(number),
                _ => self.abort(number, &reason, ranks),
            });
            effects.extend(self.remove_if_empty(number));
        }
        effects
    }

    /// Frames of an interface do not reach the data plane any more, as `what` says: aborts the jobs
    /// that have ranks behind it, of which the data plane may have missed anything.
    pub fn lose_port(&mut self, port: u32, what: &str) -> Vec<Effect> {
        let numbers: Vec<_> = self.jobs.keys().copied().collect();
        let mut effects = Vec::new();
        for number in numbers {
            let Some(job) = self.jobs.get(&number) else { continue };
            let behind = job.present().filter(|(_, member)| member.ports.contains(&port));
            let ranks: Vec<_> = behind.map(|(rank, _)| rank).collect();
            if !ranks.is_empty() {
                let who = job.in_words(&ranks);
                let reason =
                    format!("{who} cannot reach the aggregator any more: {what}; join again");
                effects.extend(self.abort(number, &reason, Vec::new()));
            }
        }
        effects
    }

    /// Slots that no job has.
    pub fn free_slots(&self) -> u32 {
        self.free_numbers().count() as u32 * self.limits.slots_per_shard
    }

    /// All jobs: by number, then those that wait, by name.
    pub fn list(&self) -> Vec<control::JobStatus> {
        self.jobs.values().chain(self.waiting.values()).map(Job::describe).collect()
    }

    /// A rank joins. Its stream is returned; the effects may tell it something at once.
    ///
    /// # Errors
    ///
    /// [`JoinError`]; the table is as before.
    pub fn join(&mut self, joiner: &Joiner) -> Result<(StreamId, Vec<Effect>), JoinError> {
        check_joiner(joiner, self.limits.max_ranks)?;
        let local = self.data_address.or(joiner.local).ok_or(JoinError::NoIpv4)?;
        let assigned = self.jobs.values().find(|job| job.name == joiner.name && !job.is_ending());
        match self.waiting.get(&joiner.name).or(assigned) {
            Some(job) => check_fits(job, joiner)?,
            None => self.create(joiner)?,
        }
        let stream = self.next_stream;
        self.next_stream.0 += 1;
        let (hello_secret, control_secret) = (self.rng.next_u32(), self.rng.next_u64());
        let presence = Presence::Here(stream);
        let member = Member {
            presence,
            peer: joiner.peer,
            local,
            hello_secret,
            control_secret,
            threads: joiner.threads.clone(),
            ready: None,
            ports: BTreeSet::new(),
            has_no_multicast: false,
        };
        let Some(job) = self.waiting.get_mut(&joiner.name) else {
            unreachable!("found or created above")
        };
        job.members[joiner.rank as usize] = Some(member);
        self.streams.insert(stream, (JobKey::Waiting(joiner.name.clone()), joiner.rank));
        let missing = job.missing().len();
        let Joiner { name, rank, world_size, peer, .. } = joiner;
        let mut effects = vec![info(format!(
            "job {name:?}: rank {rank} of {world_size} joined from {peer}, {missing} missing"
        ))];
        effects.extend(match missing {
            0 => self.assign(name),
            _ => self.tell_missing(name),
        });
        Ok((stream, effects))
    }

    /// The shards of a member's job, in order.
    ///
    /// # Errors
    ///
    /// [`MemberError`].
    pub fn shards(&self, id: MemberId) -> Result<&[u16], MemberError> {
        self.find(id).map(|job| job.shards.as_slice())
    }

    /// A rank's paths are open for packets of `lanes`; `bindings` are where the data plane has
    /// heard it, one for each shard in which it has.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn ready(
        &mut self,
        id: MemberId,
        lanes: u32,
        bindings: impl IntoIterator<Item = Binding>,
    ) -> Result<Vec<Effect>, MemberError> {
        let max_lanes = self.limits.max_lanes;
        let job = self.job_of(id)?;
        let lanes = match u16::try_from(lanes) {
            Ok(lanes)
                if lanes > 0 && usize::from(lanes) % LANES_PER_BLOCK == 0 && lanes <= max_lanes =>
            {
                lanes
            }
            _ => return Err(MemberError::Lanes { lanes, max_lanes }),
        };
        if job.state != State::Assigned {
            return Err(MemberError::NotAssigned { rank: id.rank, state: job.state.name() });
        }
        let bindings: Vec<_> = bindings.into_iter().collect();
        if bindings.len() != job.shards.len() {
            return Err(MemberError::NoHello(id.rank));
        }
        let Some(member) = job.member_mut(id.rank) else { unreachable!("found above") };
        member.ready = Some(lanes);
        member.ports = bindings.iter().map(|binding| binding.ifindex).collect();
        let from = bindings
            .iter()
            .map(|binding| SocketAddrV4::new(binding.ip.into(), binding.port.get()).to_string());
        let from = from.collect::<Vec<_>>().join(", ");
        let (number, name, rank) = (job.number, &job.name, id.rank);
        let mut effects = vec![info(format!(
            "job {number} {name:?}: rank {rank} ready at {from}, {lanes} lanes"
        ))];
        let Some(lanes) = job.common_lanes() else { return Ok(effects) };
        effects.push(info(format!("job {number} {name:?}: started, {lanes} lanes")));
        job.state = State::Started { lanes };
        effects.extend(self.save(number));
        let Some(job) = self.jobs.get(&number) else { unreachable!("found above") };
        effects.extend(job.on_shards(Effect::Start));
        effects.extend(job.tell_all(&Event::Started(control::Started { lanes: lanes.into() })));
        Ok(effects)
    }

    /// A rank that was told that ranks made different calls, or was asked, says which calls of its
    /// own are in flight. The first has the others asked. When all have reported, or when it is
    /// time to [conclude](Self::conclude), the job is aborted with what was gathered.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn report_calls(
        &mut self,
        id: MemberId,
        calls: Vec<control::Call>,
        named: &[u32],
    ) -> Result<Vec<Effect>, MemberError> {
        let job = self.job_of(id)?;
        if !matches!(job.state, State::Started { .. }) {
            // Too late: the job was aborted meanwhile, and the rank told why.
            return Ok(Vec::new());
        }
        let mut effects = vec![info(format!(
            "job {} {:?}: rank {} reports that ranks made different calls",
            job.number, job.name, id.rank
        ))];
        let first = job.mismatch.is_none();
        let is_refused = !named.is_empty();
        let named =
            named.iter().filter(|rank| **rank < job.members.len() as u32).map(|rank| *rank as u16);
        let mismatch = job.mismatch.get_or_insert_default();
        let calls = calls.into_iter().take(control::MAX_REPORTED_CALLS);
        let calls = calls.map(|call| (call.number, one_line(&call.call)));
        mismatch.note(id.rank as u16, calls.collect(), is_refused, named);
        if job.all_have_said_enough() {
            effects.extend(self.conclude(id.job as u16, id.epoch));
            return Ok(effects);
        }
        if !first {
            return Ok(effects);
        }
        let others = job
            .present()
            .filter(|(rank, _)| *rank != id.rank)
            .filter_map(|(_, member)| member.stream());
        let ask = |stream| Effect::Tell(stream, Event::CallsWanted(control::CallsWanted {}));
        effects.push(Effect::Gather(id.job as u16, id.epoch));
        effects.extend(others.map(ask));
        Ok(effects)
    }

    /// A rank gets no RESULTs for all by multicast, as the operator is to know. The job goes on.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn report_no_multicast(&mut self, id: MemberId) -> Result<Vec<Effect>, MemberError> {
        let job = self.job_of(id)?;
        let Some(member) = job.member_mut(id.rank) else { unreachable!("found above") };
        if std::mem::replace(&mut member.has_no_multicast, true) {
            return Ok(Vec::new());
        }
        let who = member.in_words(id.rank);
        Ok(vec![warn(format!(
            "job {} {:?}: {who} gets no results by multicast, and so makes all ranks slow",
            job.number, job.name
        ))])
    }

    /// The time to report different calls is over: aborts the job, unless that has happened.
    pub fn conclude(&mut self, number: u16, epoch: u32) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&number).filter(|job| job.epoch == epoch) else {
            return Vec::new();
        };
        let have_all_reported = job.all_have_reported();
        let Some(mismatch) = &mut job.mismatch else { return Vec::new() };
        if have_all_reported {
            mismatch.note_complete();
        }
        self.abort(number, "", Vec::new())
    }

    /// A rank says goodbye, in good order or with an error, which blames these ranks, or no other
    /// if there are none.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn leave(
        &mut self,
        id: MemberId,
        error: &str,
        blamed: &[u32],
    ) -> Result<Vec<Effect>, MemberError> {
        let job = self.job_of(id)?;
        let stream = job.member_mut(id.rank).and_then(|member| member.stream());
        let number = job.number;
        let mut at_fault: Vec<_> =
            blamed.iter().copied().filter(|rank| *rank < job.world_size() as u32).collect();
        at_fault.sort_unstable();
        at_fault.dedup();
        if at_fault.is_empty() {
            at_fault.push(id.rank);
        }
        let reason = match (error, &job.state) {
            ("", State::Started { .. }) => None,
            // Nobody else's collectives depend on it.
            ("", _) if job.world_size() == 1 => None,
            ("", _) => Some("left before all ranks were ready".to_owned()),
            (error, _) => Some(format!("failed: {}", one_line(error))),
        };
        let mut effects =
            self.depart(number, id.rank, reason.as_deref().map(|reason| (reason, at_fault)));
        if let Some(stream) = stream {
            self.streams.remove(&stream);
            effects.push(Effect::End(stream));
        }
        Ok(effects)
    }

    /// A rank's stream has ended. Nothing follows if the rank had left before.
    pub fn disconnect(&mut self, stream: StreamId) -> Vec<Effect> {
        self.lose(stream, "is gone: its process ended, or its connection broke")
    }

    /// A rank's connection has given no sign of life for so long: its host cannot be reached, or
    /// stands still.
    pub fn fall_silent(&mut self, stream: StreamId, silence: Duration) -> Vec<Effect> {
        let seconds = silence.as_secs();
        self.lose(
            stream,
            &format!("did not answer the aggregator for {seconds} s, and was taken for dead"),
        )
    }

    fn lose(&mut self, stream: StreamId, what: &str) -> Vec<Effect> {
        match self.streams.remove(&stream) {
            Some((JobKey::Assigned(number), rank)) => {
                self.depart(number, rank, Some((what, vec![rank])))
            }
            Some((JobKey::Waiting(name), rank)) => self.give_up(&name, rank),
            None => Vec::new(),
        }
    }

    /// The data plane failed a shard: all ranks of its job are told so.
    pub fn fail(&mut self, shard: u16, reason: &str) -> Vec<Effect> {
        let job = self.jobs.values().find(|job| job.shards.contains(&shard)).map(|job| job.number);
        job.map(|number| self.abort(number, reason, Vec::new())).unwrap_or_default()
    }

    /// The daemon stops: aborts all jobs, and ends all streams.
    pub fn shut_down(&mut self) -> Vec<Effect> {
        let numbers: Vec<_> = self.jobs.keys().copied().collect();
        let mut effects: Vec<_> = numbers
            .into_iter()
            .flat_map(|number| self.abort(number, "the aggregator stops", Vec::new()))
            .collect();
        let news = Event::Aborted(control::Aborted {
            reason: "the aggregator stops".to_owned(),
            ..Default::default()
        });
        effects
            .extend(self.waiting.values().flat_map(|job| job.tell_all(&news).collect::<Vec<_>>()));
        effects.extend(self.streams.keys().map(|stream| Effect::End(*stream)));
        effects
    }

    /// A rank goes before all were there: its place is free again.
    fn give_up(&mut self, name: &str, rank: u32) -> Vec<Effect> {
        let Some(job) = self.waiting.get_mut(name) else { return Vec::new() };
        let member = job.members.get_mut(rank as usize).and_then(Option::take);
        let log =
            member.map(|member| info(format!("job {name:?}: {} gave up", member.in_words(rank))));
        let mut effects: Vec<_> = log.into_iter().collect();
        if job.joined().next().is_some() {
            effects.extend(self.tell_missing(name));
        } else {
            self.waiting.remove(name);
        }
        effects
    }

    /// A member goes, and takes its job with it if there is a reason, with the ranks at fault, and
    /// the job has begun.
    fn depart(&mut self, number: u16, rank: u32, failed: Option<(&str, Vec<u32>)>) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        let Some(member) = job.member_mut(rank) else { return Vec::new() };
        member.presence = Presence::Gone;
        let who = member.in_words(rank);
        let mut effects = match failed {
            Some(_) if matches!(job.state, State::Aborted { .. }) => self.save(number),
            Some((reason, at_fault)) => self.abort(number, &format!("{who} {reason}"), at_fault),
            None => {
                let log = info(format!("job {number} {:?}: {who} left", job.name));
                let told: Vec<_> = job.tell_all(&Event::Left(control::Left { rank })).collect();
                [log].into_iter().chain(self.save(number)).chain(told).collect()
            }
        };
        effects.extend(self.remove_if_empty(number));
        effects
    }

    /// What keeps the job for the next daemon, as it is now.
    fn save(&self, number: u16) -> Vec<Effect> {
        let job = self.jobs.get(&number).filter(|job| self.limits.durable && job.is_durable());
        job.map(|job| Effect::Save(Box::new(job.clone()))).into_iter().collect()
    }

    /// The job of that member, who is there and has proven to be it.
    fn find(&self, id: MemberId) -> Result<&Job, MemberError> {
        let number = u16::try_from(id.job).ok();
        let job = number.and_then(|number| self.jobs.get(&number)).filter(|job| job.has_member(id));
        job.ok_or(MemberError::NoMember { job: id.job, rank: id.rank })
    }

    /// The same, to change it.
    fn job_of(&mut self, id: MemberId) -> Result<&mut Job, MemberError> {
        let number = self.find(id)?.number;
        self.jobs.get_mut(&number).ok_or(MemberError::NoMember { job: id.job, rank: id.rank })
    }

    /// A new job without members, which waits for them.
    fn create(&mut self, joiner: &Joiner) -> Result<(), JoinError> {
        let begun_there = self.waiting.values().filter(|job| job.begun_from == Some(joiner.peer));
        let (waiting, of_host, peer) = (self.waiting.len(), begun_there.count(), joiner.peer);
        if waiting >= MAX_WAITING || of_host >= MAX_WAITING_OF_HOST {
            return Err(JoinError::TooManyWaiting { waiting, of_host, peer });
        }
        let job = Job {
            number: 0,
            name: joiner.name.clone(),
            epoch: 0,
            slots_per_shard: 0,
            shards: Vec::new(),
            state: State::Waiting,
            mismatch: None,
            begun_from: Some(peer),
            members: (0..joiner.world_size).map(|_| None).collect(),
        };
        self.waiting.insert(joiner.name.clone(), job);
        Ok(())
    }

    /// Numbers that no shard has, lowest first.
    fn free_numbers(&self) -> impl DoubleEndedIterator<Item = u16> {
        let used: HashSet<_> =
            self.jobs.values().flat_map(|job| job.shards.iter().copied()).collect();
        (0..self.limits.shards).filter(move |number| !used.contains(number))
    }

    /// Whether the numbers of a saved job, and their slots, are as this table would give them, and
    /// free.
    fn has_room_for(&self, job: &Job) -> bool {
        let free: HashSet<_> = self.free_numbers().collect();
        let is_first = job.shards.first() == Some(&job.number) && job.number < self.limits.max_jobs;
        is_first
            && job.slots_per_shard == self.limits.slots_per_shard
            && job.shards.iter().all(|n| free.contains(n))
    }

    /// Numbers for a job whose ranks all have use for so many data threads: the lowest, and for
    /// threads beyond the first the highest. Those have half of all numbers at most, so that jobs
    /// find one whatever the others took.
    fn numbers(&self, wanted: u32) -> Option<Vec<u16>> {
        let first = self.free_numbers().next().filter(|number| *number < self.limits.max_jobs)?;
        let further: usize = self.jobs.values().map(|job| job.shards.len() - 1).sum();
        let room = usize::from(self.limits.shards / 2).saturating_sub(further);
        let others = self.free_numbers().rev().take_while(|number| *number != first).take(room);
        let others: Vec<_> = others.take(wanted as usize - 1).collect();
        let shards = power_of_two_up_to(1 + others.len() as u32) as usize;
        Some(std::iter::once(first).chain(others).take(shards).collect())
    }

    /// All ranks of the job are there: they are assigned, or all refused.
    fn assign(&mut self, name: &str) -> Vec<Effect> {
        let Some(mut job) = self.waiting.remove(name) else { return Vec::new() };
        let members = job.members.iter_mut().flatten();
        let threads: Vec<_> = members.map(|member| std::mem::take(&mut member.threads)).collect();
        let wanted = threads::common(&threads);
        let Some(shards) = self.numbers(wanted) else { return self.refuse(&job) };
        let (number, epoch) = (shards[0], self.epochs.draw());
        let slots_per_shard = self.limits.slots_per_shard;
        job = Job {
            number,
            shards,
            epoch,
            slots_per_shard,
            state: State::Assigned,
            begun_from: None,
            ..job
        };
        let Some((_, first)) = job.joined().next() else { return Vec::new() };
        let secrets: Vec<_> = job.joined().map(|(_, member)| member.hello_secret).collect();
        let spec = |(number, slots)| JobSpec {
            number,
            epoch,
            secrets: secrets.clone(),
            slots,
            address: first.local,
            group: (group_address(number), GROUP_PORT),
        };
        let specs: Vec<_> = job.slots_of_shards().map(spec).collect();
        let count = specs.len();
        let mut effects = vec![info(format!(
            "job {number} {name:?}: assigned, data threads: {count}, slots of each: \
             {slots_per_shard}"
        ))];
        if (count as u32) < wanted {
            effects.push(info(format!(
                "job {number} {name:?}: {count} data threads, not {wanted}: too few job numbers"
            )));
        }
        for (rank, member) in job.joined() {
            self.streams
                .extend(member.stream().map(|stream| (stream, (JobKey::Assigned(number), rank))));
        }
        let told = job.joined().filter_map(|(_, member)| {
            let assigned = assigned(&self.limits, &specs, member);
            Some(Effect::Tell(member.stream()?, Event::Assigned(assigned)))
        });
        let kept = self.limits.durable.then(|| Effect::KeepEpochs(number, self.epochs.clone()));
        effects.extend(kept);
        effects.extend(specs.iter().cloned().map(Effect::Open));
        effects.extend(told);
        self.jobs.insert(number, job);
        effects
    }

    /// There is no room for the job: its ranks are told so, all at once, and go.
    fn refuse(&mut self, job: &Job) -> Vec<Effect> {
        let Limits { max_jobs, shards, .. } = self.limits;
        let remedy = if shards < max_jobs { ", or start it with more --slots" } else { "" };
        let has = match max_jobs.min(shards) {
            1 => "1 job already; wait for it".to_owned(),
            jobs => format!("{jobs} jobs already; wait for one"),
        };
        let reason = format!("the aggregator has {has} to end{remedy}");
        let log = warn(format!("job {:?}: refused, {reason}", job.name));
        let news = Event::Aborted(control::Aborted { reason, ..control::Aborted::default() });
        let streams: Vec<_> = job.joined().filter_map(|(_, member)| member.stream()).collect();
        for stream in &streams {
            self.streams.remove(stream);
        }
        let told = job.tell_all(&news);
        [log].into_iter().chain(told).chain(streams.into_iter().map(Effect::End)).collect()
    }

    fn tell_missing(&self, name: &str) -> Vec<Effect> {
        let Some(job) = self.waiting.get(name) else { return Vec::new() };
        job.tell_all(&Event::Waiting(control::Waiting { missing_ranks: job.missing() })).collect()
    }

    fn abort(&mut self, number: u16, reason: &str, ranks: Vec<u32>) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        if matches!(job.state, State::Aborted { .. }) {
            return Vec::new();
        }
        let verifies = self.limits.capabilities.contains(Capabilities::CHECKED_MAXIMA);
        // If ranks made different calls, that comes first: what else happens then is likely to be a
        // consequence.
        let aborted = match job.mismatch.take() {
            Some(mismatch) if reason.is_empty() || mismatch.is_certain(verifies) => {
                mismatch.into_event(verifies)
            }
            _ => control::Aborted { reason: reason.to_owned(), ranks, calls: Vec::new() },
        };
        let reason = aborted.reason.chars().take(MAX_SAVED_REASON_LEN).collect();
        job.state = State::Aborted { reason, ranks: aborted.ranks.clone() };
        self.recent_aborts.note(job);
        let log = warn(format!("job {number} {:?}: aborted, {}", job.name, aborted.reason));
        let news = Event::Aborted(aborted);
        let done: Vec<_> = job.on_shards(Effect::Abort).chain(job.tell_all(&news)).collect();
        [log].into_iter().chain(self.save(number)).chain(done).collect()
    }

    /// Ends a job that nobody is in any more.
    fn remove_if_empty(&mut self, number: u16) -> Vec<Effect> {
        let Entry::Occupied(entry) = self.jobs.entry(number) else { return Vec::new() };
        if entry.get().present().next().is_some() {
            return Vec::new();
        }
        let job = entry.remove();
        let log = info(format!("job {number} {:?}: ended", job.name));
        [log].into_iter().chain(job.on_shards(Effect::Close)).collect()
    }
}

fn info(line: String) -> Effect {
    Effect::Log(Level::Info, line)
}

fn warn(line: String) -> Effect {
    Effect::Log(Level::Warn, line)
}

fn check_joiner(joiner: &Joiner, max_ranks: u16) -> Result<(), JoinError> {
    let &Joiner { rank, world_size, .. } = joiner;
    if !(1..=MAX_NAME_LEN).contains(&joiner.name.len()) {
        return Err(JoinError::Name(joiner.name.len()));
    }
    if joiner.threads.host.len() > MAX_HOST_LEN {
        return Err(JoinError::Host(joiner.threads.host.len()));
    }
    if !(1..=max_ranks.into()).contains(&world_size) {
        return Err(JoinError::WorldSize { world_size, max_ranks });
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
        Some(member) => Err(JoinError::DuplicateRank {
            name: joiner.name.clone(),
            rank: joiner.rank,
            from: member.peer,
        }),
        None => Ok(()),
    }
}

/// What a rank is told of its job's shards, of which there is one at least.
fn assigned(limits: &Limits, shards: &[JobSpec], member: &Member) -> control::Assigned {
    let shard = |spec: &JobSpec| {
        let (group_address, group_port) = match limits.fanout {
            Fanout::Multicast => (spec.group.0.to_string(), spec.group.1.into()),
            Fanout::Unicast => (String::new(), 0),
        };
        control::Shard { job: spec.number.into(), group_address, group_port }
    };
    let [first, further @ ..] = shards else { unreachable!("a job has a shard") };
    let control::Shard { job, group_address, group_port } = shard(first);
    control::Assigned {
        job,
        epoch: first.epoch,
        slots: limits.slots_per_shard,
        data_address: first.address.to_string(),
        data_port: limits.port.into(),
        group_address,
        group_port,
        hello_secret: member.hello_secret,
        max_lanes: limits.max_lanes.into(),
        durable: limits.durable,
        capabilities: limits.capabilities.bits(),
        further_shards: further.iter().map(shard).collect(),
        control_secret: member.control_secret,
    }
}

/// The job's multicast group, of those that stay within a site (RFC 2365).
fn group_address(job: u16) -> Ipv4Addr {
    let [high, low] = job.to_be_bytes();
    Ipv4Addr::new(239, 255, high, low)
}

/// What a rank says of its failure, fit for one line of a log.
fn one_line(text: &str) -> String {
    let words =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(MAX_REASON_LEN).collect()
}
