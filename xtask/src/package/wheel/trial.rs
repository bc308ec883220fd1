//! Two ranks that have a wheel installed, and an aggregator in software, all on this host.

use super::super::build;
use crate::command::{output, succeed};
use crate::{cargo, python};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use switchml_cli::say;
use switchml_rack::{Aggregator, Binaries, Namespace};

/// A script that needs no other package.
const ARRAYS: &str = "\
from array import array
from switchml import Communicator
with Communicator() as communicator:
    numbers = array('f', [communicator.rank + 1, 2.5] * 5000)
    communicator.all_reduce(numbers)
assert numbers == array('f', [3, 5] * 5000), numbers
";

/// A script for torch, which finds the backend by itself.
const TENSORS: &str = "\
import sys, torch
import torch.distributed as dist
place = dict(init_method=f'file://{sys.argv[1]}', rank=int(sys.argv[2]), world_size=2)
dist.init_process_group('switchml', **place)
tensor = torch.tensor([dist.get_rank() + 1, 2.5]).repeat(5000)
dist.all_reduce(tensor)
assert torch.equal(tensor, torch.tensor([3.0, 5.0]).repeat(5000)), tensor
dist.destroy_process_group()
";

/// Far longer than importing torch takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Fails unless the wheel works in an otherwise empty environment, and together with the newest
/// torch.
pub fn run(wheel: &Path) -> Result<()> {
    let folder = cargo::target_folder()?.join("package-check-wheel");
    succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let ranks = Ranks { python: folder.join("bin/python"), folder };
    let mut pip = Command::new(&ranks.python);
    succeed(pip.args(["-m", "pip", "install", "--quiet", "--no-index"]).arg(wheel))?;
    let host = Namespace::of_host()?;
    let aggregator = Aggregator::on_loopback(&binaries()?, &host)?;
    ranks.run(ARRAYS, &host, &aggregator)?;
    say!("the wheel adds up in an empty environment");
    ranks.add_packages_of(&python::with_torch()?)?;
    ranks.run(TENSORS, &host, &aggregator)?;
    say!("the wheel adds up torch's tensors");
    aggregator.stop()?;
    fs::remove_dir_all(&ranks.folder).context("cannot clean up")
}

/// The binaries of the Debian packages.
fn binaries() -> Result<Binaries> {
    let mut daemon = build::command("build", build::AMD64)?;
    succeed(daemon.args(["--bins", "-p", "switchml-userspace"]))?;
    let built = build::folder(build::AMD64)?;
    let file = |name| built.join(name);
    Ok(Binaries {
        aggregator: file("switchml-aggregator"),
        worker: file("switchml-worker"),
        impairment: file("switchml-impairment"),
    })
}

/// A Python environment for the ranks.
struct Ranks {
    folder: PathBuf,
    python: PathBuf,
}

impl Ranks {
    /// Runs a script as both ranks of a job. Its arguments are a file that does not exist yet, and
    /// the rank.
    fn run(&self, script: &str, host: &Namespace, aggregator: &Aggregator) -> Result<()> {
        let start = |rank: &str| {
            let mut command = Command::new(&self.python);
            // In a folder without a subfolder of the package's name, which Python would import
            // instead.
            command.current_dir(&self.folder).args(["-c", script]);
            command.arg(self.folder.join("store")).arg(rank).env("RANK", rank);
            command.env("WORLD_SIZE", "2").env("SWITCHML_JOB", "wheel");
            command.env("SWITCHML_AGGREGATOR", aggregator.control());
            host.spawn(&format!("rank {rank}"), command)
        };
        let ranks = [start("0")?, start("1")?];
        for mut rank in ranks {
            rank.wait_success(PATIENCE)?;
        }
        Ok(())
    }

    /// Makes the packages of another environment available, after its own.
    fn add_packages_of(&self, other: &Path) -> Result<()> {
        let packages = |python: &Path| {
            let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
            output(Command::new(python).args(["-c", code]))
        };
        let file = Path::new(packages(&self.python)?.trim()).join("other.pth");
        fs::write(file, packages(other)?).context("cannot name torch's environment")
    }
}
