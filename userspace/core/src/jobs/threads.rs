//! The number of data threads that a job's ranks get: one for each of the job's shards.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use switchml_control::MAX_DATA_THREADS;

use crate::slots::power_of_two_up_to;

/// The data threads that a rank can use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Threads {
    /// Most data threads; 0 means 1.
    pub most: u32,
    /// The host whose ranks share them; empty when they are the rank's own.
    pub host: String,
}

/// Rule 22.3: the number that suits all ranks. It is the smallest share, rounded down to a power of
/// two so that slots are cut into equal parts.
pub(super) fn common(ranks: &[Threads]) -> u32 {
    let mut sharers = HashMap::<&str, u32>::new();
    for rank in ranks.iter().filter(|rank| !rank.host.is_empty()) {
        *sharers.entry(&rank.host).or_default() += 1;
    }
    let shares = ranks.iter().map(|rank| rank.most / sharers.get(rank.host.as_str()).unwrap_or(&1));
    power_of_two_up_to(shares.min().unwrap_or(1).clamp(1, MAX_DATA_THREADS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common_of(ranks: &[(u32, &str)]) -> u32 {
        let ranks: Vec<_> = ranks
            .iter()
            .map(|(most, host)| Threads { most: *most, host: (*host).to_owned() })
            .collect();
        common(&ranks)
    }

    #[test]
    fn all_ranks_get_what_suits_each() {
        assert_eq!(common_of(&[(4, ""), (2, ""), (8, "")]), 2);
        assert_eq!(common_of(&[(4, ""), (0, "")]), 1, "a rank that does not say has one");
        assert_eq!(common_of(&[(7, "")]), 4);
        assert_eq!(common_of(&[(1000, "")]), MAX_DATA_THREADS);
    }

    #[test]
    fn ranks_of_one_host_share_its_processors() {
        assert_eq!(common_of(&[(8, "a"), (8, "a"), (8, "b"), (8, "b")]), 4);
        assert_eq!(common_of(&[(8, "a"), (8, "a"), (8, "b"), (8, "a")]), 2);
        assert_eq!(common_of(&[(4, "a"), (4, "a"), (4, "a"), (4, "a"), (4, "a")]), 1);
        assert_eq!(
            common_of(&[(4, ""), (4, ""), (4, ""), (4, "")]),
            4,
            "those without a host share nothing"
        );
    }
}
