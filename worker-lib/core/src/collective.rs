//! One collective: its chunks, and the way of each between the caller's elements and a payload.
//!
//! The chunks of a float sum are preceded by exponent chunks, which bring the largest exponent over
//! all ranks of each data chunk, one lane per data chunk. A data chunk can be sent once its
//! exponent is known, and is never sent when it is zero or not finite. All ranks see the same
//! exponents, so all agree on the number of every chunk. The other operators have data chunks
//! alone.
//!
//! In a small float sum, data chunks also go `ahead` of their exponents, right behind the exponent
//! chunk; those that were scaled wrongly are sent again when the exponents are known.
//!
//! Where the data plane does not check maxima, each chunk that is one is followed by its `witness`,
//! behind all such chunks, and nothing goes ahead: the proof would come no sooner than what waits
//! for the exponents.

use std::fmt;
use std::ops::Range;

use switchml_protocol::header::Op;
use switchml_protocol::{LANES_PER_BLOCK, MAX_LANES};

use crate::buffer::Buffer;
use crate::data_path::Submission;
use crate::engine::{Chunk, Failure, History};
use crate::hash;
use crate::numerics::{Codec, DType, NumericsError, ReduceOp, exponent};
use crate::predictor::Predictor;
use crate::speculation::{self, Speculation};
use crate::stats::{CallStats, Recorder};
use crate::witness::Witness;

/// Finding an exponent takes so little that its elements must be asked for two chunks before.
const MEASURED_AHEAD: usize = 2;

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every rank gets the reduction over all ranks.
    AllReduce(ReduceOp),
    /// Every rank gets the root's elements.
    Broadcast {
        /// The rank whose elements count.
        root: u32,
    },
    /// Nobody goes on before everybody is here.
    Barrier,
}

/// A call, equal on all ranks but for the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// What it does.
    pub kind: Kind,
    /// Type of the elements.
    pub dtype: DType,
    /// Number of elements.
    pub count: usize,
}

impl Call {
    /// How the call's elements travel, among `ranks` ranks.
    ///
    /// # Errors
    /// [`NumericsError`] when the reduction is not offered.
    pub fn codec(&self, ranks: u32) -> Result<Codec, NumericsError> {
        match self.kind {
            Kind::AllReduce(op) => Codec::reduction(self.dtype, op, ranks as usize, self.count),
            Kind::Broadcast { .. } | Kind::Barrier => Ok(Codec::bytes()),
        }
    }

    /// Hash of the call and its number in the session, the same on all ranks that make the same
    /// call.
    pub fn fingerprint(&self, number: u64) -> u32 {
        let (kind, detail) = match self.kind {
            Kind::AllReduce(op) => (0, op as u64),
            Kind::Broadcast { root } => (1, u64::from(root)),
            Kind::Barrier => (2, 0),
        };
        hash::fold([number, kind << 32 | detail, self.dtype as u64, self.count as u64]) as u32
    }
}

/// As people write it: `all_reduce(sum, f32, 1000)`, `broadcast(from 2, f16, 77)`, `barrier()`.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, dtype, count } = self;
        match kind {
            Kind::AllReduce(op) => write!(f, "all_reduce({op}, {dtype}, {count})"),
            Kind::Broadcast { root } => write!(f, "broadcast(from {root}, {dtype}, {count})"),
            Kind::Barrier => f.write_str("barrier()"),
        }
    }
}

/// What all collectives of a session have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// Number of ranks.
    pub ranks: u32,
    /// Lanes of a full chunk.
    pub lanes: u16,
    /// Whether the aggregator's maxima come without a check word.
    pub unchecked_maxima: bool,
}

/// A collective under way.
pub(crate) struct Collective {
    /// Its place among those of its schedule.
    place: u64,
    /// Number of ranks.
    ranks: u32,
    number: u64,
    call: Call,
    fingerprint: u32,
    codec: Codec,
    /// Whether this rank's elements count: all but those of a broadcast's receivers do.
    contributes: bool,
    buffer: Box<dyn Buffer>,
    /// Lanes of a full chunk.
    lanes: usize,
    data_chunks: usize,
    /// One per data chunk: this rank's, then, once the exponent chunk's result is here, that of all
    /// ranks.
    exponents: Vec<i32>,
    /// Which exponent chunks have their result.
    settled: Vec<bool>,
    /// Data chunks below this one may be sent.
    known: usize,
    /// What goes ahead, in a small float sum.
    ahead: Option<Speculation>,
    /// Where maxima are not checked: one per chunk that is one, from its result to that of the
    /// witnesses.
    witnesses: Vec<Option<Witness>>,
    /// Place of the next chunk to send: exponent chunks and their witnesses first, then data chunks
    /// that go ahead, then data chunks and theirs.
    cursor: usize,
    /// Chunks that have no result yet, skipped ones included.
    left: usize,
    recorder: Recorder,
}

/// What a chunk holds, by its place in the collective.
#[derive(Clone, Copy)]
enum Part {
    /// A group of exponents.
    Exponents(usize),
    /// The witness of the maximum in chunk so many of those that are one.
    Witness(usize),
    /// A data chunk ahead of its exponent.
    Speculation(usize),
    /// A data chunk.
    Data(usize),
}

impl Collective {
    /// A schedule's collective at `place`.
    pub fn new(place: u64, job: Job, submission: Submission) -> Self {
        let Submission { number, call, codec, contributes, buffer } = submission;
        let Job { ranks, lanes, unchecked_maxima } = job;
        let lanes = usize::from(lanes);
        let recorder = Recorder::new(buffer.bytes().len());
        let data_chunks = buffer.bytes().len().div_ceil(codec.bytes_per_chunk(lanes));
        let exponent_chunks = if codec.uses_exponents() { data_chunks.div_ceil(lanes) } else { 0 };
        let may_go_ahead = exponent_chunks > 0
            && !unchecked_maxima
            && data_chunks <= speculation::MOST_CHUNKS
            && Speculation::lanes(data_chunks) <= lanes;
        let maxima = if codec.wire_op() == Op::MaxI32 { data_chunks } else { exponent_chunks };
        let witnesses = if unchecked_maxima { maxima } else { 0 };
        Self {
            place,
            ranks,
            number,
            call,
            fingerprint: call.fingerprint(number),
            codec,
            contributes,
            buffer,
            lanes,
            data_chunks,
            exponents: if codec.uses_exponents() {
                vec![exponent::ZERO; data_chunks]
            } else {
                Vec::new()
            },
            settled: vec![false; exponent_chunks],
            known: if codec.uses_exponents() { 0 } else { data_chunks },
            ahead: may_go_ahead.then(Speculation::default),
            witnesses: (0..witnesses).map(|_| None).collect(),
            cursor: 0,
            left: exponent_chunks + witnesses + data_chunks,
            recorder,
        }
    }

    /// Its number in the session.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What it does.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Whether every element has its result, and every chunk.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Whether all chunks have their number: the next collective's may follow.
    pub fn is_numbered(&self) -> bool {
        self.cursor
            == self.settled.len() + self.places_ahead() + self.witnesses.len() + self.data_chunks
    }

    /// Gives the elements back, and tells what it took.
    pub fn finish(self) -> (Box<dyn Buffer>, CallStats) {
        (self.buffer, self.recorder.finish())
    }

    /// Takes note of the way of a chunk whose result is here now, in ns.
    pub fn record(&mut self, now: u64, history: &History) {
        self.recorder.record(now, history);
    }

    /// The next chunk to send, if it can be told already. On the way, fills in the results of
    /// chunks that are never sent.
    pub fn next(&mut self, predictor: &Predictor) -> Option<Chunk> {
        while !self.is_numbered() {
            match self.part(self.cursor) {
                Part::Exponents(group) => {
                    self.measure(self.group(group));
                    if let Some(ahead) = &mut self.ahead {
                        *ahead = predictor.predict(&self.call, &self.exponents);
                    }
                    return Some(self.advance(Codec::exponents(), self.exponent_lanes(group)));
                }
                Part::Witness(maximum) if self.witnesses[maximum].is_none() => return None,
                Part::Witness(maximum) => {
                    return Some(self.advance(Codec::bytes(), self.witness_lanes(maximum)));
                }
                Part::Speculation(data)
                    if self.ahead.as_ref().is_some_and(|ahead| ahead.is_sent(data)) =>
                {
                    self.left += 1;
                    return Some(self.advance_data(data));
                }
                Part::Speculation(_) => self.cursor += 1,
                Part::Data(data) if data >= self.known => return None,
                Part::Data(data) if self.is_skipped(data) => {
                    let bytes = self.data_range(data);
                    self.recorder.skipped(bytes.len());
                    self.codec
                        .fill_skipped(self.exponents[data], &mut self.buffer.bytes_mut()[bytes]);
                    self.pass();
                }
                Part::Data(data) if self.ahead.as_ref().is_some_and(|ahead| ahead.counts(data)) => {
                    self.pass()
                }
                Part::Data(data) => return Some(self.advance_data(data)),
            }
        }
        None
    }

    /// Writes this rank's share of the chunk at `index`; the wrapping sum of its lanes.
    pub fn encode(&self, index: usize, payload: &mut [u8]) -> u32 {
        let (data, exponent) = match (self.part(index), &self.ahead) {
            (Part::Witness(maximum), _) => {
                return self.witnesses[maximum]
                    .as_ref()
                    .map_or(0, |witness| witness.encode(payload));
            }
            (Part::Exponents(_), Some(ahead)) => return ahead.encode(&self.exponents, payload),
            (Part::Exponents(group), None) => {
                let exponents = bytemuck::cast_slice(&self.exponents[self.group(group)]);
                return Codec::exponents().encode(exponents, 0, payload);
            }
            // Once a prediction is known to be wrong, the elements may have changed: the chunk's
            // result does not count.
            (Part::Speculation(data), Some(ahead)) => (data, ahead.predicted(data)),
            (Part::Speculation(data) | Part::Data(data), _) => (data, self.exponent(data)),
        };
        if !self.contributes {
            return self.codec.encode(&[], exponent, payload);
        }
        self.buffer.prefetch(self.data_range(data + 1));
        self.codec.encode(self.elements(data), exponent, payload)
    }

    /// Whether the maximum that came for the chunk at `index`, unchecked, may be it: that is to be
    /// proven then.
    pub fn accept(&mut self, index: usize, maximum: &[u8]) -> bool {
        let (Part::Exponents(place) | Part::Data(place)) = self.part(index) else { return false };
        let mut own = [0; 4 * MAX_LANES];
        let own = &mut own[..maximum.len()];
        self.encode(index, own);
        self.witnesses[place] = Witness::new(own, maximum);
        self.witnesses[place].is_some()
    }

    /// Takes in the result of the chunk at `index`. The predictor hears of the exponents of small
    /// calls.
    ///
    /// # Errors
    /// When a maximum that was accepted is none.
    pub fn decode(
        &mut self,
        index: usize,
        payload: &[u8],
        predictor: &mut Predictor,
    ) -> Result<(), Failure> {
        self.left -= 1;
        match (self.part(index), &mut self.ahead) {
            (Part::Witness(maximum), _) => {
                let witness = self.witnesses[maximum].take();
                let is_proven =
                    witness.is_some_and(|witness| witness.is_borne_out(payload, self.ranks));
                return if is_proven { Ok(()) } else { Err(Failure::Maximum) };
            }
            (Part::Exponents(_), Some(_)) => self.settle_ahead(payload, predictor),
            (Part::Exponents(group), None) => self.settle(group, payload),
            (Part::Speculation(data), Some(ahead)) if !self.settled[0] => {
                ahead.hold(data, 4 * self.lanes, payload)
            }
            (Part::Speculation(data), Some(ahead)) if !ahead.counts(data) => {}
            (Part::Speculation(data) | Part::Data(data), _) => self.decode_data(data, payload),
        }
        Ok(())
    }

    fn decode_data(&mut self, data: usize, payload: &[u8]) {
        let (bytes, exponent) = (self.data_range(data), self.exponent(data));
        self.codec.decode(payload, exponent, &mut self.buffer.bytes_mut()[bytes]);
    }

    /// The data chunk at the cursor is not to be sent, or has been.
    fn pass(&mut self) {
        self.cursor += 1;
        self.left -= 1;
    }

    fn advance_data(&mut self, data: usize) -> Chunk {
        self.advance(self.codec, self.data_lanes(data))
    }

    fn advance(&mut self, codec: Codec, lanes: usize) -> Chunk {
        let chunk = Chunk {
            collective: self.place,
            index: self.cursor,
            op: codec.wire_op(),
            lanes: lanes as u16,
            fingerprint: self.fingerprint,
        };
        self.cursor += 1;
        chunk
    }

    fn part(&self, index: usize) -> Part {
        let (exponents, first_witness) = (self.settled.len(), self.first_witness());
        if index < exponents {
            Part::Exponents(index)
        } else if (first_witness..first_witness + self.witnesses.len()).contains(&index) {
            Part::Witness(index - first_witness)
        } else if index < exponents + self.places_ahead() {
            Part::Speculation(index - exponents)
        } else {
            Part::Data(index - self.first_data())
        }
    }

    /// Place of the first witness: exponents are proven before what they scale.
    fn first_witness(&self) -> usize {
        if self.settled.is_empty() { self.data_chunks } else { self.settled.len() }
    }

    /// Place of the first data chunk that does not go ahead.
    fn first_data(&self) -> usize {
        if self.settled.is_empty() {
            0
        } else {
            self.settled.len() + self.places_ahead() + self.witnesses.len()
        }
    }

    /// Places of data chunks that may go ahead.
    fn places_ahead(&self) -> usize {
        if self.ahead.is_some() { self.data_chunks } else { 0 }
    }

    /// The data chunks whose exponents travel in exponent chunk `group`.
    fn group(&self, group: usize) -> Range<usize> {
        group * self.lanes..((group + 1) * self.lanes).min(self.data_chunks)
    }

    /// Lanes of an exponent chunk.
    fn exponent_lanes(&self, group: usize) -> usize {
        let least = match &self.ahead {
            None => self.group(group).len(),
            // As long as the chunks that follow at once: packets of one length leave together.
            Some(ahead) if ahead.sent() != 0 => {
                Speculation::lanes(self.data_chunks).max(self.data_lanes(0))
            }
            Some(_) => Speculation::lanes(self.data_chunks),
        };
        least.next_multiple_of(LANES_PER_BLOCK)
    }

    /// Lanes of the witness of the maximum in chunk `place` of those that are one.
    fn witness_lanes(&self, place: usize) -> usize {
        Witness::lanes(if self.settled.is_empty() {
            self.data_lanes(place)
        } else {
            self.exponent_lanes(place)
        })
    }

    fn data_lanes(&self, data: usize) -> usize {
        self.codec.lanes_for(self.data_range(data).len())
    }

    /// The bytes of data chunk `data`; none behind the last chunk.
    fn data_range(&self, data: usize) -> Range<usize> {
        let (size, end) = (self.codec.bytes_per_chunk(self.lanes), self.buffer.bytes().len());
        (data * size).min(end)..((data + 1) * size).min(end)
    }

    /// The elements of data chunk `data`; none behind the last chunk.
    fn elements(&self, data: usize) -> &[u8] {
        &self.buffer.bytes()[self.data_range(data)]
    }

    /// Finds this rank's exponents of these data chunks.
    fn measure(&mut self, group: Range<usize>) {
        for data in group {
            self.buffer.prefetch(self.data_range(data + MEASURED_AHEAD));
            self.exponents[data] = self.codec.exponent(self.elements(data));
        }
    }

    /// The exponents of group `index` are those of all ranks now.
    fn settle(&mut self, index: usize, payload: &[u8]) {
        let group = self.group(index);
        Codec::exponents().decode(payload, 0, bytemuck::cast_slice_mut(&mut self.exponents[group]));
        self.settled[index] = true;
        // Chunks get their numbers in order, whatever the order of the results.
        while self.known < self.data_chunks && self.settled[self.known / self.lanes] {
            self.known = self.group(self.known / self.lanes).end;
        }
    }

    /// The exponents are those of all ranks now, and it is known which of the data chunks that went
    /// ahead count.
    fn settle_ahead(&mut self, payload: &[u8], predictor: &mut Predictor) {
        let Some(ahead) = &mut self.ahead else { return };
        ahead.decode(payload, &mut self.exponents);
        predictor.learn(&self.call, &self.exponents, ahead.right());
        self.recorder.went_ahead(ahead.sent(), ahead.right());
        let (early, held) = ahead.release();
        for data in early {
            self.decode_data(data, &held[4 * self.lanes * data..][..4 * self.data_lanes(data)]);
        }
        self.settled[0] = true;
        self.known = self.data_chunks;
    }

    fn exponent(&self, data: usize) -> i32 {
        self.exponents.get(data).copied().unwrap_or(0)
    }

    fn is_skipped(&self, data: usize) -> bool {
        self.exponents.get(data).is_some_and(|&exponent| exponent::is_skipped(exponent))
    }
}

#[cfg(test)]
#[path = "collective_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "speculation_tests.rs"]
mod speculation_tests;
