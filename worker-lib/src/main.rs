//! `switchml-worker`, the command line: see `--help`.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
