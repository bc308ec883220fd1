//! Checks of the text that no compiler makes, for `cargo xtask tidy`. Each finding is one line,
//! `file:line: what is wrong; what is allowed`.
//!
//! This is a separate program because parsers of Rust and Markdown take long to compile, and `cargo
//! xtask run` needs none.
//!
//! | module | what it checks |
//! | --- | --- |
//! | [`width`] | lines of code and prose have at most 100 columns |
//! | [`functions`] | Python functions have at most 70 lines; clippy checks Rust (`clippy.toml`) |
//! | [`circles`] | modules do not import each other in a circle |
//! | [`links`] | links in Markdown lead to files and headings that exist |
//! | [`rules`] | every rule of the protocol that is cited exists |
//! | [`named_tests`] | every test that a document names exists |
//! | [`summary`] | the book's summary lists every page of `docs/` |
//! | [`english`] | pages for users keep to the words of the style guide |

mod circles;
mod english;
mod functions;
mod links;
mod modules;
mod named_tests;
mod rules;
mod summary;
mod width;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fmt, fs};
use switchml_cli::say;

/// Check what no compiler does: widths, lengths, import circles, links, cited rules
#[derive(Parser)]
#[command(name = "switchml-tidy")]
struct Tidy {
    /// The workspace's folder
    folder: PathBuf,

    /// The roots of its crates: files such as lib.rs
    roots: Vec<PathBuf>,
}

/// A line that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// The file, relative to the workspace's root.
    path: PathBuf,
    line: usize,
    /// The error, and what is allowed.
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.text)
    }
}

fn main() -> ExitCode {
    match check(&switchml_cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Checks the workspace. Fails if there are findings, which it prints, or if a file cannot be read.
fn check(Tidy { folder, roots }: &Tidy) -> Result<()> {
    let mut findings = Vec::new();
    let files = files(folder)?;
    for path in &files {
        let Ok(text) = fs::read_to_string(folder.join(path)) else { continue };
        findings.extend(width::check(path, &text));
        findings.extend(functions::check(path, &text));
    }
    findings.extend(links::check(folder, &files)?);
    findings.extend(rules::check(folder, &files)?);
    findings.extend(named_tests::check(folder, &files)?);
    findings.extend(summary::check(folder, &files)?);
    findings.extend(english::check(folder, &files)?);
    findings.extend(circles::check(folder, roots)?);
    findings.sort();
    // A file of two crates is found twice.
    findings.dedup();
    for finding in &findings {
        say!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => bail!("1 line to fix; it is named above"),
        count => bail!("{count} lines to fix; they are named above"),
    }
}

/// All files that git tracks or would add, relative to the workspace's root, without code that a
/// program wrote.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .current_dir(folder)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("cannot start git, which lists the files to check")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    let names = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let names = names.split_terminator('\0').map(PathBuf::from);
    // Git also lists files that are deleted but not yet committed.
    let is_ours = |path: &PathBuf| path.iter().all(|part| part != "generated");
    Ok(names.filter(|path| is_ours(path) && folder.join(path).is_file()).collect())
}

/// Whether the file's name has one of the extensions.
fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|extension| extensions.iter().any(|other| extension == *other))
}
