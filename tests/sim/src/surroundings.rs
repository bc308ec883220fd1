//! The surroundings of a worker.

use crate::daemon::Daemon;
use crate::hosts::Hosts;
use crate::net::Net;
use crate::oracle::Oracle;
use crate::scenario::Scenario;

/// See the module.
pub struct Surroundings<'a> {
    /// The network and the time.
    pub net: &'a mut Net,
    /// The oracle that checks the promises.
    pub oracle: &'a mut Oracle,
    /// The aggregators, for the oracle to read.
    pub daemons: &'a [Daemon],
    /// Where ranks of a host meet.
    pub hosts: &'a mut Hosts,
    /// The plan.
    pub scenario: &'a Scenario,
    /// Whether all faults have ended.
    pub healed: bool,
}
