//! What an aggregator does with one packet, from admission to answer, whatever holds its jobs and
//! slots.

use crate::LANES_PER_BLOCK;
use crate::capabilities::Capabilities;
use crate::header::{Header, Kind, Op, flags};
use crate::job::{ABORTED, Binding, JobEntry, MemberEntry, VACANT};
use crate::lanes::Payload;
use crate::outcome::Outcome;
use crate::slot::{self, Slot};

/// What data planes can do that serve packets by this module.
pub const CAPABILITIES: Capabilities =
    Capabilities::CHECKED_MAXIMA.union(Capabilities::EMPTY_CONTRIBUTIONS);

/// Storage of jobs, members and slots: BPF maps in the kernel, vectors on a host.
pub trait Tables {
    /// The job of that number, if the table is that long.
    fn job(&self, number: u16) -> Option<JobEntry>;
    /// What is known of a rank.
    fn member(&self, job: u16, rank: u16) -> Option<MemberEntry>;
    /// Binds a rank to the place it said HELLO from, for this epoch.
    fn learn(&self, job: u16, rank: u16, epoch: u32, binding: &Binding);
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
        Ok((Kind::Contribution, op)) => contribution(tables, binding, op, header, payload),
        Ok((Kind::Hello, _)) => hello(tables, binding, header),
        Ok(_) => Outcome::BadKind,
        Err(malformed) => malformed.into(),
    }
}

/// Rule 7.5: what is known of the rank, the part of admission that HELLO shares.
#[inline(always)]
fn find_member<T: Tables>(
    tables: &T,
    job: &JobEntry,
    header: &Header,
) -> Result<MemberEntry, Outcome> {
    if job.state == VACANT {
        return Err(Outcome::UnknownJob);
    }
    if header.epoch.get() != job.epoch {
        return Err(Outcome::WrongEpoch);
    }
    let rank = header.rank.get();
    if u32::from(rank) >= job.ranks {
        return Err(Outcome::BadRank);
    }
    tables.member(header.job.get(), rank).ok_or(Outcome::BadRank)
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

/// Rules 7.5, 7.9, 7.10: the packet is of the job's session, and came from where its rank lives.
#[inline(always)]
fn admit<T: Tables>(
    tables: &T,
    job: &JobEntry,
    binding: &Binding,
    header: &Header,
) -> Result<(), Outcome> {
    let member = find_member(tables, job, header)?;
    if member.epoch != job.epoch {
        return Err(Outcome::NoHello);
    }
    if member.binding != *binding {
        return Err(Outcome::WrongPlace);
    }
    if u32::from(header.slot.get()) >= job.slots {
        return Err(Outcome::BadSlot);
    }
    Ok(())
}

/// Rules 7.6 to 7.8: HELLO binds a rank to where it comes from, once per epoch; the packet itself
/// is the answer.
///
/// Two HELLOs of one rank may be served at the same time, and both may find no binding yet. Only
/// the holder of the secret can send them, so both come from the same place.
#[inline(always)]
fn hello<T: Tables>(tables: &T, binding: &Binding, header: &Header) -> Outcome {
    let Some(job) = tables.job(header.job.get()) else {
        return Outcome::UnknownJob;
    };
    let member = match find_member(tables, &job, header) {
        Ok(member) => member,
        Err(outcome) => return outcome,
    };
    if header.aux.get() != member.secret {
        return Outcome::WrongSecret;
    }
    if member.epoch != job.epoch {
        tables.learn(header.job.get(), header.rank.get(), job.epoch, binding);
    } else if member.binding != *binding {
        return Outcome::WrongPlace;
    }
    Outcome::Hello
}
