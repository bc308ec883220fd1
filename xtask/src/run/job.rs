//! One job: the aggregator and its workers as processes, and the benchmark in them.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use switchml_rack::{AGGREGATOR_ADDRESS, Binaries, MAX_WORKERS, Namespace, Process, Rack, RackOptions};

use super::bench::Bench;

/// What the daemon prints before the address of its control plane, once it serves.
const READY: &str = "ready: control ";
/// Loading the BPF program takes the verifier a second or two on a slow machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the daemon may take to detach.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a worker may run on after the others have ended.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the job in a rack of its own, through the XDP program in driver mode.
pub fn in_rack(binaries: &Binaries, options: RackOptions, bench: &Bench) -> Result<()> {
    let rack = Rack::new(options)?;
    let mut aggregator = Command::new(&binaries.aggregator);
    aggregator.args(["--control", &format!("{AGGREGATOR_ADDRESS}:0")]);
    for port in rack.ports() {
        aggregator.args(["--iface", &port]);
    }
    let workers: Vec<&Namespace> = rack.workers().iter().collect();
    run(binaries, rack.switch(), aggregator, &workers, bench)
}

/// Runs the job on this host's loopback interface, through the software aggregator: without any privilege.
pub fn on_loopback(binaries: &Binaries, workers: usize, bench: &Bench) -> Result<()> {
    ensure!((1..=MAX_WORKERS).contains(&workers), "--workers {workers}: 1 to {MAX_WORKERS} are allowed");
    let host = Namespace::of_host()?;
    let mut aggregator = Command::new(&binaries.aggregator);
    aggregator.args(["--data-plane", "software", "--control", "127.0.0.1:0", "--data-port", "0"]);
    run(binaries, &host, aggregator, &vec![&host; workers], bench)
}

fn run(
    binaries: &Binaries,
    switch: &Namespace,
    aggregator: Command,
    workers: &[&Namespace],
    bench: &Bench,
) -> Result<()> {
    let mut aggregator = switch.spawn("aggregator", aggregator)?;
    let ready = aggregator.wait_for_line(READY, START_TIMEOUT)?;
    let (_, addresses) = ready.split_once(READY).context("the daemon's ready line has no address")?;
    let control = addresses.split(',').next().unwrap_or(addresses);

    let mut processes = Vec::new();
    for (rank, namespace) in workers.iter().enumerate() {
        let mut worker = Command::new(&binaries.worker);
        worker.arg("bench").args(bench.arguments()).args(["--aggregator", control.trim(), "--job", "bench"]);
        worker.args(["--rank", &rank.to_string(), "--world-size", &workers.len().to_string()]);
        let name = format!("worker {rank}");
        // Rank 0 prints the table, and draws its progress, as it goes.
        let process = if rank == 0 { namespace.spawn_inherited(&name, worker) } else { namespace.spawn(&name, worker) };
        processes.push(process?);
    }
    let result = wait_for_all(&mut processes);
    aggregator.terminate(STOP_TIMEOUT)?;
    result
}

/// Waits for all workers. When one fails the others get a moment to end with an error of their own.
fn wait_for_all(workers: &mut [Process]) -> Result<()> {
    let (first, others) = workers.split_first_mut().context("a job has at least one worker")?;
    // No bound: a large benchmark takes its time, and a worker that makes no progress ends by its own deadline.
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
