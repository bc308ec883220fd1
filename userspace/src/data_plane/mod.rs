//! What the control plane asks of a data plane, whichever it is.

use std::{net::Ipv4Addr, ops::Range};

use switchml_protocol::U16;
use switchml_protocol::job::{Job, Place};
use switchml_protocol::maps::Event;
use switchml_protocol::outcome::Outcome;
use tokio::sync::mpsc;

pub mod software;
mod worker_thread;
pub mod xdp;

/// Notable packets, from the data plane to whoever logs them. What the channel has no room for is dropped: events are
/// for people, the counters count.
pub type EventSender = mpsc::Sender<Event>;

/// A data plane: serves packets of the jobs that are opened in it, until it is dropped.
pub trait DataPlane: Send + Sync {
    /// `xdp` or `software`.
    fn name(&self) -> &'static str;

    /// One line on how packets reach it: interfaces and hooks, or sockets.
    fn attachment(&self) -> String;

    /// What it has to offer.
    fn limits(&self) -> Limits;

    /// Opens a job: its ranks may say HELLO. The job's number is not in use.
    ///
    /// # Errors
    ///
    /// When the data plane does not serve the job's address, or the kernel refuses.
    fn open(&self, job: &JobSpec) -> Result<(), Error>;

    /// All ranks of an open job have said HELLO, and are about to contribute.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn start(&self, job: u16) -> Result<(), Error>;

    /// From now on, contributions to an open job are answered with REJECT. Nothing if the job is not open.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn abort(&self, job: u16) -> Result<(), Error>;

    /// Ends a job; its number and slots may be used again. Nothing if the job is not open.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn close(&self, job: u16) -> Result<(), Error>;

    /// Where the rank of an open job said HELLO from, if it did.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn place(&self, job: u16, rank: u16) -> Result<Option<Place>, Error>;

    /// Packets by outcome, in the order of [`Outcome::ALL`].
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn counters(&self) -> Result<[u64; Outcome::COUNT], Error>;
}

/// Why a data plane could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Workers reached the control plane by an address whose packets the data plane does not see.
    #[error(
        "the data plane serves {served}, not {address}, by which rank 0 reached the control plane; \
         connect to an address that is served, or start the aggregator with --data-address"
    )]
    NotServed {
        /// The job's address.
        address: Ipv4Addr,
        /// Those that are served.
        served: String,
    },
    /// The kernel refused.
    #[error("{what}: {why}")]
    Refused {
        /// What was tried.
        what: String,
        /// What the kernel says.
        why: String,
    },
}

/// What a data plane has to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slots in its pool.
    pub slots: u32,
    /// Most lanes in a packet.
    pub max_lanes: u16,
    /// UDP port that it serves.
    pub port: u16,
    /// How a RESULT for all reaches them.
    pub fanout: Fanout,
}

/// How a RESULT for all reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// As one frame to the job's multicast group.
    Multicast,
    /// As a copy for each rank, sent to its place.
    Unicast,
}

/// A job, as the data plane needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Number of the job.
    pub number: u16,
    /// Its epoch, never 0.
    pub epoch: u32,
    /// What each rank's HELLO must carry, by rank; 1 to 64 of them.
    pub secrets: Vec<u32>,
    /// Its slots in the pool.
    pub slots: Range<u32>,
    /// Where its workers send to.
    pub address: Ipv4Addr,
    /// Multicast group of a RESULT for all, and its UDP port; unused where the fan-out is unicast.
    pub group: (Ipv4Addr, u16),
}

impl JobSpec {
    /// The job's entry in the data plane's table, in the given state.
    pub fn entry(&self, state: u32) -> Job {
        Job {
            state,
            epoch: self.epoch,
            ranks: self.secrets.len() as u32,
            first_slot: self.slots.start,
            slots: self.slots.end - self.slots.start,
            address: self.address.octets(),
            group: self.group.0.octets(),
            group_port: U16::new(self.group.1),
            reserved: [0; 2],
        }
    }
}
