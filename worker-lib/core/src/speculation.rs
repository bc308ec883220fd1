//! Data chunks that go ahead of their exponents, in small float sums.
//!
//! The ranks must agree on exponents before they can add floats as integers: a round trip of its
//! own, half of a small call's time. So the data chunks of small calls go along with the exponent
//! chunk, each rank scaling with the exponents that it predicts (see `predictor`). The exponent
//! chunk is a MAX of three words per data chunk: the rank's own exponent, its prediction, and the
//! bits of its prediction inverted, which makes a minimum of a maximum. The result tells all ranks
//! alike which predictions were the same everywhere, and true. A chunk that went ahead with such a
//! prediction is, lane by lane, the one that would have been sent later; its result counts. The
//! results of others do not, and these chunks are sent again as if they had never been. So whatever
//! is predicted, results have the same bits.

use crate::numerics::Codec;
use crate::numerics::exponent::{self, ZERO};

/// Data chunks of the largest call in which any go ahead: 89 KB at 352 lanes, which a window at its
/// start lets out at once. In larger calls a round trip matters less, and wrong predictions more.
pub(crate) const MOST_CHUNKS: usize = 63;
/// Lanes of an exponent chunk per data chunk.
const WORDS: usize = 3;

/// See the module. Sets are bitmaps of data chunks.
#[derive(Default)]
pub(crate) struct Speculation {
    /// By data chunk, the exponent that this rank predicts.
    predicted: Vec<i32>,
    /// Those that go ahead: the same on all ranks.
    sent: u64,
    /// Those whose prediction was the same on all ranks, and true: known with the exponents.
    right: u64,
    /// Those whose result came before the exponents.
    early: u64,
    /// These results, each at its chunk's place.
    held: Vec<u8>,
}

impl Speculation {
    /// Lanes of the exponent chunk of so many data chunks.
    pub const fn lanes(data_chunks: usize) -> usize {
        WORDS * data_chunks
    }

    /// Chunks `sent`, which must be the same on all ranks, go ahead with the exponents `predicted`,
    /// which may be any.
    pub fn new(predicted: Vec<i32>, sent: u64) -> Self {
        Self { predicted, sent, ..Self::default() }
    }

    /// Those that go ahead.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Those whose prediction was the same on all ranks, and true, whether they went ahead or not.
    /// Known with the exponents.
    pub fn right(&self) -> u64 {
        self.right
    }

    /// Whether chunk `data` goes ahead.
    pub fn is_sent(&self, data: usize) -> bool {
        holds(self.sent, data)
    }

    /// Whether the result of chunk `data`, which goes ahead, counts. Known with the exponents.
    pub fn counts(&self, data: usize) -> bool {
        holds(self.sent & self.right, data)
    }

    /// The exponent that this rank predicts for chunk `data`.
    pub fn predicted(&self, data: usize) -> i32 {
        self.predicted[data]
    }

    /// Writes the exponent chunk of a rank with its `own` exponents; the wrapping sum of its lanes.
    pub fn encode(&self, own: &[i32], payload: &mut [u8]) -> u32 {
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

    /// Takes in the exponent chunk's result: writes the exponents over all ranks, and finds out
    /// which predictions were right.
    pub fn decode(&mut self, payload: &[u8], exponents: &mut [i32]) {
        let mut words = [ZERO; WORDS * MOST_CHUNKS];
        let chunks = exponents.len();
        let words = &mut words[..WORDS * chunks];
        Codec::exponents().decode(payload, 0, bytemuck::cast_slice_mut(words));
        let (all, predicted) = words.split_at(chunks);
        let (largest, inverted) = predicted.split_at(chunks);
        exponents.copy_from_slice(all);
        let is_right = |data: usize| {
            let (exponent, largest, smallest) = (all[data], largest[data], !inverted[data]);
            !exponent::is_skipped(exponent) && largest == exponent && smallest == exponent
        };
        self.right = bits((0..chunks).map(is_right));
    }

    /// Keeps a result that came before the exponents. `size`: bytes of a full chunk's payload.
    pub fn hold(&mut self, data: usize, size: usize, payload: &[u8]) {
        self.held.resize(self.predicted.len() * size, 0);
        self.held[data * size..][..payload.len()].copy_from_slice(payload);
        self.early |= 1 << data;
    }

    /// Of the results that were kept those that count: their chunks, and where they are.
    pub fn release(&mut self) -> (impl Iterator<Item = usize> + use<>, Vec<u8>) {
        let early = self.early & self.sent & self.right;
        ((0..MOST_CHUNKS).filter(move |&data| holds(early, data)), std::mem::take(&mut self.held))
    }
}

/// A bitmap of what is true.
pub(crate) fn bits(flags: impl Iterator<Item = bool>) -> u64 {
    flags.enumerate().fold(0, |bits, (place, flag)| bits | u64::from(flag) << place)
}

fn holds(set: u64, place: usize) -> bool {
    set >> place & 1 == 1
}
