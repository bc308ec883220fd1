//! `cargo xtask bench --models`: training steps of public models, replayed, with Gloo, Open MPI and
//! this project, and what `switchml-worker plan` says of them.
//!
//! Computing is a sleep of the published time; gradients travel in the buckets of torch's
//! DistributedDataParallel, beside it. Links are slow enough for this machine's processors, and
//! computing is stretched as much: all times are, and the tables have them unstretched.
//!
//! Models without a published computing time are left out, and Llama 8B, whose gradients take 32 GB
//! on each rank.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use switchml_rack::{Aggregator, Binaries, Mpi, Process, Rack, RackOptions, Shaping};
use switchml_step::buckets::{self, Bucket};
use switchml_step::models::{self, Model};
use switchml_step::{Step, published, timeline};
use switchml_worker_core::cost::{self, Framing};
use switchml_worker_core::numerics::Codec;
use switchml_worker_core::{DType, Precision, ReduceOp, Reduction};

use super::peers::Programs;
use crate::cargo;
use crate::stats::Spread;

const PATIENCE: Duration = Duration::from_secs(600);
/// Where ranks without an aggregator meet.
const PORT: &str = "29500";
/// Of the rack's links.
const MTU: usize = 1500;

/// Ranks, and their links.
#[derive(Clone, Copy)]
struct Setting {
    ranks: usize,
    /// Bits per second of the links that the tables are about.
    rate: u64,
    /// Bits per second of the links in the rack.
    link: u64,
}

const fn setting(ranks: usize, rate: u64, link: u64) -> Setting {
    Setting { ranks, rate, link }
}

const SETTINGS: [Setting; 6] = [
    setting(4, 1_000_000_000, 1_000_000_000),
    setting(4, 2_500_000_000, 1_000_000_000),
    setting(4, 10_000_000_000, 1_000_000_000),
    setting(8, 1_000_000_000, 500_000_000),
    setting(8, 2_500_000_000, 500_000_000),
    setting(8, 10_000_000_000, 500_000_000),
];

impl Setting {
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

/// What rank 0 says.
#[derive(Deserialize)]
struct Said {
    /// Times of steps, of which there is one.
    step_ms: Vec<f64>,
    /// Elements that were wrong in a step before.
    out_of_bounds: Option<u64>,
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

/// Measures, in turn: these models, or all if none are named; if it has to be quick, in the first
/// setting alone. Returns tables.
pub fn measure(
    binaries: &Binaries,
    programs: &Programs,
    scratch: &Path,
    models: &[Model],
    (runs, is_quick): (usize, bool),
) -> Result<String> {
    let chosen = if models.is_empty() { all() } else { models.to_vec() };
    let settings = if is_quick { &SETTINGS[..1] } else { &SETTINGS };
    let mut text = String::new();
    for setting in settings {
        let table = Table::measure(*setting, binaries, programs, scratch, &chosen, runs)?;
        text += &table.markdown();
    }
    Ok(text)
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
                eprintln!("bench: {}, {}, repetition {}", setting.title(), row.model, run + 1);
            }
        }
        Ok(Self { setting, rows })
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
            let ratio = Spread::of_ratios(&self.times[0], times).median;
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

    /// The step as `switchml-worker plan` has it, in the rack.
    fn planned_ms(&self, way: Way, setting: Setting) -> Option<f64> {
        let buckets = self.buckets();
        way.cost(setting, buckets.first()?.elements)?;
        let cost =
            |elements| Duration::from_secs_f64(way.cost(setting, elements).unwrap_or_default());
        Some(1e3 * timeline::step(&buckets, self.step.compute(), cost).as_secs_f64())
    }
}

/// The racks: `ours` with the aggregator, and `plain`, without a program at the switch's ports.
struct Site<'a> {
    // Dropped in this order.
    aggregator: Aggregator,
    ours: Rack,
    plain: Rack,
    setting: Setting,
    binaries: &'a Binaries,
    programs: &'a Programs,
    /// Open MPI's rank.
    mpi: PathBuf,
    scratch: &'a Path,
}

impl<'a> Site<'a> {
    fn new(
        setting: Setting,
        binaries: &'a Binaries,
        programs: &'a Programs,
        scratch: &'a Path,
    ) -> Result<Self> {
        let rack = || Rack::new(RackOptions { workers: setting.ranks, ..RackOptions::default() });
        let (ours, plain) = (rack()?, rack()?);
        let aggregator = Aggregator::in_rack(binaries, &ours)?;
        let mpi = Mpi::OpenMpi.program(&peer("mpi_step.c"), scratch)?;
        Ok(Self { aggregator, ours, plain, setting, binaries, programs, mpi, scratch })
    }

    fn shape(&self) -> Result<[Shaping<'_>; 2]> {
        let shape = |rack| Shaping::new(rack, self.setting.link);
        Ok([shape(&self.ours)?, shape(&self.plain)?])
    }

    /// Milliseconds of a step, after one that is not timed.
    fn step(&self, row: &Row, way: Way) -> Result<f64> {
        let mut processes = match way {
            Way::Gloo => self.gloo(row)?,
            Way::OpenMpi => vec![self.open_mpi(row)?],
            Way::Aggregator(precision) => {
                self.ranks(&self.ours, row, precision, Some(self.aggregator.control()))?
            }
            Way::Alone(precision) => self.ranks(&self.plain, row, precision, None)?,
        };
        processes.iter_mut().try_for_each(|process| process.wait_success(PATIENCE))?;
        let said: Said = serde_json::from_str(&processes[0].stdout()).context("not a report")?;
        ensure!(said.out_of_bounds.unwrap_or_default() == 0, "elements are wrong");
        said.step_ms.first().copied().context("no time")
    }

    /// This project's ranks. The first run checks every element.
    fn ranks(
        &self,
        rack: &Rack,
        row: &Row,
        precision: Precision,
        aggregator: Option<&str>,
    ) -> Result<Vec<Process>> {
        let compute = row.compute_ms().to_string();
        let is_checked = row.times.iter().any(Vec::is_empty);
        let bits = match precision {
            Precision::Exact => "exact",
            Precision::Bits16 => "16",
            Precision::Bits8 => "8",
        };
        let start = |rank: usize| {
            let mut command = Command::new(&self.binaries.worker);
            command.env_remove("SWITCHML_AGGREGATOR").env("MASTER_PORT", PORT);
            command.env("MASTER_ADDR", Rack::worker_address(0).to_string());
            command.args(["bench", "--job", "models", "--rank", &rank.to_string()]);
            command.args(["--world-size", &self.setting.ranks.to_string()]);
            command.args(["--model", row.model.name, "--compute", &compute, "--precision", bits]);
            command.args(["--json", "-", "-w", "1", "-n", "1"]);
            command.args(["-c", if is_checked { "1" } else { "0" }]);
            command.args(aggregator.into_iter().flat_map(|address| ["--aggregator", address]));
            Ok(rack.worker(rank).spawn(&format!("rank {rank}"), command)?)
        };
        (0..self.setting.ranks).map(start).collect()
    }

    /// Ranks of torch, which exchange addresses by a file.
    fn gloo(&self, row: &Row) -> Result<Vec<Process>> {
        let rendezvous = self.scratch.join("step-rendezvous");
        let _ = fs::remove_file(&rendezvous);
        let buckets = self.write(row)?;
        let start = |rank: usize| {
            let mut command = Command::new(&self.programs.python);
            command.env("GLOO_SOCKET_IFNAME", "eth0").env("OMP_NUM_THREADS", "1");
            command.arg(peer("gloo_step.py"));
            command.args([rank.to_string(), self.setting.ranks.to_string()]);
            command.arg(&rendezvous).arg(&buckets);
            Ok(self.plain.worker(rank).spawn(&format!("Gloo's rank {rank}"), command)?)
        };
        (0..self.setting.ranks).map(start).collect()
    }

    fn open_mpi(&self, row: &Row) -> Result<Process> {
        let buckets = self.write(row)?;
        let workers = self.plain.workers().iter().enumerate();
        let workers: Vec<_> =
            workers.map(|(rank, worker)| (worker, Rack::worker_address(rank).into())).collect();
        let top = (self.plain.switch(), self.plain.aggregator_address());
        let program = [self.mpi.as_os_str(), buckets.as_os_str()];
        Ok(Mpi::OpenMpi.start(top, &workers, self.scratch, &[], &program)?)
    }

    /// Writes the buckets for others' ranks: elements, and microseconds until they are ready. The
    /// last one is ready when the computing is over.
    fn write(&self, row: &Row) -> Result<PathBuf> {
        let path = self.scratch.join("step-buckets");
        let line = |bucket: &Bucket| format!("{} {}\n", bucket.elements, bucket.ready.as_micros());
        let text: String = row.buckets().iter().map(line).collect();
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// The source of another library's rank.
fn peer(name: &str) -> PathBuf {
    cargo::workspace().join("xtask/src/bench/peers").join(name)
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
        let [slow, fast] = [SETTINGS[1], setting(4, 2_500_000_000, 2_500_000_000)];
        assert_eq!((slow.stretch(), row(slow).compute_ms().round()), (2.5, 731.0));
        for (way, _) in WAYS.into_iter().filter(|(way, _)| *way != Way::OpenMpi) {
            let [slow, fast] =
                [slow, fast].map(|setting| row(setting).planned_ms(way, setting).unwrap());
            assert!((slow / fast / 2.5 - 1.0).abs() < 1e-3, "{slow} {fast}");
        }
    }

    /// 102.2 MB take 863 ms at 1 Gb/s with our headers. The first bucket has 2,049,000 elements
    /// (`fc`), ready long before the others have come.
    #[test]
    fn a_step_of_which_links_take_most() {
        let setting = SETTINGS[0];
        let row = row(setting);
        assert_eq!(row.buckets()[0].elements, 2_049_000);
        let ready = 1e3 * row.buckets()[0].ready.as_secs_f64();
        let planned = row.planned_ms(Way::Aggregator(Precision::Exact), setting).unwrap();
        assert!((planned - ready - 863.2).abs() < 0.1, "{planned} {ready}");
    }

    #[test]
    fn tables_have_unstretched_times() {
        let setting = SETTINGS[1];
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
