//! One case for every rule of the specification's aggregator section, and for every outcome of
//! `serve`.

use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet;
use switchml_protocol::root::admission::serve;
use switchml_protocol::wire::header::Header;
use switchml_protocol::{MAX_LANES, U32};
use zerocopy::FromBytes;

use switchml_test_support::packet::{
    ALL_OPS, CE, CHECKED, EVERYONE, MAX, PENDING, Packet, REJECT, RESULT, RETRANSMIT, check_word,
    combine,
};
use switchml_test_support::switch::{
    EPOCH, FIRST_SLOT, JOB, Served, Switch, binding, contribution, hello, secret,
};

/// A contribution whose 32 lanes are all `value`.
fn uniform(rank: u16, slot: u16, round: u32, value: u32) -> Packet {
    contribution(rank, slot, round, vec![value; 32])
}

/// Has every rank contribute its number plus 1 to a round.
fn complete(switch: &Switch, ranks: u16, slot: u16, round: u32) {
    for rank in 0..ranks {
        let outcome =
            switch.receive_from_home(&uniform(rank, slot, round, u32::from(rank) + 1)).outcome;
        let expected = match rank {
            _ if rank + 1 == ranks => Outcome::Completed,
            0 => Outcome::Started,
            _ => Outcome::Added,
        };
        assert_eq!(outcome, expected, "rank {rank} of {ranks}, slot {slot}, round {round}");
    }
}

/// Serves a packet from its rank's home, and asserts that this changes no slot.
fn receive_in_vain(switch: &Switch, packet: &Packet) -> Served {
    receive_in_vain_from(switch, &binding(packet.rank), packet)
}

fn receive_in_vain_from(switch: &Switch, from: &Binding, packet: &Packet) -> Served {
    let before = switch.slots.borrow().clone();
    let served = switch.receive(from, packet);
    assert!(*switch.slots.borrow() == before, "{:?} touched a slot", served.outcome);
    served
}

fn assert_dropped(switch: &Switch, packet: &Packet, outcome: Outcome) {
    assert_eq!(receive_in_vain(switch, packet), Served { outcome, answer: None });
}

/// The REJECT that answers a packet.
fn rejection(packet: &Packet, reason: u32, detail: u32) -> Option<Packet> {
    let answer =
        Packet { kind: REJECT, op: 0, flags: 0, payload: vec![reason, detail], ..packet.clone() };
    Some(answer.sealed())
}

// Section 7: admission

#[test]
fn malformed_packets_are_dropped_by_reason() {
    let switch = Switch::ready(2, 2);
    let good = uniform(0, 0, 0, 1);
    for version in [0, 2] {
        assert_dropped(&switch, &Packet { version, ..good.clone() }, Outcome::BadVersion);
    }
    for kind in [0, RESULT, 6, 9, 255] {
        assert_dropped(&switch, &Packet { kind, ..good.clone() }, Outcome::BadKind);
    }
    for kind in [PENDING, REJECT] {
        let long = Packet { kind, payload: vec![0; 64], ..good.clone() }.sealed();
        assert_dropped(&switch, &long, Outcome::BadLanes);
        let reply = Packet { kind, payload: vec![1, 2], ..good.clone() }.sealed();
        assert_dropped(&switch, &reply, Outcome::BadKind);
    }
    for op in [0x02, 0x20, 0xFF] {
        assert_dropped(&switch, &Packet { op, ..good.clone() }, Outcome::BadOp);
    }
    for lanes in [0, 2, 31, 33, 800, 0xFFFF] {
        assert_dropped(&switch, &Packet { lanes, ..good.clone() }, Outcome::BadLanes);
    }
    assert_dropped(&switch, &Packet { lanes: 64, ..good.clone() }, Outcome::BadLength);
    assert_dropped(&switch, &Packet { payload: vec![0; 33], ..good.clone() }, Outcome::BadLength);
}

/// Catches: epoch of the packet not compared; vacant jobs served.
#[test]
fn packets_of_no_job_or_of_another_epoch_are_dropped() {
    let switch = Switch::ready(2, 2);
    for packet in [uniform(0, 0, 0, 1), hello(0)] {
        assert_dropped(&switch, &Packet { job: JOB - 1, ..packet.clone() }, Outcome::UnknownJob);
        assert_dropped(&switch, &Packet { job: JOB + 1, ..packet.clone() }, Outcome::UnknownJob);
        for epoch in [0, EPOCH - 1, EPOCH + 1] {
            assert_dropped(&switch, &Packet { epoch, ..packet.clone() }, Outcome::WrongEpoch);
        }
    }
    switch.vacate();
    assert_dropped(&switch, &uniform(0, 0, 0, 1), Outcome::UnknownJob);
    assert_dropped(&switch, &Packet { epoch: 0, ..uniform(0, 0, 0, 1) }, Outcome::UnknownJob);
}

/// Catches: rank not compared with N; rank N admitted; slot not compared with S.
#[test]
fn ranks_and_slots_outside_of_the_job_are_dropped() {
    let switch = Switch::ready(2, 2);
    for rank in [2, 63, 64, 1023, 1024, 0xFFFF] {
        assert_dropped(&switch, &uniform(rank, 0, 0, 1), Outcome::BadRank);
        assert_dropped(&switch, &hello(rank), Outcome::BadRank);
    }
    for slot in [2, 3, 0xFFFF] {
        assert_dropped(&switch, &uniform(0, slot, 0, 1), Outcome::BadSlot);
    }
}

#[test]
fn a_slot_that_the_pool_lacks_is_a_bad_slot() {
    let switch = Switch::ready(2, 2);
    switch.slots.borrow_mut().truncate(FIRST_SLOT as usize + 1);
    assert_dropped(&switch, &uniform(0, 1, 0, 1), Outcome::BadSlot);
    assert_eq!(switch.receive_from_home(&uniform(0, 0, 0, 1)).outcome, Outcome::Started);
}

#[test]
fn a_busy_slot_drops_the_packet() {
    let switch = Switch::ready(2, 2);
    switch.busy.set(true);
    assert_dropped(&switch, &uniform(0, 0, 0, 1), Outcome::SlotBusy);
    switch.busy.set(false);
    assert_eq!(switch.receive_from_home(&uniform(0, 0, 0, 1)).outcome, Outcome::Started);
}

/// Catches: binding not compared; only the IP address of a binding compared.
#[test]
fn a_contribution_counts_only_from_where_its_rank_lives() {
    let switch = Switch::ready(2, 2);
    let home = binding(0);
    let elsewhere = [
        Binding { ifindex: 99, ..home },
        Binding { ip: [10, 0, 0, 99].into(), ..home },
        Binding { mac: [2, 0, 0, 0, 0, 99], ..home },
        Binding { port: 99.into(), ..home },
        Binding { vlan: 99, ..home },
        binding(1),
    ];
    for from in elsewhere {
        let served = receive_in_vain_from(&switch, &from, &uniform(0, 0, 0, 1));
        assert_eq!(served, Served { outcome: Outcome::WrongPlace, answer: None });
    }
    assert_eq!(switch.receive(&home, &uniform(0, 0, 0, 1)).outcome, Outcome::Started);
}

/// Catches: contributions without HELLO admitted; served as in any epoch.
#[test]
fn hello_opens_the_path_of_its_rank_alone_and_comes_back_unchanged() {
    let switch = Switch::new(2, 2);
    assert_dropped(&switch, &uniform(0, 0, 0, 1), Outcome::NoHello);
    assert_eq!(
        receive_in_vain(&switch, &hello(0)),
        Served { outcome: Outcome::Hello, answer: Some(hello(0)) }
    );
    assert_dropped(&switch, &uniform(1, 0, 0, 1), Outcome::NoHello);
    assert_eq!(switch.receive_from_home(&uniform(0, 0, 0, 1)).outcome, Outcome::Started);
}

#[test]
fn hello_probes_every_size() {
    let switch = Switch::new(2, 2);
    for lanes in (0..=MAX_LANES).step_by(32) {
        let probe = Packet { lanes: lanes as u16, payload: vec![0xABCD; lanes], ..hello(1) };
        assert_eq!(
            receive_in_vain(&switch, &probe),
            Served { outcome: Outcome::Hello, answer: Some(probe) }
        );
    }
    assert_dropped(
        &switch,
        &Packet { lanes: 2, payload: vec![0; 2], ..hello(1) },
        Outcome::BadLanes,
    );
    assert_dropped(
        &switch,
        &Packet { lanes: 800, payload: vec![0; 800], ..hello(1) },
        Outcome::BadLanes,
    );
}

/// Catches: binding learned again and again; other binding accepted silently.
#[test]
fn a_place_is_learned_once_per_epoch() {
    let switch = Switch::new(2, 2);
    let (first, second) = (binding(20), binding(21));
    assert_eq!(switch.receive(&first, &hello(0)).outcome, Outcome::Hello);
    assert_eq!(switch.receive(&first, &hello(0)).outcome, Outcome::Hello);
    let served = receive_in_vain_from(&switch, &second, &hello(0));
    assert_eq!(served, Served { outcome: Outcome::WrongPlace, answer: None });
    assert_eq!(switch.receive(&first, &uniform(0, 0, 0, 1)).outcome, Outcome::Started);

    switch.set_epoch(EPOCH + 1);
    let hello = Packet { epoch: EPOCH + 1, ..hello(0) };
    assert_eq!(switch.receive(&second, &hello).outcome, Outcome::Hello);
    assert_eq!(switch.receive(&first, &hello).outcome, Outcome::WrongPlace);
}

#[test]
fn a_wrong_secret_binds_nothing() {
    let switch = Switch::new(2, 2);
    for aux in [0, secret(1), secret(0) ^ 1] {
        assert_dropped(&switch, &Packet { aux, ..hello(0) }, Outcome::WrongSecret);
    }
    assert_dropped(&switch, &uniform(0, 0, 0, 1), Outcome::NoHello);
    assert_eq!(switch.receive_from_home(&hello(0)).outcome, Outcome::Hello);
    assert_dropped(&switch, &Packet { aux: 0, ..hello(0) }, Outcome::WrongSecret);
}

#[test]
fn a_wrong_check_word_is_dropped_before_it_touches_a_slot() {
    let switch = Switch::ready(2, 2);
    for op in ALL_OPS {
        let good = Packet { op, ..uniform(0, 0, 0, 1) }.sealed();
        assert_dropped(
            &switch,
            &Packet { check: good.check ^ 1, ..good.clone() },
            Outcome::BadCheck,
        );
        let mut corrupt = good.clone();
        corrupt.payload[31] ^= 0x0001_0000;
        assert_dropped(&switch, &corrupt, Outcome::BadCheck);
        assert_dropped(&switch, &Packet { round: 2, ..good.clone() }, Outcome::BadCheck);
        assert_dropped(&switch, &Packet { slot: 1, ..good.clone() }, Outcome::BadCheck);
        assert_dropped(&switch, &Packet { fingerprint: 1, ..good.clone() }, Outcome::BadCheck);
    }
}

#[test]
fn the_last_lane_of_the_largest_packet_is_checked() {
    let switch = Switch::ready(2, 2);
    let mut packet = contribution(0, 0, 0, vec![5; MAX_LANES]);
    packet.payload[MAX_LANES - 1] ^= 1;
    assert_dropped(&switch, &packet, Outcome::BadCheck);
}

#[test]
fn a_contribution_without_the_flag_is_dropped() {
    let switch = Switch::ready(2, 2);
    assert_dropped(&switch, &Packet { flags: 0, ..uniform(0, 0, 0, 1) }, Outcome::BadCheck);
    assert_dropped(
        &switch,
        &Packet { flags: RETRANSMIT | CE, check: 0xBAD, ..uniform(0, 0, 0, 1) },
        Outcome::BadCheck,
    );
    // A rank says HELLO again, and a bit flips: 5 becomes 1, CONTRIBUTION.
    let hello = Packet { payload: vec![0; 32], ..hello(0) };
    assert_dropped(&switch, &Packet { kind: hello.kind ^ 4, ..hello }, Outcome::BadCheck);
}

#[test]
fn a_payload_shorter_than_announced_touches_no_slot() {
    let switch = Switch::ready(2, 2);
    let mut bytes = contribution(0, 0, 0, vec![1; 64]).to_bytes();
    // The data plane says 64 lanes, and has 63.
    let (header, payload) = Header::mut_from_prefix(&mut bytes).unwrap();
    let (payload, _) = <[U32]>::mut_from_prefix_with_elems(payload, 63).unwrap();
    let before = switch.slots.borrow().clone();
    let mut packet = packet::Packet::new(header, payload, 256);
    assert_eq!(serve(&switch, &binding(0), &mut packet), Outcome::Truncated);
    assert!(*switch.slots.borrow() == before);
}

/// Catches: aborted job still adds; aborted before admission (strangers answered).
#[test]
fn members_of_an_aborted_job_are_told_and_nothing_is_added() {
    let switch = Switch::ready(2, 2);
    assert_eq!(switch.receive_from_home(&uniform(0, 0, 0, 1)).outcome, Outcome::Started);
    switch.abort();
    for packet in [uniform(1, 0, 0, 2), uniform(0, 0, 0, 1), uniform(0, 1, 7, 1)] {
        let served = receive_in_vain(&switch, &packet);
        assert_eq!(served, Served { outcome: Outcome::Aborted, answer: rejection(&packet, 3, 0) });
    }
    // A stranger gets no answer from an aborted job either.
    assert_eq!(
        receive_in_vain_from(&switch, &binding(9), &uniform(1, 0, 0, 2)).outcome,
        Outcome::WrongPlace
    );
    assert_dropped(&switch, &uniform(1, 2, 0, 2), Outcome::BadSlot);
    assert_dropped(&switch, &Packet { check: 0, ..uniform(1, 0, 0, 2) }, Outcome::BadCheck);
    // A rank that joins late finds its path, and hears of the abort on it.
    assert_eq!(receive_in_vain(&switch, &hello(0)).outcome, Outcome::Hello);
}

// Rules 8.3 to 8.6: a round that takes contributions

/// Catches: never complete; epoch not recorded; RESULT: check word of the last contribution;
/// RESULT: values not written.
#[test]
fn the_last_contribution_brings_the_sum_to_all() {
    let switch = Switch::ready(3, 2);
    let lanes = |of: fn(u32) -> u32| (0..32).map(of).collect::<Vec<_>>();
    let nothing = |outcome| Served { outcome, answer: None };
    let from = |rank, lanes| switch.receive_from_home(&contribution(rank, 1, 0, lanes));
    assert_eq!(from(2, lanes(|lane| lane)), nothing(Outcome::Started));
    assert_eq!(from(0, lanes(|lane| 100 * lane)), nothing(Outcome::Added));
    let served = from(1, lanes(|lane| u32::MAX - 200 * lane));
    assert_eq!(served.outcome, Outcome::Completed);

    // lane + 100 lane + (2^32 - 1 - 200 lane) = -1 - 99 lane
    let mut expected = Packet {
        kind: RESULT,
        rank: EVERYONE,
        flags: CHECKED,
        aux: 0,
        payload: lanes(|lane| (-1 - 99 * lane as i32) as u32),
        ..contribution(0, 1, 0, vec![0; 32])
    };
    expected.check = check_word(&expected, 3);
    assert_eq!(served.answer, Some(expected));
}

/// Catches: new round keeps flags; RESULT for all: aux not cleared.
#[test]
fn a_result_byte_by_byte() {
    let switch = Switch::ready(2, 1);
    switch.receive_from_home(&uniform(1, 0, 0, 0x0102_0304));
    let answer =
        switch.receive_from_home(&uniform(0, 0, 0, 0x1000_0000)).answer.unwrap().to_bytes();
    #[rustfmt::skip]
    let header = [
        1, 2, 0, 3, // version, RESULT, job
        0xE0, 0xC0, 0x00, 0x01, // epoch
        0xFF, 0xFF, 0, 0, // everyone, slot 0
        0, 0, 0, 0, // round
        0, 4, 0, 32, // SUM of i32, CHECKED, lanes
        0xF0, 0x0D, 0x00, 0x01, // fingerprint
    ];
    assert_eq!(answer[..24], header);
    assert_eq!(answer[28..32], [0, 0, 0, 0], "aux");
    assert_eq!(answer[32..], [0x11, 0x02, 0x03, 0x04].repeat(32));
}

/// Catches: complete one rank early; check word not aggregated.
#[test]
fn every_operator_at_every_size_of_job() {
    for op in ALL_OPS {
        for ranks in [1, 2, 3, 31, 32, 33, 63, 64, 65, 1023, 1024] {
            let switch = Switch::ready(ranks, 1);
            let payload = |rank: u32| -> Vec<u32> {
                (0..768).map(|lane| (rank * 1000 + lane + 1).wrapping_mul(0x9E37_79B9)).collect()
            };
            let payloads: Vec<_> = (0..ranks).map(payload).collect();
            let mut last = None;
            for rank in (0..ranks).rev() {
                let packet = Packet {
                    op,
                    ..contribution(rank as u16, 0, 0, payloads[rank as usize].clone())
                };
                assert_eq!(last, None);
                last = switch.receive_from_home(&packet.sealed()).answer;
            }
            let result = last.expect("a RESULT");
            let payloads: Vec<&[u32]> = payloads.iter().map(|payload| &payload[..]).collect();
            assert!(result.payload == combine(op, &payloads), "op {op:#x}, {ranks} ranks");
            assert_eq!(
                (result.kind, result.rank, result.op, result.flags),
                (RESULT, EVERYONE, op, CHECKED)
            );
            assert_eq!(
                result.check,
                check_word(&result, u64::from(ranks)),
                "op {op:#x}, {ranks} ranks"
            );
        }
    }
}

/// Catches: check word of MAX aggregated; check word of MAX for one contribution; check word of MAX
/// not stored for later.
#[test]
fn check_word_of_a_maximum_is_made_from_its_values() {
    let switch = Switch::ready(2, 1);
    switch.receive_from_home(&Packet { op: MAX, ..uniform(0, 0, 0, 5) }.sealed());
    let last = Packet { op: MAX, ..uniform(1, 0, 0, u32::MAX) }.sealed();
    let for_all = switch.receive_from_home(&last).answer.unwrap();
    assert_eq!((&for_all.payload, for_all.flags), (&vec![5; 32], CHECKED));
    assert_eq!(for_all.check, check_word(&for_all, 2));
    // and the stored copy has it too
    let again = switch.receive_from_home(&last).answer.unwrap();
    assert_eq!((again.check, again.payload), (for_all.check, for_all.payload));
}

/// Catches: RESULT for all: rank is the last contributor's.
#[test]
fn a_job_of_one_is_complete_at_once() {
    let switch = Switch::ready(1, 1);
    for round in 0..5 {
        let served = switch.receive_from_home(&uniform(0, 0, round, 7 + round));
        assert_eq!(served.outcome, Outcome::Completed);
        let answer = served.answer.unwrap();
        assert_eq!(
            (answer.kind, answer.rank, answer.payload),
            (RESULT, 0xFFFF, vec![7 + round; 32])
        );
    }
}

/// Catches: `seen` not consulted; rank not added to `seen`; filling round replayed; bitmap words of
/// PENDING swapped; PENDING, REJECT: lanes not set; PENDING, REJECT: check word before lanes are
/// set.
#[test]
fn a_rank_that_sends_again_hears_who_is_in() {
    let switch = Switch::ready(64, 1);
    for rank in [63, 0, 32, 5] {
        switch.receive_from_home(&uniform(rank, 0, 0, 1));
    }
    let resend =
        Packet { flags: CHECKED | RETRANSMIT | CE, aux: 0x1234_5678, ..uniform(5, 0, 0, 1) };
    let served = receive_in_vain(&switch, &resend);
    // bits 63 and 32 in the first word, 5 and 0 in the second
    let bitmap = vec![0x8000_0001, 0x0000_0021];
    let answer =
        Packet { kind: PENDING, op: 0, flags: 0, payload: bitmap, ..resend.clone() }.sealed();
    assert_eq!((answer.rank, answer.aux, answer.lanes, answer.flags), (5, 0x1234_5678, 2, CHECKED));
    assert_eq!(served, Served { outcome: Outcome::Pending, answer: Some(answer) });
}

#[test]
fn what_a_rank_sends_again_is_not_added_even_if_it_changed() {
    let switch = Switch::ready(2, 1);
    switch.receive_from_home(&uniform(0, 0, 0, 1));
    assert_eq!(receive_in_vain(&switch, &uniform(0, 0, 0, 100)).outcome, Outcome::Pending);
    let answer = switch.receive_from_home(&uniform(1, 0, 0, 2)).answer.unwrap();
    assert_eq!(answer.payload, vec![3; 32]);
}

/// Catches: complete round only PENDING; RESULT to one: addressed to everyone; RESULT: flags of the
/// last contribution.
#[test]
fn a_rank_that_lost_the_result_gets_the_stored_copy_to_itself() {
    let switch = Switch::ready(2, 1);
    switch.receive_from_home(&uniform(0, 0, 0, 1));
    let for_all = switch.receive_from_home(&uniform(1, 0, 0, 2)).answer.unwrap();
    for rank in [0, 1] {
        let resend =
            Packet { flags: CHECKED | RETRANSMIT, aux: 77, ..uniform(rank, 0, 0, 9) }.sealed();
        let served = receive_in_vain(&switch, &resend);
        let expected = Packet { rank, aux: 77, ..for_all.clone() };
        assert_eq!(served, Served { outcome: Outcome::Replayed, answer: Some(expected) });
    }
}

/// Catches: a first contribution leaves its values though its check word is wrong.
#[test]
fn a_damaged_first_contribution_leaves_the_stored_copy() {
    let switch = Switch::ready(2, 1);
    complete(&switch, 2, 0, 0);
    complete(&switch, 2, 0, 1);
    let replay = || receive_in_vain(&switch, &uniform(1, 0, 0, 2)).answer.unwrap();
    let stored = replay();
    assert_eq!(stored.payload, [1 + 2; 32]);
    for op in ALL_OPS {
        let first = Packet { op, ..uniform(0, 0, 2, 7) }.sealed();
        let damaged = Packet { check: first.check ^ 1, ..first };
        assert_dropped(&switch, &damaged, Outcome::BadCheck);
    }
    assert_eq!(replay(), stored);
}

/// Catches: sets chosen the other way for odd rounds.
#[test]
fn the_stored_copy_lasts_until_the_round_after_the_next_begins() {
    let switch = Switch::ready(2, 1);
    complete(&switch, 2, 0, 0);
    let replay = |round| receive_in_vain(&switch, &uniform(0, 0, round, 1));
    assert_eq!(replay(0).outcome, Outcome::Replayed);
    switch.receive_from_home(&uniform(1, 0, 1, 10));
    assert_eq!(replay(0).answer.unwrap().payload, vec![3; 32]);
    switch.receive_from_home(&uniform(0, 0, 1, 20));
    assert_eq!(replay(0).answer.unwrap().payload, vec![3; 32]);
    assert_eq!(replay(1).answer.unwrap().payload, vec![30; 32]);
    switch.receive_from_home(&uniform(1, 0, 2, 100));
    assert_eq!(replay(0), Served { outcome: Outcome::Stale, answer: None });
    assert_eq!(replay(1).answer.unwrap().payload, vec![30; 32]);
}

/// Catches: new round keeps `seen`; first values combined, not stored.
#[test]
fn a_new_round_starts_from_its_first_contribution_alone() {
    let switch = Switch::ready(2, 1);
    for round in 0..6 {
        complete(&switch, 2, 0, round);
        assert_eq!(
            receive_in_vain(&switch, &uniform(0, 0, round, 0)).answer.unwrap().payload,
            vec![3; 32]
        );
    }
    // ... also when it is shorter than the round before the last
    let switch = Switch::ready(1, 1);
    for (round, lanes) in [(0, 768), (1, 32), (2, 64), (3, 768)] {
        let answer =
            switch.receive_from_home(&contribution(0, 0, round, vec![1; lanes])).answer.unwrap();
        assert_eq!(answer.payload, vec![1; lanes]);
    }
}

#[test]
fn congestion_is_told_to_all_if_any_saw_it() {
    let cases = [
        ([CHECKED, CHECKED, CHECKED], CHECKED),
        ([CHECKED | CE, CHECKED, CHECKED], CHECKED | CE),
        ([CHECKED, CHECKED, CHECKED | CE], CHECKED | CE),
        ([CHECKED | RETRANSMIT, CHECKED | RETRANSMIT, CHECKED | RETRANSMIT], CHECKED),
        ([0xD0 | CHECKED, 0xD0 | CHECKED, 0xD0 | CHECKED], CHECKED),
    ];
    for (contributed, expected) in cases {
        for op in ALL_OPS {
            let switch = Switch::ready(3, 1);
            let mut served = None;
            for (rank, flags) in (0..).zip(contributed) {
                let packet = Packet { flags, ..Packet { op, ..uniform(rank, 0, 0, 1) }.sealed() };
                served = switch.receive_from_home(&packet).answer;
            }
            assert_eq!(served.unwrap().flags, expected, "{contributed:x?}");
            let replay = switch.receive_from_home(&Packet { op, ..uniform(0, 0, 0, 1) }.sealed());
            assert_eq!(replay.answer.unwrap().flags, expected, "{contributed:x?}");
        }
    }
}

/// The first contribution, and three that differ from it in one property of the call.
fn calls(rank: u16, slot: u16, round: u32) -> [Packet; 3] {
    let packet = uniform(rank, slot, round, 1);
    [
        Packet { op: MAX, ..packet.clone() }.sealed(),
        Packet { payload: vec![1; 64], ..packet.clone() }.sealed(),
        Packet { fingerprint: packet.fingerprint + 1, ..packet }.sealed(),
    ]
}

#[test]
fn ranks_that_disagree_on_the_call_poison_the_round() {
    for variant in 0..3 {
        let switch = Switch::ready(4, 2);
        switch.receive_from_home(&uniform(2, 0, 0, 1));
        switch.receive_from_home(&uniform(0, 0, 0, 1));
        let dissent = &calls(1, 0, 0)[variant];
        let served = switch.receive_from_home(dissent);
        assert_eq!(
            served,
            Served { outcome: Outcome::Mismatch, answer: rejection(dissent, 1, 0x0002_0001) }
        );
        // Everyone hears the same from then on: those who agree, those who were in, and the next
        // dissenter.
        for packet in
            [uniform(3, 0, 0, 1), uniform(2, 0, 0, 1), calls(3, 0, 0)[2].clone(), dissent.clone()]
        {
            let served = receive_in_vain(&switch, &packet);
            assert_eq!(
                served,
                Served { outcome: Outcome::Mismatch, answer: rejection(&packet, 1, 0x0002_0001) }
            );
        }
        // The round never completes, so the next one cannot begin; other slots go on.
        let next = uniform(3, 0, 1, 1);
        let served = receive_in_vain(&switch, &next);
        assert_eq!(served, Served { outcome: Outcome::WrongRound, answer: rejection(&next, 2, 0) });
        assert_eq!(switch.receive_from_home(&uniform(3, 1, 0, 1)).outcome, Outcome::Started);
    }
}

/// Catches: poisoned round goes on for those who agree; op not compared; lanes not compared;
/// fingerprint not compared; complete rounds not poisoned; last dissenter named, not the first;
/// MISMATCH detail the other way round.
#[test]
fn a_rank_that_disagrees_with_itself_poisons_the_round_too() {
    for dissent in calls(1, 0, 0) {
        let switch = Switch::ready(2, 1);
        switch.receive_from_home(&uniform(1, 0, 0, 1));
        let served = switch.receive_from_home(&dissent);
        assert_eq!(served.answer, rejection(&dissent, 1, 0x0001_0001));
        // also once the round is complete
        let switch = Switch::ready(2, 1);
        complete(&switch, 2, 0, 0);
        assert_eq!(switch.receive_from_home(&dissent).answer, rejection(&dissent, 1, 0x0000_0001));
        assert_eq!(receive_in_vain(&switch, &uniform(0, 0, 0, 1)).outcome, Outcome::Mismatch);
        assert_eq!(receive_in_vain(&switch, &uniform(0, 0, 1, 1)).outcome, Outcome::WrongRound);
    }
}

#[test]
fn rounds_may_differ_from_each_other() {
    let switch = Switch::ready(1, 1);
    for round in 0..4 {
        let call = &calls(0, 0, round)[round as usize % 3];
        assert_eq!(switch.receive_from_home(call).outcome, Outcome::Completed);
    }
}

// Rules 8.7 and 8.8: starting a round

#[test]
fn an_epoch_starts_with_round_0() {
    for round in [1, 2, 3, 4, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF] {
        let switch = Switch::ready(2, 1);
        let packet = uniform(0, 0, round, 1);
        let served = receive_in_vain(&switch, &packet);
        assert_eq!(
            served,
            Served { outcome: Outcome::WrongRound, answer: rejection(&packet, 2, 0) }
        );
        assert_eq!(switch.receive_from_home(&uniform(0, 0, 0, 1)).outcome, Outcome::Started);
    }
}

/// A switch of two ranks and one slot, whose rounds before `round` are complete, and `round` begun
/// by rank 0.
fn begun(round: u32) -> Switch {
    let switch = Switch::ready(2, 1);
    for before in 0..round {
        complete(&switch, 2, 0, before);
    }
    assert_eq!(switch.receive_from_home(&uniform(0, 0, round, 1)).outcome, Outcome::Started);
    switch
}

/// Catches: round 0 starts when any set is empty; round 1 needs a round before round 0; other set
/// need not hold the round before; round before need not be complete.
#[test]
fn a_round_starts_only_when_the_one_before_is_complete() {
    for newest in 0..5 {
        let switch = begun(newest);
        for ahead in 1..=4 {
            let packet = uniform(1, 0, newest + ahead, 1);
            let served = receive_in_vain(&switch, &packet);
            assert_eq!(
                served,
                Served { outcome: Outcome::WrongRound, answer: rejection(&packet, 2, newest) }
            );
        }
        assert_eq!(switch.receive_from_home(&uniform(1, 0, newest, 1)).outcome, Outcome::Completed);
        assert_eq!(
            switch.receive_from_home(&uniform(1, 0, newest + 1, 1)).outcome,
            Outcome::Started
        );
    }
}

#[test]
fn no_round_is_left_out() {
    for newest in 0..5 {
        let switch = begun(newest);
        switch.receive_from_home(&uniform(1, 0, newest, 1));
        for ahead in 2..=5 {
            let packet = uniform(1, 0, newest + ahead, 1);
            let served = receive_in_vain(&switch, &packet);
            assert_eq!(
                served,
                Served { outcome: Outcome::WrongRound, answer: rejection(&packet, 2, newest) }
            );
        }
    }
}

#[test]
fn both_sets_must_hold_the_rounds_before() {
    // Rounds that a pool can only hold after a fault of its memory: the rule is checked all the
    // same.
    let outcome_with = |even: u32, odd: u32, round: u32| {
        let switch = Switch::ready(2, 1);
        complete(&switch, 2, 0, 0);
        complete(&switch, 2, 0, 1);
        for (set, round) in [(0, even), (1, odd)] {
            switch.slots.borrow_mut()[FIRST_SLOT as usize].sets[set].head.round = round;
        }
        switch.receive_from_home(&uniform(0, 0, round, 1)).outcome
    };
    for (even, odd, round, expected) in [
        (10, 11, 12, Outcome::Started),
        (8, 11, 12, Outcome::WrongRound),
        (10, 9, 12, Outcome::WrongRound),
        (10, 13, 12, Outcome::WrongRound),
        (10, 9, 11, Outcome::Started),
        (10, 7, 11, Outcome::WrongRound),
        (12, 9, 11, Outcome::WrongRound),
        (2, 7, 0, Outcome::Stale),
        (u32::MAX - 1, 7, 0, Outcome::WrongRound),
    ] {
        assert_eq!(outcome_with(even, odd, round), expected, "{even}, {odd}, then {round}");
    }
}

// Rules 8.9 and 8.10: rounds that are over

/// Catches: older and newer swapped; stale rounds refused.
#[test]
fn late_duplicates_are_stale() {
    let switch = begun(9);
    for round in 0..=7 {
        assert_dropped(&switch, &uniform(1, 0, round, 1), Outcome::Stale);
    }
    assert_eq!(receive_in_vain(&switch, &uniform(1, 0, 8, 1)).outcome, Outcome::Replayed);
}

#[test]
fn older_and_newer_are_judged_across_half_the_number_circle() {
    let switch = begun(2);
    // Set 0 holds round 2: 2^31 - 2 even rounds are ahead, the others behind.
    assert_eq!(
        receive_in_vain(&switch, &uniform(1, 0, 0x8000_0000, 1)).outcome,
        Outcome::WrongRound
    );
    assert_eq!(receive_in_vain(&switch, &uniform(1, 0, 0x8000_0004, 1)).outcome, Outcome::Stale);
    assert_eq!(receive_in_vain(&switch, &uniform(1, 0, 0xFFFF_FFFE, 1)).outcome, Outcome::Stale);
}

#[test]
fn the_duplicate_that_misleads_the_published_algorithm_is_stale() {
    // c1/0, c0/0, RESULT, c1/1, c1/0 again, c1/1 again: two workers, one slot.
    let switch = Switch::ready(2, 1);
    let outcome =
        |rank, round, value| switch.receive_from_home(&uniform(rank, 0, round, value)).outcome;
    assert_eq!(outcome(1, 0, 1), Outcome::Started);
    assert_eq!(outcome(0, 0, 2), Outcome::Completed);
    assert_eq!(outcome(1, 1, 10), Outcome::Started);
    assert_eq!(outcome(1, 0, 1), Outcome::Replayed);
    assert_eq!(outcome(1, 1, 10), Outcome::Pending);
    let answer = switch.receive_from_home(&uniform(0, 0, 1, 20)).answer.unwrap();
    assert_eq!((answer.round, answer.payload), (1, vec![30; 32]));
    // The next use of set 0 has begun: the duplicate of round 0 must not count for round 2.
    assert_eq!(outcome(0, 2, 200), Outcome::Started);
    assert_eq!(outcome(1, 0, 1), Outcome::Stale);
    let answer = switch.receive_from_home(&uniform(1, 0, 2, 100)).answer.unwrap();
    assert_eq!((answer.round, answer.payload), (2, vec![300; 32]));
}

// Rounds are numbered modulo 2^32

/// Catches: round 0 always starts; rounds compared without wrap-around.
#[test]
fn round_0_follows_the_last_round() {
    let switch = Switch::ready(2, 1);
    complete(&switch, 2, 0, 0);
    complete(&switch, 2, 0, 1);
    for (set, round) in [(0, u32::MAX - 3), (1, u32::MAX - 2)] {
        switch.slots.borrow_mut()[FIRST_SLOT as usize].sets[set].head.round = round;
    }
    for round in [u32::MAX - 1, u32::MAX, 0, 1, 2] {
        for skipped in [round.wrapping_add(1), round.wrapping_add(2)] {
            assert_eq!(
                receive_in_vain(&switch, &uniform(0, 0, skipped, 1)).outcome,
                Outcome::WrongRound
            );
        }
        complete(&switch, 2, 0, round);
        assert_eq!(receive_in_vain(&switch, &uniform(0, 0, round, 1)).outcome, Outcome::Replayed);
        assert_eq!(
            receive_in_vain(&switch, &uniform(0, 0, round.wrapping_sub(1), 1)).outcome,
            Outcome::Replayed
        );
        for stale in 2..6 {
            assert_dropped(&switch, &uniform(0, 0, round.wrapping_sub(stale), 1), Outcome::Stale);
        }
        let ahead = uniform(0, 0, round.wrapping_add(3), 1);
        assert_eq!(receive_in_vain(&switch, &ahead).answer, rejection(&ahead, 2, round));
    }
}

// Epochs

/// Catches: set of another epoch taken for this one; any round starts an epoch; empty set counts as
/// newer; ROUND detail is the set's own round.
#[test]
fn a_new_epoch_finds_every_slot_empty() {
    let switch = begun(5);
    let epoch = EPOCH + 1;
    switch.set_epoch(epoch);
    let renewed = |packet: Packet| Packet { epoch, ..packet }.sealed();
    assert_dropped(&switch, &uniform(1, 0, 5, 1), Outcome::WrongEpoch);
    assert_dropped(&switch, &renewed(uniform(1, 0, 5, 1)), Outcome::NoHello);
    switch.all_say_hello();
    for round in [1, 4, 5, 6] {
        let packet = renewed(uniform(1, 0, round, 1));
        let served = receive_in_vain(&switch, &packet);
        assert_eq!(
            served,
            Served { outcome: Outcome::WrongRound, answer: rejection(&packet, 2, 0) }
        );
    }
    for round in 0..4 {
        assert_eq!(
            switch.receive_from_home(&renewed(uniform(1, 0, round, 1))).outcome,
            Outcome::Started
        );
        let answer = switch.receive_from_home(&renewed(uniform(0, 0, round, 2))).answer.unwrap();
        assert_eq!(answer.payload, vec![3; 32]);
        assert_dropped(&switch, &uniform(1, 0, 5, 1), Outcome::WrongEpoch);
    }
}

#[test]
fn a_new_epoch_heals_a_poisoned_slot_and_an_aborted_job() {
    let switch = Switch::ready(2, 1);
    switch.receive_from_home(&uniform(0, 0, 0, 1));
    switch.receive_from_home(&calls(1, 0, 0)[2]);
    switch.abort();
    switch.set_epoch(EPOCH + 1);
    switch.all_say_hello();
    let renewed = |rank| Packet { epoch: EPOCH + 1, ..uniform(rank, 0, 0, 1) }.sealed();
    assert_eq!(switch.receive_from_home(&renewed(0)).outcome, Outcome::Started);
    assert_eq!(switch.receive_from_home(&renewed(1)).outcome, Outcome::Completed);
}

// Slots

#[test]
fn slots_are_the_jobs_own_and_independent() {
    let switch = Switch::ready(2, 3);
    let untouched = switch.slots.borrow().clone();
    for slot in 0..3 {
        switch.receive_from_home(&uniform(0, slot, 0, u32::from(slot) + 1));
    }
    for slot in [2, 0, 1] {
        let answer = switch.receive_from_home(&uniform(1, slot, 0, 10)).answer.unwrap();
        assert_eq!((answer.slot, answer.payload), (slot, vec![u32::from(slot) + 11; 32]));
    }
    let slots = switch.slots.borrow();
    for index in 0..slots.len() {
        let ours = (FIRST_SLOT as usize..FIRST_SLOT as usize + 3).contains(&index);
        assert_eq!(slots[index] != untouched[index], ours, "slot {index} of the pool");
    }
}

#[test]
fn kinds_on_their_way_to_workers_are_not_served() {
    let switch = Switch::ready(2, 1);
    complete(&switch, 2, 0, 0);
    let result = switch.receive_from_home(&uniform(0, 0, 0, 1)).answer.unwrap();
    assert_dropped(&switch, &result, Outcome::BadKind);
}
