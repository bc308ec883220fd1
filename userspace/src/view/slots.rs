//! The unfinished rounds of a job as operators see them.

use std::collections::BTreeSet;

use serde::Serialize;
use switchml_control::{SlotsReply, UnfinishedSlots};

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
    /// These slots, the oldest round first; not all of them.
    pub oldest: Vec<RangeView>,
}

/// Slots one after the other, with rounds that the same ranks have contributed to, and others not.
#[derive(Debug, PartialEq, Serialize)]
pub struct RangeView {
    /// The slots' shard.
    pub shard: u32,
    /// The first slot in the shard.
    pub first_slot: u32,
    /// The last slot.
    pub last_slot: u32,
    /// The round.
    pub round: u32,
    /// How lanes are combined, unless the data plane does not tell.
    pub op: Option<String>,
    /// How many lanes a slot adds up.
    pub lanes: Option<u32>,
    /// The ranks that have contributed.
    pub contributed: Vec<u32>,
    /// The ranks that have not.
    pub missing: Vec<u32>,
}

impl SlotsView {
    /// The view from an aggregator's answer.
    pub fn new(reply: SlotsReply) -> Self {
        let job = JobView::new(&reply.job.unwrap_or_default());
        let range = |slots: UnfinishedSlots| {
            let missing = slots.missing_ranks;
            let is_in = |rank: &u32| !missing.contains(rank);
            let contributed = (0..job.world_size).filter(is_in).collect();
            let is_told = slots.lanes > 0;
            RangeView {
                shard: slots.shard,
                first_slot: slots.first_slot,
                last_slot: slots.last_slot,
                round: slots.round,
                op: is_told.then_some(slots.op),
                lanes: is_told.then_some(slots.lanes),
                contributed,
                missing,
            }
        };
        let oldest = reply.oldest.into_iter().map(range).collect();
        Self { shown: reply.shown, unfinished: reply.unfinished, oldest, job }
    }

    /// The ranks that the listed slots lack, by rank.
    pub fn missing(&self) -> Vec<&MemberView> {
        let ranks: BTreeSet<_> = self.oldest.iter().flat_map(|range| &range.missing).collect();
        self.job.members.iter().filter(|member| ranks.contains(&member.rank)).collect()
    }

    /// Number of unfinished slots that are not listed.
    pub fn left_out(&self) -> u64 {
        let listed = self.oldest.iter().map(RangeView::slots).sum();
        u64::from(self.unfinished).saturating_sub(listed)
    }
}

impl RangeView {
    fn slots(&self) -> u64 {
        u64::from(self.last_slot.saturating_sub(self.first_slot)) + 1
    }
}
