//! Any frames through the aggregator: there is no panic, a frame that is not admitted touches no
//! slot, and every answer is a whole frame with the right lengths, checksum and check word.
//!
//! An input is a run of frames: one byte that tells what to repair in it, two with its length, and
//! its bytes. Without repairs hardly any frame would pass the checksum of the IP header and the
//! check word.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry, OPEN};
use switchml_protocol::node::frame::TAG_LEN;
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::auth::Key;

use switchml_test_support::frame::{
    self, AGGREGATOR_IP, CHECKED, EPOCH, GROUP_IP, GROUP_PORT, HELLO, IFINDEX, Packet, RESULT,
    fix_ip_checksum, over_ipv6, v6,
};
use switchml_test_support::host::Host;

const RANKS: u16 = 2;
const SLOTS: u32 = 2;
const MAX_FRAMES: usize = 16;

/// Repairs: the checksum of the IP header, all lengths, the check word, the fields that make a
/// packet part of the session, the UDP length as the lanes require.
const IP_CHECKSUM: u8 = 1;
const LENGTHS: u8 = 2;
const CHECK: u8 = 4;
const SESSION: u8 = 8;
const UDP_LENGTH: u8 = 16;
/// The IP version.
const OVER_IPV6: u8 = 32;

/// A flag of HELLO.
const GROUP: u8 = 1 << 4;

/// Offsets in a frame without a tag.
const MACS: usize = 12;
const IP: usize = 14;
const UDP: usize = 34;
const HEADER: usize = 42;
const HEADER_OVER_IPV6: usize = 62;
const PAYLOAD: usize = 74;

fuzz_target!(|input: &[u8]| {
    // All frames of an input are over the same IP version.
    let is_v6 = input.first().is_some_and(|repairs| repairs & OVER_IPV6 != 0);
    let mut host = host(is_v6);
    let mut rest = input;
    for _ in 0..MAX_FRAMES {
        let [repairs, high, low, bytes @ ..] = rest else { break };
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(bytes.len());
        let (frame, others) = bytes.split_at(length);
        let frame = repaired(frame.to_vec(), *repairs);
        serve(&mut host, if is_v6 { over_ipv6(&frame) } else { frame });
        rest = others;
    }
});

/// One open job, whose first rank has said HELLO.
fn host(is_v6: bool) -> Host {
    let at = |ip| if is_v6 { v6(ip).into() } else { ip.into() };
    let binding = |rank| Binding {
        ifindex: IFINDEX,
        ip: at(frame::ip(rank)),
        mac: frame::mac(rank),
        port: frame::port(rank).into(),
        ..Binding::default()
    };
    let member = |rank| MemberEntry {
        secret: frame::secret(rank),
        epoch: if rank == 0 { EPOCH } else { 0 },
        binding: if rank == 0 { binding(rank) } else { Binding::default() },
        key: Key::NONE,
    };
    Host {
        at_tc: false,
        job: JobEntry {
            state: OPEN,
            epoch: EPOCH,
            ranks: RANKS.into(),
            first_slot: 1,
            slots: SLOTS,
            address: at(AGGREGATOR_IP),
            group: GROUP_IP,
            group_port: GROUP_PORT.into(),
            reserved: [0; 6],
            key: Key::NONE,
        },
        members: RefCell::new((0..RANKS).map(member).collect()),
        slots: RefCell::new(vec![Slot::default(); SLOTS as usize + 2]),
        busy: false,
        has_group: true,
        counters: [0; Outcome::COUNT],
        events: RefCell::default(),
    }
}

/// A frame without its tag, and the tag.
fn untagged(mut frame: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let is_tagged = frame.len() >= MACS + TAG_LEN && frame[MACS..MACS + 2] == [0x81, 0];
    let tag = frame.drain(MACS..MACS + if is_tagged { TAG_LEN } else { 0 }).collect();
    (frame, tag)
}

fn repaired(frame: Vec<u8>, repairs: u8) -> Vec<u8> {
    if frame.len() < MACS {
        return frame;
    }
    let (mut frame, tag) = untagged(frame);
    repair(&mut frame, repairs);
    frame.splice(MACS..MACS, tag);
    frame
}

fn repair(frame: &mut [u8], repairs: u8) {
    if repairs & SESSION != 0 && frame.len() >= PAYLOAD {
        // Makes the frame one from a rank's place to the aggregator, in the session.
        let rank = u16::from(frame[HEADER + 9] % 2);
        let right = Packet { rank, ..Packet::contribution(rank, 0, 0, &[0; 32]) }.frame();
        frame[..IP + 1].copy_from_slice(&right[..IP + 1]);
        frame[IP + 6..UDP + 4].copy_from_slice(&right[IP + 6..UDP + 4]);
        frame[HEADER] = right[HEADER];
        frame[HEADER + 2..HEADER + 10].copy_from_slice(&right[HEADER + 2..HEADER + 10]);
    }
    if repairs & LENGTHS != 0 && frame.len() >= HEADER {
        let ip = (frame.len() - IP) as u16;
        frame[IP + 2..IP + 4].copy_from_slice(&ip.to_be_bytes());
        frame[UDP + 4..UDP + 6].copy_from_slice(&(ip - 20).to_be_bytes());
    }
    if repairs & UDP_LENGTH != 0 && frame.len() >= PAYLOAD {
        let lanes = u16::from_be_bytes([frame[HEADER + 18], frame[HEADER + 19]]);
        let udp = lanes.wrapping_mul(4).wrapping_add(8 + 32);
        frame[UDP + 4..UDP + 6].copy_from_slice(&udp.to_be_bytes());
    }
    if repairs & CHECK != 0 && frame.len() >= PAYLOAD {
        let check = parse(&frame[HEADER..], 1).right_check();
        frame[HEADER + 24..HEADER + 28].copy_from_slice(&check.to_be_bytes());
    }
    if repairs & IP_CHECKSUM != 0 && frame.len() >= UDP {
        fix_ip_checksum(&mut frame[IP..]);
    }
}

/// The packet in these bytes, of at least a header.
fn parse(bytes: &[u8], contributions: u32) -> Packet {
    let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let u32_at =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Packet {
        version: bytes[0],
        kind: bytes[1],
        job: u16_at(2),
        epoch: u32_at(4),
        rank: u16_at(8),
        slot: u16_at(10),
        round: u32_at(12),
        op: bytes[16],
        flags: bytes[17],
        lanes: Some(u16_at(18)),
        fingerprint: u32_at(20),
        check: Some(u32_at(24)),
        aux: u32_at(28),
        contributions,
        values: bytes[32..]
            .as_chunks::<4>()
            .0
            .iter()
            .map(|lane| u32::from_be_bytes(*lane))
            .collect(),
    }
}

fn serve(host: &mut Host, frame: Vec<u8>) {
    let before = host.slots.borrow().clone();
    let mut served = frame.clone();
    let outcome = host.run(&mut served);
    match outcome.action() {
        Action::Pass => assert_eq!(served, frame, "{outcome:?}"),
        Action::Drop => {}
        Action::Up | Action::Down => panic!("{outcome:?} at a root"),
        Action::Reply | Action::Broadcast => check_answer(outcome, frame, served),
    }
    use Outcome::{Added, Completed, Mismatch, Started};
    if !matches!(outcome, Started | Added | Completed | Mismatch) {
        assert!(before == *host.slots.borrow(), "{outcome:?} touched a slot");
    }
    // Slots of other jobs.
    for index in [0, SLOTS as usize + 1] {
        assert!(
            host.slots.borrow()[index] == Slot::default(),
            "{outcome:?} touched another job's slot"
        );
    }
}

/// An answer is a whole frame, no longer than its request, with the same tag.
fn check_answer(outcome: Outcome, request: Vec<u8>, answer: Vec<u8>) {
    let ((request, asked), (answer, tag)) = (untagged(request), untagged(answer));
    assert_eq!(tag, asked, "tag");
    assert!((PAYLOAD..=request.len()).contains(&answer.len()), "{outcome:?}");
    let is_v6 = answer[MACS..IP] == [0x86, 0xDD];
    let header = if is_v6 { HEADER_OVER_IPV6 } else { HEADER };
    // Rules 5.2, 5.12 and 7.8.
    let asks_for_group = outcome == Outcome::Hello && request[header + 17] & GROUP != 0;
    let to_group = outcome == Outcome::Completed || asks_for_group && !is_v6;
    if is_v6 {
        check_ipv6(&request, &answer, to_group);
    } else {
        check_ipv4(&request, &answer, to_group);
    }
    let kind = answer[header + 1];
    let contributions = if kind == RESULT { RANKS.into() } else { 1 };
    let packet = parse(&answer[header..], contributions);
    assert_eq!(packet.lanes, Some(packet.values.len() as u16), "lanes");
    if kind != HELLO && packet.flags & CHECKED != 0 {
        assert_eq!(packet.check, Some(packet.right_check()), "check word of {outcome:?}");
    }
}

fn number(frame: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]))
}

fn check_ipv4(request: &[u8], answer: &[u8], to_group: bool) {
    let mut again = answer[IP..UDP].to_vec();
    fix_ip_checksum(&mut again);
    assert_eq!(again, answer[IP..UDP], "IP checksum");
    let lengths = (number(answer, IP + 2), number(answer, UDP + 4));
    assert_eq!(lengths, (answer.len() - IP, answer.len() - UDP), "lengths");
    assert_eq!(answer[IP + 12..IP + 16], AGGREGATOR_IP, "source");
    let to = if to_group { &GROUP_IP } else { &request[IP + 12..IP + 16] };
    assert_eq!(&answer[IP + 16..IP + 20], to, "destination");
}

/// The job has a group here too, since there are no copies; the group's address is mapped.
fn check_ipv6(request: &[u8], answer: &[u8], to_group: bool) {
    let udp = HEADER_OVER_IPV6 - 8;
    let udp_len = answer.len() - udp;
    assert_eq!((number(answer, IP + 4), number(answer, udp + 4)), (udp_len, udp_len), "lengths");
    assert_eq!(answer[IP + 8..IP + 24], v6(AGGREGATOR_IP), "source");
    if !to_group {
        assert_eq!(answer[IP + 24..IP + 40], request[IP + 8..IP + 24], "destination");
    }
    // RFC 8200, section 8.1.
    let ends = (IP + 8..answer.len()).step_by(2).map(|at| number(answer, at)).sum::<usize>();
    let sum = ends + udp_len + 17;
    assert!(sum > 0 && sum.is_multiple_of(0xFFFF), "UDP checksum");
    assert_ne!(number(answer, udp + 6), 0, "a UDP checksum");
}
