//! The racks in which steps are replayed, and the ranks' processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use switchml_rack::{Aggregator, Binaries, Mpi, Process, Rack, RackOptions, Shaping};
use switchml_step::buckets::Bucket;
use switchml_worker_core::Precision;

use super::super::peers::Programs;
use super::{Row, Setting, Way};
use crate::cargo;

const PATIENCE: Duration = Duration::from_secs(600);
/// Where ranks without an aggregator meet.
const PORT: &str = "29500";

/// What rank 0 says.
#[derive(Deserialize)]
struct Said {
    /// Times of steps, of which there is one.
    step_ms: Vec<f64>,
    /// Elements that were wrong in a step before.
    out_of_bounds: Option<u64>,
}

/// The racks: `ours` with the aggregator, and `plain`, without a program at the switch's ports.
pub struct Site<'a> {
    // Dropped in this order.
    aggregator: Aggregator,
    ours: Rack,
    plain: Rack,
    setting: Setting,
    binaries: &'a Binaries,
    programs: &'a Programs,
    /// Open MPI's rank.
    mpi: PathBuf,
    scratch: &'a Path,
}

impl<'a> Site<'a> {
    pub fn new(
        setting: Setting,
        binaries: &'a Binaries,
        programs: &'a Programs,
        scratch: &'a Path,
    ) -> Result<Self> {
        let rack = || Rack::new(RackOptions { workers: setting.ranks, ..RackOptions::default() });
        let (ours, plain) = (rack()?, rack()?);
        let aggregator = Aggregator::in_rack(binaries, &ours)?;
        let mpi = Mpi::OpenMpi.program(&peer("mpi_step.c"), scratch)?;
        Ok(Self { aggregator, ours, plain, setting, binaries, programs, mpi, scratch })
    }

    /// Gives all links the setting's rate, until what this returns is dropped.
    pub fn shape(&self) -> Result<[Shaping<'_>; 2]> {
        let shape = |rack| Shaping::new(rack, self.setting.link);
        Ok([shape(&self.ours)?, shape(&self.plain)?])
    }

    /// Milliseconds of a step, after one without computing.
    pub fn step(&self, row: &Row, way: Way) -> Result<f64> {
        let mut processes = match way {
            Way::Gloo => self.gloo(row)?,
            Way::OpenMpi => vec![self.open_mpi(row)?],
            Way::Aggregator(precision) => {
                self.ranks(&self.ours, row, precision, Some(self.aggregator.control()))?
            }
            Way::Alone(precision) => self.ranks(&self.plain, row, precision, None)?,
        };
        processes.iter_mut().try_for_each(|process| process.wait_success(PATIENCE))?;
        let said: Said = serde_json::from_str(&processes[0].stdout()).context("not a report")?;
        ensure!(said.out_of_bounds.unwrap_or_default() == 0, "elements are wrong");
        said.step_ms.first().copied().context("no time")
    }

    /// This project's ranks. The first run checks every element.
    fn ranks(
        &self,
        rack: &Rack,
        row: &Row,
        precision: Precision,
        aggregator: Option<&str>,
    ) -> Result<Vec<Process>> {
        let compute = row.compute_ms().to_string();
        let is_checked = row.times.iter().any(Vec::is_empty);
        let bits = match precision {
            Precision::Exact => "exact",
            Precision::Bits16 => "16",
            Precision::Bits8 => "8",
        };
        let start = |rank: usize| {
            let mut command = Command::new(&self.binaries.worker);
            command.env_remove("SWITCHML_AGGREGATOR").env("MASTER_PORT", PORT);
            command.env("MASTER_ADDR", Rack::worker_address(0).to_string());
            command.args(["bench", "--job", "models", "--rank", &rank.to_string()]);
            command.args(["--world-size", &self.setting.ranks.to_string()]);
            command.args(["--model", row.model.name, "--compute", &compute, "--precision", bits]);
            command.args(["--json", "-", "-w", "0", "-n", "1"]);
            command.args(["-c", if is_checked { "1" } else { "0" }]);
            command.args(aggregator.into_iter().flat_map(|address| ["--aggregator", address]));
            Ok(rack.worker(rank).spawn(&format!("rank {rank}"), command)?)
        };
        (0..self.setting.ranks).map(start).collect()
    }

    /// Ranks of torch, which exchange addresses by a file.
    fn gloo(&self, row: &Row) -> Result<Vec<Process>> {
        let rendezvous = self.scratch.join("step-rendezvous");
        let _ = fs::remove_file(&rendezvous);
        let buckets = self.write(row)?;
        let start = |rank: usize| {
            let mut command = Command::new(&self.programs.python);
            command.env("GLOO_SOCKET_IFNAME", "eth0").env("OMP_NUM_THREADS", "1");
            command.arg(peer("gloo_step.py"));
            command.args([rank.to_string(), self.setting.ranks.to_string()]);
            command.arg(&rendezvous).arg(&buckets);
            Ok(self.plain.worker(rank).spawn(&format!("Gloo's rank {rank}"), command)?)
        };
        (0..self.setting.ranks).map(start).collect()
    }

    fn open_mpi(&self, row: &Row) -> Result<Process> {
        let buckets = self.write(row)?;
        let workers = self.plain.workers().iter().enumerate();
        let workers: Vec<_> =
            workers.map(|(rank, worker)| (worker, Rack::worker_address(rank).into())).collect();
        let top = (self.plain.switch(), self.plain.aggregator_address());
        let program = [self.mpi.as_os_str(), buckets.as_os_str()];
        Ok(Mpi::OpenMpi.start(top, &workers, self.scratch, &[], &program)?)
    }

    /// Writes the buckets for others' ranks: elements, and microseconds until they are ready. The
    /// last one is ready when the computing is over.
    fn write(&self, row: &Row) -> Result<PathBuf> {
        let path = self.scratch.join("step-buckets");
        let line = |bucket: &Bucket| format!("{} {}\n", bucket.elements, bucket.ready.as_micros());
        let text: String = row.buckets().iter().map(line).collect();
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// The source of another library's rank.
fn peer(name: &str) -> PathBuf {
    cargo::workspace().join("xtask/src/bench/peers").join(name)
}
