//! Contributions without payload: EMPTY and ROOM, rules 8.13 and 9.2.

use switchml_protocol::outcome::Outcome;

use switchml_test_support::packet::{
    CE, CHECKED, EMPTY, MAX, Packet, RESULT, RETRANSMIT, ROOM, check_word,
};
use switchml_test_support::switch::{EPOCH, Served, Switch, contribution};

fn uniform(rank: u16, round: u32, value: u32) -> Packet {
    contribution(rank, 0, round, vec![value; 64])
}

fn empty(rank: u16, round: u32) -> Packet {
    uniform(rank, round, 0).emptied()
}

/// Serves a packet that must change no slot.
fn receive_in_vain(switch: &Switch, packet: &Packet) -> Served {
    let before = switch.slots.borrow().clone();
    let served = switch.receive_from_home(packet);
    assert!(*switch.slots.borrow() == before, "{:?} touched a slot", served.outcome);
    served
}

/// What a ROOM must be: the contribution itself.
fn room(packet: &Packet) -> Served {
    let answer = Packet { kind: ROOM, ..packet.clone() };
    Served { outcome: Outcome::Room, answer: Some(answer) }
}

/// EMPTY contributions add nothing, whichever ranks send them and whatever an earlier round left.
#[test]
fn zeros_count_their_rank_and_add_nothing() {
    for zeros in 0u32..8 {
        let switch = Switch::ready(4, 1);
        for round in 0..4 {
            // Earlier rounds leave values in both sets.
            let is_empty = |rank: u16| round >= 2 && zeros & 1 << rank != 0;
            for rank in 0..3 {
                let packet = if is_empty(rank) {
                    empty(rank, round)
                } else {
                    uniform(rank, round, 100 << rank)
                };
                let outcome = if rank == 0 { Outcome::Started } else { Outcome::Added };
                assert_eq!(
                    switch.receive_from_home(&packet),
                    Served { outcome, answer: None },
                    "ranks {zeros:#b}, round {round}"
                );
            }
            let served = switch.receive_from_home(&uniform(3, round, 1));
            let sum: u32 = (0..3).filter(|rank| !is_empty(*rank)).map(|rank| 100 << rank).sum();
            let result = served.answer.expect("a RESULT");
            assert_eq!((result.kind, result.flags), (RESULT, CHECKED));
            assert_eq!(result.payload, vec![sum + 1; 64], "ranks {zeros:#b}, round {round}");
            assert_eq!(result.check, check_word(&result, 4));
        }
    }
}

/// A corrupt contribution to a round without values leaves it without values.
#[test]
fn corrupt_values_are_not_the_first() {
    let switch = Switch::ready(3, 1);
    switch.receive_from_home(&empty(0, 0));
    let corrupt = Packet { check: 1, ..uniform(1, 0, 9) };
    assert_eq!(receive_in_vain(&switch, &corrupt).outcome, Outcome::BadCheck);
    switch.receive_from_home(&uniform(1, 0, 5));
    assert_eq!(receive_in_vain(&switch, &corrupt).outcome, Outcome::BadCheck);
    let result = switch.receive_from_home(&uniform(2, 0, 2)).answer.expect("a RESULT");
    assert_eq!(result.payload, vec![7; 64]);
}

#[test]
fn congestion_of_zeros_is_told_to_all() {
    let switch = Switch::ready(2, 1);
    let marked = Packet { flags: CHECKED | EMPTY | CE, ..empty(0, 0) };
    switch.receive_from_home(&marked);
    let result = switch.receive_from_home(&uniform(1, 0, 5)).answer.expect("a RESULT");
    assert_eq!(result.flags, CHECKED | CE);
}

/// A contribution that would be answered asks for room; a round without any values completes as
/// others do.
#[test]
fn what_would_be_answered_asks_for_room() {
    let switch = Switch::ready(2, 1);
    let last = Packet { flags: CHECKED | EMPTY | RETRANSMIT, ..empty(1, 0) };
    switch.receive_from_home(&empty(0, 0));
    assert_eq!(receive_in_vain(&switch, &empty(0, 0)), room(&empty(0, 0)), "PENDING");
    assert_eq!(receive_in_vain(&switch, &last), room(&last), "RESULT");
    // Sent again with room, it completes the round.
    let result = switch.receive_from_home(&uniform(1, 0, 0)).answer.expect("a RESULT");
    assert_eq!(result.payload, vec![0; 64]);
    for rank in [0, 1] {
        assert_eq!(receive_in_vain(&switch, &empty(rank, 0)), room(&empty(rank, 0)), "replay");
    }
    assert_eq!(receive_in_vain(&switch, &empty(0, 5)), room(&empty(0, 5)), "REJECT(ROUND)");
    let other_call = Packet { fingerprint: 1, ..empty(0, 0) }.emptied();
    assert_eq!(receive_in_vain(&switch, &other_call), room(&other_call), "REJECT(MISMATCH)");
    let other_lanes = contribution(0, 0, 0, vec![0; 32]).emptied();
    assert_eq!(receive_in_vain(&switch, &other_lanes), room(&other_lanes), "REJECT(MISMATCH)");
    switch.abort();
    assert_eq!(receive_in_vain(&switch, &empty(0, 1)), room(&empty(0, 1)), "REJECT(ABORTED)");
}

#[test]
fn a_job_of_one_has_no_use_for_zeros() {
    let switch = Switch::ready(1, 1);
    assert_eq!(receive_in_vain(&switch, &empty(0, 0)), room(&empty(0, 0)));
}

#[test]
fn zeros_of_a_round_that_is_over_are_stale() {
    let switch = Switch::ready(2, 1);
    for round in 0..3 {
        switch.receive_from_home(&empty(0, round));
        switch.receive_from_home(&uniform(1, round, 1));
    }
    let served = receive_in_vain(&switch, &empty(0, 0));
    assert_eq!(served, Served { outcome: Outcome::Stale, answer: None });
}

#[test]
fn malformed_zeros_are_dropped_by_reason() {
    let switch = Switch::ready(2, 1);
    let good = empty(0, 0);
    let full = uniform(0, 0, 0);
    let cases = [
        (Packet { op: MAX, ..good.clone() }.emptied(), Outcome::BadOp),
        (Packet { lanes: 0, ..good.clone() }.emptied(), Outcome::BadLanes),
        (Packet { lanes: 2, ..good.clone() }.emptied(), Outcome::BadLanes),
        (Packet { flags: CHECKED | EMPTY, ..full.clone() }, Outcome::BadLength),
        (Packet { payload: vec![0], ..good.clone() }, Outcome::BadLength),
        (Packet { flags: CHECKED, ..good.clone() }, Outcome::BadLength),
        (Packet { flags: EMPTY, ..good.clone() }, Outcome::BadCheck),
        (Packet { lanes: 32, ..good.clone() }, Outcome::BadCheck),
        (Packet { epoch: EPOCH + 1, ..good.clone() }, Outcome::WrongEpoch),
        (Packet { kind: ROOM, ..good.clone() }, Outcome::BadKind),
        (Packet { kind: ROOM, ..full }, Outcome::BadLength),
    ];
    for (packet, outcome) in cases {
        assert_eq!(receive_in_vain(&switch, &packet), Served { outcome, answer: None });
    }
    assert_eq!(switch.receive_from_home(&good).outcome, Outcome::Started);
}

#[test]
fn a_room_byte_by_byte() {
    let switch = Switch::ready(2, 1);
    switch.receive_from_home(&empty(0, 0));
    let packet = empty(1, 0);
    let answer = switch.receive_from_home(&packet).answer.expect("a ROOM").to_bytes();
    #[rustfmt::skip]
    let header = [
        1, 7, 0, 3, // version, ROOM, job
        0xE0, 0xC0, 0x00, 0x01, // epoch
        0, 1, 0, 0, // rank 1, slot 0
        0, 0, 0, 0, // round
        0, 12, 0, 64, // SUM, CHECKED and EMPTY, lanes
        0xF0, 0x0D, 0x00, 0x01, // fingerprint
    ];
    assert_eq!(answer[..24], header);
    assert_eq!(answer[24..28], check_word(&packet, 1).to_be_bytes());
    assert_eq!(answer[28..], [0xA0, 0, 0, 1], "aux, and nothing else");
}
