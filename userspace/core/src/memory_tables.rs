//! Jobs, members and slots in this process's memory, and packets served from them: the data plane
//! without its I/O.

use std::convert::Infallible;
use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use switchml_protocol::U16;
use switchml_protocol::bpf_types::fanout::{self, Way};
use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry, OPEN, VACANT};
use switchml_protocol::bpf_types::maps::{MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::node::{self, Medium, Served};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet::Packet;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::root::admission::{Members, Tables};
use switchml_protocol::root::done::Done;
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::header::{HEADER_LEN, Header};
use switchml_protocol::wire::ip::Ip;
use zerocopy::{FromBytes, IntoBytes};

use crate::job_spec::JobSpec;
use crate::oldest_round::{Alike, Newest, Progress, all_unfinished, newest, progress};

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
    /// For a combiner's job: its parent, and the ranks below.
    parent: Option<Binding>,
    below: Ranks,
}

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
            entry.below = Ranks::NONE;
            entry.members = job.members().collect();
        }
    }

    /// Adds a rank below to a combiner's job; it has yet to say HELLO. Does nothing if the rank is
    /// known.
    pub fn admit(&self, number: u16, rank: u16, secret: u32) {
        let Some(mut entry) = self.write(number) else { return };
        if entry.below.contains(rank) {
            return;
        }
        entry.below.insert(rank);
        if let Some(member) = entry.members.get_mut(usize::from(rank)) {
            *member = MemberEntry { secret, ..MemberEntry::default() };
        }
    }

    /// Bitmap of the ranks of a group that are below.
    pub fn below(&self, number: u16, group: u16) -> u32 {
        self.read(number).map_or(0, |entry| entry.below.group(group.into()))
    }

    /// Sets how these ranks of a job get RESULTs to all, as far as they have said HELLO.
    pub fn start(&self, number: u16, ways: &[(u16, Way)]) {
        let Some(mut entry) = self.write(number) else { return };
        let Entry { job, members, places, .. } = &mut *entry;
        places.clear();
        for &(rank, way) in ways {
            let Some(member) = members.get(usize::from(way.home(rank))) else { continue };
            let Some(home) = member.home(job.epoch) else { continue };
            let place = fanout::place(job, number, (rank, home, way));
            let known = places.iter_mut().map(|(known, ranks)| (&*known, ranks));
            if !fanout::joins(known, &place, rank) {
                places.push((place, fanout::bit(rank)));
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
        let Ok(found) = progress(job.slots, |slot| self.look(&job, slot));
        Some(found)
    }

    /// The slots of a shard with unfinished rounds, the oldest round first; none if it is not open.
    pub fn unfinished(&self, number: u16) -> Vec<Alike> {
        let Some(job) = self.job(number).filter(|job| job.state == OPEN) else { return Vec::new() };
        let Ok(found) = all_unfinished(job.slots, |slot| self.look(&job, slot));
        found
    }

    /// The newest round of one of a job's slots.
    fn look(&self, job: &JobEntry, slot: u32) -> Result<Option<Newest>, Infallible> {
        let slot = self.lock_slot(job.first_slot + slot);
        Ok(slot.and_then(|slot| newest(job, &slot)))
    }

    /// Changes the state of a job, unless it is vacant.
    pub fn set_state(&self, number: u16, state: u32) {
        if let Some(mut entry) = self.write(number).filter(|entry| entry.job.state != VACANT) {
            entry.job.state = state;
        }
    }

    /// Serves a datagram as a root. If it goes anywhere, it holds an [`answer`].
    pub fn serve(&self, medium: &impl Medium, datagram: &mut [u8], origin: &Origin) -> Served {
        match Packet::of(datagram) {
            Some(mut packet) => node::serve(self, medium, origin, &mut packet),
            None => Served::unanswered(Outcome::Truncated),
        }
    }

    /// The job, and the places of its ranks that are known.
    pub fn audience(&self, number: u16) -> Option<(JobEntry, Vec<Binding>)> {
        let entry = self.read(number)?;
        let job = entry.job;
        let members = entry.members.iter().take(job.ranks as usize);
        Some((job, members.filter_map(|member| member.home(job.epoch)).collect()))
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

/// The packet that a served datagram has become.
pub fn answer(datagram: &[u8]) -> Option<&[u8]> {
    let (header, _) = Header::ref_from_prefix(datagram).ok()?;
    datagram.get(..HEADER_LEN + 4 * usize::from(header.payload_lanes()) + header.tag_len())
}

/// Rule 9.4: the DONE of these RESULTs to all, if they are all of one call.
pub fn done_of<'a>(results: impl Iterator<Item = &'a [u8]>) -> Option<(Done, Vec<u8>)> {
    let mut done = None;
    let mut packet = vec![0; HEADER_LEN];
    for result in results {
        let (result, _) = Header::ref_from_prefix(result).ok()?;
        let done = match &mut done {
            Some(done) => done,
            none => none.insert(Done::of(result)?),
        };
        packet.extend_from_slice(&done.add(result)?.to_be_bytes());
    }
    packet[..HEADER_LEN].copy_from_slice(done?.header().as_bytes());
    Some((done?, packet))
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

    fn parent(&self, job: u16) -> Option<(Binding, Ip)> {
        Some((self.read(job)?.parent?, Ip::default()))
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
