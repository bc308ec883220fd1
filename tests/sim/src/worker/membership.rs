//! A rank's membership in a job at one aggregator: its session, its connection, its paths.

use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::jobs::MemberId;
use switchml_worker_core::data_path::Others;
use switchml_worker_core::engine::{Failure, Identity};
use switchml_worker_core::hello::{Hello, OpenPath};
use switchml_worker_core::session::Session;
use switchml_worker_core::stripes::Links;

use crate::hosts::Shared;
use crate::net::{Connection, port_of, shard_at};
use crate::oracle::{SessionKey, Standing};

/// See the module.
pub(super) struct Membership {
    pub aggregator: usize,
    pub role: Role,
    pub session: Session,
    pub connection: Option<Connection>,
    /// Requests without an answer on this connection.
    pub unanswered: u32,
    pub assigned: Option<Assigned>,
    pub path: Path,
    /// Number of the rank's sockets before these, which differ in their ports.
    pub sockets: u16,
    /// The memory of this host's ranks, and the rank's place there, once it has met them.
    pub met: Option<(Shared, usize)>,
    /// Lanes of the job's chunks, once the job has started here.
    pub started: Option<u16>,
    /// Whether the rank has reported that it hears no group.
    pub hears_no_group: bool,
    /// The rank whose copies of results it reads.
    pub taker: Option<u16>,
    /// Why the data path has failed, while the rank asks for the reason.
    pub failure: Option<(Failure, Standing)>,
}

/// What a membership is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It serves this stripe.
    Serves(usize),
    /// This stripe is about to move there.
    Awaits(usize),
    /// It is left.
    Leaves,
}

/// The way to the aggregator.
pub(super) enum Path {
    /// The rank has not been let in.
    Closed,
    /// The rank may open it.
    Wanted,
    /// The rank opens the path of each shard, one after another; these are open.
    Greeting { hello: Box<Hello>, open: Vec<OpenPath> },
    /// The paths of all shards are open.
    Open(Vec<OpenPath>),
}

/// The daemon's assignments.
#[derive(Clone)]
pub(super) struct Assigned {
    /// The rank in the first shard.
    pub identity: Identity,
    /// The job numbers of all shards.
    pub shards: Vec<u16>,
    pub slots: u16,
    pub max_lanes: u16,
    pub capabilities: Capabilities,
    pub hello_secret: u32,
    pub control_secret: u64,
    /// The aggregator's number for rule 36.2.
    pub number: u64,
    /// What the job's ranks name it with at another aggregator.
    pub move_secret: u64,
    pub links: Links,
}

impl Assigned {
    /// The rank in a shard.
    pub fn identity(&self, shard: usize) -> Identity {
        Identity { job: self.shards[shard], ..self.identity }
    }
}

impl Membership {
    /// A membership that begins, with sockets of this number.
    pub fn new(aggregator: usize, role: Role, session: Session, sockets: u16) -> Self {
        Self {
            aggregator,
            role,
            session,
            connection: None,
            unanswered: 0,
            assigned: None,
            path: Path::Closed,
            sockets,
            met: None,
            started: None,
            hears_no_group: false,
            taker: None,
            failure: None,
        }
    }

    /// The session's epoch, once the rank has been let in.
    pub fn key(&self) -> Option<SessionKey> {
        self.assigned.as_ref().map(|assigned| assigned.identity.epoch)
    }

    /// The rank's identity in messages; before it is assigned, that of no member.
    pub fn member(&self, rank: u16) -> MemberId {
        let rank = rank.into();
        match self.assigned {
            Some(Assigned {
                identity: Identity { job, epoch, .. },
                control_secret: secret,
                ..
            }) => MemberId { job: job.into(), epoch, rank, secret },
            None => MemberId { job: 0, epoch: 0, rank, secret: 0 },
        }
    }

    /// What the control plane knows of other ranks, if another aggregator can or cannot go on.
    pub fn others(&self, may_move: bool) -> Others {
        let are_watched = may_move || self.session.is_watched();
        Others { departed: self.session.departed(), are_watched, stand_still: false }
    }

    /// Lanes of the largest chunk that passes on all of its paths.
    pub fn lanes(&self) -> u16 {
        let Path::Open(open) = &self.path else { return 0 };
        open.iter().map(|path| path.lanes).min().unwrap_or_default()
    }

    /// Whether the rank needs its own copies of results.
    pub fn needs_copies(&self) -> bool {
        let Path::Open(open) = &self.path else { return false };
        open.iter().any(|path| path.hears_group == Some(false))
    }

    /// Has the rank read results of the first rank of its host, like `Meeting::enter`, if it may
    /// not get them by a group. Returns that rank.
    pub fn read_along(&self, worker: usize) -> Option<u16> {
        let (shared, place) = self.met.as_ref()?;
        let capabilities = self.assigned.as_ref()?.capabilities;
        let may_hear_group = capabilities.contains(Capabilities::GROUP_HELLOS);
        if *place == 0 || may_hear_group && !self.needs_copies() {
            return None;
        }
        shared.borrow_mut().readers.push(worker);
        shared.borrow().ranks.first().copied()
    }

    /// The shard whose socket has this port, on the rank that is at a place on its host.
    pub fn shard_at(&self, place: usize, port: u16) -> Option<usize> {
        let shard = shard_at(port);
        let is_own = port == port_of(place, shard, self.sockets) && self.role != Role::Leaves;
        is_own.then_some(shard)
    }
}
