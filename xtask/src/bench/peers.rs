//! The programs that ranks run, and their dependencies: torch for Gloo, Open MPI and MPICH with
//! their compilers.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use switchml_rack::Mpi;

use super::kit::Kit;
use crate::command::succeed;
use crate::{cargo, python, setup};

/// The programs.
pub struct Programs {
    /// The worker's command line, of which each rank with this project's library is one.
    pub ours: PathBuf,
    /// The interpreter that has torch.
    pub python: PathBuf,
    /// A rank with Gloo.
    pub gloo: PathBuf,
    /// A rank with MPI.
    pub mpi: Vec<(Mpi, PathBuf)>,
    /// This project's library that is loaded ahead of each MPI.
    pub preloads: Vec<(Mpi, PathBuf)>,
    /// The folder of the libraries that the preloaded one is linked with.
    pub libraries: PathBuf,
}

impl Programs {
    /// Builds and installs what is missing.
    pub fn ensure(kit: &Kit) -> Result<Self> {
        let folder = cargo::target_folder()?.join("peers");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let sources = cargo::workspace().join("xtask/src/bench/peers");
        setup::mpi()?;
        succeed(cargo::command("build")?.args(["--release", "-p", "switchml-c"]))?;
        let libraries = cargo::release_folder()?;
        let both = [Mpi::OpenMpi, Mpi::Mpich];
        let mpi = both.map(|mpi| Ok((mpi, mpi.program(&sources.join("mpi.c"), &folder)?)));
        let preloads = both.map(|mpi| Ok((mpi, mpi.preload(&libraries, &folder)?)));
        Ok(Self {
            ours: kit.binaries.worker.clone(),
            python: python::TORCH.interpreter()?,
            gloo: sources.join("gloo.py"),
            mpi: mpi.into_iter().collect::<Result<_>>()?,
            preloads: preloads.into_iter().collect::<Result<_>>()?,
            libraries,
        })
    }
}
