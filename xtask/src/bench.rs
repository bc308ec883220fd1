//! `cargo xtask bench`: all-reduces and broadcasts by this project, Gloo and Open MPI.
//!
//! For each number of workers the ranks of all methods exist at the same time, each method in racks
//! that suit it. Every repetition goes through all settings, and in each setting through all
//! methods, one after the other. So other activity on the machine affects all methods alike, and
//! ratios are computed pair by pair. All methods have the same MTU, links and processors, and no
//! process is pinned.

mod commanded;
mod goals;
mod ground;
mod hosts;
mod inference;
mod jobs;
mod kit;
mod measured;
mod model;
mod models;
mod peers;
mod plan;
mod plot;
mod report;
mod share;
mod site;
mod stripes;
mod switch;
mod team;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser as Number;
use rustix::process::getuid;

use crate::measure::{Output, Report};
use goals::Verdict;
use kit::Kit;
use measured::{Cell, Method, Results};
use peers::Programs;
use plan::Item;
use site::Site;
use switch::Clock;
use team::Work;

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "The first run installs torch (5.8 GB, below the target folder) and MPI (Debian \
                  packages). Exits non-zero when a goal is missed by more than the spread."
)]
pub struct Bench {
    /// What to measure instead of all-reduces and broadcasts of all sizes
    #[command(subcommand)]
    subject: Option<Subject>,

    /// Measure only the settings that have goals, which takes a few minutes
    #[arg(long)]
    quick: bool,

    /// Repetitions of everything
    #[arg(
        long, global = true, default_value_t = 5, value_parser = Number::<usize>::new().range(1..)
    )]
    runs: usize,

    /// Folder for tables and plots; without it, tables are on the terminal only
    #[arg(long, global = true, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Other measurements than that of all-reduces and broadcasts of all sizes.
#[derive(Clone, clap::Subcommand)]
enum Subject {
    /// Compare multicast with copies, and one port of the switch host with a port for each worker
    Networks,
    /// Compare racks that have one uplink and a combiner each with one rack
    Racks,
    /// Measure MPI programs with this project's library preloaded, and without
    Mpi,
    /// Measure up to 16 jobs that share a combiner's cells, which are enough for two
    Share,
    /// Measure three jobs that train VGG16 and share these cells
    Jobs,
    /// Measure hosts with several ranks, which add up before they send, or do not
    Hosts,
    /// Compare ranks that serve each other, and spare hosts that help them, with Gloo
    Stripes,
    /// Compare tokens per second of a language model that is split over ranks with Gloo
    Inference {
        /// Take vLLM's models (installs 2.3 GB) instead of the example's
        #[arg(long)]
        vllm: bool,
    },
    /// Compare replayed training steps of models with Gloo and Open MPI
    Models(models::Options),
}

impl Subject {
    /// The name of the file with its tables.
    fn file(&self) -> &'static str {
        match self {
            Self::Networks => "networks.md",
            Self::Racks => "racks.md",
            Self::Mpi => "mpi.md",
            Self::Share => "share.md",
            Self::Jobs => "jobs.md",
            Self::Hosts => "hosts.md",
            Self::Stripes => "stripes.md",
            Self::Inference { .. } => "inference.md",
            Self::Models(_) => "models.md",
        }
    }
}

impl Bench {
    /// Measures, writes the results, and judges them.
    pub fn run(&self) -> Result<()> {
        ensure!(getuid().is_root(), "racks of network namespaces need root; run this as root");
        let kit = &Kit::new(self.runs)?;
        let report = match &self.subject {
            None if self.quick => judge(&plan::quick(), kit),
            None => judge(&plan::full(), kit),
            Some(Subject::Networks) => judge(&plan::networks(), kit),
            Some(Subject::Racks) => judge(&plan::racks(), kit),
            Some(Subject::Mpi) => judge(&plan::mpi(), kit),
            Some(Subject::Share) => share::measure(kit),
            Some(Subject::Jobs) => jobs::measure(kit),
            Some(Subject::Hosts) => hosts::measure(kit),
            Some(Subject::Inference { vllm }) => inference::measure(kit, *vllm),
            Some(Subject::Models(options)) => models::measure(kit, options),
            Some(Subject::Stripes) => stripes::measure(kit),
        }?;
        let mut output = Output::new(self.output.as_deref());
        output.add(report)?;
        output.finish(self.subject.as_ref().map_or("bench.md", Subject::file))
    }
}

/// Measures these settings, and judges their goals.
fn judge(items: &[Item], kit: &Kit) -> Result<Report> {
    let results = measure(items, kit)?;
    let goals = goals::all(&results);
    let mut files = plot::all(&results)?;
    files.push(("bench.json".to_owned(), report::json(&results, &goals)?));
    let missed = goals.iter().filter(|goal| goal.verdict() == Verdict::Missed);
    let missed = missed.map(|goal| goal.what.clone()).collect();
    Ok(Report { text: report::markdown(&results, &goals, kit.runs), files, missed })
}

fn measure(items: &[Item], kit: &Kit) -> Result<Results> {
    let programs = Programs::ensure(kit)?;
    let mut results = Results(Vec::new());
    for workers in plan::WORKERS {
        let items: Vec<&Item> = items.iter().filter(|item| item.cell.workers == workers).collect();
        if items.is_empty() {
            continue;
        }
        eprintln!("bench: starting racks of {workers} workers");
        let is_asked = |method: &Method| items.iter().any(|item| item.methods.contains(method));
        let methods: Vec<Method> = Method::all().filter(is_asked).collect();
        let mut site = Site::new(workers, &methods, kit, &programs)?;
        for run in 0..kit.runs {
            repeat(&mut site, &items, run, &mut results)?;
            eprintln!("bench: {workers} workers, repetition {} of {}", run + 1, kit.runs);
        }
        measure_switch(&mut site, &items, &mut results)?;
        site.stop()?;
    }
    Ok(results)
}

/// Measures every setting once. Settings with the same rate of links come together, because shaping
/// takes a while.
fn repeat(
    site: &mut Site,
    items: &[&Item],
    repetition: usize,
    results: &mut Results,
) -> Result<()> {
    let mut rates: Vec<Option<u64>> = items.iter().map(|item| item.cell.rate).collect();
    rates.sort_unstable();
    rates.dedup();
    for rate in rates {
        let items: Vec<&&Item> = items.iter().filter(|item| item.cell.rate == rate).collect();
        let jobs: Vec<(Work, Vec<Method>)> =
            items.iter().map(|item| (work(item.cell), item.methods.clone())).collect();
        site.measure(rate, &jobs, repetition, |i, method, sample| {
            results.add(items[i].cell, method, sample)
        })?;
    }
    Ok(())
}

/// Measures the switch's program, on unshaped links, in a separate repetition.
fn measure_switch(site: &mut Site, items: &[&Item], results: &mut Results) -> Result<()> {
    let _clock = Clock::start()?;
    for item in items.iter().filter(|item| item.cell.rate.is_none()) {
        for &method in &item.methods {
            if let Some(seconds) = site.measure_switch(&work(item.cell), method)? {
                results.add_switch(item.cell, method, seconds);
            }
        }
    }
    Ok(())
}

fn work(cell: Cell) -> Work {
    Work { size: cell.size, iters: cell.iters(), task: cell.task }
}

/// The links of racks, as titles have them.
fn links(rate: Option<u64>) -> String {
    rate.map_or("links without a limit".to_owned(), |rate| {
        format!("links of {} Gb/s", rate as f64 / 1e9)
    })
}
