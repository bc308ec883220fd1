//! Random executions of trees: legal workers, real combiners that forget, evict and are passed by,
//! and a root that must answer as the reference does. No result is ever wrong, and once faults stop
//! every worker gets on.

use proptest::prelude::*;
use proptest::sample::Index;
use switchml_protocol::combiner::cell::{Cell, CellContext, cell_of, combine, flush};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet;
use switchml_protocol::wire::header::Kind;

use crate::combiner_reference::Reference;
use crate::traces::{Lockstep, corrupt, last, origin, pick};
use crate::worker::{Job, Worker};
use switchml_test_support::packet::{CONTRIBUTION, EVERYONE, Packet};
use switchml_test_support::switch::{EPOCH, binding};

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hop {
    Combiner(usize),
    Root,
}

/// The ranks and combiners below each combiner.
#[derive(Clone, Debug)]
struct Topology {
    /// First hop of each rank.
    ranks: Vec<Hop>,
    /// The next hop of each combiner.
    parents: Vec<Hop>,
}

impl Topology {
    fn next(&self, hop: Hop) -> Hop {
        match hop {
            Hop::Combiner(at) => self.parents[at],
            Hop::Root => Hop::Root,
        }
    }

    /// Bitmap of the ranks below a combiner.
    fn below(&self, at: usize) -> u32 {
        let is_below = |mut hop: Hop| loop {
            match hop {
                Hop::Root => return false,
                Hop::Combiner(this) if this == at => return true,
                _ => hop = self.next(hop),
            }
        };
        (0..).zip(&self.ranks).map(|(rank, hop)| u32::from(is_below(*hop)) << rank).sum()
    }
}

/// Ranks 0 to 3 live at one place as the root sees it, so combiners may be above them.
fn topology() -> impl Strategy<Value = Topology> {
    use Hop::{Combiner as C, Root};
    prop_oneof![
        Just(Topology { ranks: vec![C(0), C(0), Root], parents: vec![Root] }),
        Just(Topology { ranks: vec![C(0), C(0), C(0), C(0)], parents: vec![Root] }),
        Just(Topology { ranks: vec![C(0), C(0), C(1), C(1), Root], parents: vec![Root, Root] }),
        Just(Topology { ranks: vec![C(0), C(0), C(1), Root], parents: vec![C(1), Root] }),
        Just(Topology { ranks: vec![C(0), C(0), C(1), C(1)], parents: vec![C(2), C(2), Root] }),
    ]
}

/// A combiner, what it was told, and the reference that must send the same.
struct Node {
    cells: Vec<Cell>,
    reference: Reference,
    below: u32,
    epoch: u32,
}

impl Node {
    fn new(cells: usize, below: u32) -> Self {
        let reference = Reference::new(cells);
        Self { cells: vec![Cell::default(); cells], reference, below, epoch: EPOCH }
    }

    fn restart(&mut self) {
        *self = Self { epoch: self.epoch, ..Self::new(self.cells.len(), self.below) };
    }

    /// The packets that go on.
    fn receive(&mut self, packet: &Packet, now: u32, patience: u32) -> Vec<Packet> {
        let mut bytes = packet.to_bytes();
        let mut served = packet::Packet::of(&mut bytes).expect("a header");
        let header = &*served.header;
        let Ok((Kind::Contribution | Kind::Partial, op)) = header.validate(served.len) else {
            return vec![];
        };
        let ranks = packet.ranks();
        let is_below = |rank: &u16| *rank < 32 && self.below >> rank & 1 == 1;
        let is_admitted = header.epoch.get() == self.epoch
            && header.job.get() == switchml_test_support::switch::JOB;
        if !is_admitted || ranks.is_empty() || !ranks.iter().all(is_below) {
            return vec![];
        }
        let index = cell_of(header, self.cells.len() as u32) as usize;
        let context = CellContext { below: self.below, now, hold_time: patience };
        let before = self.cells[index].clone();
        let on = match combine(&mut self.cells[index], &context, op, &mut served) {
            Outcome::Held | Outcome::Duplicate => vec![],
            Outcome::Passed => vec![packet.clone()],
            Outcome::Combined | Outcome::Evicted => vec![Packet::from_bytes(&bytes)],
            Outcome::Flushed => self.let_go(index).into_iter().chain([packet.clone()]).collect(),
            outcome => {
                assert_eq!(outcome, Outcome::BadCheck);
                assert!(self.cells[index] == before, "damage touched a cell");
                return vec![];
            }
        };
        let below = (0..32).filter(|rank| self.below >> rank & 1 == 1).collect();
        assert_eq!(on, self.reference.receive(packet, &below, now, patience));
        on
    }

    /// What a cell holds, which it then lets go.
    fn flush(&mut self, index: usize) -> Option<Packet> {
        let flushed = self.let_go(index);
        assert_eq!(flushed, self.reference.flush(index));
        flushed
    }

    fn let_go(&mut self, index: usize) -> Option<Packet> {
        let cell = &mut self.cells[index];
        if cell.head.held == 0 {
            return None;
        }
        let mut bytes = vec![0; 32 + 4 * usize::from(cell.head.lanes)];
        flush(cell, &mut packet::Packet::of(&mut bytes).expect("a header")).expect("room");
        Some(Packet::from_bytes(&bytes))
    }
}

/// One event of an execution.
#[derive(Clone, Debug)]
enum Event {
    /// A worker sends its next chunk, if it may.
    Send { worker: Index, congested: bool },
    /// A worker sends one of its outstanding chunks again.
    Resend { worker: Index, which: Index },
    /// Any packet ever sent towards the root arrives at its next hop.
    Deliver(Index),
    /// One of the packets sent last arrives at its next hop.
    DeliverSoon(Index),
    /// Any packet arrives beyond its next hop.
    Bypass(Index),
    /// Any packet arrives with one bit flipped.
    Corrupt { which: Index, bit: Index },
    /// A worker gets any packet ever sent to it or to all.
    DeliverDown { worker: Index, which: Index },
    /// A worker gets one of the packets that the root sent last.
    DeliverDownSoon { worker: Index, which: Index },
    /// A combiner lets go of what a cell holds.
    Flush { node: Index, cell: Index },
    /// A combiner forgets all.
    Restart(Index),
    /// Time passes.
    Wait(u32),
    /// A new session begins. Old packets stay on their way, and old values in the cells.
    NewEpoch,
}

fn event() -> impl Strategy<Value = Event> {
    let index = any::<Index>;
    prop_oneof![
        80 => (index(), any::<bool>())
            .prop_map(|(worker, congested)| Event::Send { worker, congested }),
        20 => (index(), index()).prop_map(|(worker, which)| Event::Resend { worker, which }),
        30 => index().prop_map(Event::Deliver),
        120 => index().prop_map(Event::DeliverSoon),
        10 => index().prop_map(Event::Bypass),
        10 => (index(), index()).prop_map(|(which, bit)| Event::Corrupt { which, bit }),
        20 => (index(), index()).prop_map(|(worker, which)| Event::DeliverDown { worker, which }),
        80 => (index(), index())
            .prop_map(|(worker, which)| Event::DeliverDownSoon { worker, which }),
        6 => (index(), index()).prop_map(|(node, cell)| Event::Flush { node, cell }),
        2 => index().prop_map(Event::Restart),
        20 => (0u32..8).prop_map(Event::Wait),
        1 => Just(Event::NewEpoch),
    ]
}

/// How long cells keep what they hold, in units of [`Event::Wait`].
const PATIENCE: u32 = 6;

struct World {
    topology: Topology,
    lockstep: Lockstep,
    job: Job,
    workers: Vec<Worker>,
    nodes: Vec<Node>,
    now: u32,
    /// Every packet ever sent towards the root, with its next hop and the rank whose port it left
    /// by.
    up: Vec<(Hop, Packet)>,
    /// Everything that the root ever sent.
    down: Vec<Packet>,
}

impl World {
    fn new(topology: Topology, slots: u16, cells: usize, origin: u32) -> Self {
        let ranks = topology.ranks.len() as u16;
        let (slots_of_job, first) = (u64::from(slots), u64::from(origin));
        let job = Job { epoch: EPOCH, ranks, slots: slots_of_job, origin: first, has_tags: false };
        let nodes =
            (0..topology.parents.len()).map(|at| Node::new(cells, topology.below(at))).collect();
        Self {
            lockstep: Lockstep::new(ranks, slots, origin, false),
            job,
            workers: (0..ranks).map(|rank| Worker::new(job, rank)).collect(),
            nodes,
            // Soon it wraps context.
            now: 0u32.wrapping_sub(100),
            up: Vec::new(),
            down: Vec::new(),
            topology,
        }
    }

    fn happen(&mut self, event: Event) {
        const SOON: usize = 12;
        let ranks = self.workers.len();
        let any =
            |up: &[(Hop, Packet)], which: &Index| (!up.is_empty()).then(|| which.get(up).clone());
        match event {
            Event::Send { worker, congested } => {
                let worker = worker.index(ranks);
                let sent = self.workers[worker].send(congested);
                self.up.extend(sent.map(|packet| (self.topology.ranks[worker], packet)));
            }
            Event::Resend { worker, which } => {
                let worker = worker.index(ranks);
                let sent = pick(&self.workers[worker].resend(), &which);
                self.up.extend(sent.map(|packet| (self.topology.ranks[worker], packet)));
            }
            Event::Deliver(which) => self.deliver(any(&self.up, &which), None),
            Event::DeliverSoon(which) => self.deliver(any(last(&self.up, SOON), &which), None),
            Event::Bypass(which) => {
                let beyond = |(hop, packet)| (self.topology.next(hop), packet);
                self.deliver(any(&self.up, &which).map(beyond), None);
            }
            Event::Corrupt { which, bit } => self.deliver(any(&self.up, &which), Some(bit)),
            Event::DeliverDown { worker, which } => {
                self.hear(worker.index(ranks), pick(&self.down, &which))
            }
            Event::DeliverDownSoon { worker, which } => {
                self.hear(worker.index(ranks), pick(last(&self.down, SOON), &which))
            }
            Event::Flush { node, cell } => {
                let at = node.index(self.nodes.len());
                let cell = cell.index(self.nodes[at].cells.len());
                let flushed = self.nodes[at].flush(cell);
                self.up.extend(flushed.map(|packet| (self.topology.parents[at], packet)));
            }
            Event::Restart(node) => {
                let at = node.index(self.nodes.len());
                self.nodes[at].restart();
            }
            Event::Wait(time) => self.now = self.now.wrapping_add(time),
            Event::NewEpoch => self.new_epoch(),
        }
    }

    /// Hands a packet to its next hop, with one bit flipped if one is given.
    fn deliver(&mut self, packet: Option<(Hop, Packet)>, flip: Option<Index>) {
        let Some((hop, sent)) = packet else { return };
        let packet = flip.map_or(sent.clone(), |bit| corrupt(&sent, &bit));
        match hop {
            Hop::Root => _ = self.serve(&sent, &packet),
            // Rule 7.9: a contribution comes from where its rank lives.
            Hop::Combiner(_) if packet.kind == CONTRIBUTION && packet.rank != sent.rank => {}
            Hop::Combiner(at) => {
                let mut on = self.nodes[at].receive(&packet, self.now, PATIENCE);
                // Two flips may cancel out, so what passes on damaged is not damaged again.
                on.retain(|next| *next == sent || *next != packet);
                self.up.extend(on.into_iter().map(|packet| (self.topology.parents[at], packet)));
            }
        }
    }

    /// The root gets a packet; its answer.
    fn serve(&mut self, sent: &Packet, packet: &Packet) -> Option<Packet> {
        let home = binding(sent.ranks()[0]);
        let served = self.lockstep.receive_from(&home, packet);
        assert!(
            !matches!(served.outcome, Outcome::WrongRound | Outcome::Mismatch | Outcome::Conflict),
            "{:?}: {packet:?}",
            served.outcome
        );
        self.down.extend(served.answer.clone());
        served.answer
    }

    fn hear(&mut self, worker: usize, packet: Option<Packet>) {
        let Some(packet) = packet else { return };
        if packet.rank == EVERYONE || usize::from(packet.rank) == worker {
            let sent = self.workers[worker].receive(&packet);
            self.up.extend(sent.map(|packet| (self.topology.ranks[worker], packet)));
        }
    }

    fn new_epoch(&mut self) {
        self.job = Job { epoch: self.job.epoch + 1, origin: 0, ..self.job };
        self.lockstep.set_epoch(self.job.epoch);
        self.nodes.iter_mut().for_each(|node| node.epoch = self.job.epoch);
        for rank in 0..self.job.ranks {
            self.lockstep.say_hello(rank, self.job.epoch);
            self.workers[usize::from(rank)] = Worker::new(self.job, rank);
        }
    }

    /// Everyone sends what it may and what it lacks, and everything arrives.
    fn fair_turn(&mut self) {
        for worker in 0..self.workers.len() {
            let mut packets = self.workers[worker].resend();
            packets.extend(std::iter::from_fn(|| self.workers[worker].send(false)));
            let first = self.topology.ranks[worker];
            let mut under_way: Vec<_> =
                packets.into_iter().rev().map(|packet| (first, packet)).collect();
            while let Some((hop, packet)) = under_way.pop() {
                let Hop::Combiner(at) = hop else {
                    let answer = self.serve(&packet, &packet);
                    (0..self.workers.len()).for_each(|worker| self.hear(worker, answer.clone()));
                    continue;
                };
                let on = self.nodes[at].receive(&packet, self.now, PATIENCE);
                let parent = self.topology.parents[at];
                under_way.extend(on.into_iter().rev().map(|packet| (parent, packet)));
            }
        }
    }

    fn done(&self) -> usize {
        self.workers.iter().map(|worker| worker.done.len()).min().expect("a worker")
    }
}

proptest! {
    /// Safety: [`Worker::receive`] asserts that every result it accepts is the true one,
    /// [`Lockstep`] that the root answers as the reference.
    #[test]
    fn trees_give_exact_results(
        topology in topology(),
        slots in 1u16..=3,
        cells in 1usize..=3,
        origin in origin(),
        events in prop::collection::vec(event(), 0..600),
    ) {
        let mut world = World::new(topology, slots, cells, origin);
        for event in events {
            world.happen(event);
        }
        let before = world.done();
        for _ in 0..8 {
            world.fair_turn();
        }
        prop_assert!(world.done() >= before + 2 * usize::from(slots), "stuck at {before} chunks");
    }
}
