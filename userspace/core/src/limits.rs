//! The properties in which data planes differ.

use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::features::{Features, JobShape};

/// What a data plane has to offer (rule 24.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Numbers in the data plane: 0 up to this. A job has one for each data thread of a rank.
    pub shards: u16,
    /// Slots of each number.
    pub slots_per_shard: u32,
    /// Most lanes in a packet.
    pub max_lanes: u16,
    /// Most ranks in a job, whatever its other limits are.
    pub max_ranks: u16,
    /// Most jobs at once; their first numbers are 0 up to this.
    pub max_jobs: u16,
    /// The data plane's optional capabilities.
    pub capabilities: Capabilities,
    /// Those of them that jobs over IPv6 lack.
    pub ipv4_only: Capabilities,
    /// UDP port that it serves.
    pub port: u16,
    /// How a RESULT for all reaches the ranks.
    pub fanout: Fanout,
    /// Whether the data plane survives the daemon's death, and goes on with started jobs.
    pub durable: bool,
}

/// Ranks that the bytes of a witness count (rule 15.3).
const MOST_WITNESSES: u16 = 255;

impl Limits {
    /// Most ranks in a job: without checked maxima, as many as can prove maxima to each other.
    pub fn most_ranks(&self) -> u16 {
        if self.capabilities.contains(Capabilities::CHECKED_MAXIMA) {
            self.max_ranks
        } else {
            self.max_ranks.min(MOST_WITNESSES)
        }
    }

    /// What a job of this shape uses of the capabilities.
    pub fn features(&self, job: JobShape) -> Features {
        Features::of(job, self.capabilities, self.ipv4_only)
    }

    /// Slots of all numbers together.
    pub fn slots(&self) -> u32 {
        u32::from(self.shards) * self.slots_per_shard
    }
}

/// How a RESULT for all reaches the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// By multicast to ranks that it reaches, a copy for each of the others.
    Auto,
    /// One frame to the job's multicast group, which the network copies.
    Multicast,
    /// A copy for each rank: works in every network.
    Unicast,
}
