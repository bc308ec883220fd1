//! The aggregation protocol: its wire format, and the way an aggregator serves a packet.
//!
//! `no_std` and free of I/O: bytes in, decisions out. The XDP program, the software backend and
//! every test drive this same code. `docs/spec` is the specification; [`aggregator`] holds
//! its section 7, [`slot`] section 8, [`combiner`] section 27.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`header`] | the 32-byte header, its kinds, operators and flags |
//! | [`audience`] | the ranks that get the lanes of a result |
//! | [`auth`] | keys, and the tags of packets |
//! | [`frame`] | Ethernet, IP and UDP around a packet, for data planes that see whole frames |
//! | [`job`] | what the control plane tells the data plane: jobs and their members |
//! | [`share`] | the ranks that a packet stands for |
//! | [`ranks`] | sets of ranks of a job |
//! | [`slot`] | the slot state machine |
//! | [`done`] | complete rounds, reported to ranks that need none of their lanes |
//! | [`combiner`] | adding up contributions on the way to an aggregator |
//! | [`patience`] | how long a combiner's cell waits for its ranks |
//! | [`lanes`] | adding up payloads |
//! | [`aggregator`] | one packet from admission to reply, over any storage of jobs and slots |
//! | [`relay`] | one packet at a combiner, over any storage of jobs and cells |
//! | [`node`] | what media call for a packet: marks, events, and where it goes |
//! | [`shell`] | whose frames are served |
//! | [`roce`] | a packet as a message of RDMA |
//! | [`icrc`] | the checksum of such a message, for BPF |
//! | [`capabilities`] | what some data planes can do and others cannot |
//! | [`maps`] | keys and values of BPF maps that are not jobs or slots |
//! | [`times`] | a histogram of times |
//! | [`outcome`] | what became of a packet: action, counter and log line in one |

#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod tables;

pub mod aggregator;
pub mod audience;
pub mod auth;
pub mod capabilities;
mod checked;
pub mod combiner;
pub mod done;
pub mod fanout;
pub mod frame;
pub mod header;
pub mod icrc;
pub mod ip;
pub mod job;
pub mod lanes;
pub mod maps;
pub mod node;
pub mod outcome;
pub mod patience;
pub mod ranks;
pub mod relay;
pub mod roce;
pub mod share;
pub mod shell;
pub mod slot;
pub mod times;

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
