//! A combiner's programs, at both hooks: who is let in, what leaves, and how it is addressed.

mod cuts;
mod partial_sums;

use std::cell::RefCell;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use switchml_protocol::U16;
use switchml_protocol::bpf_types::fanout::{Receivers, Way};
use switchml_protocol::bpf_types::job::{ABORTED, Binding, JobEntry, MemberEntry, VACANT};
use switchml_protocol::bpf_types::uplink::Uplink;
use switchml_protocol::combiner::admission::Cells;
use switchml_protocol::combiner::cell::{self, Cell};
use switchml_protocol::node;
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::packet;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::root::admission::Members;
use switchml_protocol::wire::header::Header;
use switchml_protocol::wire::share::Share;
use switchml_rack::needs_racks;
use zerocopy::FromBytes;

use switchml_test_support::frame::IFINDEX;
use switchml_test_support::frame::{
    AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT, CE, CHECKED, EMPTY, EPOCH, Envelope, FILLER,
    JOB, MAX, PARTIAL, Packet, RETRANSMIT, mac, over_ipv6, v6,
};
use switchml_test_support::kernel::tc::ENVELOPE_LEN;
use switchml_test_support::kernel::{Kernel, SLOTS, binding, job, member};

const RANKS: u16 = 4;
/// Ranks 0 to 2 are below.
const BELOW: u32 = 0b111;
const LANES: usize = 64;
const PARENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 9, 9];
const PARENT_IP: [u8; 4] = [10, 9, 9, 9];
const PARENT_PORT: u16 = 4000;
const UPLINK_MAC: [u8; 6] = [0x02, 0, 0, 0, 9, 1];
const UPLINK_IP: [u8; 4] = [10, 9, 9, 1];
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// A combiner whose ranks have all said HELLO.
fn combiner(cells: u32) -> Kernel {
    let mut kernel = Kernel::combiner(cells);
    kernel.set_uplink(JOB, &Uplink { below: below(BELOW), ..uplink(cells) });
    let entry = job(RANKS.into());
    for rank in 0..3 {
        kernel.set_member(JOB, rank, &member(rank));
    }
    kernel.set_job(JOB, &entry);
    let places = (0..3).map(|rank| (rank, binding(rank), Way::Group));
    kernel.set_receivers(JOB, Receivers::new(&entry, JOB, places).unwrap());
    kernel
}

pub fn uplink(cells: u32) -> Uplink {
    let parent = Binding {
        ip: PARENT_IP.into(),
        ifindex: IFINDEX,
        mac: PARENT_MAC,
        port: U16::new(PARENT_PORT),
        ..Binding::default()
    };
    Uplink {
        epoch: EPOCH,
        port: U16::new(AGGREGATOR_PORT),
        mac: UPLINK_MAC,
        cells,
        address: UPLINK_IP.into(),
        parent,
        ..Uplink::NONE
    }
}

pub fn below(first_group: u32) -> Ranks {
    (0..32).filter(|rank| first_group >> rank & 1 == 1).collect()
}

/// Rule 27.2.
fn port_of(rank: u16) -> u16 {
    AGGREGATOR_PORT + 1 + (rank + 64 * JOB) % 1024
}

fn port_for_all() -> u16 {
    AGGREGATOR_PORT + 1025 + JOB
}

/// The frame in which the combiner sends a packet to its parent, from the port of `rank`.
pub fn to_parent(packet: &[u8], rank: u16) -> Vec<u8> {
    let envelope = Envelope {
        mac_destination: PARENT_MAC,
        mac_source: UPLINK_MAC,
        source: UPLINK_IP,
        destination: PARENT_IP,
        source_port: port_of(rank),
        destination_port: PARENT_PORT,
        ..Envelope::FROM_AGGREGATOR
    };
    envelope.bytes(packet)
}

/// The frame in which the parent sends a packet to a port of the combiner.
fn from_parent(packet: &Packet, port: u16) -> Vec<u8> {
    parents(port).bytes(&packet.bytes())
}

fn parents(port: u16) -> Envelope {
    Envelope {
        mac_destination: AGGREGATOR_MAC,
        mac_source: PARENT_MAC,
        source: PARENT_IP,
        destination: AGGREGATOR_IP,
        source_port: PARENT_PORT,
        destination_port: port,
        ..Packet::contribution(0, 0, 0, &[0; LANES]).request()
    }
}

fn own(rank: u16, slot: u16) -> Packet {
    let values: Vec<_> = (0..LANES as u32).map(|lane| lane * 1000 + u32::from(rank)).collect();
    Packet::contribution(rank, slot, 0, &values)
}

/// The partial sum of the contributions of some ranks of one group: rules 2.9, 3.5 and 27.14.
fn partial(ranks: &[u16], slot: u16) -> Packet {
    let lane = |lane| ranks.iter().map(|rank| lane * 1000 + u32::from(*rank)).sum();
    let values: Vec<u32> = (0..LANES as u32).map(lane).collect();
    let first = ranks[0] / 32 * 32;
    Packet {
        kind: PARTIAL,
        aux: ranks.iter().map(|rank| 1 << (rank - first)).sum(),
        contributions: ranks.len() as u32,
        ..Packet::contribution(first, slot, 0, &values)
    }
}

#[track_caller]
fn expect(kernel: &Kernel, frame: &[u8], verdict: u32, outcome: Outcome) -> Vec<u8> {
    let before = [kernel.counters(), kernel.tc().counters()];
    let run = kernel.run(frame);
    let after = [kernel.counters(), kernel.tc().counters()];
    let counted = [0, 1].map(|hook| {
        let mut all = Outcome::ALL.iter().copied();
        all.find(|outcome| after[hook][*outcome as usize] != before[hook][*outcome as usize])
    });
    assert_eq!((counted, run.verdict), ([Some(outcome); 2], verdict));
    run.frame
}

#[test]
fn contributions_leave_as_one_partial_sum() {
    needs_racks!();
    let kernel = combiner(64);
    let held = |rank| expect(&kernel, &own(rank, 3).frame(), XDP_DROP, Outcome::Held);
    held(2);
    held(0);
    expect(&kernel, &own(0, 3).frame(), XDP_DROP, Outcome::Duplicate);
    let sent = expect(&kernel, &own(1, 3).frame(), XDP_REDIRECT, Outcome::Combined);
    assert_eq!(sent, to_parent(&partial(&[0, 1, 2], 3).bytes(), 1));
}

#[test]
fn resends_pass() {
    needs_racks!();
    let kernel = combiner(64);
    let resent = Packet { flags: CHECKED | RETRANSMIT, ..own(1, 2) };
    let sent = expect(&kernel, &resent.frame(), XDP_REDIRECT, Outcome::Passed);
    assert_eq!(sent, to_parent(&resent.bytes(), 1));
    // Rule 27.12: a held contribution is dropped if it would have to leave next to another packet.
    expect(&kernel, &own(0, 4).frame(), XDP_DROP, Outcome::Held);
    let resent = Packet { flags: CHECKED | RETRANSMIT, ..own(0, 4) };
    let sent = expect(&kernel, &resent.frame(), XDP_REDIRECT, Outcome::Flushed);
    assert_eq!(sent, to_parent(&resent.bytes(), 0));
}

#[test]
fn hellos_bind_and_go_on() {
    needs_racks!();
    let mut kernel = combiner(64);
    let stranger = MemberEntry { epoch: 0, ..member(1) };
    kernel.set_member(JOB, 1, &stranger);
    expect(&kernel, &own(1, 0).frame(), XDP_DROP, Outcome::NoHello);
    let hello = Packet::hello(1, 352);
    let sent = expect(&kernel, &hello.frame(), XDP_REDIRECT, Outcome::HelloPassed);
    assert_eq!(sent, to_parent(&hello.bytes(), 1));
    assert_eq!(kernel.member(JOB, 1), member(1));
    expect(&kernel, &Packet::hello(3, 32).frame(), XDP_DROP, Outcome::BadRank);
}

#[test]
fn the_parents_answers_go_down() {
    needs_racks!();
    let kernel = combiner(64);
    let asked = own(1, 5);
    for answer in [asked.result(CHECKED, 4, &[7; LANES]), asked.pending(0b10)] {
        let frame = from_parent(&answer, port_of(1));
        let sent = expect(&kernel, &frame, XDP_REDIRECT, Outcome::ToRank);
        assert_eq!(sent, answer.reply(1));
    }
    let result = asked.result_for_all(CHECKED, 4, &[7; LANES]);
    let frame = from_parent(&result, port_for_all());
    let sent = expect(&kernel, &frame, XDP_REDIRECT, Outcome::ToAll);
    assert_eq!(sent, result.to_group());
}

#[test]
fn what_is_not_the_parents_is_the_hosts() {
    needs_racks!();
    let kernel = combiner(64);
    let result = own(1, 5).result_for_all(CHECKED, 4, &[7; LANES]);
    let bytes = result.bytes();
    let at = parents(port_for_all());
    let others = [Envelope { source: [10, 9, 9, 8], ..at }, Envelope { source_port: 53, ..at }];
    for other in others {
        let frame = other.bytes(&bytes);
        assert_eq!(expect(&kernel, &frame, XDP_PASS, Outcome::NotOurs), frame);
    }
    // A job that does not exist.
    let other = Packet { job: JOB + 1, ..result.clone() };
    let frame = from_parent(&other, port_for_all());
    assert_eq!(expect(&kernel, &frame, XDP_PASS, Outcome::NotOurs), frame);
    let refused = [
        (result.clone(), port_of(1), Outcome::WrongPlace),
        (own(1, 5).pending(2), port_for_all(), Outcome::WrongPlace),
        (own(3, 5).pending(2), port_of(3), Outcome::BadRank),
        (Packet { epoch: EPOCH + 1, ..result.clone() }, port_for_all(), Outcome::WrongEpoch),
        (own(1, 5), port_of(1), Outcome::BadKind),
    ];
    for (packet, port, outcome) in refused {
        expect(&kernel, &from_parent(&packet, port), XDP_DROP, outcome);
    }
}

#[test]
fn who_is_not_below_changes_nothing() {
    needs_racks!();
    let kernel = combiner(1);
    let before = kernel.cell(0);
    let spoofed = Envelope { source: AGGREGATOR_IP, ..own(1, 0).request() };
    let frame = Envelope { destination: [10, 0, 0, 9], ..spoofed }.bytes(&own(1, 0).bytes());
    expect(&kernel, &frame, XDP_DROP, Outcome::Spoofed);
    let elsewhere = Envelope { mac_source: mac(2), ..own(1, 0).request() };
    expect(&kernel, &elsewhere.bytes(&own(1, 0).bytes()), XDP_DROP, Outcome::WrongPlace);
    expect(&kernel, &own(3, 0).frame(), XDP_DROP, Outcome::NoHello);
    let damaged = Packet { check: Some(1), ..own(1, 0) };
    expect(&kernel, &damaged.frame(), XDP_DROP, Outcome::BadCheck);
    assert!(kernel.cell(0) == before);
}

/// Rule 27.1: the root refuses packets of an aborted job.
#[test]
fn what_is_of_an_aborted_job_passes() {
    needs_racks!();
    let mut kernel = combiner(64);
    for rank in [0, 2] {
        expect(&kernel, &own(rank, 3).frame(), XDP_DROP, Outcome::Held);
    }
    kernel.set_job(JOB, &JobEntry { state: ABORTED, ..job(RANKS.into()) });
    for rank in [1, 2] {
        let sent = expect(&kernel, &own(rank, 3).frame(), XDP_REDIRECT, Outcome::Passed);
        assert_eq!(sent, to_parent(&own(rank, 3).bytes(), rank));
    }
    let refused = own(1, 3).reject(3, 0);
    let sent = expect(&kernel, &from_parent(&refused, port_of(1)), XDP_REDIRECT, Outcome::ToRank);
    assert_eq!(sent, refused.reply(1));
    let segments = bundle(&kernel, &[own(1, 4), own(1, 5)]).expect("it goes on").1;
    assert_eq!(segments, [own(1, 4).bytes(), own(1, 5).bytes()]);
}

#[test]
fn what_is_of_a_closed_job_is_dropped() {
    needs_racks!();
    let mut kernel = combiner(64);
    kernel.set_job(JOB, &JobEntry { state: VACANT, ..job(RANKS.into()) });
    expect(&kernel, &own(1, 3).frame(), XDP_DROP, Outcome::UnknownJob);
    let late = from_parent(&own(1, 3).pending(2), port_of(1));
    expect(&kernel, &late, XDP_DROP, Outcome::UnknownJob);
    kernel.set_uplink(JOB, &Uplink::NONE);
    assert_eq!(expect(&kernel, &late, XDP_PASS, Outcome::NotOurs), late);
}

/// Bytes of a segment in these tests.
const SEGMENT: usize = 32 + 4 * LANES;

/// Sends packets of one rank in one superpacket through the program for tc. Returns its headers and
/// segments.
fn bundle(kernel: &Kernel, packets: &[Packet]) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let bytes: Vec<_> = packets.iter().flat_map(Packet::bytes).collect();
    run_bundle(kernel, &packets[0].request().bytes(&bytes))
}

/// Runs the program for tc on a superpacket. Returns its headers and segments.
fn run_bundle(kernel: &Kernel, frame: &[u8]) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let run = kernel.tc().run_superpacket(frame, SEGMENT);
    match run.verdict as i32 {
        2 => None,
        7 => {
            let (headers, segments) = run.frame.split_at(ENVELOPE_LEN);
            Some((headers.to_vec(), segments.chunks(SEGMENT).map(<[u8]>::to_vec).collect()))
        }
        verdict => panic!("verdict {verdict}"),
    }
}

/// Superpackets stay whole, however ranks cut them.
#[test]
fn superpackets_go_up_with_what_is_complete() {
    needs_racks!();
    let kernel = combiner(64);
    let of = |rank, slots: std::ops::Range<u16>| -> Vec<Packet> {
        slots.map(|slot| own(rank, slot)).collect()
    };
    assert_eq!(bundle(&kernel, &of(0, 0..6)), None);
    assert_eq!(bundle(&kernel, &of(1, 0..2)), None);
    assert_eq!(bundle(&kernel, &of(1, 3..5)), None);
    let (headers, segments) = bundle(&kernel, &of(2, 0..6)).expect("some are complete");
    for (slot, segment) in (0..).zip(&segments) {
        if [0, 1, 3, 4].contains(&slot) {
            assert_eq!(*segment, partial(&[0, 1, 2], slot).bytes(), "slot {slot}");
        } else {
            assert_eq!(segment[1], FILLER, "slot {slot}");
        }
    }
    let expected = to_parent(&segments.concat(), 2);
    assert_eq!(addresses(&headers), addresses(&expected));
    // The missing contributions come in other superpackets.
    let (_, segments) = bundle(&kernel, &of(1, 2..3)).expect("complete");
    assert_eq!(segments, [partial(&[0, 1, 2], 2).bytes()]);
}

/// MACs, addresses and ports of a frame over IPv4.
fn addresses(frame: &[u8]) -> [&[u8]; 2] {
    [&frame[..12], &frame[26..38]]
}

#[test]
fn superpackets_of_the_parent_go_down_whole() {
    needs_racks!();
    let kernel = combiner(64);
    let result = |slot| own(1, slot).result_for_all(CHECKED, 4, &[7; LANES]);
    let filler = Packet { kind: FILLER, ..Packet::contribution(0, 0, 0, &[0; LANES]) };
    let filler = Packet { job: 99, ..filler };
    let packets = [filler.clone(), result(1), filler, result(2)];
    let bytes: Vec<_> = packets.iter().flat_map(Packet::bytes).collect();
    let frame = parents(port_for_all()).bytes(&bytes);
    let (headers, segments) = run_bundle(&kernel, &frame).expect("it goes to all");
    assert_eq!(segments.concat(), bytes);
    let expected = result(1).to_group();
    assert_eq!(addresses(&headers), addresses(&expected));
    assert_eq!(kernel.tc().counters()[Outcome::ToAll as usize], 4);
    // A router's mark travels on in the packets.
    let marked = Envelope { tos: 3, ..parents(port_for_all()) }.bytes(&bytes);
    let (headers, segments) = run_bundle(&kernel, &marked).expect("it goes to all");
    assert_eq!(headers[15], 2, "ECT(0)");
    assert!(segments.iter().all(|segment| segment[17] & CE == CE));
}

/// The programs do the same as the protocol crate on a host that drops what would have to leave
/// next to another packet.
#[test]
fn kernel_and_host_agree() {
    needs_racks!();
    const CELLS: u32 = 4096;
    let kernel = combiner(CELLS);
    let host = Host::new(CELLS);
    let mut random = StdRng::seed_from_u64(0x5EED);
    let mut rounds = [[0u32; SLOTS as usize]; 3];
    for number in 0..6000 {
        let rank = random.random_range(0..3);
        let packet = packet(rank, &mut rounds, &mut random);
        let from = if random.random_ratio(1, 30) { 2 } else { sender_of(&packet) };
        let frame = sender(from).bytes(&packet.bytes());
        let before = kernel.counters();
        let run = kernel.run(&frame);
        let after = kernel.counters();
        let (outcome, bytes) = host.up(&binding(from), &packet.bytes());
        let context = format!("packet {number}: {outcome:?} of {packet:?}");
        assert_eq!(after[outcome as usize], before[outcome as usize] + 1, "{context}");
        if outcome.action() == Action::Up {
            let rank = Share::of(Header::ref_from_prefix(&packet.bytes()).unwrap().0).highest();
            assert_eq!(
                (run.verdict, run.frame),
                (XDP_REDIRECT, to_parent(&bytes, rank)),
                "{context}"
            );
        } else {
            assert_eq!(run.verdict, XDP_DROP, "{context}");
        }
    }
    for slot in 0..SLOTS as u16 {
        let bytes = own(0, slot).bytes();
        let index = cell::cell_of(Header::ref_from_prefix(&bytes).unwrap().0, CELLS);
        let ours = &host.cells.borrow()[index as usize];
        for mut cell in [kernel.cell(index).cell, kernel.tc().cell(index).cell] {
            // Times are their own.
            cell.head.since = ours.head.since;
            assert_eq!(cell.head, ours.head, "slot {slot}");
            assert!(cell == *ours, "values of slot {slot}");
        }
    }
    let counters = kernel.counters();
    let often = [
        Outcome::Held,
        Outcome::Combined,
        Outcome::Passed,
        Outcome::Flushed,
        Outcome::Duplicate,
        Outcome::BadCheck,
        Outcome::WrongPlace,
    ];
    for outcome in often {
        assert!(counters[outcome as usize] > 50, "{outcome:?}: {}", counters[outcome as usize]);
    }
}

/// The rank that sends the packet; for a partial sum, the only rank of its set.
fn sender_of(packet: &Packet) -> u16 {
    if packet.kind == PARTIAL { packet.aux.trailing_zeros() as u16 } else { packet.rank }
}

fn sender(rank: u16) -> Envelope {
    Packet::contribution(rank, 0, 0, &[]).request()
}

/// Mostly the next packet of that rank, or one that it has sent.
fn packet(rank: u16, rounds: &mut [[u32; SLOTS as usize]; 3], random: &mut StdRng) -> Packet {
    let slot = random.random_range(0..SLOTS as usize);
    let least = rounds.iter().map(|rounds| rounds[slot]).min().unwrap();
    let next = &mut rounds[usize::from(rank)][slot];
    let is_next = *next == least || random.random_ratio(1, 8);
    let round = if is_next { *next } else { next.saturating_sub(1) };
    *next += u32::from(is_next);
    let values: Vec<u32> = (0..LANES).map(|_| random.random()).collect();
    let legal = Packet::contribution(rank, slot as u16, round, &values);
    match random.random_range(0..24) {
        0 => Packet { check: Some(random.random()), ..legal },
        1 => Packet { fingerprint: 7, ..legal },
        2 => Packet { flags: CHECKED | CE, ..legal },
        3..6 => Packet { flags: CHECKED | RETRANSMIT, ..legal },
        6 => Packet { op: MAX, fingerprint: 9, ..legal },
        7..9 => Packet { kind: PARTIAL, rank: 0, aux: 1 << rank, ..legal },
        9 => Packet { flags: CHECKED | EMPTY, lanes: Some(LANES as u16), values: vec![], ..legal },
        _ => legal,
    }
}

/// A host that calls the protocol crate's functions, with the simplest storage.
struct Host {
    cells: RefCell<Vec<Cell>>,
}

impl Host {
    fn new(cells: u32) -> Self {
        Self { cells: RefCell::new(vec![Cell::default(); cells as usize]) }
    }

    /// Returns what becomes of a packet, and its bytes after that.
    fn up(&self, from: &Binding, bytes: &[u8]) -> (Outcome, Vec<u8>) {
        let mut bytes = bytes.to_vec();
        let mut packet = packet::Packet::of(&mut bytes).unwrap();
        let origin = Origin { binding: *from, congested: false };
        let outcome = node::up(self, &(), &origin, &mut packet).outcome;
        (outcome, bytes)
    }
}

impl Members for Host {
    fn job(&self, number: u16) -> Option<JobEntry> {
        Some(if number == JOB { job(RANKS.into()) } else { JobEntry::default() })
    }

    fn member(&self, _: u16, rank: u16) -> Option<MemberEntry> {
        Some(if rank < 3 { member(rank) } else { MemberEntry::default() })
    }

    fn learn(&self, _: u16, _: u16, _: u32, _: &Binding) {}
}

impl Cells for Host {
    fn below(&self, _: u16, group: u16) -> u32 {
        if group == 0 { BELOW } else { 0 }
    }

    fn data_port(&self, _: u16) -> u16 {
        AGGREGATOR_PORT
    }

    fn clock(&self) -> (u32, u32) {
        (0, u32::MAX)
    }

    fn with_cell(&self, header: &Header, f: impl FnOnce(&mut Cell) -> Outcome) -> Outcome {
        let mut cells = self.cells.borrow_mut();
        let index = cell::cell_of(header, cells.len() as u32);
        f(&mut cells[index as usize])
    }
}

/// The combiner with the same addresses over IPv6, where hosts require a right UDP checksum.
#[test]
fn the_same_over_ipv6() {
    needs_racks!();
    let mut kernel = combiner(64);
    let of_v6 = |place: Binding| Binding { ip: v6(place.ip.low()).into(), ..place };
    for port in [AGGREGATOR_PORT, 0] {
        kernel.add_local(AGGREGATOR_MAC, v6(AGGREGATOR_IP), port);
    }
    let way = uplink(64);
    let address = v6(UPLINK_IP).into();
    let way = Uplink { below: below(BELOW), address, parent: of_v6(way.parent), ..way };
    kernel.set_uplink(JOB, &way);
    let entry = JobEntry { address: v6(AGGREGATOR_IP).into(), group: [0; 4], ..job(4) };
    kernel.set_job(JOB, &entry);
    let place = |rank| of_v6(binding(rank));
    for rank in 0..3 {
        kernel.set_member(JOB, rank, &MemberEntry { binding: place(rank), ..member(rank) });
    }
    let places = [(1, place(1), Way::Copy)];
    kernel.set_receivers(JOB, Receivers::new(&entry, JOB, places).unwrap());
    for rank in [0, 2] {
        expect(&kernel, &over_ipv6(&own(rank, 3).frame()), XDP_DROP, Outcome::Held);
    }
    let sent = expect(&kernel, &over_ipv6(&own(1, 3).frame()), XDP_REDIRECT, Outcome::Combined);
    assert_is(&sent, &to_parent(&partial(&[0, 1, 2], 3).bytes(), 1));
    let answer = own(1, 5).pending(0b10);
    let frame = over_ipv6(&from_parent(&answer, port_of(1)));
    let sent = expect(&kernel, &frame, XDP_REDIRECT, Outcome::ToRank);
    assert_is(&sent, &answer.reply(1));
}

/// Asserts that a frame is the IPv6 form of an IPv4 frame, with a right UDP checksum.
#[track_caller]
fn assert_is(frame: &[u8], v4: &[u8]) {
    let mut expected = over_ipv6(v4);
    // Rule 32.1: the flow label stays.
    expected[16..18].copy_from_slice(&0x1234u16.to_be_bytes());
    assert_eq!(frame[..60], expected[..60]);
    assert_eq!(frame[62..], expected[62..]);
    // RFC 8200: addresses, length, 17, and all from the ports on add up to all ones.
    let words = frame[22..].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum = words.sum::<u32>() + (frame.len() - 54) as u32 + 17;
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    assert_eq!(sum, 0xFFFF);
}
