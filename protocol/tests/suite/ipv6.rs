//! The envelope over IPv6: which frames are served, and the headers of an answer, against bytes
//! written by hand and RFC 1071.

use proptest::prelude::*;
use switchml_protocol::U32;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::node::frame::{
    Checksum, Envelope, Ipv6, Network, Source, Tag, source, sum_of_packet,
};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::header::{Header, flags};
use switchml_protocol::wire::ip::Ip;
use zerocopy::{FromBytes, IntoBytes};

/// Headers of a frame from fd88::1 at port 0x1234 to fd88::fe at 48864, 40 bytes of UDP behind 62
/// of headers; with a flow label.
#[rustfmt::skip]
const HEADERS: [u8; 62] = [
    0x02, 0, 0, 0, 0, 0xAA, 0x02, 0, 0, 0, 0, 0x11, 0x86, 0xDD,
    0x6B, 0x81, 0x23, 0x45, 0x00, 168, 17, 63,
    0xFD, 0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01,
    0xFD, 0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFE,
    0x12, 0x34, 0xBE, 0xE0, 0x00, 168, 0xAB, 0xCD,
];
const UDP: usize = 54;
const PAYLOAD: usize = 62 + 32;

/// The headers, with other bytes at some offset.
fn patched(at: usize, bytes: &[u8]) -> Envelope<Ipv6> {
    let mut headers = HEADERS;
    headers[at..at + bytes.len()].copy_from_slice(bytes);
    Envelope::read_from_bytes(&headers).unwrap()
}

fn envelope() -> Envelope<Ipv6> {
    patched(0, &[])
}

fn ip(last: u8) -> Ip {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1], bytes[15]) = (0xFD, 0x88, last);
    Ip(bytes)
}

/// RFC 8200, section 8.1, of a whole frame: 0xFFFF if the checksum is right.
fn sum_of_udp(frame: &[u8]) -> u16 {
    let udp = &frame[UDP..];
    let pseudo_header =
        [&frame[22..54], &(udp.len() as u32).to_be_bytes(), &[0, 0, 0, 17], udp].concat();
    let mut sum = 0u16;
    for pair in pseudo_header.chunks(2) {
        let (next, carry) = sum.overflowing_add(u16::from_be_bytes([pair[0], pair[1]]));
        sum = next + u16::from(carry);
    }
    sum
}

#[test]
fn fields_lie_where_rfc_8200_has_them() {
    let envelope = envelope();
    assert_eq!(Envelope::<Ipv6>::LEN, 62);
    assert_eq!(envelope.is_udp(), Ok(()));
    assert_eq!(envelope.payload_len(222), Ok(128));
    assert!(!envelope.congestion_experienced());
    let expected = Binding {
        ip: ip(1),
        ifindex: 7,
        mac: [0x02, 0, 0, 0, 0, 0x11],
        port: 0x1234.into(),
        vlan: 5,
        roce: [0; 2],
    };
    assert_eq!(envelope.binding(7, 5), expected);
    assert_eq!(envelope.endpoint().ip, ip(0xFE));
}

#[test]
fn what_is_not_plain_udp_is_passed_on() {
    let maps = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 0, 0, 1];
    let cases: [(usize, &[u8], Outcome); 9] = [
        (12, &[0x08, 0x00], Outcome::NotOurs),
        (14, &[0x40], Outcome::NotOurs),
        (20, &[6], Outcome::NotOurs),
        (20, &[0], Outcome::Ipv6),
        (20, &[43], Outcome::Ipv6),
        (20, &[44], Outcome::Ipv6),
        (20, &[60], Outcome::Ipv6),
        (22, &maps, Outcome::NotOurs),
        (38, &maps, Outcome::NotOurs),
    ];
    for (at, bytes, outcome) in cases {
        assert_eq!(patched(at, bytes).is_udp(), Err(outcome), "{bytes:x?} at {at}");
    }
}

#[test]
fn payload_is_what_all_lengths_agree_on() {
    assert_eq!(envelope().payload_len(300), Ok(128), "Ethernet may pad");
    assert_eq!(envelope().payload_len(221), Err(Outcome::Truncated));
    assert_eq!(patched(18, &[0, 167]).payload_len(222), Err(Outcome::BadLength));
    assert_eq!(patched(18, &[0xFF, 0xFF]).payload_len(222), Err(Outcome::Truncated));
    assert_eq!(patched(58, &[0, 169]).payload_len(222), Err(Outcome::BadLength));
    let mut short = patched(18, &[0, 39]);
    short.udp_len.set(39);
    assert_eq!(short.payload_len(222), Err(Outcome::Truncated));
}

#[test]
fn congestion_is_both_ecn_bits() {
    // The traffic class is the low half of one byte and the high half of the next.
    let marked = [0x81, 0x91, 0xA1, 0xB1].map(|byte| patched(15, &[byte]).congestion_experienced());
    assert_eq!(marked, [false, false, false, true]);
}

#[test]
fn a_source_is_found_behind_two_tags() {
    let found =
        |frame: &[u8]| source(Tag::NONE, |offset| frame.get(offset..offset + 4)?.try_into().ok());
    let mut frame = HEADERS[..38].to_vec();
    for _ in 0..=2 {
        assert_eq!(found(&frame), Source::Ip(ip(1)));
        assert!((0..frame.len()).all(|len| found(&frame[..len]) == Source::Other));
        frame.splice(12..12, [0x81, 0x00, 0x00, 0x00]);
    }
    assert_eq!(found(&frame), Source::Hidden);
}

#[test]
fn an_answer_goes_back_with_a_right_checksum() {
    let (mut frame, header, lanes) = packet(0, &[1; 32]);
    // ECN is CE.
    let mut envelope = patched(15, &[0xB1]);
    envelope.turn_back(32, sum_of_packet(&header, &lanes[..], 32).unwrap());
    frame[..62].copy_from_slice(envelope.as_bytes());
    #[rustfmt::skip]
    let expected = [
        0x02, 0, 0, 0, 0, 0x11, 0x02, 0, 0, 0, 0, 0xAA, 0x86, 0xDD,
        // ECT(0), the flow label, 8 + 32 + 128 bytes, UDP, 64 hops
        0x6B, 0xA1, 0x23, 0x45, 0x00, 168, 17, 64,
    ];
    assert_eq!(frame[..22], expected);
    assert_eq!((envelope.ip.source, envelope.ip.destination), (ip(0xFE).0, ip(1).0));
    assert_eq!((envelope.source_port.get(), envelope.destination_port.get()), (48864, 0x1234));
    assert_eq!(sum_of_udp(&frame), 0xFFFF);
}

/// A checksum that comes out as 0 is sent as its other form: 0 would say that there is none.
#[test]
fn no_checksum_is_zero() {
    for value in 0..=0xFFFF {
        let (_, header, lanes) = packet(0, &[value; 32]);
        let mut envelope = envelope();
        envelope.turn_back(32, sum_of_packet(&header, &lanes[..], 32).unwrap());
        assert_ne!(envelope.udp_checksum.get(), 0, "lanes {value}");
    }
}

#[test]
fn what_is_offloaded_begins_with_the_pseudo_header() {
    let mut envelope = envelope();
    let (sender, own) = (envelope.binding(1, 0), envelope.ip.destination());
    envelope.send_bundle_to(&sender, own, Checksum::Offloaded, 0);
    // 2 * fd88 + 01 + fe, length 168, UDP: 0x1FB10 + 255 + 185 = 0x1FCC8.
    assert_eq!(envelope.udp_checksum.get(), 0xFCC9);
}

/// A frame with a packet in it and zeros for the headers before; also the packet's header and
/// lanes.
fn packet(job: u16, lanes: &[u32]) -> (Vec<u8>, Header, Vec<U32>) {
    let mut header = Header::read_from_bytes(&[0xA5; 32]).unwrap();
    header.job.set(job);
    header.flags &= !flags::TAGGED;
    let lanes: Vec<U32> = lanes.iter().map(|lane| U32::new(*lane)).collect();
    let frame = [&[0; 62][..], header.as_bytes(), lanes.as_bytes()].concat();
    assert_eq!(frame.len(), PAYLOAD + 4 * lanes.len());
    (frame, header, lanes)
}

proptest! {
    /// Checksums are also right in a copy for another place, made from the checksum of the first
    /// copy.
    #[test]
    fn checksums_are_right_whatever_is_in_a_packet(
        job in any::<u16>(),
        lanes in prop_oneof![
            prop::collection::vec(any::<u32>(), 770),
            prop::collection::vec(0xFFFF_FFF0u32..=0xFFFF_FFFF, 770),
        ],
        count in prop_oneof![Just(2usize), (0usize..=24).prop_map(|blocks| 32 * blocks)],
        places in any::<[([u8; 16], u16); 2]>(),
        is_tagged in any::<bool>(),
    ) {
        let (mut frame, mut header, lanes) = packet(job, &lanes);
        let sent = if is_tagged { count + 2 } else { count };
        if is_tagged {
            header.flags |= flags::TAGGED;
            frame[62..94].copy_from_slice(header.as_bytes());
        }
        frame.truncate(PAYLOAD + 4 * sent);
        let sum = sum_of_packet(&header, &lanes[..], count).unwrap();
        let [first, second] = places.map(|(ip, port)| {
            Binding { ip: Ip(ip), port: port.into(), mac: [2; 6], ..Binding::default() }
        });
        let mut envelope = envelope();
        envelope.send_to(&first, ip(0xFE), sent as u16, sum);
        frame[..62].copy_from_slice(envelope.as_bytes());
        prop_assert_eq!(sum_of_udp(&frame), 0xFFFF);
        prop_assert_eq!(envelope.payload_len(frame.len()), Ok(4 * sent));
        envelope.leave_open();
        envelope.close(&second);
        frame[..62].copy_from_slice(envelope.as_bytes());
        prop_assert_eq!(sum_of_udp(&frame), 0xFFFF);
        prop_assert_eq!((envelope.ip.destination, envelope.mac_destination), (second.ip.0, [2; 6]));
    }
}
