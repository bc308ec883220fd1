//! `cargo xtask train`: the examples of the Python package trained with Gloo and through the
//! aggregator, from the same seed, side by side.
//!
//! Every job is torchrun in four namespaces with an unchanged example script. Gloo has its own
//! rack, with no program at the switch's ports.

mod accuracy;
mod bits;
mod curves;
mod kills;
mod plot;
mod sharded;
mod speed;
mod stalls;
mod ways;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser as Number;
use rustix::process::getuid;
use switchml_cli::say;
use switchml_rack::{Aggregator, Binaries, Rack, RackOptions, Torchrun, Training};

use crate::bench::processor;
use crate::{cargo, cargo::Selection, python};

/// Far longer than a job takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// The rate of shaped links in bits per second.
const RATE: u64 = 1_000_000_000;

/// Options of `cargo xtask train`.
#[derive(clap::Args)]
#[command(
    after_help = "The first run installs torch and scikit-learn (5.8 GB, below the target folder). \
                  Exits non-zero when the two do not train alike, or a goal is missed by more than \
                  the spread."
)]
pub struct Train {
    /// Only this one
    #[arg(long, value_enum)]
    only: Option<Example>,

    /// Instead: what a rank that stalls now and then costs the others, by time and accuracy, with
    /// and without a deadline
    #[arg(long, conflicts_with = "accuracy")]
    stalls: bool,

    /// Instead: the time until a convolutional network and a transformer are right, on links of
    /// 1 Gb/s
    #[arg(long)]
    accuracy: bool,

    /// Instead: so many ranks are killed, the others train on; beside restarts by torchrun
    #[arg(
        long,
        value_name = "N",
        value_parser = Number::<usize>::new().range(1..=1000),
        conflicts_with_all = ["only", "accuracy", "stalls", "runs", "output"]
    )]
    kills: Option<usize>,

    /// How often the wide and the sharded network, or what has stalls, are trained in each way, in
    /// turn; or the number of seeds for the time until they are right
    #[arg(long, default_value_t = 3, value_parser = Number::<usize>::new().range(1..))]
    runs: usize,

    /// Folder for train.md and the plots of both curves; `train` in cargo's target folder without
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// What is trained: a script in `worker-lib/python/examples`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Example {
    /// A small convolutional network on scikit-learn's digits
    Digits,
    /// A small transformer on text
    Text,
    /// A network of 11 million parameters on text
    Ngram,
    /// A network of 25 million parameters, on links of 1 Gb/s: time of a step
    Wide,
    /// Parameters that are cut among the ranks, on links of 1 Gb/s: time of calls and of steps
    Sharded,
}

impl Example {
    const ALL: [Self; 5] = [Self::Digits, Self::Text, Self::Ngram, Self::Wide, Self::Sharded];

    fn name(self) -> &'static str {
        match self {
            Self::Digits => "digits",
            Self::Text => "text",
            Self::Ngram => "ngram",
            Self::Wide => "wide",
            Self::Sharded => "sharded",
        }
    }

    fn script(self) -> PathBuf {
        cargo::workspace().join("worker-lib/python/examples").join(self.name()).with_extension("py")
    }
}

/// The result of an example.
struct Outcome {
    /// The name of the plot's file.
    name: String,
    /// The report, as Markdown.
    text: String,
    /// The plot, as SVG.
    plot: String,
    /// The goals that are missed.
    missed: Vec<String>,
}

impl Train {
    /// Trains, writes the results, and judges them.
    pub fn run(&self) -> Result<()> {
        ensure!(
            !self.stalls || self.only != Some(Example::Sharded),
            "sharded.py is not among what --stalls trains: digits, text, ngram, wide"
        );
        ensure!(
            !self.accuracy || matches!(self.only, None | Some(Example::Digits | Example::Text)),
            "--accuracy trains only digits and text: give one of these to --only, or none"
        );
        ensure!(getuid().is_root(), "racks of network namespaces need root; run this as root");
        let binaries = Binaries::in_folder(&cargo::binaries_folder(None, Selection::Job)?)?;
        let site = Site::new(&binaries, python::with_package()?)?;
        if let Some(kills) = self.kills {
            let table = kills::measure(&site, kills)?;
            site.aggregator.stop()?;
            say!("{}.\n\n{table}", processor());
            return Ok(());
        }
        let folder = self
            .output
            .clone()
            .map_or_else(|| cargo::target_folder().map(|target| target.join("train")), Ok)?;
        let is_asked = |example| self.only.is_none_or(|only| only == example);
        let missed = if self.stalls {
            let asked = stalls::JOBS.iter().filter(|job| is_asked(job.example));
            let outcomes = |job| Ok(vec![stalls::compare(&site, job, self.runs)?]);
            tell(&folder, "stalls.md", asked.map(outcomes))?
        } else if self.accuracy {
            let asked = accuracy::GOALS.iter().filter(|goal| is_asked(goal.example));
            let outcomes = |goal| Ok(vec![accuracy::compare(&site, goal, self.runs)?]);
            tell(&folder, "accuracy.md", asked.map(outcomes))?
        } else {
            let asked = Example::ALL.into_iter().filter(|example| is_asked(*example));
            tell(&folder, "train.md", asked.map(|example| self.outcomes(&site, example)))?
        };
        site.aggregator.stop()?;
        ensure!(missed.is_empty(), "not as promised: {}", missed.join("; "));
        Ok(())
    }
}

/// Prints outcomes as they come, and writes them to the folder. The goals that are missed.
fn tell(
    folder: &Path,
    file: &str,
    outcomes: impl Iterator<Item = Result<Vec<Outcome>>>,
) -> Result<Vec<String>> {
    let (mut text, mut missed) = (String::new(), Vec::new());
    for outcomes in outcomes {
        for outcome in outcomes? {
            say!("\n{}", outcome.text);
            text += &outcome.text;
            missed.extend(outcome.missed);
            write(folder, &outcome.name, &outcome.plot)?;
        }
    }
    write(folder, file, &text)?;
    Ok(missed)
}

impl Train {
    fn outcomes(&self, site: &Site, example: Example) -> Result<Vec<Outcome>> {
        match example {
            Example::Wide => return Ok(vec![speed::compare(site, self.runs)?]),
            Example::Sharded => return Ok(vec![sharded::compare(site, self.runs)?]),
            _ => {}
        }
        let gradients = cargo::target_folder()?.join("train/gradients").join(example.name());
        let gradients = gradients.to_str().context("the target folder's name is not UTF-8")?;
        let gloo = site.train(example, Backend::Gloo, &["--gradients", gradients])?;
        let mut outcomes = Vec::new();
        if example != Example::Ngram {
            outcomes.push(curves::compare(site, example, &gloo)?);
        }
        outcomes.push(bits::compare(site, example)?);
        Ok(outcomes)
    }
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, text))
        .with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("train: wrote {}", path.display());
    Ok(())
}

/// The backend that sums up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    Gloo,
    Switchml,
}

/// The racks, in which only the aggregator runs.
struct Site {
    // Dropped in this order.
    aggregator: Aggregator,
    ours: Rack,
    gloo: Rack,
    python: PathBuf,
}

impl Site {
    fn new(binaries: &Binaries, python: PathBuf) -> Result<Self> {
        let (ours, gloo) = (Rack::new(RackOptions::default())?, Rack::new(RackOptions::default())?);
        let aggregator = Aggregator::in_rack(binaries, &ours)?;
        Ok(Self { aggregator, ours, gloo, python })
    }

    fn train(&self, example: Example, backend: Backend, arguments: &[&str]) -> Result<Training> {
        let (rack, name, aggregator) = match backend {
            Backend::Gloo => (&self.gloo, "gloo", None),
            Backend::Switchml => (&self.ours, "switchml", Some(&self.aggregator)),
        };
        let begin = Instant::now();
        let arguments = [&["--backend", name], arguments].concat();
        let training =
            Torchrun::start(rack, &self.python, aggregator, &example.script(), &arguments)
                .and_then(|job| job.finish(PATIENCE))
                .with_context(|| format!("{}.py {}", example.name(), arguments.join(" ")))?;
        eprintln!(
            "train: {}.py {}: {:.0} s",
            example.name(),
            arguments.join(" "),
            begin.elapsed().as_secs_f64()
        );
        Ok(training)
    }
}
