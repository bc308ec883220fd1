//! What a combiner decides on one packet, from below or from its parent: section 27 of
//! `docs/spec`. [`cell`] does the adding up, [`crate::node`] is what media call.

use crate::bpf_types::job::{ABORTED, Binding};
use crate::combiner::cell::{self, Cell, CellContext};
use crate::lanes::Payload;
use crate::outcome::Outcome;
use crate::packet::Packet;
use crate::root::admission::{self as root, Members};
use crate::wire::header::{Header, Kind, Op};
use crate::wire::ports::{port_for_all, rank_port};
use crate::wire::share::Share;
use crate::{EVERYONE, LANES_PER_BLOCK, RANKS_PER_GROUP};

/// Storage of a combiner: BPF maps in the kernel, vectors on a host.
pub trait Cells: Members {
    /// Bitmap of the ranks of a group that are below the combiner; the group is `first / 32`.
    fn below(&self, job: u16, group: u16) -> u32;
    /// The port at which the combiner serves the ranks of a job below it.
    fn data_port(&self, job: u16) -> u16;
    /// The time, and how long cells hold values at the moment, in the same unit.
    fn clock(&self) -> (u32, u32);
    /// Runs `f` on the cell of this packet's key ([`cell::cell_of`]), under its lock. Returns
    /// [`Outcome::SlotBusy`] if the lock stays taken.
    fn with_cell(&self, header: &Header, f: impl FnOnce(&mut Cell) -> Outcome) -> Outcome;
    /// Rule 27.11: makes a packet of what the locked cell holds ([`cell::flush`]), to leave
    /// ahead of the one that is served. Who cannot send two packets for one forgets it (rule
    /// 27.12).
    #[inline(always)]
    fn flush(&self, cell: &mut Cell) {
        cell.head.forget();
    }
}

/// Admits a CONTRIBUTION or a PARTIAL: bitmap of the ranks of its group that are below. Otherwise
/// what becomes of the packet.
#[inline(always)]
pub(crate) fn admit<T: Cells, P: Payload + ?Sized>(
    tables: &T,
    binding: &Binding,
    packet: &Packet<'_, P>,
) -> Result<u32, Outcome> {
    let header = &*packet.header;
    match header.validate(packet.len) {
        Ok((Kind::Contribution | Kind::Partial, _)) => {}
        Ok((Kind::Hello, _)) => return Err(hello(tables, binding, header)),
        Ok(_) => return Err(Outcome::BadKind),
        Err(malformed) => return Err(malformed.into()),
    }
    let job = tables.job(header.job.get()).ok_or(Outcome::UnknownJob)?;
    root::admit(tables, &job, binding, header, |_| has_no_tag(header))?;
    let below = ranks_below(tables, header).ok_or(Outcome::BadRank)?;
    // Before anything is touched: a cell must not take in half a packet.
    let blocks = usize::from(header.payload_lanes()) / LANES_PER_BLOCK;
    if blocks > 0 && packet.payload.block(blocks - 1).is_none() {
        return Err(Outcome::Truncated);
    }
    // Rule 27.1: the root refuses it.
    if job.state == ABORTED {
        return Err(Outcome::Passed);
    }
    Ok(below)
}

/// Serves an admitted CONTRIBUTION or PARTIAL, given the ranks of its group that are below. After
/// an outcome whose action is Up, header and payload are those of the packet that goes to the
/// parent.
#[inline(always)]
pub(crate) fn combine<T: Cells, P: Payload + ?Sized>(
    tables: &T,
    below: u32,
    packet: &mut Packet<'_, P>,
) -> Outcome {
    let Some(op) = Op::of(packet.header.op) else { return Outcome::BadOp };
    let (now, hold_time) = tables.clock();
    let context = CellContext { below, now, hold_time };
    let key = *packet.header;
    tables.with_cell(&key, |cell| {
        let outcome = cell::combine(cell, &context, op, packet);
        if outcome == Outcome::Flushed {
            tables.flush(cell);
        }
        outcome
    })
}

/// Judges one packet that came to this port of the combiner: not the one that ranks below send to,
/// unless the packet is from the parent. `payload_len` bytes follow the header.
#[inline(always)]
pub(crate) fn down<T: Cells>(
    tables: &T,
    binding: &Binding,
    port: u16,
    header: &Header,
    payload_len: usize,
) -> Outcome {
    match header.validate(payload_len) {
        Ok((Kind::Result | Kind::Pending | Kind::Reject | Kind::Room | Kind::Hello, _)) => {}
        Ok(_) => return Outcome::BadKind,
        Err(malformed) => return malformed.into(),
    }
    let number = header.job.get();
    let Some(job) = tables.job(number) else {
        return Outcome::UnknownJob;
    };
    if let Err(outcome) = root::is_of_session(&job, header) {
        return outcome;
    }
    if let Err(outcome) = has_no_tag(header) {
        return outcome;
    }
    let Some((parent, _)) = tables.parent(number) else {
        return Outcome::UnknownJob;
    };
    if !is_from(binding, &parent) {
        return Outcome::WrongPlace;
    }
    let (rank, base) = (header.rank.get(), tables.data_port(number));
    if rank == EVERYONE && header.kind == Kind::Result as u8 {
        return if port == port_for_all(base, number) {
            Outcome::ToAll
        } else {
            Outcome::WrongPlace
        };
    }
    if u32::from(rank) >= job.ranks || ranks_below(tables, header).is_none() {
        return Outcome::BadRank;
    }
    if port != rank_port(base, number, rank) {
        return Outcome::WrongPlace;
    }
    if tables.home(number, rank).is_some() { Outcome::ToRank } else { Outcome::NoHello }
}

/// Rule 27.4: whether a packet comes from the parent. A router's MAC may change.
#[inline(always)]
pub(crate) fn is_from(binding: &Binding, parent: &Binding) -> bool {
    binding.ip == parent.ip && binding.port == parent.port && binding.ifindex == parent.ifindex
}

/// Rule 28.6: a combiner has no keys, and sends on lanes alone.
#[inline(always)]
fn has_no_tag(header: &Header) -> Result<(), Outcome> {
    if header.tag_len() == 0 { Ok(()) } else { Err(Outcome::BadTag) }
}

/// Rule 27.3: binds the rank, as an aggregator does; the HELLO goes on.
#[inline(always)]
fn hello<T: Cells>(tables: &T, binding: &Binding, header: &Header) -> Outcome {
    if ranks_below(tables, header).is_none() {
        return Outcome::BadRank;
    }
    match root::hello(tables, binding, header, |_, _| has_no_tag(header)) {
        Outcome::Hello if !header.is_for_group() => Outcome::HelloPassed,
        outcome => outcome,
    }
}

/// Bitmap of the ranks of a packet's group that are below, if the packet stands for no others.
#[inline(always)]
fn ranks_below<T: Cells>(tables: &T, header: &Header) -> Option<u32> {
    let (first, ranks) = Share::of(header).in_group();
    let below = tables.below(header.job.get(), first / RANKS_PER_GROUP);
    if ranks & !below == 0 { Some(below) } else { None }
}
