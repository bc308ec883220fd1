//! `switchml-impairment`: joins pairs of interfaces into bad links, until it is stopped.
//!
//! A frame that comes in at one end of a pair leaves at the other, or is impaired by the faults
//! given for this direction. The program in the kernel is removed with this process, however it
//! ends. On SIGTERM or SIGINT the process prints its counts as JSON: a list of objects, one per
//! `--path`, in their order.

mod path;

use std::process::ExitCode;

use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use clap::Parser;
use impairment_bpf::{Counter, Direction, ROOM};
use path::Path;
use serde_json::{Map, Value};
use switchml_cli::say;
use tokio::signal::unix::{SignalKind, signal};
use zerocopy::transmute;

/// Joins interfaces to bad links: each --path is one direction
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Seed of the random numbers: the same faults for the same frames
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One direction: FROM:TO, then what happens to frames that come in at FROM, such as
    /// `a:b:loss=0.01,duplication=0.05`. Faults: loss, duplication, reordering, corruption, flips,
    /// each a probability; distance, in frames
    #[arg(long = "path", required = true, value_name = "FROM:TO[:FAULT=VALUE,...]")]
    paths: Vec<Path>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&switchml_cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<()> {
    // Set up before anything is attached: from here on a signal ends this process cleanly.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut object = EbpfLoader::new()
        .load(include_bytes_aligned!(concat!(env!("OUT_DIR"), "/impairment-bpf")))
        .context("cannot load the program")?;
    configure(&mut object, arguments)?;
    attach(&mut object, &arguments.paths)?;
    say!("ready");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    say!("{}", report(&mut object, &arguments.paths)?);
    Ok(())
}

/// Writes each direction's entry. Every direction has its own random numbers.
fn configure(object: &mut Ebpf, arguments: &Arguments) -> Result<()> {
    let mut directions = directions(object)?;
    for (index, path) in (0..).zip(&arguments.paths) {
        let direction = Direction {
            seed: impairment_bpf::random(arguments.seed, index.into(), 0),
            to: path.egress()?,
            first_held: index * ROOM,
            faults: path.faults,
            ..Direction::default()
        };
        let words: Words = transmute!(direction);
        directions.insert(path.ingress()?, words, 0).context("cannot write a direction")?;
    }
    Ok(())
}

/// Attaches the program to each path's start. The links end with this process.
fn attach(object: &mut Ebpf, paths: &[Path]) -> Result<()> {
    let program: &mut SchedClassifier =
        object.program_mut("impair").context("no program impair")?.try_into()?;
    program.load().context("the verifier refused the program")?;
    for path in paths {
        program
            .attach_with_options(
                &path.from,
                TcAttachType::Ingress,
                TcAttachOptions::TcxOrder(LinkOrder::default()),
            )
            .with_context(|| {
                format!("cannot attach to {}; this takes Linux 6.6 and root", path.from)
            })?;
    }
    Ok(())
}

/// The counts of each direction.
fn report(object: &mut Ebpf, paths: &[Path]) -> Result<Value> {
    let directions = directions(object)?;
    let counts = |path: &Path| -> Result<Value> {
        let direction: Direction = transmute!(directions.get(&path.ingress()?, 0)?);
        let counts = Counter::ALL
            .map(|(counter, name)| (name.to_owned(), direction.counters[counter as usize].into()));
        Ok(Value::Object(Map::from_iter(counts)))
    };
    paths.iter().map(counts).collect()
}

/// A [`Direction`] as aya takes it.
type Words = [u64; size_of::<Direction>() / 8];

fn directions(object: &mut Ebpf) -> Result<HashMap<&mut MapData, u32, Words>> {
    Ok(HashMap::try_from(object.map_mut("DIRECTIONS").context("no map DIRECTIONS")?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_one_line() {
        switchml_cli::test::every_mistake_is_one_line::<Arguments>();
    }
}
