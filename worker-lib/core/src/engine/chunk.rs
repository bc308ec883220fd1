//! Chunks: what the engine numbers, sends and hears of again.

use switchml_protocol::audience::Audience;
use switchml_protocol::header::{Header, Op};

use crate::packet::len_of;

/// What a chunk holds: a phase of its collective, and its place among the chunks of that phase.
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
    /// Of the elements of a data chunk that are sent in the wide form, those of this place.
    Wide(usize, usize),
}

/// One packet's worth of a collective, as the engine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The collective that it belongs to. The caller's own.
    pub collective: u64,
    /// What it holds. The caller's own.
    pub part: Part,
    /// How lanes are combined.
    pub op: Op,
    /// For whom the result is.
    pub audience: Audience,
    /// 32-bit words of payload.
    pub lanes: u16,
    /// The collective's fingerprint.
    pub fingerprint: u32,
    /// Whether the lanes may be left out at first: they are all zero on this rank, and the data
    /// plane takes such contributions to sums without payload.
    pub empty: bool,
    /// Whether it may wait for room in the window while later chunks without lanes go out: those
    /// of an all-gather's own part.
    pub may_wait: bool,
}

impl Chunk {
    /// The op of its packets.
    pub const fn wire_op(&self) -> u8 {
        self.audience.op(self.op)
    }
}

/// What a chunk went through until its result came.
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
    /// Whether it went out without its lanes at first.
    pub empty: bool,
    /// Whether the aggregator asked for them.
    pub room: bool,
}

/// A chunk that has its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The chunk.
    pub chunk: Chunk,
    /// Its way here.
    pub history: History,
    /// The slot that it had, for [`Engine::missing_of`](super::Engine::missing_of).
    pub slot: u16,
}

/// A packet to send: the caller adds the payload and, by [`Header::check_of`] with one
/// contribution, the check word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// The header, except the check word.
    pub header: Header,
    /// The chunk whose payload it carries.
    pub chunk: Chunk,
}

impl Transmission {
    /// Bytes of the packet: header, and payload unless it is left out.
    pub fn packet_len(&self) -> usize {
        len_of(&self.header)
    }
}
