//! Random executions: whatever the network does, results are exact, and no worker that follows the
//! rules is refused.

use proptest::prelude::*;
use proptest::sample::Index;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::outcome::Outcome;

use crate::worker::{Job, Worker};
use switchml_test_support::packet::{
    CE, CHECKED, EMPTY, EVERYONE, MAX, PARTIAL, Packet, SUM, check_word,
};
use switchml_test_support::reference::{Reference, signed};
use switchml_test_support::switch::{
    EPOCH, FIRST_SLOT, Served, Switch, binding, contribution, hello, key, secret,
};

/// The crate's aggregator, together with the reference that must give the same answers.
pub struct Lockstep {
    switch: Switch,
    reference: Reference,
    ranks: u16,
    slots: u16,
}

impl Lockstep {
    /// All ranks have said HELLO, and every slot has seen the two rounds before `origin`, or none
    /// for 0.
    pub fn new(ranks: u16, slots: u16, origin: u32, has_tags: bool) -> Self {
        let switch = Switch::ready(u32::from(ranks), u32::from(slots));
        let mut reference = Reference::new(ranks, slots);
        (0..ranks).for_each(|rank| reference.settle(rank, binding(rank)));
        if has_tags {
            switch.give_keys();
            reference.has_tags = true;
        }
        let mut lockstep = Self { switch, reference, ranks, slots };
        if origin > 0 {
            lockstep.advance_to(origin);
        }
        lockstep
    }

    /// Plays rounds 0 and 1, and renumbers them.
    fn advance_to(&mut self, origin: u32) {
        assert!(origin.is_multiple_of(2), "sets keep their parity");
        for (slot, round, rank) in slot_rounds(self.slots, 2, self.ranks) {
            self.receive(&self.tagged(contribution(rank, slot, round, vec![1; 32])));
        }
        for slot in 0..self.slots {
            let slots = &mut self.switch.slots.borrow_mut();
            let sets = &mut slots[FIRST_SLOT as usize + usize::from(slot)].sets;
            for (set, round) in sets.iter_mut().zip(origin - 2..) {
                let sum = contribution(0, slot, round, vec![u32::from(self.ranks); 32]);
                (set.head.round, set.head.check) = (round, check_word(&sum, self.ranks.into()));
            }
        }
        self.reference.shift_rounds(i64::from(origin - 2));
    }

    /// The packet as its rank sends it, with a tag if the job's have one.
    pub fn tagged(&self, packet: Packet) -> Packet {
        if self.reference.has_tags { signed(&packet, key(packet.rank)) } else { packet }
    }

    /// Serves a packet from the home of the first rank that it names.
    fn receive(&mut self, packet: &Packet) -> Served {
        let rank = packet.ranks().first().copied().unwrap_or(packet.rank);
        self.receive_from(&binding(rank), packet)
    }

    pub fn receive_from(&mut self, from: &Binding, packet: &Packet) -> Served {
        let expected = self.reference.receive(from, packet);
        let touched = matches!(
            expected.outcome,
            Outcome::Started | Outcome::Added | Outcome::Completed | Outcome::Mismatch
        );
        let before = (!touched).then(|| self.switch.slots.borrow().clone());
        let served = self.switch.receive(from, packet);
        assert_eq!(served, expected, "answer to {packet:?}");
        if let Some(before) = before {
            assert!(before == *self.switch.slots.borrow(), "{:?} touched a slot", served.outcome);
        }
        served
    }

    pub fn set_epoch(&mut self, epoch: u32) {
        self.switch.set_epoch(epoch);
        self.reference.set_epoch(epoch);
    }

    pub fn say_hello(&mut self, rank: u16, epoch: u32) {
        let served = self.receive(&self.tagged(Packet { epoch, ..hello(rank) }));
        assert_eq!(served.outcome, Outcome::Hello);
    }
}

/// All (slot, round, rank) of the given ranges, slots outermost.
fn slot_rounds(slots: u16, rounds: u32, ranks: u16) -> impl Iterator<Item = (u16, u32, u16)> {
    (0..slots).flat_map(move |slot| {
        (0..rounds).flat_map(move |round| (0..ranks).map(move |rank| (slot, round, rank)))
    })
}

/// The two rounds that a trace begins after are as if they had been played under their numbers.
#[test]
fn rounds_before_the_origin_are_replayed_under_their_numbers() {
    let mut lockstep = Lockstep::new(2, 1, 1000, false);
    for round in [998, 999] {
        assert_eq!(
            lockstep.receive(&contribution(1, 0, round, vec![1; 32])).outcome,
            Outcome::Replayed
        );
    }
}

/// Where traces begin: at the start of an epoch, or shortly before round numbers wrap around.
pub fn origin() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX - 1), Just(u32::MAX - 5), Just(0x7FFF_FFFE)]
}

// Legal workers over a network that loses, repeats, reorders and corrupts

/// One event of an execution.
#[derive(Clone, Debug)]
enum Event {
    /// A worker sends its next chunk, if it may.
    Send { worker: Index, congested: bool },
    /// A worker sends one of its outstanding chunks again.
    Resend { worker: Index, which: Index },
    /// The aggregator gets any packet ever sent to it.
    DeliverUp(Index),
    /// The aggregator gets one of the packets sent last.
    DeliverUpSoon(Index),
    /// The aggregator gets any packet ever sent to it, with one bit flipped.
    CorruptUp { which: Index, bit: Index },
    /// A worker gets any packet ever sent to it or to all.
    DeliverDown { worker: Index, which: Index },
    /// A worker gets one of the packets that the aggregator sent last.
    DeliverDownSoon { worker: Index, which: Index },
    /// A worker gets any packet ever sent to it or to all, with one bit flipped.
    CorruptDown { worker: Index, which: Index, bit: Index },
    /// A new session begins. Old packets stay on their way.
    NewEpoch,
}

fn event() -> impl Strategy<Value = Event> {
    let index = any::<Index>;
    prop_oneof![
        8 => (index(), any::<bool>())
            .prop_map(|(worker, congested)| Event::Send { worker, congested }),
        2 => (index(), index()).prop_map(|(worker, which)| Event::Resend { worker, which }),
        3 => index().prop_map(Event::DeliverUp),
        8 => index().prop_map(Event::DeliverUpSoon),
        1 => (index(), index()).prop_map(|(which, bit)| Event::CorruptUp { which, bit }),
        2 => (index(), index()).prop_map(|(worker, which)| Event::DeliverDown { worker, which }),
        8 => (index(), index())
            .prop_map(|(worker, which)| Event::DeliverDownSoon { worker, which }),
        1 => (index(), index(), index())
            .prop_map(|(worker, which, bit)| Event::CorruptDown { worker, which, bit }),
    ]
}

/// Events with a new session now and then.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![150 => event(), 1 => Just(Event::NewEpoch)];
    prop::collection::vec(event, 0..600)
}

struct World {
    lockstep: Lockstep,
    job: Job,
    workers: Vec<Worker>,
    /// Everything ever sent to the aggregator. Nothing leaves the network for good.
    up: Vec<Packet>,
    /// Everything that the aggregator ever sent.
    down: Vec<Packet>,
}

impl World {
    fn new(ranks: u16, slots: u16, origin: u32, has_tags: bool) -> Self {
        let (slots_of_job, first) = (u64::from(slots), u64::from(origin));
        let job = Job { epoch: EPOCH, ranks, slots: slots_of_job, origin: first, has_tags };
        let workers = (0..ranks).map(|rank| Worker::new(job, rank)).collect();
        Self {
            lockstep: Lockstep::new(ranks, slots, origin, has_tags),
            job,
            workers,
            up: Vec::new(),
            down: Vec::new(),
        }
    }

    fn happen(&mut self, event: Event) {
        const SOON: usize = 12;
        let ranks = self.workers.len();
        match event {
            Event::Send { worker, congested } => {
                let sent = self.workers[worker.index(ranks)].send(congested);
                self.up.extend(sent.map(|packet| self.lockstep.tagged(packet)))
            }
            Event::Resend { worker, which } => {
                let sent = pick(&self.workers[worker.index(ranks)].resend(), &which);
                self.up.extend(sent.map(|packet| self.lockstep.tagged(packet)));
            }
            Event::DeliverUp(which) => self.deliver_up(pick(&self.up, &which), None),
            Event::DeliverUpSoon(which) => {
                self.deliver_up(pick(last(&self.up, SOON), &which), None)
            }
            Event::CorruptUp { which, bit } => self.deliver_up(pick(&self.up, &which), Some(bit)),
            Event::DeliverDown { worker, which } => {
                self.deliver_down(worker.index(ranks), pick(&self.down, &which), None)
            }
            Event::DeliverDownSoon { worker, which } => {
                let packet = pick(last(&self.down, SOON), &which);
                self.deliver_down(worker.index(ranks), packet, None);
            }
            Event::CorruptDown { worker, which, bit } => {
                self.deliver_down(worker.index(ranks), pick(&self.down, &which), Some(bit));
            }
            Event::NewEpoch => self.new_epoch(),
        }
    }

    /// Hands a packet to the aggregator, with one bit flipped if one is given.
    fn deliver_up(&mut self, packet: Option<Packet>, flip: Option<Index>) {
        let Some(packet) = packet else { return };
        let home = binding(packet.rank);
        let packet = flip.map_or(packet.clone(), |bit| corrupt(&packet, &bit));
        self.serve(&home, &packet);
    }

    fn serve(&mut self, home: &Binding, packet: &Packet) -> Option<Packet> {
        let served = self.lockstep.receive_from(home, packet);
        assert_ne!(served.outcome, Outcome::WrongRound);
        assert_ne!(served.outcome, Outcome::Mismatch);
        self.down.extend(served.answer.clone());
        served.answer
    }

    /// Unicast answers reach their addressee alone, whatever bit is flipped on their way.
    fn deliver_down(&mut self, worker: usize, packet: Option<Packet>, flip: Option<Index>) {
        let Some(packet) = packet else { return };
        if packet.rank == EVERYONE || usize::from(packet.rank) == worker {
            let packet = flip.map_or(packet.clone(), |bit| corrupt(&packet, &bit));
            let sent = self.workers[worker].receive(&packet);
            self.up.extend(sent.map(|packet| self.lockstep.tagged(packet)));
        }
    }

    fn new_epoch(&mut self) {
        self.job = Job { epoch: self.job.epoch + 1, origin: 0, ..self.job };
        self.lockstep.set_epoch(self.job.epoch);
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
            for packet in packets {
                let packet = self.lockstep.tagged(packet);
                let answer = self.serve(&binding(packet.rank), &packet);
                (0..self.workers.len())
                    .for_each(|worker| self.deliver_down(worker, answer.clone(), None));
            }
        }
    }
}

pub fn last<T>(items: &[T], count: usize) -> &[T] {
    &items[items.len().saturating_sub(count)..]
}

pub fn pick(packets: &[Packet], which: &Index) -> Option<Packet> {
    (!packets.is_empty()).then(|| which.get(packets).clone())
}

/// Flips a bit. Headers get more than their share: lanes are many.
pub fn corrupt(packet: &Packet, bit: &Index) -> Packet {
    packet.with_bit_flipped(bit.index(32 * 8 + 64).min(8 * packet.to_bytes().len() - 1))
}

proptest! {
    /// Safety: [`Worker::receive`] asserts that every result it accepts is the true one and that
    /// nothing is refused, [`Lockstep::receive`] that every answer is the reference's. Liveness:
    /// once faults stop, every worker gets on.
    #[test]
    fn legal_workers_get_exact_results(
        ranks in 1u16..=5,
        slots in 1u16..=3,
        origin in origin(),
        has_tags in any::<bool>(),
        events in events(),
    ) {
        let mut world = World::new(ranks, slots, origin, has_tags);
        for event in events {
            world.happen(event);
        }
        let done =
            |world: &World| world.workers.iter().map(|worker| worker.done.len()).min().unwrap();
        let before = done(&world);
        // One turn may go into resending what was in flight, and the next into the chunks behind
        // it; each may need another turn, for contributions that ROOM asks for in full.
        for _ in 0..8 {
            world.fair_turn();
        }
        prop_assert!(done(&world) >= before + 2 * usize::from(slots), "stuck at {before} chunks");
        let results: Vec<_> = world.workers.iter().map(|worker| worker.done.len()).collect();
        let (least, most) = (results.iter().min().unwrap(), results.iter().max().unwrap());
        prop_assert!(most - least <= usize::from(slots));
    }
}

// Members that keep no rules, and strangers

/// What a packet is, relative to what its slot holds.
#[derive(Clone, Debug)]
enum Attempt {
    /// A contribution that the slot waits for.
    Useful { slot: u16, missing: Index },
    /// A contribution to a round near the newest one.
    Near { slot: u16, rank: u16, ahead: i8 },
    /// A contribution to any round.
    Far { slot: u16, rank: u16, round: u32 },
    /// A HELLO.
    Hello { rank: u16, right_secret: bool, right_binding: bool },
    /// A new session of the job.
    NewEpoch,
    /// The end of the job.
    Abort,
}

/// What is wrong with an attempt.
#[derive(Clone, Debug)]
enum Twist {
    Nothing,
    Op(u8),
    Lanes(u16),
    Fingerprint,
    Unchecked(u32),
    Congested,
    Zeros,
    Emptied,
    NoLonger(u8),
    BadCheck,
    Version(u8),
    Kind(u8),
    Job(u16),
    Epoch(u32),
    Slot(u16),
    Rank(u16),
    LanesField(u16),
    Bit(Index),
    /// A partial sum of these ranks, and of the packet's own rank if it is in their group.
    Partial(u32),
    /// A partial sum with any `rank`.
    Ungrouped(u16),
    /// The right tag, changed by this difference.
    Tag(u64),
    /// A tag by the key of that rank.
    TagOf(u16),
    /// A tag before other changes to its header.
    TagBefore(u32),
    /// No tag.
    Untagged,
}

fn attempt() -> impl Strategy<Value = Attempt> {
    prop_oneof![
        40 => (0u16..3, any::<Index>())
            .prop_map(|(slot, missing)| Attempt::Useful { slot, missing }),
        20 => (0u16..3, 0u16..6, -5i8..=4)
            .prop_map(|(slot, rank, ahead)| Attempt::Near { slot, rank, ahead }),
        2 => (0u16..3, 0u16..6, any::<u32>())
            .prop_map(|(slot, rank, round)| Attempt::Far { slot, rank, round }),
        2 => (0u16..6, any::<bool>(), any::<bool>()).prop_map(
            |(rank, right_secret, right_binding)| Attempt::Hello {
                rank,
                right_secret,
                right_binding,
            }
        ),
        1 => Just(Attempt::NewEpoch),
    ]
}

fn twist() -> impl Strategy<Value = Twist> {
    prop_oneof![
        60 => Just(Twist::Nothing),
        2 => prop_oneof![Just(0x01u8), Just(0x10), Just(0x11), any::<u8>()].prop_map(Twist::Op),
        1 => (1u16..=4).prop_map(|blocks| Twist::Lanes(32 * blocks)),
        1 => Just(Twist::Fingerprint),
        3 => any::<u32>().prop_map(Twist::Unchecked),
        3 => Just(Twist::Congested),
        8 => Just(Twist::Zeros),
        40 => Just(Twist::Emptied),
        2 => prop_oneof![Just(EMPTY), Just(CHECKED), Just(0)].prop_map(Twist::NoLonger),
        1 => Just(Twist::BadCheck),
        1 => any::<u8>().prop_map(Twist::Version),
        1 => (0u8..10).prop_map(Twist::Kind),
        1 => prop_oneof![0u16..6, any::<u16>()].prop_map(Twist::Job),
        1 => prop_oneof![(EPOCH - 2)..(EPOCH + 4), any::<u32>()].prop_map(Twist::Epoch),
        1 => any::<u16>().prop_map(Twist::Slot),
        1 => any::<u16>().prop_map(Twist::Rank),
        1 => prop_oneof![0u16..1000, any::<u16>()].prop_map(Twist::LanesField),
        3 => any::<Index>().prop_map(Twist::Bit),
        30 => (0u32..64).prop_map(Twist::Partial),
        1 => (0u16..70).prop_map(Twist::Ungrouped),
        2 => (1..=u64::MAX).prop_map(Twist::Tag),
        2 => prop_oneof![0u16..6, Just(EVERYONE)].prop_map(Twist::TagOf),
        2 => any::<u32>().prop_map(Twist::TagBefore),
        2 => Just(Twist::Untagged),
    ]
}

fn twisted(packet: Packet, twist: &Twist) -> Packet {
    let packet = packet.sealed();
    match *twist {
        Twist::Nothing => packet,
        Twist::Op(op) => Packet { op, ..packet }.sealed(),
        Twist::Lanes(lanes) => Packet { payload: vec![3; usize::from(lanes)], ..packet }.sealed(),
        Twist::Fingerprint => Packet { fingerprint: packet.fingerprint ^ 1, ..packet }.sealed(),
        Twist::Unchecked(check) => Packet { flags: packet.flags & !CHECKED, check, ..packet },
        Twist::Congested => Packet { flags: packet.flags | CE, ..packet },
        Twist::Zeros => Packet { payload: vec![0; packet.payload.len()], ..packet }.sealed(),
        Twist::Emptied => packet.emptied(),
        Twist::NoLonger(flags) => {
            let lanes = packet.emptied();
            Packet { flags: lanes.flags ^ flags, payload: vec![0; 32], ..lanes }
        }
        Twist::BadCheck => Packet { check: packet.check ^ 0x0100_0000, ..packet },
        Twist::Version(version) => Packet { version, ..packet },
        Twist::Kind(kind) => Packet { kind, ..packet },
        Twist::Job(job) => Packet { job, ..packet }.sealed(),
        Twist::Epoch(epoch) => Packet { epoch, ..packet }.sealed(),
        Twist::Slot(slot) => Packet { slot, ..packet }.sealed(),
        Twist::Rank(rank) => Packet { rank, ..packet }.sealed(),
        Twist::LanesField(lanes) => Packet { lanes, ..packet },
        Twist::Bit(_) => packet,
        Twist::Partial(more) => {
            let first = packet.rank / 32 * 32;
            let own = 1 << (packet.rank % 32);
            Packet { kind: PARTIAL, rank: first, aux: more | own, ..packet }.sealed()
        }
        Twist::Ungrouped(rank) => Packet { kind: PARTIAL, rank, aux: 1, ..packet }.sealed(),
        Twist::Tag(_) | Twist::TagOf(_) | Twist::TagBefore(_) | Twist::Untagged => packet,
    }
}

impl Lockstep {
    /// The packet with its tag, unless what is twisted is that.
    fn tagged_or_not(&self, packet: Packet, twist: &Twist) -> Packet {
        match *twist {
            Twist::Untagged => packet,
            Twist::Tag(by) => {
                let packet = signed(&packet, key(packet.rank));
                Packet { tag: packet.tag.map(|tag| tag ^ by), ..packet }
            }
            Twist::TagOf(rank) => signed(&packet, key(rank)),
            Twist::TagBefore(aux) => Packet { aux, ..self.tagged(packet) },
            Twist::Bit(bit) => corrupt(&self.tagged(packet), &bit),
            _ => self.tagged(packet),
        }
    }
}

/// Ops of rounds, so that both see completion and resends in either set.
fn op_of(slot: u16, round: u32) -> u8 {
    [SUM, MAX, 64 + 3, 128 + 1][(usize::from(slot) + round as usize / 2) % 4]
}

impl Lockstep {
    fn try_out(&mut self, attempt: &Attempt, twist: &Twist, epoch: &mut u32, value: u32) {
        let newest = |lockstep: &Self, slot| lockstep.reference.newest(slot);
        let (rank, slot, round) = match *attempt {
            Attempt::Useful { slot, ref missing } => {
                let slot = slot % self.slots;
                let (round, ranks) = match newest(self, slot) {
                    None => (0, (0..self.ranks).collect()),
                    Some((number, true)) => (number + 1, (0..self.ranks).collect()),
                    Some((number, false)) => (number, self.reference.missing(slot)),
                };
                // A poisoned round may have everyone in it.
                let rank = if ranks.is_empty() { 0 } else { *missing.get(&ranks) };
                (rank, slot, round as u32)
            }
            Attempt::Near { slot, rank, ahead } => {
                let newest = newest(self, slot % self.slots).map_or(0, |(number, _)| number);
                (rank, slot, (newest + i64::from(ahead)) as u32)
            }
            Attempt::Far { slot, rank, round } => (rank, slot, round),
            Attempt::Hello { rank, right_secret, right_binding } => {
                let aux = secret(if right_secret { rank } else { rank + 1 });
                let packet = Packet { aux, epoch: *epoch, ..hello(rank) };
                let packet = self.tagged_or_not(packet, twist);
                let from = binding(if right_binding { rank } else { rank + 1 });
                self.receive_from(&from, &packet);
                return;
            }
            Attempt::NewEpoch => {
                *epoch += 1;
                return self.set_epoch(*epoch);
            }
            Attempt::Abort => {
                self.switch.abort();
                return self.reference.abort();
            }
        };
        let payload = (0..64).map(|lane: u32| value.wrapping_mul(2 * lane + 1)).collect();
        let packet = Packet {
            epoch: *epoch,
            op: op_of(slot, round),
            ..contribution(rank, slot, round, payload)
        };
        let packet = twisted(packet, twist);
        self.receive(&self.tagged_or_not(packet, twist));
    }
}

/// Attempts, and maybe an abort near the end.
fn attempts() -> impl Strategy<Value = Vec<(Attempt, Twist, u32)>> {
    let abort = prop::option::weighted(0.2, Just((Attempt::Abort, Twist::Nothing, 0)));
    let attempts = |count| prop::collection::vec((attempt(), twist(), any::<u32>()), 0..count);
    (attempts(200), abort, attempts(20))
        .prop_map(|(before, abort, after)| before.into_iter().chain(abort).chain(after).collect())
}

proptest! {
    /// Whatever arrives, the answers are the reference's, and only what counts touches a slot.
    #[test]
    fn every_answer_is_the_references(
        ranks in 1u16..=5,
        slots in 1u16..=3,
        origin in origin(),
        has_tags in any::<bool>(),
        attempts in attempts(),
    ) {
        let mut lockstep = Lockstep::new(ranks, slots, origin, has_tags);
        let mut epoch = EPOCH;
        for (attempt, twist, value) in attempts {
            lockstep.try_out(&attempt, &twist, &mut epoch, value);
        }
    }
}
