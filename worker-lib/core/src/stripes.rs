//! How much of a call each of a job's aggregators adds up.
//!
//! Theorem 1 of BytePS (Jiang et al., OSDI 2020), with parts of any size. n hosts with links of B
//! each way have a tensor of M each. An aggregator on a host of its own with a link of b takes part
//! x: n x come in. One on a rank's host takes part y: y does not cross the link, so M - y go out
//! from the host's ranks, M - y of results come in, and n - 1 contributions of y: in all
//! M + (n - 2) y come in. (As many bytes go out if each rank gets its own copy of results; with
//! multicast, fewer.) All are busy for the same time t if
//!
//! ```text
//! x = t b / n,    y = (t B - M) / (n - 2)
//! ```
//!
//! and t is the least for which all parts are M together. If dedicated aggregators alone do it in M
//! / B, in which every host can send its tensor, the others take nothing.

use crate::cost;

/// What is known of the links between a job's ranks and one of its aggregators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// The number of hosts that the ranks are on.
    pub hosts: u32,
    /// Bits per second of the aggregator's links, all together; 0 if unknown.
    pub own: u64,
    /// The number of these links; 0 if unknown.
    pub interfaces: u32,
    /// Bits per second of the slowest link of a rank; 0 if unknown.
    pub slowest: u64,
    /// Whether ranks run on the aggregator's host.
    pub is_on_ranks_host: bool,
    /// Whether there are combiners between ranks and the aggregator.
    pub has_combiners: bool,
}

/// The sum of all weights, up to rounding.
const WHOLE: f64 = 10_000.0;

/// Microseconds: about what it takes to wake a thread for an aggregator's part.
const LEAST_TIME: u64 = 50;

/// Bits per second of links that nobody knows. As fast as that, most parts are too small.
const UNKNOWN_SPEED: u64 = 10_000_000_000;

/// The weight of each aggregator's part (rule 36.4). Links whose speed is not known count as a
/// rank's.
pub fn weights(aggregators: &[Links]) -> Vec<u32> {
    let fabric = Fabric::of(aggregators);
    let part = fabric.part_beside_ranks();
    let rest = 1.0 - part * f64::from(fabric.beside);
    let share = |links: &Links| match links.is_on_ranks_host {
        true => part,
        false => rest * fabric.link(links) / fabric.dedicated,
    };
    let weight = |links| (share(links) * WHOLE).round() as u32;
    aggregators.iter().map(weight).collect()
}

/// Rule 36.3: the least bytes that an aggregator takes of a call. What all hosts send it must keep
/// its link busy for [`LEAST_TIME`], or it costs more than it saves.
pub fn least_part(aggregators: &[Links]) -> u64 {
    let Fabric { hosts, slowest, .. } = Fabric::of(aggregators);
    let speed = if slowest == 0 { UNKNOWN_SPEED } else { slowest };
    speed / (8_000_000 / LEAST_TIME) / u64::from(hosts)
}

/// The weight of each aggregator's part: those that were given, if all were.
pub fn agreed_weights(aggregators: &[(u32, Links)]) -> Vec<u32> {
    let (given, links): (Vec<_>, Vec<_>) = aggregators.iter().copied().unzip();
    if given.contains(&0) { weights(&links) } else { given }
}

/// Rule 36.15: whether a call takes longer at these aggregators than in a ring. With combiners the
/// links between racks decide, which a ring's neighbours share.
pub fn are_slower_than_a_ring(aggregators: &[Links]) -> bool {
    let Fabric { hosts, beside, dedicated, .. } = Fabric::of(aggregators);
    let has_combiners = aggregators.iter().any(|links| links.has_combiners);
    // A ring as fast as that is no reason.
    !has_combiners
        && hosts > 1
        && cost::aggregated(hosts, beside, dedicated) > 1.001 * cost::ring(hosts)
}

/// Hosts and links, in units of the slowest link of a rank.
struct Fabric {
    /// n
    hosts: u32,
    slowest: u64,
    /// m: the number of aggregators on ranks' hosts.
    beside: u32,
    /// c: the links of dedicated aggregators together.
    dedicated: f64,
}

impl Fabric {
    fn of(aggregators: &[Links]) -> Self {
        let hosts = aggregators.iter().map(|links| links.hosts).max().unwrap_or(1).max(1);
        let slowest = aggregators.iter().map(|links| links.slowest).min().unwrap_or_default();
        let beside = aggregators.iter().filter(|links| links.is_on_ranks_host).count() as u32;
        let mut fabric = Self { hosts, slowest, beside, dedicated: 0.0 };
        let dedicated = aggregators.iter().filter(|links| !links.is_on_ranks_host);
        fabric.dedicated = dedicated.map(|links| fabric.link(links)).sum();
        fabric
    }

    fn link(&self, links: &Links) -> f64 {
        match (links.own, self.slowest) {
            (0, _) | (_, 0) => links.interfaces.max(1).into(),
            (own, slowest) => own as f64 / slowest as f64,
        }
    }

    fn part_beside_ranks(&self) -> f64 {
        let (n, m, c) = (f64::from(self.hosts), f64::from(self.beside), self.dedicated);
        if self.beside == 0 || c >= n { 0.0 } else { cost::part_beside_ranks(n, m, c) }
    }
}

/// The share of calls that each of these weights means, in parts of 10,000 (rule 36.14).
pub fn shares(weights: &[u32]) -> Vec<u32> {
    let whole: u64 = weights.iter().copied().map(u64::from).sum();
    let share = |weight: &u32| f64::from(*weight) / whole.max(1) as f64 * WHOLE;
    weights.iter().map(|weight| share(weight).round() as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIGABIT: u64 = 1_000_000_000;

    fn dedicated(hosts: u32, own: u64) -> Links {
        Links { hosts, own, interfaces: 1, slowest: GIGABIT, ..Links::default() }
    }

    fn beside(hosts: u32) -> Links {
        Links { is_on_ranks_host: true, ..dedicated(hosts, GIGABIT) }
    }

    /// Four ranks at 1 Gb/s: y = (n - c) / (n^2 + c (n - 2)) on each host.
    #[test]
    fn as_the_theorem_says() {
        assert_eq!(weights(&[beside(4); 4]), [2500; 4]);
        // c = 1: y = 3 / 18, and a third for the spare host.
        let all = [[beside(4); 4].to_vec(), vec![dedicated(4, GIGABIT)]].concat();
        assert_eq!(weights(&all), [1667, 1667, 1667, 1667, 3333]);
        // c = 2, in one host: y = 2 / 20.
        let all = [[beside(4); 4].to_vec(), vec![dedicated(4, 2 * GIGABIT)]].concat();
        assert_eq!(weights(&all), [1000, 1000, 1000, 1000, 6000]);
        // c = n: they alone.
        let all = [[beside(4); 4].to_vec(), vec![dedicated(4, 4 * GIGABIT)]].concat();
        assert_eq!(weights(&all), [0, 0, 0, 0, 10_000]);
        assert_eq!(
            weights(&[dedicated(4, GIGABIT), dedicated(4, 3 * GIGABIT)]),
            [2500, 7500],
            "dedicated ones by their links"
        );
    }

    /// A ring of four takes 6 / 4 of M / B, and one of two as long as the tensor.
    #[test]
    fn one_link_for_many_ranks_is_slower_than_a_ring() {
        let slower = |aggregators: &[Links]| are_slower_than_a_ring(aggregators);
        assert!(slower(&[dedicated(4, GIGABIT)]), "4 of M / B");
        assert!(slower(&[dedicated(4, 2 * GIGABIT)]), "2");
        assert!(slower(&[dedicated(4, GIGABIT); 2]), "2");
        assert!(!slower(&[dedicated(4, GIGABIT); 3]), "4 / 3");
        assert!(!slower(&[dedicated(4, 4 * GIGABIT)]), "1");
        assert!(slower(&[beside(4)]), "one of the ranks' hosts has 3 tensors come in");
        assert!(slower(&[beside(4), dedicated(4, GIGABIT)]), "y = 3 / 6: 2");
        assert!(!slower(&[beside(4); 4]), "as a ring");
        assert!(!slower(&[beside(2)]), "one tensor each way");
        assert!(slower(&[dedicated(2, GIGABIT)]), "2 against 1");
        assert!(!slower(&[dedicated(1, GIGABIT)]), "all ranks are on one host");
        assert!(!slower(&[beside(1)]));
        assert!(!slower(&[Links { has_combiners: true, ..dedicated(4, GIGABIT) }]));
    }

    #[test]
    fn links_that_nobody_knows_are_equal() {
        assert_eq!(weights(&[Links::default()]), [10_000]);
        assert_eq!(weights(&[dedicated(2, 0), dedicated(2, GIGABIT)]), [5000, 5000]);
        // A host with a port for each of three ranks, of which none tells its speed.
        let switch = Links { interfaces: 3, ..dedicated(3, 0) };
        assert_eq!(weights(&[switch, dedicated(3, GIGABIT)]), [7500, 2500]);
        assert!(!are_slower_than_a_ring(&[switch]));
        assert!(are_slower_than_a_ring(&[dedicated(3, 0)]));
    }

    /// 50 us at 1 Gb/s are 6250 bytes, of four hosts together.
    #[test]
    fn a_part_keeps_a_link_busy_for_a_while() {
        assert_eq!(least_part(&[beside(4); 4]), 1562);
        assert_eq!(least_part(&[Links { slowest: 10 * GIGABIT, ..beside(8) }; 8]), 7812);
        assert_eq!(least_part(&[Links { slowest: 0, ..beside(2) }]), 31_250);
        let slowest = Links { slowest: GIGABIT / 10, ..dedicated(2, GIGABIT) };
        assert_eq!(least_part(&[dedicated(2, GIGABIT), slowest]), 312, "the slowest link decides");
    }

    #[test]
    fn shares_are_parts_of_all_weights() {
        assert_eq!(shares(&[2, 1, 1]), [5000, 2500, 2500]);
        assert_eq!(shares(&[1667, 1667, 1667, 1667, 3333]), [1667, 1667, 1667, 1667, 3333]);
        assert_eq!(shares(&[0, 7]), [0, 10_000]);
        assert_eq!(shares(&[u32::MAX; 4]), [2500; 4]);
    }

    proptest! {
        /// The parts are the whole, and nobody who works needs longer than the others: the links of
        /// all aggregators are busy for the same time, computed from what crosses each.
        #[test]
        fn all_links_are_busy_for_the_same_time(
            hosts in 2u32..64,
            with_one in 0u32..64,
            spare in prop::collection::vec(1u64..=16, 0..8),
        ) {
            let with_one = with_one.min(hosts);
            prop_assume!(with_one as usize + spare.len() > 0);
            let mut all: Vec<Links> = vec![beside(hosts); with_one as usize];
            all.extend(spare.iter().map(|gigabits| dedicated(hosts, gigabits * GIGABIT)));
            let weights = weights(&all);
            let (n, whole) = (f64::from(hosts), f64::from(weights.iter().sum::<u32>()));
            prop_assert!((whole - 10_000.0).abs() <= all.len() as f64);
            let times = all.iter().zip(&weights).filter(|(_, weight)| **weight > 0);
            let times: Vec<f64> = times.map(|(links, weight)| {
                let part = f64::from(*weight) / whole;
                let crosses = match links.is_on_ranks_host {
                    true => (1.0 - part) + (n - 1.0) * part,
                    false => n * part,
                };
                crosses / (links.own as f64 / GIGABIT as f64)
            }).collect();
            let (least, most) = times.iter().fold((f64::MAX, 0.0f64), |(least, most), time| {
                (least.min(*time), most.max(*time))
            });
            // Weights are rounded to 1 / 10,000.
            prop_assert!(most - least <= 2.0 * n / 10_000.0, "{times:?} {weights:?}");
        }
    }
}
