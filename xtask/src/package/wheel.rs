//! The wheel, for any Linux with glibc 2.17 or later, and any CPython from 3.10 on: the Python
//! package, the worker's command line and the daemon, with its BPF programs.

mod trial;

use super::{build, files, zig};
use crate::cargo;
use crate::command::{output, succeed};
use crate::python::{Environment, tools};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use switchml_cli::say;

/// The processor for which a wheel is made.
pub struct Kind {
    target: &'static str,
    /// The name of the oldest systems that the wheel supports: those of 2014, with glibc 2.17.
    platform: &'static str,
}

/// The wheel for x86-64.
pub const AMD64: Kind = Kind { target: build::AMD64, platform: "manylinux_2_17_x86_64" };

/// The wheel for 64-bit ARM.
pub const ARM64: Kind = Kind { target: build::ARM64, platform: "manylinux_2_17_aarch64" };

/// Python's own tool that says on which systems a wheel runs.
const AUDITWHEEL: Environment = tools("auditwheel", "auditwheel==6.8.2");

/// The version of glibc that the programs are linked with.
const GLIBC: &str = "2.17";

/// The programs, and the packages of this workspace that they are in.
const PROGRAMS: [(&str, &str); 2] =
    [("switchml-aggregator", "switchml-userspace"), ("switchml-worker", "switchml-worker-cli")];

/// Builds a wheel into the folder.
pub fn make(folder: &Path, kind: &Kind) -> Result<()> {
    // In the usual folder, Zig's flags for C would make all other builds compile C again.
    let target_folder = build::target_folder()?.join("wheel");
    let work = target_folder.join("parts");
    let _ = fs::remove_dir_all(&work);
    library(&work, &target_folder, kind)?;
    succeed(zig::tool("wheel")?.args(["unpack", "--dest"]).arg(&work).arg(only(&work)?))?;
    let packages = PROGRAMS.map(|(_, package)| package);
    let target = format!("{}.{GLIBC}", kind.target);
    let built = zig::build(&target_folder, &target, &packages)?;
    let content = work.join(format!("switchml-{}", env!("CARGO_PKG_VERSION")));
    // pip puts these files next to Python's own program.
    let scripts = content.join(format!("switchml-{}.data/scripts", env!("CARGO_PKG_VERSION")));
    fs::create_dir_all(&scripts).with_context(|| format!("cannot make {}", scripts.display()))?;
    for (program, _) in PROGRAMS {
        fs::copy(built.join(program), scripts.join(program)).context("cannot copy the programs")?;
    }
    let mut pack = zig::tool("wheel")?;
    pack.arg("pack").arg(&content).arg("--dest-dir").arg(folder);
    succeed(pack.env("SOURCE_DATE_EPOCH", build::commit_time()?))
}

/// Builds a wheel of the Python package without programs into a folder.
fn library(folder: &Path, target_folder: &Path, kind: &Kind) -> Result<()> {
    let mut maturin = zig::tool("maturin")?;
    maturin.args(["build", "--release", "--locked", "--zig", "--compatibility", "manylinux2014"]);
    maturin.args(["--target", kind.target, "--manifest-path"]);
    maturin.arg(cargo::workspace().join("worker-lib/python/Cargo.toml")).arg("--out").arg(folder);
    maturin.arg("--target-dir").arg(target_folder);
    build::set_environment(&mut maturin)?;
    build::with_std(&mut maturin, kind.target)?;
    succeed(&mut maturin)
}

/// Fails unless the wheel in the folder fits its name and works.
pub fn check(folder: &Path, kind: &Kind) -> Result<()> {
    let wheels = files(folder)?.into_iter().filter(|file| file.extension() == Some("whl".as_ref()));
    let is_ours = |file: &PathBuf| file.to_string_lossy().contains(kind.platform);
    let wheel = wheels.into_iter().find(is_ours).context("no wheel for this platform")?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(name.contains("-cp310-abi3-"), "{name} is not for all CPythons from 3.10 on");
    let tools = AUDITWHEEL.programs()?;
    let told = output(Command::new(tools.join("auditwheel")).arg("show").arg(&wheel))?;
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let tag = format!("is consistent with the following platform tag: \"{}\"", kind.platform);
    ensure!(told.contains(&tag), "auditwheel does not say that {name} {tag}: {told}");
    say!("auditwheel: {name} is for {}", kind.platform);
    match kind.target {
        build::ARM64 => trial::emulate(&wheel),
        _ => trial::run(&wheel),
    }
}

/// The only file in a folder.
fn only(folder: &Path) -> Result<PathBuf> {
    let files = files(folder)?;
    ensure!(files.len() == 1, "not one file: {files:?}");
    Ok(files[0].clone())
}
