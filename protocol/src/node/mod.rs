//! What becomes of a packet at a node, from its header to where it goes: the same for a root and a
//! combiner, and for every medium that carries packets.
//!
//! A medium finds out which frames are for the node ([`ingress`]) or has a socket that does. It
//! calls [`serve`] at a root, [`up`] and [`down`] at a combiner, and sends the packet, which is the
//! answer then, the way of its [`Target`] that [`egress::route`] says.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`frame`] | Ethernet, IP and UDP around a packet, for data planes that see whole frames |
//! | [`roce`] | a packet as a message of RDMA |
//! | [`ingress`] | whose frames are served |
//! | [`egress`] | where the copies of a served packet go |

pub mod egress;
pub mod frame;
pub mod ingress;
pub mod roce;

use crate::bpf_types::maps::Event;
use crate::combiner::admission::{self as combiner, Cells};
use crate::lanes::Payload;
use crate::outcome::{Action, Outcome};
use crate::packet::Packet;
use crate::root::admission::{self as root, Tables};
use crate::wire::header::{Header, flags};
use crate::wire::ports::rank_port;
use crate::wire::share::Share;
use ingress::Origin;

/// What a node asks of the medium that carries its packets. `()` has no groups and no operators.
pub trait Medium {
    /// Rule 7.8: whether it can send to a job's group.
    #[inline(always)]
    fn has_groups(&self) -> bool {
        false
    }

    /// Rule 24.15: whether this packet is to be lost. Asked once for each packet, before any other
    /// rule looks at it, and on its way in alone: what leaves may be many copies, which each medium
    /// makes in its own way.
    #[inline(always)]
    fn loses(&self) -> bool {
        false
    }

    /// Tells operators of a notable packet.
    #[inline(always)]
    fn report(&self, _event: Event) {}

    /// Writes a line on a packet, where packets are traced.
    #[inline(always)]
    fn trace(&self, _packet: &Traced, _outcome: Outcome) {}
}

impl Medium for () {}

/// The fields that identify a packet, noted before its answer overwrites it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Job, rank and slot, from bit 32 on.
    pub place: u64,
    /// The round.
    pub round: u32,
}

impl Traced {
    #[inline(always)]
    fn new(header: &Header) -> Self {
        let [job, rank, slot] =
            [header.job, header.rank, header.slot].map(|it| u64::from(it.get()));
        Self { place: job << 32 | rank << 16 | slot, round: header.round.get() }
    }
}

/// Where a packet goes, which has been served in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nowhere.
    Nobody,
    /// To the host's network stack: it is not for the node, and as it came.
    Host,
    /// Back to where it came from.
    Sender,
    /// To the job's group, by the port that it came in by (rule 7.8).
    SendersGroup,
    /// To all places of the job (rules 5.2 and 5.3).
    All,
    /// To the parent of this job, from this port (rule 27.2).
    Parent {
        /// The job.
        job: u16,
        /// The node's UDP port.
        from_port: u16,
    },
    /// To where the rank in its header lives ([`crate::root::admission::Members::home`]).
    Rank,
}

/// What became of a packet, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// What became of it.
    pub outcome: Outcome,
    /// Where it goes.
    pub target: Target,
}

impl Served {
    /// A packet, or a frame without one, that has no answer.
    #[inline(always)]
    pub const fn unanswered(outcome: Outcome) -> Self {
        let target = match outcome.action() {
            Action::Pass => Target::Host,
            _ => Target::Nobody,
        };
        Self { outcome, target }
    }

    /// What [`admit`] returns, in one word; [`Self::or_admitted`] reads it.
    #[inline(always)]
    pub const fn word_of(admitted: Result<u32, Self>) -> u64 {
        match admitted {
            Ok(below) => 1 << 48 | below as u64,
            Err(served) => served.to_word(),
        }
    }

    /// What became of a packet, unless it has been admitted: then the ranks that are below.
    #[inline(always)]
    pub const fn or_admitted(word: u64) -> Result<u32, Self> {
        if word >> 48 == 0 { Err(Self::from_word(word)) } else { Ok(word as u32) }
    }

    /// In one word, as BPF functions return it; below 2^48.
    #[inline(always)]
    pub const fn to_word(self) -> u64 {
        let (target, job, port) = match self.target {
            Target::Nobody => (0, 0, 0),
            Target::Host => (1, 0, 0),
            Target::Sender => (2, 0, 0),
            Target::SendersGroup => (3, 0, 0),
            Target::All => (4, 0, 0),
            Target::Rank => (5, 0, 0),
            Target::Parent { job, from_port } => (6, job, from_port),
        };
        (job as u64) << 32 | (port as u64) << 16 | target << 8 | self.outcome as u64
    }

    /// What was in the word.
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        let target = match (word >> 8) as u8 {
            1 => Target::Host,
            2 => Target::Sender,
            3 => Target::SendersGroup,
            4 => Target::All,
            5 => Target::Rank,
            6 => Target::Parent { job: (word >> 32) as u16, from_port: (word >> 16) as u16 },
            _ => Target::Nobody,
        };
        let outcome = match Outcome::from_number(word as u8) {
            Some(outcome) => outcome,
            None => Outcome::SlotBusy,
        };
        Self { outcome, target }
    }
}

/// Serves one packet at a root. If it goes anywhere, it is the answer, with
/// [`Header::payload_lanes`] words of payload.
#[inline(always)]
pub fn serve<T: Tables, M: Medium, P: Payload + ?Sized>(
    tables: &T,
    medium: &M,
    origin: &Origin,
    packet: &mut Packet<'_, P>,
) -> Served {
    let traced = take(origin, packet.header);
    let outcome = match medium.loses() {
        true => Outcome::LostForTests,
        false => root::serve(tables, &origin.binding, packet),
    };
    answer(medium, origin, &traced, packet.header, outcome)
}

/// Serves one packet from below at a combiner: [`admit`] and [`combine`] in one.
#[inline(always)]
pub fn up<T: Cells, M: Medium, P: Payload + ?Sized>(
    cells: &T,
    medium: &M,
    origin: &Origin,
    packet: &mut Packet<'_, P>,
) -> Served {
    match admit(cells, medium, origin, packet) {
        Ok(below) => combine(cells, medium, below, packet),
        Err(served) => served,
    }
}

/// Admits a packet from below at a combiner: bitmap of the ranks of its group that are below, with
/// which [`combine`] goes on. Otherwise what became of it.
#[inline(always)]
pub fn admit<T: Cells, M: Medium, P: Payload + ?Sized>(
    cells: &T,
    medium: &M,
    origin: &Origin,
    packet: &mut Packet<'_, P>,
) -> Result<u32, Served> {
    let traced = take(origin, packet.header);
    // No closure: one that is not inlined has a name that kernels refuse in a program's types.
    let admitted = match medium.loses() {
        true => Err(Outcome::LostForTests),
        false => combiner::admit(cells, &origin.binding, packet),
    };
    match admitted {
        Ok(below) => Ok(below),
        Err(outcome) => {
            let served = answer(medium, origin, &traced, packet.header, outcome);
            Err(match outcome.action() {
                Action::Up => Served { target: parent(cells, packet.header), ..served },
                _ => served,
            })
        }
    }
}

/// Serves an admitted packet at a combiner. If it goes to the parent, it may be another one now:
/// the partial sum that left in its place, maybe of another job.
#[inline(always)]
pub fn combine<T: Cells, M: Medium, P: Payload + ?Sized>(
    cells: &T,
    medium: &M,
    below: u32,
    packet: &mut Packet<'_, P>,
) -> Served {
    let (traced, parent) = (Traced::new(packet.header), parent(cells, packet.header));
    let outcome = combiner::combine(cells, below, packet);
    medium.trace(&traced, outcome);
    match outcome.action() {
        Action::Up => Served { outcome, target: parent },
        _ => Served::unanswered(outcome),
    }
}

/// Serves one packet at a combiner that came to this port of it, which is none that ranks below
/// send to; or that came from its parent.
#[inline(always)]
pub fn down<T: Cells, M: Medium, P: ?Sized>(
    cells: &T,
    medium: &M,
    origin: &Origin,
    port: u16,
    packet: &mut Packet<'_, P>,
) -> Served {
    let Packet { header, len, .. } = packet;
    let traced = take(origin, header);
    let outcome = match medium.loses() {
        true => Outcome::LostForTests,
        false => combiner::down(cells, &origin.binding, port, header, *len),
    };
    let served = answer(medium, origin, &traced, header, outcome);
    match outcome.action() {
        Action::Down => Served { target: Target::Rank, ..served },
        _ => served,
    }
}

/// Rule 5.5. The packet's fields, before they change.
#[inline(always)]
fn take(origin: &Origin, header: &mut Header) -> Traced {
    if origin.congested {
        header.flags |= flags::CE;
    }
    Traced::new(header)
}

/// Makes known what became of a packet. Where it goes, unless that is a combiner's parent or a rank
/// below it.
#[inline(always)]
fn answer<M: Medium>(
    medium: &M,
    origin: &Origin,
    traced: &Traced,
    header: &mut Header,
    outcome: Outcome,
) -> Served {
    if outcome.is_notable() {
        medium.report(Event::new(outcome, &origin.binding, header));
    }
    medium.trace(traced, outcome);
    let target = match outcome.action() {
        Action::Broadcast => Target::All,
        Action::Reply
            if header.is_for_group() && medium.has_groups() && origin.binding.can_be_in_group() =>
        {
            header.aux.set(0);
            Target::SendersGroup
        }
        Action::Reply => Target::Sender,
        _ => return Served::unanswered(outcome),
    };
    Served { outcome, target }
}

/// Rule 27.2: the way up of this packet, or of one that leaves in its place.
#[inline(always)]
fn parent<T: Cells>(cells: &T, header: &Header) -> Target {
    let (job, rank) = (header.job.get(), Share::of(header).highest());
    Target::Parent { job, from_port: rank_port(cells.data_port(job), job, rank) }
}
