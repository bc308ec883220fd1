//! Exponents: the first phase of a float sum.
//!
//! Its chunks bring the largest exponent over all ranks of each data chunk, one lane per data
//! chunk. All ranks see the same ones, so all agree on which data chunks are never sent, and on the
//! number of every chunk.

use std::ops::Range;

use switchml_protocol::LANES_PER_BLOCK;

use super::elements::Elements;
use crate::numerics::{Codec, exponent};

/// See the module. Without chunks in calls that need no exponents.
pub(crate) struct Exponents {
    /// One per data chunk: this rank's, then, once the result is here, that of all ranks.
    values: Vec<i32>,
    /// Lanes of a full chunk: data chunks whose exponents one chunk holds.
    lanes: usize,
    /// Chunks that are numbered.
    numbered: usize,
    /// Which chunks have their result.
    settled: Vec<bool>,
    /// Data chunks below this one have the exponents of all ranks.
    known: usize,
}

impl Exponents {
    /// Those of so many data chunks, in chunks of up to `lanes` lanes.
    pub fn new(data_chunks: usize, lanes: usize) -> Self {
        Self {
            values: vec![exponent::ZERO; data_chunks],
            lanes,
            numbered: 0,
            settled: vec![false; data_chunks.div_ceil(lanes)],
            known: 0,
        }
    }

    /// How many chunks they are.
    pub fn chunks(&self) -> usize {
        self.settled.len()
    }

    /// Whether all chunks are numbered.
    pub fn are_numbered(&self) -> bool {
        self.numbered == self.settled.len()
    }

    /// Whether all of them are those of all ranks.
    pub fn are_known(&self) -> bool {
        self.known == self.values.len()
    }

    /// The next chunk to send.
    pub fn next(&mut self, elements: &Elements) -> Option<usize> {
        let chunk = self.numbered;
        if self.are_numbered() {
            return None;
        }
        for data in self.range(chunk) {
            self.values[data] = elements.exponent(data);
        }
        self.numbered += 1;
        Some(chunk)
    }

    /// Lanes of a chunk.
    pub fn lanes(&self, chunk: usize) -> usize {
        self.range(chunk).len().next_multiple_of(LANES_PER_BLOCK)
    }

    /// Writes this rank's share of a chunk; the wrapping sum of its lanes.
    pub fn encode(&self, chunk: usize, payload: &mut [u8]) -> u32 {
        let values = bytemuck::cast_slice(&self.values[self.range(chunk)]);
        Codec::exponents().encode(values, 0, payload)
    }

    /// Takes in the result of a chunk.
    pub fn decode(&mut self, chunk: usize, payload: &[u8]) {
        let range = self.range(chunk);
        Codec::exponents().decode(payload, 0, bytemuck::cast_slice_mut(&mut self.values[range]));
        self.settled[chunk] = true;
        // Data chunks are numbered in order, whatever the order of the results.
        while !self.are_known() && self.settled[self.known / self.lanes] {
            self.known = self.range(self.known / self.lanes).end;
        }
    }

    /// Takes in those of all ranks, at once.
    pub fn settle(&mut self, values: &[i32]) {
        self.values.copy_from_slice(values);
        self.settled.fill(true);
        self.known = self.values.len();
    }

    /// By data chunk.
    pub fn values(&self) -> &[i32] {
        &self.values
    }

    /// That of a data chunk; 0 in calls that need none.
    pub fn of(&self, data: usize) -> i32 {
        self.values.get(data).copied().unwrap_or(0)
    }

    /// Whether that of a data chunk is that of all ranks, or none is needed.
    pub fn is_known(&self, data: usize) -> bool {
        data < self.known || self.values.is_empty()
    }

    /// Whether a data chunk is never sent: it is zero on all ranks, or not finite on one.
    pub fn is_skipped(&self, data: usize) -> bool {
        self.values.get(data).is_some_and(|&exponent| exponent::is_skipped(exponent))
    }

    /// The data chunks whose exponents a chunk holds.
    fn range(&self, chunk: usize) -> Range<usize> {
        chunk * self.lanes..((chunk + 1) * self.lanes).min(self.values.len())
    }
}
