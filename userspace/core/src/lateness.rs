//! The ranks whose contributions come later than all others', sampled by looks at the jobs' slots.
//!
//! A rank that has a slow link is no straggler: no round waits long for it. But whenever somebody
//! looks, the oldest unfinished round lacks this rank, and the others are ahead by their windows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::oldest_round::Progress;

/// What is left of earlier looks' weights at each look: after 50 looks a third.
const KEPT: f64 = 0.98;
/// Weight of the looks that have to find unfinished rounds before anything is said.
const ENOUGH: f64 = 10.0;
/// A rank that is lacked in this part of the looks is later than the others.
const MOST: f64 = 0.8;

/// The lateness of ranks in all running jobs.
#[derive(Debug, Default)]
pub struct Lateness {
    /// Looks at jobs, by number and epoch.
    jobs: BTreeMap<(u16, u32), Looks>,
}

/// A look at a running job.
#[derive(Clone, Debug)]
pub struct Look {
    /// The job's number.
    pub number: u16,
    /// The job's epoch.
    pub epoch: u32,
    /// Number of its ranks.
    pub ranks: usize,
    /// The progress of its first shard, if the data plane shows it.
    pub progress: Option<Progress>,
}

/// The looks at a job. All numbers are sums over looks, of which later ones weigh more.
#[derive(Debug, Default)]
struct Looks {
    last: Option<(Instant, u64)>,
    /// Chunks that were begun, and the seconds that this took.
    begun: f64,
    seconds: f64,
    /// Looks that found an unfinished round.
    unfinished: f64,
    /// By rank, looks that found that its contribution was lacking, and the chunks that other ranks
    /// were ahead.
    lacked: BTreeMap<u16, (f64, f64)>,
}

/// A rank that is later than others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Late {
    /// The rank.
    pub rank: u16,
    /// How long its contributions come after those of the first rank.
    pub by: Duration,
}

impl Lateness {
    /// Takes looks at all running jobs. Other jobs are forgotten.
    pub fn look(&mut self, now: Instant, looks: impl IntoIterator<Item = Look>) {
        let mut before = std::mem::take(&mut self.jobs);
        for look in looks {
            let key = (look.number, look.epoch);
            let mut looks = before.remove(&key).unwrap_or_default();
            looks.add(now, look);
            self.jobs.insert(key, looks);
        }
    }

    /// The ranks of a job that are later than the others, ascending.
    pub fn of(&self, number: u16, epoch: u32) -> Vec<Late> {
        self.jobs.get(&(number, epoch)).map(Looks::late).unwrap_or_default()
    }
}

impl Looks {
    fn add(&mut self, now: Instant, look: Look) {
        let Some(progress) = look.progress else { return };
        if let Some((at, begun)) = self.last.replace((now, progress.begun)) {
            let passed = now.saturating_duration_since(at).as_secs_f64();
            self.begun = self.begun * KEPT + progress.begun.saturating_sub(begun) as f64;
            self.seconds = self.seconds * KEPT + passed;
        }
        let Some(unfinished) = progress.unfinished else { return };
        self.unfinished = self.unfinished * KEPT + 1.0;
        for (found, ahead) in self.lacked.values_mut() {
            (*found, *ahead) = (*found * KEPT, *ahead * KEPT);
        }
        // Those that most others wait with are not late: somebody is early.
        if unfinished.lacks.iter().count() * 2 <= look.ranks {
            let ahead = progress.begun.saturating_sub(unfinished.chunk) as f64;
            for rank in unfinished.lacks.iter() {
                let lacked = self.lacked.entry(rank).or_default();
                *lacked = (lacked.0 + 1.0, lacked.1 + ahead);
            }
        }
        self.lacked.retain(|_, (found, _)| *found > 0.1);
    }

    fn late(&self) -> Vec<Late> {
        let chunks_per_second = self.begun / self.seconds.max(1e-3);
        if self.unfinished < ENOUGH || chunks_per_second < 1.0 {
            return Vec::new();
        }
        let is_late = |(_, (found, _)): &(&u16, &(f64, f64))| *found >= MOST * self.unfinished;
        let late = self.lacked.iter().filter(is_late).map(|(&rank, (found, ahead))| {
            let seconds = ahead / found / chunks_per_second;
            Late { rank, by: Duration::try_from_secs_f64(seconds).unwrap_or_default() }
        });
        late.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oldest_round::Unfinished;
    use switchml_protocol::ranks::Ranks;

    /// Looks a quarter of a second apart at a job of four ranks: chunks begun, and the oldest
    /// unfinished one with the ranks that it lacks.
    fn late(looks: impl IntoIterator<Item = (u64, Option<(u64, &'static [u16])>)>) -> Vec<Late> {
        let begin = Instant::now();
        let mut lateness = Lateness::default();
        for (index, (begun, unfinished)) in (0..).zip(looks) {
            let unfinished = unfinished.map(|(chunk, lacks)| Unfinished {
                chunk,
                lacks: lacks.iter().copied().collect::<Ranks>(),
            });
            let progress = Some(Progress { begun, unfinished });
            let look = Look { number: 5, epoch: 9, ranks: 4, progress };
            lateness.look(begin + Duration::from_millis(250) * index, [look]);
        }
        lateness.of(5, 9)
    }

    #[test]
    fn a_rank_that_nearly_all_looks_lack_is_late_by_what_others_are_ahead() {
        // 1000 chunks a second, of which rank 3 lacks 40: they take 40 ms.
        let found = late((1..100).map(|look| (look * 250, Some((look * 250 - 40, &[3][..])))));
        let [Late { rank: 3, by }] = found[..] else { panic!("{found:?}") };
        assert!(by.abs_diff(Duration::from_millis(40)) < Duration::from_millis(2), "{by:?}");
        // After some 50 looks without it, it is no longer late.
        let ranks: [&[u16]; 2] = [&[3], &[0]];
        let changed =
            |look: u64| (look * 250, Some((look * 250 - 40, ranks[usize::from(look > 50)])));
        let found = late((1..200).map(changed));
        assert_eq!(found.iter().map(|late| late.rank).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn ranks_that_take_turns_are_not_late_nor_those_that_wait_for_an_early_one() {
        let turns: [&[u16]; 4] = [&[0], &[1], &[2], &[3]];
        let by_turns = |look: u64| (look * 250, Some((look * 250 - 40, turns[look as usize % 4])));
        assert_eq!(late((1..100).map(by_turns)), []);
        let early = |look: u64| (look * 250, Some((look * 250 - 40, &[1, 2, 3][..])));
        assert_eq!(late((1..100).map(early)), []);
        assert_eq!(late((1..100).map(|look: u64| (look * 250, None))), []);
    }

    #[test]
    fn few_looks_say_nothing_and_a_job_that_stands_still_has_no_pace() {
        let slow = |look: u64| (look * 250, Some((look * 250 - 40, &[3][..])));
        assert_eq!(late((1..9).map(slow)), []);
        assert_eq!(late((1..100).map(|_| (250, Some((210, &[3][..]))))), []);
    }
}
