//! `switchml-worker`, the command line: its arguments, and the exit codes for scripts.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)]

mod bench;
mod doctor;
mod job;
mod manual;
mod plan;
mod rank;
mod step;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use switchml_cli::say;
use switchml_worker::{Error, control};

/// Exit codes that scripts may rely on, and their meanings.
const EXIT_CODES: [(&str, &str); 5] = [
    ("0", "Success."),
    ("1", "Results were wrong, or a check failed."),
    ("2", "Arguments are wrong."),
    ("3", "The aggregator or ranks cannot be reached, or the job refuses this rank."),
    ("4", "A collective failed."),
];

/// The end of `--help`: the manual's examples of a command, or of all commands if it is empty, and
/// the exit codes.
fn after_help(command: &str) -> String {
    let (_, examples) = manual::EXAMPLES;
    let start = format!("switchml-worker {command}");
    let examples = examples.iter().filter(|(example, _)| example.contains(&start));
    let examples: String =
        examples.map(|(example, meaning)| format!("  {example}\n      {meaning}\n")).collect();
    let codes = EXIT_CODES.map(|(code, meaning)| format!("  {code}  {meaning}\n")).concat();
    format!("Examples:\n{examples}\nExit codes:\n{codes}\nA failure is one line on standard error.")
}

/// All-reduce through an in-network aggregator: a benchmark, and a check of the path
#[derive(Parser)]
#[command(
    name = "switchml-worker",
    version = switchml_cli::version!(switchml_protocol::VERSION),
    after_help = after_help("")
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(Box<bench::Bench>),
    Doctor(doctor::Doctor),
    Plan(plan::Plan),
    Trace(trace::Trace),
    #[command(hide = true)]
    Rank(Box<rank::Rank>),
    /// Writes manual pages and completions of this command line; for packages
    #[command(hide = true)]
    Pages {
        /// Folder to write to
        folder: PathBuf,
    },
    /// Prints what docs/reference has on this command line; for `cargo xtask gen`
    #[command(hide = true)]
    Reference,
}

/// Why a command did not succeed, in one line; each kind is an exit code.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Elements of a result are wrong.
    #[error("{0}")]
    Wrong(String),
    /// The arguments make no sense.
    #[error("{0}")]
    Usage(String),
    /// The rank has not joined a job.
    #[error(transparent)]
    Join(Error),
    /// A collective failed.
    #[error(transparent)]
    Collective(Error),
    /// A check failed, and has said why.
    #[error("the check of the {name} failed")]
    Step {
        /// The failed check.
        name: &'static str,
        /// The exit code of the reason.
        code: u8,
    },
}

impl Failure {
    /// Sorts out the arguments that only the job's set-up could judge.
    fn joining(error: Error) -> Self {
        match error {
            Error::Setting { .. } | Error::Control(control::Error::Address { .. }) => {
                Self::Usage(error.to_string())
            }
            other => Self::Join(other),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Wrong(_) => 1,
            Self::Usage(_) => 2,
            Self::Join(_) => 3,
            Self::Collective(_) => 4,
            Self::Step { code, .. } => *code,
        }
    }
}

fn main() -> ExitCode {
    let parsed = switchml_cli::config::parse_with_file::<Cli>(std::env::args_os());
    let (cli, _) = parsed.unwrap_or_else(|error| switchml_cli::end(&error));
    let outcome = match cli.command {
        Command::Bench(bench) => bench.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Plan(plan) => plan.run(),
        Command::Trace(trace) => trace.run(),
        Command::Rank(rank) => rank.run(),
        Command::Pages { folder } => switchml_cli::pages::write::<Cli>(&folder, &manual::MANUAL)
            .map_err(|error| Failure::Usage(format!("{}: {error}", folder.display()))),
        Command::Reference => {
            say(switchml_cli::reference::command_line::<Cli>(&manual::MANUAL));
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_one_line() {
        switchml_cli::test::every_mistake_is_one_line::<Cli>();
    }

    #[test]
    fn complaints_are_one_line() {
        for (arguments, complaint) in [
            (
                &["bench", "--rank", "x"][..],
                "invalid value 'x' for '--rank <N>': 0 to 1023 are allowed (see --help)",
            ),
            (
                &["bench", "-b", "8T"],
                "invalid value '8T' for '--minbytes <SIZE>': \"8T\" is not a size; use 8, 64K, 16M \
                 or 1G (see --help)",
            ),
            (
                &["bench", "--op", "prod"],
                "invalid value 'prod' for '--op <OP>': unknown operator \"prod\": sum, avg, max \
                 and min are allowed (see --help)",
            ),
            (
                &["bench", "--precision", "32"],
                "invalid value '32' for '--precision <BITS>': unknown precision \"32\": exact, 16 \
                 and 8 (bits an element) are allowed (see --help)",
            ),
            (
                &["bench", "--sparsity", "90"],
                "invalid value '90' for '--sparsity <SHARE>': \"90\" is not a share; use a number \
                 from 0 to 1 (see --help)",
            ),
            (
                &["bench", "-n", "0"],
                "invalid value '0' for '--iters <N>': number would be zero for non-zero type (see \
                 --help)",
            ),
            (
                &["bench", "-i", "8", "-f", "2"],
                "the argument '--stepbytes <SIZE>' cannot be used with '--stepfactor <FACTOR>' \
                 (see --help)",
            ),
            (
                &["plan", "--ranks", "4", "--rate", "1Gb"],
                "invalid value '1Gb' for '--rate <RATE>': \"1Gb\" is not a rate in bits per \
                 second; use 400M, 1G or 2.5G (see --help)",
            ),
            (
                &["plan", "--ranks", "1", "--rate", "1G"],
                "invalid value '1' for '--ranks <N>': 1 is not in 2..=1024 (see --help)",
            ),
            (
                &["bench", "--model", "resnet50", "-b", "8"],
                "the argument '--model <NAME>' cannot be used with '--minbytes <SIZE>' (see \
                 --help)",
            ),
            (
                &["plan", "--ranks", "4", "--rate", "1G", "--trace", "x", "--compute", "0"],
                "invalid value '0' for '--compute <MS>': \"0\" is not a time in milliseconds up to \
                 an hour; use 12.5 (see --help)",
            ),
            (
                &[],
                "'switchml-worker' requires a subcommand but one was not provided [subcommands: \
                 bench, doctor, plan, trace, help] (see --help)",
            ),
            (&["frobnicate"], "unrecognized subcommand 'frobnicate' (see --help)"),
        ] {
            let error =
                switchml_cli::parse_from::<Cli>(["switchml-worker"].iter().chain(arguments))
                    .err()
                    .unwrap();
            assert_eq!(switchml_cli::one_line(&error), complaint);
        }
    }
}
