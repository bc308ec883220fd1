//! The control plane's messages, generated from `proto/switchml.proto`, with the client and the
//! server of its gRPC service, by TLS or without (feature `grpc`); how an aggregator is found; and
//! how both sides name ranks to people.

#![forbid(unsafe_code)]

mod address;
#[cfg(feature = "grpc")]
pub mod client;
mod rank_list;
#[cfg(feature = "grpc")]
pub mod tls;

pub use address::{AddressError, host, resolve};
pub use rank_list::rank_list;

/// The most data threads of a rank, and so shards of a job: at 14 Gb/s each, more than a link of
/// 100 Gb/s needs.
pub const MAX_DATA_THREADS: u32 = 8;

/// Most calls in flight that a rank reports; more say nothing new.
pub const MAX_REPORTED_CALLS: usize = 1000;

include!(concat!(env!("OUT_DIR"), "/switchml.v1.rs"));
