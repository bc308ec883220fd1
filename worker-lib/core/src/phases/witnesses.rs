//! Witnesses (rule 15.2): they prove maxima that came without a check word.
//!
//! A data plane that cannot sum a maximum's lanes sends it without a check word: a contribution,
//! the slot or the RESULT may be damaged. The maximum is right if it is no less than any rank's own
//! lanes, if each lane is some rank's own, and if all ranks got the same one. Each rank checks the
//! first condition itself, and refuses a smaller maximum. For the other two it sends another chunk,
//! its witness: a digest of the maximum that it got, and for each lane whether it is its own.
//! Witnesses are summed, and sums have check words.

use std::task::Poll;

use switchml_protocol::LANES_PER_BLOCK;

use crate::hash;
use crate::numerics::lane_sum;

/// Bytes of the digest, in front.
const DIGEST: usize = 8;

/// The witnesses of the maxima of one phase, by chunk. See the module.
pub(crate) struct Witnesses {
    /// The witness of each maximum, from the maximum's result to the result of the witnesses.
    held: Vec<Option<Witness>>,
    /// Chunks that are numbered.
    numbered: usize,
    /// Chunks without a result.
    left: usize,
}

impl Witnesses {
    /// The witnesses of `maxima` maxima.
    pub fn new(maxima: usize) -> Self {
        Self { held: (0..maxima).map(|_| None).collect(), numbered: 0, left: maxima }
    }

    /// Whether all chunks are numbered.
    pub fn are_numbered(&self) -> bool {
        self.numbered == self.held.len()
    }

    /// Whether all maxima are proven.
    pub fn are_done(&self) -> bool {
        self.left == 0
    }

    /// The next chunk to send; pending until the maximum that it proves has come.
    pub fn next(&mut self) -> Poll<Option<usize>> {
        match self.held.get(self.numbered) {
            None => Poll::Ready(None),
            Some(None) => Poll::Pending,
            Some(Some(_)) => {
                self.numbered += 1;
                Poll::Ready(Some(self.numbered - 1))
            }
        }
    }

    /// Lanes of the witness of a maximum of `maximum` lanes.
    pub const fn lanes(maximum: usize) -> usize {
        (DIGEST + maximum).div_ceil(4).next_multiple_of(LANES_PER_BLOCK)
    }

    /// Takes in the payload `maximum` that came for a chunk to which this rank contributed the
    /// payload `own`. False if it cannot be the maximum (rule 15.1).
    pub fn accept(&mut self, chunk: usize, own: &[u8], maximum: &[u8]) -> bool {
        self.held[chunk] = Witness::new(own, maximum);
        self.held[chunk].is_some()
    }

    /// Writes this rank's share of a chunk; the wrapping sum of its lanes.
    pub fn encode(&self, chunk: usize, payload: &mut [u8]) -> u32 {
        self.held[chunk].as_ref().map_or(0, |witness| witness.encode(payload))
    }

    /// Whether the sum of the witnesses of all `ranks` ranks confirms the maximum of this chunk.
    pub fn decode(&mut self, chunk: usize, sum: &[u8], ranks: u32) -> bool {
        self.left -= 1;
        self.held[chunk].take().is_some_and(|witness| witness.is_borne_out(sum, ranks))
    }
}

/// A rank's witness of one chunk's maximum.
struct Witness {
    digest: u64,
    /// A byte for each lane: 1 if the maximum is this rank's own. There are too few ranks for a
    /// carry into the next byte.
    own: Box<[u8]>,
}

impl Witness {
    /// The witness of a rank that contributed the payload `own` and got the payload `maximum`;
    /// `None` if that is less somewhere, and so not the maximum.
    fn new(own: &[u8], maximum: &[u8]) -> Option<Self> {
        if lanes(own).zip(lanes(maximum)).any(|(own, maximum)| maximum < own) {
            return None;
        }
        let is_own = lanes(own).zip(lanes(maximum)).map(|(own, maximum)| (own == maximum).into());
        Some(Self { digest: digest(maximum), own: is_own.collect() })
    }

    /// Writes this rank's share of the chunk of witnesses; the wrapping sum of its lanes.
    fn encode(&self, payload: &mut [u8]) -> u32 {
        let (front, rest) = payload.split_at_mut(DIGEST);
        let (lanes, padding) = rest.split_at_mut(self.own.len());
        front.copy_from_slice(&self.digest.to_be_bytes());
        lanes.copy_from_slice(&self.own);
        padding.fill(0);
        lane_sum(payload)
    }

    /// Rule 15.5: whether the sum of the witnesses of all `ranks` ranks bears out the maximum that
    /// this rank got.
    fn is_borne_out(&self, sum: &[u8], ranks: u32) -> bool {
        let (front, rest) = sum.split_at(DIGEST);
        let alike = [(self.digest >> 32) as i32, self.digest as i32]
            .map(|lane| lane.wrapping_mul(ranks as i32));
        lanes(front).eq(alike) && rest[..self.own.len()].iter().all(|ranks| *ranks > 0)
    }
}

fn lanes(payload: &[u8]) -> impl Iterator<Item = i32> {
    payload.as_chunks::<4>().0.iter().map(|lane| i32::from_be_bytes(*lane))
}

/// Rule 15.4.
fn digest(payload: &[u8]) -> u64 {
    hash::fold(payload.as_chunks::<8>().0.iter().map(|lanes| u64::from_be_bytes(*lanes)))
}
