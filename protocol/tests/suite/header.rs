//! The header against the specification's byte table, and the check word against numbers worked out
//! by hand.

use switchml_protocol::outcome::RejectReason;
use switchml_protocol::wire::header::{CheckWord, HEADER_LEN, Header, Kind, Malformed, Op, decode};
use switchml_protocol::{U32, lanes};
use zerocopy::{FromBytes, IntoBytes};

use switchml_test_support::packet::{ALL_OPS, FILLER, PENDING, Packet, REJECT, RESULT, check_word};
use switchml_test_support::switch::contribution;

/// Every byte its own offset, except version, kind, op, and a lane count of 32.
const BYTES: [u8; 32] = [
    1, 2, // version 1, kind RESULT
    0x01, 0x02, // job
    0x03, 0x04, 0x05, 0x06, // epoch
    0x07, 0x17, // rank
    0x07, 0x08, // slot
    0x09, 0x0A, 0x0B, 0x0C, // round
    0x00, 0x06, // SUM; CE and CHECKED
    0x00, 0x20, // 32 lanes
    0x0D, 0x0E, 0x0F, 0x10, // fingerprint
    0xF3, 0x97, 0xC3, 0x52, // check
    0x15, 0x16, 0x17, 0x18, // aux
];

#[test]
fn fields_lie_where_the_table_has_them() {
    let header = Header::ref_from_bytes(&BYTES).unwrap();
    assert_eq!(HEADER_LEN, 32);
    assert_eq!((header.version, header.kind, header.op, header.flags), (1, 2, 0, 6));
    assert_eq!(header.job.get(), 0x0102);
    assert_eq!(header.epoch.get(), 0x0304_0506);
    assert_eq!(header.rank.get(), 0x0717);
    assert_eq!(header.slot.get(), 0x0708);
    assert_eq!(header.round.get(), 0x090A_0B0C);
    assert_eq!(header.lanes.get(), 32);
    assert_eq!(header.fingerprint.get(), 0x0D0E_0F10);
    assert_eq!(header.check.get(), 0xF397_C352);
    assert_eq!(header.aux.get(), 0x1516_1718);
    assert_eq!(header.as_bytes(), BYTES);
}

#[test]
fn numbers_of_the_tables_are_read_back_and_no_others_are() {
    assert!(Kind::ALL.iter().all(|kind| Kind::from_wire(*kind as u8) == Some(*kind)));
    assert!(Op::ALL.iter().all(|op| Op::from_wire(*op as u8) == Some(*op)));
    assert_eq!((0..=255).filter_map(Kind::from_wire).count(), Kind::ALL.len());
    assert_eq!((0..=255).filter_map(Op::from_wire).count(), Op::ALL.len());
    let reasons = RejectReason::ALL;
    assert!(reasons.iter().all(|reason| RejectReason::from_wire(*reason as u32) == Some(*reason)));
    assert_eq!((0..=255).filter_map(RejectReason::from_wire).count(), reasons.len());
    let ops = ALL_OPS.map(|number| Op::from_wire(number).expect("an operator"));
    assert_eq!(ops.map(Op::check_word), [CheckWord::AddsUp, CheckWord::OfLanes]);
}

#[test]
fn decode_gives_header_and_lanes_of_a_whole_packet() {
    let packet = Packet { kind: RESULT, ..contribution(1, 2, 3, (1..=64).collect()) };
    let bytes = packet.to_bytes();
    let (header, kind, op, lanes) = decode(&bytes).unwrap();
    assert_eq!((kind, op), (Kind::Result, Op::Sum));
    assert_eq!(header.as_bytes(), &bytes[..32]);
    assert_eq!(lanes.iter().map(|lane| lane.get()).collect::<Vec<_>>(), packet.payload);
}

fn decode_error(packet: &Packet) -> Option<Malformed> {
    decode(&packet.to_bytes()).err()
}

#[test]
fn decode_says_what_is_malformed() {
    let good = contribution(1, 2, 3, vec![0; 32]);
    assert_eq!(decode_error(&good), None);
    for len in 0..32 {
        assert_eq!(
            decode(&good.to_bytes()[..len]).err(),
            Some(Malformed::Truncated),
            "{len} bytes"
        );
    }
    for version in [0, 2, 255] {
        assert_eq!(decode_error(&Packet { version, ..good.clone() }), Some(Malformed::Version));
    }
    for kind in [0, 10, 255] {
        assert_eq!(decode_error(&Packet { kind, ..good.clone() }), Some(Malformed::Kind));
    }
    // Rule 2.10: sums with an audience.
    for op in 64..192 {
        assert_eq!(decode(&Packet { op, ..good.clone() }.to_bytes()).unwrap().2, Op::Sum);
    }
    for op in (0x02..64).chain(192..=0xFF) {
        assert_eq!(decode_error(&Packet { op, ..good.clone() }), Some(Malformed::Op));
    }
    let mut bytes = good.to_bytes();
    bytes.push(0);
    assert_eq!(decode(&bytes).err(), Some(Malformed::Length));
    assert_eq!(decode(&bytes[..32 + 127]).err(), Some(Malformed::Length));
    assert_eq!(decode(&bytes[..32]).err(), Some(Malformed::Length));
}

/// The bytes behind a control reply's words are left over from the segment, and so is a whole
/// filler.
#[test]
fn control_replies_may_be_followed_by_anything_and_fillers_may_be_anything() {
    let good = contribution(1, 2, 3, vec![7; 32]);
    for kind in [PENDING, REJECT] {
        let bytes = Packet { kind, lanes: 2, ..good.clone() }.to_bytes();
        for len in 32..bytes.len() {
            let lanes = decode(&bytes[..len]).map(|(_, _, _, lanes)| lanes.len());
            assert_eq!(lanes, if len < 40 { Err(Malformed::Length) } else { Ok(2) }, "{len} bytes");
        }
    }
    let filler = Packet { kind: FILLER, op: 0xFF, lanes: 999, ..good }.to_bytes();
    for len in 32..filler.len() {
        let decoded = decode(&filler[..len]).map(|(_, kind, _, lanes)| (kind, lanes.len()));
        assert_eq!(decoded, Ok((Kind::Filler, 0)), "{len} bytes");
    }
}

#[test]
fn each_kind_has_its_lane_counts() {
    let lanes_of = |kind| {
        let fits = |lanes: &u16| {
            let packet = Packet {
                kind,
                lanes: *lanes,
                ..contribution(0, 0, 0, vec![0; usize::from(*lanes)])
            };
            decode_error(&packet) != Some(Malformed::Lanes)
        };
        (0..=1000).filter(fits).collect::<Vec<u16>>()
    };
    let blocks: Vec<u16> = (1..=24).map(|blocks| 32 * blocks).collect();
    assert_eq!(lanes_of(1), blocks);
    assert_eq!(lanes_of(2), blocks);
    assert_eq!(lanes_of(3), [2, 32]);
    assert_eq!(lanes_of(4), [2]);
    assert_eq!(lanes_of(5), [&[0], &blocks[..]].concat());
    assert_eq!(lanes_of(7), blocks);
}

/// Catches: salt without round; salt without slot; salt without job.
#[test]
fn check_word_is_what_was_worked_out_by_hand() {
    // h = 0; for w in (job << 16 | lanes, epoch, slot << 8 | op, round, fingerprint): h = (h + w) *
    // 0x9E3779B1
    let header = Header::ref_from_bytes(&BYTES).unwrap();
    assert_eq!(header.salt(), 0xF397_C142);
    // lanes 1, 2, ..., 32 add up to 528
    assert_eq!(header.check_of(528, 1), 0xF397_C352);
    assert_eq!(header.check_of(528, 4), 0xCE5F_0718);
}

/// Section 3: job, epoch, round, fingerprint, and two lanes.
#[test]
fn the_highest_bits_cancel_out() {
    let payload = (0..64).map(|lane: u32| lane.wrapping_mul(0x89AB_CDEF)).collect();
    let packet = contribution(5, 0x1234, 0x8765_4321, payload).sealed();
    let highest = [2, 4, 12, 20, 32, 52].map(|byte| 8 * byte);
    for one in highest {
        let flipped = packet.with_bit_flipped(one);
        assert!(!is_intact(&flipped, 1));
        for other in highest.into_iter().filter(|other| *other != one) {
            assert!(is_intact(&flipped.with_bit_flipped(other), 1), "bits {one} and {other}");
        }
    }
}

/// Whether check word, header and payload agree, by the crate's own functions.
fn is_intact(packet: &Packet, contributions: u32) -> bool {
    let bytes = packet.to_bytes();
    let (header, payload) = Header::ref_from_prefix(&bytes).unwrap();
    let payload = <[U32]>::ref_from_bytes(payload).unwrap();
    let sum = lanes::sum(payload, payload.len() / 32).unwrap();
    header.check_of(sum, contributions) == header.check.get()
}

#[test]
fn any_flipped_bit_of_a_covered_field_or_lane_breaks_the_check() {
    let covered = |byte: usize| matches!(byte, 2..=7 | 10..=15 | 18..=27 | 32..);
    for op in ALL_OPS {
        let payload = (0..64).map(|lane: u32| lane.wrapping_mul(0x89AB_CDEF)).collect();
        let packet = Packet { op, ..contribution(5, 0x1234, 0x8765_4321, payload) }.sealed();
        assert!(is_intact(&packet, 1));
        for bit in (0..32 * 8 + 64 * 32).filter(|bit| covered(bit / 8)) {
            assert!(!is_intact(&packet.with_bit_flipped(bit), 1), "op {op:#x}, bit {bit}");
        }
        for other in ALL_OPS.into_iter().filter(|other| *other != op) {
            assert!(
                !is_intact(&Packet { op: other, ..packet.clone() }, 1),
                "op {op:#x} taken for {other:#x}"
            );
        }
    }
}

#[test]
fn any_flipped_bit_of_a_results_lanes_or_check_breaks_the_check() {
    for op in ALL_OPS {
        for ranks in [1, 2, 3, 8, 64, 1024] {
            let mut packet =
                Packet { op, kind: RESULT, ..contribution(5, 0x1234, 7, (0..32).collect()) };
            packet.check = check_word(&packet, u64::from(ranks));
            assert!(is_intact(&packet, ranks));
            for bit in (24 * 8..28 * 8).chain(32 * 8..64 * 8) {
                assert!(
                    !is_intact(&packet.with_bit_flipped(bit), ranks),
                    "op {op:#x}, {ranks} ranks, bit {bit}"
                );
            }
        }
    }
}

#[test]
fn check_catches_a_payload_that_belongs_to_another_round_or_slot() {
    for ranks in [1, 2, 64, 1024] {
        let mut packet = Packet { kind: RESULT, ..contribution(0, 100, 1000, vec![0; 32]) };
        packet.check = check_word(&packet, u64::from(ranks));
        for round in (900..1100).filter(|round| *round != 1000) {
            assert!(!is_intact(&Packet { round, ..packet.clone() }, ranks));
        }
        for slot in (0..512).filter(|slot| *slot != 100) {
            assert!(!is_intact(&Packet { slot, ..packet.clone() }, ranks));
        }
    }
}
