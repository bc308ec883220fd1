//! Predicts the exponents of a small call: usually they are those of the last similar call.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::speculation::{Speculation, bits};
use crate::call::Call;
use crate::numerics::exponent::{self, NON_FINITE, ZERO};

/// Rule 20.9: different calls that are remembered. With their exponents, a megabyte.
const MOST_CALLS: usize = 4096;

/// The last call of a kind, from which the next is predicted.
struct Past {
    /// The exponent over all ranks, by data chunk.
    exponents: Vec<i32>,
    /// The data chunks that are worth sending before their exponents are known, a bitmap.
    promising: u64,
}

/// Learns only from results, in the order of the calls, and always before the next call begins. So
/// all ranks of a session know the same.
#[derive(Default)]
pub(crate) struct Predictor {
    /// Not hashed with random keys, so that simulations and fuzzed inputs are deterministic.
    calls: HashMap<Call, Past, BuildHasherDefault<DefaultHasher>>,
}

impl Predictor {
    /// What is sent speculatively in a call with these exponents of this rank's data chunks: chunks
    /// that are the same on all ranks (rule 20.8), with exponents that mostly are so too (rule
    /// 20.10).
    pub fn predict(&self, call: &Call, own: &[i32]) -> Speculation {
        let Some(past) = self.calls.get(call) else {
            return Speculation::new(own.to_vec(), bits(own.iter().map(|_| true)));
        };
        // An infinity was an accident. Less than this rank's own exponent cannot be right.
        let expected =
            |(&last, &own): (&i32, &i32)| if last == NON_FINITE { own } else { last.max(own) };
        Speculation::new(past.exponents.iter().zip(own).map(expected).collect(), past.promising)
    }

    /// Takes note of a call's `exponents` over all ranks, and of which of them all ranks have
    /// `predicted`, a bitmap (rules 20.8 and 20.9).
    pub fn learn(&mut self, call: &Call, exponents: &[i32], predicted: u64) {
        if self.calls.len() >= MOST_CALLS && !self.calls.contains_key(call) {
            self.calls.clear();
        }
        let sent = exponents.iter().filter(|exponent| !exponent::is_marker(**exponent)).count();
        // Magnitudes that change at each call make speculation useless; most change only now and
        // then.
        let is_steady = 2 * predicted.count_ones() as usize >= sent;
        let promising =
            if is_steady { bits(exponents.iter().map(|&exponent| exponent != ZERO)) } else { 0 };
        self.calls.insert(*call, Past { exponents: exponents.to_vec(), promising });
    }
}
