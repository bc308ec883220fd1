//! The unfinished rounds of a job, for who asks why it hangs.

use switchml_control::{JobState, JobStatus, SlotsReply, UnfinishedSlots, shown_name};
use switchml_protocol::wire::header::Op;
use switchml_userspace_core::oldest_round::Alike;
use tonic::Status;

use super::status::internal;
use super::{Service, turns};

/// Most ranges of slots that are listed. If a rank is missing, it is missing in the oldest one.
const MOST_RANGES: usize = 32;

impl Service {
    /// The unfinished rounds of the job with this name or number. Slots are read one after the
    /// other, while ranks may go on contributing.
    pub(super) async fn slots_of(&self, job: &str) -> Result<SlotsReply, Status> {
        let job = find(self.jobs().await?, job)?;
        let (data_plane, shards) = (self.data_plane.clone(), job.shards.clone());
        // All slots of all shards take the kernel some milliseconds, which ranks do not wait for.
        let read = move || -> Result<Option<Vec<_>>, _> {
            let mut found = Vec::new();
            for shard in shards {
                // A shard's number came from the table, and fits.
                let Some(unfinished) = data_plane.unfinished(shard as u16)? else {
                    return Ok(None);
                };
                found.extend(unfinished.into_iter().map(|alike| (shard, alike)));
            }
            Ok(Some(found))
        };
        Ok(reply(job, turns::look(&*self.data_plane, read).await?.map_err(internal)?))
    }
}

/// The job with this name, or else this number. Ranks of an aborted job may linger beside a new
/// job of its name: then it is the new one.
fn find(jobs: Vec<JobStatus>, wanted: &str) -> Result<JobStatus, Status> {
    let is_named = |job: &&JobStatus| job.name == wanted || shown_name(&job.name) == wanted;
    let named = jobs.iter().filter(is_named);
    let named = named.min_by_key(|job| job.state() == JobState::Aborted);
    let has_number = |job: &&JobStatus| !job.shards.is_empty() && job.job.to_string() == wanted;
    let found = named.or_else(|| jobs.iter().find(has_number)).cloned();
    found.ok_or_else(|| {
        Status::not_found("it has no such job; `switchml-aggregator jobs` lists those that it has")
    })
}

fn reply(job: JobStatus, found: Option<Vec<(u32, Alike)>>) -> SlotsReply {
    let shown = found.is_some();
    let mut found = found.unwrap_or_default();
    found.sort_by_key(|(shard, alike)| (alike.newest.round, alike.slots.start, *shard));
    let unfinished = found.iter().map(|(_, alike)| alike.slots.len() as u32).sum();
    let oldest = found.iter().take(MOST_RANGES).map(|(shard, Alike { slots, newest })| {
        let (op, lanes) = newest.operation.map_or(("", 0), |(op, lanes)| (in_words(op), lanes));
        UnfinishedSlots {
            shard: *shard,
            first_slot: slots.start,
            last_slot: slots.end - 1,
            round: newest.round,
            missing_ranks: newest.lacks.iter().map(u32::from).collect(),
            op: op.to_owned(),
            lanes: lanes.into(),
        }
    });
    SlotsReply { shown, unfinished, oldest: oldest.collect(), job: Some(job) }
}

fn in_words(op: Op) -> &'static str {
    match op {
        Op::Sum => "sum",
        Op::Max => "maximum",
    }
}
