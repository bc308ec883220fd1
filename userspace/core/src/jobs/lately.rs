//! The jobs that ended last, and why, for operators who look when a job is gone.

use std::collections::VecDeque;

use super::JobTable;
use super::job::Job;

/// Most jobs that are remembered: a few kilobytes each at most.
pub(super) const MOST: usize = 16;
/// The ending of a job that ended before all ranks had joined.
pub(super) const INCOMPLETE: &str = "incomplete";

/// A job that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How many jobs ended before it, since this table was made.
    pub serial: u64,
    /// The job's name.
    pub name: String,
    /// The job's number and epoch; none if it ended before all ranks had joined.
    pub number: Option<(u16, u32)>,
    /// Number of its ranks.
    pub world_size: u32,
    /// How it ended: the name of a [`Tally`](super::Tally)'s ending, or `incomplete`.
    pub ending: &'static str,
    /// Why; empty if all ranks left normally.
    pub reason: String,
}

/// The jobs that ended, the latest first.
#[derive(Debug, Default)]
pub(super) struct Lately {
    next: u64,
    jobs: VecDeque<Ended>,
}

impl Lately {
    /// Remembers a job that has ended.
    pub fn note(&mut self, job: &Job, ending: &'static str, reason: &str) {
        self.jobs.truncate(MOST - 1);
        self.jobs.push_front(Ended {
            serial: self.next,
            name: job.name.clone(),
            number: (!job.shards.is_empty()).then_some((job.number, job.epoch)),
            world_size: job.world_size() as u32,
            ending,
            reason: reason.to_owned(),
        });
        self.next += 1;
    }
}

impl JobTable {
    /// The jobs that ended last, the latest first. Those that were aborted are not among them as
    /// long as ranks of theirs are there.
    pub fn ended_lately(&self) -> impl Iterator<Item = &Ended> {
        self.lately.jobs.iter().filter(|ended| {
            ended.number.is_none_or(|(number, epoch)| {
                self.jobs.get(&number).is_none_or(|job| job.epoch != epoch)
            })
        })
    }
}
