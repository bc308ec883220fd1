//! Superpackets through a combiner at tc: where packets are cut into them means nothing, on the way
//! up and on the way down.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use switchml_protocol::combiner::cell::cell_of;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::header::Header;
use switchml_rack::needs_racks;
use zerocopy::FromBytes;

use super::{
    LANES, SEGMENT, XDP_REDIRECT, addresses, combiner, from_parent, own, packet, parents,
    port_for_all, port_of, run_bundle, sender,
};
use switchml_test_support::frame::{CHECKED, EMPTY, FILLER, JOB, Packet};
use switchml_test_support::kernel::{Kernel, SLOTS};

/// Enough cells that no two keys share one: what a cell evicts depends on the time.
const CELLS: u32 = 4096;
/// Segments that fit into the kernel's test run, which takes one page.
const MOST: usize = 11;

/// The headers and segments of a superpacket that is sent on, if it is.
type Sent = Option<(Vec<u8>, Vec<Vec<u8>>)>;

#[test]
fn any_cut_goes_up_as_its_packets_would() {
    needs_racks!();
    let (singly, together) = (combiner(CELLS), combiner(CELLS));
    let mut random = StdRng::seed_from_u64(0xC07);
    let mut rounds = [[0; SLOTS as usize]; 3];
    for turn in 0..1500 {
        let rank = random.random_range(0..3);
        let from = if random.random_ratio(1, 30) { 2 } else { rank };
        let packets: Vec<_> = (0..random.random_range(1..=MOST))
            .map(|_| packet(rank, &mut rounds, &mut random))
            .collect();
        let send = |kernel: &Kernel, packets: &[Packet]| {
            let bytes: Vec<_> = packets.iter().flat_map(Packet::bytes).collect();
            run_bundle(kernel, &sender(from).bytes(&bytes))
        };
        let alone: Vec<_> = packets.chunks(1).map(|packet| send(&singly, packet)).collect();
        let mut begin = 0;
        while begin < packets.len() {
            let end = cut(&packets, begin, &mut random);
            let bundle = send(&together, &packets[begin..end]);
            compare(&alone[begin..end], bundle, rank, &format!("turn {turn}, {begin}..{end}"));
            begin = end;
        }
        assert_eq!(singly.tc().counters(), together.tc().counters(), "turn {turn}");
    }
    the_same_is_held(&singly, &together);
    let counters = together.tc().counters();
    for outcome in [Outcome::Held, Outcome::Combined, Outcome::Passed, Outcome::BadCheck] {
        assert!(counters[outcome as usize] > 100, "{outcome:?}");
    }
}

/// The end of a superpacket that begins at `begin`: only its last segment may be shorter.
fn cut(packets: &[Packet], begin: usize, random: &mut StdRng) -> usize {
    let end = random.random_range(begin + 1..=packets.len());
    let is_short = |packet: &Packet| packet.flags & EMPTY != 0;
    packets[begin..end].iter().position(is_short).map_or(end, |index| begin + index + 1)
}

/// Segments that go on are the same as when sent alone; all others are FILLERs.
fn compare(alone: &[Sent], bundle: Sent, rank: u16, context: &str) {
    let Some((headers, segments)) = bundle else {
        return assert!(alone.iter().all(Option::is_none), "nothing goes on, {context}");
    };
    let expected = super::to_parent(&[], rank);
    assert_eq!(addresses(&headers), addresses(&expected), "{context}");
    assert_eq!(segments.len(), alone.len(), "{context}");
    for (segment, alone) in segments.iter().zip(alone) {
        match alone {
            Some((_, one)) => assert_eq!(*segment, one[0], "{context}"),
            None => assert_eq!(segment[1], FILLER, "{context}"),
        }
    }
}

fn the_same_is_held(singly: &Kernel, together: &Kernel) {
    for slot in 0..SLOTS as u16 {
        let bytes = own(0, slot).bytes();
        let index = cell_of(Header::ref_from_prefix(&bytes).unwrap().0, CELLS);
        let [one, mut other] = [singly, together].map(|kernel| kernel.tc().cell(index).cell);
        // Times are their own.
        other.head.since = one.head.since;
        assert_eq!(one.head, other.head, "slot {slot}");
        assert!(one == other, "values of slot {slot}");
    }
}

#[test]
fn any_cut_goes_down_as_its_packets_would() {
    needs_racks!();
    let kernel = combiner(1);
    let mut random = StdRng::seed_from_u64(0xD0);
    for turn in 0..500 {
        let to = random.random_bool(0.5).then_some(1);
        let port = to.map_or_else(port_for_all, port_of);
        let mut packets: Vec<_> =
            (0..random.random_range(1..=MOST)).map(|_| parents_packet(to, &mut random)).collect();
        // A parent never sends only FILLERs.
        let last = random.random_range(0..packets.len());
        packets[last] = answer(to, &mut random);
        let bytes: Vec<_> = packets.iter().flat_map(padded).collect();
        let sent = run_bundle(&kernel, &parents(port).bytes(&bytes));
        let (headers, segments) = sent.expect("it goes down");
        assert_eq!(segments.concat(), bytes, "turn {turn}");
        for packet in packets.iter().filter(|packet| packet.kind != FILLER) {
            let alone = kernel.tc().run(&from_parent(packet, port));
            assert_eq!(alone.verdict, XDP_REDIRECT, "turn {turn}");
            assert_eq!(addresses(&headers), addresses(&alone.frame), "turn {turn}");
        }
    }
}

/// A packet from the parent to rank `to`, or to all; or a FILLER of any job.
fn parents_packet(to: Option<u16>, random: &mut StdRng) -> Packet {
    let packet = answer(to, random);
    if random.random_ratio(1, 3) {
        let job = JOB + random.random_range(0..2);
        return Packet { kind: FILLER, job, ..packet };
    }
    packet
}

fn answer(to: Option<u16>, random: &mut StdRng) -> Packet {
    let values: Vec<u32> = (0..LANES).map(|_| random.random()).collect();
    let asked = own(to.unwrap_or(0), random.random_range(0..SLOTS as u16));
    match (random.random_range(0..4), to) {
        (_, None) => asked.result_for_all(CHECKED, 4, &values),
        (0, _) => asked.pending(random.random()),
        (1, _) => asked.reject(1, random.random()),
        _ => asked.result(CHECKED, 4, &values),
    }
}

/// The packet's bytes, padded to the length of a segment.
fn padded(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.bytes();
    bytes.resize(SEGMENT, 0);
    bytes
}
