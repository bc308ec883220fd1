//! Checks the promises as the run proceeds: results are exact, returned once, and the same on all
//! ranks; errors name the ranks at fault.

use std::collections::{BTreeMap, BTreeSet};

use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::ranks::Ranks;
use switchml_worker_core::call::Kind;
use switchml_worker_core::engine::Failure;
use switchml_worker_core::session::MadeCall;

use crate::daemon::Daemon;
use crate::net::{Net, Violation, ensure};
use crate::packed::Packing;
use crate::program::Step;
use crate::rng::hash;
use crate::scenario::{MS, Scenario, Time};
use crate::tally::{Fate, Fault};

/// What shapes the chunks of calls (rule 36.8), but for AUDIENCES, which some jobs do without.
const SHAPING: Capabilities = Capabilities::CHECKED_MAXIMA.union(Capabilities::EMPTY_CONTRIBUTIONS);

/// A session's epoch, which no other session has.
pub type SessionKey = u32;

/// How a rank's part in a session ended, before or after its program did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The rank made all its calls, all returned, and it left.
    Finished,
    /// The rank was killed, or its host was.
    Killed,
    /// The rank has left, to go on without these ranks in another job.
    Without(Vec<u16>),
    /// The rank found no daemon.
    Unreachable,
    /// The rank's control connection broke.
    Lost,
    /// The rank's control connection broke, and the daemon that it then found does not know its
    /// job.
    Forgotten,
    /// The aggregator serves the job no longer, and no rank need be at fault.
    Stopped {
        /// What happened.
        reason: String,
        /// The ranks whose connections with it broke.
        ranks: Vec<u16>,
    },
    /// The daemon has aborted the job.
    Aborted {
        /// What happened.
        reason: String,
        /// The ranks that it happened to.
        ranks: Vec<u16>,
    },
    /// The daemon reports that ranks made these different calls.
    Mismatch(Vec<MadeCall>),
    /// The data path has failed.
    Failed(Failure),
    /// The rank was not let in.
    Refused(String),
    /// Ranks did not join in time.
    NotJoined(Vec<u16>),
    /// The job did not start in time: these ranks were not ready.
    NotReady(Vec<u16>),
    /// HELLO did not come back.
    PathClosed,
}

impl End {
    /// The ranks that this end blames.
    pub fn blames(&self) -> Vec<u16> {
        match *self {
            Self::Without(ref ranks) => ranks.clone(),
            Self::Failed(
                Failure::Missing(ranks) | Failure::Departed(ranks) | Failure::Misplaced(ranks),
            ) => ranks.iter().collect(),
            Self::Failed(Failure::Mismatch { first, dissenter, is_certain: true, .. }) => {
                vec![first, dissenter]
            }
            _ => Vec::new(),
        }
    }

    /// The ranks that a rank with this end blames when it leaves its other sessions: those that it
    /// blames itself, or has heard of.
    pub fn at_fault(&self) -> Vec<u16> {
        match self {
            Self::Aborted { ranks, .. }
            | Self::Stopped { ranks, .. }
            | Self::NotJoined(ranks)
            | Self::NotReady(ranks) => ranks.clone(),
            Self::Mismatch(calls) => {
                let most = calls.iter().map(|call| call.ranks.len()).max();
                let common = calls.iter().position(|call| Some(call.ranks.len()) == most);
                let others = calls.iter().enumerate().filter(|(place, _)| Some(*place) != common);
                others.flat_map(|(_, call)| call.ranks.iter().copied()).collect()
            }
            _ => self.blames(),
        }
    }

    fn fate(&self) -> Fate {
        match self {
            Self::Finished => Fate::Finished,
            Self::Killed => Fate::Killed,
            Self::Without(_) => Fate::WentOn,
            Self::Unreachable => Fate::Unreachable,
            Self::Lost => Fate::Lost,
            Self::Forgotten => Fate::Forgotten,
            Self::Mismatch(_) => Fate::Mismatch,
            Self::Aborted { .. } | Self::Stopped { .. } => Fate::Aborted,
            Self::Failed(Failure::Missing(_)) => Fate::Missing,
            Self::Failed(Failure::Silent) => Fate::Silent,
            Self::Failed(Failure::Damaged) => Fate::Damaged,
            Self::Failed(Failure::Maximum) => Fate::WrongMaximum,
            Self::Failed(Failure::Departed(_)) => Fate::Departed,
            Self::Failed(Failure::Mismatch { .. }) => Fate::MismatchData,
            Self::Failed(Failure::Round { .. } | Failure::Misplaced(_)) => Fate::Round,
            Self::Failed(Failure::Aborted) => Fate::AbortedData,
            Self::Refused(_) => Fate::Refused,
            Self::NotJoined(_) => Fate::NotJoined,
            Self::NotReady(_) => Fate::NotReady,
            Self::PathClosed => Fate::PathClosed,
        }
    }
}

/// The record of one call of a session.
#[derive(Default)]
struct Call {
    /// The call of each rank, and when it was made.
    called: BTreeMap<u16, (Step, Time)>,
    /// The result of the first rank that returned.
    result: Option<Vec<u8>>,
    /// When the last rank returned.
    returned: Time,
}

/// The record of a session.
struct Session {
    /// The job's number among all jobs, and its ranks.
    job: usize,
    ranks: u16,
    lanes: Option<u16>,
    /// The ranks that may call.
    started: BTreeSet<u16>,
    calls: BTreeMap<usize, Call>,
    ends: BTreeMap<u16, End>,
    /// The ranks that the failure of some rank has blamed rightly, and the ranks whose connection
    /// broke.
    blamed: BTreeSet<u16>,
    /// The ranks that others have left to go on without, and those that ranks have heard of.
    left_out: BTreeSet<Vec<u16>>,
    heard: BTreeSet<Vec<u16>>,
    /// Whether a rank has told its aggregator that it is lost.
    is_lost: bool,
}

/// See the module.
#[derive(Default)]
pub struct Oracle {
    sessions: BTreeMap<SessionKey, Session>,
    /// Where ranks wanted the shards of a lost aggregator to go on: by session, the first
    /// aggregator of the shards and the lost one, the aggregators that they tried in turn.
    choices: BTreeMap<(SessionKey, usize, usize), Vec<usize>>,
    /// Ranks of jobs whose process ended before they had a session, but perhaps not before the
    /// daemon counted them.
    ghosts: BTreeSet<(usize, u16)>,
}

/// A rank in a session, or on its way into one.
#[derive(Clone, Debug)]
pub struct Who {
    /// Number of the job among all jobs.
    pub job: usize,
    /// The rank.
    pub rank: u16,
    /// The rank's sessions. Once it is in one at each of the job's aggregators, that of the first
    /// one is first, and tells the job's runs apart.
    pub sessions: Vec<SessionKey>,
    /// Whether it is in one at each.
    pub is_in_all: bool,
}

/// By what a rank is told of its end.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// The session.
    pub session: Option<SessionKey>,
    /// Whether anything has disturbed the rank's connections with that aggregator.
    pub was_disturbed: bool,
}

/// Where a rank wants the shards of a lost aggregator to go on.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The session.
    pub session: SessionKey,
    /// The aggregator that had the shards first.
    pub first: usize,
    /// The lost one.
    pub from: usize,
    /// The ranks that have left normally, as far as the rank knows.
    pub departed: Ranks,
    /// The aggregators that it tries in turn.
    pub next: Vec<usize>,
}

/// The state of a rank when its data path failed.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The rank.
    pub rank: u16,
    /// The aggregator.
    pub aggregator: usize,
    /// The session's epoch, and the job number of the shard that has failed.
    pub session: (u32, u16),
    /// Slot and round of the shard's oldest outstanding chunk.
    pub oldest: Option<(u16, u32)>,
    /// When an intact answer to an outstanding chunk last reached the rank, since its last
    /// progress.
    pub answered_at: Option<Time>,
    /// The time.
    pub now: Time,
    /// The rank's deadline, in ns.
    pub deadline: Time,
}

/// The begin and end of a session's calls.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// For each call, when the last rank called and when the last rank returned.
    pub calls: Vec<(Time, Time)>,
}

impl Oracle {
    /// The times of all sessions.
    pub fn times(&self) -> Vec<Times> {
        let of = |call: &Call| {
            let called = call.called.values().map(|(_, at)| *at).max().unwrap_or_default();
            (called, call.returned)
        };
        let sessions = self.sessions.values();
        sessions.map(|session| Times { calls: session.calls.values().map(of).collect() }).collect()
    }

    /// A rank is assigned to a session of its job, which is of no other one.
    pub fn join(&mut self, key: SessionKey, job: usize, ranks: u16) -> Result<(), Violation> {
        let session = self.sessions.entry(key).or_insert(Session {
            job,
            ranks,
            lanes: None,
            started: BTreeSet::new(),
            calls: BTreeMap::new(),
            ends: BTreeMap::new(),
            blamed: BTreeSet::new(),
            left_out: BTreeSet::new(),
            heard: BTreeSet::new(),
            is_lost: false,
        });
        ensure!(session.job == job, "jobs {} and {job} have the same epoch {key:08x}", session.job);
        Ok(())
    }

    /// A rank may call: the session's chunk size is known to it.
    pub fn start(&mut self, session: SessionKey, rank: u16, lanes: u16) -> Result<(), Violation> {
        let Some(session) = self.sessions.get_mut(&session) else { return Ok(()) };
        session.started.insert(rank);
        let first = *session.lanes.get_or_insert(lanes);
        ensure!(first == lanes, "ranks started with chunks of {first} and of {lanes} lanes");
        Ok(())
    }

    /// A rank's connection breaks, which other ranks may hear of, whether or not it finds its job
    /// again.
    pub fn disconnect(&mut self, who: &Who) {
        self.blame(who, [who.rank]);
    }

    /// A rank leaves and blames these.
    pub fn blame(&mut self, who: &Who, ranks: impl IntoIterator<Item = u16>) {
        self.blame_in_all(who, &ranks.into_iter().collect::<Vec<_>>());
        if !who.is_in_all {
            self.ghosts.insert((who.job, who.rank));
        }
    }

    fn blame_in_all(&mut self, who: &Who, ranks: &[u16]) {
        for key in &who.sessions {
            if let Some(session) = self.sessions.get_mut(key) {
                session.blamed.extend(ranks);
            }
        }
    }

    /// A rank takes an aggregator for lost by a failure of its data path, and leaves that session
    /// alone.
    pub fn lose(
        &mut self,
        daemons: &[Daemon],
        who: &Who,
        (key, failure): (Option<SessionKey>, Failure),
        standing: &Standing,
    ) -> Result<(), Violation> {
        let run = who.sessions.first().and_then(|key| self.sessions.get(key));
        if let Some(run) = run {
            run.check_failure(&failure, standing, daemons, false)?;
        }
        if let Some(session) = key.and_then(|key| self.sessions.get_mut(&key)) {
            session.is_lost = true;
        }
        Ok(())
    }

    /// A rank chooses where the shards of a lost aggregator go on: where all others do (rules 36.8
    /// and 36.9).
    pub fn choose(
        &mut self,
        scenario: &Scenario,
        rank: u16,
        choice: Choice,
    ) -> Result<(), Violation> {
        let Choice { session, first, from, departed, next } = choice;
        ensure!(departed.is_empty(), "rank {rank} moves, though ranks have left: {departed:?}");
        ensure!(!next.contains(&from), "rank {rank} goes on at {next:?}, of which {from} is lost");
        let shaping = |aggregator: usize| scenario.aggregator(aggregator).capabilities & SHAPING;
        for other in &next {
            let has_all = shaping(*other).contains(shaping(first));
            ensure!(has_all, "rank {rank} goes on at {other}, which can do less than {first}");
        }
        let known = self.choices.entry((session, first, from)).or_insert_with(|| next.clone());
        ensure!(
            *known == next,
            "rank {rank} goes on at one of {next:?} in turn, another rank at one of {known:?}"
        );
        Ok(())
    }

    /// Checks that a session whose aggregator is said to be gone was disturbed.
    pub fn is_right_to_part(&self, net: &Net, told: &Told, end: &End) -> Result<(), Violation> {
        let stops = [Fault::OrderlyStop, Fault::Death].map(|fault| net.tally.faults(fault));
        let is_right = match end {
            End::Lost | End::Forgotten => told.was_disturbed,
            End::Stopped { ranks, .. } if ranks.is_empty() => {
                let session = told.session.and_then(|key| self.sessions.get(&key));
                stops != [0, 0] || session.is_some_and(|session| session.is_lost)
            }
            _ => true,
        };
        ensure!(is_right, "{end:?} of an aggregator that is there: {told:?}");
        Ok(())
    }

    /// A rank makes its call number `place`.
    pub fn call(&mut self, session: SessionKey, rank: u16, place: usize, step: Step, now: Time) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.calls.entry(place).or_default().called.insert(rank, (step, now));
        }
    }

    /// A call has returned.
    pub fn result(
        &mut self,
        net: &mut Net,
        key: SessionKey,
        rank: u16,
        place: usize,
        result: Vec<u8>,
    ) -> Result<(), Violation> {
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        let (ranks, lanes) = (session.ranks, session.lanes.unwrap_or_default());
        let Some(call) = session.calls.get_mut(&place) else { return Ok(()) };
        let Some((step, at)) = call.called.get(&rank).copied() else { return Ok(()) };
        let who = || format!("session {key:08x}, rank {rank}, call {place} ({:?})", step.call);
        if step.call.count > 0 {
            // No rank may have the result before all ranks have called, and all must have called
            // the same.
            for other in 0..ranks {
                ensure!(
                    call.called.contains_key(&other),
                    "{} returned before rank {other} called",
                    who()
                );
            }
            for (other, (theirs, _)) in &call.called {
                ensure!(
                    theirs.call == step.call,
                    "{} returned, but rank {other} called {:?}",
                    who(),
                    theirs.call
                );
            }
        }
        call.returned = net.now;
        let has_own = matches!(step.call.kind, Kind::ReduceScatter(_));
        match &call.result {
            // In a reduce-scatter, each rank gets a different part.
            first if has_own || first.is_none() => {
                let keys = (place as u64, element_key(key, place));
                step.check(keys, (rank, ranks), lanes, &result)
                    .map_err(|wrong| Violation(format!("{}: {wrong}", who())))?;
                call.result = Some(result);
            }
            first => {
                let same = first.as_ref() == Some(&result);
                ensure!(same, "{}: not the bits that another rank got", who())
            }
        }
        net.tally.fate(match step.packing(ranks) {
            None => Fate::Exact,
            Some(Packing::Bits16) => Fate::Within16,
            Some(Packing::Bits8) => Fate::Within8,
        });
        let last = call.called.values().map(|(_, at)| *at).max().unwrap_or(at);
        if last == at && call.called.values().any(|(_, other)| at.saturating_sub(*other) > MS) {
            net.tally.fault(Fault::Straggler);
        }
        Ok(())
    }

    /// A rank's part in a session has ended.
    pub fn end(
        &mut self,
        (net, daemons): (&mut Net, &[Daemon]),
        who: &Who,
        told: &Told,
        end: &End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        net.tally.fate(end.fate());
        self.is_needed(net, who, end)?;
        self.note_end(who, end);
        self.hear(who.rank, told, end)?;
        self.check_end((net, daemons), who, told, end, standing)?;
        // It says so in its other sessions, too.
        self.blame_in_all(who, &end.at_fault());
        Ok(())
    }

    /// Checks that no rank ends before it has finished where one of several aggregators fails, and
    /// nothing else: once all ranks run, and as long as none has left, which would not help the
    /// others to move.
    fn is_needed(&self, net: &Net, who: &Who, end: &End) -> Result<(), Violation> {
        let run = who.sessions.first().and_then(|key| self.sessions.get(key));
        let Some(run) = run.filter(|run| run.started.len() == usize::from(run.ranks)) else {
            return Ok(());
        };
        let has_left = run.ends.values().any(|end| *end == End::Finished);
        ensure!(
            net.tally.faults(Fault::Calm) == 0 || *end == End::Finished || has_left,
            "rank {} of job {} ends for the failure of one aggregator of several: {end:?}",
            who.rank,
            who.job
        );
        Ok(())
    }

    fn check_end(
        &self,
        (net, daemons): (&Net, &[Daemon]),
        who: &Who,
        told: &Told,
        end: &End,
        standing: Option<Standing>,
    ) -> Result<(), Violation> {
        let of = |key: Option<SessionKey>| key.and_then(|key| self.sessions.get(&key));
        let Some(session) = of(told.session) else { return Ok(()) };
        // Calls are known by the job's first session.
        let run = of(who.sessions.first().copied()).unwrap_or(session);
        let (rank, is_damaged) = (who.rank, net.tally.is_damaged());
        match end {
            End::Failed(failure) => {
                let Some(standing) = standing else { return Ok(()) };
                run.check_failure(failure, &standing, daemons, is_damaged)
            }
            End::Mismatch(calls) => run.check_calls(calls),
            End::NotReady(ranks) => {
                ensure!(!ranks.contains(&rank), "rank {rank} is told that it is not ready itself");
                Ok(())
            }
            End::Aborted { reason, ranks } | End::Stopped { reason, ranks } => {
                for named in ranks {
                    let named_end = session.ends.get(named);
                    // A rank that comes back after the abort is told the reason, not the calls.
                    let is_at_fault = session.blamed.contains(named)
                        || run.has_called_otherwise(*named)
                        || named_end.map_or(self.ghosts.contains(&(who.job, *named)), |end| {
                            !matches!(end, End::Finished | End::Without(_))
                        });
                    ensure!(
                        is_at_fault,
                        "rank {rank} heard {reason:?}, which names rank {named}, whose part ended \
                         as {named_end:?}"
                    );
                }
                let of_aggregator = matches!(end, End::Stopped { .. })
                    || reason.starts_with("the aggregator")
                    || reason.starts_with("combiner ") && net.tally.faults(Fault::CombinerStop) > 0;
                // If reports are late, the daemon cannot tell the two reasons apart.
                let differ = reason.contains("or ranks made different calls")
                    && run.have_calls_that_differ();
                let of_network =
                    reason.starts_with("a packet was damaged") && (is_damaged || differ);
                ensure!(
                    !ranks.is_empty() || of_aggregator || of_network,
                    "rank {rank} heard {reason:?}, which names nobody"
                );
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Who hears that ranks go on without others is told which, and all ranks are told the same.
    fn hear(&mut self, rank: u16, told: &Told, end: &End) -> Result<(), Violation> {
        let session = told.session.and_then(|key| self.sessions.get_mut(&key));
        if let (Some(session), End::Aborted { reason, ranks }) = (session, end)
            && reason.contains("Without(")
        {
            let (left_out, heard) = (&session.left_out, &mut session.heard);
            heard.insert(ranks.clone());
            ensure!(
                heard.len() == 1 && left_out.contains(ranks),
                "rank {rank} hears that others go on without {ranks:?}; they said {left_out:?}, \
                 and ranks have heard of {heard:?}"
            );
        }
        Ok(())
    }

    /// Notes a rank's end, and whom it blames itself: whether that is right is checked, or ends the
    /// run.
    fn note_end(&mut self, who: &Who, end: &End) {
        for key in &who.sessions {
            if let Some(session) = self.sessions.get_mut(key) {
                // The first end counts: a rank that was killed cannot end again.
                session.ends.entry(who.rank).or_insert_with(|| end.clone());
                if let End::Without(ranks) = end {
                    session.left_out.insert(ranks.clone());
                }
            }
        }
        self.blame_in_all(who, &end.blames());
        if !who.is_in_all {
            self.ghosts.insert((who.job, who.rank));
        }
    }
}

impl Session {
    /// Checks that ranks made the reported calls, and that these differ.
    fn check_calls(&self, told: &[MadeCall]) -> Result<(), Violation> {
        for MadeCall { ranks, number, call } in told {
            for rank in ranks {
                let made =
                    self.calls.get(&(*number as usize - 1)).and_then(|call| call.called.get(rank));
                let made = made.map(|(step, _)| step.call.to_string());
                ensure!(
                    made.as_ref() == Some(call),
                    "rank {rank} is said to have called {call}, and called {made:?}"
                );
            }
        }
        ensure!(
            self.have_calls_that_differ(),
            "all ranks made the same calls, and were told otherwise: {told:?}"
        );
        Ok(())
    }

    /// Whether a rank's call differs from that of some other rank at the same place.
    fn has_called_otherwise(&self, rank: u16) -> bool {
        self.calls.values().any(|call| {
            let own = call.called.get(&rank).map(|(step, _)| step.call);
            own.is_some_and(|own| call.called.values().any(|(step, _)| step.call != own))
        })
    }

    fn have_calls_that_differ(&self) -> bool {
        self.calls.values().any(|call| {
            let mut calls = call.called.values().map(|(step, _)| step.call);
            calls.next().is_some_and(|first| calls.any(|other| other != first))
        })
    }

    /// Checks that a failure of the data path names the ranks at fault.
    fn check_failure(
        &self,
        failure: &Failure,
        standing: &Standing,
        daemons: &[Daemon],
        is_damaged: bool,
    ) -> Result<(), Violation> {
        let Standing { rank, aggregator, session, oldest, answered_at, now, deadline } = *standing;
        let daemon = &daemons[aggregator];
        // The time for which the last answer is believed.
        let fresh = now.saturating_sub((deadline / 2).max(400 * MS));
        match *failure {
            Failure::Round { ours, newest } => Err(Violation(format!(
                "rank {rank} was refused: in round {ours}, the aggregator in {newest}"
            ))),
            Failure::Departed(named) => self.check_departed(rank, &named, is_damaged),
            Failure::Mismatch { first, dissenter, is_certain, .. } => {
                let differ = self.calls.values().any(|call| {
                    let of = |rank: u16| call.called.get(&rank).map(|(step, _)| step.call);
                    of(first).zip(of(dissenter)).is_some_and(|(one, other)| one != other)
                });
                // Ranks that continue with different maxima skip different chunks, and are refused
                // before the witnesses tell. A rank cannot tell which of the two it was, and blames
                // no rank.
                ensure!(
                    differ || (is_damaged && !is_certain),
                    "rank {rank}: ranks {first} and {dissenter} are said to have called differently"
                );
                Ok(())
            }
            Failure::Missing(named) => {
                let arrived = |named: u16| {
                    oldest
                        .and_then(|(slot, round)| {
                            daemon.data_plane().arrival(session, slot, round, named)
                        })
                        .unwrap_or(Time::MAX)
                };
                let innocent: Vec<_> =
                    named.iter().filter(|named| arrived(*named) < fresh).collect();
                ensure!(
                    !named.is_empty() && innocent.is_empty(),
                    "rank {rank} names {:?} as missing, of which {innocent:?} have contributed \
                     long ago",
                    named.iter().collect::<Vec<_>>()
                );
                Ok(())
            }
            Failure::Silent => {
                // Deadlines may be shorter than `fresh`.
                let since = fresh.max(now.saturating_sub(deadline));
                let answered = answered_at.is_some_and(|at| at > since);
                ensure!(
                    !answered,
                    "rank {rank} calls the aggregator silent, which has answered at {answered_at:?}"
                );
                Ok(())
            }
            Failure::Damaged => {
                ensure!(is_damaged, "rank {rank} calls results damaged, where no packet is");
                Ok(())
            }
            Failure::Maximum => {
                ensure!(
                    is_damaged && daemons.iter().any(|daemon| !daemon.data_plane().checks_maxima()),
                    "rank {rank} calls a maximum wrong, which nothing spoils"
                );
                Ok(())
            }
            Failure::Misplaced(named) => Err(Violation(format!(
                "rank {rank} was told that ranks {:?} are where they cannot be",
                named.iter().collect::<Vec<_>>()
            ))),
            Failure::Aborted => Ok(()),
        }
    }

    /// Checks that these ranks have left, and that this one has made a call that they have not; or
    /// that the aux of an old PENDING may have been damaged, which no check word shows.
    fn check_departed(&self, rank: u16, named: &Ranks, is_damaged: bool) -> Result<(), Violation> {
        for named in named.iter() {
            let left = self.ends.get(&named) == Some(&End::Finished);
            let made = |call: &Call, rank| {
                call.called.get(&rank).map(|(step, _): &(Step, Time)| step.call)
            };
            let alone =
                |call: &Call| made(call, rank).is_some() && made(call, rank) != made(call, named);
            ensure!(
                left && (is_damaged || self.calls.values().any(alone)),
                "rank {rank} says that rank {named} has left ({left}) without having made all of \
                 its calls"
            );
        }
        Ok(())
    }
}

/// A key that tells the elements of one call from those of another.
pub fn element_key(session: SessionKey, place: usize) -> u64 {
    hash(&[session.into(), place as u64])
}
