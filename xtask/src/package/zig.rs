//! Builds through Zig, which has the C libraries of all targets, so that these builds need no
//! package of a distribution and no root.

use super::build;
use crate::command::succeed;
use crate::python::{Environment, tools};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::{env, process::Command};

/// Zig; two tools by the same makers that link Rust's programs and Python's modules through it; and
/// Python's own tool that takes wheels apart.
const TOOLS: Environment =
    tools("zig", "ziglang==0.17.1\ncargo-zigbuild==0.24.0\nmaturin==1.16.0\nwheel==0.48.0");

/// One of the tools, with the others in its `PATH`.
pub fn tool(name: &str) -> Result<Command> {
    let tools = TOOLS.programs()?;
    let mut tool = Command::new(tools.join(name));
    tool.env("PATH", path(tools)?);
    Ok(tool)
}

/// Builds the programs of these packages for one of Zig's targets, without symbols, in a target
/// folder. Returns the folder of the programs.
pub fn build(folder: &Path, target: &str, packages: &[&str]) -> Result<PathBuf> {
    let mut cargo = build::command_in(folder, "zigbuild", target)?;
    cargo.args(packages.iter().flat_map(|package| ["-p", package])).arg("--bins");
    cargo.env("PATH", path(TOOLS.programs()?)?);
    // The symbols are removed here, because no later step removes them.
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    succeed(&mut cargo)?;
    Ok(folder.join(build::target_of(target)).join("release"))
}

/// `PATH`, which begins with this folder.
fn path(tools: PathBuf) -> Result<std::ffi::OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths([tools].into_iter().chain(env::split_paths(&path)))?)
}
