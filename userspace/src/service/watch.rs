//! The service's periodic checks.
//!
//! They read from the slots which ranks a running job waits for, and how much it gets done: the
//! data path counts nothing for each job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use switchml_control::JobStatus;
use switchml_userspace_core::data_plane::{DataPlane, LostPort};
use switchml_userspace_core::lateness::Look;
use switchml_userspace_core::oldest_round::Progress;
use switchml_userspace_core::throughput;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tonic::Status;
use tracing::debug;

use super::turns::{LOOK, turn, turn_within, when_free};
use super::{Service, State};
use crate::mailbox::Sender;

/// How often the data plane's ports are checked.
const PORTS_INTERVAL: Duration = Duration::from_millis(500);
/// How often the slots of running jobs are read: some 20 of a job's slots each time, which takes
/// the kernel 30 us, and `simple_switch` some milliseconds. See [`pause`].
const SLOTS_INTERVAL: Duration = Duration::from_millis(250);

/// Has the data plane check its ports, in the background; calls `lose` for each lost port.
pub(crate) async fn follow_ports(data_plane: &Arc<dyn DataPlane>, lose: impl Fn(LostPort)) {
    let mut ticks = interval(PORTS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let data_plane = Arc::clone(data_plane);
        // The check may have to load a program.
        let lost = tokio::task::spawn_blocking(move || data_plane.lost_ports()).await;
        lost.unwrap_or_default().into_iter().for_each(&lose);
    }
}

/// For how long to wait after a look that took this time, for one in each interval. But looks take
/// a tenth of the time at most: a Tofino switch has to copy whole registers for one.
fn pause(interval: Duration, look: Duration) -> Duration {
    interval.saturating_sub(look).max(9 * look)
}

impl Service {
    /// Runs all checks as long as it is polled.
    pub(super) async fn watch(&self) {
        tokio::join!(self.watch_ports(), self.watch_slots(), self.watch_throughput());
    }

    /// Ends jobs whose ranks can no longer be reached.
    async fn watch_ports(&self) {
        follow_ports(&self.data_plane, |port| {
            when_free(&self.state, move |State { control_plane, io, .. }| {
                control_plane.lose_port(io, port.index, &port.what);
            });
        })
        .await
    }

    /// Finds the ranks that running jobs wait for. Of several shards of a job it reads the first:
    /// all calls have chunks there.
    async fn watch_slots(&self) {
        loop {
            let begin = Instant::now();
            let running: Vec<_> = {
                let state = turn(&self.state).await;
                let jobs = state.control_plane.table().running();
                jobs.map(|job| (job.number, job.epoch, job.world_size())).collect()
            };
            let look = |service: &Self, (number, epoch, ranks)| {
                let progress = service.progress(number);
                Look { number, epoch, ranks, progress }
            };
            let looks = self.look_at(running, look).await;
            let unfinished = |look: &Look| {
                let progress = look.progress.as_ref();
                let unfinished = progress.and_then(|progress| progress.unfinished.clone());
                (look.number, look.epoch, unfinished)
            };
            {
                let mut state = turn(&self.state).await;
                let now = Instant::now();
                state.stragglers.look(now, looks.iter().map(unfinished));
                state.lateness.look(now, looks);
                state.note_endings(now);
            }
            sleep(pause(SLOTS_INTERVAL, begin.elapsed())).await;
        }
    }

    /// Measures the throughput of running jobs.
    async fn watch_throughput(&self) {
        loop {
            let begin = Instant::now();
            let running: Vec<_> = {
                let state = turn(&self.state).await;
                let jobs = state.control_plane.table().running();
                jobs.map(|job| (job.number, job.epoch, job.lanes(), job.shards.clone())).collect()
            };
            let look = |service: &Self, (number, epoch, lanes, shards): (_, _, _, Vec<u16>)| {
                let chunks = shards.iter().map(|shard| Some(service.progress(*shard)?.complete()));
                let chunks: Option<u64> = chunks.sum();
                let chunk_len = u64::from(lanes) * size_of::<u32>() as u64;
                (number, epoch, chunks.map(|chunks| chunks * chunk_len))
            };
            let looks = self.look_at(running, look).await;
            turn(&self.state).await.throughputs.look(Instant::now(), looks);
            sleep(pause(throughput::PERIOD, begin.elapsed())).await;
        }
    }

    /// Looks at running jobs, on a thread that may wait: a switch answers over a connection.
    async fn look_at<J, L>(&self, jobs: Vec<J>, look: fn(&Self, J) -> L) -> Vec<L>
    where
        J: Send + 'static,
        L: Send + 'static,
    {
        let service = self.clone();
        let looks = move || jobs.into_iter().map(|job| look(&service, job)).collect();
        tokio::task::spawn_blocking(looks).await.unwrap_or_default()
    }

    fn progress(&self, shard: u16) -> Option<Progress> {
        let found = self.data_plane.progress(shard);
        found.inspect_err(|error| debug!("job {shard}: {error}")).ok().flatten()
    }

    /// All jobs as operators see them.
    pub(super) async fn jobs(&self) -> Result<Vec<JobStatus>, Status> {
        let State { control_plane, stragglers, lateness, throughputs, .. } =
            &*turn_within(LOOK, &self.state, &*self.data_plane).await?;
        let running = control_plane.table().running();
        let running: BTreeMap<_, _> = running.map(|job| (job.number, job.epoch)).collect();
        let mut jobs = control_plane.jobs(Sender::age);
        for job in jobs.iter_mut().filter(|job| !job.shards.is_empty()) {
            let Ok(number) = u16::try_from(job.job) else { continue };
            let Some(&epoch) = running.get(&number) else { continue };
            job.throughput = throughputs.of(number, epoch);
            for wait in stragglers.of(number, epoch) {
                // All ranks of a running job have joined.
                if let Some(member) = job.members.get_mut(usize::from(wait.rank)) {
                    member.lacked_ms = wait.now.unwrap_or_default().as_millis() as u64;
                    member.lacked_total_ms = wait.total.as_millis() as u64;
                }
            }
            let late = lateness.of(number, epoch);
            for late in &late {
                if let Some(member) = job.members.get_mut(usize::from(late.rank)) {
                    member.late_us = late.by.as_micros() as u64;
                }
            }
            job.slow = control_plane.table().slow(number, &late).unwrap_or_default();
        }
        Ok(jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_looks_are_rare() {
        let millis = Duration::from_millis;
        for (look, expected) in [(0, 250), (10, 240), (25, 225), (30, 270), (100, 900)] {
            assert_eq!(pause(millis(250), millis(look)), millis(expected), "{look} ms");
        }
    }
}
