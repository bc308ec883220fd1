//! The calls of a rank that it may have to report: calls in flight, and calls without packets, of
//! which other ranks know nothing.

use std::collections::VecDeque;

use crate::call::Call;
use crate::hash;

/// Most calls without packets that are kept: the aggregator accepts no longer reports.
const MAX_WITHOUT_PACKETS: usize = 1000;

/// The calls so far.
#[derive(Debug, Default)]
pub struct Issued {
    /// Number of the next call.
    next: u64,
    /// Calls with elements so far.
    sending: u64,
    /// The calls to be reported, in order.
    open: VecDeque<Open>,
}

/// A call to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its number.
    pub number: u64,
    /// The call.
    pub call: Call,
    /// How it was cut into parts: see [`Issued::note_cut`].
    pub cut: u64,
}

impl Issued {
    /// The number of a new call, and its turn: how many calls with elements were before it. Its
    /// parts must be handed to the drivers before another call is issued: all ranks' have the same
    /// calls in the same order (rule 12.3).
    pub fn issue(&mut self, call: Call) -> (u64, u64) {
        let (number, turn) = (self.next, self.sending);
        self.next += 1;
        self.sending += u64::from(call.count > 0);
        self.open.push_back(Open { number, call, cut: 0 });
        (number, turn)
    }

    /// The call that was issued last was cut into parts of so many elements: rule 22.10's hash of
    /// these.
    pub fn note_cut(&mut self, elements: impl IntoIterator<Item = u64>) {
        if let Some(last) = self.open.back_mut() {
            last.cut = hash::fold(elements);
        }
    }

    /// Rule 14.6: a call is done.
    ///
    /// A call without elements is done without a packet, so other ranks may have made another call
    /// in its place. It stays open until a later call with elements is done: the aggregator
    /// completes that only if all ranks have made the same calls before.
    pub fn finish(&mut self, number: u64) {
        let sends = |call: &Call| call.count > 0;
        let is_silent = self.open.iter().any(|open| open.number == number && !sends(&open.call));
        if !is_silent {
            let is_open =
                |open: &Open| open.number != number && (open.number > number || sends(&open.call));
            self.open.retain(is_open);
        } else if self.open.iter().filter(|open| !sends(&open.call)).count() > MAX_WITHOUT_PACKETS {
            let oldest = self.open.iter().position(|open| !sends(&open.call));
            oldest.map(|place| self.open.remove(place));
        }
    }

    /// The calls to be reported, up to call `last`.
    pub fn open(&self, last: u64) -> impl Iterator<Item = &Open> {
        self.open.iter().take_while(move |open| open.number <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Kind;
    use crate::numerics::{DType, Reduction};

    fn call(count: usize) -> Call {
        Call { kind: Kind::AllReduce(Reduction::SUM), dtype: DType::I32, count }
    }

    fn open(issued: &Issued) -> Vec<(u64, usize)> {
        issued.open(u64::MAX).map(|open| (open.number, open.call.count)).collect()
    }

    #[test]
    fn a_call_with_elements_is_open_until_it_is_done() {
        let mut issued = Issued::default();
        assert_eq!([5, 6, 7].map(|count| issued.issue(call(count)).0), [0, 1, 2]);
        issued.finish(1);
        assert_eq!(open(&issued), [(0, 5), (2, 7)]);
        assert_eq!([0, 1, 2].map(|last| issued.open(last).count()), [1, 1, 2]);
    }

    #[test]
    fn one_without_elements_is_open_until_a_later_call_with_elements_is_done() {
        let mut issued = Issued::default();
        let places = [4, 0, 3, 0].map(|count| issued.issue(call(count)));
        assert_eq!(places, [(0, 0), (1, 1), (2, 1), (3, 2)]);
        issued.finish(1);
        issued.finish(3);
        issued.finish(0);
        assert_eq!(open(&issued), [(1, 0), (2, 3), (3, 0)]);
        issued.finish(2);
        assert_eq!(open(&issued), [(3, 0)]);
    }

    /// The hash of 352 and 648, computed elsewhere.
    #[test]
    fn a_call_is_reported_with_its_cut() {
        let mut issued = Issued::default();
        issued.issue(call(1000));
        issued.note_cut([352, 648]);
        issued.issue(call(5));
        let cuts: Vec<_> = issued.open(u64::MAX).map(|open| open.cut).collect();
        assert_eq!(cuts, [0x5FC7_725C_B935_A5C7, 0]);
    }

    #[test]
    fn calls_without_elements_alone_do_not_pile_up() {
        let mut issued = Issued::default();
        for _ in 0..3 * MAX_WITHOUT_PACKETS {
            let (number, _) = issued.issue(call(0));
            issued.finish(number);
        }
        assert_eq!(issued.open(u64::MAX).count(), MAX_WITHOUT_PACKETS);
        assert_eq!(
            issued.open(u64::MAX).next().map(|open| open.number),
            Some(2 * MAX_WITHOUT_PACKETS as u64)
        );
    }
}
