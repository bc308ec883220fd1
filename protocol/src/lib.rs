//! The aggregation protocol: its wire format, and the way an aggregator serves a packet.
//!
//! `no_std` and free of I/O: bytes in, decisions out. The XDP program, the software backend and
//! every test drive this same code. `docs/spec` is the specification.
//!
//! A packet's way: [`node::ingress`] says whether a frame is for this node; [`node`] serves its
//! packets, by [`root`] or by [`combiner`], and says where each goes.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`wire`] | what travels: packets, and what they say |
//! | [`root`] | the root's admission and slots |
//! | [`combiner`] | the combiner's admission and cells |
//! | [`node`] | what both do when a frame or packet comes in, and where it goes |
//! | [`bpf_types`] | what lies in BPF maps |
//! | [`lanes`] | adding up payloads |
//! | [`ranks`] | sets of ranks of a job |
//! | [`outcome`] | what became of a packet: action, counter and log line in one |
//! | [`capabilities`] | what some data planes can do and others cannot |
//! | [`features`] | what a job uses of that, and why not the rest |

#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod tables;

pub mod bpf_types;
pub mod capabilities;
mod checked;
pub mod combiner;
pub mod features;
pub mod lanes;
pub mod node;
pub mod outcome;
pub mod packet;
pub mod ranks;
pub mod root;
pub mod wire;

pub use zerocopy::big_endian::{U16, U32, U64};

/// Version byte of every packet.
pub const VERSION: u8 = 1;
/// UDP port of the aggregator's data plane, unless configured otherwise (rule 2.1).
pub const DATA_PORT: u16 = 48864;
/// TCP port of the aggregator's control plane, unless configured otherwise.
pub const CONTROL_PORT: u16 = 48865;
/// Lanes come in blocks of this many, so that every loop over a payload has a constant inner bound.
pub const LANES_PER_BLOCK: usize = 32;
/// Most lanes in one packet: the largest frame that XDP can clone is one page.
pub const MAX_LANES: usize = 768;
/// Most blocks in one packet.
pub const MAX_BLOCKS: usize = MAX_LANES / LANES_PER_BLOCK;
/// Rule 1.1: most ranks in one job. A PENDING names them all in one block.
pub const MAX_RANKS: usize = 1024;
/// Ranks of a group: a partial sum names those ranks of one group that it stands for.
pub const RANKS_PER_GROUP: u16 = 32;
/// Lanes of a REJECT, and of a PENDING in a job of up to 64 ranks.
pub const CONTROL_REPLY_LANES: usize = 2;
/// The rank field of a RESULT that is meant for everyone.
pub const EVERYONE: u16 = 0xFFFF;
