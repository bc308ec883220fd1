//! `cargo xtask p4`: what the P4 programs take from the rest.

mod constants;

use anyhow::{Context, Result};
use std::fs;

use crate::cargo;

/// What to do with `p4/`.
#[derive(clap::Subcommand)]
pub enum P4 {
    /// Write the header and the numbers that the P4 programs share with the `protocol` crate
    Gen,
    /// Check that those are up to date
    Check,
}

impl P4 {
    /// Does it.
    ///
    /// # Errors
    ///
    /// If a file cannot be written, or is out of date.
    pub fn run(&self) -> Result<()> {
        match self {
            Self::Gen => generate(),
            Self::Check => check(),
        }
    }
}

fn generate() -> Result<()> {
    let path = cargo::workspace().join(constants::PATH);
    fs::write(&path, constants::text()).with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {}", constants::PATH);
    Ok(())
}

fn check() -> Result<()> {
    constants::check()?;
    println!("{} is what the protocol says", constants::PATH);
    Ok(())
}
