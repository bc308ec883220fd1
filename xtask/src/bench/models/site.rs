//! The racks in which steps are replayed, and the ranks' processes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use switchml_rack::{Mpi, Process, Rack};
use switchml_step::buckets::Bucket;
use switchml_worker_core::Precision;

use super::super::kit::Kit;
use super::super::peers::Programs;
use super::super::stripes::bits;
use super::{Row, Setting, Way};
use crate::cargo;
use crate::measure::{Pair, Ranks, Said, finish};

/// The racks, and the programs of the ranks.
pub struct Site<'a> {
    pub racks: Pair,
    kit: &'a Kit,
    programs: &'a Programs,
    /// Open MPI's rank.
    mpi: PathBuf,
}

impl<'a> Site<'a> {
    pub fn new(setting: Setting, kit: &'a Kit, programs: &'a Programs) -> Result<Self> {
        let racks = Pair::new(setting.ranks, &kit.binaries)?;
        let mpi = Mpi::OpenMpi.program(&peer("mpi_step.c"), &kit.scratch)?;
        Ok(Self { racks, kit, programs, mpi })
    }

    /// Milliseconds of a step, after one without computing. This project's ranks check every
    /// element if they are asked to.
    pub fn step(&self, row: &Row, way: Way, is_checked: bool) -> Result<f64> {
        let Pair { aggregator, ours, plain } = &self.racks;
        match way {
            Way::Gloo => Said::of(&finish(self.gloo(row)?)?)?.milliseconds(),
            Way::OpenMpi => Said::of(&finish(vec![self.open_mpi(row)?])?)?.milliseconds(),
            Way::Aggregator(precision) => {
                self.ours(ours, aggregator.control(), row, precision, is_checked)
            }
            Way::Alone(precision) => self.ours(plain, "", row, precision, is_checked),
        }
    }

    fn ours(
        &self,
        rack: &Rack,
        aggregators: &str,
        row: &Row,
        precision: Precision,
        is_checked: bool,
    ) -> Result<f64> {
        let (compute, check) = (row.compute_ms().to_string(), if is_checked { "1" } else { "0" });
        let model = ["--model", row.model.name, "--compute", &compute];
        let options = ["--precision", bits(precision), "-w", "0", "-n", "1", "-c", check];
        let ranks = Ranks::new(&self.kit.binaries.worker, rack.workers(), "models", aggregators);
        ranks.run(&[&model[..], &options].concat())?.milliseconds()
    }

    /// Ranks of torch, which exchange addresses by a file.
    fn gloo(&self, row: &Row) -> Result<Vec<Process>> {
        let rendezvous = self.kit.scratch.join("step-rendezvous");
        let _ = fs::remove_file(&rendezvous);
        let buckets = self.write(row)?;
        let workers = self.racks.plain.workers();
        let start = |rank: usize| {
            let mut command = Command::new(&self.programs.python);
            command.env("GLOO_SOCKET_IFNAME", "eth0").env("OMP_NUM_THREADS", "1");
            command.arg(peer("gloo_step.py"));
            command.args([rank.to_string(), workers.len().to_string()]);
            command.arg(&rendezvous).arg(&buckets);
            Ok(workers[rank].spawn(&format!("Gloo's rank {rank}"), command)?)
        };
        (0..workers.len()).map(start).collect()
    }

    fn open_mpi(&self, row: &Row) -> Result<Process> {
        let (buckets, rack) = (self.write(row)?, &self.racks.plain);
        let workers = rack.workers().iter().enumerate();
        let workers: Vec<_> = workers.map(|(rank, worker)| (worker, rack.address(rank))).collect();
        let top = (rack.switch(), rack.aggregator_address());
        let program = [self.mpi.as_os_str(), buckets.as_os_str()];
        Ok(Mpi::OpenMpi.start(top, &workers, &self.kit.scratch, &[], &program)?)
    }

    /// Writes the buckets for others' ranks: elements, and microseconds until they are ready. The
    /// last one is ready when the computing is over.
    fn write(&self, row: &Row) -> Result<PathBuf> {
        let path = self.kit.scratch.join("step-buckets");
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
