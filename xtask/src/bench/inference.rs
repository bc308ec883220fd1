//! `cargo xtask bench --inference`: tokens per second of a language model that is cut over ranks,
//! batch 1, with Gloo and with this project.
//!
//! The model is `worker-lib/python/examples/generate.py`, whose ranks are processes of torch in
//! namespaces. All ways take turns, and all but the one that sums up nothing must write the same
//! tokens.

mod plot;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use switchml_rack::{Aggregator, Binaries, Process, Rack, RackOptions, Shaping};

use crate::cargo;
use crate::stats::Spread;

/// Numbers of ranks, and rates of their links in bits per second.
const SETTINGS: [(usize, Option<u64>); 6] = [
    (2, Some(1_000_000_000)),
    (4, Some(1_000_000_000)),
    (2, Some(2_500_000_000)),
    (4, Some(2_500_000_000)),
    (2, None),
    (4, None),
];
const PATIENCE: Duration = Duration::from_secs(600);
const PORT: &str = "29500";

/// A model, and how it is cut.
#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    arguments: [&'static str; 6],
}

const fn model(
    name: &'static str,
    width: &'static str,
    layers: &'static str,
    cut: &'static str,
) -> Model {
    Model { name, arguments: ["--width", width, "--layers", layers, "--cut", cut] }
}

const MODELS: [Model; 3] = [
    model("1024 x 8, all_reduce", "1024", "8", "by-hand"),
    model("2048 x 4, all_reduce", "2048", "4", "by-hand"),
    model("1024 x 8, DTensor", "1024", "8", "dtensor"),
];

/// How sums get over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Gloo,
    /// With an aggregator that has a port for each rank.
    Aggregator,
    /// Ranks serve each other.
    Peers,
    /// Not at all: the time of computing.
    Silent,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Gloo, "Gloo"),
    (Way::Aggregator, "an aggregator"),
    (Way::Peers, "no aggregator"),
    (Way::Silent, "no sums"),
];

/// What rank 0 of a model says.
#[derive(Clone, Debug, Deserialize)]
struct Said {
    /// Tokens of the prompt a second.
    prefill: f64,
    /// Other tokens a second.
    decode: f64,
    written: Vec<u32>,
}

/// What a model said in each way, run by run.
struct Row {
    model: Model,
    said: [Vec<Said>; WAYS.len()],
}

struct Table {
    ranks: usize,
    rate: Option<u64>,
    rows: Vec<Row>,
}

/// The results: tables for people, and a plot.
pub struct Results(Vec<Table>);

/// Measures, in turn. `python` has torch and this package.
pub fn measure(binaries: &Binaries, python: &Path, runs: usize) -> Result<Results> {
    let table = |(ranks, rate)| Table::measure(ranks, rate, binaries, python, runs);
    SETTINGS.into_iter().map(table).collect::<Result<_>>().map(Results)
}

impl Results {
    pub fn markdown(&self) -> String {
        self.0.iter().map(Table::markdown).collect()
    }

    /// The plot, as SVG.
    pub fn plot(&self) -> Result<String> {
        plot::draw_tables(&self.0)
    }
}

impl Table {
    fn measure(
        ranks: usize,
        rate: Option<u64>,
        binaries: &Binaries,
        python: &Path,
        runs: usize,
    ) -> Result<Self> {
        let site = Site::new(ranks, binaries, python)?;
        let _links = rate.map(|rate| site.shape(rate)).transpose()?;
        let mut rows: Vec<_> = MODELS
            .iter()
            .map(|model| Row { model: *model, said: std::array::from_fn(|_| Vec::new()) })
            .collect();
        for run in 0..runs {
            for row in &mut rows {
                row.measure(&site)?;
            }
            eprintln!("bench: {}, repetition {} of {runs}", title(ranks, rate), run + 1);
        }
        Ok(Self { ranks, rate, rows })
    }

    fn markdown(&self) -> String {
        let names: String = WAYS.iter().map(|(_, name)| format!(" {name} |")).collect();
        let mut text = format!(
            "{}, tokens per second, of the prompt and after it:\n\n\
             | |{names} to Gloo | of no sums |\n|---{}|\n",
            title(self.ranks, self.rate),
            "|---".repeat(WAYS.len() + 2)
        );
        for row in &self.rows {
            let cells: String = WAYS.iter().map(|(way, _)| row.cell(*way)).collect();
            let decode = row.decode(Way::Aggregator);
            let [gloo, silent] = [Way::Gloo, Way::Silent].map(|way| decode / row.decode(way));
            let _ = writeln!(text, "| {} |{cells} {gloo:.2} | {silent:.2} |", row.model.name);
        }
        text + "\n"
    }
}

fn title(ranks: usize, rate: Option<u64>) -> String {
    match rate {
        Some(rate) => format!("{ranks} ranks, links of {} Gb/s", rate as f64 / 1e9),
        None => format!("{ranks} ranks, links without a limit"),
    }
}

impl Row {
    fn measure(&mut self, site: &Site) -> Result<()> {
        for ((way, name), said) in WAYS.iter().zip(&mut self.said) {
            let what = || format!("{}, {name}", self.model.name);
            said.push(site.generate(self.model, *way).with_context(what)?);
        }
        let last = |way: usize| self.said[way].last().map(|said| &said.written);
        for (way, (kind, name)) in WAYS.iter().enumerate().skip(1) {
            ensure!(
                *kind == Way::Silent || last(way) == last(0),
                "{}: {name} writes other tokens than Gloo",
                self.model.name
            );
        }
        Ok(())
    }

    fn of(&self, way: Way, what: impl Fn(&Said) -> f64) -> f64 {
        let said = WAYS.iter().zip(&self.said).filter(|((kind, _), _)| *kind == way);
        Spread::of(said.flat_map(|(_, said)| said.iter().map(&what)).collect()).median
    }

    /// Tokens per second after the prompt.
    fn decode(&self, way: Way) -> f64 {
        self.of(way, |said| said.decode)
    }

    fn cell(&self, way: Way) -> String {
        format!(" {:.0}, {:.1} |", self.of(way, |said| said.prefill), self.decode(way))
    }
}

/// The racks: `ours` with the aggregator, and `plain`, without a program at the switch's ports.
struct Site<'a> {
    // Dropped in this order.
    aggregator: Aggregator,
    ours: Rack,
    plain: Rack,
    python: &'a Path,
    script: PathBuf,
}

impl<'a> Site<'a> {
    fn new(ranks: usize, binaries: &Binaries, python: &'a Path) -> Result<Self> {
        let rack = || Rack::new(RackOptions { workers: ranks, ..RackOptions::default() });
        let (ours, plain) = (rack()?, rack()?);
        let aggregator = Aggregator::in_rack(binaries, &ours)?;
        let script = cargo::workspace().join("worker-lib/python/examples/generate.py");
        Ok(Self { aggregator, ours, plain, python, script })
    }

    fn shape(&self, rate: u64) -> Result<[Shaping<'_>; 2]> {
        Ok([Shaping::new(&self.ours, rate)?, Shaping::new(&self.plain, rate)?])
    }

    fn generate(&self, model: Model, way: Way) -> Result<Said> {
        let rack = if way == Way::Aggregator { &self.ours } else { &self.plain };
        let start = |rank: usize| {
            let mut command = Command::new(self.python);
            command.arg(&self.script).args(model.arguments);
            command.args(["--backend", if way == Way::Gloo { "gloo" } else { "switchml" }]);
            if way == Way::Silent {
                command.args(["--cut", "silent"]);
            }
            command.env("RANK", rank.to_string());
            command.env("WORLD_SIZE", rack.workers().len().to_string());
            command.env("MASTER_ADDR", Rack::worker_address(0).to_string());
            command.env("MASTER_PORT", PORT).env("OMP_NUM_THREADS", "1");
            command.env("GLOO_SOCKET_IFNAME", "eth0");
            match way {
                Way::Aggregator => command.env("SWITCHML_AGGREGATOR", self.aggregator.control()),
                _ => command.env_remove("SWITCHML_AGGREGATOR"),
            };
            rack.worker(rank).spawn(&format!("rank {rank}"), command)
        };
        let mut processes: Vec<Process> =
            (0..rack.workers().len()).map(start).collect::<Result<_, _>>()?;
        processes.iter_mut().try_for_each(|rank| rank.wait_success(PATIENCE))?;
        serde_json::from_str(&processes[0].stdout()).context("not what generate.py says")
    }
}
