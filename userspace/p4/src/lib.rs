//! The data planes in switches that run a program of the folder `p4`.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`data_plane`] | the data plane, whatever the switch and its protocol are |
//! | [`entries`] | what the tables hold, as a function of the jobs |
//! | [`combiner`] | what the tables of a combiner hold in addition |
//! | [`losses`] | what they hold of packets that are lost on purpose |
//! | [`roce`] | what the tables hold in addition for ranks by RoCEv2 |
//! | [`program`] | the two kinds of programs, for a root and for a combiner |
//! | [`switch`] | the interface of a switch, independent of its protocol |
//! | `unfinished` | the rounds that ranks are missing in, from the registers |
//! | [`tofino`] | a Tofino switch, over BFRT |
//! | [`bmv2`] | bmv2's `simple_switch`, over Thrift |

#![forbid(unsafe_code)]

pub mod bmv2;
pub mod combiner;
pub mod data_plane;
pub mod entries;
pub mod losses;
pub mod program;
pub mod roce;
pub mod switch;
#[cfg(test)]
mod tests;
pub mod tofino;
mod unfinished;
