//! Exponents: the first phase of a float sum (rule 18.2).
//!
//! Its chunks compute the largest exponent of each data chunk over all ranks, one lane per data
//! chunk. If there is a wide form, each data chunk has another lane with the inverted bits of its
//! smallest magnitude's exponent: inverting turns a maximum into a minimum. All ranks get the same
//! exponents, so they agree on how each data chunk is sent, and on the number of every chunk.

use std::ops::Range;

use switchml_protocol::{LANES_PER_BLOCK, MAX_LANES};

use super::elements::Elements;
use crate::numerics::Codec;
use crate::numerics::exponent::{self, Way};

/// See the module. It has no chunks in calls that need no exponents.
pub(crate) struct Exponents {
    codec: Codec,
    /// The exponent of each data chunk: this rank's, and once the result has come, that of all
    /// ranks.
    values: Vec<i32>,
    /// The exponents of the smallest magnitudes above zero, inverted. Empty without a wide form.
    least: Vec<i32>,
    /// Data chunks whose exponents a full chunk holds.
    full: usize,
    /// Chunks that are numbered.
    numbered: usize,
    /// Which chunks have their result.
    settled: Vec<bool>,
    /// Data chunks below this one have the exponents of all ranks.
    known: usize,
}

impl Exponents {
    /// The exponents of `data_chunks` data chunks of a codec, in chunks of up to `lanes` lanes.
    pub fn new(codec: Codec, data_chunks: usize, lanes: usize) -> Self {
        let data_chunks = if codec.uses_exponents() { data_chunks } else { 0 };
        let (least, full) =
            if codec.wide().is_some() { (data_chunks, lanes / 2) } else { (0, lanes) };
        Self {
            codec,
            values: vec![exponent::ZERO; data_chunks],
            least: vec![exponent::ZERO; least],
            full,
            numbered: 0,
            settled: vec![false; data_chunks.div_ceil(full)],
            known: 0,
        }
    }

    /// Number of exponent chunks.
    pub fn chunks(&self) -> usize {
        self.settled.len()
    }

    /// Whether all exponent chunks are numbered.
    pub fn are_numbered(&self) -> bool {
        self.numbered == self.settled.len()
    }

    /// Whether the exponents of all ranks are known for all data chunks.
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
            if let Some(least) = self.least.get_mut(data) {
                *least = inverted(elements.least_exponent(data));
            }
        }
        self.numbered += 1;
        Some(chunk)
    }

    /// Lanes of a chunk.
    pub fn lanes(&self, chunk: usize) -> usize {
        let [values, least] = self.parts(chunk);
        (values.len() + least.len()).next_multiple_of(LANES_PER_BLOCK)
    }

    /// Writes this rank's share of a chunk; the wrapping sum of its lanes.
    pub fn encode(&self, chunk: usize, payload: &mut [u8]) -> u32 {
        let [values, least] = self.parts(chunk);
        let mut words = [0; MAX_LANES];
        let words = &mut words[..values.len() + least.len()];
        words[..values.len()].copy_from_slice(&self.values[values.clone()]);
        words[values.len()..].copy_from_slice(&self.least[least]);
        Codec::exponents().encode(bytemuck::cast_slice(words), 0, payload)
    }

    /// Decodes the result of an exponent chunk.
    pub fn decode(&mut self, chunk: usize, payload: &[u8]) {
        let [values, least] = self.parts(chunk);
        let mut words = [0; MAX_LANES];
        let words = &mut words[..values.len() + least.len()];
        Codec::exponents().decode(payload, 0, bytemuck::cast_slice_mut(words));
        let (largest, inverted) = words.split_at(values.len());
        self.values[values].copy_from_slice(largest);
        self.least[least].copy_from_slice(inverted);
        self.settled[chunk] = true;
        // Data chunks are numbered in order, whatever the order of the results.
        while !self.are_known() && self.settled[self.known / self.full] {
            self.known = self.range(self.known / self.full).end;
        }
    }

    /// Sets the exponents of all ranks at once.
    pub fn settle(&mut self, values: &[i32], least: &[i32]) {
        self.values.copy_from_slice(values);
        self.least.copy_from_slice(least);
        self.settled.fill(true);
        self.known = self.values.len();
    }

    /// The exponents, by data chunk.
    pub fn values(&self) -> &[i32] {
        &self.values
    }

    /// The exponents of the smallest magnitudes above zero, inverted; none without a wide form.
    pub fn least(&self) -> &[i32] {
        &self.least
    }

    /// The exponent of a data chunk; 0 in calls that need none.
    pub fn of(&self, data: usize) -> i32 {
        self.values.get(data).copied().unwrap_or(0)
    }

    /// Whether the exponent of a data chunk is that of all ranks, or none is needed.
    pub fn is_known(&self, data: usize) -> bool {
        data < self.known || self.values.is_empty()
    }

    /// How a data chunk is sent, if its exponent is known.
    pub fn way(&self, data: usize) -> Way {
        let least = self.least.get(data).map_or(exponent::ZERO, |least| inverted(*least));
        self.values.get(data).map_or(Way::Scaled, |largest| self.codec.way(*largest, least))
    }

    /// The data chunks whose exponents a chunk holds.
    fn range(&self, chunk: usize) -> Range<usize> {
        chunk * self.full..((chunk + 1) * self.full).min(self.values.len())
    }

    /// The values in a chunk: exponents of all its data chunks, and of those with a least exponent.
    fn parts(&self, chunk: usize) -> [Range<usize>; 2] {
        let range = self.range(chunk);
        let least = if self.least.is_empty() { 0..0 } else { range.clone() };
        [range, least]
    }
}

/// An exponent inverted so that a maximum gives the least one, and back. The exponent of zeros
/// stays.
fn inverted(least: i32) -> i32 {
    if least == exponent::ZERO { least } else { !least }
}
