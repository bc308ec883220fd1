//! `cargo xtask bench`: all-reduces and broadcasts by this project, Gloo and Open MPI.
//!
//! For each number of workers the ranks of all methods exist at the same time, each method in racks
//! that suit it. Every repetition goes through all settings, and in each setting through all
//! methods, one after the other. So other activity on the machine affects all methods alike, and
//! ratios are computed pair by pair. All methods have the same MTU, links and processors, and no
//! process is pinned.

mod goals;
mod ground;
mod hosts;
mod inference;
mod jobs;
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

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser as Number;
use rustix::process::getuid;
use switchml_cli::say;
use switchml_rack::Binaries;

use crate::{cargo, cargo::Selection, python};
use goals::Verdict;
use measured::{Cell, Method, Results};
use peers::Programs;
use plan::Item;
use site::Site;
use switch::Clock;
use team::Work;

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
#[command(
    after_help = "The first run installs torch (5.8 GB, below the target folder) and MPI (Debian \
                  packages). Exits non-zero when a goal is missed by more than the spread."
)]
pub struct Bench {
    /// Measure only the settings that have goals, which takes a few minutes
    #[arg(long, group = "kind")]
    quick: bool,

    /// Compare multicast with copies, and one port of the switch host with a port for each worker
    #[arg(long, group = "kind")]
    networks: bool,

    /// Compare racks that have one uplink and a combiner each with one rack
    #[arg(long, group = "kind")]
    racks: bool,

    /// Measure MPI programs with this project's library preloaded, and without
    #[arg(long, group = "kind")]
    mpi: bool,

    /// Measure up to 16 jobs that share a combiner's cells, which are enough for two
    #[arg(long, group = "kind", conflicts_with = "output")]
    share: bool,

    /// Measure three jobs that train VGG16 and share these cells
    #[arg(long, group = "kind", conflicts_with = "output")]
    jobs: bool,

    /// Measure hosts with several ranks, which add up before they send, or do not
    #[arg(long, group = "kind", conflicts_with = "output")]
    hosts: bool,

    /// Compare ranks that serve each other, and spare hosts that help them, with Gloo
    #[arg(long, group = "kind")]
    stripes: bool,

    /// Compare tokens per second of a language model that is split over ranks with Gloo
    #[arg(long, group = "kind")]
    inference: bool,

    /// Compare replayed training steps of models with Gloo and Open MPI
    #[arg(long, group = "kind")]
    models: bool,

    #[command(flatten)]
    of_models: models::Options,

    /// Repetitions of everything
    #[arg(long, default_value_t = 5, value_parser = Number::<usize>::new().range(1..))]
    runs: usize,

    /// Folder for bench.md, bench.json and the plots (with --stripes, --inference and --models
    /// plots alone); nothing but the tables on the terminal without
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

impl Bench {
    /// Measures, writes the results, and judges them.
    pub fn run(&self) -> Result<()> {
        ensure!(getuid().is_root(), "racks of network namespaces need root; run this as root");
        let binaries = Binaries::in_folder(&cargo::binaries_folder(None, Selection::Job)?)?;
        if self.share || self.jobs {
            let scratch = Scratch::new()?;
            let measure = if self.share { share::measure } else { jobs::measure };
            let table = measure(&binaries, &scratch.folder, self.runs)?;
            say!("{}.\n\n{table}", processor());
            return Ok(());
        }
        if self.hosts {
            say!("{}.\n\n{}", processor(), hosts::measure(&binaries, self.runs)?);
            return Ok(());
        }
        if self.inference {
            let results = inference::measure(&binaries, &python::with_package()?, self.runs)?;
            say!("{}.\n\n{}", processor(), results.markdown());
            if let Some(folder) = &self.output {
                save(folder, "language-models.svg", results.plot()?)?;
            }
            return Ok(());
        }
        let programs = Programs::ensure(&binaries)?;
        if self.models {
            let scratch = Scratch::new()?;
            let results =
                models::measure(&binaries, &programs, &scratch.folder, &self.of_models, self.runs)?;
            say!("{}.\n\n{}", processor(), results.markdown());
            if let Some(folder) = &self.output {
                for (name, svg) in results.plots()? {
                    save(folder, &name, svg)?;
                }
            }
            return Ok(());
        }
        if self.stripes {
            let scratch = Scratch::new()?;
            let results = stripes::measure(&binaries, &programs, &scratch.folder, self.runs)?;
            say!("{}.\n\n{}", processor(), results.markdown());
            if let Some(folder) = &self.output {
                save(folder, "several-aggregators.svg", results.plot()?)?;
            }
            return Ok(());
        }
        let items = match (self.quick, self.networks, self.racks, self.mpi) {
            (true, ..) => plan::quick(),
            (_, true, ..) => plan::networks(),
            (_, _, true, _) => plan::racks(),
            (.., true) => plan::mpi(),
            _ => plan::full(),
        };
        let results = self.measure(&items, &binaries, &programs)?;
        let goals = goals::all(&results);
        let text = report::markdown(&results, &goals, self.runs, &processor());
        say!("{text}");
        if let Some(folder) = &self.output {
            write(folder, &results, &goals, text)?;
        }
        let missed = goals.iter().filter(|goal| goal.verdict() == Verdict::Missed).count();
        ensure!(
            missed == 0,
            "{missed} of {} goals are missed by more than the spread",
            goals.len()
        );
        Ok(())
    }

    fn measure(&self, items: &[Item], binaries: &Binaries, programs: &Programs) -> Result<Results> {
        let scratch = Scratch::new()?;
        let mut results = Results(Vec::new());
        for workers in plan::WORKERS {
            let items: Vec<&Item> =
                items.iter().filter(|item| item.cell.workers == workers).collect();
            if items.is_empty() {
                continue;
            }
            eprintln!("bench: starting racks of {workers} workers");
            let methods: Vec<Method> = Method::all()
                .filter(|method| items.iter().any(|item| item.methods.contains(method)))
                .collect();
            let mut site = Site::new(workers, &methods, binaries, programs, &scratch.folder)?;
            for repetition in 0..self.runs {
                repeat(&mut site, &items, repetition, &mut results)?;
                eprintln!(
                    "bench: {workers} workers, repetition {} of {}",
                    repetition + 1,
                    self.runs
                );
            }
            measure_switch(&mut site, &items, &mut results)?;
            site.stop()?;
        }
        Ok(results)
    }
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

/// The processors of this machine: how many, and their name.
pub fn processor() -> String {
    let count = available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{count} x {}", name.map_or("a processor without a name", |(_, name)| name))
}

fn write(folder: &Path, results: &Results, goals: &[goals::Goal], text: String) -> Result<()> {
    save(folder, "bench.md", text)?;
    save(folder, "bench.json", report::json(results, goals, &processor()))?;
    plot::all(results)?.into_iter().try_for_each(|(name, svg)| save(folder, &name, svg))
}

fn save(folder: &Path, name: &str, text: String) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A folder for this run's files, removed with the value.
struct Scratch {
    folder: PathBuf,
    /// Held while the run lasts.
    _lock: File,
}

impl Scratch {
    /// Makes the folder, after removing the files of a killed run.
    fn new() -> Result<Self> {
        let peers = cargo::target_folder()?.join("peers");
        fs::create_dir_all(&peers).with_context(|| format!("cannot create {}", peers.display()))?;
        let lock = File::create(peers.join("lock")).context("cannot create a lock file")?;
        lock.try_lock()
            .context("another `cargo xtask bench` is running; two would disturb each other")?;
        let folder = peers.join("run");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder, _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
