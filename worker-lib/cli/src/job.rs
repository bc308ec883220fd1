//! Which job, and which rank in it: flags over environment.

use std::path::PathBuf;
use std::time::Duration;

use switchml_cli::tls::TlsOptions;
use switchml_worker::control::{self, Access, AggregatorStatus, ClientTls, Token};
use switchml_worker::{Builder, Communicator};

use super::{Failure, seconds};

/// Headings of `--help`; options that most users need stand above them.
const WAITS: &str = "Waits";
const TUNING: &str = "Tuning";

/// Longest wait for the aggregator's answer to a question about itself.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// A rank's membership. Environment variables as torchrun and srun set them; flags override them.
#[derive(clap::Args)]
pub struct Job {
    #[command(flatten)]
    aggregator: Aggregator,
    /// Name of the job, the same on all ranks, and of no other job at these aggregators [env:
    /// SWITCHML_JOB, or TORCHELASTIC_RUN_ID, or Slurm's job and step] [default: rank 0 makes one up
    /// where ranks meet, at MASTER_ADDR:MASTER_PORT]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    #[command(flatten)]
    place: Place,
    /// A collective fails after this many seconds without an answer from the aggregator
    #[arg(
        long, help_heading = WAITS, value_name = "SECONDS", default_value = "5",
        value_parser = seconds::parse
    )]
    deadline: Duration,
    /// A collective waits for ranks that are late, but connected, for this many seconds
    #[arg(
        long, help_heading = WAITS, value_name = "SECONDS", default_value = "1800",
        value_parser = seconds::parse
    )]
    timeout: Duration,
    /// How much each of several aggregators takes of large tensors, in proportion to the others,
    /// such as 2,1 [default: computed from the links]
    #[arg(long, help_heading = TUNING, value_name = "N", value_delimiter = ',')]
    weight: Vec<u32>,
    /// Threads for large tensors, 1 to 8; all ranks get the smallest that any asks for [default:
    /// what suits processors and link]
    #[arg(long, help_heading = TUNING, value_name = "N")]
    data_threads: Option<u32>,
    /// Send separately from the other ranks of this host, which otherwise add up first and send one
    /// contribution
    #[arg(long, help_heading = TUNING)]
    no_local_sums: bool,
    /// Leave all the work to the aggregators given, even if they are slower than a ring; otherwise
    /// ranks' hosts help these
    #[arg(long, help_heading = TUNING)]
    no_own_hosts: bool,
}

/// A rank among others.
#[derive(clap::Args)]
pub struct Place {
    /// This process's rank, 0 to world size - 1 [env: RANK, or SLURM_PROCID]
    #[arg(long)]
    rank: Option<u32>,
    /// Number of ranks, 1 to 1024 [env: WORLD_SIZE, or
    /// SLURM_STEP_NUM_TASKS]
    #[arg(long, value_name = "N")]
    world_size: Option<u32>,
    /// Longest wait for the other ranks to join, in seconds
    #[arg(
        long, help_heading = WAITS, value_name = "SECONDS", default_value = "60",
        value_parser = seconds::parse
    )]
    join_timeout: Duration,
}

impl Place {
    /// The settings with these.
    pub fn over(&self, settings: Builder) -> Builder {
        let mut settings = settings.join_timeout(self.join_timeout);
        if let Some(rank) = self.rank {
            settings = settings.rank(rank);
        }
        if let Some(world_size) = self.world_size {
            settings = settings.world_size(world_size);
        }
        settings
    }
}

/// Where the aggregator is, and the way there.
#[derive(clap::Args)]
pub struct Aggregator {
    /// TOML file with options of this command, such as `aggregator = "10.0.0.254"`; options given
    /// here override it, and it overrides the environment
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The aggregator's control plane; several, with commas between, share the work. Without any,
    /// ranks serve each other, and meet at MASTER_ADDR:MASTER_PORT [env: SWITCHML_AGGREGATOR]
    #[arg(long, value_name = "HOST[:PORT]")]
    aggregator: Option<String>,
    #[command(flatten)]
    tls: TlsOptions,
    /// File with a job token, for an aggregator that asks for one [env: SWITCHML_TOKEN_FILE, or
    /// SWITCHML_TOKEN]
    #[arg(long, help_heading = switchml_cli::tls::HEADING, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Send and receive over RDMA (RoCEv2), which the aggregator has to take [env: SWITCHML_RDMA]
    #[arg(long, help_heading = TUNING)]
    rdma: bool,
}

impl Aggregator {
    /// The settings of the environment, overridden by the options.
    pub fn settings(&self) -> Result<Builder, Failure> {
        let settings = Communicator::builder().env().map_err(Failure::joining)?;
        let options = self.tls.clone();
        let settings = settings.tls(ClientTls {
            fingerprint: options.tls_fingerprint,
            ca: options.tls_ca,
            cert: options.tls_cert,
            key: options.tls_key,
        });
        let settings = match &self.token_file {
            Some(file) => settings.token(Token::File(file.clone())),
            None => settings,
        };
        let settings = match &self.aggregator {
            Some(address) => settings.aggregator(address),
            None => settings,
        };
        Ok(if self.rdma { settings.rdma(true) } else { settings })
    }
}

impl Job {
    /// The settings to connect with.
    pub fn settings(&self) -> Result<Builder, Failure> {
        let settings = self.aggregator.settings()?.deadline(self.deadline).timeout(self.timeout);
        let mut settings = self.place.over(settings);
        if let Some(job) = &self.job {
            settings = settings.job(job);
        }
        if let Some(data_threads) = self.data_threads {
            settings = settings.data_threads(data_threads);
        }
        if !self.weight.is_empty() {
            settings = settings.weights(self.weight.iter().copied());
        }
        if self.no_local_sums {
            settings = settings.local_sums(false);
        }
        if self.no_own_hosts {
            settings = settings.own_hosts(false);
        }
        Ok(settings)
    }
}

/// The aggregator's status.
pub fn status(aggregator: &Access) -> Result<AggregatorStatus, Failure> {
    control::status(aggregator.clone(), STATUS_TIMEOUT)
        .map_err(|error| Failure::joining(error.into()))
}
