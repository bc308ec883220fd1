//! What travels: packets, and what they say.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`header`] | the 32-byte header, its kinds, operators and flags |
//! | [`audience`] | the ranks that get the lanes of a result |
//! | [`auth`] | keys, and the tags of packets |
//! | [`share`] | the ranks that a packet stands for |
//! | [`ip`] | addresses of both IP versions |
//! | [`ports`] | the UDP ports of a combiner |
//! | [`icrc`] | the checksum of a message of RDMA, for BPF |

pub mod audience;
pub mod auth;
pub mod header;
pub mod icrc;
pub mod ip;
pub mod ports;
pub mod share;
