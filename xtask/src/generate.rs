//! `cargo xtask gen`: writes the protocol's numbers for code that cannot use the `protocol` crate.

mod p4;
mod python;

use anyhow::{Context, Result, ensure};
use std::fs;
use switchml_cli::say;

use crate::cargo;

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
            return check();
        }
        for (path, text) in files() {
            fs::write(cargo::workspace().join(path), text)
                .with_context(|| format!("cannot write {path}"))?;
            say!("wrote {path}");
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_files_are_what_the_protocol_says() {
        super::check().unwrap();
    }
}
