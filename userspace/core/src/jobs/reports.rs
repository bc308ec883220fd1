//! The reports of ranks while a job runs: different calls, no multicast.

use switchml_control as control;
use switchml_control::join_event::Event;

use super::error::MemberError;
use super::job::State;
use super::mismatch::Made;
use super::tally::Ending;
use super::{Effect, JobTable, MemberId, info, one_line, warn};
use crate::limits::Fanout;

/// The sum of the shares of a job's aggregators.
const WHOLE: u32 = 10_000;

impl JobTable {
    /// A rank reports its calls in flight, because its call was refused as a different one, or
    /// because it was asked. After the first report, the other ranks are asked. When all have
    /// reported, or when it is time to [conclude](Self::conclude), the job is aborted with the
    /// gathered calls.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn report_calls(
        &mut self,
        id: MemberId,
        calls: Vec<control::Call>,
        named: &[u32],
    ) -> Result<Vec<Effect>, MemberError> {
        let job = self.job_of(id)?;
        if !matches!(job.state, State::Started { .. }) {
            // Too late: the job was aborted meanwhile, and the rank told why.
            return Ok(Vec::new());
        }
        let mut effects = vec![info(format!(
            "job {} {:?}: rank {} reports that ranks made different calls",
            job.number, job.name, id.rank
        ))];
        let first = job.mismatch.is_none();
        let is_refused = !named.is_empty();
        let named =
            named.iter().filter(|rank| **rank < job.members.len() as u32).map(|rank| *rank as u16);
        let mismatch = job.mismatch.get_or_insert_default();
        let calls = calls.into_iter().take(control::MAX_REPORTED_CALLS);
        let made = |call: &str, cut| Made { call: one_line(call), cut };
        let calls = calls.map(|call| (call.number, made(&call.call, call.cut)));
        mismatch.note(id.rank as u16, calls.collect(), is_refused, named);
        if job.all_have_said_enough() {
            effects.extend(self.conclude(id.job as u16, id.epoch));
            return Ok(effects);
        }
        if !first {
            return Ok(effects);
        }
        let others = job
            .present()
            .filter(|(rank, _)| *rank != id.rank)
            .filter_map(|(_, member)| member.stream());
        let ask = |stream| Effect::Tell(stream, Event::CallsWanted(control::CallsWanted {}));
        effects.push(Effect::Gather(id.job as u16, id.epoch));
        effects.extend(others.map(ask));
        Ok(effects)
    }

    /// The time to report different calls is over: aborts the job, unless that has happened.
    pub fn conclude(&mut self, number: u16, epoch: u32) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&number).filter(|job| job.epoch == epoch) else {
            return Vec::new();
        };
        let have_all_reported = job.all_have_reported();
        let Some(mismatch) = &mut job.mismatch else { return Vec::new() };
        if have_all_reported {
            mismatch.note_complete();
        }
        self.abort(number, Ending::DifferentCalls, "", Vec::new())
    }

    /// Rule 36.14: a rank tells, for the operator, this aggregator's share of calls. All ranks
    /// compute the same.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn report_share(&mut self, id: MemberId, share: u32) -> Result<(), MemberError> {
        self.job_of(id)?.share = Some(share.min(WHOLE));
        Ok(())
    }

    /// Rule 38.2: a rank reads the copies of RESULTs to all that go to `taker`.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn read_along(&mut self, id: MemberId, taker: u32) -> Result<(), MemberError> {
        if let Some(member) = self.job_of(id)?.member_mut(id.rank) {
            member.taker = Some(taker);
        }
        Ok(())
    }

    /// A rank gets no RESULTs for all by multicast, as the operator is to know. The job goes on,
    /// with copies for that rank if it may have some.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn report_no_multicast(&mut self, id: MemberId) -> Result<Vec<Effect>, MemberError> {
        let sends_copies = self.limits.fanout == Fanout::Auto;
        let job = self.job_of(id)?;
        let Some(member) = job.member_mut(id.rank) else { unreachable!("found above") };
        let is_known = std::mem::replace(&mut member.has_no_multicast, true);
        // An earlier daemon may have handled the report already.
        if is_known || !member.by_group {
            return Ok(Vec::new());
        }
        member.by_group = !sends_copies;
        let consequence = match sends_copies {
            true => " any more: it gets copies of its own from now on",
            false => ", and so makes all ranks slow",
        };
        let who = member.in_words(id.rank);
        let (number, name) = (job.number, &job.name);
        let mut effects = vec![warn(format!(
            "job {number} {name:?}: {who} gets no results by multicast{consequence}"
        ))];
        if sends_copies && matches!(job.state, State::Started { .. }) {
            let ways = job.ways();
            let start = |shard| Effect::Start(shard, ways.clone());
            let change: Vec<_> = job.on_shards(start).collect();
            effects.extend(self.save(number));
            effects.extend(change);
        }
        Ok(effects)
    }
}
