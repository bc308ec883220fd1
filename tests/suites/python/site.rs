//! A rack for ranks that are Python processes, and the versions of torch that they have.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::warm;
use serde_json::Value;
use switchml_rack::{
    Aggregator, Binaries, Ip, Process, Rack, RackOptions, can_build_racks, leave_out, skip,
};

/// Far longer than importing torch takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A version of torch.
#[derive(Clone, Copy, PartialEq)]
pub enum Torch {
    /// The dependency's lower bound, whose trampoline is compiled.
    Oldest,
    /// The first version that needs no compiler.
    Middle,
    Newest,
}

impl Torch {
    /// The start of its version.
    pub fn version(self) -> &'static str {
        match self {
            Self::Oldest => "2.4.",
            Self::Middle => "2.14.",
            Self::Newest => "2.15.",
        }
    }

    /// The module of its tests.
    fn module(self) -> &'static str {
        match self {
            Self::Oldest => "oldest",
            Self::Middle => "middle",
            Self::Newest => "newest",
        }
    }

    /// The variable that names its interpreter.
    fn variable(self) -> &'static str {
        match self {
            Self::Oldest => "SWITCHML_PYTHON_OLDEST",
            Self::Middle => "SWITCHML_PYTHON_MIDDLE",
            Self::Newest => "SWITCHML_PYTHON",
        }
    }

    /// The interpreter with this torch. If there is none, reports that the test `name` is skipped.
    pub fn interpreter(self, name: &str) -> Option<PathBuf> {
        let python = std::env::var_os(self.variable());
        if python.is_none() {
            let how = "is not set; `cargo xtask test -- --test python` makes an environment, if \
                       there are wheels of that torch for this Python, and sets it";
            skip(&format!("{}::{name}", self.module()), &format!("{} {how}", self.variable()));
        }
        python.map(PathBuf::from)
    }

    /// A script of [`scripts`] and its arguments, as it runs with this version: before 2.5, torch
    /// does not find backends by itself, so a wrapper imports ours before the script runs.
    pub fn script<'a>(self, arguments: &[&'a str]) -> Vec<&'a str> {
        let import = (self == Self::Oldest).then_some("with_import.py");
        import.into_iter().chain(arguments.iter().copied()).collect()
    }
}

/// A test with a version of torch.
#[derive(Clone, Copy)]
pub struct Case {
    pub torch: Torch,
    name: &'static str,
}

impl Case {
    pub fn new(torch: Torch, name: &'static str) -> Self {
        Self { torch, name }
    }

    /// The test's site, as of [`Site::new`].
    pub fn site(self, workers: usize) -> Option<Site> {
        self.site_of(workers, Ip::V4)
    }

    /// The test's site, whose hosts have addresses of one IP version only.
    pub fn site_of(self, workers: usize, ip: Ip) -> Option<Site> {
        Site::of(self.torch, self.name, workers, ip)
    }

    /// Reports that the test needs something that this version lacks.
    pub fn leave_out(self, why: &str) {
        leave_out(&format!("{}::{}", self.torch.module(), self.name), why);
    }
}

/// Runs a module of Python's in a folder, and fails as it does.
pub fn run_module(python: &Path, folder: &Path, arguments: &[&str]) {
    let output =
        Command::new(python).current_dir(folder).arg("-m").args(arguments).output().unwrap();
    let [printed, told] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{arguments:?}: {printed}{told}");
}

/// The folder of the scripts.
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker-lib/python/tests")
}

/// An empty folder, for one test alone.
pub fn fresh_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).unwrap();
    }
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A rack with the daemon on its ports, and the interpreter.
pub struct Site {
    torch: Torch,
    pub python: PathBuf,
    pub aggregator: Aggregator,
    pub rack: Rack,
    /// The address at which the ranks of torch meet.
    master: IpAddr,
}

impl Site {
    /// A site with IPv4. If the test `name` cannot run with that torch, reports this and returns
    /// `None`.
    pub fn new(torch: Torch, name: &str, workers: usize) -> Option<Self> {
        Self::of(torch, name, workers, Ip::V4)
    }

    /// A site whose hosts have addresses of one IP version only.
    fn of(torch: Torch, name: &str, workers: usize, ip: Ip) -> Option<Self> {
        if !can_build_racks(name) {
            return None;
        }
        let python = torch.interpreter(name)?;
        let binaries = Binaries::for_test().unwrap();
        let rack = Rack::new(RackOptions { workers, ip, ..RackOptions::default() }).unwrap();
        let aggregator = Aggregator::in_rack(&binaries, &rack).unwrap();
        Some(Self { torch, python, aggregator, rack, master: ip.of(Rack::worker_address(0)) })
    }

    /// A rank that runs a script, with variables in addition to torchrun's.
    pub fn rank(&self, rank: usize, arguments: &[&str], variables: &[(&str, &str)]) -> Process {
        let mut command = self.command(rank, arguments);
        command.env("GLOO_SOCKET_IFNAME", "eth0").envs(variables.iter().copied());
        self.rack.worker(rank).spawn(&format!("rank {rank}"), command).unwrap()
    }

    /// A script of [`scripts`] with the environment of that rank, in a fork of a process that has
    /// imported torch.
    pub fn command(&self, rank: usize, arguments: &[&str]) -> Command {
        let arguments = self.torch.script(arguments);
        let mut command = Command::new(&self.python);
        // With neither the site module nor the user's variables, Python starts in milliseconds.
        command.args(["-I", "-S"]).arg(warm::script()).arg("run");
        command.arg(warm::socket(self.torch.module(), &self.python));
        command.arg(scripts().join(arguments[0])).args(&arguments[1..]);
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.rack.workers().len().to_string());
        command.env("MASTER_ADDR", self.master.to_string()).env("MASTER_PORT", "29500");
        command.env("SWITCHML_AGGREGATOR", self.aggregator.control()).env("OMP_NUM_THREADS", "1");
        command
    }

    pub fn ranks(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Vec<Process> {
        (0..self.rack.workers().len()).map(|rank| self.rank(rank, arguments, variables)).collect()
    }

    /// The output of each rank; all must end successfully.
    pub fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
        let ranks = self.ranks(arguments, variables);
        let finish = |mut rank: Process| {
            rank.wait_success(PATIENCE).unwrap();
            rank.stdout()
        };
        ranks.into_iter().map(finish).collect()
    }

    /// Runs a script that must succeed and print this on each rank.
    pub fn run_and_hear(&self, arguments: &[&str], variables: &[(&str, &str)], says: &str) {
        for printed in self.run(arguments, variables) {
            assert!(printed.contains(says), "{arguments:?}: {printed}");
        }
    }

    /// The output of a subcommand of the daemon's binary about the running daemon.
    pub fn told(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&Binaries::for_test().unwrap().aggregator);
        command.args(arguments).args(["--connect", self.aggregator.control()]);
        let output = self.rack.switch().output(command).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The number of jobs.
    pub fn jobs(&self) -> usize {
        let status: Value = serde_json::from_str(&self.told(&["status", "--json"])).unwrap();
        status["jobs"].as_array().unwrap().len()
    }

    pub fn counter(&self, name: &str) -> u64 {
        let text = self.told(&["status"]);
        let number = |line: &str| {
            line.trim_start().strip_prefix(name)?.split_whitespace().next()?.parse().ok()
        };
        text.lines().find_map(number).unwrap()
    }
}
