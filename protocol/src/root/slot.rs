//! The slot state machine: what to do with an admitted contribution or partial sum. Section 8 of
//! `docs/spec`.
//!
//! A slot is reused again and again; its k-th use is round k. It has two sets of values: the one
//! being filled (round & 1), and the shadow copy of the round before, kept for ranks that lost the
//! RESULT. A new round may only overwrite the shadow copy of round r - 2 once round r - 1 is
//! complete: a rank contributes to r - 1 only after it holds the result of r - 2, so by then nobody
//! needs that copy any more.

use core::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::bpf_types::job::JobEntry;
use crate::checked::{self, check};
use crate::lanes::{Payload, ShortPayload, Values};
use crate::outcome::{Outcome, RejectReason};
use crate::packet::Packet;
use crate::ranks::{GROUPS, Ranks, Words, group_of_lane, is_large, pending_lanes};
use crate::wire::header::{CheckWord, Header, Kind, Op, flags};
use crate::wire::share::Share;
use crate::{CONTROL_REPLY_LANES, EVERYONE, LANES_PER_BLOCK, MAX_LANES, U16};

/// A round that takes contributions.
const FILLING: u8 = 0;
/// A round that all ranks have contributed to.
const COMPLETE: u8 = 1;
/// A round whose ranks disagree on the call.
const POISONED: u8 = 2;

/// What a set knows of its round, values aside (rule 8.1).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SetHead {
    /// How many ranks have contributed.
    pub count: u32,
    /// Epoch of the round; a set of another epoch than the job's is empty.
    pub epoch: u32,
    /// The round.
    pub round: u32,
    /// Fingerprint of the first contribution.
    pub fingerprint: u32,
    /// Aggregate of the check words.
    pub check: u32,
    /// Lanes of the first contribution.
    pub lanes: u16,
    /// Operator of the first contribution.
    pub op: u8,
    /// CHECKED, and CE if any contribution had it.
    pub flags: u8,
    /// The rank that started the round.
    pub first_rank: u16,
    /// The rank whose call differed from that of `first_rank`, in a poisoned round.
    pub dissenter: u16,
    /// [`FILLING`], [`COMPLETE`] or [`POISONED`].
    status: u8,
    /// 1 while no contribution has brought lanes: the values are still left over from an earlier
    /// round.
    lanes_missing: u8,
    /// Zero.
    pub reserved: [u8; 2],
}

/// One set: a round and its values.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Set {
    /// The set's state, without its values.
    pub head: SetHead,
    /// The ranks that have contributed. In a job that is not [large](is_large), the words behind
    /// the first two are those of an earlier job.
    pub seen: Words,
    /// The aggregate, in the machine's byte order.
    pub values: Values,
}

/// A slot. All zeros is a slot never used.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Slot {
    /// The sets of even and of odd rounds.
    pub sets: [Set; 2],
}

/// An element of the pool: a slot, the lock that keeps two CPUs from working on it at the same
/// time, and a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LockedSlot {
    /// 0 when free.
    pub lock: u32,
    /// When the newest round began, in units of [`crate::bpf_types::times`], for slots whose rounds
    /// are timed; 0 if it is complete.
    pub begun: u32,
    /// The slot.
    pub slot: Slot,
}

const _: () = {
    assert!(offset_of!(LockedSlot, slot) == 8);
    assert!(size_of::<SetHead>() == 32);
    assert!(offset_of!(Set, seen) == 32);
    assert!(size_of::<Set>() == 32 + 4 * GROUPS + 4 * MAX_LANES);
    assert!(size_of::<Slot>() == 2 * size_of::<Set>());
};

impl Default for Slot {
    fn default() -> Self {
        let (head, seen) = (SetHead::default(), [0; GROUPS]);
        let set = Set { head, seen, values: [0; MAX_LANES / 2] };
        Self { sets: [set.clone(), set] }
    }
}

/// What a contribution does to its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Rule 8.8: it starts its round; overwrite the values with it.
    Start,
    /// Rule 8.4: it is new to its round; combine it into the values.
    Add,
    /// Rule 8.5: its rank is in already, and the round is complete.
    Replay,
    /// Rule 8.6: its rank is in already, and others are missing.
    Pending,
    /// Rule 8.3: its round is poisoned, or is from now on.
    Mismatch,
    /// Rule 8.9: its round is older than what the slot holds.
    Stale,
    /// Rule 8.10: its round breaks the protocol.
    WrongRound,
    /// Rule 8.15: a partial sum that cannot be added.
    Refuse(Outcome),
}

impl SetHead {
    /// Whether every rank has contributed, so that the values are the result.
    #[inline(always)]
    pub const fn is_complete(&self) -> bool {
        self.status == COMPLETE
    }

    /// Whether it takes contributions.
    pub const fn is_filling(&self) -> bool {
        self.status == FILLING
    }

    #[inline(always)]
    fn holds(&self, job: &JobEntry, round: u32) -> bool {
        self.epoch == job.epoch && self.round == round
    }

    #[inline(always)]
    fn is_empty(&self, job: &JobEntry) -> bool {
        self.epoch != job.epoch
    }

    #[inline(always)]
    fn same_call(&self, header: &Header) -> bool {
        self.op == header.op
            && self.lanes == header.lanes.get()
            && self.fingerprint == header.fingerprint.get()
    }

    #[inline(always)]
    fn poison(&mut self, rank: u16) {
        if self.status != POISONED {
            self.status = POISONED;
            self.dissenter = rank;
        }
    }

    /// Whether no contribution has brought lanes yet.
    #[inline(always)]
    const fn lacks_lanes(&self) -> bool {
        self.lanes_missing != 0
    }

    /// Whether the round lacks exactly these ranks.
    #[inline(always)]
    fn lacks_only(&self, job: &JobEntry, share: &Share) -> bool {
        self.count + share.count() == job.ranks
    }
}

impl Set {
    /// Rules 8.3 to 8.6, 8.14 and 8.15: the set holds the packet's round.
    #[inline(always)]
    fn join(&self, share: &Share, header: &Header) -> Decision {
        if self.head.status == POISONED || !self.head.same_call(header) {
            return Decision::Mismatch;
        }
        let (_, ranks) = share.in_group();
        let known = self.seen[share.group()] & ranks;
        if known == 0 {
            return Decision::Add;
        }
        if share.is_partial() {
            let all = known == ranks;
            return Decision::Refuse(if all { Outcome::Duplicate } else { Outcome::Overlap });
        }
        if self.head.is_complete() { Decision::Replay } else { Decision::Pending }
    }

    #[inline(always)]
    fn start(&mut self, job: &JobEntry, share: &Share, header: &Header) {
        self.head = SetHead {
            count: 0,
            epoch: job.epoch,
            round: header.round.get(),
            fingerprint: header.fingerprint.get(),
            check: 0,
            lanes: header.lanes.get(),
            op: header.op,
            flags: flags::CHECKED,
            first_rank: share.highest(),
            dissenter: 0,
            status: FILLING,
            lanes_missing: 1,
            reserved: [0; 2],
        };
        if is_large(job.ranks) {
            self.seen = [0; GROUPS];
        } else {
            (self.seen[0], self.seen[1]) = (0, 0);
        }
        self.add(job, share, header);
    }

    /// Adds ranks that the round does not have yet.
    #[inline(always)]
    fn add(&mut self, job: &JobEntry, share: &Share, header: &Header) {
        let (_, ranks) = share.in_group();
        self.seen[share.group()] |= ranks;
        let head = &mut self.head;
        head.count += share.count();
        head.lanes_missing &= u8::from(header.is_all_zeros());
        head.check =
            head.check.wrapping_add(header.check.get()).wrapping_sub(share.surplus(header));
        head.flags |= header.flags & flags::CE;
        if head.count == job.ranks {
            head.status = COMPLETE;
        }
    }
}

/// Applies rules 8.3 to 8.10, 8.14 and 8.15: `set` is the one of the packet's round (round & 1),
/// `other` its shadow's head.
///
/// The header must belong to a valid CONTRIBUTION or PARTIAL of the job's epoch (section 7).
#[inline(always)]
pub fn decide(job: &JobEntry, set: &Set, other: &SetHead, header: &Header) -> Decision {
    let share = Share::of(header);
    match judge(job, set, other, &share, header) {
        Decision::Mismatch | Decision::WrongRound if share.is_partial() => {
            Decision::Refuse(Outcome::Conflict)
        }
        decision => decision,
    }
}

#[inline(always)]
fn judge(job: &JobEntry, set: &Set, other: &SetHead, share: &Share, header: &Header) -> Decision {
    let round = header.round.get();
    if set.head.holds(job, round) {
        return set.join(share, header);
    }
    let set = &set.head;
    if may_start(job, set, other, round) {
        return Decision::Start;
    }
    let older = (round.wrapping_sub(set.round) as i32) < 0;
    if !set.is_empty(job) && older { Decision::Stale } else { Decision::WrongRound }
}

/// Rule 8.7: `round` is the next of its set, and the round in between is complete.
#[inline(always)]
fn may_start(job: &JobEntry, set: &SetHead, other: &SetHead, round: u32) -> bool {
    let first_of_epoch = set.is_empty(job) && other.is_empty(job);
    if first_of_epoch {
        return round == 0;
    }
    // After the first round of the epoch, the set of round 1 is still empty.
    let next_of_set =
        if set.is_empty(job) { round == 1 } else { set.round == round.wrapping_sub(2) };
    next_of_set && other.holds(job, round.wrapping_sub(1)) && other.is_complete()
}

/// Serves one contribution or partial sum: updates the slot, and turns the packet into the answer
/// if there is one.
///
/// The caller has admitted the packet (section 7), except its check word, and nothing else changes
/// its payload meanwhile. After an outcome whose action is Reply or Broadcast, header and payload
/// hold the answer, [`Header::payload_lanes`] words long.
#[inline(always)]
pub fn contribute<P: Payload + ?Sized>(
    job: &JobEntry,
    slot: &mut Slot,
    op: Op,
    packet: &mut Packet<'_, P>,
) -> Outcome {
    let header = &*packet.header;
    // Rule 8.2. By index, not by branch: the BPF verifier would follow both branches to the end.
    let index = (header.round.get() & 1) as usize;
    let other = slot.sets[index ^ 1].head;
    let set = &mut slot.sets[index];
    let decision = decide(job, set, &other, header);
    if header.is_all_zeros() {
        return match check(packet) {
            Ok(()) => apply_zeros(decision, job, set, packet.header),
            Err(outcome) => outcome,
        };
    }
    let is_first =
        decision == Decision::Start || decision == Decision::Add && set.head.lacks_lanes();
    let served = if is_first {
        checked::exchange(&mut set.values, packet)
    } else if decision == Decision::Add {
        checked::combine(op, &mut set.values, packet)
    } else {
        check(packet)
    };
    served
        .and_then(|()| apply(decision, job, set, &other, op, packet))
        .unwrap_or_else(|outcome| outcome)
}

/// Rule 8.13: carries out the decision on a contribution without payload whose check word agrees.
/// The contribution counts if no answer is due; otherwise the slot does not change.
#[inline(always)]
fn apply_zeros(decision: Decision, job: &JobEntry, set: &mut Set, header: &mut Header) -> Outcome {
    let share = Share::of(header);
    match decision {
        Decision::Start if job.ranks > 1 => {
            set.start(job, &share, header);
            Outcome::Started
        }
        Decision::Add if !set.head.lacks_only(job, &share) => {
            set.add(job, &share, header);
            Outcome::Added
        }
        Decision::Stale => Outcome::Stale,
        _ => ask_for_room(header),
    }
}

/// Rule 9.2: turns the contribution into a ROOM.
#[inline(always)]
fn ask_for_room(header: &mut Header) -> Outcome {
    header.kind = Kind::Room as u8;
    Outcome::Room
}

/// Refuses a contribution to an aborted job, if its check word agrees.
#[inline(always)]
pub(crate) fn refuse_aborted<P: Payload + ?Sized>(packet: &mut Packet<'_, P>) -> Outcome {
    check(packet)
        .and_then(|()| {
            if packet.header.is_partial() {
                return Ok(Outcome::Conflict);
            }
            match packet.header.is_all_zeros() {
                true => Ok(ask_for_room(packet.header)),
                false => reject(RejectReason::Aborted, 0, packet),
            }
        })
        .unwrap_or_else(|outcome| outcome)
}

/// Carries out the decision on a contribution whose check word agrees. Its lanes are in the values
/// already if they belong there.
#[inline(always)]
fn apply<P: Payload + ?Sized>(
    decision: Decision,
    job: &JobEntry,
    set: &mut Set,
    other: &SetHead,
    op: Op,
    packet: &mut Packet<'_, P>,
) -> Result<Outcome, Outcome> {
    let share = Share::of(packet.header);
    match decision {
        Decision::Start => {
            set.start(job, &share, packet.header);
            advance(job, set, op, Outcome::Started, packet)
        }
        Decision::Add => {
            set.add(job, &share, packet.header);
            advance(job, set, op, Outcome::Added, packet)
        }
        Decision::Replay => {
            write_result(set, packet)?;
            Ok(Outcome::Replayed)
        }
        Decision::Pending => {
            write_pending(job, &set.seen, packet)?;
            Ok(Outcome::Pending)
        }
        Decision::Mismatch => {
            set.head.poison(share.highest());
            let detail = u32::from(set.head.first_rank) << 16 | u32::from(set.head.dissenter);
            reject(RejectReason::Mismatch, detail, packet)
        }
        Decision::WrongRound => {
            reject(RejectReason::Round, newest_round(job, &set.head, other), packet)
        }
        Decision::Stale => Ok(Outcome::Stale),
        Decision::Refuse(outcome) => Ok(outcome),
    }
}

/// Called after a contribution was added to the values; writes the RESULT for all if it was the
/// last.
#[inline(always)]
fn advance<P: Payload + ?Sized>(
    job: &JobEntry,
    set: &mut Set,
    op: Op,
    incomplete: Outcome,
    packet: &mut Packet<'_, P>,
) -> Result<Outcome, Outcome> {
    if !set.head.is_complete() {
        return Ok(incomplete);
    }
    write_result(set, packet)?;
    let Packet { header, payload, .. } = packet;
    if op.check_word() == CheckWord::OfLanes {
        // Rule 8.12.
        let blocks = usize::from(set.head.lanes) / LANES_PER_BLOCK;
        set.head.check = header.check_of(payload.sum(blocks)?, job.ranks);
        header.check.set(set.head.check);
    }
    header.rank = U16::new(EVERYONE);
    header.aux.set(0);
    Ok(Outcome::Completed)
}

#[inline(always)]
fn newest_round(job: &JobEntry, set: &SetHead, other: &SetHead) -> u32 {
    match (set.is_empty(job), other.is_empty(job)) {
        (true, true) => 0,
        (true, false) => other.round,
        (false, true) => set.round,
        (false, false) => {
            let other_is_newer = other.round.wrapping_sub(set.round) as i32 > 0;
            if other_is_newer { other.round } else { set.round }
        }
    }
}

/// Rule 9.1: turns the contribution into the RESULT of its set. Job, epoch, rank, slot, round, op,
/// lanes and fingerprint are those of the contribution.
#[inline(always)]
fn write_result<P: Payload + ?Sized>(
    set: &Set,
    packet: &mut Packet<'_, P>,
) -> Result<(), ShortPayload> {
    let Packet { header, payload, .. } = packet;
    header.kind = Kind::Result as u8;
    header.flags = set.head.flags;
    header.check.set(set.head.check);
    payload.load_from(&set.values, usize::from(set.head.lanes) / LANES_PER_BLOCK)
}

/// Turns the packet into a REJECT to its sender.
#[inline(always)]
fn reject<P: Payload + ?Sized>(
    reason: RejectReason,
    detail: u32,
    packet: &mut Packet<'_, P>,
) -> Result<Outcome, Outcome> {
    let words = [reason as u32, detail];
    let block = packet.payload.block_mut(0).ok_or(ShortPayload)?;
    block[0].set(words[0]);
    block[1].set(words[1]);
    let sum = words[0].wrapping_add(words[1]);
    write_control_reply(Kind::Reject, CONTROL_REPLY_LANES, sum, packet.header);
    Ok(reason.outcome())
}

/// Turns a contribution into the answer that only these ranks are in its round: PENDING, or ROOM if
/// the contribution has no payload.
pub fn answer_pending<P: Payload + ?Sized>(
    job: &JobEntry,
    seen: &Ranks,
    packet: &mut Packet<'_, P>,
) -> Outcome {
    if packet.header.is_all_zeros() {
        return ask_for_room(packet.header);
    }
    write_pending(job, seen.words(), packet).map_or_else(Outcome::from, |()| Outcome::Pending)
}

/// Turns the packet into a PENDING to its sender.
#[inline(always)]
fn write_pending<P: Payload + ?Sized>(
    job: &JobEntry,
    seen: &Words,
    packet: &mut Packet<'_, P>,
) -> Result<(), ShortPayload> {
    let block = packet.payload.block_mut(0).ok_or(ShortPayload)?;
    let lanes = pending_lanes(job.ranks);
    let mut sum = 0u32;
    for (lane, word) in block.iter_mut().enumerate().take(lanes) {
        let ranks = seen[group_of_lane(lane)];
        word.set(ranks);
        sum = sum.wrapping_add(ranks);
    }
    write_control_reply(Kind::Pending, lanes, sum, packet.header);
    Ok(())
}

/// Rule 9.1: gives the packet the header of a PENDING or REJECT, whose lanes have this sum.
#[inline(always)]
fn write_control_reply(kind: Kind, lanes: usize, sum: u32, header: &mut Header) {
    header.kind = kind as u8;
    header.op = Op::Sum as u8;
    header.flags = flags::CHECKED;
    header.lanes.set(lanes as u16);
    header.check.set(header.check_of(sum, 1));
}
