//! The control thread: one connection, one stream of events, a few commands.

use std::{
    error::Error as _,
    future::Future,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering, mpsc::Sender},
    time::Duration,
};

use switchml_control::{
    self as control, Aborted, JoinEvent, JoinRequest, LeaveRequest, ListJobsRequest, ReadyRequest,
    ReportCallsRequest, ResumeRequest, aggregator_client::AggregatorClient, join_event::Event,
};
use tokio::{runtime::Runtime, sync::mpsc::UnboundedReceiver};
use tonic::{
    Code, Response, Status, Streaming,
    transport::{Channel, Endpoint},
};

use super::{Assigned, Error, MadeCall, board::Board};

/// Longest wait for a TCP connection to one address.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a call that the aggregator answers at once.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest wait for a goodbye to be heard.
const GOODBYE: Duration = Duration::from_secs(1);
/// An idle connection is probed this often, so that a dead host is noticed between collectives too.
const PROBE: Duration = Duration::from_secs(5);
/// A probe without an answer for so long is the end. Generous: a machine that computes may starve
/// this thread.
const PROBE_ANSWER: Duration = Duration::from_secs(10);

/// Longest attempt to find an aggregator again whose data plane has most likely ended with it.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Pauses between attempts to find the aggregator again: doubled from the first up to the last, so
/// that an aggregator that was restarted hears of all its ranks within a second or two.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// What a rank says when it leaves.
#[derive(Default)]
pub(super) struct Goodbye {
    /// What went wrong; empty if nothing did.
    pub error: String,
    /// The ranks that the error blames, if any.
    pub ranks: Vec<u16>,
}

/// What a session asks of its control thread. The end of the commands is the end of the thread.
pub(super) enum Command {
    /// The rank's data path carries chunks of this many lanes.
    Ready(u16),
    /// Which ranks are not ready.
    Unready(Sender<Vec<u16>>),
    /// These calls of the rank, by number, are in flight, and the last was refused; the data plane
    /// named two ranks.
    ReportCalls { calls: Vec<(u64, String)>, named: [u16; 2] },
    /// Goodbye.
    Leave(Goodbye),
}

/// A runtime for the calling thread alone.
pub(super) fn runtime() -> Result<Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::System { why: error.to_string() })
}

/// Connects to the first of the addresses that answers. Returns that address too.
pub(super) async fn connect(
    addresses: &[SocketAddr],
    timeout: Duration,
) -> Result<(String, Channel), Error> {
    let mut failed = None;
    for address in addresses {
        let address = address.to_string();
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Error::Address { given: address.clone(), why: root_cause(&error) })?
            .connect_timeout(timeout.min(CONNECT))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PROBE)
            .keep_alive_timeout(PROBE_ANSWER)
            .keep_alive_while_idle(true);
        match endpoint.connect().await {
            Ok(channel) => return Ok((address, channel)),
            Err(error) => failed = Some(Error::Unreachable { address, why: root_cause(&error) }),
        }
    }
    Err(failed.unwrap_or_else(|| Error::Address {
        given: String::new(),
        why: "no address given".to_owned(),
    }))
}

/// The answer to a call, if it comes in time.
pub(super) async fn within<T>(
    timeout: Duration,
    address: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(from_status(address, &status)),
        Err(_) => Err(no_answer(address, timeout)),
    }
}

fn no_answer(address: &str, waited: Duration) -> Error {
    Error::Lost {
        address: address.to_owned(),
        why: format!("no answer for {} s", waited.as_secs_f64()),
    }
}

/// A status that the aggregator sent is its word; one with a source was made here, of a failure
/// underneath.
fn from_status(address: &str, status: &Status) -> Error {
    let address = address.to_owned();
    match status.source() {
        None => Error::Refused { address, why: status.message().to_owned() },
        Some(source) => Error::Lost { address, why: root_cause(source) },
    }
}

/// The innermost error: the outer ones only say "transport error".
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// A rank on its way into a job.
pub(super) struct Link {
    pub addresses: Vec<SocketAddr>,
    pub request: JoinRequest,
    pub timeout: Duration,
    pub board: Arc<Board>,
}

impl Link {
    /// Runs until the session is given up or ends by itself.
    pub fn run(self, runtime: &Runtime, mut commands: UnboundedReceiver<Command>) {
        let board = Arc::clone(&self.board);
        if let Err(why) = runtime.block_on(self.serve(&mut commands)) {
            board.end(why);
        }
    }

    async fn serve(self, commands: &mut UnboundedReceiver<Command>) -> Result<(), Error> {
        // Before there is a session, any command is its owner's farewell.
        let (address, client, stream) = tokio::select! {
            opened = self.open() => opened?,
            _ = commands.recv() => return Ok(()),
        };
        let Self { addresses, request, board, .. } = self;
        Member {
            address,
            addresses,
            client,
            rank: request.rank,
            assigned: None,
            started: false,
            board,
        }
        .live(stream, commands)
        .await
    }

    async fn open(
        &self,
    ) -> Result<(String, AggregatorClient<Channel>, Streaming<JoinEvent>), Error> {
        let (address, channel) = connect(&self.addresses, self.timeout).await?;
        let mut client = AggregatorClient::new(channel);
        let stream = within(ANSWER, &address, client.join(self.request.clone())).await?;
        Ok((address, client, stream))
    }
}

/// A rank in a job.
struct Member {
    /// The address that answers, of those below.
    address: String,
    addresses: Vec<SocketAddr>,
    client: AggregatorClient<Channel>,
    rank: u32,
    assigned: Option<Assigned>,
    started: bool,
    board: Arc<Board>,
}

impl Member {
    /// Serves one stream after the other, until the rank leaves or the job is over.
    async fn live(
        mut self,
        mut stream: Streaming<JoinEvent>,
        commands: &mut UnboundedReceiver<Command>,
    ) -> Result<(), Error> {
        loop {
            let lost = match self.serve(stream, commands).await {
                Err(lost @ Error::Lost { .. }) if self.started => lost,
                ended => return ended,
            };
            // The collectives go on meanwhile, and have their own deadline.
            self.board.unwatched.store(true, Ordering::Relaxed);
            tokio::select! {
                resumed = self.find_again(lost) => {
                    stream = resumed?;
                    self.board.unwatched.store(false, Ordering::Relaxed);
                }
                goodbye = farewell(commands) => {
                    // As below, it is no worse if nobody hears it.
                    let _ = tokio::time::timeout(GOODBYE, self.leave_anew(goodbye)).await;
                    return Ok(());
                }
            }
        }
    }

    /// Goes on hearing of the job over another connection. Where the data plane ends with the
    /// daemon, there is most likely nobody to find. But the aggregator may also have given up this
    /// rank, because it stood still: then it says so.
    async fn find_again(&mut self, lost: Error) -> Result<Streaming<JoinEvent>, Error> {
        if self.assigned.as_ref().is_some_and(|assigned| assigned.durable) {
            return self.resume_patiently().await;
        }
        match tokio::time::timeout(ATTEMPT, self.resume()).await {
            Ok(Err(Error::Lost { .. } | Error::Unreachable { .. })) | Err(_) => Err(lost),
            Ok(resumed) => resumed,
        }
    }

    /// Connects again, and goes on hearing of the job. Tries for as long as nobody answers.
    async fn resume_patiently(&mut self) -> Result<Streaming<JoinEvent>, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.resume().await {
                Err(Error::Lost { .. } | Error::Unreachable { .. }) => {
                    tokio::time::sleep(pause).await
                }
                resumed => return resumed,
            }
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }

    async fn resume(&mut self) -> Result<Streaming<JoinEvent>, Error> {
        let Some(Assigned { job, epoch, control_secret, .. }) = self.assigned else {
            return Err(self.nonsense("a stream that ended before the job was assigned".to_owned()));
        };
        self.reconnect().await?;
        let request = ResumeRequest { job: job.into(), epoch, rank: self.rank, control_secret };
        let asked = tokio::time::timeout(ANSWER, self.client.resume(request)).await;
        match asked {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) if status.code() == Code::NotFound => Err(Error::Forgotten {
                address: self.address.clone(),
                why: status.message().to_owned(),
            }),
            Ok(Err(status)) => Err(from_status(&self.address, &status)),
            Err(_) => Err(no_answer(&self.address, ANSWER)),
        }
    }

    async fn reconnect(&mut self) -> Result<(), Error> {
        let (address, channel) = connect(&self.addresses, CONNECT).await?;
        self.address = address;
        self.client = AggregatorClient::new(channel);
        Ok(())
    }

    async fn leave_anew(&mut self, goodbye: Goodbye) -> Result<(), Error> {
        self.reconnect().await?;
        self.leave(goodbye).await
    }

    async fn serve(
        &mut self,
        mut stream: Streaming<JoinEvent>,
        commands: &mut UnboundedReceiver<Command>,
    ) -> Result<(), Error> {
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Ready(lanes)) => self.ready(lanes).await?,
                    Some(Command::Unready(answer)) => drop(answer.send(self.unready().await?)),
                    Some(Command::ReportCalls { calls, named }) => {
                        // A report that nobody hears is no worse than the data plane's word alone.
                        let _ = self.report_calls(calls, &named).await;
                    }
                    Some(Command::Leave(goodbye)) => {
                        // A goodbye that nobody hears is no worse than the connection's end that
                        // follows.
                        let _ = self.leave(goodbye).await;
                        return Ok(());
                    }
                    None => return Ok(()),
                },
                event = stream.message() => match event.map_err(|status| from_status(&self.address, &status))? {
                    Some(JoinEvent { event: Some(Event::CallsWanted(_)) }) => {
                        let calls = self.board.lock().calls_in_flight.clone();
                        let calls = calls.map(|calls| calls()).unwrap_or_default();
                        // Without it, who is refused hears less of why.
                        let _ = self.report_calls(calls, &[]).await;
                    }
                    Some(event) => self.hear(event)?,
                    None => {
                        return Err(Error::Lost { address: self.address.clone(), why: "it closed the stream".to_owned() });
                    }
                },
            }
        }
    }

    fn hear(&mut self, event: JoinEvent) -> Result<(), Error> {
        match event.event {
            Some(Event::Waiting(waiting)) => {
                self.board.note(|heard| heard.missing = ranks(&waiting.missing_ranks))
            }
            Some(Event::Assigned(assigned)) => {
                let assigned =
                    Assigned::from_message(&assigned).map_err(|what| self.nonsense(what))?;
                self.assigned = Some(assigned.clone());
                self.board.note(|heard| heard.assigned = Some(assigned));
            }
            Some(Event::Started(started)) => {
                let lanes = u16::try_from(started.lanes)
                    .map_err(|_| self.nonsense(format!("{started:?}")))?;
                self.started = true;
                self.board.note(|heard| heard.started = Some(lanes));
            }
            Some(Event::Aborted(aborted)) => {
                let Aborted { reason, ranks: at_fault, calls } = aborted;
                if calls.is_empty() {
                    return Err(Error::Aborted { reason, ranks: ranks(&at_fault) });
                }
                let made = |made: control::MadeCall| MadeCall {
                    ranks: ranks(&made.ranks),
                    number: made.number,
                    call: made.call,
                };
                return Err(Error::Mismatch {
                    reason,
                    calls: calls.into_iter().map(made).collect(),
                });
            }
            Some(Event::Left(left)) => {
                let rank = 1u64.checked_shl(left.rank).unwrap_or(0);
                self.board.departed.fetch_or(rank, Ordering::Relaxed);
            }
            Some(Event::CallsWanted(_)) | None => {
                return Err(self.nonsense("an event of an unknown kind".to_owned()));
            }
        }
        Ok(())
    }

    async fn ready(&mut self, lanes: u16) -> Result<(), Error> {
        let Some(Assigned { job, epoch, control_secret, .. }) = self.assigned else {
            return Ok(());
        };
        let lanes = lanes.into();
        let request =
            ReadyRequest { job: job.into(), epoch, rank: self.rank, lanes, control_secret };
        within(ANSWER, &self.address, self.client.ready(request)).await.map(drop)
    }

    async fn unready(&mut self) -> Result<Vec<u16>, Error> {
        let Some(Assigned { job, .. }) = self.assigned else { return Ok(Vec::new()) };
        let jobs =
            within(ANSWER, &self.address, self.client.list_jobs(ListJobsRequest {})).await?.jobs;
        let ours = jobs.into_iter().filter(|entry| entry.job == u32::from(job));
        let unready = ours.flat_map(|entry| entry.members).filter(|member| !member.ready);
        Ok(ranks(&unready.map(|member| member.rank).collect::<Vec<_>>()))
    }

    async fn report_calls(
        &mut self,
        calls: Vec<(u64, String)>,
        named: &[u16],
    ) -> Result<(), Error> {
        let Some(Assigned { job, epoch, control_secret, .. }) = self.assigned else {
            return Ok(());
        };
        let calls = calls
            .into_iter()
            .take(control::MAX_REPORTED_CALLS)
            .map(|(number, call)| control::Call { number, call });
        let request = ReportCallsRequest {
            job: job.into(),
            epoch,
            rank: self.rank,
            calls: calls.collect(),
            named: named.iter().copied().map(u32::from).collect(),
            control_secret,
        };
        within(ANSWER, &self.address, self.client.report_calls(request)).await.map(drop)
    }

    async fn leave(&mut self, Goodbye { error, ranks }: Goodbye) -> Result<(), Error> {
        let Some(Assigned { job, epoch, control_secret, .. }) = self.assigned else {
            return Ok(());
        };
        let ranks = ranks.into_iter().map(u32::from).collect();
        let request =
            LeaveRequest { job: job.into(), epoch, rank: self.rank, error, ranks, control_secret };
        within(GOODBYE, &self.address, self.client.leave(request)).await.map(drop)
    }

    fn nonsense(&self, what: String) -> Error {
        Error::Answer { address: self.address.clone(), what }
    }
}

/// The rank's goodbye, as [`Command::Leave`]. What else is asked meanwhile gets no answer.
async fn farewell(commands: &mut UnboundedReceiver<Command>) -> Goodbye {
    loop {
        match commands.recv().await {
            Some(Command::Leave(goodbye)) => return goodbye,
            Some(Command::Ready(_) | Command::Unready(_) | Command::ReportCalls { .. }) => {}
            None => return Goodbye::default(),
        }
    }
}

/// Ranks fit u16: the header's field is one.
fn ranks(numbers: &[u32]) -> Vec<u16> {
    let mut ranks: Vec<u16> = numbers.iter().filter_map(|&rank| u16::try_from(rank).ok()).collect();
    ranks.sort_unstable();
    ranks
}
