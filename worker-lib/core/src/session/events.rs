//! The events and actions of a session.

use crate::engine::Failure;

/// An event for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The connection that [`Action::Connect`] asked for was made.
    Connected,
    /// The connection could not be made.
    Unreachable(String),
    /// The request of the last [`Action::Send`] is answered, or never will be.
    Answered(Answer),
    /// The stream that a Join or Resume opened says something.
    Heard(News),
    /// The stream has ended, or its connection broke.
    Lost(String),
    /// The data path is open: it carries chunks of this many lanes.
    PathOpen {
        /// Lanes of the largest chunk that passes both ways.
        lanes: u16,
        /// Whether the job's group does not reach the rank.
        needs_copies: bool,
    },
    /// The data path has failed.
    Failed {
        /// Why.
        failure: Failure,
        /// For a [`Failure::Mismatch`]: the number of the refused call, if it is known.
        call: Option<u64>,
    },
    /// The data path gets no results by multicast, only copies.
    HearsNoGroup,
    /// The rank wants to leave.
    Leave(Goodbye),
}

/// The aggregator's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request succeeded. For Join and Resume: the stream is open.
    Done,
    /// The ranks that are not ready, for [`Request::Unready`].
    Unready(Vec<u16>),
    /// The request was refused, for this reason.
    Refused(String),
    /// The aggregator does not know the job, or this rank in it.
    Unknown(String),
    /// There will be no answer: the connection broke.
    Lost(String),
}

/// An event of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// These ranks have not joined yet.
    Waiting(Vec<u16>),
    /// All ranks have joined.
    Assigned {
        /// Whether the data plane outlives the aggregator's daemon.
        durable: bool,
    },
    /// All ranks are ready: the data path may send.
    Started {
        /// Lanes of a full chunk.
        lanes: u16,
    },
    /// The job is over.
    Aborted {
        /// The reason, with the ranks.
        reason: String,
        /// The ranks at fault.
        ranks: Vec<u16>,
        /// The ranks' calls, if they made different ones.
        calls: Vec<MadeCall>,
    },
    /// The session is over, and another aggregator may go on.
    Stops {
        /// The aggregator's words.
        reason: String,
        /// The ranks whose connections with it broke, if that is why.
        ranks: Vec<u16>,
    },
    /// A rank has left normally.
    Left(u16),
    /// The aggregator wants to know which calls of this rank are in flight.
    CallsWanted,
    /// The event makes no sense.
    Nonsense(String),
}

/// A call that some ranks made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeCall {
    /// The ranks that made it.
    pub ranks: Vec<u16>,
    /// The number of the call among the calls of each of these ranks; 1 is the first.
    pub number: u64,
    /// The call in words, such as `all_reduce(sum, f32, 1000)`.
    pub call: String,
}

/// A rank's message when it leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Goodbye {
    /// The error; empty if there was none.
    pub error: String,
    /// The ranks that the error blames, if any.
    pub ranks: Vec<u16>,
    /// Whether the rank takes the aggregator for lost, and another one goes on (rule 36.16).
    pub lost_aggregator: bool,
}

/// An action for the driver; actions come in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the aggregator. An earlier connection is abandoned.
    Connect,
    /// Send a request over the connection. An earlier one without an answer is abandoned.
    Send(Request),
    /// Open the data path.
    OpenPath,
    /// The job has started: the data path may send chunks.
    Start {
        /// Lanes of a full chunk.
        lanes: u16,
    },
    /// Have the data path say HELLO again, because a combiner may have forgotten the rank.
    SayHello,
    /// The control plane cannot explain the failure of the data path: the failure is the reason.
    NoReason,
    /// The session is over: close the connection. Nothing follows.
    End(Ending),
}

/// A request to the aggregator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Join the job, and open a stream of news.
    Join,
    /// Open a stream of news of the job that the rank is in.
    Resume,
    /// The data path is open.
    Ready {
        /// Lanes of the largest chunk that passes.
        lanes: u16,
        /// Whether the job's group does not reach the rank.
        needs_copies: bool,
    },
    /// Which ranks of the job are not ready?
    Unready,
    /// The calls of this rank that are in flight.
    ReportCalls {
        /// Report the calls up to this number.
        last: u64,
        /// The two ranks in the data plane's REJECT; `None` from a rank that was asked.
        named: Option<[u16; 2]>,
    },
    /// The rank gets no results by multicast.
    ReportNoMulticast,
    /// Goodbye.
    Leave(Goodbye),
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The rank left, as it wanted.
    Left,
    /// No aggregator answered.
    Unreachable(String),
    /// The aggregator refused a request.
    Refused(String),
    /// These ranks did not join in time.
    Missing(Vec<u16>),
    /// These ranks joined, but did not open their data path in time.
    NotReady(Vec<u16>),
    /// The job was aborted.
    Aborted {
        /// The reason, with the ranks.
        reason: String,
        /// The ranks at fault.
        ranks: Vec<u16>,
    },
    /// The aggregator serves the job no longer, and another one may go on.
    Stopped {
        /// The aggregator's words.
        reason: String,
        /// The ranks whose connections with it broke, if that is why.
        ranks: Vec<u16>,
    },
    /// Ranks made different calls.
    Mismatch {
        /// The reason in one line.
        reason: String,
        /// Each call once, with the ranks that made it.
        calls: Vec<MadeCall>,
    },
    /// The connection broke.
    Lost(String),
    /// The connection broke, and what answers now does not know the job (rule 23.5).
    Forgotten(String),
    /// The aggregator sent an event that makes no sense.
    Nonsense(String),
}
