//! Speculative data chunks, in small float sums.
//!
//! The ranks must agree on exponents before they can add floats as integers: a round trip of its
//! own, half of a small call's time. So the data chunks of small calls go along with the exponent
//! chunk, each rank scaling with the exponents that it predicts (see `predictor`). The exponent
//! chunk is a MAX of three words per data chunk: the rank's own exponent, its prediction, and the
//! bits of its prediction inverted, which makes a minimum of a maximum. The result tells all ranks
//! alike which predictions were the same everywhere, and true. A chunk that was sent with such a
//! prediction is, lane by lane, the one that would have been sent later; its result counts. The
//! results of others do not, and these chunks are sent again as if they had never been. So whatever
//! is predicted, results have the same bits.

use switchml_protocol::LANES_PER_BLOCK;

use super::elements::Elements;
use super::exponents::Exponents;
use crate::numerics::Codec;
use crate::numerics::exponent::{self, ZERO};

/// Data chunks of the largest call in which any are speculative: 89 KB at 352 lanes, which a window
/// at its start lets out at once. In larger calls a round trip matters less, and wrong predictions
/// more.
pub(crate) const MOST_CHUNKS: usize = 63;
/// Lanes of an exponent chunk per data chunk.
const WORDS: usize = 3;

/// See the module. Sets are bitmaps of data chunks.
#[derive(Default)]
pub(crate) struct Speculation {
    /// By data chunk, the exponent that this rank predicts.
    predicted: Vec<i32>,
    /// Those that are sent: the same on all ranks.
    sent: u64,
    /// Data chunks that are numbered, or are not in `sent`.
    passed: usize,
    /// Chunks that are numbered and have no result.
    left: usize,
    /// Those whose prediction was the same on all ranks, and true: known with the exponents.
    right: u64,
    /// Results that came before the exponents.
    early: Vec<(usize, Vec<u8>)>,
}

impl Speculation {
    /// Whether a call of so many data chunks is small enough, with packets of so many lanes.
    pub const fn is_for(data_chunks: usize, lanes: usize) -> bool {
        0 < data_chunks && data_chunks <= MOST_CHUNKS && WORDS * data_chunks <= lanes
    }

    /// Chunks `sent`, which must be the same on all ranks, are sent with the exponents `predicted`,
    /// which may be any.
    pub fn new(predicted: Vec<i32>, sent: u64) -> Self {
        Self { predicted, sent, ..Self::default() }
    }

    /// The chunks that are sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Those whose prediction was the same on all ranks, and true, whether they were sent or not.
    /// Known with the exponents.
    pub fn right(&self) -> u64 {
        self.right
    }

    /// Whether all chunks are numbered.
    pub fn is_numbered(&self) -> bool {
        self.passed == self.predicted.len()
    }

    /// Whether nothing is under way.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Whether the result of data chunk `chunk`, which is sent, counts. Known with the exponents.
    pub fn counts(&self, chunk: usize) -> bool {
        holds(self.sent & self.right, chunk)
    }

    /// The exponent that this rank predicts for a data chunk.
    pub fn predicted(&self, chunk: usize) -> i32 {
        self.predicted[chunk]
    }

    /// The next data chunk to send.
    pub fn next(&mut self) -> Option<usize> {
        let chunk = (self.passed..self.predicted.len()).find(|&chunk| holds(self.sent, chunk));
        self.passed = chunk.map_or(self.predicted.len(), |chunk| chunk + 1);
        self.left += chunk.iter().len();
        chunk
    }

    /// Takes in the result of a data chunk.
    pub fn decode(
        &mut self,
        chunk: usize,
        payload: &[u8],
        elements: &mut Elements,
        exponents: &Exponents,
    ) {
        self.left -= 1;
        if !exponents.are_known() {
            self.early.push((chunk, payload.to_vec()));
        } else if self.counts(chunk) {
            elements.decode(chunk, exponents.of(chunk), payload);
        }
    }

    /// Lanes of the exponent chunk, before data chunks of which the first has so many lanes.
    pub fn exponent_lanes(&self, first: usize) -> usize {
        let needed = (WORDS * self.predicted.len()).next_multiple_of(LANES_PER_BLOCK);
        // As long as the chunks that follow at once: packets of one length leave together.
        if self.sent == 0 { needed } else { needed.max(first) }
    }

    /// Writes the exponent chunk of a rank with its `own` exponents; the wrapping sum of its lanes.
    pub fn encode_exponents(&self, own: &[i32], payload: &mut [u8]) -> u32 {
        let mut words = [ZERO; WORDS * MOST_CHUNKS];
        let chunks = own.len();
        for (data, (&own, &predicted)) in own.iter().zip(&self.predicted).enumerate() {
            words[data] = own;
            // Zeros are zeros at any scale: they leave it to the other ranks.
            if own != ZERO {
                words[chunks + data] = predicted;
                words[2 * chunks + data] = !predicted;
            }
        }
        Codec::exponents().encode(bytemuck::cast_slice(&words[..WORDS * chunks]), 0, payload)
    }

    /// Takes in the exponent chunk's result: the exponents of all ranks, which predictions were
    /// right, and of the results that are here already those that count.
    pub fn decode_exponents(
        &mut self,
        payload: &[u8],
        exponents: &mut Exponents,
        elements: &mut Elements,
    ) {
        let mut words = [ZERO; WORDS * MOST_CHUNKS];
        let chunks = self.predicted.len();
        let words = &mut words[..WORDS * chunks];
        Codec::exponents().decode(payload, 0, bytemuck::cast_slice_mut(words));
        let (all, predicted) = words.split_at(chunks);
        let (largest, inverted) = predicted.split_at(chunks);
        let is_right = |chunk: usize| {
            let (exponent, largest, smallest) = (all[chunk], largest[chunk], !inverted[chunk]);
            !exponent::is_skipped(exponent) && largest == exponent && smallest == exponent
        };
        self.right = bits((0..chunks).map(is_right));
        exponents.settle(all);
        for (chunk, payload) in std::mem::take(&mut self.early) {
            if self.counts(chunk) {
                elements.decode(chunk, exponents.of(chunk), &payload);
            }
        }
    }
}

/// A bitmap of what is true.
pub(crate) fn bits(flags: impl Iterator<Item = bool>) -> u64 {
    flags.enumerate().fold(0, |bits, (place, flag)| bits | u64::from(flag) << place)
}

fn holds(set: u64, place: usize) -> bool {
    set >> place & 1 == 1
}
