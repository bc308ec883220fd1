//! A rank's membership in a job.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use switchml_control::{self as control, Call, JoinRequest};
use switchml_protocol::VERSION;
use switchml_protocol::bpf_types::times::Times;
use switchml_protocol::ranks::Ranks;
use switchml_worker_core::engine::Failure;
use switchml_worker_core::session::{Event, Goodbye};
use tokio::sync::mpsc::UnboundedSender;

use crate::interface::Interface;

use super::control_thread::Control;
use super::{Access, Assigned, Error, board::Board, member::Joining, resolve, threads};

/// How long a rank may stand still whose user does not say.
const STANDSTILL: Duration = Duration::from_secs(4);

/// Most aggregators that others are told of.
const MOST_OTHERS: usize = 16;

/// What a rank asks for when it joins a job.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The job's name.
    pub job: &'a str,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Most data threads; as many as this host has use for unless given.
    pub data_threads: Option<u32>,
    /// The number of aggregators of the job.
    pub aggregators: u32,
    /// How long to wait for the other ranks.
    pub timeout: Duration,
    /// How long this process may stand still, as long as its host does not (rule 23.6).
    pub standstill: Duration,
    /// Whether another aggregator can go on if this one is lost (rule 36.8).
    pub has_others: bool,
    /// The addresses of the job's aggregators, for their operators.
    pub all: &'a [String],
    /// The address of the lost aggregator that this one is to go on in place of, for its operator.
    pub in_place_of: &'a str,
}

/// A rank's membership in a job: the connection is its sign of life. Dropping it leaves the job; in
/// a panic, as a failure.
pub struct Membership {
    /// The rank in whose process the aggregator is, if ranks serve each other.
    peer: Option<u16>,
    board: Arc<Board>,
    events: UnboundedSender<Event>,
    control: Arc<Control>,
    has_ended: bool,
}

impl Membership {
    /// Joins the job named `job` at its only aggregator as `rank` of `world_size`, and waits until
    /// all ranks have: [`Membership::begin`] and [`Membership::assigned`] in one.
    ///
    /// # Errors
    ///
    /// The errors of both.
    pub fn join(
        aggregator: impl Into<Access>,
        job: &str,
        rank: u32,
        world_size: u32,
        data_threads: Option<u32>,
        timeout: Duration,
    ) -> Result<(Self, Assigned), Error> {
        let (aggregators, has_others) = (1, false);
        let (all, in_place_of) = (&[][..], "");
        let wish = Wish {
            job,
            rank,
            world_size,
            data_threads,
            aggregators,
            timeout,
            standstill: STANDSTILL,
            has_others,
            all,
            in_place_of,
        };
        let membership = Self::begin(aggregator.into(), &wish)?;
        let assigned = membership.assigned()?;
        Ok((membership, assigned))
    }

    /// Begins to join a job at one of its aggregators; [`Membership::assigned`] waits for the other
    /// ranks. The timeout also bounds the wait in [`Membership::ready`].
    ///
    /// # Errors
    ///
    /// [`Error::Address`], [`Error::UnknownHost`] or [`Error::TokenFile`].
    pub fn begin(access: Access, wish: &Wish<'_>) -> Result<Self, Error> {
        let &Wish { job, rank, world_size, data_threads, aggregators, timeout, .. } = wish;
        let &Wish { standstill, has_others, .. } = wish;
        let others = wish.all.iter().filter(|address| **address != access.address);
        let other_aggregators = others.take(MOST_OTHERS).cloned().collect();
        let (weight, peer) = (access.weight, access.peer);
        let begin = Instant::now();
        let board = Arc::new(Board::default());
        let (events, received) = tokio::sync::mpsc::unbounded_channel();
        let token = access.token()?;
        let addresses = resolve(&access.address)?;
        let link = Interface::towards_any(&addresses).and_then(|interface| interface.speed);
        let (data_threads, host) = match data_threads {
            Some(exactly) => (exactly, String::new()),
            None => threads::of_this_host(link, aggregators),
        };
        let joining = Joining {
            access,
            addresses,
            request: JoinRequest {
                job_name: job.to_owned(),
                rank,
                world_size,
                data_threads,
                host,
                via: Vec::new(),
                token,
                protocol_version: VERSION.into(),
                aggregators,
                link_speed: link.unwrap_or_default() as u64,
                weight,
                host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
                standstill_ms: standstill.as_millis().try_into().unwrap_or(u64::MAX),
                other_aggregators,
                in_place_of: wish.in_place_of.to_owned(),
            },
            timeout,
            has_others,
            begin,
            board: Arc::clone(&board),
        };
        let control = Control::here()?;
        control.handle.spawn(joining.run(control.shared(), received));
        Ok(Self { peer, board, events, control, has_ended: false })
    }

    /// The rank in whose process the aggregator is, if ranks serve each other.
    pub fn peer(&self) -> Option<u16> {
        self.peer
    }

    /// Waits until all ranks have joined.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] or [`Error::Tls`]; [`Error::Refused`] with the aggregator's reason
    /// (no job token, a rank or world size out of range, a rank that is taken, another world size
    /// than the job's); [`Error::Missing`] with the ranks that did not come in time;
    /// [`Error::Aborted`] or [`Error::Lost`].
    pub fn assigned(&self) -> Result<Assigned, Error> {
        self.board.wait(|heard| heard.assigned.clone())
    }

    /// Says that this rank is ready, and waits until all are: [`Membership::path_opened`] and
    /// [`Membership::started`] in one.
    ///
    /// # Errors
    ///
    /// The errors of the latter.
    pub fn ready(&self, lanes: u16, needs_copies: bool) -> Result<u16, Error> {
        self.path_opened(lanes, needs_copies);
        self.started()
    }

    /// Has [`Self::path_opened`] also tell the aggregator's share of calls, in parts of 10,000.
    pub fn set_share(&self, share: u32) {
        // It is set once.
        let _ = self.board.share.set(share);
    }

    /// Has [`Self::path_opened`] also tell whose copies of results this rank reads.
    pub fn set_taker(&self, taker: u16) {
        // It is set once.
        let _ = self.board.taker.set(taker);
    }

    /// Tells that chunks of `lanes` lanes pass between this rank and the aggregator (rule 22.4),
    /// and whether it needs its own copies of results.
    pub fn path_opened(&self, lanes: u16, needs_copies: bool) {
        // A control thread that has ended has said why on the board.
        let _ = self.events.send(Event::PathOpen { lanes, needs_copies });
    }

    /// Waits until every rank is ready. Returns the fewest lanes that any was ready for: those of
    /// the job's full chunk (rule 22.5).
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] with the ranks that were not ready in time; [`Error::Refused`],
    /// [`Error::Aborted`] or [`Error::Lost`].
    pub fn started(&self) -> Result<u16, Error> {
        self.board.wait(|heard| heard.started)
    }

    /// Reports that the data path has failed; for a MISMATCH, with the number of the refused call
    /// if it is known. Returns the aggregator's reason for the end of the session, if it is better
    /// than the failure itself.
    pub(crate) fn explain(&self, failure: Failure, call: Option<u64>) -> Option<Error> {
        let _ = self.events.send(Event::Failed { failure, call });
        self.board.wait(|heard| heard.has_no_reason.then_some(())).err()
    }

    /// Sets `calls`, which the control thread calls when the aggregator asks for this rank's calls
    /// in flight, with their numbers from 1, because a call of this rank or another was refused.
    /// The argument of `calls` is the last call that matters, by its number from 0.
    pub fn on_calls_wanted(&self, calls: impl Fn(u64) -> Vec<Call> + Send + Sync + 'static) {
        self.board.note(|heard| heard.calls_in_flight = Some(Arc::new(calls)));
    }

    /// Sets `take`, which the control thread calls every 10 s and when the rank leaves. It returns
    /// the round trips since the last call, for the aggregator.
    pub fn on_round_trips_wanted(&self, take: impl Fn() -> Times + Send + Sync + 'static) {
        self.board.on_round_trips_wanted(Arc::new(take));
    }

    /// Sets `path`, which the control thread calls now and then. It returns what became of this
    /// rank's packets, for the aggregator.
    pub fn on_path_wanted(&self, path: impl Fn() -> control::Path + Send + Sync + 'static) {
        self.board.on_path_wanted(Arc::new(path));
    }

    /// Tells the aggregator, for its operator, that this rank gets no results by multicast.
    pub fn report_no_multicast(&self) {
        let _ = self.events.send(Event::HearsNoGroup);
    }

    /// The ranks that have left normally.
    pub fn departed(&self) -> Ranks {
        self.board.departed()
    }

    /// What it hears, as long as it lasts.
    pub(super) fn board(&self) -> Weak<Board> {
        Arc::downgrade(&self.board)
    }

    /// Whether the process that the aggregator is in says nothing, while the connection lives: it
    /// is stopped, or about to be found dead.
    pub fn stands_still(&self) -> bool {
        self.board.stands_still()
    }

    /// How often the control plane asked the data path to say HELLO again.
    pub fn hellos(&self) -> u64 {
        self.board.hellos.load(Ordering::Relaxed)
    }

    /// Whether the aggregator would report a rank that died, that is, whether the connection lives.
    pub fn is_watched(&self) -> bool {
        !self.board.unwatched.load(Ordering::Relaxed)
    }

    /// Calls `callback` once, from the control thread, when the session ends through no action of
    /// this rank: [`Error::Aborted`], or [`Error::Lost`] when the connection breaks, or
    /// [`Error::Forgotten`] where it could be made again. Calls it at once if that has happened.
    /// Replaces an earlier callback.
    pub fn on_end(&self, callback: impl FnOnce(Error) + Send + 'static) {
        self.board.on_end(Box::new(callback));
    }

    /// Why the session has ended; `None` while it lasts.
    pub fn ended(&self) -> Option<Error> {
        self.board.ended()
    }

    /// Leaves the job in good order (rule 22.8). Returns when the aggregator has heard it, after a
    /// second at the latest.
    pub fn leave(mut self) {
        self.end(Goodbye::default());
    }

    /// Leaves the job as failed (rule 22.9): the other ranks are told why, and fail. `ranks` are
    /// those that the error blames; where there are none, this rank is. Returns as
    /// [`Membership::leave`] does.
    pub fn fail(mut self, error: &str, ranks: Vec<u16>) {
        self.end(Goodbye { error: error.to_owned(), ranks, ..Goodbye::default() });
    }

    /// Leaves the job as failed, as [`Membership::fail`] does, but does not wait. Whoever waits for
    /// something in this session gets [`Error::Left`].
    pub(crate) fn give_up(&self, error: &str, ranks: Vec<u16>) {
        self.say(Goodbye { error: error.to_owned(), ranks, ..Goodbye::default() });
    }

    /// Tells the aggregator, if it answers the others still, that this rank takes it for lost and
    /// goes on at another one (rule 36.16). Does not wait.
    pub(crate) fn lose(&self, error: &str) {
        let (error, ranks) = (error.to_owned(), Vec::new());
        self.say(Goodbye { error, ranks, lost_aggregator: true });
    }

    /// Says goodbye; [`Membership::leave`] waits until the aggregator has heard it.
    pub(super) fn say(&self, goodbye: Goodbye) {
        let _ = self.events.send(Event::Leave(goodbye));
    }

    fn end(&mut self, goodbye: Goodbye) {
        self.say(goodbye);
        self.has_ended = true;
        // The control thread does not wait for itself.
        if !self.control.is_here() {
            self.board.wait_until_over();
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.has_ended {
            let error = if std::thread::panicking() { "the rank panicked" } else { "" };
            self.end(Goodbye { error: error.to_owned(), ..Goodbye::default() });
        }
    }
}
