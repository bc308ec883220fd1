//! Jobs of more ranks than a PENDING has room for in two lanes: rules 2.3, 8.3 to 8.8, 8.14, 8.15.

use proptest::prelude::*;
use switchml_protocol::outcome::Outcome;

use crate::traces::Lockstep;
use switchml_test_support::packet::{MAX, PENDING, Packet, REJECT};
use switchml_test_support::switch::{EPOCH, Served, Switch, binding, contribution};

/// What a rank contributes: 32 lanes of its number plus 1.
fn own(rank: u16, round: u32) -> Packet {
    contribution(rank, 0, round, vec![u32::from(rank) + 1; 32])
}

/// The partial sum of these ranks' contributions.
fn sum_of(ranks: &[u16], round: u32) -> Packet {
    let total = ranks.iter().map(|rank| u32::from(*rank) + 1).sum();
    Packet { payload: vec![total; 32], ..own(0, round) }.partial(ranks)
}

fn answer(switch: &Switch, packet: &Packet) -> Packet {
    switch.receive_from_home(packet).answer.expect("an answer")
}

/// All contributions of a job to a round: one by one up to rank `single`, then as sums of a host.
fn all_in(ranks: u16, single: u16, round: u32) -> Vec<Packet> {
    let behind: Vec<u16> = (single..ranks).collect();
    let sums = behind.chunk_by(|a, b| a / 4 == b / 4).map(|host| sum_of(host, round));
    (0..single).map(|rank| own(rank, round)).chain(sums).collect()
}

/// Bit b of lane l is rank 32 * (l xor 1) + b.
#[test]
fn a_pending_names_ranks_by_the_arithmetic_of_the_specification() {
    let switch = Switch::ready(1024, 1);
    for rank in [0, 33, 64, 127, 1023] {
        switch.receive_from_home(&own(rank, 0));
    }
    let mut lanes = vec![0; 32];
    (lanes[1], lanes[0], lanes[3], lanes[2], lanes[30]) = (1, 2, 1, 1 << 31, 1 << 31);
    let expected = Packet { kind: PENDING, payload: lanes, ..own(1023, 0) }.sealed();
    assert_eq!(answer(&switch, &own(1023, 0)), expected);
}

/// Two lanes do up to 64 ranks.
#[test]
fn pendings_are_as_long_as_the_job_needs() {
    for (ranks, lanes) in [(2, 2), (64, 2), (65, 32), (1024, 32)] {
        let switch = Switch::ready(ranks, 1);
        switch.receive_from_home(&own(1, 0));
        assert_eq!(answer(&switch, &own(1, 0)).payload.len(), lanes, "{ranks} ranks");
    }
}

/// Values that an earlier job left in a slot never show, whether the next job is larger or smaller.
#[test]
fn slots_change_between_large_and_small_jobs() {
    let mut epoch = EPOCH;
    let slots = Switch::ready(1024, 1).slots;
    for ranks in [1024, 64, 65, 3, 1024, 2] {
        let switch = Switch::ready(ranks, 1);
        switch.slots.swap(&slots);
        epoch += 1;
        switch.set_epoch(epoch);
        switch.all_say_hello();
        for round in 0..3 {
            let of_epoch = |packet: Packet| Packet { epoch, ..packet }.sealed();
            let (last, first) = (ranks as u16 - 1, of_epoch(own(0, round)));
            assert_eq!(switch.receive_from_home(&first).outcome, Outcome::Started);
            let pending = answer(&switch, &first);
            let count: u32 = pending.payload.iter().map(|lane| lane.count_ones()).sum();
            assert_eq!((pending.kind, count), (PENDING, 1), "{ranks} ranks: rank 0 alone");
            for rank in 1..last {
                let served = switch.receive_from_home(&of_epoch(own(rank, round)));
                assert_eq!(served.outcome, Outcome::Added, "rank {rank} of {ranks}");
            }
            let result = answer(&switch, &of_epoch(own(last, round)));
            assert_eq!(result.payload, vec![ranks * (ranks + 1) / 2; 32]);
        }
        switch.slots.swap(&slots);
    }
}

/// Ranks that one byte does not hold.
#[test]
fn a_mismatch_names_large_ranks() {
    let switch = Switch::ready(1024, 1);
    assert_eq!(switch.receive_from_home(&own(1000, 0)).outcome, Outcome::Started);
    let other = Packet { op: MAX, ..own(777, 0) }.sealed();
    let rejected = answer(&switch, &other);
    assert_eq!((rejected.kind, rejected.payload), (REJECT, vec![1, 1000 << 16 | 777]));
    // A partial sum that starts a round does so for its highest rank.
    let switch = Switch::ready(1024, 1);
    let first = sum_of(&[988, 990], 0);
    assert_eq!(switch.receive(&binding(988), &first).outcome, Outcome::Started);
    assert_eq!(answer(&switch, &other).payload, [1, 990 << 16 | 777]);
}

/// The same bit in two groups means different ranks: neither hides the other.
#[test]
fn groups_do_not_overlap() {
    let mut lockstep = Lockstep::new(100, 1, 0, false);
    let mut serve = |packet: Packet| lockstep.receive_from(&binding(packet.ranks()[0]), &packet);
    let mut outcome = |packet| serve(packet).outcome;
    assert_eq!(outcome(sum_of(&[0, 1, 2], 0)), Outcome::Started);
    assert_eq!(outcome(sum_of(&[32, 33, 34], 0)), Outcome::Added);
    assert_eq!(outcome(sum_of(&[64, 65, 66], 0)), Outcome::Added);
    assert_eq!(outcome(own(96, 0)), Outcome::Added);
    assert_eq!(outcome(sum_of(&[32, 33], 0)), Outcome::Duplicate);
    assert_eq!(outcome(sum_of(&[66, 67], 0)), Outcome::Overlap);
    assert_eq!(outcome(own(96, 0)), Outcome::Pending);
    assert_eq!(outcome(own(67, 0)), Outcome::Added);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// In any order, each packet twice, mixed with overlaps: the reference's answers, and the sum.
    #[test]
    fn rounds_of_large_jobs_complete(
        ranks in prop_oneof![Just(65u16), Just(100), Just(1024), 66..1024u16],
        single in 0..100u16,
        seed in any::<u64>(),
    ) {
        let mut lockstep = Lockstep::new(ranks, 1, 0, false);
        for round in 0..3 {
            let mut packets = all_in(ranks, single.min(ranks), round);
            let place = |rank: u16| (seed ^ u64::from(rank)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            packets.sort_by_key(|packet| place(packet.ranks()[0]).rotate_left(round));
            let count = packets.len();
            for (index, packet) in packets.iter().enumerate() {
                let home = binding(packet.ranks()[0]);
                let Served { outcome, answer } = lockstep.receive_from(&home, packet);
                let expected = match index {
                    0 => Outcome::Started,
                    _ if index + 1 == count => Outcome::Completed,
                    _ => Outcome::Added,
                };
                prop_assert_eq!(outcome, expected);
                if outcome == Outcome::Completed {
                    let sum = u32::from(ranks) * (u32::from(ranks) + 1) / 2;
                    prop_assert_eq!(answer.expect("a RESULT").payload, vec![sum; 32]);
                }
                lockstep.receive_from(&home, packet);
                let last = (packet.ranks()[0] | 3).min(ranks - 1);
                lockstep.receive_from(&home, &sum_of(&[packet.ranks()[0], last], round));
            }
        }
    }
}
