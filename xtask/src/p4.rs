//! `cargo xtask p4`: the data planes that are P4 programs.

mod doctor;
mod programs;
mod report;

use anyhow::{Result, ensure};
use std::{net::SocketAddr, path::PathBuf, process::Command, time::Instant};
use switchml_cli::say;
use switchml_rack::SimpleSwitch;

use crate::command::succeed;
use crate::{cargo, cargo::Selection, generate, test::Test};
use programs::{Compiled, Program};

/// What to do with `p4/`.
#[derive(clap::Subcommand)]
pub enum P4 {
    /// Say which tools for P4 are there, what is known of them and what they enable, and what to do
    /// next
    Doctor,
    /// Check that the programs compile, where their compilers are on the PATH
    Check,
    /// Compile the programs that their compilers are there for into `<target folder>/p4`, and say
    /// what those for Tofino take of the chip
    Build,
    /// Play the vectors of tests/vectors on bmv2, and bursts: needs p4c-bm2-ss and simple_switch on
    /// the PATH, and root
    Test,
    /// Give a Tofino switch the program that was built, by BFRT
    Deploy {
        /// The switch's BFRT server
        #[arg(value_name = "ADDRESS:PORT")]
        server: SocketAddr,
        /// The combiner's program, for a daemon with --parent
        #[arg(long)]
        combiner: bool,
    },
}

impl P4 {
    /// Does it.
    pub fn run(&self) -> Result<()> {
        match self {
            Self::Doctor => doctor::run(&folder()?),
            Self::Check => check(),
            Self::Build => build(),
            Self::Test => test(),
            Self::Deploy { server, combiner: true } => deploy(*server, programs::TOFINO_COMBINER),
            Self::Deploy { server, combiner: false } => deploy(*server, programs::TOFINO),
        }
    }
}

fn check() -> Result<()> {
    generate::check()?;
    let skipped = compile_all()?;
    for (program, tools) in skipped {
        say!("skipped {}: {} not on the PATH", program.source, tools.join(", "));
    }
    Ok(())
}

fn build() -> Result<()> {
    generate::check()?;
    let skipped = compile_all()?;
    let lacks: Vec<String> = skipped
        .iter()
        .map(|(program, tools)| format!("{} needs {}", program.source, tools.join(" and ")))
        .collect();
    let is_any = skipped.len() < programs::ALL.len();
    ensure!(is_any, "{} on the PATH, of https://github.com/p4lang/p4c", lacks.join(", "));
    for lack in &lacks {
        say!("skipped: {lack} on the PATH");
    }
    let is_skipped = |program: &Program| skipped.iter().any(|(skipped, _)| skipped == program);
    let of_tofino = programs::ALL.into_iter().filter(|program| program.is_of_tofino());
    for program in of_tofino.filter(|program| !is_skipped(program)) {
        let logs = program.folder(&folder()?).join("pipe/logs");
        say!("\n{}\n\n{}", program.source, report::text(&logs)?.trim_end());
    }
    Ok(())
}

/// The tests that play the vectors on bmv2, which say which of them they left out, and why, and
/// bursts.
fn test() -> Result<()> {
    generate::check()?;
    if let Some(obstacle) = SimpleSwitch::obstacle() {
        return Err(switchml_rack::Error::NoSimpleSwitch(obstacle).into());
    }
    let tests = ["--exact", "bmv2", "bmv2_of_256_lanes", "bmv2_in_bursts", "bmv2_as_a_combiner"];
    Test::chosen(
        &[&["-p", "switchml-rack", "--test", "vectors", "--", "--nocapture"], &tests[..]].concat(),
    )
    .run()
}

/// The daemon's binary deploys the program: xtask itself must build on a machine without special
/// tools.
fn deploy(server: SocketAddr, program: Program) -> Result<()> {
    let program = program.folder(&folder()?);
    let mut aggregator =
        Command::new(cargo::binaries_folder(None, Selection::All)?.join("switchml-aggregator"));
    aggregator
        .arg("deploy")
        .arg("--tofino-server")
        .arg(server.to_string())
        .arg("--tofino-program")
        .arg(program);
    succeed(&mut aggregator)
}

/// Compiles the programs whose tools are there, reports them, and returns the others with their
/// missing tools.
fn compile_all() -> Result<Vec<(Program, Vec<&'static str>)>> {
    let folder = folder()?;
    let mut skipped = Vec::new();
    for program in programs::ALL {
        let start = Instant::now();
        match program.compile(&folder)? {
            Compiled::Files(files) => {
                let files: Vec<String> =
                    files.iter().map(|file| file.display().to_string()).collect();
                let seconds = start.elapsed().as_secs();
                say!("compiled {} in {seconds} s to {}", program.source, files.join(", "));
            }
            Compiled::Missing(tools) => skipped.push((program, tools)),
        }
    }
    Ok(skipped)
}

/// The folder of the compiled programs.
fn folder() -> Result<PathBuf> {
    Ok(cargo::target_folder()?.join("p4"))
}
