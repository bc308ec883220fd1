//! `cargo xtask sim`: simulated systems under faults, seed by seed. The simulator is a separate
//! program, because it needs the BPF program's build, which this crate must not need.

use std::ffi::OsString;

use anyhow::Result;

use crate::command::succeed;
use crate::{cargo, setup};

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Sim {
    /// The simulator's own, `--help` lists them: --seeds N, --minutes M, --seed 0x… --trace
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

impl Sim {
    /// Sets up, builds the simulator and runs it.
    pub fn run(&self) -> Result<()> {
        setup::run()?;
        let mut simulator = cargo::command("run")?;
        simulator.args(["--quiet", "--release", "-p", "switchml-sim", "--"]).args(&self.options);
        succeed(&mut simulator)
    }
}
