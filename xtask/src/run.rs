//! `cargo xtask run`: the main job, from one command.

use crate::setup;

/// Options of `cargo xtask run`.
#[derive(clap::Args)]
pub struct Run {}

impl Run {
    /// Sets the machine up and builds the binaries.
    pub fn run(&self) -> anyhow::Result<()> {
        setup::run()?;
        crate::cargo::build_binaries()?;
        Ok(())
    }
}
