//! Values that change by a packet's payload only if its check word is right: rules 7.11, 7.13 and
//! 27.13.
//!
//! One pass over the packet instead of two. Nobody sees the values before a change is undone: their
//! lock is held.

use crate::LANES_PER_BLOCK;
use crate::lanes::{Payload, Values};
use crate::outcome::Outcome;
use crate::packet::Packet;
use crate::wire::header::{CheckWord, Header, Op};
use crate::wire::share::Share;

/// Blocks of the packet's payload.
#[inline(always)]
pub(crate) fn blocks(header: &Header) -> usize {
    usize::from(header.payload_lanes()) / LANES_PER_BLOCK
}

/// Whether the check word agrees.
#[inline(always)]
pub(crate) fn check<P: Payload + ?Sized>(packet: &Packet<'_, P>) -> Result<(), Outcome> {
    judge(packet.header, packet.payload.sum(blocks(packet.header))?)
}

/// Exchanges the values and the payload. If the check word disagrees, both keep their old contents.
#[inline(always)]
pub(crate) fn exchange<P: Payload + ?Sized>(
    values: &mut Values,
    packet: &mut Packet<'_, P>,
) -> Result<(), Outcome> {
    let Packet { header, payload, .. } = packet;
    let sum = payload.exchange_with(values, blocks(header))?;
    if judge(header, sum).is_ok() {
        return Ok(());
    }
    payload.exchange_with(values, blocks(header))?;
    Err(Outcome::BadCheck)
}

/// Combines the values with the payload. If the check word disagrees, they are as before.
#[inline(always)]
pub(crate) fn combine<P: Payload + ?Sized>(
    op: Op,
    values: &mut Values,
    packet: &Packet<'_, P>,
) -> Result<(), Outcome> {
    match op.check_word() {
        CheckWord::AddsUp => add(values, packet),
        CheckWord::OfLanes => {
            check(packet)?;
            Ok(packet.payload.combine_into(op, values, blocks(packet.header))?)
        }
    }
}

/// Adds the payload to the values. If the check word disagrees, they are as before.
#[inline(always)]
fn add<P: Payload + ?Sized>(values: &mut Values, packet: &Packet<'_, P>) -> Result<(), Outcome> {
    let Packet { header, payload, .. } = packet;
    let sum = payload.add_to(values, blocks(header))?;
    if judge(header, sum).is_ok() {
        return Ok(());
    }
    payload.subtract_from(values, blocks(header))?;
    Err(Outcome::BadCheck)
}

#[inline(always)]
fn judge(header: &Header, lane_sum: u32) -> Result<(), Outcome> {
    if Share::of(header).agrees(header, lane_sum) { Ok(()) } else { Err(Outcome::BadCheck) }
}
