//! The project's own commands: `cargo xtask setup | run | bench | train | sim | soak | test |
//! fuzz | matrix | faults | gen | p4 | package | tidy | book | screenshots`.
//!
//! This crate must build on a machine that has only Rust and a C linker, because it installs the
//! rest. So none of its dependencies may need the BPF program.

#![deny(clippy::print_stdout)]

mod bench;
mod book;
mod cargo;
mod command;
mod faults;
mod fuzz;
mod generate;
mod matrix;
mod measure;
mod p4;
mod package;
mod plot;
mod programs;
mod python;
mod random;
mod run;
mod screenshots;
mod setup;
mod sim;
mod soak;
mod stats;
mod test;
mod tidy;
mod train;

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    version,
    about = "Sets up, runs and tests the aggregator"
)]
enum Command {
    /// Install what the BPF program's build and the rack need; does nothing when all is there
    Setup,
    /// Build everything and run the all-reduce benchmark in a rack of network namespaces
    Run(Box<run::Run>),
    /// Measure all-reduces side by side with Gloo and Open MPI, and judge the goals
    Bench(bench::Bench),
    /// Train with Gloo and through the aggregator, side by side, and compare losses, bits and times
    Train(train::Train),
    /// Simulate whole systems under faults, each drawn from a seed
    Sim(sim::Sim),
    /// Run jobs, kill and cut ranks and aggregators meanwhile, and check sums and reasons
    Soak(soak::Soak),
    /// Run every test, and say which ones could not run and why
    Test(test::Test),
    /// Run the daemon and a job on other kernels and NICs, in QEMU: natively and by bundles
    Matrix(matrix::Matrix),
    /// Run the fuzz targets, as long as asked
    Fuzz(fuzz::Fuzz),
    /// Write the protocol's numbers for P4 and Python, and docs/reference, or check them
    #[command(name = "gen")]
    Generate(generate::Generate),
    /// Check what no compiler does: widths, lengths, import circles, links, cited rules
    Tidy,
    /// Build docs/ as a book, in target/book
    Book,
    /// Take the docs' pictures of the status page and of `doctor` anew
    Screenshots,
    /// Check and build the P4 programs
    #[command(subcommand)]
    P4(p4::P4),
    /// Build packages, and with --check try them out
    Package(package::Package),
    /// Measure what loss, duplication, reordering and corruption on the links cost
    Faults(faults::Faults),
}

fn main() -> ExitCode {
    let result = match switchml_cli::parse() {
        Command::Setup => setup::run(),
        Command::Run(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Train(command) => command.run(),
        Command::Sim(command) => command.run(),
        Command::Soak(command) => command.run(),
        Command::Test(command) => command.run(),
        Command::Fuzz(command) => command.run(),
        Command::Matrix(command) => command.run(),
        Command::Generate(command) => command.run(),
        Command::Tidy => tidy::run(),
        Command::Book => book::run(),
        Command::Screenshots => screenshots::run(),
        Command::P4(command) => command.run(),
        Command::Package(command) => command.run(),
        Command::Faults(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line; a backtrace would not help.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_one_line() {
        switchml_cli::test::every_mistake_is_one_line::<Command>();
    }
}
