//! Jobs outlive the daemon: it saves them, and the next one takes them back.

use switchml_control::join_event::Event;

use super::assignment::Terms;
use super::error::MemberError;
use super::job::{Job, Presence, State};
use super::rack::{Rack, peer_of};
use super::tally::Ending;
use super::{Effect, Epochs, JobKey, JobTable, MemberId, Origin, StreamId, info, warn};

impl JobTable {
    /// Continues the epochs of an earlier daemon, after those that it used.
    pub fn continue_epochs(&mut self, epochs: Epochs) {
        self.epochs = epochs;
    }

    /// The effects that save the job's present state for the next daemon.
    pub(super) fn save(&self, number: u16) -> Vec<Effect> {
        let job = self.jobs.get(&number).filter(|job| self.limits.durable && job.is_durable());
        job.map(|job| Effect::Save(Box::new(job.clone()))).into_iter().collect()
    }

    /// Takes back a job that an earlier daemon saved, before any rank has joined. Its ranks are
    /// awaited. The effects repeat actions in the data plane that may have been saved and not
    /// carried out.
    pub fn restore(&mut self, mut job: Job) -> Vec<Effect> {
        let number = job.number;
        if !self.has_room_for(&job) {
            let log = warn(format!(
                "job {number} {:?}: not restored, its numbers {:?} are not free",
                job.name, job.shards
            ));
            return [log].into_iter().chain(job.on_shards(Effect::Close)).collect();
        }
        for member in job.members.iter_mut().flatten().filter(|member| !member.is_gone()) {
            member.presence = Presence::Awaited;
        }
        self.recent_aborts.note(&job);
        let log = info(format!("job {number} {:?}: restored, {}", job.name, job.state.name()));
        let ways = job.ways();
        let again = |shard| match job.state {
            State::Aborted { .. } => Effect::Abort(shard),
            _ => Effect::Start(shard, ways.clone()),
        };
        let mut effects: Vec<_> = [log].into_iter().chain(job.on_shards(again)).collect();
        self.restored.push((number, job.epoch));
        self.jobs.insert(number, job);
        effects.extend(self.remove_if_empty(number));
        effects
    }

    /// Rule 23.3: a rank of a job that has started comes back, by this way. Its stream is returned,
    /// in place of an earlier one; the effects tell it how the job is. One that was taken for dead
    /// hears why, and that is all (rule 23.6).
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn resume(
        &mut self,
        id: MemberId,
        origin: Origin,
    ) -> Result<(StreamId, Vec<Effect>), MemberError> {
        let stream = self.next_stream;
        let limits = self.limits;
        let own = self.id;
        let job = match self.job_of(id) {
            Ok(job) => job,
            Err(error) => {
                let aborted = self.recent_aborts.of(id).ok_or(error)?;
                self.next_stream.0 += 1;
                return Ok((
                    stream,
                    vec![Effect::Tell(stream, Event::Aborted(aborted)), Effect::End(stream)],
                ));
            }
        };
        let mut news = job.news();
        if news.is_empty() {
            return Err(MemberError::NotStarted { rank: id.rank, state: job.state.name() });
        }
        let Origin { peer, via } = origin;
        if !via.is_empty() {
            let (specs, fanout) = (job.specs(), job.fanout(limits.fanout));
            let all = Terms { id: own, limits: &limits, fanout, specs: &specs };
            if let Some(member) = job.member(id.rank) {
                news.insert(0, Event::Assigned(all.of(job, member)));
            }
        }
        let Some(member) = job.member_mut(id.rank) else { unreachable!("found above") };
        if member.is_behind == via.is_empty() {
            // RESULTs to all would not reach it.
            return Err(MemberError::NoMember { job: id.job, rank: id.rank });
        }
        let before = std::mem::replace(&mut member.presence, Presence::Here(stream));
        (member.peer, member.rack) = (peer_of(&via, peer), Rack::new(&via));
        let place = member.place();
        let (number, awaited) = (job.number, job.awaited().len());
        let mut effects = vec![info(format!(
            "job {number} {:?}: rank {} came back from {place}, {awaited} still missing",
            job.name, id.rank
        ))];
        self.next_stream.0 += 1;
        self.streams.insert(stream, (JobKey::Assigned(number), id.rank));
        if let Presence::Here(earlier) = before {
            self.streams.remove(&earlier);
            effects.push(Effect::End(earlier));
        }
        effects.extend(news.into_iter().map(|event| Effect::Tell(stream, event)));
        Ok((stream, effects))
    }

    /// A rank's stream has ended. If its job was restored, and ranks may still come back, the rank
    /// is awaited again, and the effects are returned: it may have given up this connection while
    /// the daemon started, which then took it for the rank's present one.
    pub(super) fn await_again(&mut self, number: u16, rank: u32) -> Option<Vec<Effect>> {
        let job = self.jobs.get_mut(&number)?;
        if !self.restored.contains(&(number, job.epoch))
            || matches!(job.state, State::Aborted { .. })
        {
            return None;
        }
        let member = job.member_mut(rank)?;
        member.presence = Presence::Awaited;
        let who = member.in_words(rank);
        Some(vec![info(format!(
            "job {number} {:?}: {who}: the connection broke again, the rank is still missing",
            job.name
        ))])
    }

    /// Rule 23.4: ranks that are awaited still have had their time, and are taken for dead.
    pub fn expire(&mut self) -> Vec<Effect> {
        self.restored.clear();
        let numbers: Vec<_> = self.jobs.keys().copied().collect();
        let mut effects = Vec::new();
        for number in numbers {
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            let ranks = job.awaited();
            if ranks.is_empty() {
                continue;
            }
            for member in job
                .members
                .iter_mut()
                .flatten()
                .filter(|member| member.presence == Presence::Awaited)
            {
                member.presence = Presence::Gone;
            }
            let reason = format!(
                "{} did not come back after the aggregator was restarted",
                job.in_words(&ranks)
            );
            effects.extend(match job.state {
                State::Aborted { .. } => self.save(number),
                _ => self.abort(number, Ending::RankLost, &reason, ranks),
            });
            effects.extend(self.remove_if_empty(number));
        }
        effects
    }
}
