//! `cargo xtask faults`: the cost of faults on links, as a table, as JSON, and as plots.
//!
//! All runs use one rack. Every repetition goes through all conditions, first the one without
//! faults, so that other activity on the machine affects all conditions alike.

mod measure;
mod plot;
mod report;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser as Number;
use rustix::process::getuid;
use switchml_cli::say;
use switchml_rack::{Binaries, Faults as Link, MAX_WORKERS, RackOptions};

use crate::{cargo, cargo::Selection};

/// Options of `cargo xtask faults`.
#[derive(clap::Args)]
pub struct Faults {
    /// Workers in the rack, 1 to 16
    #[arg(
        long,
        default_value_t = 4,
        value_parser = Number::<usize>::new().range(1..=MAX_WORKERS as u64)
    )]
    workers: usize,

    /// Size of the tensor, f32
    #[arg(long, default_value = "16M", value_name = "SIZE")]
    size: String,

    /// Repetitions of each condition
    #[arg(long, default_value_t = 5, value_parser = Number::<usize>::new().range(1..))]
    runs: usize,

    /// All-reduces that are timed in each repetition
    #[arg(long, default_value_t = 3, value_parser = Number::<usize>::new().range(1..))]
    iters: usize,

    /// Seed of the faults; each repetition has its own
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Only conditions whose name contains this, beside the one without faults
    #[arg(long, default_value = "", value_name = "NAME")]
    only: String,

    /// Folder for faults.md, faults.json and the plots; nothing but the table on the terminal
    /// without
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// Use the binaries in this folder, for example those of another version, instead of building
    /// them
    #[arg(long, value_name = "FOLDER")]
    binaries: Option<PathBuf>,
}

/// The faults of the links, each way.
pub struct Condition {
    pub name: &'static str,
    pub faults: Link,
}

/// The conditions; the first has no faults.
fn conditions() -> Vec<Condition> {
    let none = Link::default();
    let condition = |name, faults| Condition { name, faults };
    vec![
        condition("none", none),
        condition("loss 0.1 %", Link { loss: 0.001, ..none }),
        condition("loss 1 %", Link { loss: 0.01, ..none }),
        condition("loss 5 %", Link { loss: 0.05, ..none }),
        condition("loss 20 %", Link { loss: 0.2, ..none }),
        condition("duplication 5 %", Link { duplication: 0.05, ..none }),
        condition("reordering 10 %, by up to 16", Link { reordering: 0.1, distance: 16, ..none }),
        condition("corrupted headers 1 %", Link { corruption: 0.01, ..none }),
        condition("flipped payload bits 1 %", Link { flips: 0.01, ..none }),
    ]
}

impl Faults {
    /// Measures, and writes the results.
    pub fn run(&self) -> Result<()> {
        ensure!(getuid().is_root(), "a rack of network namespaces needs root; run this as root");
        let options = RackOptions { workers: self.workers, wires: true, ..RackOptions::default() };
        options.check()?;
        let folder = cargo::binaries_folder(self.binaries.as_deref(), Selection::JobOnBadLinks)?;
        let binaries = Binaries::in_folder(&folder)?;
        let mut conditions = conditions();
        conditions.retain(|condition| {
            condition.faults == Link::default() || condition.name.contains(&self.only)
        });
        let bench = measure::Bench { size: &self.size, iters: self.iters };
        let measured = measure::all(&binaries, options, &conditions, &bench, self.runs, self.seed)?;
        let table = report::table(self.workers, &self.size, self.runs, self.iters, &measured);
        say!("{table}");
        let Some(folder) = &self.output else { return Ok(()) };
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write("faults.md", table)?;
        write("faults.json", report::json(&measured))?;
        write("time-against-loss.svg", plot::time_against_loss(&measured)?)?;
        write("chunks-against-time.svg", plot::chunks_against_time(&measured)?)
    }
}
