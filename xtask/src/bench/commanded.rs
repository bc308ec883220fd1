//! Ranks that sleep until they get a command, so that they do not disturb the measurement of
//! others. A rank reads commands from its own FIFO until the end of the file; a command is one line
//! that begins with its number. Rank 0 then prints one line of JSON.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use switchml_rack::Process;

/// Far longer than starting or a measurement takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);

/// The ranks of a job.
pub struct Commanded {
    /// The processes; the first one prints.
    processes: Vec<Process>,
    commands: Vec<File>,
    number: u64,
}

#[derive(Deserialize)]
struct Report<T> {
    /// Elements, of all ranks.
    wrong: u64,
    #[serde(flatten)]
    rest: T,
}

impl Commanded {
    /// Ranks that read from these FIFOs.
    pub fn new(processes: Vec<Process>, commands: Vec<File>) -> Self {
        Self { processes, commands, number: 0 }
    }

    /// Gives all ranks a command, which gets the next number.
    pub fn send(&mut self, work: &str) -> Result<()> {
        self.number += 1;
        let number = self.number;
        let mut commands = self.commands.iter_mut();
        commands
            .try_for_each(|file| writeln!(file, "{number} {work}"))
            .context("cannot write a command")
    }

    /// What rank 0 prints about the last command. No element may be wrong.
    pub fn report<T: DeserializeOwned>(&mut self) -> Result<T> {
        let pattern = format!("\"command\":{},", self.number);
        let line = self.processes[0].wait_for_line(&pattern, PATIENCE)?;
        let Report { wrong, rest } =
            serde_json::from_str(&line).with_context(|| format!("not a report: {line}"))?;
        ensure!(wrong == 0, "{wrong} elements are wrong");
        Ok(rest)
    }

    /// Ends the ranks normally, and waits for them: some spin until the other ranks have ended.
    pub fn stop(self) -> Result<()> {
        let Self { mut processes, commands, .. } = self;
        drop(commands);
        Ok(processes.iter_mut().try_for_each(|process| process.wait_success(PATIENCE))?)
    }
}

/// A new FIFO that stays open as long as the file does, whether or not somebody reads.
pub fn fifo(path: &Path) -> Result<File> {
    let _ = fs::remove_file(path);
    let make = || -> std::io::Result<File> {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        OpenOptions::new().read(true).write(true).open(path)
    };
    make().with_context(|| format!("cannot make the FIFO {}", path.display()))
}

/// A rank with this project's library.
pub struct Member<'a> {
    /// The aggregator's control plane.
    pub control: &'a str,
    pub job: &'a str,
    pub rank: usize,
    pub ranks: usize,
}

impl Member<'_> {
    /// The rank's process, with its file of commands.
    pub fn command(&self, worker: &Path, commands: &Path) -> Command {
        let mut command = Command::new(worker);
        command.args(["rank", "--aggregator", self.control, "--job", self.job]);
        command.args(["--rank", &self.rank.to_string(), "--world-size", &self.ranks.to_string()]);
        command.arg(commands);
        command
    }
}
