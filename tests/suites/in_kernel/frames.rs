//! The answers, byte by byte.

use switchml_protocol::bpf_types::fanout::{Receivers, direct};
use switchml_protocol::outcome::Outcome::*;
use switchml_protocol::ranks::Ranks;
use switchml_rack::needs_racks;

use switchml_test_support::frame::{CE, CHECKED, Envelope, JOB, Packet};
use switchml_test_support::kernel::table::Expect::{Broadcast, Drop, Reply};
use switchml_test_support::kernel::{Kernel, binding, job};

fn contribution(rank: u16) -> Packet {
    Packet::contribution(rank, 1, 0, &[0x0101_0101; 32])
}

/// A RESULT for all, written out.
#[test]
fn the_groups_frame_is_this() {
    needs_racks!();
    let kernel = Kernel::with_job(2);
    kernel.run(&contribution(0).frame());
    let frame = kernel.run(&contribution(1).frame()).frame;
    #[rustfmt::skip]
    let expected = [
        // to the group's Ethernet address, from the address that the contribution was sent to; IPv4
        0x01, 0x00, 0x5E, 0x01, 0x02, 0x03, 0x02, 0x00, 0x00, 0x00, 0x00, 0xFE, 0x08, 0x00,
        // 188 bytes, may not be fragmented, time to live 64, UDP, checksum
        0x45, 0x00, 0x00, 0xBC, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x3D, 0xAF,
        // 10.0.0.254 to 239.129.2.3
        0x0A, 0x00, 0x00, 0xFE, 0xEF, 0x81, 0x02, 0x03,
        // ports 48864 and 50007, 168 bytes, no checksum
        0xBE, 0xE0, 0xC3, 0x57, 0x00, 0xA8, 0x00, 0x00,
        // version, RESULT, job, epoch
        0x01, 0x02, 0x00, 0x07, 0x01, 0x02, 0x03, 0x04,
        // everyone, slot, round
        0xFF, 0xFF, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00,
        // SUM, CHECKED, 32 lanes, fingerprint
        0x00, 0x04, 0x00, 0x20, 0xFE, 0xED, 0xF0, 0x0D,
    ];
    assert_eq!(frame[..expected.len()], expected);
    // The check word covers the packet's own lanes, and aux is 0.
    let result = contribution(1).result_for_all(CHECKED, 2, &[0x0202_0202; 32]);
    assert_eq!(frame[66..70], result.right_check().to_be_bytes());
    assert_eq!(frame[70..74], [0; 4]);
    assert_eq!(frame[74..], [0x02; 128]);
}

/// Answers are as long as they need to be, however long the packet is that they are made from.
#[test]
fn answers_are_cut_to_their_length() {
    needs_racks!();
    let kernel = Kernel::with_job(2);
    let packet = |rank: u16| Packet { values: vec![1; 768], ..contribution(rank) };
    let padded = |packet: &Packet| {
        let mut frame = packet.frame();
        frame.extend([0xEE; 100]);
        frame
    };
    kernel.expect_frame(&padded(&packet(0)), 0, &Drop(Started));
    let run = kernel.run(&padded(&packet(0)));
    assert_eq!(run.frame.len(), 14 + 20 + 8 + 32 + 8, "PENDING");
    kernel.expect_frame(&padded(&packet(0)), 0, &Reply(Pending, &packet(0).pending(1)));
    let result = packet(1).result_for_all(CHECKED, 2, &[2; 768]);
    kernel.expect_frame(&padded(&packet(1)), 1, &Broadcast(&result));
    let replay = packet(0).result(CHECKED, 2, &[2; 768]);
    kernel.expect_frame(&padded(&packet(0)), 0, &Reply(Replayed, &replay));
    let other = Packet { fingerprint: 0, ..packet(0) };
    kernel.expect_frame(&padded(&other), 0, &Reply(Mismatch, &other.reject(1, 0)));
    let hello = Packet::hello(0, 0);
    kernel.expect_frame(&padded(&hello), 0, &Reply(Hello, &hello));
}

/// A router's mark becomes the flag, in this packet's answer or in its round's, and is not sent on.
#[test]
fn congestion_marks_become_the_flag() {
    needs_racks!();
    const ECN_CE: u8 = 0b11;
    const ECN_ECT0: u8 = 0b10;
    const DSCP: u8 = 0b1010_0000;
    let kernel = Kernel::with_job(3);
    let marked =
        |packet: &Packet, tos: u8| Envelope { tos, ..packet.request() }.bytes(&packet.bytes());
    kernel.run(&marked(&contribution(0), DSCP | ECN_ECT0));
    let pending = kernel.run(&marked(&contribution(0), DSCP | ECN_CE)).frame;
    assert_eq!(pending[15], DSCP | ECN_ECT0);
    kernel.run(&marked(&contribution(1), ECN_CE));
    let result = kernel.run(&marked(&contribution(2), ECN_ECT0)).frame;
    assert_eq!(result[15], ECN_ECT0);
    assert_eq!(result[42 + 17], CHECKED | CE);
    let hello = kernel.run(&marked(&Packet::hello(1, 32), ECN_CE)).frame;
    assert_eq!(hello[42 + 17], CHECKED | CE);
    assert_eq!(hello[15], ECN_ECT0);
}

/// The job says where its RESULTs come from and go to.
#[test]
fn the_group_is_the_jobs() {
    needs_racks!();
    let mut kernel = Kernel::with_job(1);
    // Only 23 bits of the group's address are in the Ethernet address.
    let other = switchml_protocol::bpf_types::job::JobEntry {
        address: [192, 0, 2, 9].into(),
        group: [224, 255, 254, 253],
        ..job(1)
    };
    kernel.set_job(JOB, &other);
    kernel.set_receivers(
        JOB,
        Receivers::new(&other, JOB, direct(&[binding(0)], &Ranks::ALL)).unwrap(),
    );
    let run = kernel.run(&contribution(0).frame());
    assert_eq!(run.verdict, 4, "XDP_REDIRECT");
    assert_eq!(run.frame[..6], [0x01, 0x00, 0x5E, 0x7F, 0xFE, 0xFD]);
    assert_eq!(run.frame[26..34], [192, 0, 2, 9, 224, 255, 254, 253]);
}

/// A job without a group: no rank gets the RESULT, and the counter says so. The round is complete
/// nevertheless.
#[test]
fn without_a_group_ranks_are_served_one_by_one() {
    needs_racks!();
    let mut kernel = Kernel::with_job(1);
    kernel.set_job(JOB + 1, &job(1));
    kernel.set_member(JOB + 1, 0, &switchml_test_support::kernel::member(0));
    let packet = Packet { job: JOB + 1, ..contribution(0) };
    kernel.expect(&packet, &Drop(SendFailed));
    kernel.expect(&packet, &Reply(Replayed, &packet.result(CHECKED, 1, &packet.values)));
}
