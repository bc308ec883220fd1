//! `cargo xtask faults`: the cost of faults on links, as a table, as JSON, and as plots.
//!
//! All runs use one rack. Every repetition goes through all conditions, so that other activity on
//! the machine affects all conditions alike.

mod plot;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser as Number;
use rustix::process::getuid;
use serde::Serialize;
use switchml_rack::{
    Aggregator, Binaries, FaultCounts, Faults as Link, Impairment, MAX_WORKERS, Rack, RackOptions,
};

use crate::measure::{Output, Ranks, Report, Sent, Table, rows_in_turn};
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

    /// Folder for faults.md, faults.json and the plots; without it, the table is on the terminal
    /// only
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// Use the binaries in this folder, for example those of another version, instead of building
    /// them
    #[arg(long, value_name = "FOLDER")]
    binaries: Option<PathBuf>,
}

/// The faults of the links, each way, by name; the first ones are none.
fn conditions() -> [(&'static str, Link); 9] {
    let none = Link::default();
    [
        ("none", none),
        ("loss 0.1 %", Link { loss: 0.001, ..none }),
        ("loss 1 %", Link { loss: 0.01, ..none }),
        ("loss 5 %", Link { loss: 0.05, ..none }),
        ("loss 20 %", Link { loss: 0.2, ..none }),
        ("duplication 5 %", Link { duplication: 0.05, ..none }),
        ("reordering 10 %, by up to 16", Link { reordering: 0.1, distance: 16, ..none }),
        ("corrupted headers 1 %", Link { corruption: 0.01, ..none }),
        ("flipped payload bits 1 %", Link { flips: 0.01, ..none }),
    ]
}

/// A condition, and its runs.
#[derive(Serialize)]
struct Measured {
    name: &'static str,
    /// Probability of loss, each way.
    loss: f64,
    /// Whether the links have no other fault.
    only_loss: bool,
    /// From the shortest to the longest.
    runs: Vec<Run>,
}

/// One run of the benchmark.
#[derive(Serialize)]
struct Run {
    /// Time of one all-reduce, on the slowest rank, in ms.
    time_ms: f64,
    /// What rank 0 sent in the timed iterations.
    sent: Sent,
    /// The faults of the links in the whole run.
    #[serde(skip)]
    faults: FaultCounts,
}

impl Faults {
    /// Measures, and writes the results.
    pub fn run(&self) -> Result<()> {
        ensure!(getuid().is_root(), "a rack of network namespaces needs root; run this as root");
        let options = RackOptions { workers: self.workers, wires: true, ..RackOptions::default() };
        options.check()?;
        let folder = cargo::binaries_folder(self.binaries.as_deref(), Selection::JobOnBadLinks)?;
        let measured = self.measure(&Binaries::in_folder(&folder)?, Rack::new(options)?)?;
        let file = |name: &str, content| (name.to_owned(), content);
        let files = vec![
            file("faults.json", serde_json::to_string(&measured)?),
            file("time-against-loss.svg", plot::time_against_loss(&measured)?),
            file("chunks-against-time.svg", plot::chunks_against_time(&measured)?),
        ];
        let mut output = Output::new(self.output.as_deref());
        output.add(Report { text: self.table(&measured), files, missed: Vec::new() })?;
        output.finish("faults.md")
    }

    fn measure(&self, binaries: &Binaries, rack: Rack) -> Result<Vec<Measured>> {
        let aggregator = Aggregator::in_rack(binaries, &rack)?;
        let is_asked =
            |(name, faults): &(&str, Link)| *faults == Link::default() || name.contains(&self.only);
        let conditions: Vec<_> = conditions().into_iter().filter(is_asked).collect();
        let (worker, control) = (&binaries.worker, aggregator.control());
        let ranks = Ranks::new(worker, rack.workers(), "faults", control);
        let iters = self.iters.to_string();
        let options = ["-b", &self.size, "-e", &self.size, "-n", &iters, "-w", "1", "-c", "1"];
        let runs = rows_in_turn(self.runs, [1, conditions.len()], |_, number, run| {
            let (name, faults) = conditions[number];
            let seed = self.seed + run as u64;
            let impairment = Impairment::in_rack(binaries, &rack, seed, |_, _| faults)?;
            let said = ranks.run(&options).with_context(|| format!("with {name}"))?;
            let mut faults = FaultCounts::default();
            impairment.stop()?.into_iter().flatten().for_each(|counts| faults += counts);
            let time_ms = said.milliseconds()?;
            eprintln!("{name:30} {time_ms:8.1} ms");
            Ok(Run { time_ms, sent: said.sent(), faults })
        })?;
        aggregator.stop()?;
        let runs = runs.into_iter().flatten();
        Ok(conditions.into_iter().zip(runs).map(Measured::new).collect())
    }

    /// The results as Markdown. All conditions are compared with the first one.
    fn table(&self, measured: &[Measured]) -> String {
        let mut table = Table::new([
            "faults",
            "time in ms: median (range)",
            "to none",
            "99 % of chunks, ms",
            "frames lost, doubled, held back, corrupted of all",
            "resent per 1000 chunks: overtaken, timer, probe",
        ]);
        let none = measured[0].median().time_ms;
        for condition in measured {
            let (Run { time_ms, sent, .. }, (shortest, longest)) =
                (condition.median(), condition.range());
            let mut faults = FaultCounts::default();
            condition.runs.iter().for_each(|run| faults += run.faults);
            let FaultCounts { frames, lost, duplicated, reordered, .. } = faults;
            let corrupted = faults.corrupted + faults.flipped;
            let [overtaken, timer, probes] =
                [sent.resent_by_overtaking, sent.resent_by_timer, sent.probes]
                    .map(|count| 1000.0 * count as f64 / sent.chunks as f64);
            let finished = sent.finished_us.iter().find(|(percent, _)| *percent >= 99.0);
            table.row(&[
                &condition.name,
                &format!("{time_ms:.0} ({shortest:.0}-{longest:.0})"),
                &format!("{:.2}", time_ms / none),
                &format!("{:.0}", finished.map_or(f64::NAN, |(_, us)| us / 1e3)),
                &format!("{lost}, {duplicated}, {reordered}, {corrupted} of {frames}"),
                &format!("{overtaken:.1}, {timer:.1}, {probes:.1}"),
            ]);
        }
        let Self { workers, size, runs, iters, .. } = self;
        format!(
            "{workers} workers, {size} of f32, {runs} runs of {iters} timed all-reduces for each \
             row, in turn. Faults each way, on every link.\n\n{table}"
        )
    }
}

impl Measured {
    fn new(((name, faults), mut runs): ((&'static str, Link), Vec<Run>)) -> Self {
        runs.sort_by(|a, b| a.time_ms.total_cmp(&b.time_ms));
        let only_loss = faults == Link { loss: faults.loss, ..Link::default() };
        Self { name, loss: faults.loss, only_loss, runs }
    }

    /// The run whose time is in the middle; the shorter one of two.
    fn median(&self) -> &Run {
        &self.runs[(self.runs.len() - 1) / 2]
    }

    /// Shortest and longest time, in ms.
    fn range(&self) -> (f64, f64) {
        (self.runs[0].time_ms, self.runs[self.runs.len() - 1].time_ms)
    }
}
