//! The throughput of running jobs: bytes of results, and recent rates.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use switchml_control as control;

/// Time from one look at the jobs to the next.
pub const PERIOD: Duration = Duration::from_secs(2);
/// Periods that are kept: two minutes.
const PERIODS: usize = 60;

/// The throughput of all running jobs.
#[derive(Debug, Default)]
pub struct Throughputs {
    /// The throughput of jobs, by number and epoch.
    jobs: BTreeMap<(u16, u32), Throughput>,
}

#[derive(Debug)]
struct Throughput {
    /// Bytes of results that each rank has received since the epoch began.
    bytes: u64,
    looked_at: Instant,
    /// Bytes per second between looks, the oldest first.
    recent: VecDeque<u64>,
}

impl Throughputs {
    /// Takes a look at all running jobs: their numbers and epochs, and the bytes of results that
    /// each rank has received since the epoch began, where known. Other jobs are forgotten.
    pub fn look(&mut self, now: Instant, jobs: impl IntoIterator<Item = (u16, u32, Option<u64>)>) {
        let mut before = std::mem::take(&mut self.jobs);
        for (number, epoch, bytes) in jobs {
            let key = (number, epoch);
            let known = before.remove(&key);
            let Some(bytes) = bytes else { continue };
            let job = known.map_or_else(|| Throughput::new(now, bytes), |job| job.next(now, bytes));
            self.jobs.insert(key, job);
        }
    }

    /// A job's, for operators.
    pub fn of(&self, number: u16, epoch: u32) -> Option<control::Throughput> {
        let Throughput { bytes, recent, .. } = self.jobs.get(&(number, epoch))?;
        let bytes_per_second = recent.iter().copied().collect();
        Some(control::Throughput {
            bytes: *bytes,
            period_ms: PERIOD.as_millis() as u64,
            bytes_per_second,
        })
    }
}

impl Throughput {
    fn new(now: Instant, bytes: u64) -> Self {
        Self { bytes, looked_at: now, recent: VecDeque::with_capacity(PERIODS) }
    }

    fn next(mut self, now: Instant, bytes: u64) -> Self {
        let passed = now.saturating_duration_since(self.looked_at);
        // A look at slots that change meanwhile may find too little.
        let bytes = bytes.max(self.bytes);
        let rate = ((bytes - self.bytes) as f64 / passed.as_secs_f64().max(1e-3)) as u64;
        if self.recent.len() == PERIODS {
            self.recent.pop_front();
        }
        self.recent.push_back(rate);
        Self { bytes, looked_at: now, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at job 5 of this epoch every two seconds, each of which finds this many bytes.
    fn watch(epoch: u32, looks: impl IntoIterator<Item = Option<u64>>) -> Throughputs {
        let begin = Instant::now();
        let mut throughputs = Throughputs::default();
        for (look, bytes) in (0..).zip(looks) {
            throughputs.look(begin + PERIOD * look, [(5, epoch, bytes)]);
        }
        throughputs
    }

    #[test]
    fn it_is_what_was_added_between_looks() {
        let job = watch(9, [700, 1700, 1700, 4700].map(Some)).of(5, 9).expect("known");
        // 1000, 0 and 3000 bytes in 2 s each.
        assert_eq!((job.bytes, job.bytes_per_second), (4700, vec![500, 0, 1500]));
        assert_eq!(job.period_ms, 2000);
    }

    #[test]
    fn two_minutes_are_kept() {
        let job = watch(9, (0..100).map(|look| Some(look * look))).of(5, 9).expect("known");
        // From look n to the next, which is 2 s later, n² grows by 2n + 1: by n a second, rounded
        // down.
        assert_eq!(job.bytes_per_second, (39..99).collect::<Vec<_>>());
    }

    #[test]
    fn a_look_that_finds_less_takes_nothing_away() {
        let job = watch(9, [700, 600, 900].map(Some)).of(5, 9).expect("known");
        assert_eq!((job.bytes, job.bytes_per_second), (900, vec![0, 100]));
    }

    #[test]
    fn jobs_that_end_are_forgotten() {
        let mut throughputs = watch(9, [Some(700)]);
        assert!(throughputs.of(5, 8).is_none(), "another epoch is another job");
        throughputs.look(Instant::now(), [(5, 9, None)]);
        assert!(throughputs.of(5, 9).is_none());
    }
}
