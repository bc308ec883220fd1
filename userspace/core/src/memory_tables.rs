//! Jobs, members and slots in this process's memory, and packets served from them: the data plane
//! without its I/O.

use std::convert::Infallible;
use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use switchml_protocol::aggregator::{Members, Tables};
use switchml_protocol::fanout::{self, Way};
use switchml_protocol::header::{HEADER_LEN, Header};
use switchml_protocol::job::{Binding, JobEntry, MemberEntry, OPEN, VACANT};
use switchml_protocol::maps::{Event, MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::shell::{self, Origin};
use switchml_protocol::slot::Slot;
use switchml_protocol::{MAX_RANKS, RANKS_PER_GROUP, U16, U32};
use zerocopy::FromBytes;

use crate::job_spec::JobSpec;
use crate::oldest_round::{Progress, newest, progress};

/// The tables that the XDP program has in its maps, in this process's memory.
pub struct MemoryTables {
    jobs: Box<[RwLock<Entry>]>,
    slots: Box<[OnceLock<Slots>]>,
}

/// The slots of a shard, allocated when they are first needed.
type Slots = Box<[Mutex<Slot>]>;

#[derive(Default)]
struct Entry {
    job: JobEntry,
    /// The members, by rank.
    members: Vec<MemberEntry>,
    /// The destinations of RESULTs to all, and the ranks that each is for
    /// ([`fanout::Receivers::ranks`]).
    places: Vec<(Binding, u64)>,
    /// For a combiner's job: its parent, and bitmaps of the ranks below, by group.
    parent: Option<Binding>,
    below: [u32; GROUPS],
}

/// Groups of the largest job.
const GROUPS: usize = MAX_RANKS.div_ceil(RANKS_PER_GROUP as usize);

impl Default for MemoryTables {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryTables {
    /// No jobs, and no slots.
    pub fn new() -> Self {
        let vacant = || RwLock::new(Entry::default());
        Self {
            jobs: (0..MAX_SHARDS).map(|_| vacant()).collect(),
            slots: (0..MAX_SHARDS).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Puts a job into the table; its ranks have yet to say HELLO. Does nothing if there is no such
    /// number.
    pub fn open(&self, job: &JobSpec) {
        // A combiner has no slots.
        let used = if job.parent.is_none() { job.slots.clone() } else { 0..0 };
        for index in used.clone().step_by(SLOTS_PER_SHARD).chain(used.last()) {
            if let Some(slots) = self.slots.get(index as usize / SLOTS_PER_SHARD) {
                slots.get_or_init(|| (0..SLOTS_PER_SHARD).map(|_| Mutex::default()).collect());
            }
        }
        if let Some(mut entry) = self.write(job.number) {
            entry.job = job.entry(OPEN);
            entry.places.clear();
            entry.parent = job.parent.map(|at| Binding {
                ip: at.ip().into(),
                port: U16::new(at.port()),
                ..Binding::default()
            });
            entry.below = [0; GROUPS];
            entry.members = job.members().collect();
        }
    }

    /// Adds a rank below to a combiner's job; it has yet to say HELLO. Does nothing if the rank is
    /// known.
    pub fn admit(&self, number: u16, rank: u16, secret: u32) {
        let Some(mut entry) = self.write(number) else { return };
        let (group, bit) = (usize::from(rank / RANKS_PER_GROUP), 1 << (rank % RANKS_PER_GROUP));
        let Some(below) = entry.below.get_mut(group).filter(|below| **below & bit == 0) else {
            return;
        };
        *below |= bit;
        if let Some(member) = entry.members.get_mut(usize::from(rank)) {
            *member = MemberEntry { secret, ..MemberEntry::default() };
        }
    }

    /// The parent of a combiner's job.
    pub fn parent(&self, number: u16) -> Option<Binding> {
        self.read(number)?.parent
    }

    /// Bitmap of the ranks of a group that are below.
    pub fn below(&self, number: u16, group: u16) -> u32 {
        let entry = self.read(number);
        entry.and_then(|entry| entry.below.get(usize::from(group)).copied()).unwrap_or_default()
    }

    /// Sets how these ranks of a job get RESULTs to all, as far as they have said HELLO.
    pub fn start(&self, number: u16, ways: &[(u16, Way)]) {
        let Some(mut entry) = self.write(number) else { return };
        let Entry { job, members, places, .. } = &mut *entry;
        places.clear();
        for &(rank, way) in ways {
            let Some(member) = members.get(usize::from(rank)) else { continue };
            let place = fanout::place(job, number, (rank, member.binding, way));
            if member.epoch != job.epoch {
                continue;
            }
            match places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, ranks)) => *ranks |= fanout::bit(rank),
                None => places.push((place, fanout::bit(rank))),
            }
        }
    }

    /// The job, where copies of its RESULTs to all go, and the ranks that each is for.
    pub fn places(&self, number: u16) -> Option<(JobEntry, Vec<(Binding, u64)>)> {
        self.read(number).map(|entry| (entry.job, entry.places.clone()))
    }

    /// The progress of an open shard.
    pub fn progress(&self, number: u16) -> Option<Progress> {
        let job = self.job(number).filter(|job| job.state == OPEN)?;
        let look = |slot: u32| {
            let slot = self.lock_slot(job.first_slot + slot);
            Ok::<_, Infallible>(slot.and_then(|slot| newest(&job, &slot)))
        };
        let Ok(found) = progress(job.slots, look);
        Some(found)
    }

    /// Changes the state of a job, unless it is vacant.
    pub fn set_state(&self, number: u16, state: u32) {
        if let Some(mut entry) = self.write(number).filter(|entry| entry.job.state != VACANT) {
            entry.job.state = state;
        }
    }

    /// The place from which a rank of the job said HELLO, if it did.
    pub fn binding(&self, job: u16, rank: u16) -> Option<Binding> {
        let known = self
            .job(job)
            .zip(self.member(job, rank))
            .filter(|(job, member)| job.epoch == member.epoch);
        known.map(|(_, member)| member.binding)
    }

    /// Serves a datagram, and tells `report` of it if it is notable. If the outcome is answered,
    /// [`answer`] finds the answer in the datagram.
    pub fn serve(
        &self,
        datagram: &mut [u8],
        origin: &Origin,
        report: impl FnOnce(Event),
    ) -> Outcome {
        let Ok((header, rest)) = Header::mut_from_prefix(datagram) else {
            return Outcome::Truncated;
        };
        let payload_len = rest.len();
        // Bytes after the last whole lane make the length wrong, which serve() finds out.
        let Ok((payload, _)) = <[U32]>::mut_from_prefix_with_elems(rest, payload_len / 4) else {
            return Outcome::Truncated;
        };
        shell::serve(self, origin, header, payload, payload_len, report)
    }

    /// The job, and the places of its ranks that are known.
    pub fn audience(&self, number: u16) -> Option<(JobEntry, Vec<Binding>)> {
        let entry = self.read(number)?;
        let job = entry.job;
        let known = entry
            .members
            .iter()
            .take(job.ranks as usize)
            .filter(|member| member.epoch == job.epoch);
        Some((job, known.map(|member| member.binding).collect()))
    }

    // A thread that panicked left plain numbers behind, nothing half built: the locks' poison says
    // nothing.

    fn read(&self, number: u16) -> Option<RwLockReadGuard<'_, Entry>> {
        Some(self.jobs.get(usize::from(number))?.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, number: u16) -> Option<RwLockWriteGuard<'_, Entry>> {
        Some(self.jobs.get(usize::from(number))?.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock_slot(&self, index: u32) -> Option<MutexGuard<'_, Slot>> {
        let slots = self.slots.get(index as usize / SLOTS_PER_SHARD)?.get()?;
        Some(
            slots
                .get(index as usize % SLOTS_PER_SHARD)?
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

/// The answer that [`MemoryTables::serve`] made of a datagram.
pub fn answer(datagram: &[u8]) -> Option<&[u8]> {
    let (header, _) = Header::ref_from_prefix(datagram).ok()?;
    datagram.get(..HEADER_LEN + 4 * usize::from(header.payload_lanes()) + header.tag_len())
}

impl Members for MemoryTables {
    fn job(&self, number: u16) -> Option<JobEntry> {
        Some(self.read(number)?.job)
    }

    fn member(&self, job: u16, rank: u16) -> Option<MemberEntry> {
        self.read(job)?.members.get(usize::from(rank)).copied()
    }

    fn learn(&self, job: u16, rank: u16, epoch: u32, binding: &Binding) {
        let Some(mut entry) = self.write(job) else { return };
        if let Some(member) = entry.members.get_mut(usize::from(rank)) {
            member.epoch = epoch;
            member.binding = *binding;
        }
    }
}

impl Tables for MemoryTables {
    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome {
        match self.lock_slot(index) {
            Some(mut slot) => f(&mut slot),
            None => Outcome::BadSlot,
        }
    }
}
