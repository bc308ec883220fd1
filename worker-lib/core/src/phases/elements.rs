//! A call's elements on this rank, cut into data chunks.

use std::ops::Range;

use crate::buffer::Buffer;
use crate::call::Submission;
use crate::numerics::Codec;

/// Chunks that memory needs to bring elements: encoding one takes less time than that.
const AHEAD: usize = 4;

/// See the module.
pub(crate) struct Elements {
    buffer: Box<dyn Buffer>,
    codec: Codec,
    /// Their length in bytes.
    len: usize,
    /// Of a full chunk: its elements, the same in bytes, its lanes.
    full: Full,
    /// Whether they count: all but those of a broadcast's receivers do.
    contribute: bool,
    /// The call's number, and this rank.
    call: u64,
    rank: u32,
    /// Elements of the call before these.
    first: u64,
}

/// What all data chunks but the last are alike in.
struct Full {
    elements: usize,
    /// Their length in bytes.
    len: usize,
    lanes: usize,
}

impl Elements {
    /// Those of a submission, in packets of up to `lanes` lanes.
    pub fn new(submission: Submission, rank: u32, lanes: usize) -> Self {
        let Submission { number, codec, first, contributes, buffer, .. } = submission;
        let len = codec.bytes_per_chunk(lanes);
        let full =
            Full { elements: codec.elements_per_chunk(lanes), len, lanes: codec.lanes_for(len) };
        let len = buffer.bytes().len();
        Self { buffer, codec, len, full, contribute: contributes, call: number, rank, first }
    }

    /// Their length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// How many data chunks they are.
    pub fn chunks(&self) -> usize {
        self.len.div_ceil(self.full.len)
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

    /// Whether this rank has a share in the result: in a broadcast, only the root has.
    pub fn contribute(&self) -> bool {
        self.contribute
    }

    /// Writes this rank's share of a data chunk; the wrapping sum of its lanes.
    pub fn encode(&self, chunk: usize, exponent: i32, payload: &mut [u8]) -> u32 {
        if !self.contribute {
            return self.codec(chunk).encode(&[], exponent, payload);
        }
        self.buffer.prefetch(self.range(chunk + AHEAD));
        self.codec(chunk).encode(self.of(chunk), exponent, payload)
    }

    /// Overwrites a data chunk with its result. Before that, tells what its elements have lost.
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
            // Of zeros, or of what is not finite: it must not come back in later calls.
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
        let before = chunk * self.full.elements;
        self.codec.at(self.call, self.first + before as u64, self.rank)
    }

    fn of(&self, chunk: usize) -> &[u8] {
        &self.buffer.bytes()[self.range(chunk)]
    }

    /// The bytes of a data chunk; none behind the last one.
    fn range(&self, chunk: usize) -> Range<usize> {
        let start = (chunk * self.full.len).min(self.len);
        start..(start + self.full.len).min(self.len)
    }
}
