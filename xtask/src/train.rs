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
mod speed;
mod stalls;
mod ways;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser as Number;
use rustix::process::getuid;
use switchml_rack::{Binaries, Shaping, Torchrun, Training};

use crate::measure::{Output, Pair};
use crate::{cargo, cargo::Selection, python};

/// Far longer than a job takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Ranks of a job.
const RANKS: usize = 4;

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

    /// Folder for tables and plots; `train` in cargo's target folder without
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
        let site = Site { racks: Pair::new(RANKS, &binaries)?, python: python::with_package()? };
        let folder = match &self.output {
            Some(folder) => folder.clone(),
            None => cargo::target_folder()?.join("train"),
        };
        let mut output = Output::new(Some(&folder));
        let is_asked = |example| self.only.is_none_or(|only| only == example);
        let name = if let Some(kills) = self.kills {
            output.add(kills::measure(&site, kills)?)?;
            "kills.md"
        } else if self.stalls {
            let asked = stalls::JOBS.iter().filter(|job| is_asked(job.example));
            asked
                .map(|job| stalls::compare(&site, job, self.runs))
                .try_for_each(|report| output.add(report?))?;
            "stalls.md"
        } else if self.accuracy {
            let asked = accuracy::GOALS.iter().filter(|goal| is_asked(goal.example));
            asked
                .map(|goal| accuracy::compare(&site, goal, self.runs))
                .try_for_each(|report| output.add(report?))?;
            "accuracy.md"
        } else {
            for example in Example::ALL.into_iter().filter(|example| is_asked(*example)) {
                self.compare(&site, example, &mut output)?;
            }
            "train.md"
        };
        site.racks.aggregator.stop()?;
        output.finish(name)
    }

    fn compare(&self, site: &Site, example: Example, output: &mut Output) -> Result<()> {
        if let Example::Wide | Example::Sharded = example {
            return output.add(speed::compare(site, example, self.runs)?);
        }
        let gradients = cargo::target_folder()?.join("train/gradients").join(example.name());
        let gradients = gradients.to_str().context("the target folder's name is not UTF-8")?;
        let gloo = site.train(example, Backend::Gloo, &["--gradients", gradients])?;
        if example != Example::Ngram {
            output.add(curves::compare(site, example, &gloo)?)?;
        }
        output.add(bits::compare(site, example)?)
    }
}

/// The backend that sums up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    Gloo,
    Switchml,
}

/// The racks, and the interpreter that has torch and this package.
struct Site {
    racks: Pair,
    python: PathBuf,
}

impl Site {
    /// Gives all links [`RATE`].
    fn shape(&self) -> Result<Vec<Shaping<'_>>> {
        self.racks.shape(Some(RATE))
    }

    fn train(&self, example: Example, backend: Backend, arguments: &[&str]) -> Result<Training> {
        let Pair { aggregator, ours, plain } = &self.racks;
        let (rack, name, aggregator) = match backend {
            Backend::Gloo => (plain, "gloo", None),
            Backend::Switchml => (ours, "switchml", Some(aggregator)),
        };
        let begin = Instant::now();
        let arguments = [&["--backend", name], arguments].concat();
        let job = format!("{}.py {}", example.name(), arguments.join(" "));
        let training =
            Torchrun::start(rack, &self.python, aggregator, &example.script(), &arguments)
                .and_then(|job| job.finish(PATIENCE))
                .with_context(|| job.clone())?;
        eprintln!("train: {job}: {:.0} s", begin.elapsed().as_secs_f64());
        Ok(training)
    }
}
