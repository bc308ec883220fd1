//! Errors of the library, in one line each.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use switchml_control::rank_list;
use switchml_worker_core::engine::Failure;
use switchml_worker_core::numerics::NumericsError;

use crate::control;
use crate::files;

/// Who adds up a part of a job: an aggregator, or a rank that brings one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its data plane.
    pub address: SocketAddr,
    /// The rank in whose process it is, if ranks serve each other.
    pub rank: Option<u16>,
}

impl From<SocketAddr> for Server {
    fn from(address: SocketAddr) -> Self {
        Self { address, rank: None }
    }
}

impl Server {
    /// Its name where its packets are meant: an address.
    fn place(&self) -> String {
        self.rank.map_or_else(|| self.address.to_string(), |_| self.to_string())
    }

    /// What must pass to it.
    fn ports(&self, port: u16) -> String {
        match self.rank {
            None => format!("UDP port {port} passes both ways"),
            Some(_) => "all UDP ports pass both ways between the hosts of ranks".to_owned(),
        }
    }

    /// Where the reason of an abort is told.
    fn log(&self) -> String {
        match self.rank {
            None => format!("the log of {self} says why"),
            Some(_) => format!("{self} did not say why: see what ranks said last"),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            None => write!(f, "the aggregator at {}", self.address),
            // Its port is one that was free.
            Some(rank) => write!(f, "rank {rank} ({})", self.address.ip()),
        }
    }
}

/// Why a call failed. After any error but [`Error::Unsupported`], [`Error::Root`] and
/// [`Error::Setting`] the communicator is failed for good: every later call returns the same error
/// at once, and the other ranks are told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting is missing or makes no sense.
    #[error("{name} is {given}; {allowed}")]
    Setting {
        /// The setting: an environment variable or a builder's method.
        name: &'static str,
        /// The given value.
        given: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The reduction is not offered.
    #[error(transparent)]
    Unsupported(#[from] NumericsError),
    /// A broadcast from a rank that does not exist.
    #[error("broadcast from rank {root} of {world_size}; 0 to {} are allowed", world_size - 1)]
    Root {
        /// The rank given.
        root: u32,
        /// Number of ranks.
        world_size: u32,
    },
    /// The control plane: not reachable, not joined, or the job was aborted.
    #[error(transparent)]
    Control(#[from] control::Error),
    /// The ranks do not find each other.
    #[error("the ranks cannot meet: {why}")]
    Meeting {
        /// What went wrong, and what to do.
        why: String,
    },
    /// Ranks that bring their own aggregators cannot serve each other.
    #[error("ranks without an aggregator serve each other, but {why}")]
    NoPeer {
        /// What went wrong, and what to do.
        why: String,
    },
    /// No packet comes back from the aggregator.
    #[error(
        "the data path to {} is closed: {reason}; check that {}",
        aggregator.place(),
        aggregator.ports(*port)
    )]
    DataPathClosed {
        /// Who adds up.
        aggregator: Server,
        /// Its UDP port, which is another by RDMA.
        port: u16,
        /// What was tried.
        reason: String,
    },
    /// No packet comes back from the aggregator, which is on this rank's own host.
    #[error(
        "the data path to {} is closed: this rank runs on the aggregator's own host, so \
         its packets do not come in through the ports that the data plane serves; start \
         switchml-aggregator with --iface lo as well, or run this rank on another host",
        aggregator.place()
    )]
    OwnHost {
        /// Who adds up.
        aggregator: Server,
    },
    /// Packets pass, but not even the smallest chunk does.
    #[error(
        "the path MTU to {} is too small: packets of {passed} bytes pass, those of {needed} do \
         not; raise the MTU on the way to at least {needed}",
        aggregator.place()
    )]
    PathMtu {
        /// Who adds up.
        aggregator: Server,
        /// Largest IP packet that passed, in bytes.
        passed: usize,
        /// IP packet of the smallest chunk, in bytes.
        needed: usize,
    },
    /// Packets that passed when the job started do not pass any more.
    #[error(
        "the path MTU to {} has become smaller: packets that passed when the job started are too \
         long for a link on the way now; raise that link's MTU, or restart the job, which finds \
         the size that passes",
        aggregator.place()
    )]
    PathShrank {
        /// Who adds up.
        aggregator: Server,
    },
    /// The aggregator admits this rank's packets only from the MAC address that it had when the job
    /// started.
    #[error(
        "the MAC address of {interface} has changed from {before} to {now} since the job started, \
         and {} takes this rank's packets only from the first one; let a bond keep its MAC \
         address (fail_over_mac=none), or restart the job",
        aggregator.place()
    )]
    MacChanged {
        /// Who adds up.
        aggregator: Server,
        /// The interface of this host.
        interface: String,
        /// The address before.
        before: String,
        /// The address now.
        now: String,
    },
    /// Ranks did not contribute in time.
    #[error(
        "no contribution from {} within the timeout of {} s; check that the process runs, or raise \
         the timeout",
        rank_list(ranks),
        waited.as_secs_f64()
    )]
    MissingRanks {
        /// The ranks that were waited for.
        ranks: Vec<u16>,
        /// The deadline.
        waited: Duration,
    },
    /// Ranks left normally while this one still waits for them.
    #[error(
        "{} left the job without making this call; every rank must make the same calls",
        rank_list(ranks)
    )]
    Departed {
        /// The ranks that left.
        ranks: Vec<u16>,
    },
    /// The aggregator does not answer.
    #[error(
        "no answer within the deadline of {} s: {aggregator} does not answer; check that it runs, \
         and the network on the way to it",
        waited.as_secs_f64()
    )]
    AggregatorSilent {
        /// Who adds up.
        aggregator: Server,
        /// The deadline.
        waited: Duration,
    },
    /// The aggregator's results cannot be believed.
    #[error(
        "no valid result within the deadline of {} s: results from {aggregator} are damaged, also \
         after resending; a packet was damaged on its way there, or in it: restart the job, and if \
         it happens again, check cables and the NIC's offloads",
        waited.as_secs_f64()
    )]
    Damaged {
        /// Who adds up.
        aggregator: Server,
        /// The deadline.
        waited: Duration,
    },
    /// A maximum from the aggregator was not the maximum of any rank's values, or differs between
    /// ranks.
    #[error(
        "{aggregator} gave a maximum that no rank sent, or not the same one to \
         all: a packet was damaged on its way, or in it; restart the job"
    )]
    WrongMaximum {
        /// Who adds up.
        aggregator: Server,
    },
    /// Two ranks called different collectives, or one with another operator, element type or
    /// length, according to the data plane. The control plane did not say in time what every rank
    /// called, which is [`control::Error::Mismatch`].
    #[error(
        "ranks {first} and {dissenter} made different calls; every rank must make the same calls \
         in the same order, with the same operator, element type and number of elements"
    )]
    Mismatch {
        /// The rank that came first.
        first: u16,
        /// The rank that disagreed with it.
        dissenter: u16,
    },
    /// A packet was refused as one of another call, by a data plane that does not verify maxima.
    /// The control plane did not say in time what every rank called.
    #[error(
        "{aggregator} refused a packet as part of another call: ranks made \
         different calls, or a packet was damaged; restart the job"
    )]
    Refused {
        /// Who adds up.
        aggregator: Server,
    },
    /// This rank and the aggregator do not agree on where they are.
    #[error(
        "this rank is in round {ours}, but the aggregator in round {newest}: one of them has lost \
         its state; restart the job, and report this if none of them was restarted before"
    )]
    OutOfStep {
        /// The round that this rank sent.
        ours: u32,
        /// The newest that the aggregator holds.
        newest: u32,
    },
    /// An aggregator is lost, and no other one continues its work.
    #[error(
        "no aggregator goes on in place of a lost one: {refusal}; that one was lost so: {loss}"
    )]
    NotMoved {
        /// What the last other aggregator said.
        refusal: String,
        /// How the aggregator was lost.
        loss: String,
        /// The ranks at fault, if any are known.
        ranks: Vec<u16>,
    },
    /// After the loss of an aggregator ranks said that they are where no rank can be.
    #[error("{}", misplaced(ranks))]
    Misplaced {
        /// These ranks; none if it is not known which rank is wrong.
        ranks: Vec<u16>,
    },
    /// The job was aborted, as the data plane says; the control plane did not say why.
    #[error("the job was aborted; {}", aggregator.log())]
    Aborted {
        /// Who adds up.
        aggregator: Server,
    },
    /// The operating system refused something.
    #[error("{what}: {why}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        why: String,
    },
    /// The communicator was dropped by a panic.
    #[error("internal error: a thread of this rank panicked; please report its message, above")]
    Panicked,
    /// This rank aborted its calls.
    #[error("this rank aborted its calls")]
    AbortedHere,
    /// This rank aborted its calls because of other ranks.
    #[error("this rank aborted its calls, to go on without {}", rank_list(ranks))]
    AbortedWithout {
        /// The ranks that it goes on without.
        ranks: Vec<u16>,
    },
    /// The communicator was closed.
    #[error("the communicator is closed; create another one for further calls")]
    Closed,
}

impl Error {
    /// The ranks at fault, as far as they are known: missing, gone, or those that disagree with the
    /// rest.
    pub fn ranks(&self) -> Vec<u16> {
        match self {
            Self::MissingRanks { ranks, .. }
            | Self::Departed { ranks }
            | Self::Misplaced { ranks }
            | Self::NotMoved { ranks, .. }
            | Self::AbortedWithout { ranks } => ranks.clone(),
            Self::Mismatch { first, dissenter } => vec![*first, *dissenter],
            Self::Control(error) => error.ranks(),
            Self::DataPathClosed { aggregator, .. }
            | Self::PathMtu { aggregator, .. }
            | Self::PathShrank { aggregator }
            | Self::AggregatorSilent { aggregator, .. } => aggregator.rank.into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// What other ranks are told: of an abort that was heard elsewhere, the reason alone.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Control(error) => error.cause(),
            error => error.to_string(),
        }
    }

    /// The same of what a rank brings, if it is one.
    pub(crate) fn served_by(mut self, rank: Option<u16>) -> Self {
        match &mut self {
            Self::DataPathClosed { aggregator, .. }
            | Self::PathMtu { aggregator, .. }
            | Self::PathShrank { aggregator }
            | Self::MacChanged { aggregator, .. }
            | Self::AggregatorSilent { aggregator, .. }
            | Self::Damaged { aggregator, .. }
            | Self::WrongMaximum { aggregator }
            | Self::Refused { aggregator }
            | Self::Aborted { aggregator } => aggregator.rank = rank,
            _ => {}
        }
        self
    }

    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::System { what, why: files::explained(&error) }
    }

    pub(crate) fn from_failure(failure: Failure, aggregator: SocketAddr, waited: Duration) -> Self {
        let aggregator = Server::from(aggregator);
        match failure {
            Failure::Missing(ranks) => Self::MissingRanks { ranks: ranks.iter().collect(), waited },
            Failure::Departed(ranks) => Self::Departed { ranks: ranks.iter().collect() },
            Failure::Silent => Self::AggregatorSilent { aggregator, waited },
            Failure::Damaged => Self::Damaged { aggregator, waited },
            Failure::Maximum => Self::WrongMaximum { aggregator },
            Failure::Mismatch { first, dissenter, is_certain: true, .. } => {
                Self::Mismatch { first, dissenter }
            }
            Failure::Mismatch { .. } => Self::Refused { aggregator },
            Failure::Round { ours, newest } => Self::OutOfStep { ours, newest },
            Failure::Misplaced(ranks) => Self::Misplaced { ranks: ranks.iter().collect() },
            Failure::Aborted => Self::Aborted { aggregator },
        }
    }
}

fn misplaced(ranks: &[u16]) -> String {
    let who = match ranks {
        [] => "a rank".to_owned(),
        ranks => rank_list(ranks),
    };
    format!(
        "after the loss of an aggregator {who} went on at a place in the job where no rank can be; \
         all ranks need the same version of the library"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The port is one that was free, and no user has started an aggregator.
    #[test]
    fn what_ranks_serve_is_told_by_rank_and_host() {
        let address: SocketAddr = "10.94.0.3:34237".parse().unwrap();
        let (aggregator, waited) = (Server::from(address), Duration::from_secs(5));
        let reason = "no HELLO came back".to_owned();
        let (passed, needed) = (60, 188);
        let [interface, before, now] = ["eth0", "02::1", "02::2"].map(str::to_owned);
        for error in [
            Error::DataPathClosed { aggregator, port: 34237, reason },
            Error::PathMtu { aggregator, passed, needed },
            Error::PathShrank { aggregator },
            Error::MacChanged { aggregator, interface, before, now },
            Error::AggregatorSilent { aggregator, waited },
            Error::Damaged { aggregator, waited },
            Error::WrongMaximum { aggregator },
            Error::Refused { aggregator },
            Error::Aborted { aggregator },
        ] {
            let told = error.to_string();
            assert!(told.contains("10.94.0.3:34237") && !told.contains("rank 2"), "{told}");
            let told = error.served_by(Some(2)).to_string();
            assert!(told.contains("rank 2 (10.94.0.3)"), "{told}");
            assert!(!told.contains("aggregator") && !told.contains("34237"), "{told}");
        }
        let silent = Error::AggregatorSilent { aggregator, waited }.served_by(Some(2));
        assert_eq!(silent.ranks(), [2]);
    }
}
