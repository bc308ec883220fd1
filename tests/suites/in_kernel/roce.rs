//! Messages of RoCEv2 in XDP: the answers byte by byte, with their ICRCs, and what is refused.

use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::{Binding, MemberEntry};
use switchml_protocol::outcome::Outcome::{self, *};
use switchml_protocol::wire::header::flags;
use switchml_rack::needs_racks;

use switchml_test_support::frame::{
    AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT, Envelope, JOB, Packet, fix_ip_checksum, key,
    tagged, v6,
};
use switchml_test_support::kernel::table::Expect::{self, Drop, Frame, Pass};
use switchml_test_support::kernel::{Kernel, binding, member, tagged_member};
use switchml_test_support::message::{message, message_over_ipv6, queue_pair, seal};

const IP: usize = 14;
const UDP: usize = 34;
const MESSAGE: usize = 42;

/// Where a rank lives by RoCEv2.
pub fn home(rank: u16) -> Binding {
    let [_, high, a, b] = queue_pair(rank).to_be_bytes();
    Binding { port: U16::from_bytes([a, b]), roce: [1, high], ..binding(rank) }
}

/// A job of ranks that have said HELLO by RoCEv2.
pub fn job_by_roce(ranks: u32) -> Kernel {
    let mut kernel = Kernel::with_roce();
    kernel.open_job(ranks);
    for rank in 0..ranks as u16 {
        kernel.set_member(JOB, rank, &MemberEntry { binding: home(rank), ..member(rank) });
    }
    kernel
}

fn contribution(rank: u16, lanes: usize) -> Packet {
    let values: Vec<u32> = (0..lanes as u32).map(|lane| lane.wrapping_mul(0x9E37_79B1)).collect();
    Packet::contribution(rank, 1, 0, &values)
}

#[test]
fn a_hello_comes_back_and_binds_its_queue_pair() {
    needs_racks!();
    let mut kernel = job_by_roce(2);
    for flag in [0, flags::GROUP] {
        for lanes in [0, 32, 768] {
            let unknown = MemberEntry { epoch: 0, binding: Binding::default(), ..member(1) };
            kernel.set_member(JOB, 1, &unknown);
            let mut hello = Packet::hello(1, lanes);
            hello.flags |= flag;
            kernel.expect_in_xdp(&hello.message(), &Frame(Outcome::Hello, &hello.answer()));
            assert_eq!(kernel.member(JOB, 1).binding, home(1));
        }
    }
}

/// Control replies, replays of all sizes, and how they leave over IPv6.
#[test]
fn each_answer_is_a_message_with_its_icrc() {
    needs_racks!();
    for lanes in [32, 64, 224, 736, 768] {
        let kernel = job_by_roce(2);
        let (first, last) = (contribution(0, lanes), contribution(1, lanes));
        let expect = |packet: &Packet, expected: Expect| {
            kernel.expect_in_xdp(&packet.message(), &expected);
        };
        expect(&first, Drop(Started));
        expect(&first, Frame(Pending, &first.pending(1).answer()));
        kernel.run_xdp(&last.message());
        let sums: Vec<u32> = first.values.iter().map(|value| value.wrapping_mul(2)).collect();
        let replay = first.result(switchml_test_support::frame::CHECKED, 2, &sums);
        expect(&first, Frame(Replayed, &replay.answer()));
        let other = Packet { fingerprint: 0, ..first.clone() };
        expect(&other, Frame(Mismatch, &other.reject(1, 0).answer()));
    }
}

#[test]
fn over_ipv6_too() {
    needs_racks!();
    let mut kernel = job_by_roce(2);
    kernel.add_local(AGGREGATOR_MAC, v6(AGGREGATOR_IP), AGGREGATOR_PORT);
    for rank in 0..2 {
        let binding = Binding { ip: v6_ip(rank), ..home(rank) };
        kernel.set_member(JOB, rank, &MemberEntry { binding, ..member(rank) });
    }
    // Answers keep the flow label, which the ICRC does not cover.
    let answer = |packet: &Packet| {
        let mut frame = message_over_ipv6(&packet.answer());
        frame[IP + 2..IP + 4].copy_from_slice(&[0x12, 0x34]);
        frame
    };
    for lanes in [32, 224, 768] {
        let packet = contribution(0, lanes);
        let expect = |packet: &Packet, expected: Expect| {
            kernel.expect_in_xdp(&message_over_ipv6(&packet.message()), &expected);
        };
        let other = Packet { fingerprint: 0, ..packet.clone() };
        if lanes == 32 {
            expect(&packet, Drop(Started));
        } else {
            expect(&other, Frame(Mismatch, &answer(&other.reject(1, 0))));
        }
        let hello = Packet::hello(1, lanes);
        expect(&hello, Frame(Outcome::Hello, &answer(&hello)));
    }
}

fn v6_ip(rank: u16) -> switchml_protocol::wire::ip::Ip {
    switchml_protocol::wire::ip::Ip(v6(switchml_test_support::frame::ip(rank)))
}

/// The tag is behind the lanes, and the ICRC behind the tag.
#[test]
fn packets_have_tags() {
    needs_racks!();
    for lanes in [32, 768] {
        let mut kernel = Kernel::with_roce();
        kernel.open_tagged_job(2);
        for rank in 0..2 {
            let member = MemberEntry { binding: home(rank), ..tagged_member(rank) };
            kernel.set_member(JOB, rank, &member);
        }
        let packet = contribution(0, lanes);
        let sent = packet.message_of(&tagged(&packet.bytes(), key(0)));
        kernel.expect_in_xdp(&sent, &Drop(Started));
        let pending = packet.answer_of(&tagged(&packet.pending(1).bytes(), key(0)));
        kernel.expect_in_xdp(&sent, &Frame(Pending, &pending));
        let hello = Packet::hello(1, lanes);
        let bytes = tagged(&hello.bytes(), key(1));
        let (sent, back) = (hello.message_of(&bytes), hello.answer_of(&bytes));
        kernel.expect_in_xdp(&sent, &Frame(Outcome::Hello, &back));
    }
}

#[test]
fn vlan_tags_stay_and_marks_become_the_flag() {
    needs_racks!();
    const DSCP: u8 = 0b1010_0000;
    let mut kernel = job_by_roce(2);
    let hello = Packet::hello(1, 32);
    let mut marked = hello.message();
    marked[IP + 1] = DSCP | 0b11;
    fix_ip_checksum(&mut marked[IP..]);
    let flagged = Packet { flags: hello.flags | flags::CE, ..hello.clone() };
    // Neither capable of ECN, nor marked.
    let mut answer = flagged.answer();
    answer[IP + 1] = DSCP;
    fix_ip_checksum(&mut answer[IP..]);
    kernel.expect_in_xdp(&marked, &Frame(Outcome::Hello, &answer));

    let binding = Binding { vlan: 5, ..home(1) };
    kernel.set_member(JOB, 1, &MemberEntry { binding, ..member(1) });
    let in_vlan = |mut frame: Vec<u8>| {
        frame.splice(12..12, [0x81, 0x00, 0xE0, 0x05]);
        frame
    };
    let (sent, back) = (in_vlan(hello.message()), in_vlan(hello.answer()));
    kernel.expect_in_xdp(&sent, &Frame(Outcome::Hello, &back));
    kernel.expect_in_xdp(&hello.message(), &Drop(WrongPlace));
}

/// Changes the lengths that IP and UDP name by so many bytes.
fn lengthen(frame: &mut [u8], ip: i16, udp: i16) {
    for (at, by) in [(IP + 2, ip), (UDP + 4, udp)] {
        let len = u16::from_be_bytes([frame[at], frame[at + 1]]).wrapping_add_signed(by);
        frame[at..at + 2].copy_from_slice(&len.to_be_bytes());
    }
    fix_ip_checksum(&mut frame[IP..]);
}

/// Cuts the message to this length.
fn cut(frame: &mut Vec<u8>, len: usize) {
    let by = (MESSAGE + len) as i16 - frame.len() as i16;
    frame.truncate(MESSAGE + len);
    lengthen(frame, by, by);
}

/// Rule 37.4, and rule 7.1, which comes first.
#[test]
fn what_is_no_message_with_a_packet_is_dropped_by_reason() {
    needs_racks!();
    let kernel = job_by_roce(2);
    let right = contribution(0, 64).message();
    let drop = |outcome, change: fn(&mut Vec<u8>)| {
        let mut frame = right.clone();
        change(&mut frame);
        kernel.expect_in_xdp(&frame, &Drop(outcome));
    };
    drop(BadVersion, |f| f[MESSAGE + 1] = 0x41);
    // UC SEND ONLY, with Immediate, a CNP.
    drop(BadKind, |f| f[MESSAGE] = 0x24);
    drop(BadKind, |f| f[MESSAGE] = 0x65);
    drop(BadKind, |f| f[MESSAGE] = 0x81);
    drop(BadLength, |f| f[MESSAGE + 1] = 0x50);
    drop(BadIpChecksum, |f| f[IP + 10] ^= 1);
    drop(Truncated, |f| f.truncate(f.len() - 1));
    drop(Truncated, |f| f.truncate(MESSAGE + 20));
    // Too short for ICRC and headers, and with a packet that is shorter than its header.
    drop(Truncated, |f| cut(f, 8));
    drop(Truncated, |f| cut(f, 20));
    drop(Truncated, |f| cut(f, 20 + 31 + 4));
    drop(BadLength, |f| lengthen(f, 0, -4));
    drop(BadLength, |f| lengthen(f, -330, 0));
    drop(BadLength, |f| lengthen(f, -4, -4));
    drop(Truncated, |f| lengthen(f, 4, 4));
    // The packet is checked as any other.
    drop(BadCheck, |f| f[MESSAGE + 20 + 32] ^= 1);
    drop(BadVersion, |f| f[MESSAGE + 20] = 2);
    // Nobody compares partition key, PSN and ICRC, or the bytes in front of queue pairs.
    for (index, at) in [2, 4, 9, 16, right.len() - MESSAGE - 1].into_iter().enumerate() {
        let packet = Packet { slot: 2 + index as u16, ..contribution(0, 64) };
        let mut frame = packet.message();
        frame[MESSAGE + at] ^= 0x55;
        kernel.expect_in_xdp(&frame, &Drop(Started));
    }
}

/// Rule 37.4: the host's own RDMA goes on.
#[test]
fn what_is_for_other_queue_pairs_is_passed_on_untouched() {
    needs_racks!();
    let kernel = job_by_roce(2);
    let right = contribution(0, 64).message();
    let pass = |change: fn(&mut Vec<u8>)| {
        let mut frame = right.clone();
        change(&mut frame);
        fix_ip_checksum(&mut frame[IP..]);
        kernel.expect_in_xdp(&frame, &Pass(NotOurs));
    };
    // Another queue pair by each byte of its number.
    pass(|f| f[MESSAGE + 5] = 1);
    pass(|f| f[MESSAGE + 6] ^= 1);
    pass(|f| f[MESSAGE + 7] ^= 1);
    // Another Q_Key.
    pass(|f| f[MESSAGE + 12] ^= 0x80);
    pass(|f| f[MESSAGE + 15] ^= 1);
    // Another host, MAC, port.
    pass(|f| f[IP + 19] ^= 1);
    pass(|f| f[5] ^= 1);
    pass(|f| f[UDP + 3] ^= 1);
    // An acknowledgement of RC to another queue pair: 20 bytes with the ICRC.
    pass(|f| {
        cut(f, 20);
        f[MESSAGE] = 0x11;
        f[MESSAGE + 7] ^= 1;
    });
    // Too short to name one.
    for len in 0..8 {
        kernel.expect_in_xdp(&right[..MESSAGE + len], &Pass(NotOurs));
    }
    // Nobody else sends from the aggregator's address.
    let forged = Envelope { source: AGGREGATOR_IP, ..contribution(0, 64).request() };
    let forged = Envelope { destination: [10, 0, 0, 77], destination_port: 4791, ..forged };
    let forged = message(&forged, AGGREGATOR_PORT.into(), queue_pair(0), 0, &[7; 64]);
    kernel.expect_in_xdp(&forged, &Drop(Spoofed));
}

#[test]
fn a_rank_is_its_queue_pair() {
    needs_racks!();
    let kernel = job_by_roce(2);
    let packet = contribution(0, 64);
    let right = packet.message();
    for at in [17, 18, 19] {
        let mut frame = right.clone();
        frame[MESSAGE + at] ^= 1;
        kernel.expect_in_xdp(&frame, &Drop(WrongPlace));
    }
    // A datagram from the UDP port with the number's low bits.
    let port = queue_pair(0) as u16;
    let datagram = Envelope { source_port: port, ..packet.request() }.bytes(&packet.bytes());
    kernel.expect_in_xdp(&datagram, &Drop(WrongPlace));
    kernel.expect_in_xdp(&right, &Drop(Started));
}

/// A rank with a socket and one by RoCEv2 complete each other's rounds.
#[test]
fn each_rank_is_answered_as_it_sends() {
    needs_racks!();
    let mut kernel = job_by_roce(2);
    kernel.set_member(JOB, 0, &member(0));
    let (datagram, by_roce) = (contribution(0, 64), contribution(1, 64));
    kernel.expect_in_xdp(&datagram.message(), &Drop(WrongPlace));
    kernel.expect_in_xdp(&datagram.frame(), &Drop(Started));
    let pending = datagram.pending(1);
    kernel.expect_in_xdp(&datagram.frame(), &Expect::Reply(Pending, &pending));
    kernel.run_xdp(&by_roce.message());
    let sums: Vec<u32> = datagram.values.iter().map(|value| value.wrapping_mul(2)).collect();
    let replay = |packet: &Packet| packet.result(switchml_test_support::frame::CHECKED, 2, &sums);
    kernel.expect_in_xdp(&datagram.frame(), &Expect::Reply(Replayed, &replay(&datagram)));
    kernel.expect_in_xdp(&by_roce.message(), &Frame(Replayed, &replay(&by_roce).answer()));
}

/// As without RoCEv2.
#[test]
fn without_it_all_messages_are_passed_on() {
    needs_racks!();
    let mut kernel = Kernel::with_job(2);
    kernel.set_member(JOB, 0, &MemberEntry { binding: home(0), ..member(0) });
    let mut frame = contribution(0, 64).message();
    kernel.expect_in_xdp(&frame, &Pass(NotOurs));
    frame[MESSAGE] = 0x81;
    seal(&mut frame);
    kernel.expect_in_xdp(&frame, &Pass(NotOurs));
}
