//! Messages of RoCEv2: byte by byte, published frames' ICRCs, and what is refused.

use proptest::prelude::*;
use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::node::frame::{Ipv4, Ipv6, Network};
use switchml_protocol::node::roce::{Covered, Transport, open};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::ip::Ip;
use zerocopy::{FromBytes, IntoBytes};

const SENDER: u32 = 0xAB_CDEF;
const RECEIVER: u32 = 0x12_3456;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The CRC-32 of IEEE 802.3, bit by bit, as it stands in a frame.
fn crc(parts: &[&[u8]]) -> [u8; 4] {
    let register = parts.concat().iter().fold(u32::MAX, |register, byte| {
        (0..8).fold(register, |register, bit| {
            let out = register & 1 != u32::from(byte >> bit) & 1;
            (register >> 1) ^ if out { 0xEDB8_8320 } else { 0 }
        })
    });
    (!register).to_le_bytes()
}

/// The ICRC of a frame without one, from its IPv4 header on.
fn icrc_of(frame: &[u8]) -> [u8; 4] {
    let (ip, udp) = Ipv4::read_from_prefix(frame).unwrap();
    let source_port = u16::from_be_bytes([udp[0], udp[1]]);
    let (transport, rest) = Transport::read_from_prefix(&udp[8..]).unwrap();
    let covered = Covered::new(ip, source_port, &transport, rest.len() as u16);
    crc(&[covered.as_bytes(), rest])
}

/// Frames of scapy's `test/contrib/roce.uts`: a SEND of Soft-RoCE, and a CNP that was captured from
/// a ConnectX-4 Lx.
#[test]
fn published_frames_have_their_icrc() {
    let soft_roce = bytes(
        "45010040047840004011b4d5c0a80007c0a80007 c00012b7002caca2 2460ffff000000d300cf1710
         4630818be28935d90e9a95505401be885e500000",
    );
    assert_eq!(icrc_of(&soft_roce), [0x78, 0xF3, 0x53, 0xF3]);
    let connect_x = bytes(
        "45c2003c718c4000401191610a0011010a001201 000012b700280000 8100ffff4000011800000000
         00000000000000000000000000000000",
    );
    assert_eq!(icrc_of(&connect_x), [0x82, 0xFD, 0x00, 0x2A]);
}

/// Both ICRCs were computed with Python's zlib.
#[test]
fn an_answer_byte_by_byte() {
    let transport = Transport::between(0xBEE0, RECEIVER);
    let expected = bytes("6440ffff 00123456 00000000 53574d4c 0000bee0");
    assert_eq!(transport.as_bytes(), expected);
    let packet: Vec<u8> = (0..928).map(|at: usize| (7 * at + at / 256) as u8).collect();
    let (source, destination) = (Ip::v4([10, 0, 0, 1]), Ip::v4([10, 0, 0, 7]));
    let four = Covered::<Ipv4>::of_answer(source, destination, &transport, 928);
    assert_eq!(crc(&[four.as_bytes(), &packet]), [0x0E, 0x3C, 0xCF, 0x5C]);
    let host = |last| Ip([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let six = Covered::<Ipv6>::of_answer(host(1), host(7), &transport, 928);
    assert_eq!(crc(&[six.as_bytes(), &packet]), [0xDA, 0xF1, 0x4F, 0x92]);
}

fn message(packet: &[u8]) -> Vec<u8> {
    [Transport::between(SENDER, RECEIVER).as_bytes(), packet, &[0; 4]].concat()
}

/// Rule 37.4.
#[test]
fn what_is_no_message_to_the_aggregator_is_refused() {
    let with = |at: usize, value: u8| {
        let mut message = message(&[7; 160]);
        message[at] = value;
        open(&mut message, RECEIVER).map(|(sender, packet)| (sender, packet.len()))
    };
    assert_eq!(with(4, 0xFF), Ok((SENDER, 160)), "the byte in front of the queue pair is not it");
    // UC SEND ONLY, UD SEND ONLY with Immediate, a CNP.
    for opcode in [0x24, 0x65, 0x81] {
        assert_eq!(with(0, opcode), Err(Outcome::BadKind), "{opcode:#x}");
    }
    for (at, value, outcome) in [
        (1, 0x41, Outcome::BadVersion),
        (1, 0x50, Outcome::BadLength),
        (5, 0x11, Outcome::NotOurs),
        (7, 0x57, Outcome::NotOurs),
        (12, 0xD3, Outcome::NotOurs),
    ] {
        assert_eq!(with(at, value), Err(outcome), "byte {at}");
    }
    for len in 0..Transport::LEN + 32 + 4 {
        let mut short = message(&[7; 32])[..len].to_vec();
        // Other queue pairs' messages may be shorter: acknowledgements of RC have 20 bytes.
        assert_eq!(open(&mut short.clone(), RECEIVER + 1).unwrap_err(), Outcome::NotOurs, "{len}");
        let names_it = len >= 8;
        let outcome = if names_it { Outcome::Truncated } else { Outcome::NotOurs };
        assert_eq!(open(&mut short, RECEIVER).unwrap_err(), outcome, "{len}");
    }
}

/// Two queue pairs of a host are two places, and none of them is a UDP port.
#[test]
fn a_queue_pair_is_a_place_of_its_own() {
    let host = Binding { ip: Ip::v4([10, 0, 0, 7]), port: U16::new(0x3456), ..Binding::default() };
    assert_eq!((host.queue_pair(), host.to_string()), (None, "10.0.0.7:13398".to_owned()));
    for number in [0, 0x3456, RECEIVER, 0xFF_FFFF] {
        let place = host.at_queue_pair(number);
        assert_eq!(place.queue_pair(), Some(number));
        assert_ne!(place, host);
        assert_eq!(place.to_string(), format!("10.0.0.7 queue pair {number}"));
    }
    assert_ne!(host.at_queue_pair(0x3456), host.at_queue_pair(RECEIVER));
}

/// The bytes of an IPv4 header that routers change: TOS, TTL, checksum.
const MAY_CHANGE: [usize; 4] = [1, 8, 10, 11];

proptest! {
    #[test]
    fn what_was_sent_is_opened(
        sender in 0..1u32 << 24,
        receiver in 0..1u32 << 24,
        packet in prop::collection::vec(any::<u8>(), 32..200),
    ) {
        let transport = Transport::between(sender, receiver);
        let mut message = [transport.as_bytes(), &packet, &[1, 2, 3, 4]].concat();
        prop_assert_eq!(open(&mut message, receiver), Ok((sender, &mut packet.clone()[..])));
    }

    #[test]
    fn any_bytes_are_refused_or_opened(mut bytes in prop::collection::vec(any::<u8>(), 0..99)) {
        let _ = open(&mut bytes, 1);
    }

    /// The ICRC tells of each flipped bit but of those that may change on the way.
    #[test]
    fn the_icrc_covers_what_does_not_change(bit in 0..8 * 60usize) {
        let mut ip = Ipv4::between(Ip::v4([10, 0, 0, 1]), Ip::v4([10, 0, 0, 7]));
        ip.finish(0, 92);
        let udp = [0xC0, 0, 0x12, 0xB7, 0, 92, 0, 0];
        let packet = [0x5A; 60];
        let transport = Transport::between(SENDER, RECEIVER);
        let frame = [ip.as_bytes(), &udp, transport.as_bytes(), &packet].concat();
        let mut other = frame.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        // The destination port and UDP's length are what they must be; the frame had not come here.
        let (is_udp, is_masked) = ((22..28).contains(&(bit / 8)), bit / 8 == 32);
        let may_change = is_udp || is_masked || MAY_CHANGE.contains(&(bit / 8));
        prop_assert_eq!(icrc_of(&frame) == icrc_of(&other), may_change, "byte {}", bit / 8);
    }
}
