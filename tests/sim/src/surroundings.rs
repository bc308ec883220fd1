//! What a worker acts on.

use crate::daemon::Daemon;
use crate::net::Net;
use crate::oracle::Oracle;
use crate::scenario::Scenario;

/// See the module.
pub struct Surroundings<'a> {
    /// The network and the time.
    pub net: &'a mut Net,
    /// Who watches.
    pub oracle: &'a mut Oracle,
    /// The aggregator, for the oracle to look at.
    pub daemon: &'a Daemon,
    /// The plan.
    pub scenario: &'a Scenario,
    /// Whether a combiner on the worker's way is down.
    pub cut_off: bool,
    /// All faults have ended.
    pub healed: bool,
}
