//! The aggregator daemon's parts: the control plane, the job table, and the data planes that it
//! steers.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`data_plane`] | what serves packets: the trait, and its backends |
//! | [`jobs`] | the job table, pure |
//! | [`slots`] | which slots of the pool are lent to whom |
//! | [`service`] | the gRPC service over the two |
//! | [`incoming`] | connections to it, as they come in |
//! | [`mailbox`] | what a rank has yet to read of its events |
//! | [`events`] | the log of notable packets |
//! | [`throttle`] | log lines that strangers can cause |

#![forbid(unsafe_code)]

pub mod data_plane;
pub mod events;
pub mod incoming;
pub mod mailbox;
pub mod service;
pub mod throttle;

/// The XDP program, as an ELF object with BTF, aligned for loaders.
pub fn xdp_object() -> &'static [u8] {
    static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp-aggregator"));
    OBJECT
}
