//! `cargo xtask package --reproduce`: two builds of the commit, both from scratch and each in its
//! own temporary folder, give the same bytes.

use super::{Part, files};
use crate::cargo;
use crate::command::{output, succeed};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{env, fs};
use switchml_cli::say;

/// Tools in the target folder that both builds use.
const TOOLS: [&str; 2] = ["python", "cargo-cyclonedx"];

/// The builds' folders. Their names have different lengths, because a path may be cut somewhere.
const FOLDERS: [&str; 2] = ["one", "the-other/and-deeper"];

/// Builds the parts twice, and compares.
pub fn run(parts: &[Part]) -> Result<()> {
    let changed = output(git().args(["status", "--porcelain"]))?;
    ensure!(changed.is_empty(), "--reproduce builds what is committed: commit first");
    // Not below the workspace, because cargo would merge its .cargo/config.toml with that of the
    // copy.
    let scratch = env::temp_dir().join(format!("switchml-reproduce-{}", process::id()));
    fs::create_dir(&scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let folders = FOLDERS.map(|name| scratch.join(name));
    // Both folders are cloned first: somebody may continue work in the repository meanwhile.
    for folder in &folders {
        succeed(git().args(["clone", "--quiet", "--no-hardlinks", "."]).arg(folder))?;
    }
    let built = build(&folders[0], parts).and_then(|one| Ok((one, build(&folders[1], parts)?)));
    if built.is_err() {
        // The folder takes gigabytes, and the error is already reported.
        let _ = fs::remove_dir_all(&scratch);
    }
    let (one, other) = built?;
    ensure!(one.keys().eq(other.keys()), "not the same files: {one:?} and {other:?}");
    let mut differing = Vec::new();
    for (name, hash) in &one {
        say!("{hash}  {name}");
        if other[name] != *hash {
            say!("{}  {name} in the other folder", other[name]);
            differing.push(name.as_str());
        }
    }
    if !differing.is_empty() {
        bail!(
            "differ from folder to folder: {}; both are in {}",
            differing.join(", "),
            scratch.display()
        );
    }
    fs::remove_dir_all(&scratch).context("cannot clean up")?;
    say!("two builds from two folders: the same to the byte");
    Ok(())
}

/// Builds the parts from the repository's copy in the folder, and removes everything except the
/// packages. Returns their hashes by name.
fn build(folder: &Path, parts: &[Part]) -> Result<BTreeMap<String, String>> {
    fs::create_dir_all(folder.join("target"))?;
    for tool in TOOLS {
        let there = cargo::target_folder()?.join(tool);
        fs::create_dir_all(&there)?;
        symlink(&there, folder.join("target").join(tool))?;
    }
    let mut command = Command::new("cargo");
    command.args(["xtask", "package"]).current_dir(folder);
    // The outer cargo's variables about its own build must not affect this one.
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_TARGET_DIR");
    for part in parts.iter().filter_map(Part::to_possible_value) {
        command.arg(part.get_name());
    }
    succeed(&mut command)?;
    let kept = folder.with_extension("packages");
    fs::rename(folder.join("target/package"), &kept)?;
    fs::remove_dir_all(folder).context("cannot clean up")?;
    files(&kept)?.iter().map(hash).collect()
}

fn hash(file: &PathBuf) -> Result<(String, String)> {
    let sum = output(Command::new("sha256sum").arg(file))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((name, sum.split(' ').next().unwrap_or_default().to_owned()))
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.current_dir(cargo::workspace());
    git
}
