//! The interface between the control plane and a data plane of any kind.

use std::net::IpAddr;

use switchml_protocol::bpf_types::fanout;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::bpf_types::maps::Event;
use switchml_protocol::bpf_types::times::Times;
use switchml_protocol::outcome::Outcome;

pub use crate::job_spec::JobSpec;
use crate::jobs;
pub use crate::limits::{Fanout, Limits};
use crate::oldest_round::{Alike, Progress};

/// Receives a data plane's notable packets. It must return at once, even if it drops the event:
/// events are for people, the counters count every packet.
pub type EventSink = Box<dyn Fn(Event) + Send + Sync>;

/// A data plane as the control plane uses it: it serves the packets of jobs.
pub trait ServesJobs {
    /// Whether these numbers are ready for a job to be opened at once.
    fn is_prepared(&self, _numbers: &[u16]) -> bool {
        true
    }

    /// Allocates whatever these numbers lack. That may take the kernel a while; nothing else waits
    /// for it. Several threads may do so at once, even for the same numbers, or for numbers that no
    /// job has any more.
    fn prepare(&self, _numbers: &[u16]) -> Result<(), Error> {
        Ok(())
    }

    /// Opens a job: its ranks may say HELLO. The job's number is not in use.
    fn open(&self, job: &JobSpec) -> Result<(), Error>;

    /// A rank is below this combiner, in an open job that has a [parent](JobSpec::parent): its
    /// HELLO carries this secret. Nothing if that is known.
    fn admit(&self, job: u16, _rank: u16, _secret: u32) -> Result<(), Error> {
        Err(Error::Refused {
            what: format!("open job {job} below a combiner"),
            why: "this data plane cannot be one".to_owned(),
        })
    }

    /// All ranks of an open job (at a combiner, all ranks below it) have said HELLO, and are about
    /// to contribute. They get RESULTs to all in these ways. Called again when that changes while
    /// the job runs, and at a restarted combiner as ranks come back.
    fn start(&self, job: u16, ways: &[(u16, fanout::Way)]) -> Result<(), Error>;

    /// From now on, contributions to an open job are answered with REJECT. Does nothing if the job
    /// is not open.
    fn abort(&self, job: u16) -> Result<(), Error>;

    /// Ends a job and deletes its saved state; its number and slots may be used again. Does nothing
    /// if the job is not open.
    fn close(&self, job: u16) -> Result<(), Error>;

    /// Name and speed, in bits per second, of the link of an interface that it takes frames from;
    /// `None` if it does not, or the driver does not tell.
    fn link(&self, _interface: u32) -> Option<(String, u64)> {
        None
    }

    /// The place from which the rank of an open job said HELLO, if it did.
    fn binding(&self, job: u16, rank: u16) -> Result<Option<Binding>, Error>;

    /// Keeps a job for the next daemon, atomically; it replaces the job kept under this number.
    fn save(&self, _job: &jobs::Job) -> Result<(), Error> {
        Ok(())
    }

    /// Keeps for the next daemon which epochs are used, before the last of them is.
    fn keep_epochs(&self, _epochs: &jobs::Epochs) -> Result<(), Error> {
        Ok(())
    }
}

/// A data plane: serves packets of the jobs that are opened in it, until it is stopped. One that is
/// not [durable](Limits::durable) ends with this process, too.
pub trait DataPlane: ServesJobs + Send + Sync {
    /// `xdp`, `software`, `tofino` or `bmv2`.
    fn name(&self) -> &'static str;

    /// One line on how packets reach it: interfaces and hooks, or sockets.
    fn attachment(&self) -> String;

    /// The data plane's limits.
    fn limits(&self) -> Limits;

    /// Number of cells, if it is a combiner's data plane.
    fn cells(&self) -> u32 {
        0
    }

    /// Packets by outcome, in the order of [`Outcome::ALL`].
    fn counters(&self) -> Result<[u64; Outcome::COUNT], Error>;

    /// How long rounds took from their first contribution to their last, for a sample: the rounds
    /// of each shard's first slot. `None` if this data plane measures no times.
    fn times(&self) -> Result<Option<Times>, Error> {
        Ok(None)
    }

    /// The progress of an open job's shard, if this data plane shows it. Reads some 20 slots.
    fn progress(&self, _shard: u16) -> Result<Option<Progress>, Error> {
        Ok(None)
    }

    /// The slots of an open job's shard with unfinished rounds, the oldest round first, if this
    /// data plane shows them. Reads all slots of the shard.
    fn unfinished(&self, _shard: u16) -> Result<Option<Vec<Alike>>, Error> {
        Ok(None)
    }

    /// The state that an earlier daemon saved, if there was one. Closes all other jobs that it
    /// left.
    fn saved(&self) -> Result<Option<Saved>, Error> {
        Ok(None)
    }

    /// The interfaces that it takes frames from, as they are now; none if it does not.
    fn ports(&self) -> Vec<PortStatus> {
        Vec::new()
    }

    /// How frames from this address get here; `None` if it takes none from interfaces.
    fn way_from(&self, _peer: IpAddr) -> Option<Way> {
        None
    }

    /// Takes frames from the interfaces with these names from now on, and from no others, if it is
    /// a data plane with interfaces. [`Self::lost_ports`] tells the consequences.
    ///
    /// # Errors
    ///
    /// When the names make no sense; then nothing changes.
    fn serve_interfaces(&self, _names: &[String]) -> Result<(), Error> {
        Ok(())
    }

    /// Checks the interfaces; called twice a second. Returns the ports whose frames no longer reach
    /// the data plane, each once, and attaches to them again where possible.
    fn lost_ports(&self) -> Vec<LostPort> {
        Vec::new()
    }

    /// Whether a job's change waits for a switch, which may take long to answer. The other requests
    /// wait, too.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Ends it, and leaves nothing behind.
    fn stop(&self) {}
}

/// The state that a durable data plane has from an earlier daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Jobs that had started, by number.
    pub jobs: Vec<jobs::Job>,
    /// The epochs that were used.
    pub epochs: jobs::Epochs,
}

/// An interface that a data plane takes frames from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// The port's name.
    pub name: String,
    /// The hook that takes frames, for people.
    pub hook: &'static str,
    /// The problem, if the port takes no frames.
    pub problem: Option<String>,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// An XDP program on the port that is not the data plane's.
    pub foreign: Option<ForeignProgram>,
    /// Id of a program at the port's tc ingress that sees frames before the data plane's.
    pub before: Option<u32>,
    /// Whether the port silently drops frames that native XDP sends out of it.
    pub drops_answers: bool,
    /// The speed of the port's link in bits per second, if there is a link and the driver tells.
    pub link_speed: Option<u64>,
    /// Bytes of the frames that it has received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Frames that it lost or that driver and kernel dropped as they came in.
    pub receive_drops: u64,
    /// Frames that it could not send.
    pub send_drops: u64,
    /// Frames that native XDP sent there, and that the kernel or the driver did not take.
    pub xdp_drops: u64,
}

/// An XDP program that is not the data plane's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignProgram {
    /// The program's id.
    pub id: u32,
    /// Whether the program runs in the network stack, not in the driver.
    pub is_generic: bool,
}

/// How frames from an address get to a data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Name of the interface by which the host reaches the address; `None` if the host has no
    /// route.
    pub interface: Option<String>,
    /// MACs that the data plane answers to.
    pub macs: Vec<[u8; 6]>,
}

/// A port whose frames no longer reach the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPort {
    /// Index of the interface.
    pub index: u32,
    /// What happened to the port, for people.
    pub what: String,
}

/// Why a data plane could not carry out a request.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error(
        "the data plane serves {served}, not {address}, by which ranks reached the control plane; \
         connect to an address that is served, or start the aggregator with --data-address"
    )]
    NotServed { address: IpAddr, served: String },
    #[error("{what}: {why}")]
    Refused { what: String, why: String },
}
