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

use std::fmt::Write as _;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::builder::RangedU64ValueParser as Number;
use switchml_cli::size;
use switchml_rack::Binaries;
use switchml_step::buckets::{self, Bucket};
use switchml_step::models::{self, Model};
use switchml_step::{Step, published, timeline};
use switchml_worker_core::cost::{self, Framing};
use switchml_worker_core::numerics::Codec;
use switchml_worker_core::{DType, Precision, ReduceOp, Reduction};

use super::peers::Programs;
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
    times: [Vec<f64>; WAYS.len()],
}

struct Table {
    setting: Setting,
    rows: Vec<Row>,
}

/// What was measured.
pub struct Results(Vec<Table>);

/// Measures all settings, each way in turn.
pub fn measure(
    binaries: &Binaries,
    programs: &Programs,
    scratch: &Path,
    options: &Options,
    runs: usize,
) -> Result<Results> {
    let models = if options.only.is_empty() { all() } else { options.only.clone() };
    let processors = available_parallelism().context("cannot count processors")?.get();
    let settings = options
        .ranks
        .iter()
        .flat_map(|ranks| options.rates.iter().map(|rate| Setting::new(*ranks, *rate, processors)));
    let measure = |setting| Table::measure(setting, binaries, programs, scratch, &models, runs);
    Ok(Results(settings.map(measure).collect::<Result<_>>()?))
}

impl Results {
    pub fn markdown(&self) -> String {
        self.0.iter().map(Table::markdown).collect()
    }

    /// A plot for each setting, how many times as fast as with Gloo steps are: the file's name, and
    /// the SVG.
    pub fn plots(&self) -> Result<Vec<(String, String)>> {
        self.0.iter().map(|table| Ok((table.file_name(), plot::draw_table(table)?))).collect()
    }
}

/// The models that have a computing time and fit.
fn all() -> Vec<Model> {
    const MOST: usize = 1 << 30;
    let fits = |model: &Model| published::find(*model, None).is_ok() && model.parameters < MOST;
    models::ALL.into_iter().filter(fits).collect()
}

impl Table {
    fn measure(
        setting: Setting,
        binaries: &Binaries,
        programs: &Programs,
        scratch: &Path,
        models: &[Model],
        runs: usize,
    ) -> Result<Self> {
        let site = Site::new(setting, binaries, programs, scratch)?;
        let _links = site.shape()?;
        let mut rows =
            models.iter().map(|model| Row::new(*model, setting)).collect::<Result<Vec<_>>>()?;
        for run in 0..runs {
            for row in &mut rows {
                for turn in 0..WAYS.len() {
                    let number = (turn + run) % WAYS.len();
                    let (way, name) = WAYS[number];
                    let what = || format!("{}, {name}", row.model);
                    row.times[number].push(site.step(row, way).with_context(what)?);
                }
                let last = row.last(setting);
                eprintln!("bench: {}, repetition {}: {last}", setting.title(), run + 1);
            }
        }
        Ok(Self { setting, rows })
    }

    fn file_name(&self) -> String {
        let Setting { ranks, rate, .. } = self.setting;
        format!("models-{ranks}-{}.svg", rate as f64 / 1e9)
    }

    fn markdown(&self) -> String {
        let names: String = WAYS.iter().map(|(_, name)| format!(" {name} |")).collect();
        let rule = "|---".repeat(WAYS.len() + 1);
        let head = |first: &str| format!("| {first} |{names}\n{rule}|\n");
        let title = self.setting.title();
        let mut text = format!("{title}, ms of a step:\n\n{}", head("model: computing"));
        for row in &self.rows {
            let _ = writeln!(text, "| {} |{}", row.title(self.setting), row.cells(self.setting));
        }
        let _ = write!(text, "\nGloo's time to it; longer than planned:\n\n{}", head("model"));
        for row in &self.rows {
            let _ = writeln!(text, "| {} |{}", row.model, row.speed_ups(self.setting));
        }
        text + "\n"
    }
}

impl Row {
    fn new(model: Model, setting: Setting) -> Result<Self> {
        let speed = published::find(model, None).map_err(|error| anyhow!(error))?;
        let step = model.step(speed.compute().mul_f64(setting.stretch()));
        Ok(Self { model, step, times: Default::default() })
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

    /// What was measured last, so that all is known of a run that somebody ends.
    fn last(&self, setting: Setting) -> String {
        let time = |times: &Vec<f64>| format!(" {:.0}", times[times.len() - 1] / setting.stretch());
        format!("{}{} ms", self.model, self.times.iter().map(time).collect::<String>())
    }

    fn cells(&self, setting: Setting) -> String {
        let cell = |times: &Vec<f64>| {
            let unstretched = times.iter().map(|time| time / setting.stretch()).collect();
            let Spread { low, median, high } = Spread::of(unstretched);
            format!(" {median:.0} ({low:.0}-{high:.0}) |")
        };
        self.times.iter().map(cell).collect()
    }

    fn speed_ups(&self, setting: Setting) -> String {
        let cell = |((way, _), times): (&(Way, &str), &Vec<f64>)| {
            let ratio = self.ratio(times).median;
            let median = Spread::of(times.clone()).median;
            match self.planned_ms(*way, setting) {
                Some(planned) => {
                    format!(" {ratio:.2}; {:+.0} % |", 100.0 * (median / planned - 1.0))
                }
                None => format!(" {ratio:.2} |"),
            }
        };
        WAYS.iter().zip(&self.times).map(cell).collect()
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
        row.times = std::array::from_fn(|way| vec![2500.0 / (way + 1) as f64; 3]);
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
