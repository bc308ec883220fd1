//! Debian's Prometheus, unpacked below the target folder. Installing it would start it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::debian::Apt;
use crate::command::output;

/// The oldest suite with Prometheus: its programs run with every later C library.
const SUITE: &str = "bookworm";

/// The folder in `target` with `prometheus` and `promtool`, which are downloaded if they are
/// missing.
pub fn fetch(target: &Path) -> Result<PathBuf> {
    let folder = target.join("prometheus");
    let programs = folder.join("usr/bin");
    if programs.is_dir() {
        return Ok(programs);
    }
    super::announce("downloading Debian's Prometheus, 19 MB, for tests of metrics");
    // The folder has another name until it is complete.
    let partial = folder.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    let package = Apt::new(&folder.with_extension("apt"), &[SUITE])?.download("prometheus")?;
    output(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&partial))?;
    fs::remove_file(package)?;
    ensure!(partial.join("usr/bin/promtool").is_file(), "Debian's package has no promtool");
    fs::rename(&partial, &folder)?;
    Ok(programs)
}
