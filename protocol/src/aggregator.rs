//! What an aggregator does with one packet, from admission to answer, whatever holds its jobs and
//! slots.

use crate::capabilities::Capabilities;
use crate::header::{Header, Kind, Op, flags};
use crate::job::{ABORTED, Binding, JobEntry, MemberEntry, VACANT};
use crate::lanes::Payload;
use crate::outcome::Outcome;
use crate::share::Share;
use crate::slot::{self, Slot};
use crate::{LANES_PER_BLOCK, RANKS_PER_GROUP};

/// What data planes can do that serve packets by this module.
pub const CAPABILITIES: Capabilities = Capabilities::CHECKED_MAXIMA
    .union(Capabilities::EMPTY_CONTRIBUTIONS)
    .union(Capabilities::PARTIAL_SUMS);

/// Storage of jobs and members: BPF maps in the kernel, vectors on a host.
pub trait Members {
    /// The job of that number, if the table is that long.
    fn job(&self, number: u16) -> Option<JobEntry>;
    /// What is known of a rank.
    fn member(&self, job: u16, rank: u16) -> Option<MemberEntry>;
    /// Binds a rank to the place it said HELLO from, for this epoch.
    fn learn(&self, job: u16, rank: u16, epoch: u32, binding: &Binding);
}

/// Storage of slots, too.
pub trait Tables: Members {
    /// Runs `f` on a slot of the pool, with nobody else on it. [`Outcome::SlotBusy`] when that
    /// cannot be had, [`Outcome::BadSlot`] when there is no such slot.
    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome;
}

/// Serves one packet that came from `binding`: `payload_len` bytes follow the header.
///
/// After an outcome whose action is Reply or Broadcast, header and payload are those of the answer,
/// and [`Header::payload_lanes`] words of payload are to be sent.
#[inline(always)]
pub fn serve<T: Tables, P: Payload + ?Sized>(
    tables: &T,
    binding: &Binding,
    header: &mut Header,
    payload: &mut P,
    payload_len: usize,
) -> Outcome {
    match header.validate(payload_len) {
        Ok((Kind::Contribution | Kind::Partial, op)) => {
            contribution(tables, binding, op, header, payload)
        }
        Ok((Kind::Hello, _)) => hello(tables, binding, header),
        Ok(_) => Outcome::BadKind,
        Err(malformed) => malformed.into(),
    }
}

/// Rule 7.5, the part that all kinds share: the packet is of the job's session.
#[inline(always)]
pub(crate) fn is_of_session(job: &JobEntry, header: &Header) -> Result<(), Outcome> {
    if job.state == VACANT {
        return Err(Outcome::UnknownJob);
    }
    if header.epoch.get() == job.epoch { Ok(()) } else { Err(Outcome::WrongEpoch) }
}

#[inline(always)]
fn contribution<T: Tables, P: Payload + ?Sized>(
    tables: &T,
    binding: &Binding,
    op: Op,
    header: &mut Header,
    payload: &mut P,
) -> Outcome {
    let Some(job) = tables.job(header.job.get()) else {
        return Outcome::UnknownJob;
    };
    if let Err(outcome) = admit(tables, &job, binding, header) {
        return outcome;
    }
    // Before anything is touched: a slot must not take in half a packet.
    let blocks = usize::from(header.payload_lanes()) / LANES_PER_BLOCK;
    if blocks > 0 && payload.block(blocks - 1).is_none() {
        return Outcome::Truncated;
    }
    // Rule 7.11. The flag is not covered by the check word: if it got lost on the way, nothing
    // tells what else did.
    if header.flags & flags::CHECKED == 0 {
        return Outcome::BadCheck;
    }
    // Rule 7.12.
    if job.state == ABORTED {
        return slot::refuse_aborted(header, payload);
    }
    let index = job.first_slot + u32::from(header.slot.get());
    tables.with_slot(index, |slot| slot::contribute(&job, slot, op, header, payload))
}

/// Rules 7.5, 7.9, 7.10: the packet is of the job's session, and came from where its ranks live.
#[inline(always)]
pub(crate) fn admit<T: Members>(
    tables: &T,
    job: &JobEntry,
    binding: &Binding,
    header: &Header,
) -> Result<(), Outcome> {
    is_of_session(job, header)?;
    let share = Share::of(header);
    if !share.is_within(job.ranks) {
        return Err(Outcome::BadRank);
    }
    if share.is_partial() {
        for index in 0..RANKS_PER_GROUP {
            if let Some(rank) = share.rank(index) {
                let home = home(tables, job, header.job.get(), rank)?;
                // Its combiner sends for each rank from a port of its own.
                comes_from(binding, &Binding { port: binding.port, ..home })?;
            }
        }
    } else {
        comes_from(binding, &home(tables, job, header.job.get(), share.highest())?)?;
    }
    if u32::from(header.slot.get()) >= job.slots {
        return Err(Outcome::BadSlot);
    }
    Ok(())
}

/// Where a rank lives, if it has said so in this epoch.
#[inline(always)]
fn home<T: Members>(
    tables: &T,
    job: &JobEntry,
    number: u16,
    rank: u16,
) -> Result<Binding, Outcome> {
    let member = tables.member(number, rank).ok_or(Outcome::BadRank)?;
    if member.epoch == job.epoch { Ok(member.binding) } else { Err(Outcome::NoHello) }
}

#[inline(always)]
fn comes_from(binding: &Binding, home: &Binding) -> Result<(), Outcome> {
    if binding == home { Ok(()) } else { Err(Outcome::WrongPlace) }
}

/// Rules 7.6 to 7.8: HELLO binds a rank to where it comes from, once per epoch; the packet itself
/// is the answer.
///
/// Two HELLOs of one rank may be served at the same time, and both may find no binding yet. Only
/// the holder of the secret can send them, so both come from the same place.
#[inline(always)]
pub(crate) fn hello<T: Members>(tables: &T, binding: &Binding, header: &Header) -> Outcome {
    let Some(job) = tables.job(header.job.get()) else {
        return Outcome::UnknownJob;
    };
    if let Err(outcome) = is_of_session(&job, header) {
        return outcome;
    }
    let rank = header.rank.get();
    let member =
        if u32::from(rank) < job.ranks { tables.member(header.job.get(), rank) } else { None };
    let Some(member) = member else { return Outcome::BadRank };
    if header.aux.get() != member.secret {
        return Outcome::WrongSecret;
    }
    if member.epoch != job.epoch {
        tables.learn(header.job.get(), rank, job.epoch, binding);
    } else if member.binding != *binding {
        return Outcome::WrongPlace;
    }
    Outcome::Hello
}
