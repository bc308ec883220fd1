//! A wheel of the Python package for any Linux on x86-64 with glibc 2.17 or later, and any CPython
//! from 3.10 on.

mod trial;

use super::{build, files};
use crate::command::{output, succeed};
use crate::{cargo, python};
use anyhow::{Context, Result, ensure};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use switchml_cli::say;

/// maturin makes wheels, and links them through Zig with an old glibc; auditwheel is Python's own
/// tool for checking them.
const TOOLS: [&str; 3] = ["maturin==1.16.0", "ziglang==0.17.1", "auditwheel==6.8.2"];

/// The oldest systems that a wheel supports: systems of 2014, with glibc 2.17.
const PLATFORM: &str = "manylinux_2_17_x86_64";

/// Builds a wheel into the folder.
pub fn make(folder: &Path) -> Result<()> {
    let tools = tools()?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([tools.clone()].into_iter().chain(env::split_paths(&path)))?;
    let mut maturin = Command::new(tools.join("maturin"));
    maturin.args(["build", "--release", "--locked", "--zig", "--compatibility", "manylinux2014"]);
    maturin.args(["--target", build::AMD64, "--manifest-path"]);
    maturin.arg(cargo::workspace().join("worker-lib/python/Cargo.toml")).arg("--out").arg(folder);
    // In the usual folder, Zig's flags for C would make all other builds compile C again.
    maturin.arg("--target-dir").arg(build::target_folder()?.join("wheel")).env("PATH", path);
    build::set_environment(&mut maturin)?;
    succeed(&mut maturin)
}

/// Fails unless the wheel in the folder fits its name, and ranks that use it add up correctly.
pub fn check(folder: &Path) -> Result<()> {
    let is_wheel = |file: &PathBuf| file.extension().is_some_and(|end| end == "whl");
    let wheel = files(folder)?.into_iter().find(is_wheel).context("no wheel")?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(name.contains("-cp310-abi3-") && name.contains(PLATFORM), "{name} is for others");
    let told = output(Command::new(tools()?.join("auditwheel")).arg("show").arg(&wheel))?;
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let tag = format!("is consistent with the following platform tag: \"{PLATFORM}\"");
    ensure!(told.contains(&tag), "auditwheel does not say that {name} {tag}: {told}");
    say!("auditwheel: {name} is for {PLATFORM}");
    trial::run(&wheel)
}

fn tools() -> Result<PathBuf> {
    python::with_tools("wheel", &TOOLS)
}
