//! Debian's Prometheus, unpacked below the target folder: installed, it would run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::debian::Apt;
use super::output;

/// The oldest suite that has it: its programs run with every later C library.
const SUITE: &str = "bookworm";

/// The folder with `prometheus` and `promtool`, in `target`; downloads them unless they are there.
///
/// # Errors
///
/// If Debian's package cannot be had.
pub fn fetch(target: &Path) -> Result<PathBuf> {
    let folder = target.join("prometheus");
    let programs = folder.join("usr/bin");
    if programs.is_dir() {
        return Ok(programs);
    }
    super::announce("downloading Debian's Prometheus, 19 MB, for tests of metrics");
    // A name of its own until it is complete.
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
