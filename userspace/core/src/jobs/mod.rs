//! The job table: which ranks are present, and the consequences. Without I/O: requests in,
//! [`Effect`]s out.
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
//! and gives them back when the last is gone; a waiting job has none of them. Ranks of an aborted
//! job may linger; a rank that joins under its name meanwhile starts a new job, with a new epoch.
//!
//! Over a durable data plane a job that has started outlives the daemon: each change of it is saved
//! ([`Effect::Save`]) before its other effects. The next daemon's table restores the job
//! ([`JobTable::restore`]), its ranks come back ([`JobTable::resume`]), and ranks that do not are
//! taken for dead ([`JobTable::expire`]).
//!
//! The modules follow a rank's life: `joining`, within its tenant's `quota`, `assignment`,
//! `starting`, `reports` while it runs, and `ending`; `restart` is the daemon's.

mod assignment;
mod cut;
mod ending;
mod epochs;
mod error;
mod job;
mod joining;
mod lately;
mod mismatch;
mod paths;
mod quota;
mod rack;
mod recent_aborts;
mod reports;
mod restart;
mod round_trips;
mod slow;
mod starting;
mod stripe;
mod tally;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::capabilities::Capabilities;

use crate::job_spec::JobSpec;
use crate::limits::Limits;
use crate::rate::Rate;
pub use assignment::GROUP_PORT;
pub(crate) use assignment::group;
pub use cut::PING_TIMEOUT;
pub(crate) use cut::how_lost;
pub use epochs::Epochs;
pub use error::{JoinError, MemberError, Resource};
pub use job::{Job, MAX_SAVED_LEN};
pub use joining::Joiner;
pub use lately::Ended;
use lately::Lately;
pub use mismatch::GATHERING;
pub use quota::{Quota, Quotas, Used};
pub use rack::Origin;
pub(crate) use rack::in_words;
use recent_aborts::RecentAborts;
use round_trips::RoundTrips;
pub use stripe::{Link, Stripe};
pub use switchml_control::{MAX_NAME_LEN, MemberId};
pub use tally::Tally;
pub use threads::Threads;

/// Longest name of a host, in bytes: a boot id has 36.
pub const MAX_HOST_LEN: usize = 64;
/// Longest name of a tenant, in bytes.
pub const MAX_TENANT_LEN: usize = 64;
/// Most jobs that wait for ranks; each costs a few KB of memory.
pub const MAX_WAITING: usize = 4096;
/// Most waiting jobs whose first rank came from the same host, so that one host cannot keep all
/// others out.
pub const MAX_WAITING_OF_HOST: usize = 256;
/// Longest text that a failing rank may give to the others, in characters.
const MAX_REASON_LEN: usize = 500;

/// A rank's stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(u64);

impl StreamId {
    /// The first stream.
    pub(crate) const FIRST: Self = Self(0);

    /// Returns this id, and advances to the next.
    pub(crate) const fn take(&mut self) -> Self {
        let Self(number) = *self;
        self.0 += 1;
        Self(number)
    }
}

/// An action for the caller, to be carried out in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Have the data plane keep for the next daemon that the job of this number uses the last of
    /// these epochs.
    KeepEpochs(u16, Epochs),
    /// Open the job in the data plane.
    Open(JobSpec),
    /// Tell the data plane that all ranks of the job are ready, and how each gets RESULTs to all.
    Start(u16, Vec<(u16, Way)>),
    /// Abort the job in the data plane.
    Abort(u16),
    /// Close the job in the data plane, which keeps nothing of it.
    Close(u16),
    /// Have the data plane keep the job for the next daemon, replacing its earlier state.
    Save(Box<Job>),
    /// Send the event to a rank.
    Tell(StreamId, Event),
    /// End a rank's stream.
    End(StreamId),
    /// Call [`JobTable::conclude`] with the job and its epoch when [`GATHERING`] is over.
    Gather(u16, u32),
    /// Call [`JobTable::give_up_on`] with this stream, whose combiner was lost, when the rank's
    /// time to come back is over.
    Await(StreamId),
    /// Log a line.
    Log(Level, String),
}

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Normal operation.
    Info,
    /// A job that did not end well.
    Warn,
    /// The daemon itself could not do something.
    Error,
}

/// Which job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JobKey {
    /// A job that waits under this name.
    Waiting(String),
    /// A job with this number.
    Assigned(u16),
}

/// All jobs.
#[derive(Debug)]
pub struct JobTable {
    limits: Limits,
    /// The address that workers send to, if it is not the one that they joined by.
    data_address: Option<IpAddr>,
    quotas: Quotas,
    /// The joins of each tenant whose joins are bounded.
    joins: BTreeMap<String, Rate>,
    /// The aggregator, for ranks whose jobs have several.
    id: u64,
    /// Whether packets of new jobs have tags.
    has_tags: bool,
    /// Whether the log has warned that jobs without tags are open to forged packets.
    has_warned_of_forgery: bool,
    tally: Tally,
    lately: Lately,
    rng: StdRng,
    /// Jobs that wait for ranks, by name.
    waiting: BTreeMap<String, Job>,
    /// All others, by number.
    jobs: BTreeMap<u16, Job>,
    /// The job and rank of each open stream.
    streams: BTreeMap<StreamId, (JobKey, u32)>,
    recent_aborts: RecentAborts,
    /// Numbers and epochs of restored jobs, as long as their ranks may come back.
    restored: Vec<(u16, u32)>,
    round_trips: RoundTrips,
    next_stream: StreamId,
    epochs: Epochs,
}

/// The hosts that contribute to a job.
pub struct Contributors<'a> {
    /// The job's name.
    pub job: &'a str,
    /// For each host the port that it is behind.
    pub ports: Vec<u32>,
    /// Bits per second of the slowest link of a host, if all are known.
    pub link: Option<u64>,
}

impl JobTable {
    /// A table without jobs, over a data plane's pool.
    pub fn new(limits: Limits, data_address: Option<IpAddr>, mut rng: StdRng) -> Self {
        Self {
            limits,
            data_address,
            quotas: Quotas::default(),
            joins: BTreeMap::new(),
            has_tags: false,
            has_warned_of_forgery: false,
            tally: Tally::default(),
            lately: Lately::default(),
            epochs: Epochs::new(&mut rng),
            id: rng.next_u64(),
            rng,
            waiting: BTreeMap::new(),
            jobs: BTreeMap::new(),
            streams: BTreeMap::new(),
            recent_aborts: RecentAborts::default(),
            restored: Vec::new(),
            round_trips: RoundTrips::default(),
            next_stream: StreamId::FIRST,
        }
    }

    /// Gives the packets of new jobs tags (section 28).
    pub fn with_tags(mut self) -> Self {
        self.has_tags = true;
        self
    }

    /// All jobs: by number, then those that wait, by name.
    pub fn list(&self) -> Vec<control::JobStatus> {
        self.list_with_ages(|_| Duration::ZERO)
    }

    /// All jobs as in [`Self::list`], with the ages of streams.
    pub fn list_with_ages(&self, age: impl Fn(StreamId) -> Duration) -> Vec<control::JobStatus> {
        self.jobs
            .values()
            .chain(self.waiting.values())
            .map(|job| job.describe(&self.limits, &age))
            .collect()
    }

    /// Whether a job with this name waits for ranks.
    pub fn is_waiting(&self, name: &str) -> bool {
        self.waiting.contains_key(name)
    }

    /// Whether the job with this number and epoch is assigned, and its ranks are not all ready yet.
    pub(crate) fn is_assigned(&self, number: u16, epoch: u32) -> bool {
        let job = self.jobs.get(&number).filter(|job| job.epoch == epoch);
        job.is_some_and(|job| job.state == job::State::Assigned)
    }

    /// The numbers of jobs so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The jobs that have started and go on.
    pub fn running(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().filter(|job| matches!(job.state, job::State::Started { .. }))
    }

    /// The shards of a member's job, in order.
    pub fn shards(&self, id: MemberId) -> Result<&[u16], MemberError> {
        self.find(id).map(|job| job.shards.as_slice())
    }

    /// Who contributes to a member's job; `None` if combiners contribute for some ranks, or other
    /// aggregators add up parts. The ranks of a host add up first, except with tags.
    pub fn contributors(&self, id: MemberId) -> Option<Contributors<'_>> {
        let job = self.find(id).ok();
        let job = job.filter(|job| !job.has_combiners() && job.stripe.aggregators == 1)?;
        let adds_up = job.features(&self.limits).used().contains(Capabilities::PARTIAL_SUMS);
        let places = job.present().map(|(rank, member)| {
            (member.peer, (!adds_up).then_some(rank), member.ports.first().copied())
        });
        let places: BTreeSet<_> = places.collect();
        let link = job.present().map(|(_, member)| member.link.of_rank).min();
        Some(Contributors {
            job: &job.name,
            ports: places.into_iter().filter_map(|(.., port)| port).collect(),
            link: link.filter(|link| *link > 0),
        })
    }

    /// The job of this member, if the member is present and its secret is right.
    fn find(&self, id: MemberId) -> Result<&Job, MemberError> {
        let number = u16::try_from(id.job).ok();
        let job = number.and_then(|number| self.jobs.get(&number)).filter(|job| job.has_member(id));
        job.ok_or(MemberError::NoMember { job: id.job, rank: id.rank })
    }

    /// [`Self::find`], for changes to the job.
    fn job_of(&mut self, id: MemberId) -> Result<&mut Job, MemberError> {
        let number = self.find(id)?.number;
        self.jobs.get_mut(&number).ok_or(MemberError::NoMember { job: id.job, rank: id.rank })
    }
}

fn info(line: String) -> Effect {
    Effect::Log(Level::Info, line)
}

fn warn(line: String) -> Effect {
    Effect::Log(Level::Warn, line)
}

/// A rank's description of its failure, made fit for one line of a log.
fn one_line(text: &str) -> String {
    let words =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(MAX_REASON_LEN).collect()
}
