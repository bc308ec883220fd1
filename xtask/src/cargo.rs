//! Calls of cargo for this workspace.

use crate::command::succeed;
use crate::setup;
use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use switchml_rack::forget_package;

/// A cargo command in the workspace's root, with the target folder that contains this program.
pub fn command(subcommand: &str) -> Result<Command> {
    Ok(command_in(subcommand, &target_folder()?))
}

/// A cargo command in the workspace's root, with this target folder.
pub fn command_in(subcommand: &str, target_folder: &Path) -> Command {
    let mut command = Command::new(program());
    command.current_dir(workspace()).arg(subcommand).arg("--target-dir").arg(target_folder);
    forget_package(&mut command);
    command
}

/// The cargo that runs this program.
fn program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The output of `cargo metadata` about the workspace's own crates.
pub fn metadata<T: DeserializeOwned>() -> Result<T> {
    let output = Command::new(program())
        .current_dir(workspace())
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata says")
}

/// Builds release binaries that run in a rack, and returns the folder where they are.
pub fn build_binaries(selection: Selection) -> Result<PathBuf> {
    let mut command = command("build")?;
    command.args(["--release", "--bins", "-p", "switchml-userspace", "-p", "switchml-worker-cli"]);
    if selection != Selection::All {
        command.args(["--no-default-features", "--features", "switchml-userspace/daemon"]);
    }
    if selection != Selection::Job {
        command.args(["-p", "switchml-impairment"]);
    }
    succeed(&mut command)?;
    release_folder()
}

/// The binaries to build.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// The worker, and a daemon without P4, traces and `top`, which take long to compile.
    Job,
    /// The binaries of [`Self::Job`], and the program that makes links bad.
    JobOnBadLinks,
    /// All binaries, with all features of the daemon.
    All,
}

/// The folder of the binaries to run: the `given` one. Without it, installs what the build needs,
/// and builds the binaries.
pub fn binaries_folder(given: Option<&Path>, selection: Selection) -> Result<PathBuf> {
    match given {
        Some(folder) => Ok(folder.to_owned()),
        None => {
            setup::run()?;
            build_binaries(selection)
        }
    }
}

/// The folder into which cargo writes release binaries.
pub fn release_folder() -> Result<PathBuf> {
    Ok(target_folder()?.join("release"))
}

/// The workspace's root.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Cargo's target folder, which contains this program.
pub fn target_folder() -> Result<PathBuf> {
    let executable = env::current_exe().context("cannot find out where this program lies")?;
    executable.ancestors().nth(2).map(Path::to_owned).with_context(|| {
        format!("{} lies in no target folder; start it as `cargo xtask`", executable.display())
    })
}
