//! Jobs: aggregators and their workers as processes, and the benchmark in them.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use switchml_cli::say;
use switchml_rack::{
    Aggregator, Binaries, Carried, Mode, Namespace, Plane, Process, Rack, RackOptions, Racks,
    Shaping, Tree,
};

use super::bench::Bench;

/// The default size of the largest tensor. bmv2 interprets its program, at some thousand packets
/// per second.
const LARGEST: &str = "64M";
const LARGEST_ON_BMV2: &str = "64K";

/// Where the workers of the first job meet without an aggregator, and those of others at the next.
const MEETING_PORT: usize = 29_500;

/// The time that a worker may run after the others have ended.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// The jobs to run.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    /// The number of jobs at once, each of all workers.
    pub jobs: usize,
    /// The benchmark of each job.
    pub bench: &'a Bench,
}

/// The namespace of a worker, and how it gets into its job.
type Place<'a> = (&'a Namespace, Way<'a>);

/// How a worker gets into its job.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// By an aggregator's control plane.
    Aggregator(&'a str),
    /// It meets the others at this address, and they serve each other.
    Meeting(IpAddr),
}

impl Way<'_> {
    /// Tells a worker of this job.
    fn tell(self, worker: &mut Command, job: usize) {
        match self {
            Self::Aggregator(control) => worker.args(["--aggregator", control]),
            Self::Meeting(place) => {
                let port = MEETING_PORT + job;
                worker.env_remove("SWITCHML_AGGREGATOR");
                worker.env("MASTER_ADDR", place.to_string()).env("MASTER_PORT", port.to_string())
            }
        };
    }
}

/// Runs jobs in a new rack, on links of a given rate, through the programs in the kernel or through
/// bmv2; without a value of the daemon's `--fanout` without an aggregator.
pub fn in_rack(
    binaries: &Binaries,
    options: RackOptions,
    fanout: Option<&str>,
    megabits: Option<u64>,
    load: Load,
) -> Result<()> {
    let (mode, ranks) = (options.mode, options.workers + usize::from(options.own_host));
    let largest = if mode == Mode::Bmv2 { LARGEST_ON_BMV2 } else { LARGEST };
    let meeting = options.ip.of(Rack::worker_address(0));
    let rack = Rack::new(options)?;
    let serve = |fanout| {
        let fanout = ["--fanout", fanout];
        // A daemon that steers a switch knows no other way than its own.
        let options = if mode == Mode::Bmv2 { &[][..] } else { &fanout };
        Aggregator::in_rack_with(binaries, &rack, options)
    };
    let aggregator = fanout.map(serve).transpose()?;
    let _shaping = megabits.map(|rate| Shaping::new(&rack, rate * 1_000_000)).transpose()?;
    let way = match &aggregator {
        Some(aggregator) => Way::Aggregator(aggregator.control()),
        None => Way::Meeting(meeting),
    };
    let places: Vec<Place> = (0..ranks).map(|rank| (rack.worker(rank), way)).collect();
    let result = load.run(binaries, &places, largest);
    aggregator.map(Aggregator::stop).transpose()?;
    result
}

/// Runs jobs over several racks, on links and uplinks of a given rate, and prints the bytes that
/// the uplinks carried.
pub fn in_racks(
    binaries: &Binaries,
    racks: usize,
    options: RackOptions,
    plane: Plane,
    megabits: Option<u64>,
    load: Load,
) -> Result<()> {
    let racks = Racks::new(racks, options)?;
    let tree = Tree::new(binaries, &racks, plane)?;
    let shape = |rate| Shaping::of_racks(&racks, rate * 1_000_000, rate * 1_000_000);
    let _shaping = megabits.map(shape).transpose()?;
    let ranks = 0..racks.workers().len();
    let places: Vec<Place> =
        ranks.map(|rank| (&racks.workers()[rank], Way::Aggregator(tree.control(rank)))).collect();
    load.run(binaries, &places, LARGEST)?;
    tree.stop()?;
    say!("# Bytes of each rack's uplink, and of the link of the rack's first worker, over which");
    say!("# each tensor went once each way");
    for (rack, uplink) in racks.carried()?.into_iter().enumerate() {
        let Some(rank) = racks.ranks_in(rack).next() else { continue };
        say!("{}", uplink_line(rack, uplink, rank, racks.carried_by_worker(rank)?));
    }
    Ok(())
}

fn uplink_line(rack: usize, uplink: Carried, rank: usize, worker: Carried) -> String {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let times = |bytes: u64, of: u64| bytes as f64 / of as f64;
    format!(
        "# rack {rack}: {:.1} MB up, {:.1} MB down; worker {rank}: {:.1} MB up, {:.1} MB down \
         ({:.2} and {:.2} times)",
        megabytes(uplink.up),
        megabytes(uplink.down),
        megabytes(worker.up),
        megabytes(worker.down),
        times(uplink.up, worker.up),
        times(uplink.down, worker.down),
    )
}

/// Runs jobs on this host's loopback interface, through the software aggregator, without any
/// privilege.
pub fn on_loopback(binaries: &Binaries, workers: usize, load: Load) -> Result<()> {
    let host = Namespace::of_host()?;
    let aggregator = Aggregator::on_loopback(binaries, &host)?;
    let result =
        load.run(binaries, &vec![(&host, Way::Aggregator(aggregator.control())); workers], LARGEST);
    aggregator.stop()?;
    result
}

impl Load<'_> {
    /// Runs the jobs, with a worker of each job in each place.
    fn run(self, binaries: &Binaries, places: &[Place], largest: &str) -> Result<()> {
        let arguments = self.bench.arguments(largest);
        let mut jobs = Vec::new();
        for job in 0..self.jobs {
            jobs.push(start(binaries, job, places, &arguments)?);
        }
        let mut failures = Vec::new();
        for (job, workers) in jobs.iter_mut().enumerate() {
            failures.extend(wait_for_all(workers));
            if job > 0 {
                say!("# job {job}\n{}", workers[0].stdout());
            }
        }
        if !failures.is_empty() {
            bail!("{}", failures.join("\n"));
        }
        Ok(())
    }
}

/// Starts a job's workers.
fn start(
    binaries: &Binaries,
    job: usize,
    places: &[Place],
    arguments: &[&str],
) -> Result<Vec<Process>> {
    let mut processes = Vec::new();
    for (rank, (namespace, way)) in places.iter().enumerate() {
        let mut worker = Command::new(&binaries.worker);
        worker.arg("bench").args(arguments).args(["--job", &format!("bench-{job}")]);
        way.tell(&mut worker, job);
        worker.args(["--rank", &rank.to_string(), "--world-size", &places.len().to_string()]);
        // The first job's rank 0 prints the table and its progress while it runs.
        let process = match (job, rank) {
            (0, 0) => namespace.spawn_inherited("worker 0", worker),
            (0, _) => namespace.spawn(&format!("worker {rank}"), worker),
            _ => namespace.spawn(&format!("worker {rank} of job {job}"), worker),
        };
        processes.push(process?);
    }
    Ok(processes)
}

/// Waits for a job's workers. Returns the errors. When one worker fails, the others get some time
/// to end with their own error.
fn wait_for_all(workers: &mut [Process]) -> Vec<String> {
    let mut failures = Vec::new();
    // No limit: a large benchmark takes its time, and a worker without progress ends at its own
    // deadline.
    let mut patience = Duration::MAX;
    for worker in workers {
        if let Err(error) = worker.wait_success(patience) {
            failures.push(error.to_string());
        }
        patience = END_TIMEOUT;
    }
    failures
}
