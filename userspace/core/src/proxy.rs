//! A combiner's control plane: a proxy of its parent's. Rules 27.15 to 27.20 of `docs/spec`.
//! Without I/O: requests and events in, [`Effect`]s out.
//!
//! Each stream from below has a separate stream to the parent. The combiner learns of a job from
//! the Assigned events of the ranks below, one by one. It may forget everything: ranks that resume
//! bring the job back.

mod job;
mod plane;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_protocol::VERSION;
use switchml_protocol::bpf_types::fanout::Way;

use crate::control_plane::RESUME_GRACE;
use crate::job_spec::JobSpec;
use crate::jobs::{Level, MemberId, StreamId, how_lost};
use crate::limits::Limits;
use crate::version::{self, OtherVersion};
use job::Job;
pub use plane::{Io, on_timer, perform};

/// How often to check whether ranks have said HELLO again, after this combiner was restarted.
const LOOK: Duration = Duration::from_millis(20);

/// An action for the caller, to be carried out in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Open a shard in the data plane.
    Open(JobSpec),
    /// Admit this rank, with this HELLO secret, to a shard.
    Admit(u16, u16, u32),
    /// Have the data plane send a shard's RESULTs to all in these ways.
    Start(u16, Vec<(u16, Way)>),
    /// Close a shard.
    Close(u16),
    /// Send the event to a rank below.
    Tell(StreamId, Event),
    /// End a stream to below.
    End(StreamId),
    /// End a stream to below as if its connection broke, for this reason.
    Break(StreamId, String),
    /// Tell the parent that the rank of this stream was lost; then do as for [`Effect::HangUp`].
    Lose(StreamId, control::LeaveRequest),
    /// End the stream to the parent that belongs to this stream.
    HangUp(StreamId),
    /// Call [`Proxy::on_timer`] with the timer after this time.
    Schedule(Duration, Timer),
    /// Log a line.
    Log(Level, String),
}

/// A timer's action, about a job and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Check which ranks are bound by now.
    Look(u16, u32),
    /// Forget the job if no rank has come back since the parent was lost.
    Forget(u16, u32),
}

/// Why a combiner itself refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Refused {
    #[error(
        "combiners in a circle: {0}; give one of them a --parent that leads to the root, or none"
    )]
    Circle(String),
    #[error(
        "contributions cannot be sent to {0}, which is a link-local address; connect to another \
         address of the combiner, or start it with --data-address"
    )]
    LinkLocal(IpAddr),
    #[error(transparent)]
    Version(#[from] OtherVersion),
    #[error("rank {0} with that epoch and secret is not below this combiner")]
    NoMember(u32),
}

/// The two ends of the connection by which a request from below came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The address of the other end.
    pub peer: IpAddr,
    /// The address of this end.
    pub local: IpAddr,
}

/// A combiner's control plane.
#[derive(Debug)]
pub struct Proxy {
    /// Random id of this daemon, which distinguishes it from all others.
    id: u64,
    /// Name of this daemon's host.
    name: String,
    /// The parent's address, for people.
    parent: String,
    limits: Limits,
    /// The address that ranks send to, if it is not the one that they joined by.
    data_address: Option<IpAddr>,
    streams: BTreeMap<StreamId, Below>,
    next_stream: StreamId,
    /// The jobs, by number.
    jobs: BTreeMap<u16, Job>,
}

/// A stream from below.
#[derive(Clone, Debug)]
struct Below {
    /// Name of the job that it joins; empty if it resumes.
    name: String,
    rank: u32,
    local: IpAddr,
    /// The combiner that the stream comes from, if it comes from one.
    combiner: Option<String>,
    /// The member's id, once it is assigned.
    member: Option<MemberId>,
    /// Whether the rank has left.
    is_leaving: bool,
}

impl Below {
    /// Whether the rank joins, and does not resume.
    const fn joins(&self) -> bool {
        !self.name.is_empty()
    }
}

impl Proxy {
    /// The proxy of a data plane with these limits, with 64 random bits, its host's name and its
    /// parent, as people know it.
    pub fn new(
        limits: Limits,
        data_address: Option<IpAddr>,
        id: u64,
        name: String,
        parent: String,
    ) -> Self {
        Self {
            id,
            name,
            parent,
            limits,
            data_address,
            streams: BTreeMap::new(),
            next_stream: StreamId::FIRST,
            jobs: BTreeMap::new(),
        }
    }

    /// A rank joins. Returns its stream, and the request for the parent, whose answers go to
    /// [`Proxy::hear`] and [`Proxy::lose_parent`].
    ///
    /// # Errors
    ///
    /// [`Refused`]; nothing has changed.
    pub fn join(
        &mut self,
        mut request: control::JoinRequest,
        ends: Ends,
    ) -> Result<(StreamId, control::JoinRequest), Refused> {
        version::check(&request, ends.peer)?;
        let below = self.below(&mut request.via, request.rank, &request.job_name, ends)?;
        Ok((self.open(below), request))
    }

    /// A rank comes back. As [`Proxy::join`].
    ///
    /// # Errors
    ///
    /// [`Refused`]; nothing has changed.
    pub fn resume(
        &mut self,
        mut request: control::ResumeRequest,
        ends: Ends,
    ) -> Result<(StreamId, control::ResumeRequest), Refused> {
        let id = request.member.unwrap_or_default();
        let below = self.below(&mut request.via, id.rank, "", ends)?;
        let number = u16::try_from(id.job).ok();
        let job = number.and_then(|number| self.jobs.get_mut(&number));
        if let Some(job) = job.filter(|job| job.epoch == id.epoch) {
            job.was_asked_for = true;
        }
        Ok((self.open(below), request))
    }

    fn below(
        &self,
        via: &mut Vec<control::Combiner>,
        rank: u32,
        name: &str,
        Ends { peer, local }: Ends,
    ) -> Result<Below, Refused> {
        let local = self.data_address.unwrap_or(local);
        if matches!(local, IpAddr::V6(local) if local.is_unicast_link_local()) {
            return Err(Refused::LinkLocal(local));
        }
        let in_words =
            |combiner: &control::Combiner| format!("{} at {}", combiner.name, combiner.address);
        let combiner = via.last().map(in_words);
        let is_circle = via.iter().any(|combiner| combiner.id == self.id);
        via.push(control::Combiner {
            id: self.id,
            name: self.name.clone(),
            address: local.to_string(),
            peer: peer.to_string(),
            protocol_version: VERSION.into(),
        });
        if is_circle {
            let circle: Vec<_> = via.iter().map(in_words).collect();
            return Err(Refused::Circle(circle.join(", then ")));
        }
        let name = name.to_owned();
        Ok(Below { name, rank, local, combiner, member: None, is_leaving: false })
    }

    fn open(&mut self, below: Below) -> StreamId {
        let stream = self.next_stream.take();
        self.streams.insert(stream, below);
        stream
    }

    /// The parent says something to a rank.
    pub fn hear(&mut self, stream: StreamId, event: Event) -> Vec<Effect> {
        if !self.streams.contains_key(&stream) {
            return Vec::new();
        }
        match event {
            Event::Assigned(assigned) => self.assign(stream, assigned),
            Event::Started(started) => {
                let mut effects = self.start(stream);
                effects.push(Effect::Tell(stream, Event::Started(started)));
                effects
            }
            event => vec![Effect::Tell(stream, event)],
        }
    }

    /// The stream to the parent has ended, normally or for the reason `why`.
    pub fn lose_parent(&mut self, stream: StreamId, why: Option<&str>) -> Vec<Effect> {
        let Some(below) = self.streams.remove(&stream) else { return Vec::new() };
        let job = below.member.and_then(|member| self.jobs.get(&(member.job as u16)));
        let outlives_it = job.is_none_or(|job| job.is_durable);
        let mut effects = match why {
            None => vec![Effect::End(stream)],
            Some(why) if outlives_it => {
                let parent = &self.parent;
                vec![Effect::Break(stream, format!("its parent at {parent} is gone: {why}"))]
            }
            Some(why) => {
                let Self { name, parent, .. } = self;
                let reason = format!(
                    "the aggregator at {parent}, the parent of combiner {name} at {}, went away \
                     ({why})",
                    below.local
                );
                let aborted = control::Aborted { reason, ..control::Aborted::default() };
                vec![Effect::Tell(stream, Event::Aborted(aborted)), Effect::End(stream)]
            }
        };
        let may_come_back = why.is_some() && outlives_it;
        effects.extend(self.forget_member(stream, &below, may_come_back));
        effects
    }

    /// A rank's stream has ended, after its connection was silent for this long.
    pub fn disconnect(&mut self, stream: StreamId, silence: Duration) -> Vec<Effect> {
        let Some(below) = self.streams.remove(&stream) else { return Vec::new() };
        let mut effects = match below.member.filter(|_| !below.is_leaving) {
            None => vec![Effect::HangUp(stream)],
            Some(id) => {
                let lost = how_lost(silence);
                let combiner = below.combiner.clone().unwrap_or_default();
                let log = format!("job {}: rank {} {lost}", id.job, id.rank);
                let request = control::LeaveRequest {
                    member: Some(id),
                    lost,
                    lost_combiner: combiner,
                    ..control::LeaveRequest::default()
                };
                vec![Effect::Log(Level::Warn, log), Effect::Lose(stream, request)]
            }
        };
        effects.extend(self.forget_member(stream, &below, false));
        effects
    }

    /// A scheduled timer is due; `bound` are the job's ranks that have said HELLO in all shards.
    pub fn on_timer(&mut self, timer: Timer, bound: &[u16]) -> Vec<Effect> {
        let (Timer::Look(number, epoch) | Timer::Forget(number, epoch)) = timer;
        let Some(job) = self.jobs.get_mut(&number).filter(|job| job.epoch == epoch) else {
            return Vec::new();
        };
        match timer {
            Timer::Look(..) => job.look(number, bound),
            Timer::Forget(..) if job.has_streams() => Vec::new(),
            Timer::Forget(..) if std::mem::take(&mut job.was_asked_for) => {
                vec![Effect::Schedule(2 * RESUME_GRACE, timer)]
            }
            Timer::Forget(..) => self.close(number),
        }
    }

    /// A job's shards and its ranks below.
    pub fn ranks(&self, number: u16) -> Option<(&[u16], impl Iterator<Item = u16>)> {
        let job = self.jobs.get(&number)?;
        Some((&job.shards, job.ranks.keys().copied()))
    }

    /// A rank is ready; only this combiner needs to know whether it needs copies, and whether it
    /// reads those of a taker (rule 27.17).
    pub fn ready(&mut self, id: MemberId, needs_copies: bool, taker: Option<u16>) {
        if let Some(member) = self.member_mut(id) {
            member.taker = taker;
            if needs_copies {
                member.avoid_group();
            }
        }
    }

    /// A rank gets no results by multicast.
    pub fn report_no_multicast(&mut self, id: MemberId) -> Result<Vec<Effect>, Refused> {
        let member = self.member_mut(id).ok_or(Refused::NoMember(id.rank))?;
        member.avoid_group();
        let number = id.job as u16;
        Ok(self.jobs.get(&number).map(|job| job.starts()).unwrap_or_default())
    }

    /// A rank says goodbye to the parent.
    pub fn leave(&mut self, id: MemberId) {
        let stream = self.stream_of(id);
        if let Some(below) = stream.and_then(|stream| self.streams.get_mut(&stream)) {
            below.is_leaving = true;
        }
    }

    /// The stream of a rank that proves to be itself.
    pub fn stream_of(&self, id: MemberId) -> Option<StreamId> {
        self.member(id)?.stream
    }

    /// The first shard of a rank's job, if the rank's secret is right.
    pub fn shard_of(&self, id: MemberId) -> Result<u16, Refused> {
        self.member(id).map(|_| id.job as u16).ok_or(Refused::NoMember(id.rank))
    }

    /// The data plane failed a rank's job: its parent is told so, and the rank.
    pub fn fail(&mut self, stream: StreamId, error: &str) -> Vec<Effect> {
        let Some(below) = self.streams.remove(&stream) else { return Vec::new() };
        let reason = format!("combiner {} at {} failed: {error}", self.name, below.local);
        let aborted = control::Aborted { reason: reason.clone(), ..Default::default() };
        let mut effects = vec![
            Effect::Log(Level::Error, reason.clone()),
            Effect::Tell(stream, Event::Aborted(aborted)),
            Effect::End(stream),
        ];
        effects.push(match below.member {
            None => Effect::HangUp(stream),
            Some(id) => {
                let request = control::LeaveRequest {
                    member: Some(id),
                    error: reason,
                    ..control::LeaveRequest::default()
                };
                Effect::Lose(stream, request)
            }
        });
        effects.extend(self.forget_member(stream, &below, false));
        effects
    }

    /// The daemon stops: all streams end, and the parent hears who is lost.
    pub fn shut_down(&mut self) -> Vec<Effect> {
        let streams: Vec<_> = self.streams.keys().copied().collect();
        let stop = |stream| self.fail(stream, "it stops");
        streams.into_iter().flat_map(stop).collect()
    }

    /// Corrects the status of jobs where this combiner knows more than its parent.
    pub fn describe(&self, jobs: &mut [control::JobStatus]) {
        for status in jobs {
            let Some(job) = self.jobs.get(&(status.job as u16)) else { continue };
            if !status.shards.is_empty() {
                job.describe(&mut status.members);
            }
        }
    }
}
