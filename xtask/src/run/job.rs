//! One job: the aggregator and its workers as processes, and the benchmark in them.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use switchml_rack::{Aggregator, Binaries, Mode, Namespace, Process, Rack, RackOptions, Shaping};

use super::bench::Bench;

/// The largest tensor unless another is asked for. bmv2 interprets its program, some thousand
/// packets a second.
const LARGEST: &str = "64M";
const LARGEST_ON_BMV2: &str = "64K";

/// How long a worker may run on after the others have ended.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the job in a rack of its own, on links of that rate, through the programs in the kernel or
/// through bmv2.
pub fn in_rack(
    binaries: &Binaries,
    options: RackOptions,
    megabits: Option<u64>,
    bench: &Bench,
) -> Result<()> {
    let ranks = options.workers + usize::from(options.own_host);
    let largest = if options.mode == Mode::Bmv2 { LARGEST_ON_BMV2 } else { LARGEST };
    let rack = Rack::new(options)?;
    let aggregator = Aggregator::in_rack(binaries, &rack)?;
    let _shaping = megabits.map(|rate| Shaping::new(&rack, rate * 1_000_000)).transpose()?;
    let workers: Vec<&Namespace> = (0..ranks).map(|rank| rack.worker(rank)).collect();
    run(binaries, aggregator, &workers, &bench.arguments(largest))
}

/// Runs the job on this host's loopback interface, through the software aggregator: without any
/// privilege.
pub fn on_loopback(binaries: &Binaries, workers: usize, bench: &Bench) -> Result<()> {
    let host = Namespace::of_host()?;
    let aggregator = Aggregator::on_loopback(binaries, &host)?;
    run(binaries, aggregator, &vec![&host; workers], &bench.arguments(LARGEST))
}

fn run(
    binaries: &Binaries,
    aggregator: Aggregator,
    workers: &[&Namespace],
    bench: &[&str],
) -> Result<()> {
    let mut processes = Vec::new();
    for (rank, namespace) in workers.iter().enumerate() {
        let mut worker = Command::new(&binaries.worker);
        worker.arg("bench").args(bench).args([
            "--aggregator",
            aggregator.control(),
            "--job",
            "bench",
        ]);
        worker.args(["--rank", &rank.to_string(), "--world-size", &workers.len().to_string()]);
        let name = format!("worker {rank}");
        // Rank 0 prints the table, and draws its progress, as it goes.
        let process = if rank == 0 {
            namespace.spawn_inherited(&name, worker)
        } else {
            namespace.spawn(&name, worker)
        };
        processes.push(process?);
    }
    let result = wait_for_all(&mut processes);
    aggregator.stop()?;
    result
}

/// Waits for all workers. When one fails the others get a moment to end with an error of their own.
fn wait_for_all(workers: &mut [Process]) -> Result<()> {
    let (first, others) = workers.split_first_mut().context("a job has at least one worker")?;
    // No bound: a large benchmark takes its time, and a worker that makes no progress ends by its
    // own deadline.
    let status = first.wait(Duration::MAX)?;
    let mut failures = Vec::new();
    for worker in others {
        if let Err(error) = worker.wait_success(END_TIMEOUT) {
            failures.push(error.to_string());
        }
    }
    if !status.success() {
        failures.insert(0, format!("worker 0 failed ({status}); it has said why above"));
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(())
}
