//! Why jobs were aborted, remembered for a while after they are gone: a rank that was frozen, and
//! comes back, is told the reason.

use std::collections::VecDeque;

use switchml_control as control;

use super::MemberId;
use super::job::{Job, State};

/// Most aborts that are remembered, the latest (rule 23.6): a few kilobytes each.
pub(super) const MOST: usize = 256;

/// See the [module's documentation](self).
#[derive(Debug, Default)]
pub(super) struct RecentAborts(VecDeque<Abort>);

#[derive(Debug)]
struct Abort {
    job: u16,
    epoch: u32,
    /// The control secrets by rank.
    secrets: Vec<Option<u64>>,
    aborted: control::Aborted,
}

impl RecentAborts {
    /// Remembers a job that is gone, if it was aborted: no rank of another job can come back.
    pub fn note(&mut self, job: &Job) {
        let State::Aborted { reason, ranks, stops } = &job.state else { return };
        let (reason, ranks, calls) = (reason.clone(), ranks.clone(), Vec::new());
        let aborted = control::Aborted { reason, ranks, calls, stops: *stops };
        let secrets = job
            .members
            .iter()
            .map(|member| member.as_ref().map(|member| member.control_secret))
            .collect();
        self.0.truncate(MOST - 1);
        self.0.push_front(Abort { job: job.number, epoch: job.epoch, secrets, aborted });
    }

    /// Why the member's job ended, if it proves to be one.
    pub fn of(&self, id: MemberId) -> Option<control::Aborted> {
        let is_its = |abort: &&Abort| {
            (u32::from(abort.job), abort.epoch) == (id.job, id.epoch)
                && abort.secrets.get(id.rank as usize) == Some(&Some(id.secret))
        };
        self.0.iter().find(is_its).map(|abort| abort.aborted.clone())
    }
}
