//! Chunks, as the engine numbers and sends them, and reports them when they are complete.

use switchml_protocol::wire::audience::Audience;
use switchml_protocol::wire::header::{Header, Op};

/// The contents of a chunk: a phase of its collective, and its place among the chunks of that
/// phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Exponents of data chunks.
    Exponents(usize),
    /// The proof of the maximum in a chunk: of exponents in a float sum, else of data.
    Witness(usize),
    /// A data chunk before its exponent is known.
    Speculative(usize),
    /// A data chunk.
    Data(usize),
    /// Elements of a data chunk that are sent in the wide form: the chunk, and the place in it.
    Wide(usize, usize),
}

/// One packet's worth of a collective, as the engine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The collective of the chunk. Only the caller interprets it.
    pub collective: u64,
    /// The contents of the chunk. Only the caller interprets them.
    pub part: Part,
    /// How lanes are combined.
    pub op: Op,
    /// The ranks that need the result.
    pub audience: Audience,
    /// 32-bit words of payload.
    pub lanes: u16,
    /// The collective's fingerprint.
    pub fingerprint: u32,
    /// Whether the lanes may be left out at first: they are all zero on this rank, and the data
    /// plane accepts such contributions to sums without payload.
    pub empty: bool,
    /// Whether it may wait for room in the window while later chunks without lanes go out: true for
    /// chunks of this rank's own part of an all-gather.
    pub may_wait: bool,
}

impl Chunk {
    /// The op field of the chunk's packets.
    pub const fn wire_op(&self) -> u8 {
        self.audience.op(self.op)
    }
}

/// The history of a chunk until its result came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Time of its first transmission, in ns.
    pub sent_at: u64,
    /// Times that it was sent again because no answer came in time.
    pub resent_by_timer: u32,
    /// Times that it was sent again because results of later chunks came first.
    pub resent_by_overtaking: u32,
    /// Times that it was sent again to ask whether a late peer has come.
    pub probes: u32,
    /// PENDING answers.
    pub pending: u32,
    /// Whether the chunk went out without its lanes at first.
    pub empty: bool,
    /// Whether the aggregator asked for the lanes.
    pub room: bool,
}

/// A chunk that has its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The chunk.
    pub chunk: Chunk,
    /// The history of the chunk.
    pub history: History,
    /// The number of the chunk, as [`Transmission::number`].
    pub number: u64,
    /// The slot of the chunk, for [`Engine::missing_of`](super::Engine::missing_of).
    pub slot: u16,
    /// The round of the chunk.
    pub round: u32,
}

/// A packet to send: the caller adds the payload and, by [`Header::check_of`] with one
/// contribution, the check word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// The header, except the check word.
    pub header: Header,
    /// The chunk whose payload it carries.
    pub chunk: Chunk,
    /// The number of the chunk in the session (rule 12.1).
    pub number: u64,
}
