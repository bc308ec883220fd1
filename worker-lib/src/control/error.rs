//! Errors between a rank and the control plane.

use std::path::PathBuf;
use std::time::Duration;

use switchml_control::tls::TlsError;
use switchml_control::{GONE, host, rank_list};
use switchml_worker_core::session::MadeCall;

/// Why a rank has no session, or has lost it. Each is one line that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The aggregator's address is not an address.
    #[error(
        "aggregator address {given:?}: {why}; give host, host:port, an IP address or [IPv6]:port"
    )]
    Address {
        /// The given value.
        given: String,
        /// What is wrong with the value.
        why: String,
    },
    /// The aggregator's name has no address.
    #[error(
        "aggregator {host:?}: {why}; give the name or the IP address of the host where \
         switchml-aggregator runs"
    )]
    UnknownHost {
        /// The given host.
        host: String,
        /// The error of the system's resolver.
        why: String,
    },
    /// Two of the addresses given lead to the same aggregator.
    #[error("aggregators {one:?} and {other:?} are the same; give each once")]
    Twice {
        /// The one.
        one: String,
        /// The other.
        other: String,
    },
    /// No aggregator answers at the address.
    #[error(
        "no aggregator answers at {address} ({why}); start switchml-aggregator there, or give the \
         address where it runs"
    )]
    Unreachable {
        /// The address that was tried.
        address: String,
        /// The system's error.
        why: String,
    },
    /// Another rank, which has brought an aggregator, does not answer at the address.
    #[error(
        "rank {rank} cannot be reached at {address} ({why}); let them reach each other at all TCP \
         and UDP ports (behind NAT, as in containers, by the host's network), or give an aggregator"
    )]
    PeerUnreachable {
        /// The other rank.
        rank: u16,
        /// The address that was tried.
        address: String,
        /// The system's error.
        why: String,
    },
    /// A server answers there, but not over TLS as it should.
    #[error("no TLS connection to the aggregator at {address}: {why}")]
    Tls {
        /// The aggregator.
        address: String,
        /// The error of TLS.
        why: TlsError,
    },
    /// The job token's file cannot be used.
    #[error("job token {}: {why}; give a file that this user may read", file.display())]
    TokenFile {
        /// The file.
        file: PathBuf,
        /// The system's error.
        why: String,
    },
    /// The aggregator does not take the rank. Its own words.
    #[error("{why} (says the aggregator at {address})")]
    Refused {
        /// The aggregator.
        address: String,
        /// The aggregator's reason.
        why: String,
    },
    /// The other ranks did not join.
    #[error(
        "job {job:?} did not start within the timeout of {} s: {} of {world_size} {} missing{}; \
         start {} with the same job name{} world size{}",
        waited.as_secs_f64(),
        rank_list(ranks),
        are(ranks),
        at.as_ref().map_or_else(String::new, |at| format!(" at the aggregator {at}")),
        if ranks.len() > 1 { "them" } else { "it" },
        if at.is_some() { "," } else { " and" },
        if at.is_some() { " and aggregators" } else { "" }
    )]
    Missing {
        /// The job's name.
        job: String,
        /// Number of ranks of the job.
        world_size: u16,
        /// How long this rank has waited.
        waited: Duration,
        /// The ranks that did not come.
        ranks: Vec<u16>,
        /// The aggregator that they did not come to; `None` where ranks serve each other.
        at: Option<String>,
    },
    /// Ranks joined, but could not open their data path.
    #[error(
        "job {job:?} did not start within the timeout of {} s: {} {} without a data path; run \
         `switchml-worker doctor` there",
        waited.as_secs_f64(), rank_list(ranks), are(ranks)
    )]
    NotReady {
        /// The job's name.
        job: String,
        /// How long this rank has waited.
        waited: Duration,
        /// The ranks that are not ready.
        ranks: Vec<u16>,
    },
    /// The job is over, for all ranks.
    #[error("the job was aborted: {reason}")]
    Aborted {
        /// What happened, and to which rank.
        reason: String,
        /// The ranks at fault.
        ranks: Vec<u16>,
    },
    /// The aggregator serves the job no longer; another one of several may.
    #[error("the job was aborted: {reason}")]
    Stopped {
        /// The aggregator's words.
        reason: String,
        /// The ranks whose connections with it broke, if that is why.
        ranks: Vec<u16>,
    },
    /// Ranks made different calls, which is the end of the job for all of them.
    #[error("{reason}")]
    Mismatch {
        /// All calls in one line.
        reason: String,
        /// Each call once, with the ranks that made it. Ranks that were in no call at that moment
        /// are missing.
        calls: Vec<MadeCall>,
    },
    /// This process did not run, and the others have gone on without it.
    #[error(
        "this process stood still for {:.0} s, stopped or suspended, and its job allows {} s \
         (SWITCHML_STANDSTILL)",
        stood.as_secs_f64(), allowed.as_secs_f64()
    )]
    StoodStill {
        /// How long it did not run.
        stood: Duration,
        /// How long that may be.
        allowed: Duration,
    },
    /// The connection to the aggregator broke.
    #[error("lost the connection to the aggregator at {address} ({why}); check that it runs")]
    Lost {
        /// The aggregator.
        address: String,
        /// The system's error.
        why: String,
    },
    /// The aggregator went away, and the aggregator that is there now does not know the job.
    #[error(
        "the aggregator at {address} has restarted, and does not know this job any more ({why}); \
         start the job again"
    )]
    Forgotten {
        /// The aggregator.
        address: String,
        /// The aggregator's message.
        why: String,
    },
    /// The aggregator's answer makes no sense: its version is another.
    #[error(
        "the aggregator at {address} sent {what}; its version and this library's differ: install \
         the same build on all hosts"
    )]
    Answer {
        /// The aggregator.
        address: String,
        /// The answer.
        what: String,
    },
    /// This rank has left the job.
    #[error("this rank has left the job; create another communicator for further calls")]
    Left,
    /// The system has no thread or socket left.
    #[error("cannot start the control thread: {why}")]
    System {
        /// The system's error.
        why: String,
    },
}

impl Error {
    /// Whether the aggregator is lost, and no rank is at fault (rule 36.8).
    pub(crate) fn means_lost(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Forgotten { .. } | Self::Stopped { .. })
    }

    /// What other ranks are told: of an abort that was heard elsewhere, the reason alone.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Aborted { reason, .. } => reason.clone(),
            error => error.to_string(),
        }
    }

    /// The same where a rank has brought the aggregator.
    ///
    /// Rule 36.7: if a session broke with the process that it is in, that rank is to blame.
    pub(super) fn of_peer(self, rank: u16) -> Self {
        let (reason, ranks) = match self {
            // How the library for HTTP/2 calls the broken connection helps no user.
            Self::Lost { address, .. } | Self::Forgotten { address, .. } => {
                (format!("rank {rank} ({}) {GONE}", host(&address)), vec![rank])
            }
            // It names a rank whose connection broke (rule 36.17).
            Self::Stopped { reason, ranks } if !ranks.is_empty() => (reason, ranks),
            Self::Stopped { .. } => {
                (format!("rank {rank} has ended, and what it adds up"), vec![rank])
            }
            Self::Answer { address, what } => {
                let at = host(&address);
                let reason = format!(
                    "rank {rank} ({at}) sent {what}; its version and this library's differ"
                );
                (reason, vec![rank])
            }
            // The fault may be this rank's own.
            Self::Refused { address, why } => {
                (format!("{why} (says rank {rank}, {})", host(&address)), Vec::new())
            }
            error => return error,
        };
        Self::Aborted { reason, ranks }
    }

    /// The ranks at fault, as far as they are known. When calls differ: all ranks except those that
    /// made the most common call.
    pub(crate) fn ranks(&self) -> Vec<u16> {
        match self {
            Self::Missing { ranks, .. }
            | Self::NotReady { ranks, .. }
            | Self::Aborted { ranks, .. }
            | Self::Stopped { ranks, .. } => ranks.clone(),
            Self::PeerUnreachable { rank, .. } => vec![*rank],
            Self::Mismatch { calls, .. } => {
                let most = calls.iter().map(|call| call.ranks.len()).max();
                let common = calls.iter().position(|call| Some(call.ranks.len()) == most);
                let others = calls.iter().enumerate().filter(|(place, _)| Some(*place) != common);
                others.flat_map(|(_, call)| call.ranks.iter().copied()).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn are(ranks: &[u16]) -> &'static str {
    if ranks.len() > 1 { "are" } else { "is" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_are_of_another_mind_are_at_fault() {
        let call =
            |ranks: &[u16]| MadeCall { ranks: ranks.to_vec(), number: 1, call: String::new() };
        let ranks = |calls: &[&[u16]]| {
            Error::Mismatch {
                reason: String::new(),
                calls: calls.iter().map(|ranks| call(ranks)).collect(),
            }
            .ranks()
        };
        assert_eq!(ranks(&[&[2], &[0, 3], &[1]]), [2, 1]);
        assert_eq!(ranks(&[&[0], &[1]]), [1], "whom the lowest rank does not agree with");
    }

    /// The port is one that was free, and no user has started an aggregator.
    #[test]
    fn what_a_rank_serves_is_told_by_rank_and_host() {
        let address = "10.94.0.3:34237".to_owned();
        let why = "connection reset".to_owned();
        let error = |error: Error| error.of_peer(2);
        for error in [
            error(Error::Lost { address: address.clone(), why: why.clone() }),
            error(Error::Forgotten { address: address.clone(), why: why.clone() }),
            error(Error::Stopped { reason: "the aggregator stops".to_owned(), ranks: Vec::new() }),
            error(Error::Answer { address: address.clone(), what: "nonsense".to_owned() }),
            error(Error::Refused { address: address.clone(), why: "no".to_owned() }),
        ] {
            let told = error.to_string();
            assert!(told.contains("rank 2") && !told.contains("aggregator"), "{told}");
            assert!(!told.contains("34237"), "{told}");
            // Another rank that is told so says nothing around it.
            assert!(!error.cause().contains("the job was aborted"), "{told}");
        }
        assert_eq!(error(Error::Lost { address, why }).ranks(), [2]);
        let reason = "rank 1 is gone".to_owned();
        let gone = error(Error::Stopped { reason: reason.clone(), ranks: vec![1] });
        assert_eq!((gone.cause(), gone.ranks()), (reason, vec![1]));
    }

    #[test]
    fn one_line_each() {
        let missing = |at: Option<&str>| {
            let error = Error::Missing {
                job: "a".into(),
                world_size: 4,
                waited: Duration::from_millis(1500),
                ranks: vec![1, 3],
                at: at.map(str::to_owned),
            };
            error.to_string()
        };
        assert_eq!(
            missing(None),
            "job \"a\" did not start within the timeout of 1.5 s: ranks 1 and 3 of 4 are missing; \
             start them with the same job name and world size"
        );
        assert_eq!(
            missing(Some("10.0.0.9:48865")),
            "job \"a\" did not start within the timeout of 1.5 s: ranks 1 and 3 of 4 are missing \
             at the aggregator 10.0.0.9:48865; start them with the same job name, world size and \
             aggregators"
        );
    }
}
