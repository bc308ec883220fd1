//! Partial sums at the root: rules 2.9, 3.5, 7.5, 7.9, 7.12, 8.14 and 8.15.

use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::outcome::Outcome;

use switchml_test_support::packet::{
    CE, CHECKED, EMPTY, EVERYONE, MAX, PARTIAL, Packet, RESULT, check_word,
};
use switchml_test_support::switch::{Served, Switch, binding, contribution};

/// What a rank contributes: 32 lanes of its number plus 1.
fn own(rank: u16, round: u32) -> Packet {
    contribution(rank, 0, round, vec![u32::from(rank) + 1; 32])
}

/// The partial sum of these ranks' contributions.
fn sum_of(ranks: &[u16], round: u32) -> Packet {
    let total = ranks.iter().map(|rank| u32::from(*rank) + 1).sum();
    Packet { payload: vec![total; 32], ..own(0, round) }.partial(ranks)
}

/// Serves a packet from where its first rank lives.
fn serve(switch: &Switch, packet: &Packet) -> Served {
    switch.receive(&binding(packet.ranks()[0]), packet)
}

fn assert_outcome(switch: &Switch, packet: &Packet, outcome: Outcome) {
    assert_eq!(serve(switch, packet).outcome, outcome, "{packet:?}");
}

/// Asserts that a packet is dropped with that outcome, and changes no slot.
fn assert_refused(switch: &Switch, packet: &Packet, outcome: Outcome) {
    let before = switch.slots.borrow().clone();
    assert_eq!(serve(switch, packet), Served { outcome, answer: None }, "{packet:?}");
    assert!(before == *switch.slots.borrow(), "a slot was touched");
}

/// The RESULT for all of a round of `ranks` ranks, each of which contributed its number plus 1.
fn result(ranks: u16, round: u32) -> Packet {
    let total = (1..=u32::from(ranks)).sum();
    let mut result =
        Packet { kind: RESULT, rank: EVERYONE, aux: 0, payload: vec![total; 32], ..own(0, round) };
    result.check = check_word(&result, ranks.into());
    result
}

/// The example of section 3.
#[test]
fn the_check_word_of_the_specifications_example() {
    let example = Packet {
        job: 0x0102,
        epoch: 0x0304_0506,
        fingerprint: 0x0D0E_0F10,
        ..contribution(33, 0x0708, 0x090A_0B0C, (1..=32).collect())
    };
    assert_eq!(example.clone().sealed().check, 0xF397_C352);
    let partial = example.partial(&[33, 34]);
    assert_eq!((partial.rank, partial.aux, partial.check), (32, 6, 0xDAC7_45FC));
}

/// Any mixture of partial sums and contributions makes the same RESULT, whichever comes last.
#[test]
fn partial_sums_and_contributions_complete_a_round() {
    let switch = Switch::ready(4, 1);
    let orders: [[Packet; 3]; 3] = [
        [sum_of(&[0, 2], 0), own(1, 0), own(3, 0)],
        [own(3, 1), sum_of(&[1], 1), sum_of(&[0, 2], 1)],
        [own(1, 2), sum_of(&[0, 3], 2), own(2, 2)],
    ];
    for (round, [first, second, last]) in (0..).zip(orders) {
        assert_outcome(&switch, &first, Outcome::Started);
        assert_outcome(&switch, &second, Outcome::Added);
        let served = serve(&switch, &last);
        assert_eq!(served, Served { outcome: Outcome::Completed, answer: Some(result(4, round)) });
    }
}

/// Ranks of the second group, up to the last one of the job, and a partial sum of all of a group.
#[test]
fn each_group_has_its_own_ranks() {
    let switch = Switch::ready(64, 1);
    for group in [1, 0] {
        for host in 0..8 {
            let first = 32 * group + 4 * host;
            let ranks: Vec<u16> = (first..first + 4).collect();
            let expected = match (group, host) {
                (1, 0) => Outcome::Started,
                (0, 7) => Outcome::Completed,
                _ => Outcome::Added,
            };
            assert_outcome(&switch, &sum_of(&ranks, 0), expected);
            assert_refused(&switch, &sum_of(&ranks, 0), Outcome::Duplicate);
        }
    }
    let answer = serve(&switch, &own(63, 0)).answer.expect("a replay");
    assert_eq!(answer.payload, result(64, 0).payload);
}

/// A partial sum with a rank that is in would count it twice. The other's own resend completes the
/// round.
#[test]
fn an_overlap_is_refused_and_resends_complete_the_round() {
    let switch = Switch::ready(3, 1);
    assert_outcome(&switch, &own(0, 0), Outcome::Started);
    assert_refused(&switch, &sum_of(&[0, 1], 0), Outcome::Overlap);
    assert_refused(&switch, &sum_of(&[0], 0), Outcome::Duplicate);
    assert_outcome(&switch, &own(1, 0), Outcome::Added);
    assert_refused(&switch, &sum_of(&[0, 1], 0), Outcome::Duplicate);
    assert_refused(&switch, &sum_of(&[0, 1, 2], 0), Outcome::Overlap);
    assert_eq!(serve(&switch, &own(2, 0)).answer, Some(result(3, 0)));
    assert_refused(&switch, &sum_of(&[0, 1, 2], 0), Outcome::Duplicate);
}

#[test]
fn a_partial_sum_of_a_round_that_is_over_is_stale() {
    let switch = Switch::ready(2, 1);
    for round in 0..3 {
        assert_outcome(&switch, &sum_of(&[0, 1], round), Outcome::Completed);
    }
    assert_refused(&switch, &sum_of(&[0, 1], 0), Outcome::Stale);
    assert_refused(&switch, &sum_of(&[0, 1], 1), Outcome::Duplicate);
}

/// Rule 8.15: what would be answered with a REJECT is dropped, and poisons nothing.
#[test]
fn a_partial_sum_that_the_round_refuses_is_a_conflict() {
    let switch = Switch::ready(3, 1);
    assert_refused(&switch, &sum_of(&[0, 1], 1), Outcome::Conflict);
    assert_outcome(&switch, &own(2, 0), Outcome::Started);
    let other = Packet { fingerprint: 7, ..sum_of(&[0, 1], 0) }.sealed();
    assert_refused(&switch, &other, Outcome::Conflict);
    let other = Packet { op: MAX, ..sum_of(&[0, 1], 0) }.sealed();
    assert_refused(&switch, &other, Outcome::Conflict);
    assert_eq!(serve(&switch, &sum_of(&[0, 1], 0)).answer, Some(result(3, 0)));
    // After completion, too.
    let other = Packet { fingerprint: 7, ..sum_of(&[0, 1], 0) }.sealed();
    assert_refused(&switch, &other, Outcome::Conflict);
    // A rank's own resend poisons, and names the highest rank of the partial sum that began.
    assert_outcome(&switch, &sum_of(&[1, 2], 1), Outcome::Started);
    let dissent = Packet { fingerprint: 7, ..own(0, 1) }.sealed();
    let served = serve(&switch, &dissent);
    assert_eq!(served.outcome, Outcome::Mismatch);
    assert_eq!(served.answer.expect("a REJECT").payload, [1, 2 << 16]);
    assert_refused(&switch, &sum_of(&[0], 1), Outcome::Conflict);
    switch.abort();
    assert_refused(&switch, &sum_of(&[0], 1), Outcome::Conflict);
}

/// Catches: sets that reach beyond N, that are empty, or that begin within a group.
#[test]
fn a_set_has_ranks_of_the_job_alone() {
    let switch = Switch::ready(33, 1);
    let with = |rank, aux| Packet { rank, aux, ..sum_of(&[0], 0) }.sealed();
    for (rank, aux) in
        [(32, 2), (32, 3), (32, 1 << 31), (64, 1), (1024, 1), (1, 1), (31, 1), (0xFFE0, 1)]
    {
        assert_refused(&switch, &with(rank, aux), Outcome::BadRank);
    }
    let empty = with(0, 0);
    let served = switch.receive(&binding(0), &empty);
    assert_eq!(served, Served { outcome: Outcome::BadRank, answer: None });
    assert_outcome(&switch, &with(32, 1), Outcome::Started);
}

/// Rule 7.9: all ranks of the set live where it comes from, whatever its UDP port.
#[test]
fn a_set_has_ranks_of_one_place_alone() {
    let switch = Switch::ready(8, 1);
    let packet = sum_of(&[1, 3], 0);
    let home = binding(1);
    let elsewhere = [
        Binding { ifindex: 99, ..home },
        Binding { ip: binding(4).ip, ..home },
        Binding { mac: binding(4).mac, ..home },
        Binding { vlan: 7, ..home },
        binding(4),
    ];
    for from in elsewhere {
        let served = switch.receive(&from, &packet);
        assert_eq!(served, Served { outcome: Outcome::WrongPlace, answer: None }, "{from:?}");
    }
    assert_refused(&switch, &sum_of(&[3, 4], 0), Outcome::WrongPlace);
    let other_port = Binding { port: 9.into(), ..home };
    assert_eq!(switch.receive(&other_port, &packet).outcome, Outcome::Started);
}

/// Catches: a set admitted for one of its ranks.
#[test]
fn every_rank_of_a_set_has_said_hello() {
    let switch = Switch::new(3, 1);
    for rank in [0, 2] {
        switch.receive(&binding(rank), &switchml_test_support::switch::hello(rank));
    }
    assert_refused(&switch, &sum_of(&[0, 1], 0), Outcome::NoHello);
    assert_refused(&switch, &sum_of(&[0, 1, 2], 0), Outcome::NoHello);
    assert_outcome(&switch, &sum_of(&[0, 2], 0), Outcome::Started);
}

/// Rule 3.5: the check word covers the set, also where as many ranks are in it.
#[test]
fn a_damaged_partial_sum_is_dropped() {
    let switch = Switch::ready(4, 1);
    for first in [true, false] {
        let good = sum_of(if first { &[0, 1] } else { &[2] }, 0);
        for aux in (1..16).filter(|aux| *aux != good.aux) {
            assert_refused(&switch, &Packet { aux, ..good.clone() }, Outcome::BadCheck);
        }
        let lanes = Packet { payload: vec![9; 32], ..good.clone() };
        assert_refused(&switch, &lanes, Outcome::BadCheck);
        let unchecked = Packet { flags: good.flags & !CHECKED, ..good.clone() };
        assert_refused(&switch, &unchecked, Outcome::BadCheck);
        assert_refused(&switch, &Packet { slot: 1, ..good.clone() }, Outcome::BadSlot);
        let outcome = if first { Outcome::Started } else { Outcome::Added };
        assert_outcome(&switch, &good, outcome);
        let damaged = Packet { payload: vec![9; 32], ..good };
        assert_refused(&switch, &damaged, Outcome::BadCheck);
    }
}

/// EMPTY means nothing in a partial sum; CE reaches the RESULT.
#[test]
fn flags_of_partial_sums() {
    let switch = Switch::ready(2, 1);
    let flagged = Packet { flags: CHECKED | EMPTY | CE, ..sum_of(&[0, 1], 0) };
    let expected = Packet { flags: CHECKED | CE, ..result(2, 0) };
    assert_eq!(
        serve(&switch, &flagged),
        Served { outcome: Outcome::Completed, answer: Some(expected) }
    );
}

/// The check word of a maximum's partial sum is that of its values.
#[test]
fn partial_maxima() {
    let switch = Switch::ready(3, 1);
    let max =
        |packet: Packet, value| Packet { op: MAX, payload: vec![value; 32], ..packet }.sealed();
    assert_outcome(&switch, &max(sum_of(&[0, 2], 0), 40), Outcome::Started);
    let served = serve(&switch, &max(own(1, 0), 30));
    let answer = served.answer.expect("the RESULT");
    assert_eq!(answer.payload, vec![40; 32]);
    assert_eq!(answer.check, check_word(&answer, 3));
    assert_eq!(max(sum_of(&[0, 2], 0), 40).kind, PARTIAL);
}

/// Rule 3.5: every flipped bit of the fields that the check word covers is detected, also where the
/// number of ranks is even. (An even number of salts would not tell the highest bits apart.)
#[test]
fn no_flipped_bit_of_a_partial_sum_touches_a_slot() {
    let switch = Switch::ready(64, 1);
    for first in [true, false] {
        let good = sum_of(if first { &[0, 1] } else { &[2, 3] }, 0);
        // Every bit from `job` on except the flags, and of the first byte of the lanes.
        for bit in (16..33 * 8).filter(|bit| !(136..144).contains(bit)) {
            let damaged = good.with_bit_flipped(bit);
            let before = switch.slots.borrow().clone();
            let served = switch.receive(&binding(0), &damaged);
            let is_dropped = !matches!(
                served.outcome,
                Outcome::Started | Outcome::Added | Outcome::Conflict | Outcome::Stale
            );
            assert!(is_dropped, "bit {bit}: {:?}", served.outcome);
            assert!(before == *switch.slots.borrow(), "bit {bit}");
        }
        let outcome = if first { Outcome::Started } else { Outcome::Added };
        assert_outcome(&switch, &good, outcome);
    }
}
