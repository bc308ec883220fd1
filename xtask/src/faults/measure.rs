//! The runs, and their results.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use switchml_rack::{Aggregator, Binaries, FaultCounts, Impairment, Rack, RackOptions};

use super::Condition;

/// Far longer than a run takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// The benchmark that every worker runs.
pub struct Bench<'a> {
    pub size: &'a str,
    pub iters: usize,
}

/// A condition, and its runs.
#[derive(Serialize)]
pub struct Measured {
    pub name: &'static str,
    /// Probability of loss, each way.
    pub loss: f64,
    /// Whether the links have no other fault.
    pub only_loss: bool,
    pub runs: Vec<Run>,
}

/// One run of the benchmark.
#[derive(Clone, Serialize)]
pub struct Run {
    /// Time of one all-reduce, on the slowest rank, in ms.
    pub time_ms: f64,
    /// Percentages of rank 0's chunks, and the times in ms by which these had their result.
    pub finished: Vec<(f64, f64)>,
    /// The packets that rank 0 resent in the timed iterations.
    pub resent: Resent,
    /// Chunks of an all-reduce times the timed iterations.
    pub chunks: u64,
    /// The faults of the links in the whole run.
    #[serde(skip)]
    pub faults: FaultCounts,
}

/// The packets that a rank resent, by cause.
#[derive(Clone, Copy, Serialize)]
pub struct Resent {
    pub by_timer: u64,
    pub by_overtaking: u64,
    pub probes: u64,
}

/// The fields of the benchmark's JSON that are read here.
#[derive(Deserialize)]
struct Report {
    rows: Vec<Row>,
    out_of_bounds: u64,
}

#[derive(Deserialize)]
struct Row {
    in_place: Timed,
}

#[derive(Deserialize)]
struct Timed {
    time_us: f64,
    sent: Sent,
}

#[derive(Deserialize)]
struct Sent {
    chunks: u64,
    resent_by_timer: u64,
    resent_by_overtaking: u64,
    probes: u64,
    finished_us: Vec<(f64, f64)>,
}

/// Runs all conditions in turn, `runs` times.
pub fn all(
    binaries: &Binaries,
    options: RackOptions,
    conditions: &[Condition],
    bench: &Bench,
    runs: usize,
    seed: u64,
) -> Result<Vec<Measured>> {
    let rack = Rack::new(options)?;
    let aggregator = Aggregator::in_rack(binaries, &rack)?;
    let mut measured: Vec<Measured> = conditions.iter().map(Measured::new).collect();
    for repetition in 0..runs {
        for (condition, measured) in conditions.iter().zip(&mut measured) {
            let impairment =
                Impairment::in_rack(binaries, &rack, seed + repetition as u64, |_, _| {
                    condition.faults
                })?;
            let run = one(binaries, &rack, &aggregator, bench)
                .with_context(|| format!("with {}", condition.name))?;
            let mut faults = FaultCounts::default();
            impairment.stop()?.into_iter().flatten().for_each(|counts| faults += counts);
            eprintln!("{}/{runs} {:30} {:8.1} ms", repetition + 1, condition.name, run.time_ms);
            measured.runs.push(Run { faults, ..run });
        }
    }
    aggregator.stop()?;
    Ok(measured)
}

/// One job of all workers.
fn one(binaries: &Binaries, rack: &Rack, aggregator: &Aggregator, bench: &Bench) -> Result<Run> {
    let world_size = rack.workers().len().to_string();
    let start = |(rank, namespace): (usize, &switchml_rack::Namespace)| {
        let mut worker = Command::new(&binaries.worker);
        worker.args([
            "bench",
            "--aggregator",
            aggregator.control(),
            "--job",
            "faults",
            "--json",
            "-",
        ]);
        worker.args(["--rank", &rank.to_string(), "--world-size", &world_size]);
        worker.args([
            "-b",
            bench.size,
            "-e",
            bench.size,
            "-n",
            &bench.iters.to_string(),
            "-w",
            "1",
            "-c",
            "1",
        ]);
        namespace.spawn(&format!("worker {rank}"), worker)
    };
    let mut workers =
        rack.workers().iter().enumerate().map(start).collect::<Result<Vec<_>, _>>()?;
    workers.iter_mut().try_for_each(|worker| worker.wait_success(PATIENCE))?;
    let report: Report = serde_json::from_str(&workers[0].stdout())
        .context("the benchmark's JSON is not as expected")?;
    ensure!(report.out_of_bounds == 0, "{} elements are wrong", report.out_of_bounds);
    let Timed { time_us, sent } =
        report.rows.into_iter().next().context("the benchmark has no row")?.in_place;
    Ok(Run {
        time_ms: time_us / 1e3,
        finished: sent
            .finished_us
            .into_iter()
            .map(|(percent, time)| (percent, time / 1e3))
            .collect(),
        resent: Resent {
            by_timer: sent.resent_by_timer,
            by_overtaking: sent.resent_by_overtaking,
            probes: sent.probes,
        },
        chunks: sent.chunks,
        faults: FaultCounts::default(),
    })
}

impl Measured {
    fn new(condition: &Condition) -> Self {
        let faults = condition.faults;
        let only_loss = faults == switchml_rack::Faults { loss: faults.loss, ..Default::default() };
        Self { name: condition.name, loss: faults.loss, only_loss, runs: Vec::new() }
    }

    /// The run whose time is in the middle; the earlier one of two.
    pub fn median(&self) -> &Run {
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_by(|a, b| a.time_ms.total_cmp(&b.time_ms));
        runs[(runs.len() - 1) / 2]
    }

    /// Shortest and longest time, in ms.
    pub fn range(&self) -> (f64, f64) {
        let times = || self.runs.iter().map(|run| run.time_ms);
        (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max))
    }

    /// The faults of the links in all runs.
    pub fn faults(&self) -> FaultCounts {
        let mut total = FaultCounts::default();
        self.runs.iter().for_each(|run| total += run.faults);
        total
    }
}
