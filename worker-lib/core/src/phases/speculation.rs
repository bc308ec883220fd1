//! Speculative data chunks, in small float sums.
//!
//! The ranks must agree on exponents before they can add floats as integers. That takes a separate
//! round trip, half of a small call's time. So the data chunks of small calls go together with the
//! exponent chunk, and each rank scales with the exponents that it predicts (see `predictor`). The
//! exponent chunk is a MAX of three words per data chunk: the rank's own exponent, its prediction,
//! and the inverted bits of its prediction, which turn a maximum into a minimum. The result tells
//! all ranks which predictions were the same everywhere, and true. (If there is a wide form, the
//! chunk has a fourth word, as `exponents` says.) A chunk that was sent with such a prediction is,
//! lane by lane, the chunk that would have been sent later; its result counts. Other results do
//! not, and these chunks are sent again as new ones. So results have the same bits, whatever is
//! predicted.

use switchml_protocol::LANES_PER_BLOCK;

use super::elements::Elements;
use super::exponents::Exponents;
use crate::numerics::Codec;
use crate::numerics::exponent::{Way, ZERO};

/// Data chunks of the largest call with speculative ones: 89 KB at 352 lanes, which the initial
/// window lets out at once. In larger calls, a round trip matters less, and wrong predictions more.
pub(crate) const MOST_CHUNKS: usize = 63;
/// Lanes of an exponent chunk per data chunk, without the exponent of its smallest magnitude.
const WORDS: usize = 3;
/// Lanes of an exponent chunk per data chunk, with that exponent.
const MOST_WORDS: usize = WORDS + 1;

/// See the module. Sets are bitmaps of data chunks.
#[derive(Default)]
pub(crate) struct Speculation {
    /// The exponents that this rank predicts, by data chunk.
    predicted: Vec<i32>,
    /// The data chunks that are sent: the same on all ranks.
    sent: u64,
    /// Data chunks that are numbered, or are not in `sent`.
    passed: usize,
    /// Chunks that are numbered and have no result.
    left: usize,
    /// Data chunks whose prediction was the same on all ranks, and true: known with the exponents.
    right: u64,
    /// Results that came before the exponents.
    early: Vec<(usize, Vec<u8>)>,
}

impl Speculation {
    /// Rule 20.1: whether a call with these exponents is small enough, with packets of so many
    /// lanes.
    pub fn is_for(exponents: &Exponents, lanes: usize) -> bool {
        (1..=MOST_CHUNKS).contains(&exponents.values().len()) && words(exponents) <= lanes
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

    /// The data chunks whose prediction was the same on all ranks, and true, whether they were sent
    /// or not. Known with the exponents.
    pub fn right(&self) -> u64 {
        self.right
    }

    /// Whether all chunks are numbered.
    pub fn is_numbered(&self) -> bool {
        self.passed == self.predicted.len()
    }

    /// Whether no speculative chunk is in flight.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Rule 20.6: whether the result of data chunk `chunk`, which is sent, counts. Known with the
    /// exponents.
    pub fn counts(&self, chunk: usize) -> bool {
        holds(self.sent & self.right, chunk)
    }

    /// The exponent that this rank predicts for a data chunk.
    pub fn predicted(&self, chunk: usize) -> i32 {
        self.predicted[chunk]
    }

    /// The next data chunk to send (rule 20.3).
    pub fn next(&mut self) -> Option<usize> {
        let chunk = (self.passed..self.predicted.len()).find(|&chunk| holds(self.sent, chunk));
        self.passed = chunk.map_or(self.predicted.len(), |chunk| chunk + 1);
        self.left += chunk.iter().len();
        chunk
    }

    /// Decodes the result of a data chunk.
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

    /// Rule 20.4: lanes of the exponent chunk, before data chunks of which the first has so many
    /// lanes.
    pub fn exponent_lanes(&self, exponents: &Exponents, first: usize) -> usize {
        let needed = words(exponents).next_multiple_of(LANES_PER_BLOCK);
        // As long as the data chunks that follow at once: packets of one length leave together.
        if self.sent == 0 { needed } else { needed.max(first) }
    }

    /// Rule 20.2: writes the exponent chunk of a rank with its `own` exponents; the wrapping sum of
    /// its lanes.
    pub fn encode_exponents(&self, own: &Exponents, payload: &mut [u8]) -> u32 {
        let mut lanes = [ZERO; MOST_WORDS * MOST_CHUNKS];
        let lanes = &mut lanes[..words(own)];
        let chunks = own.values().len();
        for (data, (&own, &predicted)) in own.values().iter().zip(&self.predicted).enumerate() {
            lanes[data] = own;
            // Zeros are zeros at any scale: they leave the prediction to the other ranks.
            if own != ZERO {
                lanes[chunks + data] = predicted;
                lanes[2 * chunks + data] = !predicted;
            }
        }
        lanes[WORDS * chunks..].copy_from_slice(own.least());
        Codec::exponents().encode(bytemuck::cast_slice(lanes), 0, payload)
    }

    /// Takes in the exponent chunk's result: the exponents of all ranks, which predictions were
    /// right (rule 20.5), and of the results that are here already those that count.
    pub fn decode_exponents(
        &mut self,
        payload: &[u8],
        exponents: &mut Exponents,
        elements: &mut Elements,
    ) {
        let mut lanes = [ZERO; MOST_WORDS * MOST_CHUNKS];
        let chunks = self.predicted.len();
        let lanes = &mut lanes[..words(exponents)];
        Codec::exponents().decode(payload, 0, bytemuck::cast_slice_mut(lanes));
        let (all, rest) = lanes.split_at(chunks);
        let (largest, rest) = rest.split_at(chunks);
        let (inverted, least) = rest.split_at(chunks);
        exponents.settle(all, least);
        let is_right = |chunk: usize| {
            let (exponent, largest, smallest) = (all[chunk], largest[chunk], !inverted[chunk]);
            exponents.way(chunk) == Way::Scaled && largest == exponent && smallest == exponent
        };
        self.right = bits((0..chunks).map(is_right));
        for (chunk, payload) in std::mem::take(&mut self.early) {
            if self.counts(chunk) {
                elements.decode(chunk, exponents.of(chunk), &payload);
            }
        }
    }
}

/// Words of the exponent chunk of a call with these exponents.
fn words(exponents: &Exponents) -> usize {
    WORDS * exponents.values().len() + exponents.least().len()
}

/// A bitmap of the flags that are true.
pub(crate) fn bits(flags: impl Iterator<Item = bool>) -> u64 {
    flags.enumerate().fold(0, |bits, (place, flag)| bits | u64::from(flag) << place)
}

fn holds(set: u64, place: usize) -> bool {
    set >> place & 1 == 1
}
