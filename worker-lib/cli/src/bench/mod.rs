//! `switchml-worker bench`: nccl-tests' all-reduce benchmark, and replays of training steps.

mod agree;
mod progress;
mod replay;
mod replayed;
mod report;
mod run;
mod table;

use std::{fs::File, io::Write, num::NonZeroUsize, path::PathBuf};

use half::{bf16, f16};
use switchml_cli::size;
use switchml_pattern::{Tested, Zeros};
use switchml_worker::{
    Communicator, DType, Precision, ReduceOp, Reduction, Stripe, control, interface::Interface,
    numerics::Codec,
};

use super::job::{self, Job};
use super::step::{Chosen, StepOptions};
use super::{Failure, say};
pub use progress::Progress;
pub use replay::Replay;
use replayed::Replayed;
use report::{Report, Setup};
use run::Runner;
use table::{Foot, Head};

/// Headings of `--help`; options that most users need stand above them.
const TENSORS: &str = "Tensors";
const MEASUREMENT: &str = "Measurement";

/// Measures all-reduces, checks every element, and prints nccl-tests' table on rank 0
#[derive(clap::Args)]
#[command(after_help = super::after_help("bench"))]
pub struct Bench {
    #[command(flatten)]
    job: Job,
    #[command(flatten)]
    step: StepOptions,
    /// Smallest tensor
    #[arg(
        short = 'b', long, value_name = "SIZE", default_value = "8", value_parser = size::parse,
        conflicts_with_all = ["model", "trace"]
    )]
    minbytes: usize,
    /// Largest tensor
    #[arg(
        short = 'e', long, value_name = "SIZE", default_value = "64M", value_parser = size::parse,
        conflicts_with_all = ["model", "trace"]
    )]
    maxbytes: usize,
    /// Each tensor is this many times as large as the one before [default: 2]
    #[arg(
        short = 'f', long, help_heading = TENSORS, value_name = "FACTOR",
        value_parser = clap::value_parser!(u16).range(2..),
        conflicts_with_all = ["model", "trace"]
    )]
    stepfactor: Option<u16>,
    /// Each tensor is this much larger than the one before
    #[arg(
        short = 'i', long, help_heading = TENSORS, value_name = "SIZE", value_parser = size::parse,
        conflicts_with_all = ["stepfactor", "model", "trace"]
    )]
    stepbytes: Option<usize>,
    /// Timed iterations, or steps
    #[arg(short = 'n', long, value_name = "N", default_value = "20")]
    iters: NonZeroUsize,
    /// Iterations at the largest and the smallest size before anything is timed
    #[arg(
        short = 'w', long, help_heading = MEASUREMENT, alias = "warmup_iters", value_name = "N",
        default_value = "5"
    )]
    warmup_iters: usize,
    /// Iterations of each size whose every element is checked, apart from the timed ones; 0 to
    /// check nothing
    #[arg(short = 'c', long, help_heading = MEASUREMENT, value_name = "N", default_value = "1")]
    check: usize,
    /// Element type: f32, f64, f16, bf16, i32 or i64
    #[arg(
        short = 'd', long, help_heading = TENSORS, alias = "datatype", value_name = "TYPE",
        default_value = "f32"
    )]
    dtype: DType,
    /// Reduction: sum, avg, max or min
    #[arg(short = 'o', long, help_heading = TENSORS, default_value = "sum")]
    op: ReduceOp,
    /// Bits of an element that travel in a sum or an average of floats: exact, 16 (half the
    /// packets) or 8 (a quarter)
    #[arg(long, help_heading = TENSORS, value_name = "BITS", default_value = "exact")]
    precision: Precision,
    /// Share of the chunks that are zero on all ranks, 0 to 1
    #[arg(
        long, help_heading = TENSORS, value_name = "SHARE", default_value = "0",
        value_parser = share,
        conflicts_with_all = ["model", "trace"]
    )]
    sparsity: f64,
    /// Also write the results as JSON to a file; to standard output, instead of the table, with -
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Bench {
    /// Runs one rank's part.
    pub fn run(&self) -> Result<(), Failure> {
        match self.dtype {
            DType::F32 => self.run_with::<f32>(),
            DType::F64 => self.run_with::<f64>(),
            DType::F16 => self.run_with::<f16>(),
            DType::Bf16 => self.run_with::<bf16>(),
            DType::I32 => self.run_with::<i32>(),
            DType::I64 => self.run_with::<i64>(),
        }
    }

    fn run_with<T: Tested>(&self) -> Result<(), Failure> {
        match self.step.load()? {
            Some(chosen) => self.run_step::<T>(&chosen),
            None => self.run_sizes::<T>(),
        }
    }

    /// Replays a training step, with computing and without, in turn.
    fn run_step<T: Tested>(&self, chosen: &Chosen) -> Result<(), Failure> {
        let settings = self.job.settings()?;
        Codec::reduction(self.dtype, self.reduction(), 1, 1)
            .map_err(|error| Failure::Usage(error.to_string()))?;
        check_memory(chosen.step.elements(), size_of::<T>())?;
        let is_reporter = settings.settings().rank == Some(0);
        let output = Output::open(self.json.as_ref().filter(|_| is_reporter))?;
        let communicator = settings.connect().map_err(Failure::joining)?;
        let mut report = Replayed::new::<T>(chosen, communicator.world_size(), self.reduction());
        let iterations = self.warmup_iters + 2 * self.iters.get() + self.check;
        let progress = Progress::new(is_reporter, iterations);
        let mut replay = Replay::<T>::new(&communicator, self.reduction(), &chosen.step, progress);
        let times = [&mut report.step_ms, &mut report.communication_ms];
        replay.time(self.warmup_iters, self.iters.get(), times).map_err(Failure::Collective)?;
        for _ in 0..self.check {
            report.add_check(replay.check().map_err(Failure::Collective)?);
        }
        communicator.close().map_err(Failure::Collective)?;
        report.conclude();
        if is_reporter && !output.is_stdout() {
            say(&report);
        }
        output.write(&report.to_json())?;
        report.verdict()
    }

    fn run_sizes<T: Tested>(&self) -> Result<(), Failure> {
        let counts = self.counts().map_err(Failure::Usage)?;
        Codec::reduction(self.dtype, self.reduction(), 1, counts[0])
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let largest = counts.iter().copied().max().unwrap_or_default();
        let settings = self.job.settings()?;
        check_memory(largest, size_of::<T>())?;
        let is_reporter = settings.settings().rank == Some(0);
        let output = Output::open(self.json.as_ref().filter(|_| is_reporter))?;
        let communicator = settings.clone().connect().map_err(Failure::joining)?;
        let stripes = communicator.info().stripes.iter();
        let ask = |stripe: &Stripe| job::status(&settings.access(&stripe.control)).ok();
        let served: Vec<_> =
            stripes.filter(|_| is_reporter).map(|stripe| Served::by(stripe, ask(stripe))).collect();
        let interface = communicator.info().stripes.first().and_then(interface);

        let mut report = Report::new(self.setup::<T>(&communicator, &served));
        let prints = is_reporter && !output.is_stdout();
        if prints {
            say(Head(&report));
        }
        let iterations = counts.len() * 2 * (self.iters.get() + self.check);
        let progress = Progress::new(is_reporter, iterations);
        let zeros = self.zeros(&communicator, largest)?;
        let (iters, check) = (self.iters.get(), self.check);
        let mut runner = Runner::<T>::new(
            communicator,
            self.reduction(),
            iters,
            check,
            zeros,
            largest,
            progress,
        );
        let (smallest, warmup_iters) = (counts[0], self.warmup_iters);
        runner.warm_up(&[largest, smallest], warmup_iters).map_err(Failure::Collective)?;
        for count in counts {
            let row = runner.row(count, &mut report.differing).map_err(Failure::Collective)?;
            if prints {
                runner.print(|| say(&row));
            }
            report.rows.push(row);
        }
        let stats = runner.finish().map_err(Failure::Collective)?;
        (report.sent, report.waits) = ((&stats.calls).into(), stats.waits.into());

        report.conclude(interface.as_ref());
        if prints {
            say(Foot(&report));
        }
        output.write(&report.to_json())?;
        report.verdict()
    }

    fn reduction(&self) -> Reduction {
        Reduction::new(self.op, self.precision)
    }

    /// Numbers of elements, smallest first.
    fn counts(&self) -> Result<Vec<usize>, String> {
        let element = self.dtype.size();
        let Self { minbytes, maxbytes, .. } = *self;
        if minbytes > maxbytes {
            return Err(format!("--minbytes {minbytes} is more than --maxbytes {maxbytes}"));
        }
        if minbytes < element {
            return Err(format!(
                "--minbytes {minbytes} is too small: one {} takes {element} bytes; give that or \
                 more",
                self.dtype
            ));
        }
        if let Some(step) = self.stepbytes.filter(|step| *step < element) {
            return Err(format!(
                "--stepbytes {step} is too small: one {} takes {element} bytes; give that or more",
                self.dtype
            ));
        }
        let next = |&size: &usize| match self.stepbytes {
            Some(step) => size.checked_add(step),
            None => size.checked_mul(self.stepfactor.unwrap_or(2).into()),
        };
        let sizes =
            std::iter::successors(Some(minbytes), next).take_while(|&size| size <= maxbytes);
        Ok(sizes.map(|size| size / element).collect())
    }

    fn zeros(&self, communicator: &Communicator, count: usize) -> Result<Zeros, Failure> {
        let codec = Codec::reduction(
            self.dtype,
            self.reduction(),
            communicator.world_size() as usize,
            count,
        )
        .map_err(|error| Failure::Usage(error.to_string()))?;
        let bytes = codec.bytes_per_chunk(communicator.info().chunk_lanes.into());
        Ok(Zeros { share: self.sparsity, chunk: bytes / self.dtype.size() })
    }

    fn setup<T: Tested>(&self, communicator: &Communicator, served: &[Served]) -> Setup {
        let addresses = served.iter().zip(communicator.info().shares());
        let aggregator = match served {
            [only] => only.address.clone(),
            _ => addresses.map(with_share).collect::<Vec<_>>().join(", "),
        };
        let words = |of: fn(&Served) -> &str| {
            let mut words: Vec<_> = served.iter().map(of).collect();
            words.dedup();
            words.join(", ")
        };
        let step = match self.stepbytes {
            Some(step) => format!("{step}(bytes)"),
            None => format!("{}(factor)", self.stepfactor.unwrap_or(2)),
        };
        Setup {
            version: env!("CARGO_PKG_VERSION"),
            aggregator,
            data_plane: words(|served| &served.data_plane),
            attachment: words(|served| &served.attachment),
            world_size: communicator.world_size() as usize,
            lanes: communicator.info().chunk_lanes.into(),
            data_threads: communicator.info().data_threads(),
            dtype: T::NCCL_NAME,
            redop: self.reduction().name(),
            minbytes: self.minbytes,
            maxbytes: self.maxbytes,
            step,
            warmup_iters: self.warmup_iters,
            iters: self.iters.get(),
            check: self.check,
            sparsity: self.sparsity,
        }
    }
}

/// Refuses tensors that this host's memory cannot hold: the kernel would end the process later.
fn check_memory(elements: usize, size: usize) -> Result<(), Failure> {
    let system = rustix::system::sysinfo();
    let memory = system.totalram as u64 * u64::from(system.mem_unit);
    let needed = (elements as u64).saturating_mul(size as u64);
    if needed < memory {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "the tensors take {needed} bytes on each rank, and this host has {memory}; use smaller \
         ones or another --dtype"
    )))
}

/// What a report says of an aggregator.
struct Served {
    address: String,
    data_plane: String,
    attachment: String,
}

impl Served {
    /// An aggregator that has told its status or not: measuring does not depend on it.
    fn by(stripe: &Stripe, status: Option<control::AggregatorStatus>) -> Self {
        match status {
            Some(status) => Self {
                address: status.address,
                data_plane: status.data_plane,
                attachment: status.attachment,
            },
            None => Self {
                address: stripe.control.clone(),
                data_plane: "unknown".to_owned(),
                attachment: "unknown, it did not tell its status".to_owned(),
            },
        }
    }
}

/// One of several aggregators, and its share of large calls.
fn with_share((served, share): (&Served, f64)) -> String {
    format!("{} ({:.1} %)", served.address, 100.0 * share)
}

/// A share of something.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("{text:?} is not a share; use a number from 0 to 1"))
}

/// The destination of the JSON.
enum Output {
    Nowhere,
    Stdout,
    File(File, PathBuf),
}

impl Output {
    /// Opens the destination before anything is measured, so that a wrong path costs no time.
    fn open(path: Option<&PathBuf>) -> Result<Self, Failure> {
        match path {
            None => Ok(Self::Nowhere),
            Some(path) if path.as_os_str() == "-" => Ok(Self::Stdout),
            Some(path) => match File::create(path) {
                Ok(file) => Ok(Self::File(file, path.clone())),
                Err(error) => Err(Self::failed(path, &error)),
            },
        }
    }

    fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    fn write(self, json: &str) -> Result<(), Failure> {
        match self {
            Self::Nowhere => Ok(()),
            Self::Stdout => {
                say(json);
                Ok(())
            }
            Self::File(mut file, path) => {
                writeln!(file, "{json}").map_err(|error| Self::failed(&path, &error))
            }
        }
    }

    fn failed(path: &std::path::Path, error: &std::io::Error) -> Failure {
        Failure::Usage(format!("--json {}: {error}", path.display()))
    }
}

/// This rank's interface towards an aggregator.
fn interface(stripe: &Stripe) -> Option<Interface> {
    Interface::towards(stripe.aggregator)
}
