//! The worker's command line as a static program, which runs on any Linux of its processor, even in
//! an empty container.

use super::build;
use crate::command::{output, succeed};
use crate::python;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use switchml_cli::say;

/// The machine for which a static worker is made.
pub struct Kind {
    target: &'static str,
    processor: &'static str,
    emulator: Option<&'static str>,
}

/// The static worker for machines like this one.
pub const AMD64: Kind =
    Kind { target: "x86_64-unknown-linux-musl", processor: "x86_64", emulator: None };

/// The static worker for 64-bit ARM.
pub const ARM64: Kind = Kind {
    target: "aarch64-unknown-linux-musl",
    processor: "aarch64",
    emulator: Some(build::EMULATOR[0]),
};

/// Zig has musl and the unwinder, which Debian lacks. cargo-zigbuild, by the makers of maturin,
/// links Rust's programs with them.
const TOOLS: [&str; 2] = ["ziglang==0.17.1", "cargo-zigbuild==0.24.0"];

/// Builds the worker into the folder, and checks that it is static.
pub fn make(folder: &Path, kind: &Kind) -> Result<()> {
    let built = compile(kind, &["switchml-worker-cli"])?.join("switchml-worker");
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("switchml-worker-{version}-{}-static", kind.processor);
    let worker = folder.join(name);
    fs::copy(built, &worker).with_context(|| format!("cannot write {}", worker.display()))?;
    check(&worker, kind)
}

/// Builds the programs of these packages statically. Returns their folder.
pub fn compile(kind: &Kind, packages: &[&str]) -> Result<PathBuf> {
    let tools = python::with_tools("zig", &TOOLS)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([tools.clone()].into_iter().chain(env::split_paths(&path)))?;
    let mut cargo = build::command("zigbuild", kind.target)?;
    build::with_std(&mut cargo);
    cargo.args(packages.iter().flat_map(|package| ["-p", package])).arg("--bins").env("PATH", path);
    // The symbols are removed here, because no later step removes them.
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    succeed(&mut cargo)?;
    build::folder(kind.target)
}

/// Fails if the worker needs the system's loader or a library to start.
pub fn check(worker: &Path, kind: &Kind) -> Result<()> {
    let headers =
        output(Command::new("readelf").args(["--program-headers", "--dynamic"]).arg(worker))?;
    for word in ["INTERP", "NEEDED"] {
        ensure!(!headers.contains(word), "{} is not static: it has {word}", worker.display());
    }
    let mut start = match kind.emulator {
        Some(emulator) => Command::new(emulator),
        None => Command::new("env"),
    };
    say!("{}", output(start.arg(worker).arg("--version"))?.trim());
    Ok(())
}
