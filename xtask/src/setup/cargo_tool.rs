//! Programs that cargo builds from crates.io, below the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{announce, or_by_hand};
use crate::command::output;

/// A crate with a program of its name.
pub struct Tool {
    pub name: &'static str,
    pub version: &'static str,
    /// The arguments with which the program prints its version.
    pub version_arguments: &'static [&'static str],
    /// Options of `cargo install`.
    pub options: &'static [&'static str],
}

/// mdBook without its server.
pub const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    version_arguments: &["--version"],
    options: &["--no-default-features", "--features", "search"],
};

/// CycloneDX's own tool for cargo.
pub const CYCLONEDX: Tool = Tool {
    name: "cargo-cyclonedx",
    version: "0.5.9",
    version_arguments: &["cyclonedx", "--version"],
    options: &[],
};

pub const GENERATE_RPM: Tool = Tool {
    name: "cargo-generate-rpm",
    version: "0.21.1",
    version_arguments: &["generate-rpm", "--version"],
    options: &[],
};

impl Tool {
    /// The program below the target folder, which is built if it is missing or of another version.
    pub fn ensure(&self, target: &Path) -> Result<PathBuf> {
        let Self { name, version, version_arguments, options } = self;
        let root = target.join(name);
        let program = root.join("bin").join(name);
        let there = output(Command::new(&program).args(*version_arguments));
        if there.is_ok_and(|there| there.contains(version)) {
            return Ok(program);
        }
        announce(&format!("{name} {version}: building it takes some minutes"));
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--locked", "--force", "--quiet", name, "--version", version]);
        cargo.args(*options).arg("--root").arg(&root);
        // Builds in cargo's own temporary folder, without flags for this workspace.
        cargo.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").current_dir("/");
        let options = options.join(" ");
        let by_hand = format!(
            "cargo install --locked {name} --version {version} {options} --root {}",
            root.display()
        );
        or_by_hand(output(&mut cargo).map(drop), &format!("installing {name}"), &by_hand)?;
        Ok(program)
    }
}
