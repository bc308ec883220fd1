//! The worker's command line as a static program, which runs on any Linux of its processor, even in
//! an empty container.

use super::{build, zig};
use crate::command::output;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
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

/// Builds the worker into the folder, and checks that it is static.
pub fn make(folder: &Path, kind: &Kind) -> Result<()> {
    let built = compile(kind, &["switchml-worker-cli"])?.join("switchml-worker");
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("switchml-worker-{version}-{}-static", kind.processor);
    let worker = folder.join(name);
    fs::copy(built, &worker).with_context(|| format!("cannot write {}", worker.display()))?;
    check(&worker, kind)
}

/// Builds the programs of these packages statically, with the musl and the unwinder of Zig. Returns
/// their folder.
pub fn compile(kind: &Kind, packages: &[&str]) -> Result<PathBuf> {
    zig::build(&build::target_folder()?, kind.target, packages)
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
