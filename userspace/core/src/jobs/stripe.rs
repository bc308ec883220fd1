//! The part of a job that this aggregator adds up, where the job has several aggregators
//! (rule 36.1). Ranks compute how large it is, from what all of them are told of the links. A
//! daemon does not know the links of the other aggregators, so ranks tell it its part when they are
//! ready (rule 36.14), only for its operator.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use switchml_control as control;

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
    /// The aggregator's interface that leads to the rank, and its bits per second; 0 if it has no
    /// speed.
    pub own: Option<(String, u64)>,
}

/// What ranks are told of the links between them and the aggregator, given each rank's own, its
/// address, and whether that is the aggregator's.
pub(super) fn links(ranks: &[(&Link, IpAddr, bool)], told: control::Assigned) -> control::Assigned {
    let mut peers: Vec<_> = ranks.iter().map(|(_, peer, _)| *peer).collect();
    peers.sort_unstable();
    peers.dedup();
    let own: Option<BTreeMap<_, _>> = ranks.iter().map(|(link, ..)| link.own.clone()).collect();
    let own = own.unwrap_or_default();
    let all_have_speed = own.values().all(|speed| *speed > 0);
    let speed = own.values().copied().fold(0, u64::saturating_add);
    control::Assigned {
        hosts: peers.len() as u32,
        is_on_ranks_host: ranks.iter().any(|(_, _, is_here)| *is_here),
        slowest_link: ranks.iter().map(|(link, ..)| link.of_rank).min().unwrap_or_default(),
        link_speed: if all_have_speed { speed } else { 0 },
        links: own.len() as u32,
        ..told
    }
}
