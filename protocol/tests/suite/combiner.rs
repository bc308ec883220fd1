//! A combiner around its cells: rules 27.1 to 27.4, and what leaves it packet by packet.

use std::cell::{Cell as StdCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::bpf_types::fanout::{Receivers, Way};
use switchml_protocol::bpf_types::job::{ABORTED, Binding, JobEntry, MemberEntry, OPEN, VACANT};
use switchml_protocol::combiner::admission::Cells;
use switchml_protocol::combiner::cell::{self, Cell};
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::node::{self, Served, Target};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet;
use switchml_protocol::root::admission::Members;
use switchml_protocol::wire::header::Header;
use switchml_protocol::wire::ip::Ip;
use switchml_protocol::wire::ports::{base_of, port_for_all, rank_port};

use switchml_test_support::packet::{
    CE, CHECKED, CONTRIBUTION, EVERYONE, FILLER, HELLO, PARTIAL, PENDING, Packet, REJECT, RESULT,
    RETRANSMIT, ROOM,
};
use switchml_test_support::switch::{EPOCH, JOB, binding, contribution, hello, secret};

/// The combiner's data port.
const PORT: u16 = 48864;
/// Ranks 1, 2 and 33 of 40 are below.
const BELOW: [u32; 2] = [0b110, 0b10];
const PATIENCE: u32 = 100;
/// Another job with the same ranks.
const OTHER: u16 = 500;

/// The crate's functions over the simplest storage there is.
struct Combiner {
    /// State of the combiner's job.
    state: u32,
    members: RefCell<BTreeMap<u16, MemberEntry>>,
    cells: RefCell<Vec<Cell>>,
    now: StdCell<u32>,
    /// What left ahead of the packet that is served.
    ahead: RefCell<Vec<Packet>>,
}

impl Combiner {
    fn new(cells: usize) -> Self {
        let member = |rank| (rank, MemberEntry { secret: secret(rank), ..MemberEntry::default() });
        Self {
            state: OPEN,
            members: RefCell::new((0..40).map(member).collect()),
            cells: RefCell::new(vec![Cell::default(); cells]),
            now: StdCell::new(0),
            ahead: RefCell::default(),
        }
    }

    /// One whose ranks have said HELLO.
    fn ready(cells: usize) -> Self {
        let combiner = Self::new(cells);
        for rank in [1, 2, 33] {
            let outcome = combiner.up(&binding(rank), &hello(rank)).0;
            assert_eq!(outcome, Outcome::HelloPassed);
        }
        combiner
    }

    /// What becomes of a packet from below, and the packets that go up, in their order.
    fn up(&self, from: &Binding, packet: &Packet) -> (Outcome, Vec<Packet>) {
        let mut bytes = packet.to_bytes();
        let mut served = packet::Packet::of(&mut bytes).expect("a header");
        let origin = Origin { binding: *from, congested: false };
        let Served { outcome, target } = node::up(self, &(), &origin, &mut served);
        let mut gone = self.ahead.take();
        if let Target::Parent { job, from_port } = target {
            // The rank whose place another one takes is the highest of its packet.
            let rank = if packet.kind == PARTIAL {
                packet.rank + 31 - packet.aux.leading_zeros() as u16
            } else {
                packet.rank
            };
            assert_eq!((job, from_port), (packet.job, rank_port(PORT, packet.job, rank)));
            gone.push(Packet::from_bytes(&bytes));
        }
        (outcome, gone)
    }

    fn down(&self, from: &Binding, port: u16, packet: &Packet) -> Outcome {
        let mut bytes = packet.to_bytes();
        let mut served = packet::Packet::of(&mut bytes).expect("a header");
        let origin = Origin { binding: *from, congested: false };
        let Served { outcome, target } = node::down(self, &(), &origin, port, &mut served);
        let expected = match outcome {
            Outcome::ToAll => Target::All,
            Outcome::ToRank => Target::Rank,
            _ => Target::Nobody,
        };
        assert_eq!(target, expected, "{outcome:?}");
        outcome
    }
}

impl Members for Combiner {
    fn job(&self, number: u16) -> Option<JobEntry> {
        let entry =
            JobEntry { state: self.state, epoch: EPOCH, ranks: 40, slots: 4, ..<_>::default() };
        match number {
            JOB | OTHER => Some(entry),
            0..JOB => Some(JobEntry::default()),
            _ => None,
        }
    }

    fn member(&self, _: u16, rank: u16) -> Option<MemberEntry> {
        self.members.borrow().get(&rank).copied()
    }

    fn learn(&self, _: u16, rank: u16, epoch: u32, binding: &Binding) {
        let mut members = self.members.borrow_mut();
        let member = members.get_mut(&rank).expect("a member");
        (member.epoch, member.binding) = (epoch, *binding);
    }

    fn parent(&self, job: u16) -> Option<(Binding, Ip)> {
        (job == JOB).then(|| (parent(), Ip::default()))
    }
}

impl Cells for Combiner {
    fn below(&self, _: u16, group: u16) -> u32 {
        BELOW.get(usize::from(group)).copied().unwrap_or(0)
    }

    fn data_port(&self, _: u16) -> u16 {
        PORT
    }

    fn clock(&self) -> (u32, u32) {
        (self.now.get(), PATIENCE)
    }

    fn flush(&self, cell: &mut Cell) {
        let mut bytes = vec![0; 32 + 4 * usize::from(cell.head.lanes)];
        let mut flushed = packet::Packet::of(&mut bytes).expect("a header");
        cell::flush(cell, &mut flushed).expect("room");
        self.ahead.borrow_mut().push(Packet::from_bytes(&bytes));
    }

    fn with_cell(&self, header: &Header, f: impl FnOnce(&mut Cell) -> Outcome) -> Outcome {
        let mut cells = self.cells.borrow_mut();
        let index = cell::cell_of(header, cells.len() as u32);
        f(&mut cells[index as usize])
    }
}

fn parent() -> Binding {
    Binding {
        ip: [10, 9, 9, 9].into(),
        ifindex: 77,
        mac: [2, 9, 9, 9, 9, 9],
        port: 48864.into(),
        ..Binding::default()
    }
}

/// What a rank contributes to round 0 of slot 0.
fn own(rank: u16) -> Packet {
    contribution(rank, 0, 0, vec![1000 + u32::from(rank); 32])
}

/// The parent's answer of this kind to a rank, or to all.
fn answer(kind: u8, rank: u16) -> Packet {
    let payload = match kind {
        RESULT => vec![7; 32],
        PENDING | REJECT => vec![1, 2],
        _ => vec![],
    };
    let packet = Packet { kind, rank, payload, op: 0, aux: 0, ..own(1) }.sealed();
    Packet { lanes: if kind == ROOM { 32 } else { packet.lanes }, ..packet }
}

/// The sums of rule 27.2.
#[test]
fn ports_are_those_of_the_specification() {
    assert_eq!(rank_port(48864, 0, 0), 48865);
    assert_eq!(rank_port(48864, 3, 5), 48864 + 1 + 5 + 3 * 64);
    // 1000 + 64 is 40 beyond 1024.
    assert_eq!(rank_port(48864, 1, 1000), 48864 + 1 + 40);
    assert_eq!(rank_port(48864, 16, 0), rank_port(48864, 0, 0));
    assert_eq!(port_for_all(48864, 0), 48864 + 1025);
    assert_eq!(port_for_all(48864, 511), 48864 + 1025 + 511);
}

#[test]
fn a_rank_has_a_port_of_its_own_from_which_the_combiner_is_known() {
    for job in 0..600 {
        let ports: BTreeSet<_> = (0..1024).map(|rank| rank_port(PORT, job, rank)).collect();
        assert_eq!(ports.len(), 1024, "job {job}");
        assert!(ports.iter().all(|port| (PORT + 1..PORT + 1025).contains(port)), "job {job}");
        for rank in 0..1024 {
            assert_eq!(base_of(rank_port(PORT, job, rank), job, rank), PORT);
        }
    }
}

/// Ranks 1 and 2 are all of group 0, rank 33 of group 1.
#[test]
fn the_ranks_below_become_one_packet() {
    let combiner = Combiner::ready(8);
    assert_eq!(combiner.up(&binding(2), &own(2)), (Outcome::Held, vec![]));
    assert_eq!(combiner.up(&binding(2), &own(2)), (Outcome::Duplicate, vec![]));
    let marked = Packet { flags: CHECKED | CE, ..own(1) };
    let sum = Packet { payload: vec![2003; 32], ..own(1) }.partial(&[1, 2]);
    let sum = Packet { flags: CHECKED | CE, ..sum };
    assert_eq!(combiner.up(&binding(1), &marked), (Outcome::Combined, vec![sum]));
    // Rank 33 is alone in its group.
    assert_eq!(combiner.up(&binding(33), &own(33)), (Outcome::Passed, vec![own(33)]));
}

/// Rules 27.8 and 27.11.
#[test]
fn a_resend_lets_go_what_waits_for_it() {
    let combiner = Combiner::ready(8);
    assert_eq!(combiner.up(&binding(2), &own(2)).0, Outcome::Held);
    let resent = Packet { flags: CHECKED | RETRANSMIT, ..own(2) };
    let alone = own(2).partial(&[2]);
    assert_eq!(combiner.up(&binding(2), &resent), (Outcome::Flushed, vec![alone, resent.clone()]));
    assert_eq!(combiner.up(&binding(2), &resent), (Outcome::Passed, vec![resent]));
}

/// Another combiner below sends partial sums from the port of any of its ranks.
#[test]
fn partial_sums_come_from_below_too() {
    let combiner = Combiner::ready(8);
    // Ranks 1 and 2 live at one address in these tests.
    let from = Binding { port: 9.into(), ..binding(1) };
    let sum = own(1).partial(&[1, 2]);
    assert_eq!(combiner.up(&from, &sum), (Outcome::Passed, vec![sum.clone()]));
    let elsewhere = Binding { mac: [2; 6], ..from };
    assert_eq!(combiner.up(&elsewhere, &sum).0, Outcome::WrongPlace);
    assert_eq!(combiner.up(&from, &own(1).partial(&[1, 3])).0, Outcome::NoHello);
}

#[test]
fn hellos_bind_and_go_on() {
    let combiner = Combiner::new(8);
    assert_eq!(combiner.up(&binding(1), &own(1)).0, Outcome::NoHello);
    let said = combiner.up(&binding(1), &hello(1));
    assert_eq!(said, (Outcome::HelloPassed, vec![hello(1)]));
    assert_eq!(combiner.up(&binding(2), &hello(1)).0, Outcome::WrongPlace);
    let guessed = Packet { aux: secret(2) ^ 1, ..hello(2) };
    assert_eq!(combiner.up(&binding(2), &guessed).0, Outcome::WrongSecret);
    // Rank 3 belongs to the job, but is not below.
    assert_eq!(combiner.up(&binding(3), &hello(3)).0, Outcome::BadRank);
    assert_eq!(combiner.up(&binding(200), &hello(200)).0, Outcome::BadRank);
    let group = Packet { flags: 16, ..hello(1) };
    assert_eq!(combiner.up(&binding(1), &group).0, Outcome::Hello);
}

#[test]
fn what_is_not_admitted_touches_no_cell() {
    let combiner = Combiner::ready(8);
    let before = combiner.cells.borrow().clone();
    let refused = [
        (Packet { epoch: EPOCH + 1, ..own(1) }.sealed(), Outcome::WrongEpoch),
        (Packet { job: JOB - 1, ..own(1) }.sealed(), Outcome::UnknownJob),
        (Packet { job: JOB + 1, ..own(1) }.sealed(), Outcome::UnknownJob),
        (Packet { slot: 4, ..own(1) }.sealed(), Outcome::BadSlot),
        (Packet { check: own(1).check ^ 1, ..own(1) }, Outcome::BadCheck),
        (Packet { flags: 0, ..own(1) }, Outcome::BadCheck),
        (answer(RESULT, 1), Outcome::BadKind),
        (Packet { kind: FILLER, ..own(1) }, Outcome::BadKind),
    ];
    for (packet, outcome) in refused {
        assert_eq!(combiner.up(&binding(1), &packet), (outcome, vec![]), "{packet:?}");
    }
    assert_eq!(combiner.up(&binding(2), &own(1)), (Outcome::WrongPlace, vec![]));
    assert!(before == *combiner.cells.borrow());
}

/// Rule 27.1.
#[test]
fn what_is_of_an_aborted_job_passes() {
    let combiner = Combiner::ready(8);
    assert_eq!(combiner.up(&binding(2), &own(2)).0, Outcome::Held);
    let combiner = Combiner { state: ABORTED, ..combiner };
    let before = combiner.cells.borrow().clone();
    // Not even its check word is judged: it is not added.
    let damaged = Packet { check: own(1).check ^ 1, ..own(1) };
    for packet in [own(2), own(1), damaged] {
        let from = binding(packet.rank);
        assert_eq!(combiner.up(&from, &packet), (Outcome::Passed, vec![packet]));
    }
    assert_eq!(combiner.up(&binding(2), &own(1)), (Outcome::WrongPlace, vec![]));
    let port = PORT + 1 + 1 + 64 * JOB;
    assert_eq!(combiner.down(&parent(), port, &answer(REJECT, 1)), Outcome::ToRank);
    assert!(before == *combiner.cells.borrow());
    let combiner = Combiner { state: VACANT, ..combiner };
    assert_eq!(combiner.up(&binding(1), &own(1)), (Outcome::UnknownJob, vec![]));
    assert_eq!(combiner.down(&parent(), port, &answer(REJECT, 1)), Outcome::UnknownJob);
}

#[test]
fn the_parents_answers_go_to_their_rank_or_to_all() {
    let combiner = Combiner::ready(8);
    let port_of = |rank| PORT + 1 + rank + 64 * JOB;
    for kind in [RESULT, PENDING, REJECT, ROOM] {
        for rank in [1, 2, 33] {
            let outcome = combiner.down(&parent(), port_of(rank), &answer(kind, rank));
            assert_eq!(outcome, Outcome::ToRank, "kind {kind}");
            let beside = combiner.down(&parent(), port_of(rank) + 1, &answer(kind, rank));
            assert_eq!(beside, Outcome::WrongPlace, "kind {kind}");
        }
        assert_eq!(combiner.down(&parent(), port_of(3), &answer(kind, 3)), Outcome::BadRank);
    }
    assert_eq!(combiner.down(&parent(), port_of(1), &hello(1)), Outcome::ToRank);
    let unbound = Combiner::new(8);
    assert_eq!(unbound.down(&parent(), port_of(1), &hello(1)), Outcome::NoHello);
    let to_all = answer(RESULT, EVERYONE);
    assert_eq!(combiner.down(&parent(), PORT + 1025 + JOB, &to_all), Outcome::ToAll);
    for port in [PORT, port_of(1), PORT + 1024 + JOB] {
        assert_eq!(combiner.down(&parent(), port, &to_all), Outcome::WrongPlace, "{port}");
    }
    let pending = answer(PENDING, EVERYONE);
    assert_eq!(combiner.down(&parent(), PORT + 1025 + JOB, &pending), Outcome::BadRank);
}

#[test]
fn only_the_parent_answers() {
    let combiner = Combiner::ready(8);
    let port = PORT + 1025 + JOB;
    let serve = |from: &Binding, packet: &Packet| combiner.down(from, port, packet);
    let to_all = answer(RESULT, EVERYONE);
    let routed = Binding { mac: [2; 6], ..parent() };
    assert_eq!(serve(&routed, &to_all), Outcome::ToAll);
    let others = [
        Binding { ip: [10, 9, 9, 8].into(), ..parent() },
        Binding { port: 48865.into(), ..parent() },
        Binding { ifindex: 78, ..parent() },
        binding(1),
    ];
    for other in others {
        assert_eq!(serve(&other, &to_all), Outcome::WrongPlace, "{other:?}");
    }
    let old = Packet { epoch: EPOCH - 1, ..to_all.clone() };
    assert_eq!(serve(&parent(), &old), Outcome::WrongEpoch);
    for job in [JOB - 1, JOB + 1] {
        let other = Packet { job, ..to_all.clone() };
        assert_eq!(serve(&parent(), &other), Outcome::UnknownJob);
    }
    assert_eq!(serve(&parent(), &Packet { kind: CONTRIBUTION, ..own(1) }), Outcome::BadKind);
    assert_eq!(
        serve(&parent(), &Packet { kind: HELLO, rank: EVERYONE, ..hello(1) }),
        Outcome::BadRank
    );
}

/// Ranks 0 and 1 are behind one combiner, 2 and 3 behind another, 4 and 5 at the root itself.
#[test]
fn ranks_behind_a_combiner_share_a_copy() {
    let job = JobEntry {
        epoch: EPOCH,
        group: [239, 1, 2, 3],
        group_port: 4242.into(),
        ..JobEntry::default()
    };
    let at = |host: u8, port: u16| Binding {
        ip: [10, 0, 0, host].into(),
        ifindex: u32::from(host),
        port: port.into(),
        ..Binding::default()
    };
    let behind = |host, base: u16, rank: u16| at(host, base + 1 + rank + 64 * JOB);
    let members = [
        (behind(1, 48864, 0), Way::Combiner),
        (behind(1, 48864, 1), Way::Combiner),
        (behind(2, 7000, 2), Way::Combiner),
        (behind(2, 7000, 3), Way::Combiner),
        (at(3, 5000), Way::Copy),
        (at(4, 5001), Way::Group),
    ];
    let receivers = Receivers::new(
        &job,
        JOB,
        (0..).zip(members).map(|(rank, (place, way))| (rank, place, way)),
    )
    .expect("few places");
    let places: Vec<_> = receivers.used().copied().collect();
    let expected = [
        at(1, 48864 + 1025 + JOB),
        at(2, 7000 + 1025 + JOB),
        at(3, 5000),
        Binding { ip: [239, 1, 2, 3].into(), mac: [1, 0, 0x5E, 1, 2, 3], ..at(4, 4242) },
    ];
    assert_eq!((places, receivers.differ), (expected.to_vec(), 1));
}

proptest! {
    /// Whatever comes from elsewhere changes nothing, and goes nowhere.
    #[test]
    fn strangers_touch_no_cell(bytes in vec(any::<u8>(), 32..200), near in any::<bool>()) {
        let combiner = Combiner::ready(4);
        let mut bytes = bytes;
        bytes.truncate(bytes.len() / 4 * 4);
        let mut packet = Packet::from_bytes(&bytes);
        if near {
            (packet.version, packet.job, packet.epoch) = (1, JOB, EPOCH);
            (packet.kind, packet.rank) = (packet.kind % 9, packet.rank % 64);
        }
        let stranger = Binding { ip: [10, 66, 6, 6].into(), ..binding(1) };
        let before = combiner.cells.borrow().clone();
        let (_, gone) = combiner.up(&stranger, &packet);
        prop_assert_eq!(gone, vec![]);
        prop_assert!(before == *combiner.cells.borrow());
        for port in [rank_port(PORT, JOB, packet.rank), port_for_all(PORT, JOB)] {
            let outcome = combiner.down(&stranger, port, &packet);
            prop_assert!(!matches!(outcome, Outcome::ToRank | Outcome::ToAll));
        }
    }
}

/// Rules 27.2 and 27.10: by the port of the packet whose place it takes, to that job's parent
/// ([`Combiner::up`] looks at that).
#[test]
fn what_waited_too_long_leaves_as_the_packet_that_comes() {
    let combiner = Combiner::ready(1);
    let waits = Packet { job: OTHER, ..own(1) }.sealed();
    assert_eq!(combiner.up(&binding(1), &waits), (Outcome::Held, vec![]));
    combiner.now.set(PATIENCE);
    let (outcome, gone) = combiner.up(&binding(2), &own(2));
    assert_eq!(outcome, Outcome::Evicted);
    let [gone] = &gone[..] else { panic!("{gone:?}") };
    assert_eq!((gone.job, &gone.payload), (OTHER, &waits.payload));
}

/// Rule 27.8. It has no lanes, so none can be missing.
#[test]
fn a_contribution_without_lanes_passes() {
    let combiner = Combiner::ready(4);
    let empty = own(1).emptied();
    assert_eq!(combiner.up(&binding(1), &empty), (Outcome::Passed, vec![empty]));
}
