//! `cargo xtask tidy`: checks of the text that no compiler makes, in the program `switchml-tidy`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    src_path: PathBuf,
}

/// Builds the program and checks the workspace.
pub fn run() -> Result<()> {
    let Metadata { packages, workspace_root } = cargo::metadata()?;
    let targets = packages.iter().flat_map(|package| &package.targets);
    let status = cargo::command("run")?
        .args(["--quiet", "--package", "switchml-tidy", "--"])
        .arg(workspace_root)
        .args(targets.map(|target| &target.src_path))
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the text is not tidy; what is wrong is named above");
    Ok(())
}
