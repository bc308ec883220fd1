//! `cargo xtask tidy`: what no compiler checks of the text. Each finding is one line,
//! `file:line: what is wrong; what is allowed`.
//!
//! | module | what it checks |
//! | --- | --- |
//! | [`width`] | lines of code and prose have at most 100 columns |
//! | [`functions`] | Python functions have at most 70 lines; for Rust, clippy says so (`clippy.toml`) |
//! | [`circles`] | modules do not import each other in a circle |
//! | [`links`] | links in Markdown lead to files and headings that exist |
//! | [`rules`] | every rule of the protocol that is cited exists |
//! | [`named_tests`] | every test that a document names exists |

mod circles;
mod functions;
mod links;
mod modules;
mod named_tests;
mod rules;
mod width;

use crate::cargo;
use anyhow::{Context, Result, bail, ensure};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};
use switchml_cli::say;

/// A line that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// Below the workspace's root.
    path: PathBuf,
    line: usize,
    /// What is wrong, and what is allowed.
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.text)
    }
}

/// Checks the workspace.
///
/// # Errors
///
/// If there are findings, which are printed, or a file cannot be read.
pub fn run() -> Result<()> {
    let mut findings = Vec::new();
    let files = files()?;
    for path in &files {
        let Ok(text) = fs::read_to_string(cargo::workspace().join(path)) else { continue };
        findings.extend(width::check(path, &text));
        findings.extend(functions::check(path, &text));
    }
    findings.extend(links::check(cargo::workspace(), &files)?);
    findings.extend(rules::check(cargo::workspace(), &files)?);
    findings.extend(named_tests::check(cargo::workspace(), &files)?);
    findings.extend(circles::check()?);
    findings.sort();
    // A file of two crates is found twice.
    findings.dedup();
    for finding in &findings {
        say!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => bail!("1 line is to be mended; it is named above"),
        count => bail!("{count} lines are to be mended; they are named above"),
    }
}

/// All files that git has or would take, below the workspace's root.
fn files() -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .current_dir(cargo::workspace())
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("cannot start git, which lists the files to check")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let names = names.split_terminator('\0').map(PathBuf::from);
    // Those that are deleted and not yet committed are listed, too.
    Ok(names.filter(|path| cargo::workspace().join(path).is_file()).collect())
}

/// Whether the file's name ends in one of these.
fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|extension| extensions.iter().any(|other| extension == *other))
}
