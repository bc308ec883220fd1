//! Ethernet, IPv4 and UDP around a packet, against bytes written by hand.

use switchml_protocol::bpf_types::job::{Binding, JobEntry};
use switchml_protocol::node::frame::{self, Ipv4, Source, Tag, Tagged, source};
use switchml_protocol::outcome::Outcome;
use zerocopy::{FromBytes, IntoBytes};

type Envelope = frame::Envelope<Ipv4>;

const WORKER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x11];
const SWITCH_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0xAA];

/// 192.168.0.1:4660 to 192.168.0.199:48864, 95 bytes of UDP: the well-known example whose IP
/// checksum is b861.
const FRAME: [u8; 42] = [
    0x02, 0, 0, 0, 0, 0xAA, 0x02, 0, 0, 0, 0, 0x11, 0x08, 0x00, // Ethernet
    0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xB8, 0x61, 192, 168, 0, 1, 192,
    168, 0, 199, // IPv4
    0x12, 0x34, 0xBE, 0xE0, 0x00, 0x5F, 0xAB, 0xCD, // UDP
];
/// Bytes of the IP packet in the frame.
const TOTAL_LEN: usize = 0x73;
const FRAME_LEN: usize = 14 + TOTAL_LEN;

fn envelope() -> Envelope {
    Envelope::read_from_bytes(&FRAME).unwrap()
}

/// The frame with other bytes at some offset, and the IP checksum made right again.
fn patched(at: usize, bytes: &[u8]) -> Envelope {
    let mut frame = FRAME;
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame[24..26].fill(0);
    let checksum = ip_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    Envelope::read_from_bytes(&frame).unwrap()
}

/// RFC 1071 over an IP header whose checksum field is 0: end-around carry at every step.
fn ip_checksum(header: &[u8]) -> u16 {
    let mut sum = 0u16;
    for pair in header.chunks(2) {
        let (next, carry) = sum.overflowing_add(u16::from_be_bytes([pair[0], pair[1]]));
        sum = next + u16::from(carry);
    }
    !sum
}

/// Splits an envelope's bytes and asserts that its IP checksum is right.
fn bytes_of(envelope: &Envelope) -> [u8; 42] {
    let bytes: [u8; 42] = envelope.as_bytes().try_into().unwrap();
    let mut ip = bytes[14..34].to_vec();
    ip[10..12].fill(0);
    assert_eq!(bytes[24..26], ip_checksum(&ip).to_be_bytes(), "IP checksum");
    bytes
}

#[test]
fn fields_lie_where_the_rfcs_have_them() {
    let envelope = envelope();
    assert_eq!(Envelope::LEN, 42);
    assert_eq!((envelope.mac_destination, envelope.mac_source), (SWITCH_MAC, WORKER_MAC));
    let ends = (envelope.ip.source, envelope.ip.destination);
    assert_eq!(ends, ([192, 168, 0, 1], [192, 168, 0, 199]));
    assert_eq!((envelope.source_port.get(), envelope.destination_port.get()), (0x1234, 48864));
    let (ip, port) = ([192, 168, 0, 1].into(), 0x1234.into());
    let binding = Binding { ifindex: 7, ip, mac: WORKER_MAC, port, vlan: 5, roce: [0; 2] };
    assert_eq!(envelope.binding(7, 5), binding);
}

#[test]
fn plain_udp_over_ipv4_is_taken_and_all_else_passed_on() {
    assert_eq!(envelope().is_udp(), Ok(()));
    let cases: [(usize, &[u8], Outcome); 15] = [
        (12, &[0x08, 0x06], Outcome::NotOurs), // ARP
        (12, &[0x86, 0xDD], Outcome::NotOurs),
        (12, &[0x81, 0x00], Outcome::Vlan),
        (12, &[0x88, 0xA8], Outcome::Vlan),
        (23, &[6], Outcome::NotOurs), // TCP
        (23, &[1], Outcome::NotOurs), // ICMP
        (14, &[0x46], Outcome::IpOptions),
        (14, &[0x4F], Outcome::IpOptions),
        (14, &[0x44], Outcome::IpOptions),
        (14, &[0x65], Outcome::IpOptions),
        (20, &[0x20, 0x00], Outcome::Fragment), // the first of several
        (20, &[0x20, 0x01], Outcome::Fragment),
        (20, &[0x00, 0x01], Outcome::Fragment), // the last of several
        (20, &[0x1F, 0xFF], Outcome::Fragment),
        (20, &[0x10, 0x00], Outcome::Fragment),
    ];
    for (at, bytes, outcome) in cases {
        assert_eq!(patched(at, bytes).is_udp(), Err(outcome), "{bytes:x?} at {at}");
    }
    assert_eq!(patched(20, &[0x00, 0x00]).is_udp(), Ok(()), "Don't Fragment may be missing");
}

#[test]
fn a_frames_source_is_found_behind_two_tags() {
    let behind =
        |tag, frame: &[u8]| source(tag, |offset| frame.get(offset..offset + 4)?.try_into().ok());
    let found = |frame: &[u8]| behind(Tag::NONE, frame);
    let from = |tags: &[[u8; 4]], ethertype: [u8; 2]| -> Vec<u8> {
        // The IPv4 header's source is behind 12 other bytes.
        [&[0xEE; 12][..], tags.as_flattened(), &ethertype, &[0xDD; 12], &[10, 0, 0, 254]].concat()
    };
    let (ipv4, dot1q, dot1ad) = ([0x08, 0x00], [0x81, 0x00, 0x00, 0x00], [0x88, 0xA8, 0x0F, 0xFF]);
    let aggregator = Source::Ip([10, 0, 0, 254].into());
    assert_eq!(found(&from(&[], ipv4)), aggregator);
    assert_eq!(found(&from(&[dot1q], ipv4)), aggregator);
    assert_eq!(found(&from(&[dot1ad, dot1q], ipv4)), aggregator);
    assert_eq!(found(&from(&[dot1q; 3], ipv4)), Source::Hidden);
    // A tag that has been taken off counts, too.
    for removed in [Tag::new(0x8100, 5), Tag::new(0x88A8, 0)] {
        assert_eq!(behind(removed, &from(&[dot1q], ipv4)), aggregator);
        assert_eq!(behind(removed, &from(&[dot1q; 2], ipv4)), Source::Hidden);
    }
    for other in [[0x08, 0x06], [0x88, 0xCC]] {
        assert_eq!(found(&from(&[], other)), Source::Other);
        assert_eq!(found(&from(&[dot1q, dot1q], other)), Source::Other);
    }
    // Cut off anywhere, there is no address; and no tag to be found.
    let frame = from(&[dot1q], ipv4);
    assert!((0..frame.len()).all(|len| found(&frame[..len]) == Source::Other));
}

/// 802.1Q: 3 bits of priority, one more, 12 of VLAN.
#[test]
fn a_tag_says_the_vlan() {
    let tag = |bytes: [u8; 4]| {
        let [kind, value] = [[bytes[0], bytes[1]], [bytes[2], bytes[3]]].map(u16::from_be_bytes);
        Tag::new(kind, value)
    };
    assert_eq!(Tag::NONE.vlan(), Some(0));
    assert_eq!(tag([0x81, 0x00, 0x00, 0x05]).vlan(), Some(5));
    assert_eq!(tag([0x81, 0x00, 0xFF, 0xFE]).vlan(), Some(0xFFE));
    assert_eq!(tag([0x81, 0x00, 0xE0, 0x00]).vlan(), Some(0), "a priority alone");
    assert_eq!(tag([0x88, 0xA8, 0x00, 0x05]).vlan(), None);
    assert_eq!(tag([0x91, 0x00, 0x00, 0x05]).vlan(), None);

    let bytes = [[0xEE; 12].as_slice(), &[0x81, 0x00, 0xE0, 0x05]].concat();
    let tagged = Tagged::read_from_bytes(&bytes).unwrap();
    assert_eq!(tagged, Tagged::new([0xEE; 12], Tag::new(0x8100, 0xE005)));
    assert_eq!(tagged.dot1q(), Tag::new(0x8100, 0xE005));
    let other = [[0xEE; 12].as_slice(), &[0x88, 0xA8, 0xE0, 0x05]].concat();
    assert_eq!(Tagged::read_from_bytes(&other).unwrap().dot1q(), Tag::NONE);
}

/// Catches: IP length beyond the frame; UDP length not compared with IP length.
#[test]
fn payload_is_what_all_lengths_agree_on() {
    // 95 bytes of UDP less 8 of its header less 32 of ours
    assert_eq!(envelope().payload_len(FRAME_LEN), Ok(55));
    assert_eq!(envelope().payload_len(FRAME_LEN + 6), Ok(55), "Ethernet may pad");
    assert_eq!(envelope().payload_len(FRAME_LEN - 1), Err(Outcome::Truncated));
    assert_eq!(patched(38, &[0x00, 0x5E]).payload_len(FRAME_LEN), Err(Outcome::BadLength));
    assert_eq!(patched(38, &[0x00, 0x60]).payload_len(FRAME_LEN), Err(Outcome::BadLength));
    assert_eq!(patched(38, &[0xFF, 0xFF]).payload_len(FRAME_LEN), Err(Outcome::BadLength));
    assert_eq!(patched(16, &[0x00, 0x72]).payload_len(FRAME_LEN), Err(Outcome::BadLength));
    assert_eq!(patched(16, &[0xFF, 0xFF]).payload_len(FRAME_LEN), Err(Outcome::Truncated));
    assert_eq!(patched(16, &[0x00, 0x00]).payload_len(FRAME_LEN), Err(Outcome::BadLength));
}

#[test]
fn udp_without_room_for_a_header_is_truncated() {
    let with_udp_len = |udp_len: u8| {
        let mut envelope = patched(16, &[0x00, 20 + udp_len]);
        envelope.udp_len.set(u16::from(udp_len));
        envelope.payload_len(FRAME_LEN)
    };
    assert_eq!(with_udp_len(40), Ok(0));
    assert_eq!(with_udp_len(39), Err(Outcome::Truncated));
    assert_eq!(with_udp_len(8), Err(Outcome::Truncated));
    assert_eq!(with_udp_len(0), Err(Outcome::Truncated));
}

#[test]
fn any_flipped_bit_of_the_ip_header_breaks_its_checksum() {
    for bit in 14 * 8..34 * 8 {
        let mut frame = FRAME;
        frame[bit / 8] ^= 1 << (bit % 8);
        let envelope = Envelope::read_from_bytes(&frame).unwrap();
        assert_eq!(envelope.payload_len(FRAME_LEN), Err(Outcome::BadIpChecksum), "bit {bit}");
    }
}

#[test]
fn congestion_is_both_ecn_bits() {
    let marked =
        [0b00, 0b01, 0b10, 0b11].map(|ecn| patched(15, &[0xB8 | ecn]).congestion_experienced());
    assert_eq!(marked, [false, false, false, true]);
}

#[test]
fn an_answer_goes_back_to_where_the_packet_came_from() {
    let mut envelope = patched(15, &[0xB8, 0x00, 0x73, 0xBE, 0xEF, 0x00, 0x00, 0x03]);
    envelope.turn_back(2, 0);
    #[rustfmt::skip]
    let expected = [
        0x02, 0, 0, 0, 0, 0x11, 0x02, 0, 0, 0, 0, 0xAA, 0x08, 0x00,
        // 20 + 8 + 32 + 2 * 4 = 68 bytes, Don't Fragment, TTL 64
        0x45, 0xB8, 0x00, 68, 0x00, 0x00, 0x40, 0x00, 64, 0x11, 0, 0,
        192, 168, 0, 199, 192, 168, 0, 1,
        0xBE, 0xE0, 0x12, 0x34, 0x00, 48, 0x00, 0x00,
    ];
    let bytes = bytes_of(&envelope);
    assert_eq!(bytes[..24], expected[..24]);
    assert_eq!(bytes[26..], expected[26..]);
    assert_eq!(envelope.payload_len(14 + 68), Ok(8));
}

/// Catches: answer keeps the old UDP checksum; answer keeps the old IP length; multicast MAC with
/// the group's 24 bits; group frame from the contributor's MAC.
#[test]
fn a_result_for_all_goes_to_the_group() {
    let job = JobEntry {
        address: [192, 168, 0, 200].into(),
        group: [239, 129, 2, 3],
        group_port: 50000.into(),
        ..JobEntry::default()
    };
    let mut envelope = envelope();
    envelope.send_to(&job.group_at(1), job.address, 352, 0);
    #[rustfmt::skip]
    let expected = [
        // RFC 1112: 01:00:5e and the group's low 23 bits, 129 = 0x81 -> 0x01
        0x01, 0x00, 0x5E, 0x01, 0x02, 0x03, 0x02, 0, 0, 0, 0, 0xAA, 0x08, 0x00,
        // 20 + 8 + 32 + 352 * 4 = 1468 = 0x5BC bytes
        0x45, 0x00, 0x05, 0xBC, 0x00, 0x00, 0x40, 0x00, 64, 0x11, 0, 0,
        192, 168, 0, 200, 239, 129, 2, 3,
        // from the port that the contributions came to, to 50000 = 0xC350; 1448 = 0x5A8 bytes
        0xBE, 0xE0, 0xC3, 0x50, 0x05, 0xA8, 0x00, 0x00,
    ];
    let bytes = bytes_of(&envelope);
    assert_eq!(bytes[..24], expected[..24]);
    assert_eq!(bytes[26..], expected[26..]);
}

/// Catches: IP checksum not updated; IP checksum made over the old one; answer keeps the CE mark.
#[test]
fn a_congestion_mark_is_not_sent_on() {
    // The header's CE flag carries it; the answer itself may be marked again on its way.
    let marks = [0b00, 0b01, 0b10, 0b11].map(|ecn| {
        let mut envelope = patched(15, &[0xB8 | ecn]);
        envelope.turn_back(2, 0);
        bytes_of(&envelope)[15]
    });
    assert_eq!(marks, [0xB8, 0xB9, 0xBA, 0xBA]);
}

/// Catches: IP checksum without end-around carry.
#[test]
fn ip_checksum_is_right_whatever_the_addresses() {
    // Every value of one word: a few of them need the carry of the carry.
    for low in 0..=u16::MAX {
        let mut envelope = patched(28, &low.to_be_bytes());
        envelope.turn_back(32, 0);
        bytes_of(&envelope);
        assert_eq!(envelope.payload_len(Envelope::LEN + 32 + 128), Ok(128));
    }
    for address in [[0, 0, 0, 0], [255, 255, 255, 255], [127, 0, 0, 1], [255, 254, 253, 252]] {
        for lanes in [2, 32, 768] {
            let mut envelope = patched(26, &address);
            envelope.turn_back(lanes, 0);
            bytes_of(&envelope);
            assert_eq!(
                envelope.payload_len(Envelope::LEN + 32 + 4 * usize::from(lanes)),
                Ok(4 * usize::from(lanes))
            );
        }
    }
}
