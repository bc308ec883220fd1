//! `cargo xtask gen`: writes the protocol's numbers for code that cannot use the `protocol` crate,
//! the code of the .proto files, the settings of a communicator for C and Python, and the pages of
//! docs/reference.

mod p4;
mod python;

use anyhow::{Context, Result, ensure};
use std::fs;
use switchml_cli::say;
use switchml_protocol::outcome::{Outcome, RejectReason};
use switchml_protocol::wire::header::{Kind, Op, flags};

use crate::cargo;
use crate::command::succeed;

/// The first line of each file.
const ABOUT: &str =
    "Made by `cargo xtask gen` from the crate `switchml-protocol`: change it there.";

/// Which of the files to write.
#[derive(clap::Args)]
pub struct Generate {
    /// Write nothing; fail if a file is not what would be written
    #[arg(long)]
    check: bool,
}

impl Generate {
    /// Writes the files, or checks them.
    pub fn run(&self) -> Result<()> {
        if self.check {
            check()?;
            return write_reference(&["--check"]);
        }
        for (path, text) in files() {
            fs::write(cargo::workspace().join(path), text)
                .with_context(|| format!("cannot write {path}"))?;
            say!("wrote {path}");
        }
        // A test in that package checks what it wrote.
        let mut code = cargo::command("run")?;
        succeed(code.args(["--quiet", "--package", "switchml-control-generate"]))?;
        write_reference(&[])?;
        write_header()
    }
}

/// Writes C's header, in which the settings are. The test that writes it checks it otherwise.
fn write_header() -> Result<()> {
    let mut test = cargo::command("test")?;
    test.args(["--quiet", "--release", "--package", "switchml-c", "--test", "suite", "header"]);
    succeed(test.env("UPDATE_EXPECT", "1"))
}

/// Writes or checks docs/reference and the settings for C and Python. That takes the programs and
/// the libraries, which this crate must do without; a test in that package checks the files, too.
fn write_reference(arguments: &[&str]) -> Result<()> {
    let mut reference = cargo::command("run")?;
    reference.args(["--quiet", "--release", "--package", "switchml-reference", "--"]);
    succeed(reference.args(arguments))
}

/// The files' paths in the repository, and their content.
fn files() -> [(&'static str, String); 2] {
    [(p4::PATH, p4::text()), (python::PATH, python::text())]
}

/// Checks that the files have the protocol's numbers.
pub fn check() -> Result<()> {
    for (path, text) in files() {
        let committed = fs::read_to_string(cargo::workspace().join(path))
            .with_context(|| format!("cannot read {path}"))?;
        ensure!(
            committed == text,
            "{path} is not what the crate switchml-protocol says; run `cargo xtask gen`"
        );
        say!("{path} is what the protocol says");
    }
    Ok(())
}

/// Names and numbers of the protocol, in groups.
fn groups() -> [(&'static str, Vec<(&'static str, u64)>); 5] {
    [
        ("kind", Kind::ALL.iter().map(|kind| (kind.name(), *kind as u64)).collect()),
        ("op", Op::ALL.iter().map(|op| (op.name(), *op as u64)).collect()),
        ("flag", flags::ALL.iter().map(|(name, flag)| (*name, u64::from(*flag))).collect()),
        ("reject", RejectReason::ALL.iter().map(|why| (why.name(), *why as u64)).collect()),
        ("outcome", Outcome::ALL.iter().map(|outcome| (outcome.name(), *outcome as u64)).collect()),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_files_are_what_the_protocol_says() {
        super::check().unwrap();
    }
}
