//! Warns of ranks that a call waits for long for (rule 14.5): a line that names them, and the call.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use switchml_control::rank_list;
use switchml_protocol::ranks::Ranks;
use switchml_worker_core::call::Call;

use crate::warning::warn;

/// A call that has waited this long for a result is worth a warning.
pub(crate) const LONG: Duration = Duration::from_secs(5);
/// The least time between two warnings, whichever call they are about: ranks that are late in every
/// step must not fill a log.
const PAUSE: Duration = Duration::from_secs(60);

/// Warns of late ranks on the standard error stream, as torch and MPI do. A communicator's drivers
/// report them here.
pub(crate) struct LateRanks {
    job: String,
    rank: u32,
    said_at: Mutex<Option<Instant>>,
    /// The oldest call that has waited for long, and the ranks that it waits for.
    waiting: Mutex<Option<(u64, Vec<u32>)>>,
}

impl LateRanks {
    pub fn new(job: String, rank: u32) -> Self {
        Self { job, rank, said_at: Mutex::default(), waiting: Mutex::default() }
    }

    /// Reports that call `number`, from 0, has waited for these ranks for `waited`.
    pub fn report(&self, now: Instant, waited: Duration, ranks: &Ranks, number: u64, call: &Call) {
        *self.waiting() = Some((number, ranks.iter().map(u32::from).collect()));
        if let Some(line) = self.line(now, waited, ranks, number, call) {
            warn(&self.job, self.rank, line);
        }
    }

    /// The ranks that the oldest call waits for, ascending; empty until it has waited for [`LONG`].
    pub fn ranks(&self) -> Vec<u32> {
        self.waiting().as_ref().map(|(_, ranks)| ranks.clone()).unwrap_or_default()
    }

    /// Forgets call `number`, which is over, and all calls before it.
    pub fn forget(&self, number: u64) {
        self.waiting().take_if(|(waits, _)| *waits <= number);
    }

    fn waiting(&self) -> MutexGuard<'_, Option<(u64, Vec<u32>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text of a warning, if it is time for one.
    fn line(
        &self,
        now: Instant,
        waited: Duration,
        ranks: &Ranks,
        number: u64,
        call: &Call,
    ) -> Option<String> {
        let mut said_at = self.said_at.lock().unwrap_or_else(PoisonError::into_inner);
        if waited < LONG || said_at.is_some_and(|at| now.saturating_duration_since(at) < PAUSE) {
            return None;
        }
        *said_at = Some(now);
        let ranks = rank_list(&ranks.iter().collect::<Vec<_>>());
        let (waited, number) = (waited.as_secs(), number + 1);
        Some(format!(" has waited {waited} s for {ranks} in its call {number}, {call}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use switchml_worker_core::call::Kind;
    use switchml_worker_core::numerics::{DType, Reduction};

    #[test]
    fn late_ranks_are_known_until_the_call_that_waits_is_over() {
        let late_ranks = LateRanks::new("train".to_owned(), 2);
        let call = Call { kind: Kind::AllReduce(Reduction::SUM), dtype: DType::F32, count: 1 };
        assert!(late_ranks.ranks().is_empty());
        late_ranks.report(Instant::now(), LONG, &Ranks::from([1, 3]), 16, &call);
        assert_eq!(late_ranks.ranks(), [1, 3]);
        late_ranks.forget(15);
        assert_eq!(late_ranks.ranks(), [1, 3], "an earlier call was over");
        late_ranks.forget(16);
        assert!(late_ranks.ranks().is_empty());
    }

    #[test]
    fn one_line_a_minute_says_whom_and_in_which_call() {
        let late_ranks = LateRanks::new("train".to_owned(), 2);
        let call = Call { kind: Kind::AllReduce(Reduction::SUM), dtype: DType::F32, count: 1000 };
        let begin = Instant::now();
        let line = |at: u64, waited: u64| {
            late_ranks.line(
                begin + Duration::from_millis(at),
                Duration::from_millis(waited),
                &Ranks::from([1, 3]),
                16,
                &call,
            )
        };
        assert_eq!(line(4_999, 4_999), None);
        let expected =
            " has waited 5 s for ranks 1 and 3 in its call 17, all_reduce(sum, f32, 1000)";
        assert_eq!(line(5_000, 5_000).as_deref(), Some(expected));
        assert_eq!(line(5_100, 5_100), None);
        assert_eq!(line(64_999, 6_000), None, "another wait, in the same minute");
        assert_eq!(line(65_000, 65_000), Some(expected.replace("5 s", "65 s")));
    }
}
