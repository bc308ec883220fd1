//! DONE: which results it may stand for, and what its lanes name (rule 9.4).

use switchml_protocol::root::done::{Done, named};
use switchml_protocol::wire::header::Header;
use zerocopy::FromBytes;

use switchml_test_support::packet::{CE, CHECKED, DONE, EVERYONE, Packet, RESULT, SUM, TAGGED};
use switchml_test_support::switch::contribution;

/// Sums whose lanes are for rank 3 alone, and for all others (rule 2.10).
const ONE: u8 = 0x40 | 3;
const ALL_BUT: u8 = 0x80 | 3;

/// The header of a result to all.
fn result(slot: u16, round: u32, op: u8, flags: u8) -> Header {
    let packet = contribution(0, slot, round, vec![5; 32]);
    let tag = (flags & TAGGED != 0).then_some(1);
    let packet = Packet { kind: RESULT, rank: EVERYONE, op, flags, tag, ..packet }.sealed();
    *Header::ref_from_prefix(&packet.to_bytes()).expect("a header").0
}

#[test]
fn results_for_some_ranks_without_tags_may_be_told() {
    let tells = |op, flags| Done::of(&result(0, 0, op, flags)).is_some();
    assert!(tells(ONE, 0) && tells(ALL_BUT, 0));
    assert!(!tells(SUM, 0), "all ranks need the lanes");
    assert!(!tells(ONE, TAGGED) && !tells(SUM, TAGGED), "a rank could not verify it");
}

#[test]
fn its_lanes_name_slots_and_rounds() {
    let first = result(0x1234, 0xABCD_5678, ONE, 0);
    let mut done = Done::of(&first).expect("some ranks need no lanes");
    let lanes = [&first, &result(7, 9, ONE, CE)].map(|result| done.add(result).expect("its call"));
    assert_eq!(lanes, [0x1234_5678, 0x0007_0009]);
    assert_eq!(lanes.map(named), [(0x1234, 0x5678), (7, 9)]);
    let header = done.header();
    assert_eq!((header.kind, header.lanes.get(), header.flags), (DONE, 2, CHECKED | CE));
    assert_eq!(done.add(&result(0, 0, ALL_BUT, 0)), None, "another audience");
    assert!(done.is_for(0b0111) && !done.is_for(0b1100), "rank 3 needs the lanes");
}
