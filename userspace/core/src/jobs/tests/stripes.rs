//! Jobs with several aggregators: what ranks must agree on, and what they are told of links.

use super::*;

const GIGABIT: u64 = 1_000_000_000;

/// A rank of a job of two, at three aggregators.
fn striped(rank: u32, weight: u32) -> Joiner {
    let stripe = Stripe { aggregators: 3, weight };
    Joiner { stripe, ..joiner("train", rank, 2) }
}

#[test]
fn all_ranks_give_the_same_aggregators_and_weights() {
    let mut table = table();
    table.join(&striped(0, 5)).unwrap();
    let refused = |table: &mut Table, stripe| {
        table.join(&Joiner { stripe, ..striped(1, 0) }).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&mut table, Stripe { aggregators: 1, weight: 0 }),
        "job \"train\" has 3 aggregators and weight 5 here, not 1 aggregator; give all ranks the \
         same aggregators, with the same weights, or each job a name"
    );
    let other = refused(&mut table, Stripe { aggregators: 3, weight: 4 });
    assert!(other.contains("weight 5 here, not 3 aggregators and weight 4 here"), "{other}");
    table.join(&striped(1, 5)).unwrap();
}

#[test]
fn links_are_told_alike_to_all_ranks() {
    let link = |of_rank, own: Option<(&str, u64)>| Link {
        of_rank,
        own: own.map(|(name, speed)| (name.to_owned(), speed)),
    };
    let slow = link(GIGABIT, Some(("eth0", 10 * GIGABIT)));
    let fast = |port| link(2 * GIGABIT, Some((port, 10 * GIGABIT)));
    // The links of two ranks; whether the second has the aggregator's address; and what is told:
    // own and slowest link, interfaces, hosts.
    for (links, is_here, expected) in [
        ([slow.clone(), fast("eth1")], false, (20 * GIGABIT, GIGABIT, 2, 2)),
        ([slow.clone(), fast("eth0")], false, (10 * GIGABIT, GIGABIT, 1, 2)),
        ([slow.clone(), link(2 * GIGABIT, None)], true, (0, GIGABIT, 0, 2)),
        ([slow.clone(), link(GIGABIT, Some(("tap1", 0)))], false, (0, GIGABIT, 2, 2)),
        ([slow.clone(), link(0, Some(("eth1", GIGABIT)))], false, (11 * GIGABIT, 0, 2, 2)),
    ] {
        let mut table = table();
        let mut effects = Vec::new();
        for (rank, link) in (0..).zip(links) {
            let peer = if is_here && rank == 1 { LOCAL.into() } else { peer(rank) };
            effects = table.join(&Joiner { link, peer, ..striped(rank, 0) }).unwrap().1;
        }
        let told = told(&effects);
        let links = (told.link_speed, told.slowest_link, told.links, told.hosts);
        assert_eq!(links, expected);
        assert_eq!(told.is_on_ranks_host, is_here);
        let all: Vec<_> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Tell(_, Event::Assigned(told)) => Some((told.aggregator, told.link_speed)),
                _ => None,
            })
            .collect();
        assert_eq!(all, [(told.aggregator, expected.0); 2]);
    }
}

/// Ranks of one host are one host.
#[test]
fn hosts_are_counted_by_their_addresses() {
    let mut table = table();
    let mut effects = Vec::new();
    for rank in 0..4 {
        let joiner = Joiner { peer: peer(rank / 2), ..joiner("train", rank, 4) };
        effects = table.join(&joiner).unwrap().1;
    }
    assert_eq!(told(&effects).hosts, 2);
}

/// Rule 36.8; the next daemon knows it, too.
#[test]
fn operators_see_the_share_that_ranks_have_told() {
    let mut table = durable_table(1);
    let mut effects = Vec::new();
    for rank in 0..2 {
        effects = table.join(&striped(rank, 0)).unwrap().1;
    }
    let spec = opened(&effects);
    let seen = |table: &Table| {
        let job = &table.list()[0];
        (job.aggregators, job.share)
    };
    assert_eq!(seen(&table), (3, None));
    table.report_share(member(&spec, 0), 3333).unwrap();
    assert_eq!(seen(&table), (3, Some(3333)));
    table.report_share(member(&spec, 0), u32::MAX).unwrap();
    assert_eq!(seen(&table), (3, Some(10_000)), "never more than all");
    table.report_share(member(&spec, 1), 3333).unwrap();
    table.ready(member(&spec, 0), 352, HEARD).unwrap();
    let effects = table.ready(member(&spec, 1), 352, HEARD).unwrap();
    let Some(Effect::Save(job)) = effects.first() else { panic!("{effects:?}") };
    let text = serde_json::to_string(job).unwrap();
    let mut next = durable_table(2);
    next.restore(vec![serde_json::from_str(&text).unwrap()], restart::used_epochs());
    assert_eq!(seen(&next), (3, Some(3333)));
}
