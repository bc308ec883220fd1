//! The programs that ranks run, and what they need: torch for Gloo, Open MPI, and a compiler for
//! its rank.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{cargo, python, setup::packages};

/// What must be there for Open MPI, and the package that brings it.
const OPEN_MPI: [(&str, &str); 2] = [("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev")];

/// The programs.
pub struct Programs {
    /// A rank with this project's library.
    pub ours: PathBuf,
    /// The interpreter that has torch.
    pub python: PathBuf,
    /// A rank with Gloo.
    pub gloo: PathBuf,
    /// A rank with Open MPI.
    pub mpi: PathBuf,
}

impl Programs {
    /// Builds and installs what is not there yet.
    ///
    /// # Errors
    ///
    /// The first step that failed.
    pub fn ensure() -> Result<Self> {
        let folder = cargo::target_folder()?.join("peers");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let sources = cargo::workspace().join("xtask/src/bench/peers");
        packages::ensure(&OPEN_MPI, "the benchmark's other side needs")?;
        let mpi = folder.join("mpi");
        run(Command::new("mpicc").args(["-O3", "-o"]).arg(&mpi).arg(sources.join("mpi.c")))?;
        Ok(Self {
            ours: build("bench_rank")?,
            python: python::with_torch()?,
            gloo: sources.join("gloo.py"),
            mpi,
        })
    }
}

/// Builds an example of the library, a rank.
pub fn build(example: &str) -> Result<PathBuf> {
    run(cargo::command("build")?.args([
        "--release",
        "-p",
        "switchml-worker",
        "--example",
        example,
    ]))?;
    Ok(cargo::release_folder()?.join("examples").join(example))
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program} failed ({status}); what it said is above");
    Ok(())
}
