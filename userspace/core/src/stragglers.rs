//! The ranks that running jobs wait for, and for how long, sampled by looks at the jobs' slots.
//!
//! A job waits for a rank if the same round lacks the rank in two looks. So only waits of at least
//! the time between looks count, and each is measured too short at both ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::oldest_round::Unfinished;

/// The waits of all running jobs.
#[derive(Debug, Default)]
pub struct Stragglers {
    /// Waits of jobs, by number and epoch.
    jobs: BTreeMap<(u16, u32), Waits>,
}

#[derive(Debug, Default)]
struct Waits {
    /// The oldest round that was unfinished at the last look.
    round: Option<Round>,
    /// The time that all rounds have waited for each rank.
    total: BTreeMap<u16, Duration>,
}

#[derive(Debug)]
struct Round {
    found: Unfinished,
    since: Instant,
    looked_at: Instant,
}

/// A rank that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The rank.
    pub rank: u16,
    /// How long a round has now lacked the rank, if one does.
    pub now: Option<Duration>,
    /// How long rounds have lacked the rank, since the job or this daemon started.
    pub total: Duration,
}

impl Stragglers {
    /// Takes a look at all running jobs: their numbers and epochs, and the oldest unfinished round
    /// of each that has one. Other jobs are forgotten.
    pub fn look(
        &mut self,
        now: Instant,
        jobs: impl IntoIterator<Item = (u16, u32, Option<Unfinished>)>,
    ) {
        let mut before = std::mem::take(&mut self.jobs);
        for (number, epoch, found) in jobs {
            let mut waits = before.remove(&(number, epoch)).unwrap_or_default();
            waits.look(now, found);
            self.jobs.insert((number, epoch), waits);
        }
    }

    /// The ranks that the job has waited for, in order.
    pub fn of(&self, number: u16, epoch: u32) -> impl Iterator<Item = Wait> {
        self.jobs.get(&(number, epoch)).into_iter().flat_map(|waits| {
            waits.total.iter().map(|(&rank, &total)| Wait { rank, now: waits.now(rank), total })
        })
    }
}

impl Waits {
    fn look(&mut self, now: Instant, found: Option<Unfinished>) {
        let before = self.round.take();
        self.round = found.map(|found| match before {
            Some(Round { found: known, since, looked_at }) if known.chunk == found.chunk => {
                let passed = now.saturating_duration_since(looked_at);
                for rank in found.lacks.iter() {
                    *self.total.entry(rank).or_default() += passed;
                }
                Round { found, since, looked_at: now }
            }
            _ => Round { found, since: now, looked_at: now },
        });
    }

    /// How long the round has lacked this rank, if at least two looks have shown that.
    fn now(&self, rank: u16) -> Option<Duration> {
        let Round { found, since, looked_at } = self.round.as_ref()?;
        let waited = looked_at.saturating_duration_since(*since);
        (found.lacks.contains(rank) && !waited.is_zero()).then_some(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use switchml_protocol::ranks::Ranks;

    fn lacking<const N: usize>(chunk: u64, ranks: [u16; N]) -> Option<Unfinished> {
        Some(Unfinished { chunk, lacks: Ranks::from(ranks) })
    }

    /// Takes a look every second. The waits of job 5 afterwards, in seconds: rank, now, in total.
    fn watch(looks: &[Option<Unfinished>]) -> Vec<(u16, Option<u64>, u64)> {
        let begin = Instant::now();
        let mut stragglers = Stragglers::default();
        for (second, found) in (0..).zip(looks) {
            stragglers.look(begin + Duration::from_secs(second), [(5, 9, found.clone())]);
        }
        let seconds = |time: Duration| time.as_secs();
        let waits = stragglers.of(5, 9);
        waits.map(|wait| (wait.rank, wait.now.map(seconds), wait.total.as_secs())).collect()
    }

    #[test]
    fn a_round_that_lacks_a_rank_in_two_looks_waits_for_it() {
        assert_eq!(watch(&[lacking(7, [3])]), []);
        assert_eq!(watch(&[lacking(7, [3]), lacking(7, [3])]), [(3, Some(1), 1)]);
        assert_eq!(watch(&[lacking(7, [3]), lacking(8, [3])]), [], "packets under way");
        // Rank 1 comes before the second look, rank 2 before the third.
        let looks = [lacking(7, [1, 2, 3]), lacking(7, [2, 3]), lacking(7, [3])];
        assert_eq!(watch(&looks), [(2, None, 1), (3, Some(2), 2)]);
    }

    #[test]
    fn waits_add_up_over_rounds() {
        let wait = || [lacking(7, [3]), lacking(7, [3]), None, lacking(9, [0, 3])];
        assert_eq!(watch(&wait()), [(3, None, 1)]);
        let again: Vec<_> = wait().into_iter().chain([lacking(9, [0, 3])]).collect();
        assert_eq!(watch(&again), [(0, Some(1), 1), (3, Some(1), 2)]);
    }

    #[test]
    fn another_job_of_the_same_number_begins_anew() {
        let begin = Instant::now();
        let mut stragglers = Stragglers::default();
        for (second, epoch) in [(0, 9), (1, 9), (2, 10)] {
            let now = begin + Duration::from_secs(second);
            stragglers.look(now, [(5, epoch, lacking(7, [3]))]);
        }
        assert_eq!(stragglers.of(5, 10).count(), 0);
        assert_eq!(stragglers.of(5, 9).count(), 0, "it is gone");
    }
}
