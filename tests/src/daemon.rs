//! Real processes on loopback: the daemon with its software data plane, and workers.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Aggregator, Binaries, Error, Namespace, Process};

/// Far longer than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running aggregator, which ends when this is dropped.
pub struct Daemon {
    binaries: Binaries,
    /// The aggregator's process. Declared before the host, so that it is dropped first: the end of
    /// the host's thread would kill it.
    pub aggregator: Aggregator,
    host: Namespace,
    /// Address of the control plane.
    pub address: String,
}

impl Daemon {
    /// A daemon with its defaults.
    pub fn start() -> Self {
        Self::start_with(Aggregator::on_loopback)
    }

    /// A daemon whose control plane is reached only over IPv6.
    pub fn by_ipv6() -> Self {
        Self::start_with(Aggregator::on_loopback_by_ipv6)
    }

    /// A daemon with a pool of `slots` slots.
    pub fn with_slots(slots: u32) -> Self {
        Self::with_options(&["--slots", &slots.to_string()])
    }

    /// A daemon with further options.
    pub fn with_options(options: &[&str]) -> Self {
        Self::start_with(|binaries, host| Aggregator::on_loopback_with(binaries, host, options))
    }

    fn start_with(start: impl FnOnce(&Binaries, &Namespace) -> Result<Aggregator, Error>) -> Self {
        let binaries = Binaries::for_test().unwrap();
        let host = Namespace::of_host().unwrap();
        let aggregator = start(&binaries, &host).unwrap();
        let address = aggregator.control().to_owned();
        Self { binaries, aggregator, host, address }
    }

    /// Starts `switchml-worker` with this aggregator's address in the environment, and without
    /// torchrun's variables.
    pub fn worker(&self, arguments: &[&str]) -> Process {
        let mut command = Command::new(&self.binaries.worker);
        for name in [
            "RANK",
            "WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "SWITCHML_JOB",
            "TORCHELASTIC_RUN_ID",
        ] {
            command.env_remove(name);
        }
        command.args(arguments).env("SWITCHML_AGGREGATOR", &self.address);
        // By default a stopped process is waited for as long as a late one.
        command.env("SWITCHML_STANDSTILL", "3");
        self.host.spawn(&format!("switchml-worker {}", arguments.join(" ")), command).unwrap()
    }

    /// The output of `switchml-aggregator status` for this daemon, with further options.
    pub fn status(&self, options: &[&str]) -> String {
        self.run(&[&["status", "--connect", &self.address], options].concat())
    }

    /// The output of `switchml-aggregator` with these arguments.
    pub fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.binaries.aggregator);
        command.args(arguments);
        let output = self.host.output(command).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// One of the data plane's counters.
    pub fn counter(&self, name: &str) -> u64 {
        let status = self.status(&[]);
        let mut lines = status.lines().map(str::split_whitespace);
        let line =
            lines.find_map(|mut words| words.next().filter(|word| *word == name).and(words.next()));
        line.and_then(|packets| packets.parse().ok()).unwrap_or_default()
    }

    /// Waits until the daemon's list shows a job with some text, such as its state, or "1 of 2"
    /// ranks.
    pub fn wait_for_job(&self, job: &str, text: &str) {
        self.wait_for_list(&format!("job {job} {text}"), |list| {
            list.lines().any(|line| line.contains(&format!(" {job} ")) && line.contains(text))
        });
    }

    /// Waits until the daemon's list has no such job.
    pub fn wait_for_the_end_of(&self, job: &str) {
        self.wait_for_list(&format!("the end of job {job}"), |list| {
            !list.lines().any(|line| line.contains(&format!(" {job} ")))
        });
    }

    fn wait_for_list(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        loop {
            let mut command = Command::new(&self.binaries.aggregator);
            command.args(["jobs", "--connect", &self.address]);
            let output = self.host.output(command).unwrap();
            let list = String::from_utf8_lossy(&output.stdout);
            if is_so(&list) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}:\n{list}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a rank of a benchmark.
    pub fn bench(&self, job: &str, rank: usize, world_size: usize, arguments: &[&str]) -> Process {
        let (rank, world_size) = (rank.to_string(), world_size.to_string());
        let own = ["bench", "--job", job, "--rank", &rank, "--world-size", &world_size];
        self.worker(&[&own[..], arguments].concat())
    }
}

/// How a worker ended: its exit code, and the one line it said about it.
pub fn failure(process: &mut Process) -> (i32, String) {
    let status = process.wait(PATIENCE).unwrap();
    let stderr = process.stderr();
    let lines: Vec<&str> = stderr.lines().collect();
    let [line] = lines[..] else { panic!("{}: not one line:\n{stderr}", process.name()) };
    (status.code().unwrap(), line.to_owned())
}
