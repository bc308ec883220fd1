//! `cargo xtask setup`: installs what a machine with Rust lacks for building the BPF program and
//! running racks.
//!
//! Each part checks whether its tool is there, which takes milliseconds, and acts only if it is
//! not. All files are in the folders of cargo, of the toolchain and of the system's package
//! manager.

mod bpf_linker;
pub mod cargo_tool;
mod compiler;
pub mod debian;
pub mod packages;
mod rust_src;
pub mod unpacked;

use anyhow::{Result, anyhow};
pub use compiler::Compiler;
use std::path::{Path, PathBuf};

/// Installs what is missing to build the workspace and run racks. Silent if nothing is missing.
pub fn run() -> Result<()> {
    packages::ensure(&packages::NEEDED, "the build or the rack needs")?;
    bpf()
}

/// Installs what is missing to build the BPF programs: for rustup's Rust, on any distribution and
/// without root.
pub fn bpf() -> Result<()> {
    let compiler = Compiler::find()?;
    rust_src::ensure(&compiler)?;
    bpf_linker::ensure(&compiler)
}

/// Installs a browser and downloads Prometheus, for tests that watch a daemon. Returns the folder
/// of Prometheus in `target`.
pub fn watchers(target: &Path) -> Result<PathBuf> {
    packages::ensure(&[packages::BROWSER], "the test of the status page needs")?;
    Ok(unpacked::PROMETHEUS.ensure(target)?.join("usr/bin"))
}

/// Installs both MPIs for benchmarks and tests, their compilers, and Python's bindings.
pub fn mpi() -> Result<()> {
    packages::ensure(&packages::MPI, "programs of MPI need")
}

/// Installs Slurm for tests.
pub fn slurm() -> Result<()> {
    packages::ensure(&packages::SLURM, "jobs of Slurm need")
}

/// The parts that [`run`] would install.
pub fn missing() -> Result<Vec<String>> {
    let compiler = Compiler::find()?;
    let packages = packages::missing(&packages::NEEDED);
    let mut missing: Vec<String> =
        packages.iter().map(|package| format!("Debian package {package}")).collect();
    if !rust_src::is_there(&compiler) {
        missing.push(format!("rust-src {}", compiler.release));
    }
    if !bpf_linker::is_there(&compiler) {
        missing.push(format!("bpf-linker {}", bpf_linker::VERSION));
    }
    Ok(missing)
}

/// Prints what is about to be done, and why.
fn announce(step: &str) {
    eprintln!("setup: {step}");
}

/// Adds the manual alternative to the error of a failed step.
fn or_by_hand<T>(result: Result<T>, step: &str, by_hand: &str) -> Result<T> {
    result.map_err(|error| anyhow!("{step} failed: {error:#}; by hand: {by_hand}"))
}
