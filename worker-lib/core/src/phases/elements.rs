//! A call's elements on this rank, cut into data chunks (rule 17.2).

use std::ops::Range;

use switchml_protocol::wire::audience::Audience;

use super::layout::Layout;
use crate::buffer::Buffer;
use crate::call::{Call, Kind, Submission};
use crate::numerics::Codec;
use crate::shards;

/// Number of chunks to prefetch ahead: encoding one takes less time than fetching it from memory.
const AHEAD: usize = 4;

/// See the module.
pub(crate) struct Elements {
    buffer: Box<dyn Buffer>,
    codec: Codec,
    /// The places of chunks in the elements.
    layout: Layout,
    /// The size of a full chunk.
    full: Full,
    /// The wide form, for chunks whose elements need more than three lanes.
    wide: Option<Wide>,
    kind: Kind,
    /// The call's number, and this rank.
    call: u64,
    rank: u32,
    /// Elements of the call before these.
    first: u64,
}

/// The common size of all data chunks except the last.
struct Full {
    /// Bytes of its elements.
    len: usize,
    lanes: usize,
    /// Bytes of an element.
    element: usize,
}

/// The wide form of a data chunk's elements: several chunks for one.
struct Wide {
    codec: Codec,
    /// Bytes of the elements of a full wide chunk.
    len: usize,
}

impl Elements {
    /// The elements of a submission, in packets of up to `lanes` lanes, among `ranks` ranks.
    pub fn new(submission: Submission, rank: u32, ranks: u32, lanes: usize) -> Self {
        let Submission { number, call, codec, first, buffer } = submission;
        let len = codec.bytes_per_chunk(lanes);
        let element = len / codec.elements_per_chunk(lanes);
        let full = Full { len, lanes: codec.lanes_for(len), element };
        let wide = codec.wide().map(|codec| Wide { codec, len: codec.bytes_per_chunk(lanes) });
        let held = buffer.bytes().len();
        let layout = match call.kind {
            Kind::ReduceScatter(_) | Kind::AllGather => {
                let parts = parts_of(&call, ranks, first, held);
                Layout::striped(&parts, len, shards::chunks_per_bundle(lanes))
            }
            _ => Layout::Straight { len: held, full: len },
        };
        Self { buffer, codec, layout, full, wide, kind: call.kind, call: number, rank, first }
    }

    /// Length of the elements in bytes.
    pub fn len(&self) -> usize {
        self.buffer.bytes().len()
    }

    /// Number of data chunks.
    pub fn chunks(&self) -> usize {
        self.layout.chunks()
    }

    /// The ranks that need the result of a data chunk.
    pub fn audience(&self, chunk: usize) -> Audience {
        match (self.kind, self.layout.owner(chunk)) {
            (Kind::ReduceScatter(_), Some(owner)) => Audience::One(owner),
            (Kind::AllGather, Some(owner)) => Audience::AllBut(owner),
            (Kind::Broadcast { root }, _) => Audience::AllBut(root as u16),
            _ => Audience::All,
        }
    }

    /// Lanes of a data chunk.
    pub fn lanes(&self, chunk: usize) -> usize {
        let len = self.range(chunk).len();
        if len == self.full.len { self.full.lanes } else { self.codec.lanes_for(len) }
    }

    /// This rank's exponent of a data chunk.
    pub fn exponent(&self, chunk: usize) -> i32 {
        self.buffer.prefetch(self.range(chunk + AHEAD));
        self.codec(chunk).exponent(self.of(chunk))
    }

    /// This rank's exponent of the smallest magnitude above zero in a data chunk.
    pub fn least_exponent(&self, chunk: usize) -> i32 {
        self.codec.least_exponent(self.of(chunk))
    }

    /// Number of wide chunks for the elements of a data chunk.
    pub fn wide_chunks(&self, chunk: usize) -> usize {
        self.wide.as_ref().map_or(0, |wide| self.range(chunk).len().div_ceil(wide.len))
    }

    /// Lanes of a wide chunk.
    pub fn wide_lanes(&self, chunk: usize, place: usize) -> usize {
        let range = self.wide_range(chunk, place);
        self.wide.as_ref().map_or(0, |wide| wide.codec.lanes_for(range.len()))
    }

    /// Writes this rank's share of a wide chunk; returns the wrapping sum of its lanes.
    pub fn encode_wide(&self, chunk: usize, place: usize, payload: &mut [u8]) -> u32 {
        let elements = &self.buffer.bytes()[self.wide_range(chunk, place)];
        self.wide.as_ref().map_or(0, |wide| wide.codec.encode(elements, 0, payload))
    }

    /// Overwrites the elements of a wide chunk with their result. They have lost nothing.
    pub fn decode_wide(&mut self, chunk: usize, place: usize, payload: &[u8]) {
        let range = self.wide_range(chunk, place);
        if let Some((_, residual)) = self.buffer.residual_mut() {
            residual[range.clone()].fill(0);
        }
        if let Some(wide) = &self.wide {
            wide.codec.decode(payload, 0, &mut self.buffer.bytes_mut()[range]);
        }
    }

    /// Whether this rank's elements of a data chunk count: in a broadcast, the root's do (rule
    /// 21.5), in an all-gather, each rank's own (rule 17.8).
    pub fn contribute(&self, chunk: usize) -> bool {
        match self.kind {
            Kind::AllReduce(_) | Kind::ReduceScatter(_) | Kind::Barrier => true,
            Kind::Broadcast { root } => root == self.rank,
            Kind::AllGather => self.layout.owner(chunk).is_some_and(|o| u32::from(o) == self.rank),
        }
    }

    /// Writes this rank's share of a data chunk; the wrapping sum of its lanes.
    pub fn encode(&self, chunk: usize, exponent: i32, payload: &mut [u8]) -> u32 {
        if !self.contribute(chunk) {
            return self.codec(chunk).encode(&[], exponent, payload);
        }
        self.buffer.prefetch(self.range(chunk + AHEAD));
        self.codec(chunk).encode(self.of(chunk), exponent, payload)
    }

    /// Overwrites a data chunk with its result. Before that, computes the residuals of its
    /// elements.
    pub fn decode(&mut self, chunk: usize, exponent: i32, payload: &[u8]) {
        let (range, codec) = (self.range(chunk), self.codec(chunk));
        if let Some((elements, residual)) = self.buffer.residual_mut() {
            codec.residual(&elements[range.clone()], exponent, &mut residual[range.clone()]);
        }
        codec.decode(payload, exponent, &mut self.buffer.bytes_mut()[range]);
    }

    /// Overwrites a data chunk that is never sent with its result; its length in bytes.
    pub fn fill_skipped(&mut self, chunk: usize, exponent: i32) -> usize {
        let range = self.range(chunk);
        let len = range.len();
        if let Some((_, residual)) = self.buffer.residual_mut() {
            // The elements are zeros, or not finite: no residual must come back in later calls.
            residual[range.clone()].fill(0);
        }
        self.codec.fill_skipped(exponent, &mut self.buffer.bytes_mut()[range]);
        len
    }

    /// The elements, in native byte order.
    #[cfg(test)]
    pub fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Gives them back.
    pub fn into_buffer(self) -> Box<dyn Buffer> {
        self.buffer
    }

    /// The codec, with the random numbers of a data chunk.
    fn codec(&self, chunk: usize) -> Codec {
        let before = self.range(chunk).start / self.full.element;
        self.codec.at(self.call, self.first + before as u64, self.rank)
    }

    fn of(&self, chunk: usize) -> &[u8] {
        &self.buffer.bytes()[self.range(chunk)]
    }

    /// The bytes of one of a data chunk's chunks in the wide form.
    fn wide_range(&self, chunk: usize, place: usize) -> Range<usize> {
        let (Range { start, end }, len) =
            (self.range(chunk), self.wide.as_ref().map_or(0, |wide| wide.len));
        (start + place * len).min(end)..(start + (place + 1) * len).min(end)
    }

    /// The bytes of a data chunk; none behind the last one.
    fn range(&self, chunk: usize) -> Range<usize> {
        self.layout.range(chunk)
    }
}

/// The bytes of each rank's part among `held` ones, which are the call's from element `first` on.
fn parts_of(call: &Call, ranks: u32, first: u64, held: usize) -> Vec<Range<usize>> {
    let before = first as usize * call.dtype.size();
    let at = |rank: u32| call.part_start(rank, ranks) * call.dtype.size();
    let here = |byte: usize| byte.saturating_sub(before).min(held);
    (0..ranks).map(|rank| here(at(rank))..here(at(rank + 1))).collect()
}
