//! A rank's membership in a job.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use switchml_control::JoinRequest;
use tokio::sync::mpsc::UnboundedSender;

use super::{
    Error,
    board::Board,
    link::{self, Command, Goodbye, Link},
    resolve, threads,
};

/// What a job gives to a rank. The same for all ranks, but for the secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Number of the job, for the header.
    pub job: u16,
    /// The session's epoch, for the header.
    pub epoch: u32,
    /// Number of slots S: the header's slot is 0..S-1.
    pub slots: u16,
    /// Where contributions go, and where every answer comes from.
    pub data_address: SocketAddrV4,
    /// Multicast group of a RESULT for all; `None` when each rank gets a copy of its own.
    pub group: Option<SocketAddrV4>,
    /// The `aux` of this rank's HELLO.
    pub hello_secret: u32,
    /// Proves to the control plane that a request is this rank's.
    pub control_secret: u64,
    /// Most lanes in a packet that the data plane takes.
    pub max_lanes: u16,
    /// Whether the data plane outlives the aggregator's daemon: a job that has started goes on when
    /// the connection breaks, which is then made again.
    pub durable: bool,
    /// Whether RESULTs of a MAX carry no check word, so that the ranks must prove them.
    pub unchecked_maxima: bool,
    /// Whether the data plane drops packets whose lanes are two i16.
    pub i32_lanes_only: bool,
    /// Job number and group of each shard after the first, which has those above. All have as many
    /// slots.
    pub further_shards: Vec<(u16, Option<SocketAddrV4>)>,
}

impl Assigned {
    /// Fails with the field that makes no sense.
    pub(super) fn from_message(message: &switchml_control::Assigned) -> Result<Self, String> {
        let wrong = |field: &str| format!("a wrong {field}: {message:?}");
        let narrow = |number: u32, field| u16::try_from(number).map_err(|_| wrong(field));
        let ip = |text: &str, field| text.parse::<Ipv4Addr>().map_err(|_| wrong(field));
        let group = |address: &str, port| {
            if address.is_empty() {
                return Ok::<_, String>(None);
            }
            Ok(Some(SocketAddrV4::new(ip(address, "group_address")?, narrow(port, "group_port")?)))
        };
        let further = message.further_shards.iter();
        let further = further.map(|shard| {
            Ok((narrow(shard.job, "job")?, group(&shard.group_address, shard.group_port)?))
        });
        Ok(Self {
            job: narrow(message.job, "job")?,
            epoch: message.epoch,
            slots: narrow(message.slots, "slots")
                .and_then(|slots| if slots > 0 { Ok(slots) } else { Err(wrong("slots")) })?,
            data_address: SocketAddrV4::new(
                ip(&message.data_address, "data_address")?,
                narrow(message.data_port, "data_port")?,
            ),
            group: group(&message.group_address, message.group_port)?,
            hello_secret: message.hello_secret,
            control_secret: message.control_secret,
            max_lanes: narrow(message.max_lanes, "max_lanes")?,
            durable: message.durable,
            unchecked_maxima: message.unchecked_maxima,
            i32_lanes_only: message.i32_lanes_only,
            further_shards: further.collect::<Result<_, String>>()?,
        })
    }

    /// Job number and group of each shard.
    pub fn shards(&self) -> impl Iterator<Item = (u16, Option<SocketAddrV4>)> {
        std::iter::once((self.job, self.group)).chain(self.further_shards.iter().copied())
    }
}

/// A rank's membership in a job: the connection is its sign of life. Dropping it leaves the job; in
/// a panic, as a failure.
pub struct Session {
    job: String,
    timeout: Duration,
    board: Arc<Board>,
    commands: UnboundedSender<Command>,
    thread: Option<JoinHandle<()>>,
}

impl Session {
    /// Joins the job named `job` at `aggregator` (see [`resolve`]) as `rank` of `world_size`, and
    /// waits until all ranks have. `timeout` also bounds the wait in [`Session::ready`]. The rank
    /// asks for `data_threads`, or for as many as this host has use for.
    ///
    /// # Errors
    ///
    /// [`Error::Address`], [`Error::UnknownHost`] or [`Error::Unreachable`]; [`Error::Refused`]
    /// with the aggregator's reason (a rank or world size out of range, a rank that is taken,
    /// another world size than the job's); [`Error::Missing`] with the ranks that did not come in
    /// time; [`Error::Aborted`] or [`Error::Lost`].
    pub fn join(
        aggregator: &str,
        job: &str,
        rank: u32,
        world_size: u32,
        data_threads: Option<u32>,
        timeout: Duration,
    ) -> Result<(Self, Assigned), Error> {
        let begin = Instant::now();
        let board = Arc::new(Board::default());
        let (commands, received) = tokio::sync::mpsc::unbounded_channel();
        let addresses = resolve(aggregator)?;
        let (data_threads, host) = match data_threads {
            Some(exactly) => (exactly, String::new()),
            None => threads::of_this_host(&addresses),
        };
        let link = Link {
            addresses,
            request: JoinRequest { job_name: job.to_owned(), rank, world_size, data_threads, host },
            timeout,
            board: Arc::clone(&board),
        };
        let runtime = link::runtime()?;
        let thread = std::thread::Builder::new()
            .name("switchml-control".to_owned())
            .spawn(move || link.run(&runtime, received))
            .map_err(|error| Error::System { why: error.to_string() })?;
        let session = Self { job: job.to_owned(), timeout, board, commands, thread: Some(thread) };

        let left = timeout.saturating_sub(begin.elapsed());
        let assigned = session.board.wait(left, |heard| heard.assigned.clone())?;
        let assigned = assigned.ok_or_else(|| session.missing(aggregator, world_size))?;
        Ok((session, assigned))
    }

    /// Tells that chunks of `lanes` lanes pass between this rank and the aggregator, and waits
    /// until every rank has told its own. Returns the smallest: the lanes of the job's full chunk.
    ///
    /// # Errors
    ///
    /// [`Error::NotReady`] with the ranks that did not tell in time; [`Error::Refused`],
    /// [`Error::Aborted`] or [`Error::Lost`].
    pub fn ready(&self, lanes: u16) -> Result<u16, Error> {
        // A control thread that has ended has said why on the board.
        let _ = self.commands.send(Command::Ready(lanes));
        if let Some(lanes) = self.board.wait(self.timeout, |heard| heard.started)? {
            return Ok(lanes);
        }
        let (answer, ranks) = std::sync::mpsc::channel();
        let _ = self.commands.send(Command::Unready(answer));
        let ranks = ranks.recv().unwrap_or_default();
        Err(self.ended().unwrap_or_else(|| Error::NotReady {
            job: self.job.clone(),
            waited: self.timeout,
            ranks,
        }))
    }

    /// Tells the aggregator which calls of this rank are in flight, with their numbers from 1, when
    /// ranks made different calls: the last is the one that the data plane refused, and `named` are
    /// the ranks that it named. The session ends by [`Error::Mismatch`] then.
    pub fn report_calls(&self, calls: Vec<(u64, String)>, named: [u16; 2]) {
        let _ = self.commands.send(Command::ReportCalls { calls, named });
    }

    /// Calls `calls`, from the control thread, when the aggregator wants to know which calls of
    /// this rank are in flight: a call of another rank was refused.
    pub fn on_calls_wanted(&self, calls: impl Fn() -> Vec<(u64, String)> + Send + Sync + 'static) {
        self.board.note(|heard| heard.calls_in_flight = Some(Arc::new(calls)));
    }

    /// The ranks that have left in good order, as a bitmap.
    pub fn departed(&self) -> u64 {
        self.board.departed.load(Ordering::Relaxed)
    }

    /// Whether the aggregator would tell of a rank that died: while the connection lives.
    pub fn is_watched(&self) -> bool {
        !self.board.unwatched.load(Ordering::Relaxed)
    }

    /// Calls `callback` once, from the control thread, when the session ends without this rank's
    /// doing: [`Error::Aborted`], or [`Error::Lost`] when the connection breaks, or
    /// [`Error::Forgotten`] where it could be made again. Calls it at once if that has happened.
    /// Replaces an earlier callback.
    pub fn on_end(&self, callback: impl FnOnce(Error) + Send + 'static) {
        self.board.on_end(Box::new(callback));
    }

    /// Why the session has ended; `None` while it lasts.
    pub fn ended(&self) -> Option<Error> {
        self.board.ended()
    }

    /// Leaves the job in good order. Returns when the aggregator has heard it, after a second at
    /// the latest.
    pub fn leave(mut self) {
        self.end(Goodbye::default());
    }

    /// Leaves the job as failed: the other ranks are told why, and fail. `ranks` are those that the
    /// error blames; where there are none, this rank is. Returns as [`Session::leave`] does.
    pub fn fail(mut self, error: &str, ranks: Vec<u16>) {
        self.end(Goodbye { error: error.to_owned(), ranks });
    }

    fn end(&mut self, goodbye: Goodbye) {
        let _ = self.commands.send(Command::Leave(goodbye));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Why there is no assignment when the time is up.
    fn missing(&self, aggregator: &str, world_size: u32) -> Error {
        let ranks = std::mem::take(&mut self.board.lock().missing);
        if ranks.is_empty() {
            return Error::Unreachable {
                address: aggregator.to_owned(),
                why: format!("silent for {} s", self.timeout.as_secs_f64()),
            };
        }
        let world_size = u16::try_from(world_size).unwrap_or(u16::MAX);
        Error::Missing { job: self.job.clone(), world_size, waited: self.timeout, ranks }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let error = if std::thread::panicking() { "the rank panicked" } else { "" };
            self.end(Goodbye { error: error.to_owned(), ranks: Vec::new() });
        }
    }
}
