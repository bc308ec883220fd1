//! The real aggregator over slots that store only the lanes that contributions here fill, and a way
//! to take out its rules.

use std::cell::RefCell;

use switchml_protocol::EVERYONE;
use switchml_protocol::bpf_types::job::{ABORTED, Binding, JobEntry, MemberEntry, OPEN};
use switchml_protocol::lanes::Payload as _;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet::Packet;
use switchml_protocol::root::admission::{Members, Tables, serve};
use switchml_protocol::root::slot::{SetHead, Slot, contribute};
use switchml_protocol::wire::header::{Header, Kind, Op};
use switchml_protocol::wire::share::Share;
use zerocopy::{FromBytes, IntoBytes};

use super::packets::{self, Payload};
use super::plan::{JOB, Plan};
use super::published::{self, Served, Version};
use super::rules::Rule;
use super::tally::{self, Tally};

/// The state of an aggregator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Aggregator {
    /// State and epoch of the job; [`VACANT`](switchml_protocol::bpf_types::job::VACANT) is a job
    /// that this aggregator does not know.
    pub state: u32,
    pub epoch: u32,
    slots: Slots,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Slots {
    Ours(Vec<[Set; 2]>),
    Published(Vec<[Version; 2]>),
}

/// A set, without the lanes that stay zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Set {
    head: SetHead,
    /// The ranks that are in: no job here has more than one group.
    seen: u32,
    values: Tally,
}

impl Aggregator {
    /// An aggregator with memory never used, and the job open.
    pub fn new(plan: &Plan, epoch: u32) -> Self {
        let slots = plan.setup.slots.into();
        let slots = match plan.setup.published {
            false => Slots::Ours(vec![Default::default(); slots]),
            true => Slots::Published(vec![Default::default(); slots]),
        };
        Self { state: OPEN, epoch, slots }
    }

    pub fn is_open(&self) -> bool {
        self.state == OPEN
    }

    pub fn abort(&mut self) {
        self.state = ABORTED;
    }

    /// Begins a session. Slots keep their contents.
    pub fn open(&mut self, epoch: u32) {
        (self.state, self.epoch) = (OPEN, epoch);
    }

    /// Lets every slot hold the two rounds before `origin`, complete.
    pub fn age(&mut self, ranks: u16, origin: u32) {
        let epoch = self.epoch;
        let Slots::Ours(slots) = &mut self.slots else { return };
        for (set, before) in slots.iter_mut().flat_map(|slot| slot.iter_mut().zip([2, 1])) {
            let mut head = SetHead::default();
            head.count = ranks.into();
            (head.epoch, head.round) = (epoch, origin.wrapping_sub(before));
            (set.head, set.seen) = (complete(&head), (1 << ranks) - 1);
        }
    }

    /// Whether the aggregator has counted some contribution more than twice.
    pub fn exceeds_two(&self) -> bool {
        match &self.slots {
            Slots::Ours(slots) => slots.iter().flatten().any(|set| tally::exceeds_two(&set.values)),
            Slots::Published(slots) => {
                slots.iter().flatten().any(|version| tally::exceeds_two(&version.values))
            }
        }
    }

    /// Sets whose round is complete.
    pub fn completed(&self) -> usize {
        let Slots::Ours(slots) = &self.slots else { return 0 };
        slots.iter().flatten().filter(|set| set.head.is_complete()).count()
    }

    /// Serves the contribution of a rank. Returns the outcome and the answer.
    pub fn serve(&mut self, plan: &Plan, rank: u16, datagram: &[u8]) -> (Outcome, Option<Vec<u8>>) {
        let (mut header, mut payload) = packets::split(datagram);
        let (state, epoch) = (self.state, self.epoch);
        match &mut self.slots {
            Slots::Published(slots) => serve_published(plan, slots, header, payload),
            Slots::Ours(slots) => {
                let tables =
                    Memory { plan, state, epoch, packet: header, slots: RefCell::new(slots) };
                let outcome = tables.serve(rank, &mut header, &mut payload);
                let kind = Kind::from_wire(header.kind);
                let answered = !matches!(kind, Some(Kind::Contribution | Kind::Partial));
                (outcome, answered.then(|| packets::joined(&header, &payload)))
            }
        }
    }
}

/// The aggregator's storage while it serves one packet.
struct Memory<'a> {
    plan: &'a Plan,
    state: u32,
    epoch: u32,
    /// The packet as it came.
    packet: Header,
    slots: RefCell<&'a mut Vec<[Set; 2]>>,
}

impl Memory<'_> {
    fn serve(&self, rank: u16, header: &mut Header, payload: &mut Payload) -> Outcome {
        let foreign = header.epoch.get() != self.epoch;
        let skips_admission = self.state == OPEN
            && (foreign && self.plan.lacks(Rule::PacketEpoch)
                || !foreign
                    && (self.plan.lacks(Rule::ContributionCheck) || self.plan.lacks(Rule::Round)));
        if self.plan.lacks(Rule::PayloadLast) && header.is_all_zeros() {
            return self.count(header, payload);
        }
        if !skips_admission {
            let len = 4 * usize::from(header.payload_lanes());
            return serve(self, &binding(rank), &mut Packet::new(header, &mut payload[..], len));
        }
        let job = self.job(JOB).expect("the job");
        let slot = header.slot.get().into();
        self.with_slot(slot, |slot| {
            let set = (header.round.get() & 1) as usize;
            let head = &slot.sets[set].head;
            if self.plan.lacks(Rule::Round) && is_newer(head, self.epoch, header.round.get()) {
                header.round.set(head.round);
            }
            // The check word is made to agree, and put back where it went.
            let fitted = header.check_of(packets::lane_sum(payload), 1);
            let put_back =
                |check: u32| check.wrapping_sub(fitted).wrapping_add(self.packet.check.get());
            header.check.set(fitted);
            let outcome =
                contribute(&job, slot, Op::Sum, &mut Packet::new(header, &mut payload[..], 0));
            if matches!(outcome, Outcome::Started | Outcome::Added | Outcome::Completed) {
                let head = &mut slot.sets[set].head;
                head.check = put_back(head.check);
            }
            if outcome == Outcome::Completed {
                header.check.set(put_back(header.check.get()));
            }
            // An answer echoes the packet's own round.
            header.round = self.packet.round;
            outcome
        })
    }

    /// Counts an EMPTY contribution, even if it completes the round; the answer then has the values
    /// that are there.
    fn count(&self, header: &mut Header, payload: &mut Payload) -> Outcome {
        let job = self.job(JOB).expect("the job");
        self.with_slot(header.slot.get().into(), |slot| {
            // With one rank more, this contribution is not the last one.
            let one_more = JobEntry { ranks: job.ranks + 1, ..job };
            let outcome =
                contribute(&one_more, slot, Op::Sum, &mut Packet::new(header, &mut payload[..], 0));
            let set = &mut slot.sets[(header.round.get() & 1) as usize];
            if outcome != Outcome::Added || set.head.count != job.ranks {
                return outcome;
            }
            set.head = complete(&set.head);
            payload[..].load_from(&set.values, 1).expect("one block");
            (header.kind, header.flags) = (Kind::Result as u8, set.head.flags);
            (header.rank, header.check) = (EVERYONE.into(), set.head.check.into());
            Outcome::Completed
        })
    }

    /// Makes heads look as if the rules that are taken out were kept.
    fn doctor(&self, slot: &mut Slot) {
        let (rank, round) = (self.packet.rank.get(), self.packet.round.get());
        let index = (round & 1) as usize;
        let [even, odd] = &mut slot.sets;
        let (set, other) = if index == 0 { (even, odd) } else { (odd, even) };
        let (set, seen, other) = (&mut set.head, &mut set.seen[0], &mut other.head);
        if self.plan.lacks(Rule::SetEpoch) {
            for head in [&mut *set, &mut *other] {
                // Memory that was never used stays empty.
                head.epoch = if head.epoch == 0 { 0 } else { self.epoch };
            }
        }
        let holds = set.epoch == self.epoch && set.round == round;
        if holds && self.plan.lacks(Rule::Seen) {
            *seen &= !(1 << rank);
        }
        if holds && self.plan.lacks(Rule::Overlap) && self.packet.is_partial() {
            *seen &= !Share::of(&self.packet).in_group().1;
        }
        if holds && self.plan.lacks(Rule::AllIn) {
            let all = (1 << self.plan.setup.ranks) - 1;
            let missing = all & !*seen & !(1 << rank);
            *seen |= if missing.count_ones() == 1 { missing } else { 0 };
        }
        if holds {
            set.count = seen.count_ones();
        }
        if holds && self.plan.lacks(Rule::Overwrite) {
            *set = with_byte(set, HOLLOW, 0);
        }
        if holds && self.plan.lacks(Rule::SameCall) {
            set.fingerprint = self.packet.fingerprint.get();
        }
        if holds {
            return;
        }
        let holds_one_before = other.epoch == self.epoch
            && other.round == round.wrapping_sub(1)
            && other.is_complete();
        if self.plan.lacks(Rule::Stale) && is_newer(set, self.epoch, round) {
            set.round = round.wrapping_sub(1);
        }
        if self.plan.lacks(Rule::Order) {
            (set.epoch, set.round) = (self.epoch, round.wrapping_sub(2));
            *other = complete(other);
            (other.epoch, other.round) = (self.epoch, round.wrapping_sub(1));
        }
        if self.plan.lacks(Rule::TwoBefore) && holds_one_before {
            (set.epoch, set.round) = (self.epoch, round.wrapping_sub(2));
        }
        if self.plan.lacks(Rule::OneBefore) && other.epoch == self.epoch {
            other.round = round.wrapping_sub(1);
        }
        if self.plan.lacks(Rule::OneBeforeComplete) {
            *other = complete(other);
        }
    }
}

impl Members for Memory<'_> {
    fn job(&self, number: u16) -> Option<JobEntry> {
        let (ranks, slots) = (self.plan.setup.ranks.into(), self.plan.setup.slots.into());
        (number == JOB).then(|| JobEntry {
            state: self.state,
            epoch: self.epoch,
            ranks,
            slots,
            ..JobEntry::default()
        })
    }

    /// The entry of a rank that has said HELLO: no rank contributes before all have.
    fn member(&self, _: u16, rank: u16) -> Option<MemberEntry> {
        Some(MemberEntry { epoch: self.epoch, binding: binding(rank), ..MemberEntry::default() })
    }

    fn learn(&self, _: u16, _: u16, _: u32, _: &Binding) {
        unreachable!("no HELLO is sent")
    }
}

impl Tables for Memory<'_> {
    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome {
        let sets = &mut self.slots.borrow_mut()[index as usize];
        let mut slot = Slot::default();
        for (to, from) in slot.sets.iter_mut().zip(&*sets) {
            (to.head, to.seen[0]) = (from.head, from.seen);
            for (pair, lanes) in to.values.iter_mut().zip(from.values.as_chunks::<2>().0) {
                *pair = u64::from(lanes[0]) << 32 | u64::from(lanes[1]);
            }
        }
        self.doctor(&mut slot);
        let doctored = [0, 1].map(|index| (slot.sets[index].head, slot.sets[index].seen[0]));
        let outcome = f(&mut slot);
        for ((from, doctored), to) in slot.sets.iter().zip(doctored).zip(sets) {
            // Restores what `f` has not changed.
            if (from.head, from.seen[0]) != doctored {
                (to.head, to.seen) = (from.head, from.seen[0]);
            }
            for (lanes, pair) in to.values.as_chunks_mut::<2>().0.iter_mut().zip(from.values) {
                *lanes = [(pair >> 32) as u32, pair as u32];
            }
        }
        outcome
    }
}

fn serve_published(
    plan: &Plan,
    slots: &mut [[Version; 2]],
    mut header: Header,
    payload: Payload,
) -> (Outcome, Option<Vec<u8>>) {
    let ranks = plan.setup.ranks;
    let (rank, version) = (header.rank.get(), (header.round.get() & 1) as usize);
    let slot = &mut slots[usize::from(header.slot.get())];
    let served = published::serve(slot, ranks, version, rank, &packets::tally(payload.as_bytes()));
    let outcome = match served {
        Served::Drop => return (Outcome::Added, None),
        Served::ToSender => Outcome::Replayed,
        Served::ToAll => {
            header.rank.set(EVERYONE);
            Outcome::Completed
        }
    };
    header.kind = Kind::Result as u8;
    let mut payload = Payload::default();
    payload.iter_mut().zip(slot[version].values).for_each(|(lane, value)| lane.set(value));
    (outcome, Some(packets::sealed(header, &payload, ranks.into())))
}

/// Whether a set holds a newer round than `round`.
fn is_newer(set: &SetHead, epoch: u32, round: u32) -> bool {
    set.epoch == epoch && (round.wrapping_sub(set.round) as i32) < 0
}

/// Offset of the byte of a head that says that its values are still those of an earlier round. The
/// field is private, as the status is; the layout is not.
const HOLLOW: usize = 29;

/// A head as it would be if its round were complete.
fn complete(head: &SetHead) -> SetHead {
    const STATUS: usize = 28;
    const COMPLETE: u8 = 1;
    let complete = with_byte(head, STATUS, COMPLETE);
    assert!(complete.is_complete());
    complete
}

fn with_byte(head: &SetHead, place: usize, value: u8) -> SetHead {
    let mut bytes: [u8; size_of::<SetHead>()] = head.as_bytes().try_into().expect("its size");
    bytes[place] = value;
    SetHead::read_from_bytes(&bytes).expect("its size")
}

fn binding(rank: u16) -> Binding {
    Binding { port: rank.into(), ..Binding::default() }
}
