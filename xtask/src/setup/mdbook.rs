//! mdBook, installed below the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{announce, or_by_hand};
use crate::command::output;

const VERSION: &str = "0.5.4";

/// The program in `target`, which is built if it is missing or of another version.
///
/// # Errors
///
/// If building it fails.
pub fn ensure(target: &Path) -> Result<PathBuf> {
    let root = target.join("mdbook");
    let program = root.join("bin/mdbook");
    let version = output(Command::new(&program).arg("--version"));
    if version.is_ok_and(|version| version.trim() == format!("mdbook v{VERSION}")) {
        return Ok(program);
    }
    announce(&format!("mdbook {VERSION}: building it takes some minutes"));
    let mut cargo = Command::new("cargo");
    cargo.args(["install", "--locked", "--force", "--quiet", "mdbook", "--version", VERSION]);
    // Without its server.
    cargo.args(["--no-default-features", "--features", "search", "--root"]).arg(&root);
    // Builds in cargo's own temporary folder, without flags for this workspace.
    cargo.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").current_dir("/");
    let by_hand =
        format!("cargo install --locked mdbook --version {VERSION} --root {}", root.display());
    or_by_hand(output(&mut cargo).map(drop), "installing mdbook", &by_hand)?;
    Ok(program)
}
