//! An environment with a wheel alone: ranks and an aggregator in software on this host and, if the
//! user is root, its programs in racks.

use super::super::{arm64, build, zig};
use super::PROGRAMS;
use crate::command::{output, succeed};
use crate::{cargo, python};
use anyhow::{Context, Result};
use rustix::process::geteuid;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};
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
    let programs = ranks.folder.join("bin");
    let host = Namespace::of_host()?;
    let aggregator = Aggregator::on_loopback(&Binaries::in_folder(&programs)?, &host)?;
    ranks.run(ARRAYS, &host, &aggregator)?;
    say!("the wheel adds up in an empty environment, through its own aggregator");
    ranks.add_packages_of(&python::TORCH.interpreter()?)?;
    ranks.run(TENSORS, &host, &aggregator)?;
    say!("the wheel adds up torch's tensors");
    aggregator.stop()?;
    in_racks(&programs)?;
    fs::remove_dir_all(&ranks.folder).context("cannot clean up")
}

/// Fails unless the programs of a wheel for 64-bit ARM start.
pub fn emulate(wheel: &Path) -> Result<()> {
    arm64::install_emulator()?;
    let folder = cargo::target_folder()?.join("package-check-wheel");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    succeed(zig::tool("wheel")?.args(["unpack", "--dest"]).arg(&folder).arg(wheel))?;
    let content = format!("switchml-{}", env!("CARGO_PKG_VERSION"));
    let scripts = folder.join(&content).join(format!("{content}.data/scripts"));
    for (program, _) in PROGRAMS {
        let (emulator, arguments) = build::EMULATOR.split_first().context("no emulator")?;
        let mut start = Command::new(emulator);
        start.args(arguments).arg(scripts.join(program)).arg("--version");
        say!("{} on ARM", output(&mut start)?.lines().next().unwrap_or_default());
    }
    fs::remove_dir_all(&folder).context("cannot clean up")
}

/// Runs the benchmark with these programs in racks, at tc ingress and in native XDP.
fn in_racks(programs: &Path) -> Result<()> {
    if !geteuid().is_root() {
        say!("not tried, because only root can: the wheel's BPF programs");
        return Ok(());
    }
    for mode in ["auto", "native"] {
        let mut run = Command::new(env::current_exe().context("cannot find this program")?);
        run.args(["run", "--mode", mode, "-b", "1M", "-e", "1M", "--binaries"]).arg(programs);
        succeed(&mut run)?;
    }
    Ok(())
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
