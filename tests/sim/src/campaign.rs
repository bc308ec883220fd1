//! Many seeds, on all cores.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::net::Violation;
use crate::tally::Tally;
use crate::world::{simulate, simulate_tree};

/// The seeds to run, and the time for them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The first seed; the others follow it.
    pub first: u64,
    /// The number of seeds.
    pub seeds: u64,
    /// Whether there are combiners between workers and root.
    pub trees: bool,
    /// Time after which no new seed is begun.
    pub time: Duration,
}

/// The results of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Counts over all runs.
    pub tally: Tally,
    /// Seeds that failed, and why. Few: the campaign ends at the first on each core.
    pub failures: Vec<(u64, Violation)>,
}

/// Runs seeds on all cores, until one fails on each, or the limits are reached.
pub fn run(limits: &Limits) -> Report {
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let report = Mutex::new(Report::default());
    let work = || {
        let mut own = Report::default();
        while !failed.load(Ordering::Relaxed) && begin.elapsed() < limits.time {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= limits.seeds {
                break;
            }
            let seed = limits.first.wrapping_add(number);
            let run = if limits.trees { simulate_tree(seed) } else { simulate(seed) };
            own.tally += &run.tally;
            if let Err(violation) = run.verdict {
                own.failures.push((seed, violation));
                failed.store(true, Ordering::Relaxed);
            }
        }
        let mut report = report.lock().expect("no thread panics with the lock");
        report.tally += &own.tally;
        report.failures.extend(own.failures);
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    report.into_inner().expect("all threads are done")
}
