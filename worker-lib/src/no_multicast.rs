//! Warns of results that do not come by multicast (rule 14.10): a line that names the group.

use std::fmt;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::warning::warn;

/// Warns that results do not come by multicast. A communicator's drivers report it here.
pub(crate) struct NoMulticast {
    job: String,
    rank: u32,
    is_reported: AtomicBool,
}

impl NoMulticast {
    pub fn new(job: String, rank: u32) -> Self {
        Self { job, rank, is_reported: AtomicBool::new(false) }
    }

    /// Reports that no result for all comes to this group, and whether the aggregator sends copies
    /// instead. Returns whether that is news: one line is enough, whichever driver finds out first.
    pub fn report(&self, group: SocketAddrV4, gets_copies: bool) -> bool {
        let is_news = !self.is_reported.swap(true, Ordering::Relaxed);
        if is_news {
            warn(&self.job, self.rank, format_args!(": {}", Unheard { group, gets_copies }));
        }
        is_news
    }
}

/// The text of the warning.
struct Unheard {
    group: SocketAddrV4,
    gets_copies: bool,
}

impl fmt::Display for Unheard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, port) = (self.group.ip(), self.group.port());
        match self.gets_copies {
            true => write!(
                f,
                "results of group {group}, UDP port {port}, no longer come by multicast; this rank \
                 asks the aggregator for copies of its own instead, in all calls from now on"
            ),
            false => write!(
                f,
                "no result comes by multicast; this rank has to ask for a copy of each, after a \
                 timeout, so all ranks' calls take many times as long. Make the network deliver \
                 group {group}, UDP port {port}, to this host: a switch that snoops IGMP needs a \
                 querier, a firewall needs a rule"
            ),
        }
    }
}
