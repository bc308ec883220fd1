//! `cargo xtask package`: Debian packages of the daemon, the worker's command line and the C
//! library.
//!
//! debhelper makes them, from `deploy/debian`: it knows how Debian wants users, services and shared
//! libraries, and takes all times from the commit's, so that packages of one build are the same to
//! the byte.

mod check;
mod layout;

use crate::{
    cargo,
    setup::{self, packages},
};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use switchml_cli::say;

/// What this needs beside the build's packages.
const NEEDED: [(&str, &str); 2] = [("dh", "debhelper"), ("dpkg-architecture", "dpkg-dev")];

/// Options of `cargo xtask package`.
#[derive(clap::Args)]
pub struct Package {
    /// Then try them out in namespaces of their own: install, serve, upgrade under load, purge;
    /// needs root, and lintian
    #[arg(long)]
    check: bool,
}

impl Package {
    /// Builds the packages into `<target folder>/package`.
    ///
    /// # Errors
    ///
    /// What is missing, or which step failed; its own messages are above.
    pub fn run(&self) -> Result<()> {
        packages::ensure(&NEEDED, "packages are made with")?;
        setup::run()?;
        let built = build()?;
        let folder = cargo::target_folder()?.join("package");
        let packages = make(&built, &folder, env!("CARGO_PKG_VERSION"))?;
        packages.iter().for_each(|package| say!("{}", package.display()));
        if self.check { check::run(&built, &folder, &packages) } else { Ok(()) }
    }
}

/// Builds what the packages contain; the folder where it is.
fn build() -> Result<PathBuf> {
    let mut programs = cargo::command("build")?;
    programs.args(["--release", "--bins", "-p", "switchml-userspace", "-p", "switchml-worker-cli"]);
    succeed(&mut programs)?;
    // Programs that link with it ask for this name.
    let mut library = cargo::command("rustc")?;
    library.args(["--release", "-p", "switchml-c", "--lib", "--crate-type", "cdylib", "--"]);
    succeed(library.arg(format!("-Clink-arg=-Wl,-soname,{}", layout::SONAME)))?;
    cargo::release_folder()
}

/// Makes packages of this version in the folder, of which nothing else is left; their paths.
fn make(built: &Path, folder: &Path, version: &str) -> Result<Vec<PathBuf>> {
    let _ = fs::remove_dir_all(folder);
    let source = folder.join("switchml");
    layout::lay_out(built, &source, version)?;
    let mut rules = Command::new("debian/rules");
    succeed(rules.arg("binary").current_dir(&source))?;
    fs::remove_dir_all(&source).context("cannot clean up")?;
    let entries = fs::read_dir(folder).context("no packages")?;
    let mut packages: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    packages.sort();
    Ok(packages)
}

/// Runs a command to its good end.
fn succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name} failed ({status}); its messages are above");
    Ok(())
}

#[cfg(test)]
mod kubernetes_tests;

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = "deploy/debian/switchml-aggregator.service";

    /// The values of a setting of the daemon's unit.
    pub fn settings(name: &str) -> Vec<String> {
        let unit = fs::read_to_string(cargo::workspace().join(UNIT)).expect("the unit");
        let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn the_service_has_three_capabilities_and_survives_upgrades() {
        let three = ["CAP_BPF CAP_NET_ADMIN CAP_PERFMON"];
        assert_eq!(settings("CapabilityBoundingSet"), three);
        assert_eq!(settings("AmbientCapabilities"), three);
        assert_eq!(settings("User"), ["switchml"]);
        assert_eq!(settings("RestartKillSignal"), ["SIGKILL"]);
        assert_eq!(settings("KillSignal"), [] as [&str; 0]);
    }

    /// In systemd's judgement, of 0 (safe) to 100: "OK" begins below 50, and the daemon's
    /// capabilities and its use of the network are 20.
    #[test]
    fn systemd_finds_the_sandbox_tight() {
        let mut judge = Command::new("systemd-analyze");
        judge.args(["security", "--no-pager", "--offline=true", "--threshold=20"]);
        match judge.arg(cargo::workspace().join(UNIT)).output() {
            Err(error) => switchml_rack::skip(
                "systemd_finds_the_sandbox_tight",
                &format!("systemd-analyze: {error}"),
            ),
            Ok(output) => {
                let told = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{told}");
            }
        }
    }
}
