//! `cargo xtask bench share`: jobs that share a combiner, as jobs share a switch in ATP.
//!
//! Up to 16 jobs of four ranks run at once, with two ranks of each job in each of two racks. The
//! uplinks are the bottleneck. A pool of cells that suffices for two jobs is shared packet by
//! packet; or it is split into two fixed parts for two jobs; or there are no combiners.
//!
//! A command is one line: `<number> <milliseconds> <elements of a tensor> <calls of a burst> <mean
//! pause in milliseconds>`. Rank 0 of each job then prints a [`Report`]. The jobs of `jobs.rs` have
//! another command.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use switchml_rack::{Binaries, Plane, RackOptions, Racks, Shaping, Tree};

use super::commanded::{Commanded, Member, fifo};
use super::kit::Kit;
use crate::measure::{Report as Found, Table, rows_in_turn};
use crate::stats::Spread;

/// Jobs at once.
const JOBS: [usize; 5] = [1, 2, 4, 8, 16];
pub const RACKS: usize = 2;
/// Ranks of a job.
pub const RANKS: usize = 4;

/// Bits per second of an uplink, and of a worker's link: high enough that only uplinks are a
/// bottleneck, and low enough that processors are not.
const UPLINK: u64 = 100_000_000;
const LINK: u64 = 400_000_000;

/// Cells that one job has use for: as many as slots.
const CELLS_OF_JOB: usize = 512;
/// Jobs for which the pool suffices.
const PARTS: usize = 2;

/// Bytes of a tensor.
const TENSOR: usize = 512 << 10;
const TIME: Duration = Duration::from_secs(3);

/// How the cells are given to jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    BestEffort,
    Partition,
    NoCombiner,
}

impl Sharing {
    const ALL: [Self; 3] = [Self::BestEffort, Self::Partition, Self::NoCombiner];

    pub fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "shared cells",
            Self::Partition => "fixed parts",
            Self::NoCombiner => "no combiner",
        }
    }

    /// Starts the root's aggregator and the combiners.
    pub fn tree(self, binaries: &Binaries, racks: &Racks) -> Result<Tree> {
        let (all, one) = ((PARTS * CELLS_OF_JOB).to_string(), CELLS_OF_JOB.to_string());
        let parts: Vec<String> =
            (0..PARTS).map(|part| (49_000 + 1100 * part).to_string()).collect();
        let parts: Vec<[&str; 4]> =
            parts.iter().map(|port| ["--cells", &one, "--data-port", port]).collect();
        let parts: Vec<&[&str]> = parts.iter().map(|part| &part[..]).collect();
        let combiners: &[&[&str]] = match self {
            Self::BestEffort => &[&["--cells", &all]],
            Self::Partition => &parts,
            Self::NoCombiner => &[],
        };
        Ok(Tree::with_combiners(binaries, racks, Plane::Software, combiners)?)
    }

    /// The number of a job's combiner in its rack; there may be no combiner with this number.
    fn combiner(self, job: usize) -> usize {
        if self == Self::Partition { job } else { 0 }
    }
}

/// The times at which jobs have something to add up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Traffic {
    Steady,
    /// Bursts, with pauses of random lengths in between.
    OnOff,
}

impl Traffic {
    const ALL: [Self; 2] = [Self::Steady, Self::OnOff];

    fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::OnOff => "on/off",
        }
    }

    /// Calls of a burst, and the mean pause after it in milliseconds: as long as eight bursts of a
    /// job that has the uplinks to itself.
    fn burst(self) -> (u64, u64) {
        const CALLS: u64 = 2;
        let milliseconds = CALLS * TENSOR as u64 * 8 * 1000 / UPLINK;
        match self {
            Self::Steady => (0, 0),
            Self::OnOff => (CALLS, 8 * milliseconds),
        }
    }
}

/// The report that rank 0 of a job prints.
#[derive(Deserialize)]
pub struct Report {
    /// Bytes of the tensors; training steps have none.
    bytes: Option<u64>,
    pub seconds: f64,
}

/// Measures all numbers of jobs with cells given in all ways.
pub fn measure(kit: &Kit) -> Result<Found> {
    let options = RackOptions { workers: RANKS, ..RackOptions::default() };
    let racks = Racks::new(RACKS, options)?;
    let _shaped = Shaping::of_racks(&racks, LINK, UPLINK)?;
    let rates = rows_in_turn(kit.runs, [JOBS.len(), Sharing::ALL.len()], |row, way, _| {
        let sharing = Sharing::ALL[way];
        let tree = sharing.tree(&kit.binaries, &racks)?;
        let mut running = Running::start(kit, &racks, (&tree, sharing), JOBS[row], &[])?;
        let rates = Traffic::ALL.map(|traffic| running.measure(traffic));
        running.stop()?;
        tree.stop()?;
        rates.into_iter().collect()
    })?;
    Ok(table(&rates, kit.runs).into())
}

/// Jobs that are up, and wait for commands.
pub struct Running(Vec<Commanded>);

impl Running {
    /// Starts so many jobs, whose ranks' processes have these options, too.
    pub fn start(
        Kit { binaries, scratch, .. }: &Kit,
        racks: &Racks,
        (tree, sharing): (&Tree, Sharing),
        jobs: usize,
        options: &[&str],
    ) -> Result<Self> {
        let start = |job| {
            let (mut processes, mut commands) = (Vec::new(), Vec::new());
            for (rank, worker) in racks.workers().iter().enumerate() {
                let path = scratch.join(format!("share-{job}-{rank}"));
                commands.push(fifo(&path)?);
                let control = tree.control_of(rank, sharing.combiner(job));
                let member = Member { control, job: &format!("job {job}"), rank, ranks: RANKS };
                let mut command = member.command(&binaries.worker, &path);
                command.args(options);
                processes.push(worker.spawn(&format!("rank {rank} of job {job}"), command)?);
            }
            Ok(Commanded::new(processes, commands))
        };
        let mut running = Self((0..jobs).map(start).collect::<Result<_>>()?);
        // Ranks that are starting would slow down the others.
        running.share(Duration::ZERO, (0, 0))?;
        Ok(running)
    }

    fn measure(&mut self, traffic: Traffic) -> Result<Vec<f64>> {
        let reports = self.share(TIME, traffic.burst())?;
        let rate = |report: &Report| {
            let bytes = report.bytes.context("not a report of sums")?;
            Ok(bytes as f64 * 8e-6 / report.seconds)
        };
        reports.iter().map(rate).collect()
    }

    fn share(&mut self, time: Duration, (calls, pause): (u64, u64)) -> Result<Vec<Report>> {
        self.command(&format!("{} {} {calls} {pause}", time.as_millis(), TENSOR / 4))
    }

    /// Gives all jobs a command at once, and returns their reports.
    pub fn command(&mut self, work: &str) -> Result<Vec<Report>> {
        self.0.iter_mut().try_for_each(|job| job.send(work))?;
        self.0.iter_mut().map(Commanded::report).collect()
    }

    pub fn stop(self) -> Result<()> {
        self.0.into_iter().try_for_each(Commanded::stop)
    }
}

/// Jain's index: 1 if all have the same, 1/n if one of n has all.
fn jain(rates: &[f64]) -> f64 {
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    rates.iter().sum::<f64>().powi(2) / (rates.len() as f64 * squares)
}

/// `rates` has megabits per second of tensors: by number of jobs, sharing, run, traffic and job.
fn table(rates: &[Vec<Vec<Vec<Vec<f64>>>>], runs: usize) -> String {
    let heads = Sharing::ALL.iter().flat_map(|sharing| [sharing.name(), "index"]);
    let mut table = Table::new(["traffic", "jobs"].into_iter().chain(heads));
    for (number, traffic) in Traffic::ALL.iter().enumerate() {
        for (jobs, rates) in JOBS.iter().zip(rates) {
            let cells = rates.iter().flat_map(|runs| {
                let of = |what: fn(&[f64]) -> f64| {
                    Spread::of(runs.iter().map(|traffics| what(&traffics[number])).collect())
                };
                let total = of(|rates| rates.iter().sum());
                [total.to_string(), format!("{:.2}", of(jain).median)]
            });
            let head = [traffic.name().to_owned(), jobs.to_string()];
            table.cells(head.into_iter().chain(cells));
        }
    }
    format!(
        "Throughput of all jobs together in Mb/s of tensors, median of {runs} repetitions with \
         quartiles, and Jain's index.\nUplinks of {} Mb/s, 2 racks, jobs of 4 ranks, software \
         combiners, {} cells in each rack.\n\n{table}",
        UPLINK / 1_000_000,
        PARTS * CELLS_OF_JOB
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index() {
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        // (1 + 3)^2 / (2 * 10)
        assert_eq!(jain(&[1.0, 3.0]), 0.8);
    }
}
