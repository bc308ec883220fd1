//! Ranks that run this project's benchmark.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use switchml_rack::{Namespace, Process, Rack};

/// Far longer than a benchmark takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Where ranks without an aggregator meet, at rank 0.
pub const MEETING_PORT: usize = 29_500;

/// The ranks of a job.
pub struct Ranks<'a> {
    /// The worker's command line.
    pub worker: &'a Path,
    /// The host of each rank.
    pub hosts: Vec<&'a Namespace>,
    pub job: &'a str,
    /// The aggregators, with commas between them; empty if the ranks serve each other.
    pub aggregators: &'a str,
    /// The port at rank 0 where they meet then.
    pub port: usize,
}

/// What rank 0 of a benchmark prints in JSON; ranks of other libraries print steps alike.
#[derive(Deserialize)]
pub struct Said {
    #[serde(default)]
    rows: Vec<Row>,
    /// Times of training steps.
    #[serde(default)]
    step_ms: Vec<f64>,
    out_of_bounds: Option<u64>,
}

#[derive(Deserialize)]
struct Row {
    in_place: Call,
}

#[derive(Deserialize)]
struct Call {
    time_us: f64,
    sent: Sent,
}

/// What rank 0 sent in the timed calls.
#[derive(Clone, Default, Deserialize, Serialize)]
pub struct Sent {
    pub chunks: u64,
    pub resent_by_timer: u64,
    pub resent_by_overtaking: u64,
    pub probes: u64,
    /// Percentages of chunks, and the times by which they had their result.
    pub finished_us: Vec<(f64, f64)>,
}

impl<'a> Ranks<'a> {
    /// A job with a rank on each of these hosts.
    pub fn new(
        worker: &'a Path,
        hosts: impl IntoIterator<Item = &'a Namespace>,
        job: &'a str,
        aggregators: &'a str,
    ) -> Self {
        let hosts = hosts.into_iter().collect();
        Self { worker, hosts, job, aggregators, port: MEETING_PORT }
    }

    /// Starts one of the ranks.
    pub fn start_one(&self, rank: usize, options: &[&str]) -> Result<Process> {
        let mut command = Command::new(self.worker);
        command.env_remove("SWITCHML_AGGREGATOR");
        meet(&mut command, self.port);
        command.args(["bench", "--job", self.job, "--rank", &rank.to_string()]);
        command.args(["--world-size", &self.hosts.len().to_string()]).args(options);
        if !self.aggregators.is_empty() {
            command.args(["--aggregator", self.aggregators]);
        }
        Ok(self.hosts[rank].spawn(&format!("rank {rank}"), command)?)
    }

    /// Starts all ranks.
    pub fn start(&self, options: &[&str]) -> Result<Vec<Process>> {
        (0..self.hosts.len()).map(|rank| self.start_one(rank, options)).collect()
    }

    /// Runs the benchmark with these options to its end.
    pub fn run(&self, options: &[&str]) -> Result<Said> {
        Said::of(&finish(self.start(&[&["--json", "-"], options].concat())?)?)
    }
}

impl Said {
    /// Reads what was printed. No element may be wrong.
    pub fn of(printed: &str) -> Result<Self> {
        let said: Self = serde_json::from_str(printed).context("not the benchmark's JSON")?;
        let wrong = said.out_of_bounds.unwrap_or_default();
        ensure!(wrong == 0, "{wrong} elements are wrong");
        Ok(said)
    }

    /// Milliseconds of a call in place or of a training step, on the slowest rank.
    pub fn milliseconds(&self) -> Result<f64> {
        let call = self.rows.first().map(|row| row.in_place.time_us / 1e3);
        call.or(self.step_ms.first().copied()).context("the benchmark's JSON has no time")
    }

    pub fn sent(self) -> Sent {
        self.rows.into_iter().next().map(|row| row.in_place.sent).unwrap_or_default()
    }
}

/// Waits until all processes have ended well. Returns what the first of them printed.
pub fn finish(mut processes: Vec<Process>) -> Result<String> {
    processes.iter_mut().try_for_each(|process| process.wait_success(PATIENCE))?;
    Ok(processes.first().map(Process::stdout).unwrap_or_default())
}

/// Tells a process where the ranks meet: at rank 0.
pub fn meet(command: &mut Command, port: usize) {
    command.env("MASTER_ADDR", Rack::worker_address(0).to_string());
    command.env("MASTER_PORT", port.to_string());
}
