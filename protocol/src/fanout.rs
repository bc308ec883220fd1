//! Whom a job's RESULTs to all go to.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::MAX_RANKS;
use crate::job::{Binding, JobEntry};

/// The copies of each RESULT to all: one for a port to the group, or one for a rank. A value of a
/// BPF map, laid out as those of [`crate::job`].
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Receivers {
    /// The session's epoch.
    pub epoch: u32,
    /// 1 if the copies differ in their addresses; 0 if all go to the group.
    pub differ: u32,
    /// By which port each leaves, and where to; up to the first without a port.
    pub places: [Binding; MAX_RANKS],
}

const _: () = assert!(size_of::<Receivers>() == 8 + 16 * MAX_RANKS);

impl Receivers {
    /// Rule 5.2: the ranks of `by_group` share a copy to the group for each port, the others get
    /// their own. `members` has where each rank lives, by rank.
    pub fn new(job: &JobEntry, members: &[Binding], by_group: u64) -> Self {
        let none = Binding::default();
        let mut this = Self { epoch: job.epoch, differ: 0, places: [none; MAX_RANKS] };
        let has_group = |rank: usize| by_group >> rank & 1 == 1;
        let mut len = 0;
        for (rank, member) in members.iter().enumerate().take(MAX_RANKS) {
            let place = if has_group(rank) { job.group_at(member.ifindex) } else { *member };
            if !this.places[..len].contains(&place) {
                this.places[len] = place;
                len += 1;
            }
            this.differ |= u32::from(!has_group(rank));
        }
        this
    }

    /// The places, without those that are not used.
    #[inline(always)]
    pub fn used(&self) -> impl Iterator<Item = &Binding> {
        self.places.iter().take_while(|place| place.ifindex != 0)
    }
}
