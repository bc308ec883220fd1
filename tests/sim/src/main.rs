//! `switchml-sim`: runs seeds, or one seed with a trace. `cargo xtask sim` starts it.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, io};

use clap::Parser;
use switchml_cli::say;
use switchml_protocol::MAX_RANKS;
use switchml_sim::campaign::{self, Limits};
use switchml_sim::net::Violation;
use switchml_sim::play;
use switchml_sim::plot;
use switchml_sim::scaling::{self, SHARERS, Shares, Sharing};
use switchml_sim::scenario::{MS, Scenario, Time};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// Simulates whole systems under faults, each drawn from a seed
#[derive(Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim", version)]
struct Options {
    /// Run this seed alone
    #[arg(long, value_parser = seed, conflicts_with_all = ["seeds", "minutes", "first"])]
    seed: Option<u64>,

    /// Put combiners between workers and the root
    #[arg(long)]
    trees: bool,

    /// Tables and a plot of times by depth and ranks, and of jobs that share a combiner
    #[arg(long, conflicts_with_all = ["seed", "seeds", "minutes", "first", "trees"])]
    scaling: bool,

    /// Say what happens; RUST_LOG=trace also lists every packet
    #[arg(long, requires = "seed")]
    trace: bool,

    /// Run so many seeds; as many as there is time for, if only --minutes is given
    #[arg(long)]
    seeds: Option<u64>,

    /// Begin no more seeds after so many minutes
    #[arg(long, value_parser = minutes)]
    minutes: Option<Duration>,

    /// The first seed; random if not given
    #[arg(long, value_parser = seed)]
    first: Option<u64>,
}

/// The number of seeds, if neither a number nor a time is given.
const SEEDS: u64 = 2_000;

fn main() -> ExitCode {
    let options: Options = switchml_cli::parse();
    let succeeded = match options.seed {
        None if options.scaling => scale(),
        Some(seed) => run_one(seed, &options),
        None => run_many(&options),
    };
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_one(seed: u64, options: &Options) -> bool {
    let said = env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    let level = if options.trace { LevelFilter::DEBUG } else { LevelFilter::OFF };
    let filter = said.unwrap_or_else(|| Targets::new().with_default(level));
    // Virtual time is in the text.
    let log = fmt::layer().without_time().with_target(false).with_writer(io::stderr);
    registry().with(log.with_filter(filter)).init();
    let draw = if options.trees { Scenario::draw_tree } else { Scenario::draw };
    say!("{:#?}", draw(seed));
    let run = play(draw(seed));
    say!("{}", run.tally);
    match run.verdict {
        Ok(()) => say!("seed {seed:#x}: all promises were kept"),
        Err(violation) => {
            say!("seed {seed:#x}: {violation}");
            return false;
        }
    }
    true
}

/// Bytes of the tensors whose all-reduce is timed.
const TENSOR: usize = 1 << 20;
/// The path of the plot in the repository.
const PLOT: &str = "docs/plots/time-against-depth-and-ranks.svg";

fn scale() -> bool {
    let done = print_times().and_then(|()| print_shares());
    if let Err(violation) = &done {
        say!("{violation}");
    }
    done.is_ok()
}

/// A table of all-reduces, and its plot.
fn print_times() -> Result<(), Violation> {
    let mut lines: Vec<_> = scaling::columns().map(|name| (name, Vec::new())).collect();
    let names: Vec<_> = scaling::columns().collect();
    say!("| ranks | {} |\n| ---: |{}", names.join(" | "), " ---: |".repeat(names.len()));
    for ranks in (3..).map(|power| 1 << power).take_while(|ranks| *ranks <= MAX_RANKS as u16) {
        let times = scaling::times(ranks, TENSOR)?;
        let cells: String = times.iter().map(|time| format!(" {time:.2} |")).collect();
        say!("| {ranks} |{cells}");
        for ((_, points), time) in lines.iter_mut().zip(times) {
            points.push((ranks.into(), time));
        }
    }
    let drawn = plot::draw(&lines).and_then(|svg| Ok(std::fs::write(PLOT, svg)?));
    drawn.map_err(|error| Violation(format!("{PLOT}: {error}")))
}

/// Calls of each job that shares a combiner, and how long it pauses after each where it pauses.
const CALLS: usize = 16;
const REST: Time = MS;

/// A table of jobs that share a combiner.
fn print_shares() -> Result<(), Violation> {
    let names: Vec<_> = Sharing::ALL.iter().map(|sharing| sharing.name()).collect();
    say!(
        "\n| jobs | traffic | {} |\n| ---: | --- |{}",
        names.join(" | "),
        " --- |".repeat(names.len())
    );
    for (traffic, rest) in [("steady", 0), ("on/off", REST)] {
        for jobs in SHARERS {
            let shares = scaling::shares(jobs, CALLS, rest)?;
            let cell = |shares: &Shares| format!(" {:.2} Gb/s, {:.3} |", shares.total, shares.jain);
            say!("| {jobs} | {traffic} |{}", shares.iter().map(cell).collect::<String>());
        }
    }
    Ok(())
}

fn run_many(options: &Options) -> bool {
    // A panic of the code under test is told with its seed; its own message would only repeat that.
    std::panic::set_hook(Box::new(|_| {}));
    let limits = Limits {
        first: options.first.unwrap_or_else(rand::random),
        seeds: options.seeds.unwrap_or(if options.minutes.is_some() { u64::MAX } else { SEEDS }),
        trees: options.trees,
        time: options.minutes.unwrap_or(Duration::MAX),
    };
    let begin = Instant::now();
    let report = campaign::run(&limits);
    let (took, tally) = (begin.elapsed().as_secs_f64(), &report.tally);
    say!("{tally}");
    say!(
        "{} seeds from {:#x} in {took:.1} s, {} of them until all was well again; {:.0} virtual \
         seconds, {} packets: {:.0} virtual seconds and {:.0} packets a second",
        tally.runs,
        limits.first,
        tally.healed,
        tally.time as f64 / 1e9,
        tally.packets,
        tally.time as f64 / 1e9 / took,
        tally.packets as f64 / took
    );
    for (seed, violation) in &report.failures {
        let trees = if options.trees { " --trees" } else { "" };
        say!("seed {seed:#x}: {violation}\n    cargo xtask sim{trees} --seed {seed:#x} --trace");
    }
    report.failures.is_empty()
}

/// A seed, in decimal or hexadecimal.
fn seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| {
        "a seed is a number of 64 bits, in decimal or after 0x in hexadecimal".to_owned()
    })
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse::<f64>().ok().filter(|minutes| minutes.is_finite() && *minutes > 0.0);
    minutes
        .map(|minutes| Duration::from_secs_f64(60.0 * minutes))
        .ok_or_else(|| "more than 0 minutes are allowed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_one_line() {
        switchml_cli::test::every_mistake_is_one_line::<Options>();
    }
}
