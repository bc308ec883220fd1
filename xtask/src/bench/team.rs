//! The ranks of one method, up and waiting, each in its namespace.
//!
//! All methods are driven alike. A command is one line of numbers. `broadcast` is 1 if calls are
//! broadcasts from rank 0 instead of sums; one chunk in `dense` is not zero; elements have `bits`
//! bits in packets. Only this project's ranks get the last two:
//!
//! ```text
//! <command's number> <tensors> <elements of a tensor> <warm-up> <timed calls> <broadcast> <dense>
//! <bits>
//! ```
//!
//! The ranks then lay out their tensors of f32, meet, make the warm-up calls, meet, and make the
//! timed ones; call i takes tensor i modulo their number, in place. Their elements are such that
//! sums are exact in f32 in any order: every element must equal the expected one. In 16 and 8 bits
//! the ranks make one more call without timing it, and its result must be as close as
//! `switchml_worker::numerics` says. Rank 0 then prints a [`Report`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;
use switchml_rack::{Mpi, Process};

use super::commanded::{Commanded, Member, fifo};
use super::ground::{Ground, Serving};
use super::measured::{Method, Sample, Task};
use super::peers::Programs;

/// Ticks per second in `/proc/stat`: fixed by the kernel's interface (`USER_HZ`).
const TICKS: f64 = 100.0;

/// The work of a command.
pub struct Work {
    /// Bytes of a tensor.
    pub size: usize,
    pub iters: usize,
    pub task: Task,
}

impl Work {
    /// Bytes of the tensors that calls alternate between; at most 40 calls for each tensor, or the
    /// repeated sums would overflow.
    const ROTATION: usize = 64 << 20;

    fn warmup(&self) -> usize {
        self.iters.div_ceil(8)
    }

    /// The number of all-reduces, including those without timing.
    pub fn calls(&self, bits: u32) -> usize {
        self.warmup() + self.iters + usize::from(bits < 32)
    }

    fn tensors(&self) -> usize {
        (Self::ROTATION / self.size).clamp(1, self.warmup() + self.iters)
    }
}

/// The report that rank 0 prints.
#[derive(Deserialize)]
struct Report {
    /// Seconds of the timed calls, on the slowest rank.
    seconds: f64,
    /// Seconds of the timed calls on rank 0, which counted ticks meanwhile.
    reporter_seconds: f64,
    /// Processor time of all ranks' processes.
    process_seconds: f64,
    /// Ticks in which the machine's processors were idle, waited, or were stolen.
    idle_ticks: u64,
    softirq_ticks: u64,
    /// Chunks that rank 0 sent, each counted once.
    #[serde(default)]
    chunks: u64,
    /// Chunks that rank 0 sent again.
    #[serde(default)]
    resent: u64,
}

/// One method's ranks.
pub struct Team {
    method: Method,
    ranks: Commanded,
    /// What the ranks read and write.
    folder: PathBuf,
}

impl Team {
    /// Starts the ranks in the racks. `serving` is their aggregator, if the method has one.
    /// `scratch` is a folder for files.
    pub fn start(
        method: Method,
        programs: &Programs,
        ground: &Ground,
        serving: Option<&Serving>,
        scratch: &Path,
    ) -> Result<Self> {
        // Open MPI takes a space for the end of a path.
        let ranks = ground.workers().len();
        let folder = scratch.join(format!("{method:?}-{ranks}"));
        fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let paths: Vec<PathBuf> = (0..ranks).map(|rank| folder.join(rank.to_string())).collect();
        let commands = paths.iter().map(|path| fifo(path)).collect::<Result<_>>()?;
        let processes = match serving {
            serving if let Some(mpi) = method.mpi() => {
                vec![start_mpi(mpi, programs, ground, serving, &folder)?]
            }
            _ if method.is_gloo() => gloo(programs, ground, &folder, &paths)?,
            serving => ours(programs, ground, serving.context("no aggregator")?, &paths)?,
        };
        Ok(Self { method, ranks: Commanded::new(processes, commands), folder })
    }

    /// Measures; this project's ranks send elements of `bits` bits.
    pub fn measure(&mut self, work: &Work, bits: u32) -> Result<Sample> {
        let &Work { size, iters, task } = work;
        let (tensors, count, warmup) = (work.tensors(), size / 4, work.warmup());
        let broadcast = u8::from(task == Task::Broadcast);
        let more =
            if self.method.is_ours() { format!(" {} {bits}", task.dense()) } else { String::new() };
        self.ranks.send(&format!("{tensors} {count} {warmup} {iters} {broadcast}{more}"))?;
        let report: Report = self.ranks.report().with_context(|| self.method.name())?;
        Ok(report.sample(iters))
    }

    /// Waits until all ranks are up, by a small call, and sleep.
    pub fn wait(&mut self) -> Result<()> {
        let work = Work { size: 4096, iters: 1, task: Task::Sum };
        self.measure(&work, 32).map(drop)
    }

    /// Ends the ranks normally. Then as many ranks of the method can start again.
    pub fn stop(self) -> Result<()> {
        self.ranks.stop()?;
        let folder = &self.folder;
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
    }
}

impl Report {
    fn sample(&self, iters: usize) -> Sample {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let iters = iters as f64;
        let busy = self.reporter_seconds * processors - self.idle_ticks as f64 / TICKS;
        Sample {
            seconds: self.seconds / iters,
            cpu_seconds: busy.max(0.0) / iters,
            process_seconds: self.process_seconds / iters,
            softirq_seconds: self.softirq_ticks as f64 / TICKS / iters,
            chunks: self.chunks,
            resent: self.resent,
            uplink: None,
        }
    }
}

fn ours(
    programs: &Programs,
    ground: &Ground,
    serving: &Serving,
    paths: &[PathBuf],
) -> Result<Vec<Process>> {
    let ranks = paths.len();
    let start = |(rank, path): (usize, &PathBuf)| {
        let member = Member { control: serving.control(rank), job: "bench", rank, ranks };
        let mut command = member.command(&programs.ours, path);
        let fingerprint = serving.fingerprint();
        command.args(fingerprint.into_iter().flat_map(|print| ["--tls-fingerprint", print]));
        Ok(ground.workers()[rank].spawn(&format!("rank {rank}"), command)?)
    };
    paths.iter().enumerate().map(start).collect()
}

fn gloo(
    programs: &Programs,
    ground: &Ground,
    folder: &Path,
    paths: &[PathBuf],
) -> Result<Vec<Process>> {
    let ranks = paths.len().to_string();
    let start = |(rank, path): (usize, &PathBuf)| {
        let mut command = Command::new(&programs.python);
        // One thread for torch's computations, as with torchrun.
        command.env("GLOO_SOCKET_IFNAME", "eth0").env("OMP_NUM_THREADS", "1");
        command
            .arg(&programs.gloo)
            .args([&rank.to_string(), &ranks])
            .arg(folder.join("rendezvous"))
            .arg(path);
        Ok(ground.workers()[rank].spawn(&format!("Gloo's rank {rank}"), command)?)
    };
    paths.iter().enumerate().map(start).collect()
}

/// A program of MPI, with this project's library ahead of it if something is serving.
fn start_mpi(
    mpi: Mpi,
    programs: &Programs,
    ground: &Ground,
    serving: Option<&Serving>,
    folder: &Path,
) -> Result<Process> {
    let of = |paths: &[(Mpi, PathBuf)]| {
        paths.iter().find(|(of, _)| *of == mpi).map(|(_, path)| path.clone()).unwrap_or_default()
    };
    let (preload, program) = (of(&programs.preloads), of(&programs.mpi));
    let mut environment = Vec::new();
    if let Some(serving) = serving {
        environment.extend([
            ("LD_PRELOAD", preload.to_string_lossy()),
            ("LD_LIBRARY_PATH", programs.libraries.to_string_lossy()),
            ("SWITCHML_AGGREGATOR", serving.control(0).into()),
        ]);
    }
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (*name, value.as_ref())).collect();
    let workers: Vec<_> = ground
        .workers()
        .iter()
        .enumerate()
        .map(|(rank, worker)| (worker, ground.address(rank)))
        .collect();
    let program = [program.as_os_str(), folder.as_os_str()];
    Ok(mpi.start((ground.top(), ground.top_address()), &workers, folder, &environment, &program)?)
}
