//! One job: its members, and what is to be told to them.

use std::{net::IpAddr, net::Ipv4Addr, ops::Range};

use switchml_control as control;

use super::{Effect, Session};

/// How far a job has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Ranks are missing.
    Waiting,
    /// All ranks are there, and open their data paths.
    Assigned,
    /// All ranks are ready, and contribute chunks of this many lanes.
    Started { lanes: u16 },
    /// A rank failed.
    Aborted,
}

impl State {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting for other ranks",
            Self::Assigned => "waiting for ranks to be ready",
            Self::Started { .. } => "started already",
            Self::Aborted => "aborted",
        }
    }
}

/// A rank that joined.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) session: Session,
    /// Where its control connection comes from.
    pub(super) peer: IpAddr,
    /// The address by which it reached the daemon.
    pub(super) local: Ipv4Addr,
    pub(super) secret: u32,
    /// Most lanes that its path carries, once it is ready.
    pub(super) ready: Option<u16>,
    /// False once it has left, or its stream has ended.
    pub(super) here: bool,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) number: u16,
    pub(super) name: String,
    pub(super) epoch: u32,
    pub(super) slots: Range<u32>,
    pub(super) state: State,
    /// By rank; as many as the world size.
    pub(super) members: Vec<Option<Member>>,
}

impl Job {
    pub(super) fn world_size(&self) -> usize {
        self.members.len()
    }

    /// Whether the job takes no more ranks: one of its own is gone.
    pub(super) fn is_ending(&self) -> bool {
        self.state == State::Aborted || self.joined().any(|(_, member)| !member.here)
    }

    pub(super) fn joined(&self) -> impl Iterator<Item = (u32, &Member)> {
        (0..).zip(&self.members).filter_map(|(rank, member)| Some((rank, member.as_ref()?)))
    }

    pub(super) fn present(&self) -> impl Iterator<Item = (u32, &Member)> {
        self.joined().filter(|(_, member)| member.here)
    }

    pub(super) fn missing(&self) -> Vec<u32> {
        (0..).zip(&self.members).filter(|(_, member)| member.is_none()).map(|(rank, _)| rank).collect()
    }

    /// The smallest number of lanes that any rank is ready for, once all are.
    pub(super) fn common_lanes(&self) -> Option<u16> {
        self.members.iter().map(|member| member.as_ref()?.ready).min()?
    }

    /// Tells every rank that is present the same.
    pub(super) fn tell_all(&self, event: &control::join_event::Event) -> impl Iterator<Item = Effect> {
        self.present().map(move |(_, member)| Effect::Tell(member.session, event.clone()))
    }

    /// The job as operators see it.
    pub(super) fn describe(&self) -> control::Job {
        let (state, lanes) = match self.state {
            State::Waiting => (control::JobState::Waiting, 0),
            State::Assigned => (control::JobState::Assigned, 0),
            State::Started { lanes } => (control::JobState::Started, lanes),
            State::Aborted => (control::JobState::Aborted, 0),
        };
        let members = self.joined().map(|(rank, member)| control::Member {
            rank,
            address: member.peer.to_string(),
            ready: member.ready.is_some(),
            left: !member.here,
        });
        control::Job {
            name: self.name.clone(),
            job: self.number.into(),
            epoch: self.epoch,
            world_size: self.world_size() as u32,
            state: state.into(),
            first_slot: self.slots.start,
            slots: self.slots.end - self.slots.start,
            lanes: lanes.into(),
            members: members.collect(),
        }
    }
}
