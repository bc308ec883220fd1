//! `cargo xtask bench models`: training steps of public models, replayed, with Gloo, Open MPI and
//! this project, and what `switchml-worker plan` says of them.
//!
//! Computing is a sleep of the published time; gradients travel in the buckets of torch's
//! DistributedDataParallel, beside it. Where this machine's processors cannot fill the links, links
//! are slower and computing is stretched as much: all times are, and the tables have them
//! unstretched.
//!
//! Models without a published computing time are left out, and Llama 8B, whose gradients take 32 GB
//! on each rank.

mod plot;
mod site;

use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::builder::RangedU64ValueParser as Number;
use switchml_cli::size;
use switchml_step::buckets::{self, Bucket};
use switchml_step::models::{self, Model};
use switchml_step::{Step, published, timeline};
use switchml_worker_core::cost::{self, Framing};
use switchml_worker_core::numerics::Codec;
use switchml_worker_core::{DType, Precision, ReduceOp, Reduction};

use super::kit::Kit;
use super::peers::Programs;
use crate::measure::{Report, Table as Text, rows_in_turn};
use crate::stats::Spread;
use site::Site;

/// Of the rack's links.
const MTU: usize = 1500;

/// The links' bits per second, of all ranks together, that a processor keeps up with: then steps
/// take about what is planned, with 2 processors and with 16.
const OF_A_PROCESSOR: u64 = 2_000_000_000;

/// What is replayed.
#[derive(Clone, clap::Args)]
pub struct Options {
    /// These models [default: all with a published computing time that fit]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<Model>,

    /// Numbers of ranks
    #[arg(
        long, value_name = "N,...", value_delimiter = ',', default_values_t = [4, 8],
        value_parser = Number::<usize>::new().range(2..=64)
    )]
    ranks: Vec<usize>,

    /// Rates of links in bits per second
    #[arg(
        long, value_name = "RATE,...", value_delimiter = ',', default_value = "1G,2.5G,10G",
        value_parser = size::rate
    )]
    rates: Vec<u64>,
}

/// Ranks, and their links.
#[derive(Clone, Copy)]
struct Setting {
    ranks: usize,
    /// Bits per second of the links that the tables are about.
    rate: u64,
    /// Bits per second of the links in the rack.
    link: u64,
}

impl Setting {
    /// The setting on a machine of so many processors.
    fn new(ranks: usize, rate: u64, processors: usize) -> Self {
        let most = OF_A_PROCESSOR * processors as u64 / ranks as u64;
        Self { ranks, rate, link: rate.min(most) }
    }

    /// How much longer everything takes in the rack.
    fn stretch(self) -> f64 {
        self.rate as f64 / self.link as f64
    }

    fn title(self) -> String {
        let Self { ranks, rate, .. } = self;
        let stretched = match self.stretch() {
            1.0 => String::new(),
            factor => format!(" (measured with times stretched {factor} times)"),
        };
        format!("{ranks} ranks, links of {} Gb/s{stretched}", rate as f64 / 1e9)
    }
}

/// How gradients get over the ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Gloo,
    OpenMpi,
    /// An aggregator that has a port for each rank.
    Aggregator(Precision),
    /// Ranks serve each other.
    Alone(Precision),
}

const WAYS: [(Way, &str); 8] = [
    (Way::Gloo, "Gloo"),
    (Way::OpenMpi, "Open MPI"),
    (Way::Aggregator(Precision::Exact), "aggregator"),
    (Way::Aggregator(Precision::Bits16), "16 bits"),
    (Way::Aggregator(Precision::Bits8), "8 bits"),
    (Way::Alone(Precision::Exact), "alone"),
    (Way::Alone(Precision::Bits16), "16 bits"),
    (Way::Alone(Precision::Bits8), "8 bits"),
];

impl Way {
    /// Seconds of a sum as `switchml-worker plan` has them; a ring for Gloo, and nothing for Open
    /// MPI, which has other ways, too.
    fn cost(self, setting: Setting, elements: usize) -> Option<f64> {
        let (hosts, size) = (setting.ranks as u32, elements * DType::F32.size());
        let (units, precision) = match self {
            Self::OpenMpi => return None,
            Self::Gloo => {
                let (units, framing) = (cost::ring(hosts), Framing::Tcp { mtu: MTU });
                return Some(cost::seconds(units, size as f64, framing, setting.link));
            }
            Self::Aggregator(precision) => (1.0, precision),
            Self::Alone(precision) => (cost::aggregated(hosts, hosts, 0.0), precision),
        };
        let sum = Reduction::new(ReduceOp::Sum, precision);
        let codec = Codec::reduction(DType::F32, sum, setting.ranks, elements).ok()?;
        let bytes = cost::bytes_in_packets(size, codec);
        Some(cost::seconds(units, bytes, Framing::packets_at(MTU), setting.link))
    }
}

/// A model's steps in the rack.
struct Row {
    model: Model,
    step: Step,
    /// Milliseconds, stretched, by way and run.
    times: Vec<Vec<f64>>,
}

struct Table {
    setting: Setting,
    rows: Vec<Row>,
}

/// Measures all settings.
pub fn measure(kit: &Kit, options: &Options) -> Result<Report> {
    let programs = Programs::ensure(kit)?;
    let models = if options.only.is_empty() { all() } else { options.only.clone() };
    let processors = available_parallelism().context("cannot count processors")?.get();
    let mut report = Report::default();
    for ranks in &options.ranks {
        for rate in &options.rates {
            let setting = Setting::new(*ranks, *rate, processors);
            let site = Site::new(setting, kit, &programs)?;
            let table = Table::measure(setting, &site, &models, kit.runs)?;
            report.text += &table.markdown();
            report.files.push((table.file_name(), plot::draw_table(&table)?));
        }
    }
    Ok(report)
}

/// The models that have a computing time and fit.
fn all() -> Vec<Model> {
    const MOST: usize = 1 << 30;
    let fits = |model: &Model| published::find(*model, None).is_ok() && model.parameters < MOST;
    models::ALL.into_iter().filter(fits).collect()
}

impl Table {
    fn measure(setting: Setting, site: &Site, models: &[Model], runs: usize) -> Result<Self> {
        let _links = site.racks.shape(Some(setting.link))?;
        let row = |model: &Model| Row::new(*model, setting);
        let mut rows = models.iter().map(row).collect::<Result<Vec<_>>>()?;
        let times = rows_in_turn(runs, [rows.len(), WAYS.len()], |row, number, run| {
            let ((way, name), row) = (WAYS[number], &rows[row]);
            let step = site.step(row, way, run == 0);
            let step = step.with_context(|| format!("{}, {name}", row.model))?;
            // So that all is known of a run that somebody ends.
            let unstretched = step / setting.stretch();
            eprintln!("{}, {}, {name}: {unstretched:.0} ms", setting.title(), row.model);
            Ok(step)
        })?;
        for (row, times) in rows.iter_mut().zip(times) {
            row.times = times;
        }
        Ok(Self { setting, rows })
    }

    fn file_name(&self) -> String {
        let Setting { ranks, rate, .. } = self.setting;
        format!("models-{ranks}-{}.svg", rate as f64 / 1e9)
    }

    fn markdown(&self) -> String {
        let setting = self.setting;
        let table = |first| Text::new([first].into_iter().chain(WAYS.map(|(_, name)| name)));
        let (mut times, mut ratios) = (table("model: computing"), table("model"));
        for row in &self.rows {
            let ways = || WAYS.iter().zip(&row.times);
            let unstretched =
                |times: &[f64]| Spread::of(times.to_vec()).times(1.0 / setting.stretch());
            let cells = ways().map(|(_, times)| unstretched(times).to_string());
            times.cells([row.title(setting)].into_iter().chain(cells));
            let cells = ways().map(|((way, _), times)| row.speed_up(*way, times, setting));
            ratios.cells([row.model.to_string()].into_iter().chain(cells));
        }
        format!(
            "{}, ms of a step:\n\n{times}\nGloo's time to it; longer than planned:\n\n{ratios}\n",
            setting.title()
        )
    }
}

impl Row {
    fn new(model: Model, setting: Setting) -> Result<Self> {
        let speed = published::find(model, None).map_err(|error| anyhow!(error))?;
        let step = model.step(speed.compute().mul_f64(setting.stretch()));
        Ok(Self { model, step, times: Vec::new() })
    }

    fn buckets(&self) -> Vec<Bucket> {
        buckets::of(&self.step, DType::F32.size())
    }

    fn compute_ms(&self) -> f64 {
        1e3 * self.step.compute().as_secs_f64()
    }

    fn title(&self, setting: Setting) -> String {
        format!("{}: {:.0}", self.model, self.compute_ms() / setting.stretch())
    }

    fn speed_up(&self, way: Way, times: &[f64], setting: Setting) -> String {
        let ratio = self.ratio(times).median;
        let median = Spread::of(times.to_vec()).median;
        match self.planned_ms(way, setting) {
            Some(planned) => format!("{ratio:.2}; {:+.0} %", 100.0 * (median / planned - 1.0)),
            None => format!("{ratio:.2}"),
        }
    }

    /// Gloo's time to these.
    fn ratio(&self, times: &[f64]) -> Spread {
        Spread::of_ratios(&self.times[0], times)
    }

    /// The step as `switchml-worker plan` has it, in the rack.
    fn planned_ms(&self, way: Way, setting: Setting) -> Option<f64> {
        let buckets = self.buckets();
        way.cost(setting, buckets.first()?.elements)?;
        let cost =
            |elements| Duration::from_secs_f64(way.cost(setting, elements).unwrap_or_default());
        Some(1e3 * timeline::step(&buckets, self.step.compute(), cost).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(setting: Setting) -> Row {
        Row::new("resnet50".parse().unwrap(), setting).unwrap()
    }

    /// 2.5 Gb/s on links of 1 Gb/s: the computing of 292.2 ms takes 730.6, and so does all else.
    #[test]
    fn stretched_steps_are_planned_like_others() {
        let [slow, fast] = [2, 5].map(|processors| Setting::new(4, 2_500_000_000, processors));
        assert_eq!((slow.stretch(), row(slow).compute_ms().round()), (2.5, 731.0));
        for (way, _) in WAYS.into_iter().filter(|(way, _)| *way != Way::OpenMpi) {
            let [slow, fast] =
                [slow, fast].map(|setting| row(setting).planned_ms(way, setting).unwrap());
            assert!((slow / fast / 2.5 - 1.0).abs() < 1e-3, "{slow} {fast}");
        }
    }

    /// 16 processors carry 32 Gb/s; no link is faster than it is to be.
    #[test]
    fn links_are_as_fast_as_processors_allow() {
        let link = |ranks, processors| Setting::new(ranks, 10_000_000_000, processors).link;
        assert_eq!(
            [link(4, 2), link(8, 2), link(4, 16), link(8, 16), link(4, 64)],
            [1_000_000_000, 500_000_000, 8_000_000_000, 4_000_000_000, 10_000_000_000]
        );
    }

    /// 102.2 MB take 863 ms at 1 Gb/s with our headers. The first bucket has 2,049,000 elements
    /// (`fc`), ready long before the others have come.
    #[test]
    fn a_step_of_which_links_take_most() {
        let setting = Setting::new(4, 1_000_000_000, 2);
        let row = row(setting);
        assert_eq!(row.buckets()[0].elements, 2_049_000);
        let ready = 1e3 * row.buckets()[0].ready.as_secs_f64();
        let planned = row.planned_ms(Way::Aggregator(Precision::Exact), setting).unwrap();
        assert!((planned - ready - 863.2).abs() < 0.1, "{planned} {ready}");
    }

    #[test]
    fn tables_have_unstretched_times() {
        let setting = Setting::new(4, 2_500_000_000, 2);
        let mut row = row(setting);
        row.times = (1..=WAYS.len()).map(|way| vec![2500.0 / way as f64; 3]).collect();
        let text = Table { setting, rows: vec![row] }.markdown();
        assert!(text.starts_with("4 ranks, links of 2.5 Gb/s (measured with times stretched 2.5"));
        assert!(text.contains("| resnet50: 292 | 1000 (1000-1000) | 500 (500-500) |"), "{text}");
        assert!(text.contains("| resnet50 | 1.00; "), "{text}");
    }

    #[test]
    fn models_that_fit_and_have_a_computing_time() {
        let names: Vec<&str> = all().iter().map(|model| model.name).collect();
        let expected =
            ["alexnet", "vgg16", "resnet50", "resnet152", "inception3", "bert-large", "gpt2"];
        assert_eq!(names, expected);
    }
}
