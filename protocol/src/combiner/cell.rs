//! The combiner: adds up the contributions of several ranks to one round of a slot, on their way to
//! the root. Section 27 of `docs/spec`.
//!
//! All of its state is soft. It may forget a cell, flush it or pass packets by at any time. That
//! costs only time: the root judges each packet by the ranks that it stands for, and resends pass
//! combiners untouched.

use core::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::LANES_PER_BLOCK;
use crate::checked;
use crate::lanes::{Payload, ShortPayload, Values};
use crate::outcome::Outcome;
use crate::packet::Packet;
use crate::wire::header::{Header, Op, flags};
use crate::wire::share::Share;

/// The state of a cell, without its values.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CellHead {
    /// Bitmap of the ranks of the group whose values the cell has.
    pub held: u32,
    /// Bitmap of the ranks of the group that have gone on to the parent.
    pub passed: u32,
    /// Epoch of the key; 0 of a cell never used.
    pub epoch: u32,
    /// The round.
    pub round: u32,
    /// Fingerprint of the round's call.
    pub fingerprint: u32,
    /// Sum of the check words.
    pub check: u32,
    /// When the first of the values came.
    pub since: u32,
    /// Job of the key.
    pub job: u16,
    /// Slot of the key.
    pub slot: u16,
    /// First rank of the key's group.
    pub group: u16,
    /// Lanes of the round's call.
    pub lanes: u16,
    /// Operator of the round's call.
    pub op: u8,
    /// CHECKED, and CE if any contribution had it.
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 2],
}

/// A cell. All zeros is one never used.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cell {
    /// The cell's state, without its values.
    pub head: CellHead,
    /// The values, in the machine's byte order.
    pub values: Values,
}

/// A combiner's cell, and its lock, as a [`LockedSlot`](crate::root::slot::LockedSlot).
#[derive(Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LockedCell {
    /// 0 when free.
    pub lock: u32,
    /// Zero.
    pub reserved: u32,
    /// The cell.
    pub cell: Cell,
}

const _: () = {
    assert!(offset_of!(LockedCell, cell) == 8);
    assert!(size_of::<CellHead>() == 40);
    assert!(size_of::<Cell>() == 40 + size_of::<Values>());
};

impl Default for Cell {
    fn default() -> Self {
        Self { head: CellHead::default(), values: [0; crate::MAX_LANES / 2] }
    }
}

/// The combiner's inputs for a packet, in addition to the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellContext {
    /// Bitmap of the ranks of the packet's group that are below this combiner, from the control
    /// plane.
    pub below: u32,
    /// The time, in any unit; it wraps context.
    pub now: u32,
    /// The age at which a cell may be taken by another key, in the same unit.
    pub hold_time: u32,
}

/// What a packet finds in its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellState {
    /// The packet's own call and round.
    Match,
    /// Something that it may overwrite.
    Free,
    /// Values that have been there for too long.
    Old,
    /// Something to leave alone.
    Taken,
}

/// Rule 27.6: the cell of a packet's key, of that many cells.
#[inline(always)]
pub const fn cell_of(header: &Header, cells: u32) -> u32 {
    const K: u32 = 0x9E37_79B1;
    let (group, _) = Share::of(header).in_group();
    let place = (header.job.get() as u32) << 16 | header.slot.get() as u32;
    let hash = place.wrapping_mul(K).wrapping_add(header.epoch.get()).wrapping_mul(K);
    let hash = hash.wrapping_add(group as u32 / 32).wrapping_mul(K);
    ((hash as u64 * cells as u64) >> 32) as u32
}

impl CellHead {
    #[inline(always)]
    fn has_key(&self, header: &Header, group: u16) -> bool {
        self.epoch == header.epoch.get()
            && self.job == header.job.get()
            && self.slot == header.slot.get()
            && self.group == group
    }

    #[inline(always)]
    fn has_call(&self, header: &Header) -> bool {
        self.op == header.op
            && self.lanes == header.lanes.get()
            && self.fingerprint == header.fingerprint.get()
    }

    #[inline(always)]
    fn find(&self, header: &Header, group: u16, context: &CellContext) -> CellState {
        if self.has_key(header, group) {
            let ahead = header.round.get().wrapping_sub(self.round) as i32;
            return match ahead {
                0 if self.has_call(header) => CellState::Match,
                // All ranks have the result of the round that the cell holds.
                1.. => CellState::Free,
                _ => CellState::Taken,
            };
        }
        if self.held == 0 {
            CellState::Free
        } else if context.now.wrapping_sub(self.since) >= context.hold_time {
            CellState::Old
        } else {
            CellState::Taken
        }
    }

    /// Rule 27.12: empties the cell.
    #[inline(always)]
    pub const fn forget(&mut self) {
        (self.held, self.check, self.flags) = (0, 0, flags::CHECKED);
    }

    /// Whether all ranks below are held, or have gone on.
    #[inline(always)]
    const fn is_complete(&self, context: &CellContext) -> bool {
        context.below & !(self.held | self.passed) == 0
    }

    #[inline(always)]
    fn claim(&mut self, header: &Header, group: u16) {
        *self = Self {
            held: 0,
            passed: 0,
            epoch: header.epoch.get(),
            round: header.round.get(),
            fingerprint: header.fingerprint.get(),
            check: 0,
            since: 0,
            job: header.job.get(),
            slot: header.slot.get(),
            group,
            lanes: header.lanes.get(),
            op: header.op,
            flags: flags::CHECKED,
            reserved: [0; 2],
        };
    }

    #[inline(always)]
    fn hold(&mut self, header: &Header, ranks: u32, now: u32) {
        if self.held == 0 {
            self.since = now;
        }
        self.held |= ranks;
        self.check = self
            .check
            .wrapping_add(header.check.get())
            .wrapping_sub(Share::of(header).surplus(header));
        self.flags |= header.flags & flags::CE;
    }

    /// Rule 27.14: makes a PARTIAL of the packet, whose payload has the values, and empties the
    /// cell.
    #[inline(always)]
    fn leave<P: Payload + ?Sized>(
        &mut self,
        packet: &mut Packet<'_, P>,
    ) -> Result<(), ShortPayload> {
        let Packet { header, payload, .. } = packet;
        header.job.set(self.job);
        header.epoch.set(self.epoch);
        header.slot.set(self.slot);
        header.round.set(self.round);
        header.op = self.op;
        header.flags = self.flags;
        header.lanes.set(self.lanes);
        header.fingerprint.set(self.fingerprint);
        let lane_sum = || payload.sum(blocks(self.lanes));
        Share::make_partial(header, (self.group, self.held), self.check, lane_sum)?;
        self.passed |= self.held;
        self.forget();
        Ok(())
    }
}

/// Serves a CONTRIBUTION or PARTIAL from below, which has been admitted (rule 27.1) except for its
/// check word, under the cell's lock.
///
/// What becomes of it, which is its action, too:
///
/// - [`Outcome::Held`]: its values are in the cell (rules 27.9 and 27.10). The payload must not be
///   used.
/// - [`Outcome::Combined`]: the partial sum that the cell held and its own values complete goes on
///   in its place (rule 27.9).
/// - [`Outcome::Evicted`]: its values are in the cell; the partial sum that had been there for too
///   long goes on in its place (rule 27.10), as long as the packet was.
/// - [`Outcome::Passed`]: it goes on as it is (rule 27.8).
/// - [`Outcome::Flushed`]: it goes on as it is, behind what the cell holds, which the caller makes
///   a packet of by [`flush`] (rule 27.11).
/// - [`Outcome::Duplicate`]: its values are in the cell already (rule 27.9).
/// - others: its check word disagrees, or it ends too early. The cell is as before.
#[inline(always)]
pub fn combine<P: Payload + ?Sized>(
    cell: &mut Cell,
    context: &CellContext,
    op: Op,
    packet: &mut Packet<'_, P>,
) -> Outcome {
    let header = &*packet.header;
    let (group, ranks) = Share::of(header).in_group();
    let state = cell.head.find(header, group, context);
    let is_match = state == CellState::Match;
    let (held, passed) = if is_match { (cell.head.held, cell.head.passed) } else { (0, 0) };
    let is_marked = header.flags & flags::RETRANSMIT != 0 || header.is_all_zeros();
    let is_last_alone = held == 0 && context.below & !(passed | ranks) == 0;
    let is_known = ranks & (held | passed) != 0;
    if is_known && ranks & !held == 0 && !is_marked {
        return Outcome::Duplicate;
    }
    if is_marked || is_last_alone || is_known || state == CellState::Taken {
        return if is_match { pass(&mut cell.head, context, ranks) } else { Outcome::Passed };
    }
    take_in(cell, state, context, op, packet).unwrap_or_else(|refused| refused)
}

/// Rules 27.8 and 27.11: the packet, which is of the cell's round, goes on as it is.
#[inline(always)]
fn pass(head: &mut CellHead, context: &CellContext, ranks: u32) -> Outcome {
    let is_held = head.held & ranks != 0;
    head.passed |= ranks;
    if head.held != 0 && (is_held || head.is_complete(context)) {
        Outcome::Flushed
    } else {
        Outcome::Passed
    }
}

/// Rules 27.9 and 27.10: the packet's values go into the cell.
#[inline(always)]
fn take_in<P: Payload + ?Sized>(
    cell: &mut Cell,
    state: CellState,
    context: &CellContext,
    op: Op,
    packet: &mut Packet<'_, P>,
) -> Result<Outcome, Outcome> {
    let header = &*packet.header;
    if header.flags & flags::CHECKED == 0 {
        return Err(Outcome::BadCheck);
    }
    let (group, ranks) = Share::of(header).in_group();
    let mut old = cell.head;
    if state != CellState::Match || old.held == 0 {
        checked::exchange(&mut cell.values, packet)?;
    } else {
        checked::combine(op, &mut cell.values, packet)?;
    }
    if state != CellState::Match {
        cell.head.claim(packet.header, group);
    }
    cell.head.hold(packet.header, ranks, context.now);
    if cell.head.is_complete(context) {
        packet.payload.load_from(&cell.values, blocks(cell.head.lanes))?;
        cell.head.leave(packet)?;
        return Ok(Outcome::Combined);
    }
    // A partial sum as long as the packet takes the packet's place. Any other is forgotten.
    if state == CellState::Old && old.lanes == packet.header.lanes.get() {
        old.leave(packet)?;
        return Ok(Outcome::Evicted);
    }
    Ok(Outcome::Held)
}

/// Rules 27.11 and 27.12: makes a packet of the cell's values and empties the cell. The packet's
/// envelope is the caller's, and its payload has room for the cell's lanes.
#[inline(always)]
pub fn flush<P: Payload + ?Sized>(
    cell: &mut Cell,
    packet: &mut Packet<'_, P>,
) -> Result<(), ShortPayload> {
    packet.payload.load_from(&cell.values, blocks(cell.head.lanes))?;
    packet.header.version = crate::VERSION;
    cell.head.leave(packet)
}

#[inline(always)]
fn blocks(lanes: u16) -> usize {
    usize::from(lanes) / LANES_PER_BLOCK
}
