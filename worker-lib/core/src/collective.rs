//! One call in flight: its phases in order, and the path of each chunk between the caller's
//! elements and a payload.
//!
//! In a large broadcast, all ranks except the root send their chunks without lanes (EMPTY). They
//! send as far ahead as the slots allow, because these chunks should arrive before the lanes, which
//! then complete the round. In sums ranks send all lanes: there EMPTY costs time
//! (`docs/research/benchmarks.md`, sparse sums). Chunks of floats that are zero on all ranks are
//! not sent at all.
//!
//! A reduce-scatter is a sum, and an all-gather is a broadcast from all ranks. Their chunks say for
//! which ranks the results are (section 34 of `docs/spec`). The other ranks, and the root of a
//! broadcast, get a DONE, which names chunks without their lanes (rule 9.4). A data plane need not
//! send DONE: a rank ignores lanes that it does not need.

use std::task::{Poll, ready};

use switchml_protocol::MAX_LANES;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::wire::audience::Audience;
use switchml_protocol::wire::header::{CheckWord, Op};

use crate::buffer::Buffer;
use crate::call::{Call, Kind, Submission};
use crate::engine::{Chunk, Failure, History, Part};
use crate::numerics::Codec;
use crate::phases::data::Data;
use crate::phases::elements::Elements;
use crate::phases::exponents::Exponents;
use crate::phases::predictor::Predictor;
use crate::phases::speculation::{MOST_CHUNKS, Speculation};
use crate::phases::witnesses::Witnesses;
use crate::stats::{CallStats, Recorder};

/// Properties that all collectives of a session share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Number of this rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Lanes of a full chunk.
    pub lanes: u16,
    /// Capabilities of the aggregator's data plane.
    pub capabilities: Capabilities,
}

/// A collective in flight.
pub(crate) struct Collective {
    /// The collective's place in its schedule.
    place: u64,
    /// The collective's number in the session.
    number: u64,
    call: Call,
    /// What this shard runs of it, as a call of its own (rule 16.3).
    part: Call,
    fingerprint: u32,
    ranks: u32,
    /// How the lanes of data chunks are combined.
    op: Op,
    /// Whether data chunks in which this rank has no share leave their lanes out.
    leaves_out: bool,
    /// Whether data chunks name the audience of their results.
    has_audiences: bool,
    elements: Elements,
    exponents: Exponents,
    /// Speculative chunks, in a small float sum.
    speculation: Option<Speculation>,
    data: Data,
    /// Witnesses, if maxima are not checked.
    witnesses: Witnesses,
    recorder: Recorder,
}

impl Collective {
    /// A schedule's collective at `place`.
    pub fn new(place: u64, terms: Terms, submission: Submission) -> Self {
        let Submission { number, call, codec, first, .. } = submission;
        let Terms { rank, ranks, lanes, capabilities } = terms;
        let checked_maxima = capabilities.contains(Capabilities::CHECKED_MAXIMA);
        let lanes = usize::from(lanes);
        let elements = Elements::new(submission, rank, ranks, lanes);
        let (chunks, op) = (elements.chunks(), codec.wire_op());
        let exponents = Exponents::new(codec, chunks, lanes);
        // Rule 15.6: where maxima have to be proven, what waits for the exponents comes no later.
        let speculates = checked_maxima && Speculation::is_for(&exponents, lanes);
        // In a call of one window, the round trip of a ROOM matters more than bytes. Chunks of a
        // sum that happen to be zero on some ranks do not leave out their lanes: the results have
        // lanes anyway, and chunks with a ROOM come late, so that other ranks take them for lost.
        let has_audiences =
            capabilities.contains(Capabilities::AUDIENCES) && Audience::can_be_named_with(op);
        // Without audiences, the chunks of an all-gather do not show whose part they are, and the
        // ranks' paces cannot be told apart.
        let leaves_out = capabilities.contains(Capabilities::EMPTY_CONTRIBUTIONS)
            && ranks > 1
            && chunks > MOST_CHUNKS
            && (has_audiences || call.kind != Kind::AllGather);
        let maxima = match op.check_word() {
            CheckWord::AddsUp => exponents.chunks(),
            CheckWord::OfLanes => chunks,
        };
        let count = elements.len() / call.dtype.size();
        Self {
            place,
            number,
            call,
            part: Call { count, ..call },
            fingerprint: call.fingerprint_of_part(number, first, count),
            ranks,
            op,
            leaves_out,
            has_audiences,
            exponents,
            speculation: speculates.then(Speculation::default),
            data: Data::new(chunks),
            witnesses: Witnesses::new(if checked_maxima { 0 } else { maxima }),
            recorder: Recorder::new(elements.len()),
            elements,
        }
    }

    /// The collective's number in the session.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The call of the collective.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Whether all chunks are numbered, so that the next collective's may follow.
    pub fn is_numbered(&self) -> bool {
        self.exponents.are_numbered()
            && self.witnesses.are_numbered()
            && self.speculation.as_ref().is_none_or(Speculation::is_numbered)
            && self.data.is_numbered()
    }

    /// Whether every element has its result, and every chunk (rules 15.6 and 20.7).
    pub fn is_done(&self) -> bool {
        self.data.is_done()
            && self.exponents.are_known()
            && self.witnesses.are_done()
            && self.speculation.as_ref().is_none_or(Speculation::is_done)
    }

    /// Gives the elements back, with the call's statistics.
    pub fn finish(self) -> (Box<dyn Buffer>, CallStats) {
        (self.elements.into_buffer(), self.recorder.finish())
    }

    /// Takes note of the way of a chunk whose result is here now, in ns, and of the ranks that it
    /// waited for.
    pub fn record(&mut self, now: u64, history: &History, missing: &Ranks) {
        self.recorder.record(now, history, missing);
    }

    /// The next chunk to send, if it is known already.
    pub fn next(&mut self, predictor: &Predictor) -> Option<Chunk> {
        let Poll::Ready(part) = self.next_part(predictor) else { return None };
        part.map(|part| Chunk {
            collective: self.place,
            part,
            op: self.op(part),
            lanes: self.lanes(part) as u16,
            fingerprint: self.fingerprint,
            audience: self.audience(part),
            empty: self.is_left_out(part),
            may_wait: self.may_wait(part),
        })
    }

    /// Rule 17.6: the order of the phases.
    fn next_part(&mut self, predictor: &Predictor) -> Poll<Option<Part>> {
        let Self { elements, exponents, speculation, data, witnesses, recorder, .. } = self;
        if let Some(chunk) = exponents.next(elements) {
            if let Some(speculation) = speculation {
                *speculation = predictor.predict(&self.part, exponents.values());
            }
            return Poll::Ready(Some(Part::Exponents(chunk)));
        }
        // Exponents must be proven before they scale data.
        if exponents.chunks() > 0
            && let Some(chunk) = ready!(witnesses.next())
        {
            return Poll::Ready(Some(Part::Witness(chunk)));
        }
        if let Some(chunk) = speculation.as_mut().and_then(Speculation::next) {
            return Poll::Ready(Some(Part::Speculative(chunk)));
        }
        if let Some(part) = ready!(data.next(elements, exponents, speculation.as_ref(), recorder)) {
            return Poll::Ready(Some(part));
        }
        witnesses.next().map(|chunk| chunk.map(Part::Witness))
    }

    /// Rules 12.12 and 17.10: for whom a chunk's result is. Those of speculative chunks all ranks
    /// need, to tell whether they count.
    fn audience(&self, part: Part) -> Audience {
        match part {
            Part::Data(chunk) | Part::Wide(chunk, _) if self.has_audiences => {
                self.elements.audience(chunk)
            }
            _ => Audience::All,
        }
    }

    /// Rule 12.10: whether this rank's lanes of a chunk, all zero, are left out.
    fn is_left_out(&self, part: Part) -> bool {
        matches!(part, Part::Data(chunk) if self.leaves_out && !self.elements.contribute(chunk))
    }

    /// Whether later chunks may go out before this chunk, because only this rank has lanes of it.
    fn may_wait(&self, part: Part) -> bool {
        let Part::Data(chunk) = part else { return false };
        let is_gathered = self.call.kind == Kind::AllGather && self.leaves_out;
        is_gathered && self.elements.contribute(chunk)
    }

    /// How a chunk's lanes are combined (rules 15.2 and 17.4).
    fn op(&self, part: Part) -> Op {
        match part {
            Part::Exponents(_) => Codec::exponents().wire_op(),
            Part::Witness(_) => Codec::bytes().wire_op(),
            Part::Speculative(_) | Part::Data(_) | Part::Wide(..) => self.op,
        }
    }

    /// Lanes of a chunk.
    fn lanes(&self, part: Part) -> usize {
        match part {
            Part::Exponents(chunk) => match &self.speculation {
                None => self.exponents.lanes(chunk),
                Some(speculation) => {
                    speculation.exponent_lanes(&self.exponents, self.elements.lanes(0))
                }
            },
            Part::Witness(chunk) if self.exponents.chunks() > 0 => {
                Witnesses::lanes(self.exponents.lanes(chunk))
            }
            Part::Witness(chunk) => Witnesses::lanes(self.elements.lanes(chunk)),
            Part::Speculative(chunk) | Part::Data(chunk) => self.elements.lanes(chunk),
            Part::Wide(chunk, place) => self.elements.wide_lanes(chunk, place),
        }
    }

    /// Writes this rank's share of a chunk; the wrapping sum of its lanes.
    pub fn encode(&self, part: Part, payload: &mut [u8]) -> u32 {
        let Self { elements, exponents, speculation, witnesses, .. } = self;
        match (part, speculation) {
            (Part::Exponents(_), Some(speculation)) => {
                speculation.encode_exponents(exponents, payload)
            }
            (Part::Exponents(chunk), None) => exponents.encode(chunk, payload),
            (Part::Witness(chunk), _) => witnesses.encode(chunk, payload),
            (Part::Wide(chunk, place), _) => elements.encode_wide(chunk, place, payload),
            // Once a prediction is known to be wrong, the elements may have changed: the chunk's
            // result does not count.
            (Part::Speculative(chunk), Some(speculation)) => {
                elements.encode(chunk, speculation.predicted(chunk), payload)
            }
            (Part::Speculative(chunk) | Part::Data(chunk), _) => {
                elements.encode(chunk, exponents.of(chunk), payload)
            }
        }
    }

    /// Whether the unchecked maximum that came for a chunk may be right. If so, it still has to be
    /// proven.
    pub fn accept(&mut self, part: Part, maximum: &[u8]) -> bool {
        let (Part::Exponents(chunk) | Part::Data(chunk)) = part else { return false };
        let mut own = [0; 4 * MAX_LANES];
        let own = &mut own[..maximum.len()];
        self.encode(part, own);
        self.witnesses.accept(chunk, own, maximum)
    }

    /// Notes that the round of a chunk is complete whose lanes this rank does not need.
    pub fn pass(&mut self, part: Part) {
        if let Part::Data(_) | Part::Wide(..) = part {
            self.data.pass();
        }
    }

    /// Decodes the result of a chunk. The predictor learns the exponents of small calls.
    ///
    /// # Errors
    /// When an accepted maximum turns out to be wrong.
    pub fn decode(
        &mut self,
        part: Part,
        payload: &[u8],
        predictor: &mut Predictor,
    ) -> Result<(), Failure> {
        let Self { elements, exponents, speculation, data, witnesses, recorder, .. } = self;
        match (part, speculation) {
            (Part::Exponents(_), Some(speculation)) => {
                speculation.decode_exponents(payload, exponents, elements);
                predictor.learn(&self.part, exponents.values(), speculation.right());
                recorder.speculated(speculation.sent(), speculation.right());
            }
            (Part::Exponents(chunk), None) => exponents.decode(chunk, payload),
            (Part::Witness(chunk), _) => {
                if !witnesses.decode(chunk, payload, self.ranks) {
                    return Err(Failure::Maximum);
                }
            }
            (Part::Speculative(chunk), Some(speculation)) => {
                speculation.decode(chunk, payload, elements, exponents)
            }
            (Part::Wide(chunk, place), _) => data.decode_wide((chunk, place), payload, elements),
            (Part::Speculative(chunk) | Part::Data(chunk), _) => {
                data.decode(chunk, payload, elements, exponents)
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
