//! The part of a job that this aggregator adds up, where the job has several aggregators
//! (section 36 of `docs/protocol.md`). Ranks compute how large it is, from what all of them are told
//! of the links.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use switchml_control as control;

use super::job::Job;

/// What ranks must know alike of a job's aggregators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stripe {
    /// The number of aggregators.
    pub aggregators: u32,
    /// The weight of this one's part; 0 if ranks compute it.
    pub weight: u32,
}

/// A job with this aggregator alone.
impl Default for Stripe {
    fn default() -> Self {
        Self { aggregators: 1, weight: 0 }
    }
}

impl fmt::Display for Stripe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { aggregators, weight } = self;
        write!(f, "{aggregators} aggregator{}", if *aggregators == 1 { "" } else { "s" })?;
        if *weight > 0 {
            write!(f, " and weight {weight} here")?;
        }
        Ok(())
    }
}

/// The links between a rank and the aggregator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Bits per second of the rank's own; 0 if it does not know.
    pub of_rank: u64,
    /// The aggregator's interface that leads to the rank, and its bits per second.
    pub own: Option<(String, u64)>,
}

impl Job {
    /// What ranks are told of the links between them and the aggregator.
    pub(super) fn links(&self, told: control::Assigned) -> control::Assigned {
        let members = || self.joined().map(|(_, member)| member);
        let mut peers: Vec<_> = members().map(|member| member.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let own: Option<BTreeMap<_, _>> = members().map(|member| member.link.own.clone()).collect();
        control::Assigned {
            hosts: peers.len() as u32,
            // A connection to an address of the host's own comes from the same address.
            is_on_ranks_host: members()
                .any(|member| !member.is_behind && member.peer == member.local),
            slowest_link: members().map(|member| member.link.of_rank).min().unwrap_or_default(),
            link_speed: own.map_or(0, |own| own.values().sum()),
            ..told
        }
    }
}
