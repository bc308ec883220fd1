//! A membership's task on the control thread: drives a [`Session`] over gRPC.

use std::{
    future::{self, Future},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use switchml_control::{
    self as control, JoinEvent, JoinRequest, LeaveRequest, ListJobsRequest, ReadyRequest,
    ReportCallsRequest, ReportNoMulticastRequest, ReportRoundTripsRequest, ResumeRequest,
    aggregator_client::AggregatorClient, client::Connection, join_event, rank_list, tls::TlsError,
};
use switchml_worker_core::session::{
    Action, Answer, CONNECT, Ending, Event, Goodbye, News, Request, Session,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tonic::{Response, Status, Streaming};

use super::{
    Access, Assigned, Error,
    board::Board,
    connection,
    control_thread::Shared,
    lines::Line,
    messages::{self, refusal},
    reports::Reports,
};
use crate::{late_ranks::LONG, warning::warn};

/// What a rank needs to join a job.
pub(super) struct Joining {
    pub access: Access,
    pub addresses: Vec<SocketAddr>,
    pub request: JoinRequest,
    pub timeout: Duration,
    /// Whether another aggregator can go on if this one is lost.
    pub has_others: bool,
    /// When the rank began to join.
    pub begin: Instant,
    pub board: Arc<Board>,
}

impl Joining {
    /// Runs until the session is over. `events` are the events from the rank's other threads.
    pub async fn run(self, shared: Shared, mut events: UnboundedReceiver<Event>) {
        let session = Session::new(0, self.timeout);
        let session = if self.has_others { session.with_others() } else { session };
        let address = self.addresses.first().map(SocketAddr::to_string).unwrap_or_default();
        let begin = self.begin;
        let mut member = Member {
            joining: self,
            shared,
            session,
            address,
            line: None,
            tls_fault: None,
            assigned: None,
            under_way: None,
            stream: None,
            reports: Reports::new(Instant::now()),
            warns_at: Some(begin + LONG),
        };
        member.drive(&mut events).await;
    }
}

struct Member {
    joining: Joining,
    shared: Shared,
    /// The session. Its time starts when the rank began to join.
    session: Session,
    /// The address that was tried last.
    address: String,
    line: Option<Arc<Line>>,
    /// The TLS error, if there is no connection because of it.
    tls_fault: Option<TlsError>,
    assigned: Option<Assigned>,
    /// The connection attempt or request in flight.
    under_way: Option<UnderWay>,
    stream: Option<Streaming<JoinEvent>>,
    reports: Reports,
    /// When to warn of ranks that have not joined; `None` once it has.
    warns_at: Option<Instant>,
}

type UnderWay = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The outcome of a connection attempt or a request.
enum Outcome {
    Connected(Arc<Line>),
    Unreachable(Error),
    Opened(Box<Streaming<JoinEvent>>),
    Answered(Answer),
}

/// The input that ends a wait.
enum Input {
    Told(Option<Event>),
    Outcome(Outcome),
    Stream(Result<Option<JoinEvent>, Status>),
    Time,
}

impl Member {
    async fn drive(&mut self, events: &mut UnboundedReceiver<Event>) {
        loop {
            while let Some(action) = self.session.next_action() {
                match action {
                    Action::End(ending) => return self.end(ending),
                    action => self.perform(action),
                }
            }
            let board = &self.joining.board;
            board.set_departed(self.session.departed());
            board.unwatched.store(!self.session.is_watched(), Ordering::Relaxed);
            let deadline = self.session.deadline();
            let deadline = deadline.map(|at| self.joining.begin + Duration::from_nanos(at));
            let deadline = deadline.into_iter().chain(self.warns_at).min();
            let input = tokio::select! {
                event = events.recv() => Input::Told(event),
                outcome = outcome_of(&mut self.under_way) => Input::Outcome(outcome),
                event = next_of(&mut self.stream) => Input::Stream(event),
                () = time(deadline) => Input::Time,
                () = time(Some(self.reports.due())) => Input::Time,
            };
            let event = match input {
                // The rank's other threads are gone: the aggregator notices the end of the
                // connection.
                Input::Told(None) => return,
                Input::Told(event) => event,
                Input::Outcome(outcome) => Some(self.take_outcome(outcome)),
                Input::Stream(event) => Some(self.hear(event)),
                Input::Time => None,
            };
            let now = self.joining.begin.elapsed().as_nanos() as u64;
            if let Some(event) = event {
                self.session.handle(now, event);
            }
            self.session.on_timer(now);
            self.report();
            self.say_who_is_missing();
        }
    }

    /// Prints a line once, when it is time, for users who wonder why nothing happens.
    fn say_who_is_missing(&mut self) {
        if self.warns_at.take_if(|at| *at <= Instant::now()).is_none() {
            return;
        }
        let missing = self.session.missing();
        if !missing.is_empty() {
            let JoinRequest { job_name, rank, .. } = &self.joining.request;
            let (waited, ranks) = (LONG.as_secs(), rank_list(missing));
            warn(job_name, *rank, format!(" has waited {waited} s for {ranks} to join"));
        }
    }

    /// Sends a report if it is time for one and there is a connection.
    fn report(&mut self) {
        if !self.reports.take_turn(Instant::now()) {
            return;
        }
        let Some(assigned) = self.assigned.as_ref().filter(|_| self.session.is_watched()) else {
            return;
        };
        let Some(connection) = self.connection() else { return };
        let round_trips = self.joining.board.take_round_trips();
        let path = self.joining.board.path().map(|path| control::Path {
            joined_ms: self.joining.begin.elapsed().as_millis() as u64,
            ..path
        });
        let channel = connection.channel.clone();
        if round_trips.is_none() && !self.reports.is_news(path) {
            return;
        }
        let member = Some(assigned.member(self.joining.request.rank));
        let report = ReportRoundTripsRequest { member, round_trips, path };
        self.reports.send(channel, report);
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Connect => {
                self.stream = None;
                // What is connected again has failed.
                if let Some(line) = self.line.take() {
                    line.give_up();
                }
                let Joining { access, addresses, .. } = &self.joining;
                let (access, addresses) = (access.clone(), addresses.clone());
                let lines = Arc::clone(&self.shared.lines);
                self.under_way = Some(Box::pin(async move {
                    match lines.connect(&access, &addresses, CONNECT).await {
                        Ok(line) => Outcome::Connected(line),
                        Err(error) => Outcome::Unreachable(error),
                    }
                }));
            }
            Action::Send(request) => self.under_way = self.send(request),
            Action::OpenPath => {
                let assigned = self.assigned.clone();
                self.joining.board.note(|heard| heard.assigned = assigned);
            }
            Action::Start { lanes } => {
                self.joining.board.note(|heard| heard.started = Some(lanes));
            }
            Action::SayHello => drop(self.joining.board.hellos.fetch_add(1, Ordering::Relaxed)),
            Action::NoReason => self.joining.board.note(|heard| heard.has_no_reason = true),
            Action::End(_) => {}
        }
    }

    /// Sends a request; the future returns its answer. `None` if the session has no connection.
    fn send(&self, request: Request) -> Option<UnderWay> {
        let mut client = AggregatorClient::new(self.connection()?.channel.clone());
        // Nothing but Join is sent before.
        let member =
            self.assigned.as_ref().map(|assigned| assigned.member(self.joining.request.rank));
        Some(match request {
            Request::Join => {
                let request = self.joining.request.clone();
                Box::pin(async move { opened(client.join(request).await) })
            }
            Request::Resume => {
                let via = Vec::new();
                let standstill_ms = self.joining.request.standstill_ms;
                let request = ResumeRequest { member, via, standstill_ms };
                Box::pin(async move { opened(client.resume(request).await) })
            }
            Request::Ready { lanes, needs_copies } => {
                let lanes = lanes.into();
                let share = self.joining.board.share.get().copied();
                let taker = self.joining.board.taker.get().copied().map(u32::from);
                let request = ReadyRequest { member, lanes, needs_copies, share, taker };
                Box::pin(async move { done(client.ready(request).await) })
            }
            Request::Unready => {
                let job = member.unwrap_or_default().job;
                Box::pin(async move {
                    Outcome::Answered(match client.list_jobs(ListJobsRequest {}).await {
                        Ok(list) => Answer::Unready(messages::unready(list.into_inner().jobs, job)),
                        Err(status) => refusal(&status),
                    })
                })
            }
            Request::ReportCalls { last, named } => {
                let calls = self.calls_in_flight(last);
                let named = named.into_iter().flatten().map(u32::from).collect();
                let request = ReportCallsRequest { member, calls, named };
                Box::pin(async move { done(client.report_calls(request).await) })
            }
            Request::ReportNoMulticast => {
                let request = ReportNoMulticastRequest { member };
                Box::pin(async move { done(client.report_no_multicast(request).await) })
            }
            Request::Leave(Goodbye { error, ranks, lost_aggregator }) => {
                let ranks = ranks.into_iter().map(u32::from).collect();
                let round_trips = self.joining.board.take_round_trips();
                let request = LeaveRequest {
                    member,
                    error,
                    ranks,
                    round_trips,
                    lost_aggregator,
                    ..LeaveRequest::default()
                };
                Box::pin(async move { done(client.leave(request).await) })
            }
        })
    }

    fn connection(&self) -> Option<&Connection> {
        let (_, connection) = self.line.as_ref()?.get()?;
        Some(connection)
    }

    fn calls_in_flight(&self, last: u64) -> Vec<control::Call> {
        let calls = self.joining.board.lock().calls_in_flight.clone();
        let calls = calls.map(|calls| calls(last)).unwrap_or_default();
        let calls = calls.into_iter().take(control::MAX_REPORTED_CALLS);
        calls.collect()
    }

    fn take_outcome(&mut self, outcome: Outcome) -> Event {
        self.under_way = None;
        match outcome {
            Outcome::Connected(line) => {
                if let Some((address, connection)) = line.get() {
                    self.address.clone_from(address);
                    let pulse = Some(connection.pulse.clone());
                    self.joining.board.note(|heard| heard.pulse = pulse);
                }
                (self.line, self.tls_fault) = (Some(line), None);
                Event::Connected
            }
            Outcome::Unreachable(Error::Tls { address, why }) => {
                self.address = address;
                self.tls_fault = Some(why.clone());
                Event::Unreachable(why.to_string())
            }
            Outcome::Unreachable(Error::Unreachable { address, why }) => {
                self.address = address;
                Event::Unreachable(why)
            }
            Outcome::Unreachable(error) => Event::Unreachable(error.to_string()),
            Outcome::Opened(stream) => {
                self.stream = Some(*stream);
                Event::Answered(Answer::Done)
            }
            Outcome::Answered(answer) => Event::Answered(answer),
        }
    }

    fn hear(&mut self, event: Result<Option<JoinEvent>, Status>) -> Event {
        match event {
            Ok(Some(JoinEvent { event: Some(join_event::Event::Assigned(message)) })) => {
                Event::Heard(match Assigned::from_message(&message) {
                    Ok(assigned) => {
                        let durable = assigned.durable;
                        self.assigned = Some(assigned);
                        News::Assigned { durable }
                    }
                    Err(what) => News::Nonsense(what),
                })
            }
            Ok(Some(event)) => Event::Heard(messages::news(event)),
            Ok(None) => {
                self.stream = None;
                Event::Lost("it closed the stream".to_owned())
            }
            Err(status) => {
                self.stream = None;
                let why = connection::failure_of(&status);
                Event::Lost(why.unwrap_or_else(|| status.message().to_owned()))
            }
        }
    }

    fn end(&self, ending: Ending) {
        let address = self.address.clone();
        let JoinRequest { job_name: job, world_size, .. } = self.joining.request.clone();
        let waited = self.joining.timeout;
        let later = self.connection().and_then(Connection::fault);
        let tls_fault = self.tls_fault.as_ref().or(later).cloned();
        let allowed = Duration::from_millis(self.joining.request.standstill_ms);
        let stood = self.shared.clock.stood_still();
        let error = match ending {
            Ending::Left => return self.joining.board.leave(),
            // The others have gone on, or ended, and what they say is true, and not the cause.
            Ending::Aborted { .. }
            | Ending::Stopped { .. }
            | Ending::Lost(_)
            | Ending::Forgotten(_)
                if let Some(stood) = stood.filter(|stood| *stood >= allowed) =>
            {
                Error::StoodStill { stood, allowed }
            }
            Ending::Unreachable(_) | Ending::Lost(_) if let Some(why) = tls_fault => {
                Error::Tls { address, why }
            }
            Ending::Unreachable(why) => Error::Unreachable { address, why },
            Ending::Refused(why) => Error::Refused { address, why },
            Ending::Missing(ranks) => {
                let world_size = u16::try_from(world_size).unwrap_or(u16::MAX);
                let at = self.joining.access.peer.is_none().then_some(address);
                Error::Missing { job, world_size, waited, ranks, at }
            }
            Ending::NotReady(ranks) => Error::NotReady { job, waited, ranks },
            Ending::Stopped { reason, ranks } => Error::Stopped { reason, ranks },
            Ending::Aborted { reason, ranks } => Error::Aborted { reason, ranks },
            Ending::Mismatch { reason, calls } => Error::Mismatch { reason, calls },
            Ending::Lost(why) => Error::Lost { address, why },
            Ending::Forgotten(why) => Error::Forgotten { address, why },
            Ending::Nonsense(what) => Error::Answer { address, what },
        };
        self.joining.board.end(match self.joining.access.peer {
            None => error,
            Some(rank) => error.of_peer(rank),
        });
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Threads that wait would wait forever.
            self.joining.board.end(Error::System { why: "it panicked".to_owned() });
        }
        self.joining.board.be_over();
    }
}

fn done<T>(answer: Result<Response<T>, Status>) -> Outcome {
    Outcome::Answered(match answer {
        Ok(_) => Answer::Done,
        Err(status) => refusal(&status),
    })
}

fn opened(answer: Result<Response<Streaming<JoinEvent>>, Status>) -> Outcome {
    match answer {
        Ok(stream) => Outcome::Opened(Box::new(stream.into_inner())),
        Err(status) => Outcome::Answered(refusal(&status)),
    }
}

/// Waits for the outcome of what is in flight; forever if nothing is.
async fn outcome_of(under_way: &mut Option<UnderWay>) -> Outcome {
    match under_way {
        Some(under_way) => under_way.await,
        None => future::pending().await,
    }
}

/// Waits for the next event of a stream; forever if there is none.
async fn next_of(stream: &mut Option<Streaming<JoinEvent>>) -> Result<Option<JoinEvent>, Status> {
    match stream {
        Some(stream) => stream.message().await,
        None => future::pending().await,
    }
}

/// Waits until `deadline`; forever if there is none.
async fn time(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => future::pending().await,
    }
}
