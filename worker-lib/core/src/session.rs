//! A rank's life in a job, from join to leave, as a state machine: [`Event`]s and the time in,
//! [`Action`]s out.
//!
//! ```text
//!            Assigned          path open           Started             leave
//!   Joining ──────────▶ Opening ───────▶ Ready ────────────▶ Running ────────▶ Leaving ──▶ Ended
//!      │                                   │                 │     ▲               ▲
//!      │ time is up             time is up │          failed ▼     │               │ leave
//!      ▼                                   ▼             AskingWhy ─────────▶ Failed
//!    Ended                          NamingUnready ──▶ Leaving       no answer
//! ```
//!
//! An abort leads from each state to Ended, and so do a refusal and nonsense. A broken connection
//! does until the job has started. After that, the session resumes: it connects again, and goes on
//! in the same state. With a data plane that outlives its daemon, it tries as long as nobody
//! answers; otherwise once, because the daemon may only have taken the rank for dead, and then says
//! so.
//!
//! The machine makes the decisions. Its driver owns the clock, the connection and the data path: it
//! carries out [`Session::next_action`] until there is none, then waits for an event, or until
//! [`Session::deadline`]. Sections 22 and 23 of `docs/spec` are the specification.

use std::collections::VecDeque;
use std::time::Duration;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::ranks::Ranks;

use crate::engine::Failure;

mod events;
#[cfg(test)]
mod tests;

pub use events::{Action, Answer, Ending, Event, Goodbye, MadeCall, News, Request};

/// Longest wait for a connection to one address. The driver of the session keeps to it.
pub const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a request that the aggregator answers at once. Join and Ready,
/// which queue when many jobs begin together, wait for the join timeout if that is longer.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// Rule 23.7: longest attempt to find an aggregator again whose data plane has most likely ended
/// with it.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Rule 36.8: longest attempt to find an aggregator again whose data plane may live on, if another
/// one can go on. Daemons restart within seconds; without one, nobody watches the ranks.
const LONG_ATTEMPT: Duration = Duration::from_secs(10);
/// Pauses between attempts to reconnect: doubled from the first up to the last, so that all ranks
/// reconnect to a restarted aggregator within a second or two.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long to wait for the reason of an abort or of different calls, which the data plane may
/// report before the control plane does. The aggregator gathers the ranks' calls for up to half a
/// second.
const REASON: Duration = Duration::from_millis(1500);
/// If a timer is this late, this rank itself was frozen: stopped or suspended. If it only waited
/// for a processor, another second does no harm.
const LATE: Duration = Duration::from_millis(10);
/// Longest time to process what arrived while the rank was frozen.
const CATCH_UP: Duration = Duration::from_secs(1);

/// See the [module's documentation](self). Times are monotonic, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Session {
    join_timeout: Duration,
    state: State,
    link: Link,
    /// The resumption, from the break of the connection until the aggregator answers about the job.
    resumption: Option<Resumption>,
    /// Whether the data plane outlives the aggregator's daemon.
    is_durable: bool,
    /// Whether another aggregator can go on if this one is lost.
    has_others: bool,
    /// The request without an answer yet, and the deadline for that.
    request: Option<(Request, u64)>,
    /// Requests to be sent after that one's answer.
    queue: VecDeque<Request>,
    actions: VecDeque<Action>,
    departed: Ranks,
    /// Whether the data path gets no results by multicast, which every aggregator must be told.
    hears_no_group: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// The session waits for the other ranks to join.
    Joining { until: u64, missing: Missing },
    /// The session opens its data path.
    Opening,
    /// The data path carries chunks of `lanes` lanes. The session waits for the other ranks' paths.
    Ready { until: u64, lanes: u16 },
    /// The wait for other ranks' paths took too long. The session asks which ranks are not ready.
    NamingUnready { lanes: u16 },
    /// The job has started.
    Running,
    /// The data path has failed for a reason that the aggregator can explain; the explanation is on
    /// its way. An abort by itself does not name the reason or the ranks.
    AskingWhy { until: u64, is_abort: bool },
    /// The data path has failed, and nobody can explain it. The rank is about to leave.
    Failed,
    /// The session says goodbye.
    Leaving { until: u64, goodbye: Goodbye, ending: Ending },
    /// The session is over.
    Ended,
}

/// The ranks that have not joined, as the aggregator reports them at each change.
#[derive(Clone, Debug, Default)]
struct Missing {
    now: Vec<u16>,
    /// The ranks that were missing in all reports.
    always: Option<Vec<u16>>,
}

impl Missing {
    fn hear(&mut self, ranks: Vec<u16>) {
        match &mut self.always {
            Some(always) => always.retain(|rank| ranks.contains(rank)),
            None => self.always = Some(ranks.clone()),
        }
        self.now = ranks;
    }

    /// Whom to name (rule 14.5). Ranks that joined and left are not to blame while others never
    /// came: they may have waited for the same ones, and for as long.
    fn ranks(&self) -> &[u16] {
        match &self.always {
            Some(always) if !always.is_empty() => always,
            _ => &self.now,
        }
    }
}

/// The connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// The connection is being made.
    Connecting,
    /// The connection exists; the stream of events is not open yet.
    Connected,
    /// The stream is open.
    Open,
    /// The connection is gone. The next attempt is at this time.
    Pausing { until: u64 },
}

/// How a session reconnects to its aggregator.
#[derive(Clone, Debug)]
struct Resumption {
    /// How the connection broke.
    lost: String,
    /// The next pause between two attempts.
    pause: Duration,
    /// When the attempts end, if ever.
    until: Option<u64>,
    /// Whether there may be several.
    repeats: bool,
}

impl Session {
    /// A rank that joins its job now, and waits for others to join, and again for them to be
    /// ready, for `join_timeout`.
    pub fn new(now: u64, join_timeout: Duration) -> Self {
        Self {
            join_timeout,
            state: State::Joining { until: after(now, join_timeout), missing: Missing::default() },
            link: Link::Connecting,
            resumption: None,
            is_durable: false,
            has_others: false,
            request: None,
            queue: VecDeque::new(),
            actions: VecDeque::from([Action::Connect]),
            departed: Ranks::NONE,
            hears_no_group: false,
        }
    }

    /// Another aggregator can go on if this one is lost (rule 36.8).
    pub fn with_others(self) -> Self {
        Self { has_others: true, ..self }
    }

    /// The next action for the driver.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Ranks that this one waits for to join, as far as it has heard.
    pub fn missing(&self) -> &[u16] {
        match &self.state {
            State::Joining { missing, .. } => missing.ranks(),
            _ => &[],
        }
    }

    /// When to call [`Session::on_timer`].
    pub fn deadline(&self) -> Option<u64> {
        let state = match self.state {
            State::Joining { until, .. }
            | State::Ready { until, .. }
            | State::AskingWhy { until, .. }
            | State::Leaving { until, .. } => Some(until),
            _ => None,
        };
        let request = self.request.as_ref().map(|(_, until)| *until);
        let pause = match self.link {
            Link::Pausing { until } => Some(until),
            _ => None,
        };
        [state, request, pause, self.attempt_end()].into_iter().flatten().min()
    }

    /// The ranks that have left normally.
    pub fn departed(&self) -> Ranks {
        self.departed
    }

    /// Whether the aggregator would report a rank that died: while the connection works.
    pub fn is_watched(&self) -> bool {
        self.link == Link::Open
    }

    /// Something has happened.
    pub fn handle(&mut self, now: u64, event: Event) {
        if matches!(self.state, State::Ended) {
            return;
        }
        match event {
            Event::Connected => self.open_stream(now),
            Event::Unreachable(why) => self.lose(now, why),
            Event::Lost(why) => self.lose(now, why),
            Event::Answered(answer) => self.take_answer(now, answer),
            Event::Heard(news) => self.hear(now, news),
            Event::PathOpen { lanes, needs_copies } => {
                if matches!(self.state, State::Opening) {
                    self.state = State::Ready { until: after(now, self.join_timeout), lanes };
                    self.request(now, Request::Ready { lanes, needs_copies });
                }
            }
            Event::Failed { failure, call } => self.ask_why(now, failure, call),
            Event::HearsNoGroup => {
                self.hears_no_group = true;
                self.report_no_multicast(now);
            }
            Event::Leave(goodbye) => self.leave(now, goodbye, Ending::Left),
        }
    }

    /// Time has passed.
    pub fn on_timer(&mut self, now: u64) {
        if self.deadline().is_some_and(|planned| after(planned, LATE) <= now) {
            self.catch_up(now);
        }
        let is_over = |until: u64| until <= now;
        if self.request.as_ref().is_some_and(|(_, until)| is_over(*until)) {
            let patience = self.request.as_ref().map_or(ANSWER, |(asked, _)| self.patience(asked));
            let why = format!("no answer for {} s", patience.as_secs_f64());
            self.take_answer(now, Answer::Lost(why));
        }
        if matches!(self.link, Link::Pausing { until } if is_over(until)) {
            self.connect();
        }
        if self.attempt_end().is_some_and(is_over) {
            self.give_up();
        }
        match &mut self.state {
            State::Joining { until, missing } if is_over(*until) => {
                let missing = missing.ranks().to_vec();
                let silence = format!("silent for {} s", self.join_timeout.as_secs_f64());
                self.end(match missing.is_empty() {
                    true => Ending::Unreachable(silence),
                    false => Ending::Missing(missing),
                });
            }
            State::Ready { until, lanes } if is_over(*until) => {
                self.state = State::NamingUnready { lanes: *lanes };
                self.request(now, Request::Unready);
            }
            State::AskingWhy { until, is_abort } if is_over(*until) => {
                // Without a connection, the loss is all that this rank knows.
                match self.resumption.take_if(|_| *is_abort) {
                    Some(Resumption { lost, .. }) => self.end(Ending::Lost(lost)),
                    None => self.be_failed(),
                }
            }
            State::Leaving { until, ending, .. } if is_over(*until) => {
                let ending = ending.clone();
                self.end(ending);
            }
            _ => {}
        }
    }

    /// Rule 23.8: no deadline passes for a rank that was frozen before it has processed what came
    /// meanwhile.
    fn catch_up(&mut self, now: u64) {
        let state = match &mut self.state {
            State::Joining { until, .. }
            | State::Ready { until, .. }
            | State::AskingWhy { until, .. }
            | State::Leaving { until, .. } => Some(until),
            _ => None,
        };
        let request = self.request.as_mut().map(|(_, until)| until);
        let attempt = self.resumption.as_mut().and_then(|attempt| attempt.until.as_mut());
        for until in [state, request, attempt].into_iter().flatten() {
            *until = (*until).max(after(now, CATCH_UP));
        }
    }

    /// The stream says something: `Aborted` and `Left` in any state (rule 22.7).
    fn hear(&mut self, now: u64, news: News) {
        match (news, &mut self.state) {
            // The event does not matter any more.
            (_, State::Leaving { .. }) => {}
            (News::Waiting(ranks), State::Joining { missing, .. }) => missing.hear(ranks),
            (News::Waiting(_), _) => {}
            (News::Assigned { durable }, State::Joining { .. }) => {
                self.is_durable = durable;
                self.state = State::Opening;
                self.actions.push_back(Action::OpenPath);
            }
            (
                News::Started { lanes },
                State::Ready { lanes: own, .. } | State::NamingUnready { lanes: own },
            ) => {
                let own = *own;
                self.start(lanes, own);
            }
            (News::Started { .. }, State::Running | State::AskingWhy { .. } | State::Failed) => {
                if self.resumption.take().is_some() {
                    // Rule 27.19.
                    self.actions.push_back(Action::SayHello);
                }
            }
            (News::Started { .. }, _) => {
                self.end(Ending::Nonsense("a start before this rank was ready".to_owned()));
            }
            (News::Assigned { .. }, _) => {
                self.end(Ending::Nonsense("a second assignment".to_owned()));
            }
            (News::Aborted { reason, ranks, calls }, _) => self.end(match calls.is_empty() {
                true => Ending::Aborted { reason, ranks },
                false => Ending::Mismatch { reason, calls },
            }),
            (News::Stops { reason, ranks }, _) => self.end(Ending::Stopped { reason, ranks }),
            (News::Left(rank), _) => self.departed.insert(rank),
            (News::CallsWanted, State::Running | State::AskingWhy { .. } | State::Failed) => {
                self.request(now, Request::ReportCalls { last: u64::MAX, named: None });
            }
            // The rank has made no calls yet.
            (News::CallsWanted, _) => {}
            (News::Nonsense(what), _) => self.end(Ending::Nonsense(what)),
        }
    }

    /// All ranks are ready, this one for chunks of `own` lanes (rule 22.5).
    fn start(&mut self, lanes: u16, own: u16) {
        if lanes == 0 || lanes > own || !usize::from(lanes).is_multiple_of(LANES_PER_BLOCK) {
            let what = format!("chunks of {lanes} lanes to a rank that is ready for {own}");
            return self.end(Ending::Nonsense(what));
        }
        self.state = State::Running;
        self.actions.push_back(Action::Start { lanes });
    }

    /// The data path has failed. Some failures the aggregator can explain (rule 14.7).
    fn ask_why(&mut self, now: u64, failure: Failure, call: Option<u64>) {
        // The first failure counts: the others are its consequences.
        if !matches!(self.state, State::Running) {
            return;
        }
        match failure {
            Failure::Aborted => {}
            Failure::Mismatch { first, dissenter, .. } => {
                if let Some(last) = call {
                    let named = Some([first, dissenter]);
                    self.request(now, Request::ReportCalls { last, named });
                }
            }
            _ => return self.be_failed(),
        }
        let is_abort = failure == Failure::Aborted;
        self.state = State::AskingWhy { until: after(now, REASON), is_abort };
    }

    /// Tells the aggregator, also a restarted one, that multicast does not reach this rank.
    fn report_no_multicast(&mut self, now: u64) {
        if self.hears_no_group && self.has_started() {
            self.request(now, Request::ReportNoMulticast);
        }
    }

    fn be_failed(&mut self) {
        self.state = State::Failed;
        self.actions.push_back(Action::NoReason);
    }

    fn leave(&mut self, now: u64, goodbye: Goodbye, ending: Ending) {
        match self.state {
            State::Leaving { .. } | State::Ended => return,
            // There is no job yet: the end of the connection is enough.
            State::Joining { .. } => return self.end(ending),
            _ => {}
        }
        self.state =
            State::Leaving { until: after(now, GOODBYE), goodbye: goodbye.clone(), ending };
        match self.link {
            Link::Open | Link::Connected => self.send(now, Request::Leave(goodbye)),
            Link::Pausing { .. } => self.connect(),
            Link::Connecting => {}
        }
    }

    fn has_started(&self) -> bool {
        matches!(self.state, State::Running | State::AskingWhy { .. } | State::Failed)
    }

    fn connect(&mut self) {
        self.link = Link::Connecting;
        self.actions.push_back(Action::Connect);
    }

    /// The connection works: sends the request for which it was made.
    fn open_stream(&mut self, now: u64) {
        if self.link != Link::Connecting {
            return;
        }
        self.link = Link::Connected;
        let request = match &self.state {
            State::Joining { .. } => Request::Join,
            State::Leaving { goodbye, .. } => Request::Leave(goodbye.clone()),
            _ => Request::Resume,
        };
        self.send(now, request);
    }

    /// The connection broke, or could not be made.
    fn lose(&mut self, now: u64, why: String) {
        let before = self.link;
        if matches!(before, Link::Pausing { .. }) {
            return;
        }
        self.request = None;
        self.queue.clear();
        match &self.state {
            State::Leaving { ending, .. } => return self.end(ending.clone()),
            _ if self.has_started() => {}
            _ if before == Link::Connecting => return self.end(Ending::Unreachable(why)),
            _ => return self.end(Ending::Lost(why)),
        }
        match &mut self.resumption {
            None => {
                let repeats = self.is_durable;
                let until = match (repeats, self.has_others) {
                    (false, _) => Some(after(now, ATTEMPT)),
                    (true, true) => Some(after(now, LONG_ATTEMPT)),
                    (true, false) => None,
                };
                let pause = FIRST_PAUSE;
                self.resumption = Some(Resumption { lost: why, pause, until, repeats });
                self.connect();
            }
            Some(Resumption { pause, repeats: true, .. }) => {
                self.link = Link::Pausing { until: after(now, *pause) };
                *pause = (2 * *pause).min(LAST_PAUSE);
            }
            Some(_) => self.give_up(),
        }
    }

    /// When the attempts to reconnect end, while there are any.
    fn attempt_end(&self) -> Option<u64> {
        let is_leaving = matches!(self.state, State::Leaving { .. });
        let attempt = self.resumption.as_ref().filter(|_| self.link != Link::Open && !is_leaving);
        attempt.and_then(|attempt| attempt.until)
    }

    /// The attempts to find the aggregator again have failed.
    fn give_up(&mut self) {
        if let Some(Resumption { lost, .. }) = self.resumption.take() {
            self.end(Ending::Lost(lost));
        }
    }

    /// Sends a request after earlier ones have their answers. Without a connection, it is dropped.
    fn request(&mut self, now: u64, request: Request) {
        match (self.link, &self.request) {
            (Link::Open, None) => self.send(now, request),
            (Link::Open, Some(_)) => self.queue.push_back(request),
            _ => {}
        }
    }

    fn send(&mut self, now: u64, request: Request) {
        self.request = Some((request.clone(), after(now, self.patience(&request))));
        self.actions.push_back(Action::Send(request));
    }

    /// How long to wait for the answer to a request.
    fn patience(&self, request: &Request) -> Duration {
        match request {
            Request::Join | Request::Ready { .. } => ANSWER.max(self.join_timeout),
            _ => ANSWER,
        }
    }

    fn take_answer(&mut self, now: u64, answer: Answer) {
        let Some((request, _)) = self.request.take() else { return };
        match (request, answer) {
            // If a goodbye gets no answer, the connection's end that follows is as good.
            (Request::Leave(_), _) => {
                if let State::Leaving { ending, .. } = &self.state {
                    let ending = ending.clone();
                    self.end(ending);
                }
            }
            (Request::Join | Request::Resume, Answer::Done) => {
                self.link = Link::Open;
                self.report_no_multicast(now);
            }
            (Request::Join | Request::Resume, Answer::Lost(why)) => self.lose(now, why),
            (Request::Resume, Answer::Unknown(why)) => self.end(Ending::Forgotten(why)),
            // If a report gets no answer, the data plane's reason alone is used, or the rank's own
            // message.
            (Request::ReportCalls { .. } | Request::ReportNoMulticast, _) | (_, Answer::Done) => {}
            // The start that was heard meanwhile says more.
            (Request::Ready { .. } | Request::Unready, _) if self.has_started() => {}
            (Request::Unready, Answer::Unready(ranks)) => {
                let time = self.join_timeout.as_secs_f64();
                let error = format!("the job did not start within {time} s");
                let named = ranks.clone();
                let goodbye = Goodbye { error, ranks: named, lost_aggregator: false };
                self.leave(now, goodbye, Ending::NotReady(ranks));
            }
            (_, Answer::Lost(why)) => self.end(Ending::Lost(why)),
            (_, Answer::Refused(why) | Answer::Unknown(why)) => self.end(Ending::Refused(why)),
            (_, Answer::Unready(_)) => {
                self.end(Ending::Nonsense("who is not ready, which was not asked".to_owned()));
            }
        }
        if self.request.is_none()
            && let Some(request) = self.queue.pop_front()
        {
            self.send(now, request);
        }
    }

    fn end(&mut self, ending: Ending) {
        self.state = State::Ended;
        self.link = Link::Connecting;
        self.resumption = None;
        self.request = None;
        self.queue.clear();
        self.actions.push_back(Action::End(ending));
    }
}

/// A time later than this one.
fn after(now: u64, time: Duration) -> u64 {
    now.saturating_add(time.as_nanos().try_into().unwrap_or(u64::MAX))
}
