//! `cargo xtask package --check`: packages are the same when made again, lintian finds nothing, and
//! they work under systemd, in namespaces on top of this system.

use super::{Packed, make};
use crate::command::succeed;
use crate::setup::packages::ensure as install;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use switchml_cli::say;

/// The script that makes the namespaces and runs in them.
const SCRIPT: &str = include_str!("check.sh");

/// Programs that this needs in addition to those for making packages, and their packages.
const NEEDED: [(&str, &str); 4] = [
    ("lintian", "lintian"),
    ("systemctl", "systemd"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
];

/// Fails if lintian finds anything in packages that their overrides do not name.
pub fn lint(packages: &[PathBuf]) -> Result<()> {
    let tags = "--fail-on=error,warning";
    succeed(Command::new("lintian").args(["--allow-root", tags]).args(packages))?;
    say!("lintian: clean");
    Ok(())
}

/// Checks the packages in the folder, which were made from `packed`.
pub fn run(packed: &Packed, folder: &Path, packages: &[PathBuf]) -> Result<()> {
    install(&NEEDED, "try packages out")?;
    let scratch = folder.with_file_name("package-check");
    let again = make(packed, &scratch.join("again"), env!("CARGO_PKG_VERSION"))?;
    for (one, other) in packages.iter().zip(&again) {
        ensure!(fs::read(one)? == fs::read(other)?, "{} differs when made again", one.display());
    }
    say!("made again: the same to the byte");
    lint(packages)?;
    make(packed, &scratch.join("next"), concat!(env!("CARGO_PKG_VERSION"), "+next"))?;
    let script = scratch.join("check.sh");
    fs::write(&script, SCRIPT).context("cannot write the script")?;
    let ended = succeed(Command::new("bash").arg(&script).args(["outside".as_ref(), folder]));
    fs::remove_dir_all(&scratch).context("cannot clean up")?;
    ended
}
