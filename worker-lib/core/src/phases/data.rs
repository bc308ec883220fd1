//! Data: the elements themselves, once their exponents are known.

use std::task::Poll;

use super::elements::Elements;
use super::exponents::Exponents;
use super::speculation::Speculation;
use crate::stats::Recorder;

/// See the module.
pub(crate) struct Data {
    chunks: usize,
    /// Chunks that are numbered, or never will be.
    passed: usize,
    /// Chunks whose elements have no result yet.
    left: usize,
}

impl Data {
    pub fn new(chunks: usize) -> Self {
        Self { chunks, passed: 0, left: chunks }
    }

    /// Whether all chunks that are to be sent are numbered.
    pub fn is_numbered(&self) -> bool {
        self.passed == self.chunks
    }

    /// Whether all results are here.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// The next chunk to send; pending until its exponent is known. On the way, fills in the
    /// results of chunks that are never sent.
    pub fn next(
        &mut self,
        elements: &mut Elements,
        exponents: &Exponents,
        speculation: Option<&Speculation>,
        recorder: &mut Recorder,
    ) -> Poll<Option<usize>> {
        while !self.is_numbered() {
            let chunk = self.passed;
            if !exponents.is_known(chunk) {
                return Poll::Pending;
            }
            self.passed += 1;
            if exponents.is_skipped(chunk) {
                recorder.skipped(elements.fill_skipped(chunk, exponents.of(chunk)));
            } else if !speculation.is_some_and(|speculation| speculation.counts(chunk)) {
                return Poll::Ready(Some(chunk));
            }
            self.left -= 1;
        }
        Poll::Ready(None)
    }

    /// Takes in the result of a chunk.
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

    /// A chunk needs no result any more.
    pub fn pass(&mut self) {
        self.left -= 1;
    }
}
