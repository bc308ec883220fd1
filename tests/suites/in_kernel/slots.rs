//! Slots, as far as the vectors (`tests/suites/vectors`), which have each branch of their rules, do
//! not look into them.

use switchml_protocol::bpf_types::job::{ABORTED, JobEntry};
use switchml_protocol::outcome::Outcome::*;
use switchml_protocol::root::slot::Slot;
use switchml_rack::needs_racks;

use switchml_test_support::frame::{CHECKED, JOB, MAX, Packet};
use switchml_test_support::kernel::table::Expect::{Broadcast, Drop, Reply};
use switchml_test_support::kernel::{FIRST_SLOT, Kernel, job, member};

const REASON_ABORTED: u32 = 3;

/// Rank `rank`'s contribution to round `round` of slot 2: lane `i` is `1000 * rank + 10 * round +
/// i`.
fn contribution(rank: u16, round: u32) -> Packet {
    let base = round.wrapping_mul(10).wrapping_add(1000 * u32::from(rank));
    let lanes: Vec<u32> = (0..32).map(|i| base.wrapping_add(i)).collect();
    Packet::contribution(rank, 2, round, &lanes)
}

/// The sum of it over ranks 0, 1 and 2.
fn sum_of_three(round: u32) -> Vec<u32> {
    (0..32).map(|i| round.wrapping_mul(30).wrapping_add(3000 + 3 * i)).collect()
}

/// Corrupts a contribution so that its check word does not fit any more. It must leave no trace in
/// the slot.
#[track_caller]
fn expect_refused_if_corrupted(kernel: &Kernel, packet: &Packet) {
    let before = kernel.slot(FIRST_SLOT + u32::from(packet.slot));
    for (lane, bit) in
        [(0, 1), (packet.values.len() - 1, 1 << 31), (packet.values.len() / 2, 1 << 15)]
    {
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
    needs_racks!();
    let kernel = Kernel::with_job(3);
    for round in 0..5 {
        play_round(&kernel, round);
    }
}

/// Every size, with lanes that tell their index, and corrupted contributions in between.
#[test]
fn every_size_is_served_whole() {
    needs_racks!();
    let kernel = Kernel::with_job(3);
    for (round, size) in (32..=768).step_by(32).enumerate() {
        let lanes = |rank: u32| -> Vec<u32> {
            (0..size).map(|i| (i + 1) * (rank + 7) * 0x0001_0003).collect()
        };
        let packet =
            |rank: u16| Packet::contribution(rank, 5, round as u32, &lanes(u32::from(rank)));
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

/// The values of three ranks in a lane, and the result.
type Lane = ([u32; 3], u32);

fn check_maxima(lanes: &[Lane]) {
    let kernel = Kernel::with_job(3);
    let spread = |of: &dyn Fn(&Lane) -> u32| -> Vec<u32> {
        (0..64).map(|i| of(&lanes[i % lanes.len()])).collect()
    };
    let packet = |rank: u16| Packet {
        op: MAX,
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
    needs_racks!();
    check_maxima(&[
        ([1, 2, 3], 3),
        ([3, 2, 1], 3),
        ([0xFFFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFD], 0xFFFF_FFFF), // -1, -2, -3
        ([0x8000_0000, 0x7FFF_FFFF, 0], 0x7FFF_FFFF),
        ([0x8000_0000, 0x8000_0000, 0x8000_0001], 0x8000_0001),
        ([0, 0xFFFF_FFFF, 0x8000_0000], 0),
    ]);
}

#[test]
fn an_aborted_job_rejects_its_members() {
    needs_racks!();
    let mut kernel = Kernel::with_job(3);
    kernel.set_job(JOB, &JobEntry { state: ABORTED, ..job(3) });
    for packet in [contribution(0, 0), contribution(1, 0), contribution(2, 17)] {
        kernel.expect(&packet, &Reply(Aborted, &packet.reject(REASON_ABORTED, 0)));
    }
    assert_eq!(kernel.slot(FIRST_SLOT + 2).slot, Slot::default());
    let elsewhere = Packet { rank: 0, ..contribution(1, 0) };
    kernel.expect_frame(
        &contribution(1, 0).request().bytes(&elsewhere.bytes()),
        1,
        &Drop(WrongPlace),
    );
}

/// Jobs share no slots: a round of one job changes no slot of the other.
#[test]
fn jobs_do_not_share_slots() {
    needs_racks!();
    let mut kernel = Kernel::with_job(2);
    kernel.set_job(255, &JobEntry { first_slot: FIRST_SLOT + 8, ..job(2) });
    for rank in 0..2 {
        kernel.set_member(255, rank, &member(rank));
    }
    kernel.set_group(255, &[1]);
    let other = |rank: u16| Packet {
        job: 255,
        ..Packet::contribution(rank, 0, 0, &[40 + u32::from(rank); 32])
    };
    let mine = |rank: u16| Packet::contribution(rank, 7, 0, &[u32::from(rank) + 1; 32]);
    kernel.expect(&mine(0), &Drop(Started));
    kernel.expect(&other(1), &Drop(Started));
    kernel.expect(&mine(1), &Broadcast(&mine(1).result_for_all(CHECKED, 2, &[3; 32])));
    kernel.expect(&other(0), &Broadcast(&other(0).result_for_all(CHECKED, 2, &[81; 32])));
    let used: Vec<u32> =
        (0..64).filter(|index| kernel.slot(*index).slot != Slot::default()).collect();
    assert_eq!(used, [FIRST_SLOT + 7, FIRST_SLOT + 8]);
}
