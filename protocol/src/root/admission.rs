//! What an aggregator does with one packet, from admission to answer, whatever holds its jobs and
//! slots.

use crate::bpf_types::job::{ABORTED, Binding, JobEntry, MemberEntry, VACANT};
use crate::lanes::Payload;
use crate::outcome::{Action, Outcome};
use crate::packet::Packet;
use crate::root::slot::{self, Slot};
use crate::wire::auth::Key;
use crate::wire::header::{Header, Kind, Op, flags};
use crate::wire::ip::Ip;
use crate::wire::share::Share;
use crate::{LANES_PER_BLOCK, RANKS_PER_GROUP};

/// Storage of jobs and members: BPF maps in the kernel, vectors on a host.
pub trait Members {
    /// The job with this number, if the table is that long.
    fn job(&self, number: u16) -> Option<JobEntry>;
    /// The entry of a rank in the member table.
    fn member(&self, job: u16, rank: u16) -> Option<MemberEntry>;
    /// Binds a rank to the place it said HELLO from, for this epoch.
    fn learn(&self, job: u16, rank: u16, epoch: u32, binding: &Binding);
    /// Where a rank lives, if it has said so in the job's epoch.
    #[inline(always)]
    fn home(&self, job: u16, rank: u16) -> Option<Binding> {
        let member = self.member(job, rank)?;
        member.home(self.job(job)?.epoch)
    }
    /// At a combiner, where a job's parent is, and the address of this node towards it; unspecified
    /// where any will do.
    #[inline(always)]
    fn parent(&self, _job: u16) -> Option<(Binding, Ip)> {
        None
    }
}

/// Storage of slots, too.
pub trait Tables: Members {
    /// Runs `f` on a slot of the pool, under its lock. Returns [`Outcome::SlotBusy`] if the lock
    /// stays taken, [`Outcome::BadSlot`] if the pool has no such slot.
    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome;
}

/// Serves one packet that came from `binding`.
///
/// After an outcome whose action is Reply or Broadcast, header and payload are those of the answer,
/// and [`Header::payload_lanes`] words of payload are to be sent.
#[inline(always)]
pub fn serve<T: Tables, P: Payload + ?Sized>(
    tables: &T,
    binding: &Binding,
    packet: &mut Packet<'_, P>,
) -> Outcome {
    match packet.header.validate(packet.len) {
        Ok((Kind::Contribution | Kind::Partial, op)) => contribution(tables, binding, op, packet),
        Ok((Kind::Hello, _)) => {
            hello(tables, binding, packet.header, |job, key| has_right_tag(job, key, packet))
        }
        Ok(_) => Outcome::BadKind,
        Err(malformed) => malformed.into(),
    }
}

/// Rules 10.2 and 7.5, the part that all kinds share: the packet is of the job's session.
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
    packet: &mut Packet<'_, P>,
) -> Outcome {
    let header = &*packet.header;
    let Some(job) = tables.job(header.job.get()) else {
        return Outcome::UnknownJob;
    };
    let judge = |key: &Key| has_right_tag(&job, key, packet);
    let key = match admit(tables, &job, binding, header, judge) {
        Ok(key) => key,
        Err(outcome) => return outcome,
    };
    // Before anything is touched: a slot must not take in half a packet.
    let blocks = usize::from(header.payload_lanes()) / LANES_PER_BLOCK;
    if blocks > 0 && packet.payload.block(blocks - 1).is_none() {
        return Outcome::Truncated;
    }
    // Rule 7.11. The flag is not covered by the check word: if it got lost on the way, nothing
    // tells what else did.
    if header.flags & flags::CHECKED == 0 {
        return Outcome::BadCheck;
    }
    // Rule 7.12.
    let outcome = if job.state == ABORTED {
        slot::refuse_aborted(packet)
    } else {
        let index = job.first_slot + u32::from(header.slot.get());
        tables.with_slot(index, |slot| slot::contribute(&job, slot, op, packet))
    };
    match outcome.action() {
        Action::Broadcast => seal(&job.key, packet),
        Action::Reply => seal(&key, packet),
        _ => {}
    }
    outcome
}

/// Rule 7.14: whether the packet of a rank with this key has the tag that it should have.
#[inline(always)]
fn has_right_tag<P: Payload + ?Sized>(
    job: &JobEntry,
    key: &Key,
    packet: &Packet<'_, P>,
) -> Result<(), Outcome> {
    let Packet { header, payload, .. } = packet;
    let is_tagged = header.tag_len() > 0;
    if is_tagged == job.key.is_none() {
        return Err(Outcome::BadTag);
    }
    if is_tagged && payload.pair(header.payload_lanes().into()) != Some(P::tag(key, header)) {
        return Err(Outcome::BadTag);
    }
    Ok(())
}

/// Rule 28.4: gives an answer its tag, in a job with tags. There is room: the packet that it
/// answers had a tag.
#[inline(always)]
fn seal<P: Payload + ?Sized>(key: &Key, packet: &mut Packet<'_, P>) {
    if key.is_none() {
        return;
    }
    let Packet { header, payload, .. } = packet;
    header.flags |= flags::TAGGED;
    let _ = payload.set_pair(header.payload_lanes().into(), P::tag(key, header));
}

/// Rules 7.5, 7.14, 7.9, 7.10: the packet is of the job's session, and came from where its ranks
/// live. Returns the rank's key; for a PARTIAL, no key. `has_right_tag` judges rule 7.14 by the
/// rank's key.
#[inline(always)]
pub(crate) fn admit<T: Members>(
    tables: &T,
    job: &JobEntry,
    binding: &Binding,
    header: &Header,
    has_right_tag: impl FnOnce(&Key) -> Result<(), Outcome>,
) -> Result<Key, Outcome> {
    is_of_session(job, header)?;
    let share = Share::of(header);
    if !share.is_within(job.ranks) {
        return Err(Outcome::BadRank);
    }
    let key = if share.is_partial() {
        // A combiner has no keys.
        if header.tag_len() > 0 || !job.key.is_none() {
            return Err(Outcome::BadTag);
        }
        for index in 0..RANKS_PER_GROUP {
            if let Some(rank) = share.rank(index) {
                let member = tables.member(header.job.get(), rank).ok_or(Outcome::BadRank)?;
                // The rank's combiner sends for each rank from a separate port.
                comes_from(binding, &Binding { port: binding.port, ..home(job, &member)? })?;
            }
        }
        Key::NONE
    } else {
        let member = tables.member(header.job.get(), share.highest()).ok_or(Outcome::BadRank)?;
        has_right_tag(&member.key)?;
        comes_from(binding, &home(job, &member)?)?;
        member.key
    };
    if u32::from(header.slot.get()) >= job.slots {
        return Err(Outcome::BadSlot);
    }
    Ok(key)
}

#[inline(always)]
fn home(job: &JobEntry, member: &MemberEntry) -> Result<Binding, Outcome> {
    member.home(job.epoch).ok_or(Outcome::NoHello)
}

#[inline(always)]
fn comes_from(binding: &Binding, home: &Binding) -> Result<(), Outcome> {
    if binding == home { Ok(()) } else { Err(Outcome::WrongPlace) }
}

/// Rules 7.14 and 7.6 to 7.8: HELLO binds a rank to where it comes from, once per epoch; the packet
/// itself is the answer.
///
/// Two HELLOs of one rank may be served at the same time, and both may find no binding yet. Only
/// the holder of the secret can send them, so both come from the same place.
#[inline(always)]
pub(crate) fn hello<T: Members>(
    tables: &T,
    binding: &Binding,
    header: &Header,
    has_right_tag: impl FnOnce(&JobEntry, &Key) -> Result<(), Outcome>,
) -> Outcome {
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
    if let Err(outcome) = has_right_tag(&job, &member.key) {
        return outcome;
    }
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
