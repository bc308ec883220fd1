//! When jobs ended: the job table has no clock.

use std::collections::BTreeMap;
use std::time::Instant;

use switchml_control::EndedJob;
use switchml_userspace_core::jobs::{Ended, JobTable};

/// The times at which the jobs that ended lately were seen to have ended, by their serial numbers.
#[derive(Debug, Default)]
pub struct Endings(BTreeMap<u64, Instant>);

impl Endings {
    /// Notes which jobs have ended.
    pub fn look(&mut self, table: &JobTable, now: Instant) {
        let before = std::mem::take(&mut self.0);
        let seen = |serial| before.get(&serial).copied().unwrap_or(now);
        self.0 = table.ended_lately().map(|ended| (ended.serial, seen(ended.serial))).collect();
    }

    /// The jobs that ended lately, for operators.
    pub fn of(&mut self, table: &JobTable, now: Instant) -> Vec<EndedJob> {
        self.look(table, now);
        let job = |ended: &Ended| EndedJob {
            name: ended.name.clone(),
            job: ended.number.map(|(number, _)| number.into()),
            world_size: ended.world_size,
            ending: ended.ending.to_owned(),
            reason: ended.reason.clone(),
            ago_ms: now.saturating_duration_since(self.0[&ended.serial]).as_millis() as u64,
        };
        table.ended_lately().map(job).collect()
    }
}
