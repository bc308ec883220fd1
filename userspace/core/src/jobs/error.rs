//! Why a rank's request was refused: the given value, the allowed ones, and the remedy.

use std::fmt;
use std::net::IpAddr;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::times::BUCKETS;

use super::{MAX_HOST_LEN, MAX_NAME_LEN, MAX_TENANT_LEN, MAX_WAITING, MAX_WAITING_OF_HOST};

/// The resources that a tenant's quota bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Jobs.
    Jobs,
    /// Ranks.
    Ranks,
    /// Slots.
    Slots,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jobs => "jobs",
            Self::Ranks => "ranks",
            Self::Slots => "slots",
        })
    }
}

/// Why a rank may not join.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// A name that is empty or too long.
    #[error("job name of {0} bytes; give all ranks the same name of 1 to {MAX_NAME_LEN} bytes")]
    Name(usize),
    /// A name of the rank's host that is too long.
    #[error(
        "host name of {0} bytes; give one of at most {MAX_HOST_LEN} bytes, such as the boot id, \
         or none"
    )]
    Host(usize),
    /// A token's tenant with a name that is too long.
    #[error(
        "the job token's tenant has a name of {0} bytes, at most {MAX_TENANT_LEN} are allowed; ask \
         the aggregator's operator for another token"
    )]
    Tenant(usize),
    /// A world size out of range.
    #[error("world size {world_size}; a job has 1 to {max_ranks} ranks")]
    WorldSize {
        /// The world size that was given.
        world_size: u32,
        /// Most ranks that the data plane takes.
        max_ranks: u16,
    },
    /// A rank out of range.
    #[error("rank {rank} of world size {world_size}; ranks are 0 to {}", .world_size - 1)]
    Rank {
        /// The rank that was given.
        rank: u32,
        /// The world size that was given with it; not 0.
        world_size: u32,
    },
    /// A rank behind a combiner, where packets have tags, which combiners cannot make.
    #[error(
        "the rank joins through {0}, but the aggregator requires packet tags, for which combiners \
         have no keys; have its ranks join the aggregator directly, or start the aggregator \
         without --packet-tags"
    )]
    Tags(String),
    /// The job is another tenant's.
    #[error("job {name:?} is another tenant's; give the job a name of its own")]
    OtherTenant {
        /// The job.
        name: String,
    },
    /// The rank is taken.
    #[error(
        "job {name:?} already has rank {rank}, from {from}; give each process a rank of its own, \
         or each job a name"
    )]
    DuplicateRank {
        /// The job.
        name: String,
        /// The rank.
        rank: u32,
        /// Where the rank that has this number connected from.
        from: IpAddr,
    },
    /// The job has another world size.
    #[error(
        "job {name:?} has world size {expected}, not {given}; give all ranks the same world size, \
         or each job a name"
    )]
    OtherWorldSize {
        /// The job.
        name: String,
        /// The job's world size.
        expected: usize,
        /// The world size that was given.
        given: u32,
    },
    /// The job would be more than its tenant may have.
    #[error(
        "tenant {tenant:?} may have {most} {resource} at once, has {used}, and this job needs \
         {wanted} more; wait for jobs of the tenant to end, or ask the aggregator's operator for a \
         larger quota"
    )]
    OverQuota {
        /// The tenant.
        tenant: String,
        /// The resource.
        resource: Resource,
        /// The tenant's quota.
        most: u32,
        /// The amount that the tenant's jobs have.
        used: u32,
        /// The amount that this job needs at least.
        wanted: u32,
    },
    /// The job alone exceeds its tenant's quota.
    #[error(
        "tenant {tenant:?} may have {most} {resource} at once, and this job alone needs {wanted}: \
         it can never start; ask the aggregator's operator for a larger quota"
    )]
    NeverInQuota {
        /// The tenant.
        tenant: String,
        /// The resource.
        resource: Resource,
        /// The tenant's quota.
        most: u32,
        /// The amount that this job needs at least.
        wanted: u32,
    },
    /// The tenant's ranks have joined as often as they may.
    #[error(
        "tenant {tenant:?} may join {most} times a minute, and has done so; try again in a minute, \
         or ask the aggregator's operator for a larger quota"
    )]
    TooManyJoins {
        /// The tenant.
        tenant: String,
        /// The tenant's quota.
        most: u32,
    },
    /// An address that is valid on one link only.
    #[error(
        "contributions cannot be sent to {0}, which is a link-local address; connect to another \
         address of the aggregator, or start it with --data-address"
    )]
    LinkLocal(IpAddr),
    /// The rank comes by a combiner, and the data plane takes no partial sums.
    #[error(
        "this aggregator's data plane does not accept partial sums, so {0} cannot have it as its \
         parent; start it with --data-plane xdp or software, or connect ranks to it directly"
    )]
    NoPartialSums(String),
    /// Too many jobs wait for ranks.
    #[error(
        "{waiting} jobs are waiting for ranks, {of_host} of them started from {peer}; at most \
         {MAX_WAITING} may wait, and {MAX_WAITING_OF_HOST} of one host: start all ranks of a job, \
         or end waiting jobs"
    )]
    TooManyWaiting {
        /// Jobs that wait.
        waiting: usize,
        /// Waiting jobs whose first rank came from this rank's host.
        of_host: usize,
        /// Where the rank connected from.
        peer: IpAddr,
    },
}

/// Why a member's request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// Job, epoch, rank and secret are not those of a member, or not any more. Which of them is
    /// wrong is not said (rule 22.6): strangers could find out one after the other.
    #[error(
        "rank {rank} with that epoch and secret is not in job {job}; its session has ended, join \
         again"
    )]
    NoMember {
        /// The job's number.
        job: u32,
        /// The rank.
        rank: u32,
    },
    /// Ready with a number of lanes that no packet has.
    #[error("ready for {lanes} lanes; give a multiple of {LANES_PER_BLOCK} up to {max_lanes}")]
    Lanes {
        /// The number of lanes that was given.
        lanes: u32,
        /// Most lanes that the data plane takes.
        max_lanes: u16,
    },
    /// A histogram with another number of buckets than ours.
    #[error("round trips in {given} buckets; give {BUCKETS}")]
    Buckets {
        /// The number of buckets that was given.
        given: usize,
    },
    /// Ready before the data plane has seen the rank.
    #[error(
        "rank {0} is ready, but the data plane has had no HELLO from it; wait for HELLO to come \
         back first"
    )]
    NoHello(u32),
    /// Back in a job that has not started.
    #[error("rank {rank} comes back, but its job is {state}; join again")]
    NotStarted {
        /// The rank.
        rank: u32,
        /// The job's state.
        state: &'static str,
    },
    /// Ready when the job is not waiting for that.
    #[error("rank {rank} is ready, but its job is {state}")]
    NotAssigned {
        /// The rank.
        rank: u32,
        /// The job's state.
        state: &'static str,
    },
}
