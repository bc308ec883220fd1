//! `cargo xtask bench inference`: tokens per second of a language model that is split over ranks,
//! with Gloo and with this project.
//!
//! The ranks are processes in namespaces: of torch, with `worker-lib/python/examples/generate.py`,
//! or of vLLM, with a model that is made here. All ways take turns, and all but the one that sums
//! up nothing must write the same tokens.

mod plot;
mod program;

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use switchml_rack::{Aggregator, Binaries, Process, Rack, RackOptions, Shaping};

use crate::stats::Spread;
use program::Program;
pub use program::{examples, vllm};

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

/// What rank 0 of a program says about a row.
#[derive(Clone, Debug, Deserialize)]
struct Said {
    /// Tokens of the prompt a second.
    prefill: f64,
    /// Other tokens a second.
    decode: f64,
    written: Vec<u32>,
}

/// What was said about a model and batch in each way, run by run.
struct Row {
    name: &'static str,
    said: [Vec<Said>; WAYS.len()],
}

struct Table {
    ranks: usize,
    rate: Option<u64>,
    rows: Vec<Row>,
}

/// The results: tables for people, and a plot.
pub struct Results(Vec<Table>);

/// Measures these programs, in turn.
pub fn measure(binaries: &Binaries, programs: &[Program], runs: usize) -> Result<Results> {
    let table = |(ranks, rate)| Table::measure(ranks, rate, binaries, programs, runs);
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
        programs: &[Program],
        runs: usize,
    ) -> Result<Self> {
        let site = Site::new(ranks, binaries)?;
        let _links = rate.map(|rate| site.shape(rate)).transpose()?;
        let names = programs.iter().flat_map(|program| program.rows);
        let mut rows: Vec<_> = names.map(|name| Row { name, said: Default::default() }).collect();
        for run in 0..runs {
            let mut rows = rows.iter_mut();
            for program in programs {
                for said in site.measure(program)? {
                    rows.next().context("a program with more rows than names")?.add(said);
                }
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
            let _ = writeln!(text, "| {} |{cells} {gloo:.2} | {silent:.2} |", row.name);
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
    /// Adds what a run said in each way.
    fn add(&mut self, said: [Said; WAYS.len()]) {
        self.said.iter_mut().zip(said).for_each(|(runs, said)| runs.push(said));
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
struct Site {
    // Dropped in this order.
    aggregator: Aggregator,
    ours: Rack,
    plain: Rack,
}

impl Site {
    fn new(ranks: usize, binaries: &Binaries) -> Result<Self> {
        let rack = || Rack::new(RackOptions { workers: ranks, ..RackOptions::default() });
        let (ours, plain) = (rack()?, rack()?);
        let aggregator = Aggregator::in_rack(binaries, &ours)?;
        Ok(Self { aggregator, ours, plain })
    }

    fn shape(&self, rate: u64) -> Result<[Shaping<'_>; 2]> {
        Ok([Shaping::new(&self.ours, rate)?, Shaping::new(&self.plain, rate)?])
    }

    /// Runs the program in all ways. Returns what was said about each of its rows.
    fn measure(&self, program: &Program) -> Result<Vec<[Said; WAYS.len()]>> {
        let mut ways = Vec::new();
        for (way, name) in WAYS {
            let what = || format!("{}, {name}", program.rows[0]);
            let said = self.run(program, way).with_context(what)?;
            ensure!(said.len() == program.rows.len(), "{}: not a line for each row", what());
            // All of it takes more than an hour.
            for (row, Said { prefill, decode, .. }) in program.rows.iter().zip(&said) {
                eprintln!("bench: {row}, {name}: {prefill:.0}, {decode:.1} tokens per second");
            }
            ways.push(said);
        }
        let of_row = |row: usize| std::array::from_fn(|way| ways[way][row].clone());
        let rows: Vec<[Said; WAYS.len()]> = (0..program.rows.len()).map(of_row).collect();
        for (row, name) in rows.iter().zip(program.rows) {
            for ((way, way_name), said) in WAYS.iter().zip(row) {
                ensure!(
                    *way == Way::Silent || said.written == row[0].written,
                    "{name}: {way_name} writes other tokens than Gloo"
                );
            }
        }
        Ok(rows)
    }

    fn run(&self, program: &Program, way: Way) -> Result<Vec<Said>> {
        let rack = if way == Way::Aggregator { &self.ours } else { &self.plain };
        let start = |rank: usize| {
            let mut command = program.command(way);
            command.env("RANK", rank.to_string());
            command.env("WORLD_SIZE", rack.workers().len().to_string());
            command.env("MASTER_ADDR", Rack::worker_address(0).to_string());
            command.env("MASTER_PORT", PORT).env("OMP_NUM_THREADS", "1");
            command.env("GLOO_SOCKET_IFNAME", "eth0");
            // Namespaces have no default route, by which vLLM would find its address.
            command.env("VLLM_HOST_IP", Rack::worker_address(rank).to_string());
            match way {
                Way::Aggregator => command.env("SWITCHML_AGGREGATOR", self.aggregator.control()),
                _ => command.env_remove("SWITCHML_AGGREGATOR"),
            };
            rack.worker(rank).spawn(&format!("rank {rank}"), command)
        };
        let mut processes: Vec<Process> =
            (0..rack.workers().len()).map(start).collect::<Result<_, _>>()?;
        processes.iter_mut().try_for_each(|rank| rank.wait_success(PATIENCE))?;
        let printed = processes[0].stdout();
        let lines = printed.lines().filter(|line| line.starts_with('{'));
        let said = lines.map(serde_json::from_str).collect::<Result<Vec<_>, _>>();
        said.context("not what the program says")
    }
}
