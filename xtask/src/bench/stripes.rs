//! `cargo xtask bench stripes`: ranks that serve each other, and spare hosts that help them,
//! beside Gloo, on links of one rate for every host, and on links without a limit.
//!
//! Expected times are those of the theorem in docs/research/scaling.md, with headers and exponents
//! counted. Without a limit the processors are shared, so spare hosts are none: ranks serve each
//! other.

mod plot;

use anyhow::Result;
use switchml_rack::{Aggregator, Binaries, Rack, RackOptions, Shaping};
use switchml_worker_core::cost::{self, Framing};
use switchml_worker_core::numerics::Codec;
use switchml_worker_core::{DType, Precision, Reduction};

use super::ground::Ground;
use super::kit::Kit;
use super::links;
use super::measured::{Method, Task};
use super::peers::Programs;
use super::plan;
use super::team::{Team, Work};
use crate::measure::{Ranks, Report, Table as Text, or_dash, rows_in_turn};
use crate::stats::Spread;

const LARGE: usize = 16 << 20;
const SMALL: usize = 64 << 10;
/// Of the rack's links.
const MTU: usize = 1500;

/// Ranks, and the rate of every host's link in bits per second.
const SETTINGS: [(usize, Option<u64>); 3] =
    [(4, Some(plan::rate(4))), (8, Some(plan::rate(8))), (4, None)];

/// A way to add up.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Way {
    name: &'static str,
    /// Bytes of a tensor.
    size: usize,
    /// The sum, exact or with fewer bits of an element in packets.
    sum: Reduction,
    spare: Spare,
}

/// The spare hosts with an aggregator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spare {
    /// None: ranks bring their own.
    None,
    /// So many, which the ranks' hosts help: they have one link each.
    Beside(usize),
    /// As many as ranks, and these alone.
    All,
}

const fn way(name: &'static str, size: usize, sum: Reduction, spare: Spare) -> Way {
    Way { name, size, sum, spare }
}

const WAYS: [Way; 7] = [
    way("no aggregator", LARGE, Reduction::SUM, Spare::None),
    way("no aggregator, 16 bits", LARGE, Reduction::SUM16, Spare::None),
    way("no aggregator, 8 bits", LARGE, Reduction::SUM8, Spare::None),
    way("one spare host, and the ranks' own", LARGE, Reduction::SUM, Spare::Beside(1)),
    way("two spare hosts, and the ranks' own", LARGE, Reduction::SUM, Spare::Beside(2)),
    way("as many spare hosts as ranks", LARGE, Reduction::SUM, Spare::All),
    way("no aggregator, 64 KiB", SMALL, Reduction::SUM, Spare::None),
];

impl Way {
    /// The theorem's time in milliseconds, for n ranks with links of so many bits per second.
    fn expected(self, ranks: usize, rate: u64) -> Result<f64> {
        let (hosts, spare) = (ranks as u32, self.spare.hosts(ranks) as f64);
        let codec = Codec::reduction(DType::F32, self.sum, ranks, self.size / DType::F32.size())?;
        let units = cost::aggregated(hosts, hosts, spare);
        let bytes = cost::bytes_in_packets(self.size, codec);
        Ok(1e3 * cost::seconds(units, bytes, Framing::packets_at(MTU), rate))
    }

    fn iters(self) -> &'static str {
        if self.size == SMALL { "100" } else { "5" }
    }
}

impl Spare {
    fn hosts(self, ranks: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Beside(hosts) => hosts,
            Self::All => ranks,
        }
    }

    /// Starts the aggregators; none if ranks bring their own.
    fn start(self, binaries: &Binaries, rack: &Rack, ranks: usize) -> Result<Vec<Aggregator>> {
        let on = |host: usize| {
            let any_port = (Rack::worker_address(host), 0).into();
            Ok(Aggregator::software_on(binaries, rack.worker(host), any_port)?)
        };
        match self {
            Self::None => Ok(Vec::new()),
            Self::Beside(hosts) => (ranks..ranks + hosts).map(on).collect(),
            Self::All => (ranks..2 * ranks).map(on).collect(),
        }
    }
}

/// What was measured in a setting.
struct Table {
    ranks: usize,
    rate: Option<u64>,
    rows: Vec<Row>,
}

/// The times of a way in ms, pair by pair.
struct Row {
    way: Way,
    gloo: Vec<f64>,
    ours: Vec<f64>,
    /// The theorem's, if the links have a rate.
    expected: Option<f64>,
}

/// Measures all settings.
pub fn measure(kit: &Kit) -> Result<Report> {
    let programs = Programs::ensure(kit)?;
    let table = |setting| Table::measure(setting, kit, &programs);
    let tables: Vec<Table> = SETTINGS.into_iter().map(table).collect::<Result<_>>()?;
    let text = tables.iter().map(Table::markdown).collect();
    let plot = ("several-aggregators.svg".to_owned(), plot::draw_tables(&tables)?);
    Ok(Report { text, files: vec![plot], missed: Vec::new() })
}

impl Table {
    fn measure(
        (ranks, rate): (usize, Option<u64>),
        Kit { binaries, scratch, runs, .. }: &Kit,
        programs: &Programs,
    ) -> Result<Self> {
        let rack = Rack::new(RackOptions { workers: 2 * ranks, ..RackOptions::default() })?;
        let _shaped = rate.map(|rate| Shaping::new(&rack, rate)).transpose()?;
        let ground = Ground::new(Method::Gloo, ranks)?;
        let _gloos = rate.map(|rate| ground.shape(rate)).transpose()?;
        let mut gloo = Team::start(Method::Gloo, programs, &ground, None, scratch)?;
        gloo.wait()?;
        let ways = WAYS.into_iter().filter(|way| rate.is_some() || way.spare == Spare::None);
        let ways: Vec<Way> = ways.collect();
        // A way and Gloo are measured one directly after the other, as a pair.
        let times = rows_in_turn(*runs, [1, ways.len()], |_, number, _| {
            let way = ways[number];
            let work = Work { size: way.size, iters: way.iters().parse()?, task: Task::Sum };
            let theirs = gloo.measure(&work, 32)?.seconds * 1e3;
            Ok((theirs, milliseconds(binaries, &rack, ranks, way)?))
        })?;
        gloo.stop()?;
        let row = |(way, pairs): (&Way, &Vec<(f64, f64)>)| {
            let (gloo, ours) = pairs.iter().copied().unzip();
            let expected = rate.map(|rate| way.expected(ranks, rate)).transpose()?;
            Ok(Row { way: *way, gloo, ours, expected })
        };
        let rows = ways.iter().zip(&times[0]).map(row).collect::<Result<_>>()?;
        Ok(Self { ranks, rate, rows })
    }

    fn title(&self) -> String {
        format!("{} ranks, {}", self.ranks, links(self.rate))
    }

    fn markdown(&self) -> String {
        let mut text = Text::new(["", "Gloo", "ours", "theorem", "Gloo's time to ours"]);
        for row in &self.rows {
            let [gloo, ours] = [&row.gloo, &row.ours].map(|times| Spread::of(times.clone()));
            let expected = or_dash(row.expected.map(|time| format!("{time:.2}")));
            text.row(&[&row.way.name, &gloo, &ours, &expected, &row.ratio()]);
        }
        format!("{}, f32, in ms (quartiles):\n\n{text}\n", self.title())
    }
}

impl Row {
    /// Gloo's time to ours.
    fn ratio(&self) -> Spread {
        Spread::of_ratios(&self.gloo, &self.ours)
    }

    /// Gloo's time to the theorem's.
    fn expected_ratio(&self) -> f64 {
        self.expected.map_or(0.0, |time| Spread::of(self.gloo.clone()).median / time)
    }
}

/// Milliseconds of a call in place, on the slowest rank.
fn milliseconds(binaries: &Binaries, rack: &Rack, ranks: usize, way: Way) -> Result<f64> {
    let aggregators = way.spare.start(binaries, rack, ranks)?;
    let all: Vec<&str> = aggregators.iter().map(Aggregator::control).collect();
    let (all, size) = (all.join(","), way.size.to_string());
    let ranks = Ranks::new(&binaries.worker, &rack.workers()[..ranks], "stripes", &all);
    let bits = bits(way.sum.precision);
    let options = ["-b", &size, "-e", &size, "-n", way.iters(), "-w", "2", "--precision", bits];
    let said = ranks.run(&options)?;
    aggregators.into_iter().try_for_each(Aggregator::stop)?;
    said.milliseconds()
}

/// The value of `--precision`.
pub fn bits(precision: Precision) -> &'static str {
    match precision {
        Precision::Exact => "exact",
        Precision::Bits16 => "16",
        Precision::Bits8 => "8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 MiB at 1 Gb/s take 134.2 ms without headers, 141.7 with headers and exponents.
    #[test]
    fn expected_times_are_those_of_the_theorem() {
        let times = |ranks: usize, spare| {
            let ms = way("", LARGE, Reduction::SUM, spare).expected(ranks, 1_000_000_000).unwrap();
            (ms / 141.67 * 100.0).round() / 100.0
        };
        let all = [Spare::None, Spare::Beside(1), Spare::Beside(2), Spare::All];
        assert_eq!(all.map(|spare| times(4, spare)), [1.5, 1.33, 1.2, 1.0]);
        assert_eq!(all.map(|spare| times(8, spare)), [1.75, 1.6, 1.47, 1.0]);
    }
}
