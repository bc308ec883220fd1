//! The rules of a slot, each branch of them, on a job of three ranks where nothing else is said.

use switchml_protocol::job::{ABORTED, Job};
use switchml_protocol::outcome::Outcome::*;
use switchml_protocol::slot::Slot;
use switchml_rack::can_build_racks;

use crate::kernel::{FIRST_SLOT, Kernel, job, member};
use crate::packet::{CE, CHECKED, EPOCH, JOB, MAX, MAX_I16, Packet, RETRANSMIT, SUM_I16};
use crate::table::Expect::{Broadcast, Drop, Reply};

const MISMATCH: u32 = 1;
const ROUND: u32 = 2;
const REASON_ABORTED: u32 = 3;

/// Rank `rank`'s contribution to round `round` of slot 2: lane `i` is `1000 * rank + 10 * round + i`.
fn contribution(rank: u16, round: u32) -> Packet {
    let base = round.wrapping_mul(10).wrapping_add(1000 * u32::from(rank));
    let lanes: Vec<u32> = (0..32).map(|i| base.wrapping_add(i)).collect();
    Packet::contribution(rank, 2, round, &lanes)
}

/// The sum of it over ranks 0, 1 and 2.
fn sum_of_three(round: u32) -> Vec<u32> {
    (0..32).map(|i| round.wrapping_mul(30).wrapping_add(3000 + 3 * i)).collect()
}

/// What a contribution may become on the way: its check word does not fit any more. It must leave no trace in the slot.
#[track_caller]
fn expect_refused_if_corrupted(kernel: &Kernel, packet: &Packet) {
    let before = kernel.slot(FIRST_SLOT + u32::from(packet.slot));
    for (lane, bit) in [(0, 1), (packet.values.len() - 1, 1 << 31), (packet.values.len() / 2, 1 << 15)] {
        let mut corrupted = Packet { check: Some(packet.right_check()), ..packet.clone() };
        corrupted.values[lane] ^= bit;
        kernel.expect(&corrupted, &Drop(BadCheck));
    }
    assert_eq!(kernel.slot(FIRST_SLOT + u32::from(packet.slot)), before);
}

/// Plays a whole round, which must go by the book.
#[track_caller]
fn play_round(kernel: &Kernel, round: u32) {
    kernel.expect(&contribution(0, round), &Drop(Started));
    kernel.expect(&contribution(1, round), &Drop(Added));
    let last = contribution(2, round);
    kernel.expect(&last, &Broadcast(&last.result_for_all(CHECKED, 3, &sum_of_three(round))));
}

#[test]
fn contributions_are_summed() {
    if !can_build_racks("contributions_are_summed") {
        return;
    }
    let kernel = Kernel::with_job(3);
    for round in 0..5 {
        play_round(&kernel, round);
    }
}

#[test]
fn the_sum_wraps() {
    if !can_build_racks("the_sum_wraps") {
        return;
    }
    let kernel = Kernel::with_job(2);
    let mut first = vec![0u32; 32];
    let mut second = vec![0u32; 32];
    let mut sum = vec![0u32; 32];
    (first[0], second[0], sum[0]) = (0xFFFF_FFFF, 1, 0);
    (first[1], second[1], sum[1]) = (0x7FFF_FFFF, 1, 0x8000_0000);
    (first[30], second[30], sum[30]) = (0x8000_0000, 0x8000_0001, 1);
    (first[31], second[31], sum[31]) = (0xFFFF_FFFE, 0xFFFF_FFFD, 0xFFFF_FFFB);
    kernel.expect(&Packet::contribution(1, 0, 0, &first), &Drop(Started));
    let last = Packet::contribution(0, 0, 0, &second);
    kernel.expect(&last, &Broadcast(&last.result_for_all(CHECKED, 2, &sum)));
}

/// Every size, with lanes that tell their index, and corrupted contributions in between.
#[test]
fn every_size_is_served_whole() {
    if !can_build_racks("every_size_is_served_whole") {
        return;
    }
    let kernel = Kernel::with_job(3);
    for (round, size) in (32..=768).step_by(32).enumerate() {
        let lanes = |rank: u32| -> Vec<u32> { (0..size).map(|i| (i + 1) * (rank + 7) * 0x0001_0003).collect() };
        let packet = |rank: u16| Packet::contribution(rank, 5, round as u32, &lanes(u32::from(rank)));
        // 7 + 8 + 9 = 24
        let sum: Vec<u32> = (0..size).map(|i| (i + 1) * 24 * 0x0001_0003).collect();
        expect_refused_if_corrupted(&kernel, &packet(1));
        kernel.expect(&packet(1), &Drop(Started));
        expect_refused_if_corrupted(&kernel, &packet(2));
        kernel.expect(&packet(2), &Drop(Added));
        expect_refused_if_corrupted(&kernel, &packet(0));
        kernel.expect(&packet(0), &Broadcast(&packet(0).result_for_all(CHECKED, 3, &sum)));
        kernel.expect(&packet(2), &Reply(Replayed, &packet(2).result(CHECKED, 3, &sum)));
    }
}

/// What three ranks put into a lane, and what comes out.
type Lane = ([u32; 3], u32);

fn check_lanes(op: u8, lanes: &[Lane]) {
    let kernel = Kernel::with_job(3);
    let spread = |of: &dyn Fn(&Lane) -> u32| -> Vec<u32> { (0..64).map(|i| of(&lanes[i % lanes.len()])).collect() };
    let packet = |rank: u16| Packet {
        op,
        ..Packet::contribution(rank, 0, 0, &spread(&|(inputs, _)| inputs[usize::from(rank)]))
    };
    kernel.expect(&packet(0), &Drop(Started));
    expect_refused_if_corrupted(&kernel, &packet(1));
    kernel.expect(&packet(1), &Drop(Added));
    expect_refused_if_corrupted(&kernel, &packet(2));
    let result = spread(&|(_, output)| *output);
    kernel.expect(&packet(2), &Broadcast(&packet(2).result_for_all(CHECKED, 3, &result)));
    // The check word of a maximum is made for the RESULT, and kept.
    kernel.expect(&packet(0), &Reply(Replayed, &packet(0).result(CHECKED, 3, &result)));
}

#[test]
fn max_takes_the_largest_signed_number() {
    if !can_build_racks("max_takes_the_largest_signed_number") {
        return;
    }
    check_lanes(
        MAX,
        &[
            ([1, 2, 3], 3),
            ([3, 2, 1], 3),
            ([0xFFFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFD], 0xFFFF_FFFF), // -1, -2, -3
            ([0x8000_0000, 0x7FFF_FFFF, 0], 0x7FFF_FFFF),
            ([0x8000_0000, 0x8000_0000, 0x8000_0001], 0x8000_0001),
            ([0, 0xFFFF_FFFF, 0x8000_0000], 0),
        ],
    );
}

#[test]
fn halves_are_summed_each_for_itself() {
    if !can_build_racks("halves_are_summed_each_for_itself") {
        return;
    }
    check_lanes(
        SUM_I16,
        &[
            ([0x0001_0002, 0x0003_0004, 0x0005_0006], 0x0009_000C),
            ([0x0000_FFFF, 0x0000_0001, 0x0000_0000], 0x0000_0000), // no carry into the upper half
            ([0xFFFF_0000, 0x0001_0000, 0x0000_0000], 0x0000_0000),
            ([0x7FFF_7FFF, 0x0001_0001, 0x0000_0000], 0x8000_8000),
            ([0x8000_FFFE, 0x8000_FFFE, 0x8000_FFFE], 0x8000_FFFA),
        ],
    );
}

#[test]
fn halves_are_compared_each_for_itself() {
    if !can_build_racks("halves_are_compared_each_for_itself") {
        return;
    }
    check_lanes(
        MAX_I16,
        &[
            ([0x0001_0009, 0x0005_0002, 0x0003_0004], 0x0005_0009),
            ([0x8000_7FFF, 0x7FFF_8000, 0x0000_0000], 0x7FFF_7FFF),
            ([0xFFFF_8000, 0xFFFE_8001, 0xFFFD_8000], 0xFFFF_8001),
            ([0x0000_FFFF, 0xFFFF_0000, 0x8000_8000], 0x0000_0000),
        ],
    );
}

#[test]
fn a_rank_that_sends_again_is_told_who_is_in_then_the_result() {
    if !can_build_racks("a_rank_that_sends_again_is_told_who_is_in_then_the_result") {
        return;
    }
    let kernel = Kernel::with_job(3);
    let again = |rank| Packet { flags: CHECKED | RETRANSMIT, ..contribution(rank, 0) };
    kernel.expect(&contribution(1, 0), &Drop(Started));
    kernel.expect(&again(1), &Reply(Pending, &again(1).pending(0b010)));
    kernel.expect(&again(2), &Drop(Added));
    kernel.expect(&again(1), &Reply(Pending, &again(1).pending(0b110)));
    kernel.expect(&again(2), &Reply(Pending, &again(2).pending(0b110)));
    let last = contribution(0, 0);
    kernel.expect(&last, &Broadcast(&last.result_for_all(CHECKED, 3, &sum_of_three(0))));
    for rank in [0, 1, 2, 1] {
        let replay = again(rank);
        kernel.expect(&replay, &Reply(Replayed, &replay.result(CHECKED, 3, &sum_of_three(0))));
    }
}

/// A result is there for those that lost it until the slot is used for the second time after it.
#[test]
fn a_shadow_copy_serves_the_round_before() {
    if !can_build_racks("a_shadow_copy_serves_the_round_before") {
        return;
    }
    let kernel = Kernel::with_job(3);
    let replays = |rank, round| {
        let packet = contribution(rank, round);
        kernel.expect(&packet, &Reply(Replayed, &packet.result(CHECKED, 3, &sum_of_three(round))));
    };
    play_round(&kernel, 0);
    kernel.expect(&contribution(1, 1), &Drop(Started));
    replays(0, 0);
    kernel.expect(&contribution(0, 1), &Drop(Added));
    let last = contribution(2, 1);
    kernel.expect(&last, &Broadcast(&last.result_for_all(CHECKED, 3, &sum_of_three(1))));
    replays(0, 0);
    kernel.expect(&contribution(0, 2), &Drop(Started));
    replays(2, 1);
    // Round 2 took the place of round 0: a late duplicate of that is not counted in.
    kernel.expect(&contribution(1, 0), &Drop(Stale));
    kernel.expect(&contribution(1, 2), &Drop(Added));
    let last = contribution(2, 2);
    kernel.expect(&last, &Broadcast(&last.result_for_all(CHECKED, 3, &sum_of_three(2))));
}

/// The mistake that the round number is there for: a duplicate of an older use of the other set.
#[test]
fn a_late_duplicate_is_not_taken_for_a_new_contribution() {
    if !can_build_racks("a_late_duplicate_is_not_taken_for_a_new_contribution") {
        return;
    }
    let kernel = Kernel::with_job(2);
    let packet = |rank: u16, round: u32| Packet::contribution(rank, 0, round, &[round * 100 + u32::from(rank); 32]);
    kernel.expect(&packet(1, 0), &Drop(Started));
    let last = packet(0, 0);
    kernel.expect(&last, &Broadcast(&last.result_for_all(CHECKED, 2, &[1; 32])));
    kernel.expect(&packet(1, 1), &Drop(Started));
    let replay = packet(1, 0);
    kernel.expect(&replay, &Reply(Replayed, &replay.result(CHECKED, 2, &[1; 32])));
    kernel.expect(&packet(1, 1), &Reply(Pending, &packet(1, 1).pending(0b10)));
    let last = packet(0, 1);
    kernel.expect(&last, &Broadcast(&last.result_for_all(CHECKED, 2, &[201; 32])));
}

#[test]
fn rounds_that_nobody_may_be_in_are_rejected() {
    if !can_build_racks("rounds_that_nobody_may_be_in_are_rejected") {
        return;
    }
    let kernel = Kernel::with_job(3);
    let rejects = |round, newest| {
        let packet = contribution(1, round);
        kernel.expect(&packet, &Reply(WrongRound, &packet.reject(ROUND, newest)));
    };
    // An unused slot begins with round 0.
    for round in [1, 2, 3, 0xFFFF_FFFE, 0xFFFF_FFFF] {
        rejects(round, 0);
    }
    kernel.expect(&contribution(0, 0), &Drop(Started));
    // Round 1 has to wait for round 0, round 2 for round 1.
    rejects(1, 0);
    rejects(2, 0);
    kernel.expect(&contribution(1, 0), &Drop(Added));
    kernel.expect(&contribution(2, 0), &Broadcast(&contribution(2, 0).result_for_all(CHECKED, 3, &sum_of_three(0))));
    rejects(2, 0);
    rejects(3, 0);
    kernel.expect(&contribution(0, 1), &Drop(Started));
    rejects(2, 1);
    rejects(3, 1);
    kernel.expect(&contribution(1, 1), &Drop(Added));
    kernel.expect(&contribution(2, 1), &Broadcast(&contribution(2, 1).result_for_all(CHECKED, 3, &sum_of_three(1))));
    rejects(4, 1);
    kernel.expect(&contribution(0, 2), &Drop(Started));
    rejects(3, 2);
    rejects(4, 2);
    rejects(0x7FFF_FFFF, 2);
    // Half the circle further on counts as the past.
    kernel.expect(&contribution(1, 0x8000_0002), &Drop(Stale));
}

/// Round numbers go round: after 2^32 - 1 comes 0.
#[test]
fn the_round_wraps() {
    if !can_build_racks("the_round_wraps") {
        return;
    }
    let mut kernel = Kernel::with_job(3);
    play_round(&kernel, 0);
    play_round(&kernel, 1);
    let mut element = kernel.slot(FIRST_SLOT + 2);
    element.slot.sets[0].head.round = 0xFFFF_FFFE;
    element.slot.sets[1].head.round = 0xFFFF_FFFF;
    kernel.set_slot(FIRST_SLOT + 2, &element);
    let far = contribution(1, 1);
    kernel.expect(&far, &Reply(WrongRound, &far.reject(ROUND, 0xFFFF_FFFF)));
    kernel.expect(&contribution(1, 0xFFFF_FFFC), &Drop(Stale));
    play_round(&kernel, 0);
    play_round(&kernel, 1);
    kernel.expect(&contribution(0, 0xFFFF_FFFF), &Drop(Stale));
}

/// Every difference poisons the round; all ranks are told the same.
#[test]
fn ranks_that_disagree_on_the_call_all_hear_of_it() {
    if !can_build_racks("ranks_that_disagree_on_the_call_all_hear_of_it") {
        return;
    }
    let differences: [fn(&mut Packet); 4] =
        [|p| p.op = MAX, |p| p.op = SUM_I16, |p| p.values = vec![9; 64], |p| p.fingerprint += 1];
    for (slot, change) in (0..).zip(differences) {
        let kernel = Kernel::with_job(3);
        let packet = |rank| Packet { slot, ..contribution(rank, 0) };
        let mut other = packet(2);
        change(&mut other);
        let detail = 1 << 16 | 2; // the first, and the one that differed
        kernel.expect(&packet(1), &Drop(Started));
        kernel.expect(&other, &Reply(Mismatch, &other.reject(MISMATCH, detail)));
        for packet in [packet(0), packet(1), packet(2), other] {
            kernel.expect(&packet, &Reply(Mismatch, &packet.reject(MISMATCH, detail)));
        }
        // There is no way on from here within the epoch.
        let next = Packet { slot, ..contribution(0, 1) };
        kernel.expect(&next, &Reply(WrongRound, &next.reject(ROUND, 0)));
    }
}

/// A call may differ from that of the round before, but not from that of its own.
#[test]
fn a_complete_round_can_be_poisoned_too() {
    if !can_build_racks("a_complete_round_can_be_poisoned_too") {
        return;
    }
    let kernel = Kernel::with_job(3);
    play_round(&kernel, 0);
    let other = Packet { fingerprint: 1, ..contribution(1, 0) };
    kernel.expect(&other, &Reply(Mismatch, &other.reject(MISMATCH, 1)));
    let next = Packet { fingerprint: 1, ..contribution(1, 1) };
    kernel.expect(&next, &Reply(WrongRound, &next.reject(ROUND, 0)));
}

#[test]
fn flags_accumulate() {
    if !can_build_racks("flags_accumulate") {
        return;
    }
    let kernel = Kernel::with_job(3);
    let sends = |flags: [u8; 3], round: u32, expected: u8| {
        let packet = |rank: u16| Packet { flags: flags[usize::from(rank)], ..contribution(rank, round) };
        kernel.expect(&packet(0), &Drop(Started));
        kernel.expect(&packet(1), &Drop(Added));
        kernel.expect(&packet(2), &Broadcast(&packet(2).result_for_all(expected, 3, &sum_of_three(round))));
        kernel.expect(&packet(1), &Reply(Replayed, &packet(1).result(expected, 3, &sum_of_three(round))));
    };
    sends([CHECKED | RETRANSMIT; 3], 0, CHECKED);
    sends([CHECKED, CHECKED | CE, CHECKED], 1, CHECKED | CE);
    sends([CHECKED | CE, CHECKED, CHECKED], 2, CHECKED | CE);
    sends([CHECKED, CHECKED, CHECKED | CE], 3, CHECKED | CE);
    sends([CHECKED; 3], 4, CHECKED);
}

#[test]
fn one_rank_alone_is_complete_at_once() {
    if !can_build_racks("one_rank_alone_is_complete_at_once") {
        return;
    }
    let kernel = Kernel::with_job(1);
    for round in 0..4 {
        let packet = contribution(0, round);
        kernel.expect(&packet, &Broadcast(&packet.result_for_all(CHECKED, 1, &packet.values)));
    }
}

#[test]
fn sixty_four_ranks_fill_the_bitmap() {
    if !can_build_racks("sixty_four_ranks_fill_the_bitmap") {
        return;
    }
    let kernel = Kernel::with_job(64);
    for round in 0..3 {
        let packet = |rank: u16| Packet::contribution(rank, 1, round, &[1 << (rank % 32); 32]);
        kernel.expect(&packet(63), &Drop(Started));
        kernel.expect(&packet(63), &Reply(Pending, &packet(63).pending(1 << 63)));
        for rank in 1..63 {
            kernel.expect(&packet(rank), &Drop(Added));
        }
        kernel.expect(&packet(7), &Reply(Pending, &packet(7).pending(u64::MAX - 1)));
        // Twice each power of two.
        kernel.expect(&packet(0), &Broadcast(&packet(0).result_for_all(CHECKED, 64, &[0xFFFF_FFFE; 32])));
    }
}

/// Nothing of the epoch before is left, though nobody has cleared the slots.
#[test]
fn a_new_epoch_finds_the_slots_empty() {
    if !can_build_racks("a_new_epoch_finds_the_slots_empty") {
        return;
    }
    let mut kernel = Kernel::with_job(3);
    play_round(&kernel, 0);
    play_round(&kernel, 1);
    kernel.expect(&contribution(0, 2), &Drop(Started));
    let epoch = EPOCH + 1;
    kernel.set_job(JOB, &Job { epoch, ..job(3) });
    for rank in 0..3 {
        kernel.set_member(JOB, rank, &switchml_protocol::job::Member { epoch, ..member(rank) });
    }
    kernel.expect(&contribution(1, 2), &Drop(WrongEpoch));
    let packet = |rank, round| Packet { epoch, ..contribution(rank, round) };
    for round in [1, 2, 3] {
        kernel.expect(&packet(1, round), &Reply(WrongRound, &packet(1, round).reject(ROUND, 0)));
    }
    for round in [0, 1, 2] {
        kernel.expect(&packet(0, round), &Drop(Started));
        kernel.expect(&packet(1, round), &Drop(Added));
        let last = packet(2, round);
        kernel.expect(&last, &Broadcast(&last.result_for_all(CHECKED, 3, &sum_of_three(round))));
    }
}

#[test]
fn an_aborted_job_rejects_its_members() {
    if !can_build_racks("an_aborted_job_rejects_its_members") {
        return;
    }
    let mut kernel = Kernel::with_job(3);
    kernel.set_job(JOB, &Job { state: ABORTED, ..job(3) });
    for packet in [contribution(0, 0), contribution(1, 0), contribution(2, 17)] {
        kernel.expect(&packet, &Reply(Aborted, &packet.reject(REASON_ABORTED, 0)));
    }
    assert_eq!(kernel.slot(FIRST_SLOT + 2).slot, Slot::default());
    let elsewhere = Packet { rank: 0, ..contribution(1, 0) };
    kernel.expect_frame(&contribution(1, 0).request().bytes(&elsewhere.bytes()), 1, &Drop(WrongPlace));
}

/// A job's slots are its own: those of the neighbours stand still.
#[test]
fn jobs_do_not_share_slots() {
    if !can_build_racks("jobs_do_not_share_slots") {
        return;
    }
    let mut kernel = Kernel::with_job(2);
    kernel.set_job(255, &Job { first_slot: FIRST_SLOT + 8, ..job(2) });
    for rank in 0..2 {
        kernel.set_member(255, rank, &member(rank));
    }
    kernel.set_group(255, &[1]);
    let other = |rank: u16| Packet { job: 255, ..Packet::contribution(rank, 0, 0, &[40 + u32::from(rank); 32]) };
    let mine = |rank: u16| Packet::contribution(rank, 7, 0, &[u32::from(rank) + 1; 32]);
    kernel.expect(&mine(0), &Drop(Started));
    kernel.expect(&other(1), &Drop(Started));
    kernel.expect(&mine(1), &Broadcast(&mine(1).result_for_all(CHECKED, 2, &[3; 32])));
    kernel.expect(&other(0), &Broadcast(&other(0).result_for_all(CHECKED, 2, &[81; 32])));
    let used: Vec<u32> = (0..64).filter(|index| kernel.slot(*index).slot != Slot::default()).collect();
    assert_eq!(used, [FIRST_SLOT + 7, FIRST_SLOT + 8]);
}
