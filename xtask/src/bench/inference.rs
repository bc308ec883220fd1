//! `cargo xtask bench inference`: tokens per second of a language model that is split over ranks,
//! with Gloo and with this project.
//!
//! The ranks are processes in namespaces: of torch, with `worker-lib/python/examples/generate.py`,
//! or of vLLM, with a model that is made here. All ways take turns, and all but the one that sums
//! up nothing must write the same tokens.

mod plot;
mod program;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use switchml_rack::Rack;

use super::kit::Kit;
use super::links;
use crate::measure::{MEETING_PORT, Pair, Report, Table as Text, finish};
use crate::python;
use crate::stats::Spread;
use program::Program;

/// Numbers of ranks, and rates of their links in bits per second.
const SETTINGS: [(usize, Option<u64>); 6] = [
    (2, Some(1_000_000_000)),
    (4, Some(1_000_000_000)),
    (2, Some(2_500_000_000)),
    (4, Some(2_500_000_000)),
    (2, None),
    (4, None),
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

/// Measures vLLM's models or the example's in all settings.
pub fn measure(kit: &Kit, is_vllm: bool) -> Result<Report> {
    let python = python::with_package()?;
    let (programs, plot) = if is_vllm {
        (program::vllm(&python::with_vllm()?, &kit.scratch)?, "vllm.svg")
    } else {
        (program::examples(&python), "language-models.svg")
    };
    let table = |setting| Table::measure(setting, kit, &programs);
    let tables: Vec<Table> = SETTINGS.into_iter().map(table).collect::<Result<_>>()?;
    let text = tables.iter().map(Table::markdown).collect();
    let plot = (plot.to_owned(), plot::draw_tables(&tables)?);
    Ok(Report { text, files: vec![plot], missed: Vec::new() })
}

impl Table {
    fn measure(
        (ranks, rate): (usize, Option<u64>),
        Kit { binaries, runs, .. }: &Kit,
        programs: &[Program],
    ) -> Result<Self> {
        let racks = Pair::new(ranks, binaries)?;
        let _links = racks.shape(rate)?;
        let mut rows = Vec::new();
        // A program has several rows, so its ways take turns, and not those of a row.
        for run in 0..*runs {
            for program in programs {
                for (name, said) in program.rows.iter().zip(all_ways(&racks, program)?) {
                    let row = rows.iter_mut().find(|row: &&mut Row| row.name == *name);
                    match row {
                        Some(row) => {
                            row.said.iter_mut().zip(said).for_each(|(runs, said)| runs.push(said));
                        }
                        None => rows.push(Row { name, said: said.map(|said| vec![said]) }),
                    }
                }
            }
            eprintln!("{}, repetition {} of {runs}", title(ranks, rate), run + 1);
        }
        Ok(Self { ranks, rate, rows })
    }

    fn markdown(&self) -> String {
        let heads = [""].into_iter().chain(WAYS.map(|(_, name)| name));
        let mut text = Text::new(heads.chain(["to Gloo", "of no sums"]));
        for row in &self.rows {
            let cells = WAYS.map(|(way, _)| {
                format!("{:.0}, {:.1}", row.of(way, |said| said.prefill), row.decode(way))
            });
            let decode = row.decode(Way::Aggregator);
            let ratios =
                [Way::Gloo, Way::Silent].map(|way| format!("{:.2}", decode / row.decode(way)));
            text.cells([row.name.to_owned()].into_iter().chain(cells).chain(ratios));
        }
        let title = title(self.ranks, self.rate);
        format!("{title}, tokens per second, of the prompt and after it:\n\n{text}\n")
    }
}

fn title(ranks: usize, rate: Option<u64>) -> String {
    format!("{ranks} ranks, {}", links(rate))
}

impl Row {
    fn of(&self, way: Way, what: impl Fn(&Said) -> f64) -> f64 {
        let said = WAYS.iter().zip(&self.said).filter(|((kind, _), _)| *kind == way);
        Spread::of(said.flat_map(|(_, said)| said.iter().map(&what)).collect()).median
    }

    /// Tokens per second after the prompt.
    fn decode(&self, way: Way) -> f64 {
        self.of(way, |said| said.decode)
    }
}

/// Runs the program in all ways. Returns what was said about each of its rows.
fn all_ways(racks: &Pair, program: &Program) -> Result<Vec<[Said; WAYS.len()]>> {
    let mut ways = Vec::new();
    for (way, name) in WAYS {
        let what = || format!("{}, {name}", program.rows[0]);
        let said = run(racks, program, way).with_context(what)?;
        ensure!(said.len() == program.rows.len(), "{}: not a line for each row", what());
        // All of it takes more than an hour.
        for (row, Said { prefill, decode, .. }) in program.rows.iter().zip(&said) {
            eprintln!("{row}, {name}: {prefill:.0}, {decode:.1} tokens per second");
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

fn run(racks: &Pair, program: &Program, way: Way) -> Result<Vec<Said>> {
    let rack = if way == Way::Aggregator { &racks.ours } else { &racks.plain };
    let start = |rank: usize| {
        let mut command = program.command(way);
        racks.tell(&mut command, rank, MEETING_PORT);
        // Namespaces have no default route, by which vLLM would find its address.
        command.env("VLLM_HOST_IP", Rack::worker_address(rank).to_string());
        match way {
            Way::Aggregator => command.env("SWITCHML_AGGREGATOR", racks.aggregator.control()),
            _ => command.env_remove("SWITCHML_AGGREGATOR"),
        };
        Ok(rack.worker(rank).spawn(&format!("rank {rank}"), command)?)
    };
    let printed = finish((0..rack.workers().len()).map(start).collect::<Result<_>>()?)?;
    let lines = printed.lines().filter(|line| line.starts_with('{'));
    let said = lines.map(serde_json::from_str).collect::<Result<Vec<_>, _>>();
    said.context("not what the program says")
}
