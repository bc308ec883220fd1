//! The unfinished rounds of a job as operators see them.

use std::collections::BTreeSet;

use serde::Serialize;
use switchml_control::{SlotsReply, UnfinishedRound};

use super::{JobView, MemberView};

/// The unfinished rounds of a job.
#[derive(Debug, PartialEq, Serialize)]
pub struct SlotsView {
    /// The job.
    pub job: JobView,
    /// Whether the data plane shows the job's slots.
    pub shown: bool,
    /// Number of slots with an unfinished round.
    pub unfinished: u32,
    /// The oldest of these rounds, the oldest first; not all of them.
    pub oldest: Vec<RoundView>,
}

/// A round that some ranks have contributed to, and others not.
#[derive(Debug, PartialEq, Serialize)]
pub struct RoundView {
    /// The slot's shard.
    pub shard: u32,
    /// The slot in the shard.
    pub slot: u32,
    /// The round.
    pub round: u32,
    /// The ranks that have contributed.
    pub contributed: Vec<u32>,
    /// The ranks that have not.
    pub missing: Vec<u32>,
}

impl SlotsView {
    /// The view from an aggregator's answer.
    pub fn new(reply: SlotsReply) -> Self {
        let job = JobView::new(&reply.job.unwrap_or_default());
        let round = |UnfinishedRound { shard, slot, round, missing_ranks: missing }| {
            let is_in = |rank: &u32| !missing.contains(rank);
            let contributed = (0..job.world_size).filter(is_in).collect();
            RoundView { shard, slot, round, contributed, missing }
        };
        let oldest = reply.oldest.into_iter().map(round).collect();
        Self { shown: reply.shown, unfinished: reply.unfinished, oldest, job }
    }

    /// The ranks that a listed round lacks, by rank.
    pub fn missing(&self) -> Vec<&MemberView> {
        let ranks: BTreeSet<_> = self.oldest.iter().flat_map(|round| &round.missing).collect();
        self.job.members.iter().filter(|member| ranks.contains(&member.rank)).collect()
    }

    /// Number of unfinished rounds that are not listed.
    pub fn left_out(&self) -> usize {
        (self.unfinished as usize).saturating_sub(self.oldest.len())
    }
}
