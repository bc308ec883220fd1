//! Ranks leave, fail or are lost, and jobs end.

use std::collections::btree_map::Entry;
use std::time::Duration;

use switchml_control as control;
use switchml_control::join_event::Event;
use switchml_protocol::capabilities::Capabilities;

use super::cut::how_lost;
use super::error::MemberError;
use super::job::{Presence, State};
use super::tally::Ending;
use super::{Effect, JobKey, JobTable, MemberId, StreamId, info, one_line, warn};

/// Longest reason of an abort that is kept for ranks which come back, in characters.
const MAX_SAVED_REASON_LEN: usize = 1400;

impl JobTable {
    /// A rank says goodbye, in good order (rule 22.8) or with an error (rule 22.9), which blames
    /// these ranks, or no other if there are none.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn leave(
        &mut self,
        id: MemberId,
        error: &str,
        blamed: &[u32],
    ) -> Result<Vec<Effect>, MemberError> {
        let job = self.job_of(id)?;
        let stream = job.member_mut(id.rank).and_then(|member| member.stream());
        let number = job.number;
        let mut at_fault: Vec<_> =
            blamed.iter().copied().filter(|rank| *rank < job.world_size() as u32).collect();
        at_fault.sort_unstable();
        at_fault.dedup();
        let reason = match (error, &job.state) {
            ("", State::Started { .. }) => None,
            // No other rank's collectives depend on it.
            ("", _) if job.world_size() == 1 => None,
            ("", _) => Some("left before all ranks were ready".to_owned()),
            (error, _) => Some(format!("failed: {}{}", one_line(error), job.places(&at_fault))),
        };
        if at_fault.is_empty() {
            at_fault.push(id.rank);
        }
        let mut effects = Vec::new();
        if names_one_of(error, &at_fault) {
            // Rule 22.9: it passes on a reason that it has heard elsewhere.
            if let Some(member) = job.member_mut(id.rank) {
                member.presence = Presence::Gone;
            }
            effects = self.abort(number, Ending::RankFailed, &one_line(error), at_fault.clone());
        }
        effects.extend(self.depart(
            number,
            id.rank,
            reason.as_deref().map(|reason| (Ending::RankFailed, reason, at_fault)),
        ));
        if let Some(stream) = stream {
            self.streams.remove(&stream);
            effects.push(Effect::End(stream));
        }
        Ok(effects)
    }

    /// Rule 36.16: a rank has lost the aggregator, for the reason in `error`, and goes on at
    /// another one. So do the others.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn be_lost(&mut self, id: MemberId, error: &str) -> Result<Vec<Effect>, MemberError> {
        let job = self.job_of(id)?;
        let stream = job.member_mut(id.rank).and_then(|member| member.stream());
        let number = job.number;
        let reason = format!("takes this aggregator for lost: {}", one_line(error));
        let failed = Some((Ending::AggregatorLost, reason.as_str(), Vec::new()));
        let mut effects = self.depart(number, id.rank, failed);
        if let Some(stream) = stream {
            self.streams.remove(&stream);
            effects.push(Effect::End(stream));
        }
        Ok(effects)
    }

    /// Rule 23.1: a rank's stream has ended, after its connection gave no sign of life for so long.
    /// Nothing follows if the rank had left before.
    pub fn disconnect(&mut self, stream: StreamId, silence: Duration) -> Vec<Effect> {
        let what = &how_lost(silence);
        match self.streams.remove(&stream) {
            Some((JobKey::Assigned(number), rank)) => {
                let job = self.jobs.get(&number);
                let combiner = job.and_then(|job| job.member(rank)?.combiner());
                match combiner {
                    Some(combiner) => self.cut_off(number, rank, stream, &combiner, what),
                    None => self.await_again(number, rank).unwrap_or_else(|| {
                        self.depart(number, rank, Some((Ending::RankLost, what, vec![rank])))
                    }),
                }
            }
            Some((JobKey::Waiting(name), rank)) => self.give_up(&name, rank),
            None => Vec::new(),
        }
    }

    /// Frames of an interface no longer reach the data plane, for the reason in `what`: aborts the
    /// jobs that have ranks behind it, whose packets may have been lost.
    pub fn lose_port(&mut self, port: u32, what: &str) -> Vec<Effect> {
        let numbers: Vec<_> = self.jobs.keys().copied().collect();
        let mut effects = Vec::new();
        for number in numbers {
            let Some(job) = self.jobs.get(&number) else { continue };
            let behind = job.present().filter(|(_, member)| member.ports.contains(&port));
            let ranks: Vec<_> = behind.map(|(rank, _)| rank).collect();
            if !ranks.is_empty() {
                let who = job.in_words(&ranks);
                let reason =
                    format!("{who} cannot reach the aggregator any more: {what}; join again");
                effects.extend(self.abort(number, Ending::PortLost, &reason, Vec::new()));
            }
        }
        effects
    }

    /// The data plane failed a shard: all ranks of its job are told so.
    pub fn fail(&mut self, shard: u16, reason: &str) -> Vec<Effect> {
        let job = self.jobs.values().find(|job| job.shards.contains(&shard)).map(|job| job.number);
        job.map(|number| self.abort(number, Ending::DataPlane, reason, Vec::new()))
            .unwrap_or_default()
    }

    /// The daemon stops: aborts all jobs, and ends all streams.
    pub fn shut_down(&mut self) -> Vec<Effect> {
        let numbers: Vec<_> = self.jobs.keys().copied().collect();
        let mut effects: Vec<_> = numbers
            .into_iter()
            .flat_map(|number| {
                self.abort(number, Ending::Stopped, "the aggregator stops", Vec::new())
            })
            .collect();
        let news = Event::Aborted(control::Aborted {
            reason: "the aggregator stops".to_owned(),
            stops: true,
            ..Default::default()
        });
        effects
            .extend(self.waiting.values().flat_map(|job| job.tell_all(&news).collect::<Vec<_>>()));
        effects.extend(self.streams.keys().map(|stream| Effect::End(*stream)));
        effects
    }

    /// A member goes, and takes its job with it if that is an ending, for a reason, with the ranks
    /// at fault, and the job has begun.
    pub(super) fn depart(
        &mut self,
        number: u16,
        rank: u32,
        failed: Option<(Ending, &str, Vec<u32>)>,
    ) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        let Some(member) = job.member_mut(rank) else { return Vec::new() };
        member.presence = Presence::Gone;
        let who = member.in_words(rank);
        let mut effects = match failed {
            Some(_) if matches!(job.state, State::Aborted { .. }) => self.save(number),
            Some((ending, reason, at_fault)) => {
                self.abort(number, ending, &format!("{who} {reason}"), at_fault)
            }
            None => {
                let log = info(format!("job {number} {:?}: {who} left", job.name));
                let told: Vec<_> = job.tell_all(&Event::Left(control::Left { rank })).collect();
                [log].into_iter().chain(self.save(number)).chain(told).collect()
            }
        };
        effects.extend(self.remove_if_empty(number));
        effects
    }

    pub(super) fn abort(
        &mut self,
        number: u16,
        ending: Ending,
        reason: &str,
        ranks: Vec<u32>,
    ) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        if matches!(job.state, State::Aborted { .. }) {
            return Vec::new();
        }
        let verifies = self.limits.capabilities.contains(Capabilities::CHECKED_MAXIMA);
        // If ranks made different calls, that is the reason to tell: other failures are likely to
        // be a consequence.
        let (ending, aborted) = match job.mismatch.take() {
            Some(mismatch) if reason.is_empty() || mismatch.is_certain(verifies) => {
                (Ending::DifferentCalls, mismatch.into_event(verifies))
            }
            _ => {
                let stops = match ending {
                    Ending::Stopped | Ending::AggregatorLost => true,
                    // The rank may be well, and this aggregator out of its reach.
                    Ending::RankLost => job.may_move(),
                    _ => false,
                };
                let reason = reason.to_owned();
                (ending, control::Aborted { reason, ranks, calls: Vec::new(), stops })
            }
        };
        self.tally.end(ending);
        let reason = aborted.reason.chars().take(MAX_SAVED_REASON_LEN).collect();
        let (ranks, stops) = (aborted.ranks.clone(), aborted.stops);
        job.state = State::Aborted { reason, ranks, stops };
        self.recent_aborts.note(job);
        self.lately.note(job, ending.name(), &one_line(&aborted.reason));
        let log = warn(format!("job {number} {:?}: aborted, {}", job.name, aborted.reason));
        let news = Event::Aborted(aborted);
        let done: Vec<_> = job.on_shards(Effect::Abort).chain(job.tell_all(&news)).collect();
        [log].into_iter().chain(self.save(number)).chain(done).collect()
    }

    /// Ends a job in which no rank is left.
    pub(super) fn remove_if_empty(&mut self, number: u16) -> Vec<Effect> {
        let Entry::Occupied(entry) = self.jobs.entry(number) else { return Vec::new() };
        if entry.get().present().next().is_some() {
            return Vec::new();
        }
        let job = entry.remove();
        if !matches!(job.state, State::Aborted { .. }) {
            self.tally.end(Ending::Finished);
            self.lately.note(&job, Ending::Finished.name(), "");
        }
        let log = info(format!("job {number} {:?}: ended", job.name));
        [log].into_iter().chain(job.on_shards(Effect::Close)).collect()
    }
}

/// Whether an error begins with the name of one of these ranks.
fn names_one_of(error: &str, ranks: &[u32]) -> bool {
    let named = error.strip_prefix("rank ").and_then(|rest| rest.split(' ').next());
    named.and_then(|rank| rank.parse().ok()).is_some_and(|rank| ranks.contains(&rank))
}
