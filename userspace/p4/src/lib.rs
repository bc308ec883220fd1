//! The data planes in switches that run a program of this folder, `tofino.p4` or `bmv2.p4`.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`data_plane`] | the data plane, whatever the switch and its protocol are |
//! | [`entries`] | what the tables hold, as a function of the jobs |
//! | [`combiner`] | what those of a combiner hold beside |
//! | [`switch`] | what a switch takes |
//! | [`tofino`] | a Tofino switch, over BFRT |
//! | [`bmv2`] | bmv2's `simple_switch`, over Thrift |

#![forbid(unsafe_code)]

pub mod bmv2;
pub mod combiner;
pub mod data_plane;
pub mod entries;
pub mod switch;
#[cfg(test)]
mod tests;
pub mod tofino;
