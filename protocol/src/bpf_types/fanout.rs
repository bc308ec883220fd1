//! The places that a job's RESULTs to all go to.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::U16;
use crate::bpf_types::job::{Binding, JobEntry};
use crate::ranks::Ranks;
use crate::wire::ports::{base_of, port_for_all};

/// Most copies of a RESULT to all.
pub const MAX_PLACES: usize = 64;

/// How a rank gets RESULTs to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By multicast, to the job's group.
    Group,
    /// By a unicast copy.
    Copy,
    /// By its combiner, which gets one copy for all ranks below it.
    Combiner,
    /// By the copy of this rank, which shares memory with it (rule 38.2).
    With(u16),
}

/// How ranks 0, 1, …, which live at `members` and not behind a combiner, get RESULTs: the ranks of
/// `by_group` by their group, others by a copy.
pub fn direct(members: &[Binding], by_group: &Ranks) -> impl Iterator<Item = (u16, Binding, Way)> {
    let way = |rank| if by_group.contains(rank) { Way::Group } else { Way::Copy };
    (0..).zip(members).map(move |(rank, member)| (rank, *member, way(rank)))
}

impl Way {
    /// The rank whose home the copies for `rank` go to.
    pub const fn home(self, rank: u16) -> u16 {
        match self {
            Self::With(taker) => taker,
            Self::Group | Self::Copy | Self::Combiner => rank,
        }
    }
}

/// The destination of a rank's copy, in the job with this number. `member` is where the rank lives,
/// or the one whose copy is for both ([`Way::home`]).
pub const fn place(
    job: &JobEntry,
    number: u16,
    (rank, member, way): (u16, Binding, Way),
) -> Binding {
    match way {
        Way::Group => job.group_at(member.ifindex),
        Way::Copy | Way::With(_) => member,
        Way::Combiner => {
            let base = base_of(member.port.get(), number, rank);
            Binding { port: U16::new(port_for_all(base, number)), ..member }
        }
    }
}

/// The copies of each RESULT to all: one for a port to the group, or one for a rank. A value of a
/// BPF map, laid out as those of [`crate::bpf_types::job`].
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Receivers {
    /// The session's epoch.
    pub epoch: u32,
    /// 1 if the copies differ in their addresses; 0 if all go to the group.
    pub differ: u16,
    /// 1 if some go to queue pairs of RoCEv2.
    pub by_roce: u16,
    /// The port by which each copy leaves, and its destination; up to the first without a port.
    pub places: [Binding; MAX_PLACES],
    /// The ranks that each copy is for, of the first 64: bit r is rank r.
    pub ranks: [u64; MAX_PLACES],
}

const _: () = assert!(size_of::<Receivers>() == 8 + (32 + 8) * MAX_PLACES);

/// A rank in a bitmap of the first 64; 0 for any other rank.
pub const fn bit(rank: u16) -> u64 {
    if rank < 64 { 1 << rank } else { 0 }
}

/// Adds a rank to the one of the known places, with the ranks of each, that is its own. Whether
/// there is one.
pub fn joins<'a>(
    mut known: impl Iterator<Item = (&'a Binding, &'a mut u64)>,
    place: &Binding,
    rank: u16,
) -> bool {
    let found = known.find(|(known, _)| *known == place);
    found.map(|(_, ranks)| *ranks |= bit(rank)).is_some()
}

impl Receivers {
    /// Rules 5.2 and 5.3, for the job with this number. `members` says of each rank where it lives
    /// and how it gets RESULTs to all. `None` if that takes more than [`MAX_PLACES`] copies.
    pub fn new(
        job: &JobEntry,
        number: u16,
        members: impl IntoIterator<Item = (u16, Binding, Way)>,
    ) -> Option<Self> {
        let none = Binding::default();
        let (places, ranks) = ([none; MAX_PLACES], [0; MAX_PLACES]);
        let mut this = Self { epoch: job.epoch, differ: 0, by_roce: 0, places, ranks };
        let mut len = 0;
        for member in members {
            let place = place(job, number, member);
            this.differ |= u16::from(member.2 != Way::Group);
            this.by_roce |= u16::from(place.is_queue_pair());
            let known = this.places.iter().zip(&mut this.ranks).take(len);
            if !joins(known, &place, member.0) {
                *this.places.get_mut(len)? = place;
                this.ranks[len] = bit(member.0);
                len += 1;
            }
        }
        Some(this)
    }

    /// The places, without the unused ones.
    #[inline(always)]
    pub fn used(&self) -> impl Iterator<Item = &Binding> {
        self.places.iter().take_while(|place| place.ifindex != 0)
    }
}
