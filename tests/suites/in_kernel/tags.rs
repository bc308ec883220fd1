//! VLAN tags in frames, which XDP takes off and puts back. At tc the kernel does that, except in
//! test runs: `end_to_end` tests tags at tc.

use switchml_protocol::bpf_types::job::{Binding, MemberEntry};
use switchml_protocol::outcome::Outcome::{self, *};
use switchml_rack::needs_racks;

use switchml_test_support::frame::{CHECKED, JOB, Packet};
use switchml_test_support::kernel::table::Expect::{Broadcast, Drop, Pass, Reply};
use switchml_test_support::kernel::{Kernel, binding, member};

/// VLAN 5, and the same with a priority.
const TAG: [u8; 4] = [0x81, 0x00, 0x00, 0x05];
const URGENT: [u8; 4] = [0x81, 0x00, 0xE0, 0x05];
/// A priority without a VLAN.
const PRIORITY: [u8; 4] = [0x81, 0x00, 0xE0, 0x00];

/// A job whose ranks have said HELLO in a VLAN.
fn job_in_vlan(ranks: u32, vlan: u16) -> Kernel {
    let mut kernel = Kernel::with_job(ranks);
    for rank in 0..ranks as u16 {
        let binding = Binding { vlan, ..binding(rank) };
        kernel.set_member(JOB, rank, &MemberEntry { binding, ..member(rank) });
    }
    kernel
}

fn contribution(rank: u16) -> Packet {
    Packet::contribution(rank, 2, 0, &[5 + u32::from(rank); 64])
}

#[test]
fn answers_have_the_tag_of_the_question() {
    needs_racks!();
    let kernel = job_in_vlan(2, 5);
    let pending = contribution(0).pending(1);
    kernel.expect_tagged(&contribution(0), &TAG, &Drop(Started));
    kernel.expect_tagged(&contribution(0), &TAG, &Reply(Pending, &pending));
    kernel.expect_tagged(&contribution(0), &URGENT, &Reply(Pending, &pending));
    let sum = [5 + 6; 64];
    let to_all = contribution(1).result_for_all(CHECKED, 2, &sum);
    kernel.expect_tagged(&contribution(1), &URGENT, &Broadcast(&to_all));
    let again = contribution(0).result(CHECKED, 2, &sum);
    kernel.expect_tagged(&contribution(0), &TAG, &Reply(Replayed, &again));
    // Answers are cut to their length with the tag in them.
    let long = Packet { values: vec![1; 768], ..contribution(0) };
    kernel.expect_tagged(&long, &TAG, &Reply(Mismatch, &long.reject(1, 0)));
}

#[test]
fn a_rank_lives_in_one_vlan() {
    needs_racks!();
    let mut kernel = job_in_vlan(2, 5);
    let unknown = MemberEntry { epoch: 0, binding: Binding::default(), ..member(1) };
    kernel.set_member(JOB, 1, &unknown);
    let hello = Packet::hello(1, 32);
    kernel.expect_tagged(&hello, &TAG, &Reply(Outcome::Hello, &hello));
    assert_eq!(kernel.member(JOB, 1).binding, Binding { vlan: 5, ..binding(1) });
    for packet in [&hello, &contribution(1)] {
        for elsewhere in [&[0x81, 0x00, 0x00, 0x06], &PRIORITY, &[][..]] {
            kernel.expect_tagged(packet, elsewhere, &Drop(WrongPlace));
        }
    }
    kernel.expect_tagged(&contribution(1), &TAG, &Drop(Started));
}

#[test]
fn a_priority_alone_is_no_vlan() {
    needs_racks!();
    let kernel = job_in_vlan(2, 0);
    kernel.expect_tagged(&contribution(0), &PRIORITY, &Drop(Started));
    kernel.expect_tagged(&contribution(0), &[], &Reply(Pending, &contribution(0).pending(1)));
    let pending = contribution(0).pending(1);
    kernel.expect_tagged(&contribution(0), &PRIORITY, &Reply(Pending, &pending));
}

/// A frame that is passed on stays as it was, and a forged one is dropped, whatever its tag.
#[test]
fn tagged_frames_of_others_are_left_alone() {
    needs_racks!();
    let kernel = job_in_vlan(2, 5);
    let tagged = |mut frame: Vec<u8>| {
        frame.splice(12..12, TAG);
        frame
    };
    let mut elsewhere = contribution(0).frame();
    elsewhere[33] ^= 1;
    elsewhere[24..26].fill(0);
    kernel.expect_frame(&tagged(elsewhere), 0, &Pass(NotOurs));
    kernel.expect_frame(&tagged(contribution(0).pending(1).reply(1)), 0, &Drop(Spoofed));
    // Cut off behind the tag, or in it.
    for length in [14, 15, 16, 17, 18, 20, 45] {
        let frame = tagged(contribution(0).frame());
        kernel.expect_frame(&frame[..length], 0, &Pass(NotOurs));
    }
}
