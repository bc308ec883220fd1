//! Jobs, members and slots in this process's memory.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use switchml_protocol::MAX_RANKS;
use switchml_protocol::aggregator::Tables;
use switchml_protocol::job::{Job, Member, Place, VACANT};
use switchml_protocol::maps::MAX_JOBS;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::slot::Slot;

/// What the XDP program has in its maps.
pub struct MemoryTables {
    jobs: Box<[RwLock<Entry>]>,
    slots: Box<[Mutex<Slot>]>,
}

#[derive(Clone)]
struct Entry {
    job: Job,
    members: [Member; MAX_RANKS],
}

impl MemoryTables {
    /// No jobs, and a pool of `slots` slots that were never used.
    pub fn new(slots: u32) -> Self {
        let vacant = || RwLock::new(Entry { job: Job::default(), members: [Member::default(); MAX_RANKS] });
        Self { jobs: (0..MAX_JOBS).map(|_| vacant()).collect(), slots: (0..slots).map(|_| Mutex::default()).collect() }
    }

    /// Puts a job into the table; its ranks have yet to say HELLO. Nothing if there is no such number.
    pub fn open(&self, number: u16, job: Job, secrets: &[u32]) {
        if let Some(mut entry) = self.write(number) {
            entry.job = job;
            for (member, &secret) in entry.members.iter_mut().zip(secrets) {
                *member = Member { secret, ..Member::default() };
            }
        }
    }

    /// Changes the state of a job, unless it is vacant.
    pub fn set_state(&self, number: u16, state: u32) {
        if let Some(mut entry) = self.write(number).filter(|entry| entry.job.state != VACANT) {
            entry.job.state = state;
        }
    }

    /// The job, and the places of its ranks that are known.
    pub fn audience(&self, number: u16) -> Option<(Job, Vec<Place>)> {
        let entry = self.read(number)?;
        let job = entry.job;
        let known = entry.members.iter().take(job.ranks as usize).filter(|member| member.epoch == job.epoch);
        Some((job, known.map(|member| member.place).collect()))
    }

    // A thread that panicked left plain numbers behind, nothing half built: the locks' poison says nothing.

    fn read(&self, number: u16) -> Option<RwLockReadGuard<'_, Entry>> {
        Some(self.jobs.get(usize::from(number))?.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, number: u16) -> Option<RwLockWriteGuard<'_, Entry>> {
        Some(self.jobs.get(usize::from(number))?.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock_slot(&self, index: u32) -> Option<MutexGuard<'_, Slot>> {
        Some(self.slots.get(index as usize)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Tables for MemoryTables {
    fn job(&self, number: u16) -> Option<Job> {
        Some(self.read(number)?.job)
    }

    fn member(&self, job: u16, rank: u16) -> Option<Member> {
        self.read(job)?.members.get(usize::from(rank)).copied()
    }

    fn learn(&self, job: u16, rank: u16, epoch: u32, place: &Place) {
        let Some(mut entry) = self.write(job) else { return };
        if let Some(member) = entry.members.get_mut(usize::from(rank)) {
            member.epoch = epoch;
            member.place = *place;
        }
    }

    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome {
        match self.lock_slot(index) {
            Some(mut slot) => f(&mut slot),
            None => Outcome::BadSlot,
        }
    }
}
