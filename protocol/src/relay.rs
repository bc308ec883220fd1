//! What a combiner decides on one packet, from below or from its parent: section 27 of
//! `docs/spec`. [`combiner`] does the adding up, [`crate::node`] is what media call.

use core::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::aggregator::{self, Members};
use crate::combiner::{self, Cell, Fate, Surroundings};
use crate::header::{Header, Kind, Op};
use crate::ip::Ip;
use crate::job::{ABORTED, Binding};
use crate::lanes::Payload;
use crate::outcome::Outcome;
use crate::ranks::{GROUPS, Ranks};
use crate::share::Share;
use crate::{EVERYONE, LANES_PER_BLOCK, RANKS_PER_GROUP, U16};

/// Ports from which a combiner sends ranks' packets; the ports of jobs follow them.
const RANK_PORTS: u16 = 1024;
/// The distance between the ports of the same rank in successive jobs: the most ranks below a
/// combiner. Hosts on the path merge packets between the same ports, which does not help if the
/// jobs differ.
const PORTS_PER_JOB: u16 = 64;

/// A job's link to the combiner's parent. A value of a BPF map, laid out as those of
/// [`crate::job`].
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Uplink {
    /// The session's epoch.
    pub epoch: u32,
    /// The combiner's own data port, at which it serves what is below.
    pub port: U16,
    /// The combiner's MAC towards its parent.
    pub mac: [u8; 6],
    /// The number of the combiner's cells.
    pub cells: u32,
    /// The combiner's address towards its parent.
    pub address: Ip,
    /// The parent's address and data port, and how frames get there: interface, MAC of the next
    /// hop, VLAN.
    pub parent: Binding,
    /// The ranks that are below.
    pub below: Ranks,
}

impl Uplink {
    /// The entry of a number that no job has.
    pub const NONE: Self = Self {
        epoch: 0,
        port: U16::ZERO,
        mac: [0; 6],
        cells: 0,
        address: Ip([0; 16]),
        parent: Binding {
            ip: Ip([0; 16]),
            ifindex: 0,
            mac: [0; 6],
            port: U16::ZERO,
            vlan: 0,
            roce: [0; 2],
        },
        below: Ranks::NONE,
    };
}

const _: () = assert!(size_of::<Uplink>() == 64 + 4 * GROUPS);

/// Storage of a combiner: BPF maps in the kernel, vectors on a host.
pub trait Cells: Members {
    /// A job's parent; `None` of a job without one.
    fn parent(&self, job: u16) -> Option<Binding>;
    /// Bitmap of the ranks of a group that are below the combiner; the group is `first / 32`.
    fn below(&self, job: u16, group: u16) -> u32;
    /// The port at which the combiner serves the ranks of a job below it.
    fn data_port(&self, job: u16) -> u16;
    /// The time and the patience of the moment, in the same unit.
    fn clock(&self) -> (u32, u32);
    /// Runs `f` on the cell of this packet's key ([`combiner::cell_of`]), under its lock. Returns
    /// [`Outcome::SlotBusy`] if the lock stays taken.
    fn with_cell(&self, header: &Header, f: impl FnOnce(&mut Cell) -> Outcome) -> Outcome;
    /// Rule 27.11: makes a packet of what the locked cell holds ([`combiner::flush`]), to leave
    /// ahead of the one that is served. Who cannot send two packets for one forgets it (rule
    /// 27.12).
    #[inline(always)]
    fn flush(&self, cell: &mut Cell) {
        cell.head.forget();
    }
}

/// Rule 27.2: the port from which a combiner with this data port sends a rank's packets.
#[inline(always)]
pub const fn rank_port(base: u16, job: u16, rank: u16) -> u16 {
    base.wrapping_add(1 + place(job, rank))
}

/// Rule 27.2: the port at which a combiner with this data port takes a job's RESULTs to all.
#[inline(always)]
pub const fn port_for_all(base: u16, job: u16) -> u16 {
    base.wrapping_add(1 + RANK_PORTS).wrapping_add(job)
}

/// The data port of the combiner that sends a rank's packets, computed from their source port.
#[inline(always)]
pub const fn base_of(rank_port: u16, job: u16, rank: u16) -> u16 {
    rank_port.wrapping_sub(1 + place(job, rank))
}

#[inline(always)]
const fn place(job: u16, rank: u16) -> u16 {
    rank.wrapping_add(job.wrapping_mul(PORTS_PER_JOB)) % RANK_PORTS
}

/// Admits a CONTRIBUTION or a PARTIAL: bitmap of the ranks of its group that are below. Otherwise
/// what becomes of the packet.
#[inline(always)]
pub(crate) fn admit<T: Cells, P: Payload + ?Sized>(
    tables: &T,
    binding: &Binding,
    header: &Header,
    payload: &P,
    payload_len: usize,
) -> Result<u32, Outcome> {
    match header.validate(payload_len) {
        Ok((Kind::Contribution | Kind::Partial, _)) => {}
        Ok((Kind::Hello, _)) => return Err(hello(tables, binding, header)),
        Ok(_) => return Err(Outcome::BadKind),
        Err(malformed) => return Err(malformed.into()),
    }
    let job = tables.job(header.job.get()).ok_or(Outcome::UnknownJob)?;
    aggregator::admit(tables, &job, binding, header, |_| has_no_tag(header))?;
    let below = ranks_below(tables, header).ok_or(Outcome::BadRank)?;
    // Before anything is touched: a cell must not take in half a packet.
    let blocks = usize::from(header.payload_lanes()) / LANES_PER_BLOCK;
    if blocks > 0 && payload.block(blocks - 1).is_none() {
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
    header: &mut Header,
    payload: &mut P,
) -> Outcome {
    let Some(op) = Op::of(header.op) else { return Outcome::BadOp };
    let (now, patience) = tables.clock();
    let around = Surroundings { below, now, patience };
    let key = *header;
    tables.with_cell(&key, |cell| match combiner::combine(cell, &around, op, header, payload) {
        Fate::Held => Outcome::Held,
        Fate::Combined => Outcome::Combined,
        Fate::Evicted => Outcome::Evicted,
        Fate::Passed => Outcome::Passed,
        Fate::Flushes => {
            tables.flush(cell);
            Outcome::Flushed
        }
        Fate::Duplicate => Outcome::Duplicate,
        Fate::Refused(outcome) => outcome,
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
    if let Err(outcome) = aggregator::is_of_session(&job, header) {
        return outcome;
    }
    if let Err(outcome) = has_no_tag(header) {
        return outcome;
    }
    let Some(parent) = tables.parent(number) else {
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
    match aggregator::hello(tables, binding, header, |_, _| has_no_tag(header)) {
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
