//! The control plane: passes requests to the job table, and carries out the resulting effects
//! through an [`Io`], the daemon's or the simulator's.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use switchml_control::join_event::Event;
use switchml_control::{Call, JobStatus, Path, Times};

use crate::data_plane::{Error, Saved, ServesJobs};
pub use crate::jobs::PING_TIMEOUT;
use crate::jobs::{
    Contributors, Effect, GATHERING, JobTable, JoinError, Joiner, Level, MemberError, MemberId,
    Origin, Quotas, StreamId,
};
use crate::shared_ports;

/// Rule 23.6: how often the daemon pings a connection. A host that dies without a word is noticed
/// within the sum of this and [`PING_TIMEOUT`].
pub const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long ranks may take to come back after a restart, of this daemon (rule 23.4) or of their
/// combiner: several of their attempts.
pub const RESUME_GRACE: Duration = Duration::from_secs(5);

/// The outside world of the control plane: streams, data plane, timers, log.
pub trait Io {
    /// The way to a rank; events come out of its other end in their order.
    type Stream;
    /// The type of the data plane.
    type DataPlane: ServesJobs + ?Sized;

    /// The data plane, which serves the jobs.
    fn data_plane(&self) -> &Self::DataPlane;
    /// Sends an event to a rank.
    fn tell(&mut self, stream: &Self::Stream, event: Event);
    /// Ends a rank's stream.
    fn end(&mut self, stream: Self::Stream);
    /// Calls [`ControlPlane::on_timer`] with `timer` after this time.
    fn schedule(&mut self, after: Duration, timer: Timer);
    /// Whether these numbers can be opened at once. If not, has the data plane
    /// [prepare](ServesJobs::prepare) them in the background, and then calls
    /// [`ControlPlane::prepared`] for their job and epoch.
    fn prepare(&mut self, _epoch: u32, _numbers: &[u16]) -> bool {
        true
    }
    /// Logs a line.
    fn log(&mut self, level: Level, line: &str);
}

/// An action to do later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The time to report different calls of this job and epoch is over.
    Conclude(u16, u32),
    /// The time to come back after a restart is over.
    Expire,
    /// The time in which the rank of this stream, whose combiner was lost, may come back is over.
    GiveUpOn(StreamId),
}

/// Why a member's request failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RequestError {
    #[error(transparent)]
    Member(#[from] MemberError),
    #[error(transparent)]
    DataPlane(#[from] Error),
}

/// The job table, and the streams to the ranks in it.
pub struct ControlPlane<S> {
    table: JobTable,
    streams: BTreeMap<StreamId, S>,
    /// Effects that open jobs whose numbers are being prepared, and tell their ranks; by first
    /// number and epoch.
    unprepared: BTreeMap<(u16, u32), Vec<Effect>>,
}

impl<S> ControlPlane<S> {
    /// A control plane without streams.
    pub fn new(table: JobTable) -> Self {
        Self { table, streams: BTreeMap::new(), unprepared: BTreeMap::new() }
    }

    /// The job table, to look at.
    pub fn table(&self) -> &JobTable {
        &self.table
    }

    /// Tenants have these quotas from now on.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.table.set_quotas(quotas);
    }

    /// All jobs as operators see them, with the ages of streams.
    pub fn jobs(&self, age: impl Fn(&S) -> Duration) -> Vec<JobStatus> {
        self.table.list_with_ages(|id| self.streams.get(&id).map_or(Duration::ZERO, &age))
    }

    /// The streams that have not ended.
    pub fn streams(&self) -> impl Iterator<Item = (StreamId, &S)> {
        self.streams.iter().map(|(id, stream)| (*id, stream))
    }

    /// Takes over the jobs that an earlier daemon left in the data plane, before any rank has
    /// joined.
    pub fn restore(&mut self, io: &mut impl Io<Stream = S>, saved: Saved) {
        self.table.continue_epochs(saved.epochs);
        for job in saved.jobs {
            let effects = self.table.restore(job);
            self.perform(io, effects);
        }
        io.schedule(RESUME_GRACE, Timer::Expire);
    }

    /// A rank joins; events about its job go to `stream`.
    ///
    /// # Errors
    ///
    /// [`JoinError`]; nothing has changed.
    pub fn join(
        &mut self,
        io: &mut impl Io<Stream = S>,
        joiner: &Joiner,
        stream: S,
    ) -> Result<StreamId, JoinError> {
        let (id, effects) = self.table.join(joiner)?;
        self.streams.insert(id, stream);
        self.perform(io, effects);
        Ok(id)
    }

    /// A rank of a job that has started comes back by this way; events about its job go to
    /// `stream`.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn resume(
        &mut self,
        io: &mut impl Io<Stream = S>,
        member: MemberId,
        way: Origin,
        stream: S,
    ) -> Result<StreamId, MemberError> {
        let (id, effects) = self.table.resume(member, way)?;
        self.streams.insert(id, stream);
        self.perform(io, effects);
        Ok(id)
    }

    /// A rank's paths are open for packets of `lanes`; whether it needs its own copies of results.
    ///
    /// # Errors
    ///
    /// [`RequestError`]; nothing has changed.
    pub fn ready(
        &mut self,
        io: &mut impl Io<Stream = S>,
        member: MemberId,
        lanes: u32,
        needs_copies: bool,
    ) -> Result<(), RequestError> {
        let mut bindings = Vec::new();
        for shard in self.table.shards(member)? {
            // A member's rank fits.
            bindings.extend(io.data_plane().binding(*shard, member.rank as u16)?);
        }
        let effects = self.table.ready(member, lanes, needs_copies, bindings)?;
        let has_started = effects.iter().any(|effect| matches!(effect, Effect::Start(..)));
        self.perform(io, effects);
        if has_started {
            self.tell_of_slow_port(io, member);
        }
        Ok(())
    }

    /// Logs how the slowest port limits a member's job, if several hosts share it.
    fn tell_of_slow_port(&self, io: &mut impl Io<Stream = S>, member: MemberId) {
        let Some(Contributors { job, ports, link }) = self.table.contributors(member) else {
            return;
        };
        let ports = shared_ports::ports_of(ports, |port| io.data_plane().link(port));
        if let Some(line) = ports.and_then(|ports| shared_ports::slowest(&ports, link)) {
            io.log(Level::Info, &format!("job {} {job:?}: {line}", member.job));
        }
    }

    /// Whether the data plane has received a HELLO of this rank, in its job's first shard.
    pub fn has_said_hello(
        &self,
        io: &impl Io<Stream = S>,
        member: MemberId,
    ) -> Result<bool, RequestError> {
        let shards = self.table.shards(member)?;
        // A member's rank fits.
        let binding = io.data_plane().binding(shards[0], member.rank as u16)?;
        Ok(binding.is_some())
    }

    /// A rank leaves, normally or with an error that blames `ranks`.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn leave(
        &mut self,
        io: &mut impl Io<Stream = S>,
        member: MemberId,
        error: &str,
        blamed: &[u32],
    ) -> Result<(), MemberError> {
        let effects = self.table.leave(member, error, blamed)?;
        self.perform(io, effects);
        Ok(())
    }

    /// A rank has lost this aggregator, for the reason in `error`, and goes on at another one.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn be_lost(
        &mut self,
        io: &mut impl Io<Stream = S>,
        member: MemberId,
        error: &str,
    ) -> Result<(), MemberError> {
        let effects = self.table.be_lost(member, error)?;
        self.perform(io, effects);
        Ok(())
    }

    /// A combiner has lost a rank: the rank's own connection broke, or the connection of another
    /// combiner below, which the request names.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn lose(
        &mut self,
        io: &mut impl Io<Stream = S>,
        member: MemberId,
        what: &str,
        combiner: &str,
    ) -> Result<(), MemberError> {
        let effects = self.table.lose_below(member, what, combiner)?;
        self.perform(io, effects);
        Ok(())
    }

    /// A rank reports its calls in flight, because ranks made different calls.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn report_calls(
        &mut self,
        io: &mut impl Io<Stream = S>,
        member: MemberId,
        calls: Vec<Call>,
        named: &[u32],
    ) -> Result<(), MemberError> {
        let effects = self.table.report_calls(member, calls, named)?;
        self.perform(io, effects);
        Ok(())
    }

    /// A rank gets no results by multicast.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn report_no_multicast(
        &mut self,
        io: &mut impl Io<Stream = S>,
        member: MemberId,
    ) -> Result<(), MemberError> {
        let effects = self.table.report_no_multicast(member)?;
        self.perform(io, effects);
        Ok(())
    }

    /// A rank reports the durations of round trips since its last report.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn report_round_trips(
        &mut self,
        member: MemberId,
        report: &Times,
    ) -> Result<(), MemberError> {
        self.table.report_round_trips(member, report)
    }

    /// A rank reports what became of its packets since it joined.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn report_path(&mut self, member: MemberId, path: Path) -> Result<(), MemberError> {
        self.table.report_path(member, path)
    }

    /// A rank tells, for the operator, this aggregator's share of its job's calls.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn report_share(&mut self, member: MemberId, share: u32) -> Result<(), MemberError> {
        self.table.report_share(member, share)
    }

    /// A rank that is about to be ready reads another one's copies of results.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing has changed.
    pub fn read_along(&mut self, member: MemberId, taker: u32) -> Result<(), MemberError> {
        self.table.read_along(member, taker)
    }

    /// A rank's stream has ended, after its connection was silent for this long.
    pub fn disconnect(
        &mut self,
        io: &mut impl Io<Stream = S>,
        stream: StreamId,
        silence: Duration,
    ) {
        self.streams.remove(&stream);
        let effects = self.table.disconnect(stream, silence);
        self.perform(io, effects);
    }

    /// Frames of an interface no longer reach the data plane, for the reason in `what`.
    pub fn lose_port(&mut self, io: &mut impl Io<Stream = S>, port: u32, what: &str) {
        let effects = self.table.lose_port(port, what);
        self.perform(io, effects);
    }

    /// A [scheduled](Io::schedule) timer is due.
    pub fn on_timer(&mut self, io: &mut impl Io<Stream = S>, timer: Timer) {
        let effects = match timer {
            Timer::Conclude(job, epoch) => self.table.conclude(job, epoch),
            Timer::Expire => self.table.expire(),
            Timer::GiveUpOn(stream) => self.table.give_up_on(stream),
        };
        self.perform(io, effects);
    }

    /// The daemon stops: aborts all jobs, and ends all streams.
    pub fn shut_down(&mut self, io: &mut impl Io<Stream = S>) {
        let effects = self.table.shut_down();
        self.perform(io, effects);
    }

    /// The data plane has prepared a job's numbers, or could not.
    pub fn prepared(
        &mut self,
        io: &mut impl Io<Stream = S>,
        (job, epoch): (u16, u32),
        result: Result<(), Error>,
    ) {
        let effects = self.unprepared.remove(&(job, epoch)).unwrap_or_default();
        if !self.table.is_assigned(job, epoch) {
            // The job has failed meanwhile.
            return;
        }
        match result {
            Ok(()) => self.perform_all(io, effects),
            Err(error) => self.fail(io, job, error),
        }
    }

    /// Carries effects out. The effects of a new job, which are the last ones, wait if the job's
    /// numbers have to be prepared.
    fn perform(&mut self, io: &mut impl Io<Stream = S>, mut effects: Vec<Effect>) {
        let opened = |(at, effect): (usize, &Effect)| match effect {
            Effect::Open(spec) => Some((at, spec.number, spec.epoch)),
            _ => None,
        };
        let opened: Vec<_> = effects.iter().enumerate().filter_map(opened).collect();
        let numbers: Vec<_> = opened.iter().map(|(_, number, _)| *number).collect();
        if let Some(&(at, job, epoch)) = opened.first()
            && !io.prepare(epoch, &numbers)
        {
            self.unprepared.insert((job, epoch), effects.split_off(at));
        }
        self.perform_all(io, effects);
    }

    fn perform_all(&mut self, io: &mut impl Io<Stream = S>, effects: Vec<Effect>) {
        for effect in effects {
            if let Err((job, error)) = self.perform_one(io, effect) {
                // The remaining effects are news of a job that has failed.
                return self.fail(io, job, error);
            }
        }
    }

    fn fail(&mut self, io: &mut impl Io<Stream = S>, job: u16, error: Error) {
        let instead = self.table.fail(job, &format!("the aggregator failed: {error}"));
        log_failure(job, Err(error), io);
        self.perform_all(io, instead);
    }

    /// Fails with the number of a job that cannot go on.
    fn perform_one(
        &mut self,
        io: &mut impl Io<Stream = S>,
        effect: Effect,
    ) -> Result<(), (u16, Error)> {
        match effect {
            Effect::KeepEpochs(job, epochs) => {
                io.data_plane().keep_epochs(&epochs).map_err(|error| (job, error))?
            }
            Effect::Open(spec) => {
                io.data_plane().open(&spec).map_err(|error| (spec.number, error))?
            }
            Effect::Start(job, ways) => {
                io.data_plane().start(job, &ways).map_err(|error| (job, error))?
            }
            // If this fails, there is nobody to tell.
            Effect::Abort(job) => log_failure(job, io.data_plane().abort(job), io),
            Effect::Close(job) => log_failure(job, io.data_plane().close(job), io),
            // If this fails, the job goes on, but ends if the daemon dies.
            Effect::Save(job) => log_failure(job.number, io.data_plane().save(&job), io),
            Effect::Tell(stream, event) => {
                if let Some(stream) = self.streams.get(&stream) {
                    io.tell(stream, event);
                }
            }
            Effect::End(stream) => {
                if let Some(stream) = self.streams.remove(&stream) {
                    io.end(stream);
                }
            }
            Effect::Gather(job, epoch) => io.schedule(GATHERING, Timer::Conclude(job, epoch)),
            Effect::Await(stream) => io.schedule(RESUME_GRACE, Timer::GiveUpOn(stream)),
            Effect::Log(level, line) => io.log(level, &line),
        }
        Ok(())
    }
}

fn log_failure(job: u16, result: Result<(), Error>, io: &mut impl Io) {
    if let Err(error) = result {
        io.log(Level::Error, &format!("job {job}: {error}"));
    }
}
