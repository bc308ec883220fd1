//! `cargo xtask soak`: jobs of several aggregators and of none in a rack, one after the other, and
//! every 5 s something happens to a rank or an aggregator: it is killed, stopped, cut off, loses
//! packets, or is started again.
//!
//! Every element of every sum is checked on every rank. A job may fail only if a rank was hit so
//! that it is lost, and then the other ranks have to name that rank.

mod event;
mod job;
mod site;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::getuid;
use switchml_cli::say;
use switchml_rack::Binaries;

use crate::cargo::{self, Selection};
use crate::random::Random;
use job::{Fate, Job, Outcome};
use site::Site;

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub struct Soak {
    /// Minutes in which jobs are started
    #[arg(long, default_value_t = 15.0, value_parser = minutes)]
    minutes: f64,

    /// Seed of what happens, when and to which rank or aggregator
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Use the binaries in this folder instead of building them
    #[arg(long, value_name = "FOLDER")]
    binaries: Option<PathBuf>,
}

/// What came of all jobs.
#[derive(Debug, Default)]
struct Tally {
    jobs: usize,
    events: usize,
    finished: usize,
    /// Jobs that failed because of a rank that they name.
    named: usize,
    /// Jobs with wrong sums.
    wrong: usize,
    /// Jobs that failed without need, did not end, or blame another rank.
    bad: usize,
}

impl Soak {
    /// Runs jobs, and prints a line for each.
    pub fn run(&self) -> Result<()> {
        ensure!(getuid().is_root(), "a rack of network namespaces needs root; run this as root");
        let folder = cargo::binaries_folder(self.binaries.as_deref(), Selection::Job)?;
        let length = Duration::from_secs_f64(self.minutes * 60.0);
        let tally = soak(&Binaries::in_folder(&folder)?, length, self.seed)?;
        say!("{}", tally.in_words());
        ensure!(
            tally.wrong == 0 && tally.bad == 0,
            "{} jobs had wrong sums, and {} ended in a wrong way; the lines above say how",
            tally.wrong,
            tally.bad
        );
        Ok(())
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().map_err(|_| "give a number of minutes".to_owned())?;
    match minutes {
        0.1..=100_000.0 => Ok(minutes),
        _ => Err("give 0.1 to 100000 minutes".to_owned()),
    }
}

/// Starts jobs for so long, one after the other; the last one ends later.
fn soak(binaries: &Binaries, length: Duration, seed: u64) -> Result<Tally> {
    let mut site = Site::new(binaries)?;
    let mut random = Random(seed);
    let mut tally = Tally::default();
    let begin = Instant::now();
    while begin.elapsed() < length {
        site.heal()?;
        let outcome = Job::start(&site, tally.jobs)?.live(&mut site, &mut random)?;
        tally.add(&outcome);
        say!("{:5.0} s  {outcome}", begin.elapsed().as_secs_f64());
    }
    Ok(tally)
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        self.jobs += 1;
        self.events += outcome.events.len();
        let count = match outcome.fate {
            Fate::Finished => &mut self.finished,
            Fate::Named { .. } => &mut self.named,
            Fate::Wrong(_) => &mut self.wrong,
            Fate::Bad(_) => &mut self.bad,
        };
        *count += 1;
    }

    fn in_words(&self) -> String {
        let Self { jobs, events, finished, named, wrong, bad } = self;
        format!(
            "{jobs} jobs, {events} events: {finished} jobs finished, {named} failed and named the \
             lost rank, {bad} ended in a wrong way, {wrong} had wrong sums"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough for a job of each kind.
    #[test]
    fn a_minute_of_kills_and_cuts_makes_no_sum_wrong() {
        switchml_rack::needs_racks!();
        let binaries = Binaries::for_test().unwrap();
        let tally = soak(&binaries, Duration::from_secs(60), 1).unwrap();
        assert!(tally.jobs >= 2 && tally.events >= 2, "{tally:?}");
        assert_eq!((tally.wrong, tally.bad), (0, 0), "{tally:?}");
    }
}
