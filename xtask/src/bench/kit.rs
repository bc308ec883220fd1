//! What measurements need besides racks.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result};
use switchml_rack::Binaries;

use crate::cargo::{self, Selection};

pub struct Kit {
    pub binaries: Binaries,
    /// A folder for this run's files, removed with the value.
    pub scratch: PathBuf,
    /// Repetitions of everything.
    pub runs: usize,
    /// Held while the run lasts.
    _lock: File,
}

impl Kit {
    /// Builds the binaries. Makes the folder, after removing the files of a killed run.
    pub fn new(runs: usize) -> Result<Self> {
        let binaries = Binaries::in_folder(&cargo::binaries_folder(None, Selection::Job)?)?;
        let peers = cargo::target_folder()?.join("peers");
        fs::create_dir_all(&peers).with_context(|| format!("cannot create {}", peers.display()))?;
        let lock = File::create(peers.join("lock")).context("cannot create a lock file")?;
        lock.try_lock()
            .context("another `cargo xtask bench` is running; two would disturb each other")?;
        let scratch = peers.join("run");
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
        Ok(Self { binaries, scratch, runs, _lock: lock })
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}
