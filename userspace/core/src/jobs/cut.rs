//! A combiner is lost, and with it the ranks below: they have a while to come back through the next
//! one at its place.

use std::time::Duration;

use switchml_control::GONE;

use super::error::MemberError;
use super::job::{Member, Presence, State};
use super::tally::Ending;
use super::{Effect, JobTable, MemberId, StreamId, info};

/// How long the daemon waits for the answer to a ping: long enough that a process without CPU time
/// is not taken for dead.
pub const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// A connection that was closed ends after less silence: its end is a sign of life, too.
const SHORT: Duration = Duration::from_secs(1);

/// How a rank was lost whose connection ended after this silence. After a long silence, its host
/// cannot be reached, or its process is frozen.
pub(crate) fn how_lost(silence: Duration) -> String {
    match silence.as_secs() {
        _ if silence < SHORT => GONE.to_owned(),
        seconds => format!("did not answer for {seconds} s, and is considered dead"),
    }
}

impl Member {
    /// The combiner whose connection is this rank's, if there is one.
    pub(super) fn combiner(&self) -> Option<String> {
        self.is_behind.then(|| match self.rack.last.as_str() {
            // The daemon was restarted, and does not know the combiner's name yet.
            "" => "its combiner".to_owned(),
            last => format!("combiner {last}"),
        })
    }
}

impl JobTable {
    /// A combiner has lost a rank: its connection broke, as `what` says, or the connection of the
    /// named combiner below.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn lose_below(
        &mut self,
        id: MemberId,
        what: &str,
        combiner: &str,
    ) -> Result<Vec<Effect>, MemberError> {
        let job = self.job_of(id)?;
        let (number, what) = (job.number, super::one_line(what));
        let Some(stream) = job.member(id.rank).and_then(Member::stream) else {
            // The loss of this rank has been handled already.
            return Ok(Vec::new());
        };
        self.streams.remove(&stream);
        let mut effects = match combiner {
            "" => self.depart(number, id.rank, Some((Ending::RankLost, &what, vec![id.rank]))),
            name => {
                let name = format!("combiner {}", super::one_line(name));
                self.cut_off(number, id.rank, stream, &name, &what)
            }
        };
        effects.push(Effect::End(stream));
        Ok(effects)
    }

    /// The connection of this combiner broke, and with it the rank's stream. Before the start that
    /// ends the job, because its ranks do not come back.
    pub(super) fn cut_off(
        &mut self,
        number: u16,
        rank: u32,
        stream: StreamId,
        combiner: &str,
        what: &str,
    ) -> Vec<Effect> {
        let why = format!("cannot be reached any more: {combiner} {what}");
        let Some(job) = self.jobs.get_mut(&number) else { return Vec::new() };
        let has_started = matches!(job.state, State::Started { .. });
        let name = job.name.clone();
        let Some(member) = job.member_mut(rank).filter(|_| has_started) else {
            return self.depart(number, rank, Some((Ending::RankLost, &why, vec![rank])));
        };
        member.presence = Presence::Cut(stream);
        let log = format!(
            "job {number} {name:?}: {} {why}; waiting for it to come back",
            member.in_words(rank)
        );
        member.why_cut = why;
        vec![info(log), Effect::Await(stream)]
    }

    /// The time in which the rank of this stream could come back is over. The rank is taken for
    /// dead, and so are the other ranks lost with the same combiner.
    pub fn give_up_on(&mut self, stream: StreamId) -> Vec<Effect> {
        let is_cut = |member: &Member| matches!(member.presence, Presence::Cut(_));
        let job = self
            .jobs
            .values_mut()
            .find(|job| job.joined().any(|(_, member)| member.presence == Presence::Cut(stream)));
        let Some(job) = job else { return Vec::new() };
        let of_stream = job.joined().find(|(_, member)| member.presence == Presence::Cut(stream));
        let why = of_stream.map(|(_, member)| member.why_cut.clone()).unwrap_or_default();
        let lost = job.joined().filter(|(_, member)| is_cut(member) && member.why_cut == why);
        let ranks: Vec<_> = lost.map(|(rank, _)| rank).collect();
        for rank in &ranks {
            if let Some(member) = job.member_mut(*rank) {
                member.presence = Presence::Gone;
            }
        }
        let number = job.number;
        let reason = format!("{} {why}, and they did not come back", job.in_words(&ranks));
        let mut effects = match job.state {
            State::Aborted { .. } => self.save(number),
            _ => self.abort(number, Ending::RankLost, &reason, ranks),
        };
        effects.extend(self.remove_if_empty(number));
        effects
    }
}
