//! The unfinished rounds of a job, for who asks why it hangs.

use switchml_control::{JobState, JobStatus, SlotsReply, UnfinishedRound};
use switchml_userspace_core::oldest_round::Unfinished;
use tonic::Status;

use super::Service;
use super::status::internal;

/// Most rounds that are listed. If a rank is missing, it is missing in the oldest one.
const MOST_ROUNDS: usize = 32;

impl Service {
    /// The unfinished rounds of the job with this name or number. Slots are read one after the
    /// other, while ranks may go on contributing.
    pub(super) async fn slots_of(&self, job: &str) -> Result<SlotsReply, Status> {
        let job = find(self.jobs(), job)?;
        let (data_plane, shards) = (self.data_plane.clone(), job.shards.clone());
        // All slots of all shards take the kernel some milliseconds, which ranks do not wait for.
        let read = move || -> Result<Option<Vec<_>>, _> {
            let mut found = Vec::new();
            for shard in shards {
                // A shard's number came from the table, and fits.
                let Some(unfinished) = data_plane.unfinished(shard as u16)? else {
                    return Ok(None);
                };
                found.extend(unfinished.into_iter().map(|unfinished| (shard, unfinished)));
            }
            Ok(Some(found))
        };
        let found = tokio::task::spawn_blocking(read).await;
        let found = found.map_err(|error| Status::internal(error.to_string()))?;
        Ok(reply(job, found.map_err(internal)?))
    }
}

/// The job with this name, or else this number. Ranks of an aborted job may linger beside a new
/// job of its name: then it is the new one.
fn find(jobs: Vec<JobStatus>, wanted: &str) -> Result<JobStatus, Status> {
    let named = jobs.iter().filter(|job| job.name == wanted);
    let named = named.min_by_key(|job| job.state() == JobState::Aborted);
    let has_number = |job: &&JobStatus| !job.shards.is_empty() && job.job.to_string() == wanted;
    let found = named.or_else(|| jobs.iter().find(has_number)).cloned();
    found.ok_or_else(|| {
        Status::not_found("it has no such job; `switchml-aggregator jobs` lists those that it has")
    })
}

fn reply(job: JobStatus, found: Option<Vec<(u32, Unfinished)>>) -> SlotsReply {
    let shown = found.is_some();
    let mut found = found.unwrap_or_default();
    let slots = (u64::from(job.slots) / job.shards.len().max(1) as u64).max(1);
    found.sort_by_key(|(shard, unfinished)| (unfinished.chunk, *shard));
    let oldest = found.iter().take(MOST_ROUNDS).map(|(shard, unfinished)| UnfinishedRound {
        shard: *shard,
        slot: (unfinished.chunk % slots) as u32,
        round: (unfinished.chunk / slots) as u32,
        missing_ranks: unfinished.lacks.iter().map(u32::from).collect(),
    });
    SlotsReply { shown, unfinished: found.len() as u32, oldest: oldest.collect(), job: Some(job) }
}
