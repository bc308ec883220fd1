//! Data: the elements themselves, once their exponents are known.

use std::task::Poll;

use super::elements::Elements;
use super::exponents::Exponents;
use super::speculation::Speculation;
use crate::engine::Part;
use crate::numerics::exponent::Way;
use crate::stats::Recorder;

/// See the module.
pub(crate) struct Data {
    chunks: usize,
    /// Chunks that are numbered, or never will be.
    passed: usize,
    /// Number of wide chunks of the next data chunk that are numbered.
    wide: usize,
    /// Chunks whose elements have no result yet; each wide chunk counts.
    left: usize,
}

impl Data {
    pub fn new(chunks: usize) -> Self {
        Self { chunks, passed: 0, wide: 0, left: chunks }
    }

    /// Whether all chunks to be sent are numbered.
    pub fn is_numbered(&self) -> bool {
        self.passed == self.chunks
    }

    /// Whether all results have come.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// The next chunk to send; pending until its exponent is known (rule 18.5). On the way, fills
    /// in the results of chunks that are never sent.
    pub fn next(
        &mut self,
        elements: &mut Elements,
        exponents: &Exponents,
        speculation: Option<&Speculation>,
        recorder: &mut Recorder,
    ) -> Poll<Option<Part>> {
        while !self.is_numbered() {
            let chunk = self.passed;
            if !exponents.is_known(chunk) {
                return Poll::Pending;
            }
            match exponents.way(chunk) {
                Way::Wide => return Poll::Ready(Some(self.next_wide(elements))),
                Way::Skipped => {
                    recorder.skipped(elements.fill_skipped(chunk, exponents.of(chunk)));
                }
                Way::Scaled if speculation.is_some_and(|ahead| ahead.counts(chunk)) => {}
                Way::Scaled => {
                    self.passed += 1;
                    return Poll::Ready(Some(Part::Data(chunk)));
                }
            }
            self.passed += 1;
            self.left -= 1;
        }
        Poll::Ready(None)
    }

    /// The next wide chunk of the next data chunk.
    fn next_wide(&mut self, elements: &Elements) -> Part {
        let part = Part::Wide(self.passed, self.wide);
        self.wide += 1;
        if self.wide < elements.wide_chunks(self.passed) {
            self.left += 1;
        } else {
            (self.passed, self.wide) = (self.passed + 1, 0);
        }
        part
    }

    /// Decodes the result of a chunk.
    pub fn decode(
        &mut self,
        chunk: usize,
        payload: &[u8],
        elements: &mut Elements,
        exponents: &Exponents,
    ) {
        elements.decode(chunk, exponents.of(chunk), payload);
        self.pass();
    }

    /// Decodes the result of a wide chunk.
    pub fn decode_wide(
        &mut self,
        (chunk, place): (usize, usize),
        payload: &[u8],
        elements: &mut Elements,
    ) {
        elements.decode_wide(chunk, place, payload);
        self.pass();
    }

    /// A chunk needs no result any more.
    pub fn pass(&mut self) {
        self.left -= 1;
    }
}
