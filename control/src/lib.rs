//! The control plane's messages, generated from `proto/switchml.proto`, with the client and the
//! server of its gRPC service, by TLS or without (feature `grpc`); how an aggregator is found; how
//! jobs are named that have moved; and how both sides name ranks to people.

#![forbid(unsafe_code)]

mod address;
#[cfg(feature = "grpc")]
pub mod client;
mod moves;
mod rank_list;
#[cfg(feature = "grpc")]
pub mod signs;
#[cfg(feature = "grpc")]
pub mod thread;
#[cfg(feature = "grpc")]
pub mod tls;
mod variable;

use std::fmt;

pub use address::{AddressError, host, resolve};
pub use moves::{
    HOSTS_SUFFIX, MAX_NAME_LEN, moved_name, name_before_move, public_name, shown_name,
};
pub use rank_list::rank_list;
pub use variable::Variable;

/// What people are told of a rank whose connection broke at once, after its name.
pub const GONE: &str = "is gone: its process ended, or its connection broke";

/// The most data threads of a rank, and so the most shards of a job. At 14 Gb/s each, these are
/// more than a link of 100 Gb/s needs.
pub const MAX_DATA_THREADS: u32 = 8;

/// Most calls in flight that a rank reports; more would tell nothing new.
pub const MAX_REPORTED_CALLS: usize = 1000;

include!("generated/switchml.v1.rs");

impl Assigned {
    /// How rank `rank`, which this was sent to, refers to itself.
    pub fn member(&self, rank: u32) -> MemberId {
        MemberId { job: self.job, epoch: self.epoch, rank, secret: self.control_secret }
    }
}

/// Without the secret.
impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, epoch, rank, .. } = self;
        let mut told = f.debug_struct("MemberId");
        told.field("job", job).field("epoch", epoch).field("rank", rank).finish_non_exhaustive()
    }
}

/// Without secrets and keys.
impl fmt::Debug for Assigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assigned")
            .field("job", &self.job)
            .field("epoch", &self.epoch)
            .field("world_size", &self.world_size)
            .field("slots", &self.slots)
            .field("data_address", &self.data_address)
            .field("data_port", &self.data_port)
            .field("group_address", &self.group_address)
            .field("group_port", &self.group_port)
            .field("max_lanes", &self.max_lanes)
            .field("durable", &self.durable)
            .field("capabilities", &self.capabilities)
            .field("further_shards", &self.further_shards)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is printed for debugging gets into logs and bug reports.
    #[test]
    fn secrets_are_not_printed() {
        let secret = [0x5E, 0xC2, 0xE7];
        let assigned = Assigned {
            job: 7,
            hello_secret: 1_234_567_891,
            control_secret: 12_345_678_912_345,
            move_secret: 98_765_432_198_765,
            member_key: secret.to_vec(),
            job_key: secret.to_vec(),
            ..Assigned::default()
        };
        let leave = LeaveRequest { member: Some(assigned.member(3)), ..LeaveRequest::default() };
        let printed = format!("{assigned:?} {leave:?}");
        assert!(printed.contains("job: 7, epoch: 0, rank: 3"), "{printed}");
        for secret in ["1234567891", "12345678912345", "98765432198765", "94, 194, 231"] {
            assert!(!printed.contains(secret), "{printed}");
        }
    }
}
