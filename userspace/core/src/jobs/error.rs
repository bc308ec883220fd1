//! Why a rank's request was refused: the given value, the allowed ones, and the remedy.

use std::fmt;
use std::net::IpAddr;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::bpf_types::times::BUCKETS;

use super::stripe::Stripe;
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
#[allow(missing_docs, reason = "the messages say it")]
pub enum JoinError {
    #[error("job name of {0} bytes; give all ranks the same name of 1 to {MAX_NAME_LEN} bytes")]
    Name(usize),
    #[error(
        "host name of {0} bytes; give one of at most {MAX_HOST_LEN} bytes, such as the boot id, \
         or none"
    )]
    Host(usize),
    #[error(
        "the job token's tenant has a name of {0} bytes, at most {MAX_TENANT_LEN} are allowed; ask \
         the aggregator's operator for another token"
    )]
    Tenant(usize),
    #[error("world size {world_size}; a job has 1 to {max_ranks} ranks")]
    WorldSize { world_size: u32, max_ranks: u16 },
    #[error("rank {rank} of world size {world_size}; ranks are 0 to {}", .world_size - 1)]
    Rank { rank: u32, world_size: u32 },
    #[error(
        "the rank joins through {0}, but the aggregator requires packet tags, for which combiners \
         have no keys; have its ranks join the aggregator directly, or start the aggregator \
         without --packet-tags"
    )]
    Tags(String),
    #[error("job {name:?} is another tenant's; give the job a name of its own")]
    OtherTenant { name: String },
    #[error(
        "job {name:?} already has rank {rank}, from {from}; give each process a rank of its own, \
         or each job a name"
    )]
    DuplicateRank { name: String, rank: u32, from: String },
    #[error(
        "job {name:?} has world size {expected}, not {given}; give all ranks the same world size, \
         or each job a name"
    )]
    OtherWorldSize { name: String, expected: usize, given: u32 },
    #[error(
        "job {name:?} has {expected}, not {given}; give all ranks the same aggregators, with the \
         same weights, or each job a name"
    )]
    OtherStripe { name: String, expected: Stripe, given: Stripe },
    #[error(
        "tenant {tenant:?} may have {most} {resource} at once, has {used}, and this job needs \
         {wanted} more; wait for jobs of the tenant to end, or ask the aggregator's operator for a \
         larger quota"
    )]
    OverQuota { tenant: String, resource: Resource, most: u32, used: u32, wanted: u32 },
    #[error(
        "tenant {tenant:?} may have {most} {resource} at once, and this job alone needs {wanted}: \
         it can never start; ask the aggregator's operator for a larger quota"
    )]
    NeverInQuota { tenant: String, resource: Resource, most: u32, wanted: u32 },
    #[error(
        "tenant {tenant:?} may join {most} times a minute, and has done so; try again in a minute, \
         or ask the aggregator's operator for a larger quota"
    )]
    TooManyJoins { tenant: String, most: u32 },
    #[error(
        "contributions cannot be sent to {0}, which is a link-local address; connect to another \
         address of the aggregator, or start it with --data-address"
    )]
    LinkLocal(IpAddr),
    #[error(
        "this aggregator's data plane does not accept partial sums, so {0} cannot have it as its \
         parent; start it with --data-plane xdp or software, or connect ranks to it directly"
    )]
    NoPartialSums(String),
    #[error(
        "{waiting} jobs are waiting for ranks, {of_host} of them started from {peer}; at most \
         {MAX_WAITING} may wait, and {MAX_WAITING_OF_HOST} of one host: start all ranks of a job, \
         or end waiting jobs"
    )]
    TooManyWaiting { waiting: usize, of_host: usize, peer: IpAddr },
}

/// Why a member's request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum MemberError {
    #[error(
        "rank {rank} with that epoch and secret is not in job {job}; its session has ended, join \
         again"
    )]
    NoMember { job: u32, rank: u32 },
    #[error("ready for {lanes} lanes; give a multiple of {LANES_PER_BLOCK} up to {max_lanes}")]
    Lanes { lanes: u32, max_lanes: u16 },
    #[error("round trips in {given} buckets; give {BUCKETS}")]
    Buckets { given: usize },
    #[error(
        "rank {0} is ready, but the data plane has had no HELLO from it; wait for HELLO to come \
         back first"
    )]
    NoHello(u32),
    #[error("rank {rank} comes back, but its job is {state}; join again")]
    NotStarted { rank: u32, state: &'static str },
    #[error("rank {rank} is ready, but its job is {state}")]
    NotAssigned { rank: u32, state: &'static str },
}
