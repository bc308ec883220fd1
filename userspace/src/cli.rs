//! The command line.

mod manual;
mod quota;
pub mod service_file;

use std::ffi::OsString;
use std::net::{AddrParseError, IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "otlp")]
use axum::http::Uri;
use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser,
};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use switchml_cli::reference;
use switchml_cli::tls::TlsOptions;
use switchml_data_plane::xdp::Mode;
use switchml_protocol::bpf_types::maps::{MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::node::roce;
use switchml_protocol::{CONTROL_PORT, DATA_PORT, VERSION};
use switchml_userspace::web::list_of_metrics;
use switchml_userspace_core::data_plane::Fanout;
use switchml_userspace_core::drop_rate::DropRate;
use switchml_userspace_core::jobs::{MAX_TENANT_LEN, Quotas};
use switchml_userspace_core::memory_cells::{MAX_CELLS, MIN_CELLS};

use crate::logging::LogFormat;
#[cfg(feature = "otlp")]
use crate::otlp;
pub use manual::MANUAL;

/// Default folder of the XDP data plane's pins.
const PIN_DIR: &str = "/sys/fs/bpf/switchml";

#[cfg(feature = "p4")]
/// Default port of `simple_switch`'s Thrift server.
const BMV2_THRIFT_PORT: u16 = 9090;

/// Headings of `--help`; options that most users need stand above them.
const NETWORK: &str = "Network and memory";
const COMBINER: &str = "Combiner";
const LOG: &str = "Log and traces";
const TESTS: &str = "Tests";

/// The end of `--help`.
const EXAMPLES: &str = "\
Examples:
  switchml-aggregator --data-plane software            without root, on any address
  switchml-aggregator --iface eth1 --iface eth2        BPF programs at two ports; needs root
  switchml-aggregator --iface eth1 --tls-self-signed   the same, with TLS
  switchml-aggregator status                           what runs on this host

Exit codes: 0 after a signal, 2 for wrong options, 1 for other failures.";

/// Most slots of all jobs together.
const MAX_SLOTS: u32 = (MAX_SHARDS * SLOTS_PER_SHARD) as u32;

/// Runs the SwitchML aggregator: adds up the values that the ranks of a job send, and sends the sum
/// to all of them.
#[derive(Debug, Parser)]
#[command(name = "switchml-aggregator", version = switchml_cli::version!(VERSION),
          args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub options: Options,
}

/// The running aggregator that a command asks.
#[derive(Debug, Args)]
pub struct At {
    /// The aggregator's control plane. Without it, that of this host's service, as
    /// /etc/switchml/aggregator.toml has it, certificate included; without that file,
    /// 127.0.0.1:48865.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listener)]
    pub connect: Option<SocketAddr>,
    #[command(flatten)]
    pub tls: TlsOptions,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows what a running aggregator is attached to, and its counters.
    Status {
        #[command(flatten)]
        at: At,
        /// As one line of JSON, jobs and ranks included, for programs.
        #[arg(long)]
        json: bool,
    },
    #[cfg(feature = "top")]
    /// Follows a running aggregator in the terminal, once a second, until you press q.
    Top {
        #[command(flatten)]
        at: At,
    },
    /// Shows the jobs of a running aggregator.
    Jobs {
        #[command(flatten)]
        at: At,
    },
    /// Shows which ranks a running aggregator's job waits for: the rounds that it has not finished,
    /// and which ranks have contributed to each.
    Slots {
        /// Name or number of the job.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        job: String,
        #[command(flatten)]
        at: At,
        /// As one line of JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Removes the data plane that a killed aggregator has left; its jobs end.
    Detach {
        /// The folder that keeps it.
        #[arg(long, value_name = "FOLDER", default_value = PIN_DIR)]
        pin_dir: PathBuf,
    },
    /// Makes a job token, with which ranks may join jobs of a daemon with the same --token-key.
    Token {
        /// File with the key, of at least 32 bytes.
        #[arg(long, value_name = "FILE")]
        token_key: PathBuf,
        /// Tenant that it is for: ranks of different tenants are never in the same job.
        #[arg(long, value_name = "NAME", value_parser = tenant_name)]
        tenant: String,
        /// Names of jobs that it is for; * is any text, ? any one character.
        #[arg(long, value_name = "PATTERN", value_parser = NonEmptyStringValueParser::new())]
        jobs: String,
        /// For how long: 30m, 24h or 7d, for example.
        #[arg(long, value_name = "TIME", value_parser = lifetime)]
        expires: Duration,
    },
    /// Writes manual pages and completions of this command line; for packages.
    #[command(hide = true)]
    Pages {
        /// Folder to write to.
        folder: PathBuf,
    },
    /// Prints what docs/reference has on this program; for `cargo xtask gen`.
    #[command(hide = true)]
    Reference { page: ReferencePage },
    #[cfg(feature = "p4")]
    /// Loads the P4 program onto a Tofino switch, instead of the program that it runs.
    Deploy {
        /// Its BFRT server.
        #[arg(long, value_name = "ADDRESS:PORT")]
        tofino_server: SocketAddr,
        /// Folder that `cargo xtask p4 build` has filled; or in it `256`, only for packets of 256
        /// lanes, or `combiner`.
        #[arg(long, value_name = "FOLDER")]
        tofino_program: PathBuf,
    },
}

/// A page of docs/reference that this program knows.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ReferencePage {
    CommandLines,
    Configuration,
    Metrics,
}

impl ReferencePage {
    /// The program's part of the page.
    pub fn text(self) -> String {
        match self {
            Self::CommandLines => reference::command_line::<Cli>(&MANUAL),
            Self::Configuration => reference::file::<Cli>(&MANUAL),
            Self::Metrics => list_of_metrics(),
        }
    }
}

#[derive(Debug, Args)]
pub struct Options {
    /// TOML file with options, such as `iface = ["eth1", "eth2"]`; options given here override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the options and the files that they name, and exit: with code 0 if a daemon would
    /// accept them. A running daemon is not affected.
    #[arg(long)]
    pub check_config: bool,
    /// The data plane that serves the packets.
    #[arg(long, value_enum, default_value_t = DataPlaneKind::Xdp)]
    pub data_plane: DataPlaneKind,
    /// Interface that workers are behind; give it once for each. For `--data-plane xdp`, as are
    /// `--mode` and `--pin-dir`.
    #[arg(long = "iface", value_name = "NAME")]
    pub interfaces: Vec<String>,
    /// The hook on the interfaces that takes frames.
    #[arg(long, help_heading = NETWORK, value_enum, default_value_t = Mode::Auto)]
    pub mode: Mode,
    /// How results reach the ranks of a job. For `--data-plane xdp`.
    #[arg(long, help_heading = NETWORK, value_parser = fanouts(), default_value = "auto")]
    pub fanout: Fanout,
    /// Address and TCP port of the control plane. [::] is all addresses, of IPv4 too.
    #[arg(long, value_name = "ADDRESS",
          default_value_t = SocketAddr::from((Ipv6Addr::UNSPECIFIED, CONTROL_PORT)))]
    pub control: SocketAddr,
    /// UDP port of the data plane; with `--data-plane software` 0 is any free one. A P4 program's
    /// is fixed.
    #[arg(long, help_heading = NETWORK, value_name = "PORT", default_value_t = DATA_PORT)]
    pub data_port: u16,
    /// Also take ranks with RDMA NICs, by RoCEv2 at UDP port 4791. For `--data-plane software`,
    /// `bmv2`, and `xdp`, whose mode is then native.
    #[arg(long, help_heading = NETWORK, conflicts_with = "parent")]
    pub rocev2: bool,
    /// Address of the data plane, if it is not the one at which workers reach the control plane;
    /// with an IPv6 address, all jobs use IPv6. A P4 switch needs one of its own, of IPv4: it takes
    /// packets that others send from that address as forged.
    #[arg(long, help_heading = NETWORK, value_name = "ADDRESS",
          required_if_eq_any([("data_plane", "tofino"), ("data_plane", "bmv2")]))]
    pub data_address: Option<IpAddr>,
    /// Most slots of all jobs together: 512 for each data thread of a job, which take 3 MiB of
    /// memory when a job first needs them. The default is enough for 512 jobs with 1024 data
    /// threads. A P4 program has as many as it says.
    #[arg(long, help_heading = NETWORK, value_name = "N", default_value_t = MAX_SLOTS,
          value_parser = clap::value_parser!(u32)
              .range(SLOTS_PER_SHARD as i64..=i64::from(MAX_SLOTS)))]
    pub slots: u32,
    /// Be a combiner: add up what comes from below on the way to this aggregator, the root or
    /// another combiner, as host, host:port, an IP address or [IPv6]:port of its control plane. A
    /// P4 switch also needs --uplink-port and --uplink-mac.
    #[arg(long, help_heading = COMBINER, value_name = "HOST[:PORT]", conflicts_with = "slots")]
    pub parent: Option<String>,
    /// Cells of a combiner, of 3 KiB each: memory for packets that wait for other ranks'. The
    /// default takes an eighth of the host's memory at most, with `--data-plane xdp` a 64th and at
    /// once; and no more than all jobs together can use.
    #[arg(long, help_heading = COMBINER, value_name = "N", requires = "parent",
          value_parser = clap::value_parser!(u32)
              .range(i64::from(MIN_CELLS)..=i64::from(MAX_CELLS)))]
    pub cells: Option<u32>,
    /// Folder of the BPF file system in which the XDP data plane is kept, so that it outlives this
    /// process if that is killed, and the next one takes it over; one for each aggregator of a
    /// host.
    #[arg(long, help_heading = NETWORK, value_name = "FOLDER", default_value = PIN_DIR)]
    pub pin_dir: PathBuf,
    /// How the log on standard error is written. RUST_LOG says how much there is of it.
    #[arg(long, help_heading = LOG, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    #[cfg(feature = "otlp")]
    /// Collector of traces, with OTLP over gRPC without TLS, such as http://127.0.0.1:4317: it gets
    /// a span of each job, and of each rank's joining and running.
    #[arg(long, help_heading = LOG, value_name = "URL", value_parser = otlp::address,
          conflicts_with = "parent")]
    pub otlp_endpoint: Option<Uri>,
    /// Log what becomes of each packet, by job, rank, slot and round: for looking at few packets,
    /// because each waits for its line. For `--data-plane xdp`.
    #[arg(long, help_heading = TESTS)]
    pub trace: bool,
    /// Lose this share of the packets that come in, 0 to 1, before anything else is done with them:
    /// for tests of what resends cost. Jobs get right sums, slowly.
    #[arg(long, help_heading = TESTS, value_name = "SHARE")]
    pub drop_rate: Option<DropRate>,
    /// Say that this aggregator is for tests, without which --drop-rate is refused.
    #[arg(long, help_heading = TESTS, requires = "drop_rate")]
    pub for_tests: bool,
    #[command(flatten)]
    pub security: SecurityOptions,
    #[cfg(feature = "p4")]
    #[command(flatten)]
    pub p4: P4Options,
}

impl Options {
    /// The mode of the XDP data plane: native with RoCEv2, which tc ingress does not take.
    pub fn xdp_mode(&self) -> Mode {
        if self.rocev2 { Mode::Native } else { self.mode }
    }
}

/// Who may talk to the control plane, and to whom this aggregator talks.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS and access")]
pub struct SecurityOptions {
    /// Certificate of the control plane, in PEM, with those between it and its CA: all connections
    /// use TLS then, also those of browsers. Read again when it changes, as are the other files.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Create a self-signed certificate, and print the fingerprint with which workers verify it. It
    /// is kept in the files of --tls-cert and --tls-key, unless they exist already; without them it
    /// ends with this process.
    #[arg(long)]
    pub tls_self_signed: bool,
    /// Ask clients for a certificate that one of the CAs in this file, in PEM, has signed.
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Refuse clients' certificates that these CAs have revoked: a file with a list (CRL), in PEM,
    /// of each CA.
    #[arg(long, value_name = "FILE", requires = "tls_client_ca")]
    pub tls_client_crl: Option<PathBuf>,
    /// File with a key of job tokens, of at least 32 bytes: ranks join with a token that
    /// `switchml-aggregator token` has made with it. Once for each key: tokens of all are taken.
    /// Combiners pass tokens on to the root.
    #[arg(long = "token-key", value_name = "FILE", conflicts_with = "parent")]
    pub token_keys: Vec<PathBuf>,
    /// The most that the jobs of a tenant of job tokens may have together, as
    /// [TENANT:]jobs=N,ranks=N,slots=N,joins=N: jobs, ranks and slots at once, joins in a minute.
    /// Without a tenant's name it applies to each tenant, and to what a named tenant's own quota
    /// leaves out. A resource without a quota is not limited.
    #[arg(long = "tenant-quota", value_name = "LIMITS", requires = "token_keys",
          value_parser = quota::parse)]
    pub tenant_quotas: Vec<quota::TenantQuota>,
    /// Give packets tags, which tell those of a job's own ranks and of this aggregator from forged
    /// ones. Their keys are sent over the control plane, so that has to use TLS. For `--data-plane
    /// xdp` and `software`; combiners have no keys.
    #[arg(long, conflicts_with = "parent")]
    pub packet_tags: bool,
    /// SHA-256 fingerprint of the parent's certificate, sha256:…: the connections to it use TLS
    /// then, and show it the certificate of --tls-cert if it asks.
    #[arg(long, value_name = "FINGERPRINT", requires = "parent", conflicts_with = "parent_tls_ca")]
    pub parent_tls_fingerprint: Option<String>,
    /// The same, with a file of the CAs, in PEM, that sign the parent's certificate.
    #[arg(long, value_name = "FILE", requires = "parent")]
    pub parent_tls_ca: Option<PathBuf>,
}

impl SecurityOptions {
    /// The quotas of all tenants.
    pub fn quotas(&self) -> Quotas {
        // [`check`] has made sure that no tenant is given twice.
        quota::all(&self.tenant_quotas).unwrap_or_default()
    }
}

#[cfg(feature = "p4")]
#[derive(Debug, Args)]
#[command(next_help_heading = "P4 switches")]
pub struct P4Options {
    /// Thrift port of bmv2's `simple_switch`. For `--data-plane bmv2`.
    #[arg(long, value_name = "ADDRESS",
          default_value_t = SocketAddr::from(([127, 0, 0, 1], BMV2_THRIFT_PORT)))]
    pub bmv2_thrift: SocketAddr,
    /// The switch's port towards the parent: its number for `--data-plane bmv2`, its name in the
    /// file of ports for `tofino`. A switch does not find the way to its parent by itself.
    #[arg(long, value_name = "PORT", requires = "parent")]
    pub uplink_port: Option<String>,
    /// MAC of the parent, or of the router on the way to it, with --uplink-port.
    #[arg(long, value_name = "MAC", requires = "parent", value_parser = station)]
    pub uplink_mac: Option<[u8; 6]>,
    /// BFRT server of the switch, for `--data-plane tofino`; bf_switchd has it on port 50052.
    #[arg(long, value_name = "ADDRESS:PORT", required_if_eq("data_plane", "tofino"))]
    pub tofino_server: Option<SocketAddr>,
    /// Folder that `cargo xtask p4 build` has filled, or with --parent `combiner` in it. If it
    /// holds a root's two programs, for packets of 64 and of 256 lanes, the daemon chooses by the
    /// ports, and sends the switch the chosen one. If it holds one program,
    /// such as that in `256`, the switch must run that.
    #[arg(long, value_name = "FOLDER", required_if_eq("data_plane", "tofino"))]
    pub tofino_program: Option<PathBuf>,
    /// File with the switch's ports that stations are behind, in TOML.
    #[arg(long, value_name = "FILE", required_if_eq("data_plane", "tofino"))]
    pub tofino_ports: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DataPlaneKind {
    /// BPF programs on the given interfaces, in XDP or at tc ingress; needs root.
    Xdp,
    /// A UDP socket; needs no privilege.
    Software,
    #[cfg(feature = "p4")]
    /// A P4 program on a Tofino switch, by BFRT.
    Tofino,
    #[cfg(feature = "p4")]
    /// bmv2's `simple_switch` with `p4/bmv2.p4`, which runs already: for trying the P4 program out;
    /// for a combiner with `p4/bmv2_combiner.p4`.
    Bmv2,
}

impl DataPlaneKind {
    /// Whether it is a switch, which forwards other frames only once its data plane has started.
    pub const fn is_switch(self) -> bool {
        !matches!(self, Self::Xdp | Self::Software)
    }
}

#[cfg(feature = "p4")]
/// The MAC of one host.
fn station(text: &str) -> Result<[u8; 6], String> {
    let byte = |part: &str| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2);
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    match bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()) {
        None => Err("not a MAC; write one as 02:00:00:00:00:01".to_owned()),
        Some([0, 0, 0, 0, 0, 0]) => Err("no host has this MAC; give the parent's".to_owned()),
        Some([first, ..]) if first & 1 == 1 => {
            Err("the MAC of a group; give that of one host, whose first byte is even".to_owned())
        }
        Some(mac) => Ok(mac),
    }
}

/// Where something listens: not at port 0.
fn listener(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|error: AddrParseError| error.to_string())?;
    match address.port() {
        0 => Err(
            "nothing listens at port 0; give the port of the aggregator's --control, 1 to 65535"
                .to_owned(),
        ),
        _ => Ok(address),
    }
}

/// The values of `--fanout`. The core, whose type this is, does without clap.
fn fanouts() -> impl TypedValueParser<Value = Fanout> {
    let values = [
        ("auto", "By multicast to ranks that it reaches, a copy for each of the others"),
        ("multicast", "One frame to the job's multicast group, which the network copies"),
        ("unicast", "A copy for each rank: works in every network"),
    ];
    let values = values.map(|(name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(values).map(|name| match &*name {
        "multicast" => Fanout::Multicast,
        "unicast" => Fanout::Unicast,
        _ => Fanout::Auto,
    })
}

fn tenant_name(given: &str) -> Result<String, String> {
    match given.len() {
        1..=MAX_TENANT_LEN => Ok(given.to_owned()),
        len => Err(format!("a name of {len} bytes; 1 to {MAX_TENANT_LEN} are allowed")),
    }
}

fn lifetime(given: &str) -> Result<Duration, String> {
    humantime::parse_duration(given)
        .map_err(|_| format!("{given:?} is not a time; use 30m, 24h or 7d"))
}

/// The parsed arguments, and clap's matches for them. Ends the process as [`switchml_cli::parse`]
/// does.
pub fn parse() -> (Cli, ArgMatches) {
    parse_from(std::env::args_os()).unwrap_or_else(|error| switchml_cli::end(&error))
}

/// Parses the arguments again, because the file of options may have changed.
pub fn parse_again() -> Result<(Cli, ArgMatches), String> {
    parse_from(std::env::args_os()).map_err(|error| switchml_cli::one_line(&error))
}

fn parse_from(
    arguments: impl IntoIterator<Item: Into<OsString> + Clone>,
) -> Result<(Cli, ArgMatches), clap::Error> {
    let (cli, matches): (Cli, _) = switchml_cli::config::parse_with_file(arguments)?;
    check(&cli.options, &matches)?;
    Ok((cli, matches))
}

/// The options, by their names on the command line, whose values have changed.
pub fn changed(before: &ArgMatches, now: &ArgMatches) -> Vec<String> {
    let given = |matches: &ArgMatches, option: &clap::Arg| {
        let values = matches.try_get_raw(option.get_id().as_str()).ok().flatten();
        values.map(|values| values.map(ToOwned::to_owned).collect::<Vec<_>>())
    };
    let command = Cli::command();
    let options = command.get_arguments();
    let changed = options.filter(|option| given(before, option) != given(now, option));
    changed.filter_map(|option| option.get_long().map(str::to_owned)).collect()
}

/// Options that only some data planes use, by their fields, and these data planes. All other
/// options are for all data planes.
const OF_SOME: &[(&str, &[DataPlaneKind])] = {
    use DataPlaneKind::{Software, Xdp};
    &[
        ("interfaces", &[Xdp]),
        ("mode", &[Xdp]),
        ("fanout", &[Xdp]),
        ("pin_dir", &[Xdp]),
        ("trace", &[Xdp]),
        #[cfg(not(feature = "p4"))]
        ("rocev2", &[Xdp, Software]),
        #[cfg(feature = "p4")]
        ("rocev2", &[Xdp, Software, DataPlaneKind::Bmv2]),
        ("data_port", &[Xdp, Software]),
        ("slots", &[Xdp, Software]),
        ("cells", &[Xdp, Software]),
        ("packet_tags", &[Xdp, Software]),
        #[cfg(feature = "p4")]
        ("bmv2_thrift", &[DataPlaneKind::Bmv2]),
        #[cfg(feature = "p4")]
        ("uplink_port", &[DataPlaneKind::Bmv2, DataPlaneKind::Tofino]),
        #[cfg(feature = "p4")]
        ("uplink_mac", &[DataPlaneKind::Bmv2, DataPlaneKind::Tofino]),
        #[cfg(feature = "p4")]
        ("tofino_server", &[DataPlaneKind::Tofino]),
        #[cfg(feature = "p4")]
        ("tofino_program", &[DataPlaneKind::Tofino]),
        #[cfg(feature = "p4")]
        ("tofino_ports", &[DataPlaneKind::Tofino]),
    ]
};

/// Refuses options that the chosen data plane would ignore, and combinations without an effect.
fn check(options: &Options, matches: &ArgMatches) -> Result<(), clap::Error> {
    let kind = options.data_plane;
    let is_given = |field: &str| matches.value_source(field) == Some(ValueSource::CommandLine);
    if let Some((field, kinds)) =
        OF_SOME.iter().find(|(field, kinds)| is_given(field) && !kinds.contains(&kind))
    {
        let command = Cli::command();
        let option = command
            .get_arguments()
            .find(|argument| argument.get_id() == field)
            .and_then(clap::Arg::get_long);
        let kinds: Vec<_> = kinds.iter().map(|kind| name(*kind)).collect();
        return Err(refused(format!(
            "--{} has no effect with --data-plane {}, only with {}; leave it out",
            option.unwrap_or(field),
            name(kind),
            kinds.join(" and ")
        )));
    }
    let security = &options.security;
    if security.packet_tags && security.tls_cert.is_none() && !security.tls_self_signed {
        return Err(refused(
            "--packet-tags needs TLS, or the tags' keys would travel in the clear; give --tls-cert \
             and --tls-key, or --tls-self-signed"
                .to_owned(),
        ));
    }
    if options.drop_rate.is_some() && !options.for_tests {
        return Err(refused(
            "--drop-rate loses packets of all jobs on purpose, which is for tests alone; give \
             --for-tests too, or leave it out"
                .to_owned(),
        ));
    }
    if kind == DataPlaneKind::Xdp && options.data_port == 0 {
        return Err(refused(
            "--data-port 0: 1 to 65535 are allowed; 0, any free one, is for --data-plane software"
                .to_owned(),
        ));
    }
    check_rocev2(options)?;
    quota::all(&options.security.tenant_quotas).map_err(refused)?;
    let SecurityOptions { tls_cert, tls_self_signed, tls_client_ca, .. } = &options.security;
    if tls_client_ca.is_some() && tls_cert.is_none() && !tls_self_signed {
        return Err(refused(
            "--tls-client-ca has no effect without TLS; give --tls-cert and --tls-key, or \
             --tls-self-signed, too"
                .to_owned(),
        ));
    }
    #[cfg(feature = "p4")]
    check_switch(options)?;
    Ok(())
}

#[cfg(feature = "p4")]
/// Refuses what a P4 switch cannot do.
fn check_switch(options: &Options) -> Result<(), clap::Error> {
    let kind = options.data_plane;
    if !kind.is_switch() {
        return Ok(());
    }
    if let Some(address @ IpAddr::V6(_)) = options.data_address {
        return Err(refused(format!(
            "--data-address {address}: it must be an IPv4 address with --data-plane {}; a P4 \
             program passes all IPv6 on",
            name(kind)
        )));
    }
    let P4Options { uplink_port, uplink_mac, .. } = &options.p4;
    if options.parent.is_some() && (uplink_port.is_none() || uplink_mac.is_none()) {
        return Err(refused(format!(
            "--parent needs --uplink-port and --uplink-mac with --data-plane {}, because a switch \
             does not find the way by itself; give the port that leads to the parent, and the MAC \
             of the parent or of the router on the way",
            name(kind)
        )));
    }
    Ok(())
}

/// Refuses RoCEv2 where it cannot be.
fn check_rocev2(options: &Options) -> Result<(), clap::Error> {
    if options.rocev2 && options.trace {
        return Err(refused(
            "--trace has no effect on ranks by RoCEv2, whose packets such programs pass on; leave \
             out --trace or --rocev2"
                .to_owned(),
        ));
    }
    if options.rocev2 && options.mode == Mode::Bundle {
        return Err(refused(
            "--mode bundle: tc ingress takes no packets by RoCEv2; leave out --mode or --rocev2"
                .to_owned(),
        ));
    }
    let software = options.data_plane == DataPlaneKind::Software;
    if let Some(address @ IpAddr::V6(_)) = options.data_address
        && options.rocev2
        && software
    {
        return Err(refused(format!(
            "--data-address {address}: by RoCEv2 --data-plane software takes IPv4 alone, because \
             RDMA NICs leave out UDP's checksum, which sockets want over IPv6; use an address of \
             IPv4, or --data-plane xdp"
        )));
    }
    if options.rocev2 && options.data_port == roce::PORT {
        return Err(refused(format!(
            "--data-port {0}: with --rocev2 that is the port of RoCEv2; give another one",
            roce::PORT
        )));
    }
    Ok(())
}

fn refused(complaint: String) -> clap::Error {
    Cli::command().error(ErrorKind::ArgumentConflict, complaint)
}

/// The data plane's name as a value of `--data-plane`.
fn name(kind: DataPlaneKind) -> String {
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value of each option of the daemon; they are tried with each value of `--data-plane`.
    const VALUES: [(&str, &str); 32] = [
        ("iface", "p0"),
        ("mode", "native"),
        ("fanout", "auto"),
        ("control", "127.0.0.1:1"),
        ("data-port", "5000"),
        ("rocev2", ""),
        ("data-address", "10.0.0.1"),
        ("bmv2-thrift", "127.0.0.1:9090"),
        ("slots", "1024"),
        ("parent", "10.0.0.2"),
        ("uplink-port", "1"),
        ("uplink-mac", "02:00:00:00:00:01"),
        ("cells", "1024"),
        ("pin-dir", "/sys/fs/bpf/other"),
        ("trace", ""),
        ("log-format", "json"),
        ("otlp-endpoint", "http://127.0.0.1:4317"),
        ("tofino-server", "127.0.0.1:50052"),
        ("tofino-program", "/tmp"),
        ("tofino-ports", "/tmp/ports"),
        ("tls-cert", "/tmp/cert"),
        ("tls-key", "/tmp/key"),
        ("tls-self-signed", ""),
        ("token-key", "/tmp/key"),
        ("tls-client-ca", "/tmp/ca"),
        ("tls-client-crl", "/tmp/crl"),
        ("tenant-quota", "jobs=8"),
        ("packet-tags", ""),
        ("drop-rate", "0.05"),
        ("for-tests", ""),
        ("parent-tls-fingerprint", "sha256:00"),
        ("parent-tls-ca", "/tmp/ca"),
    ];

    /// Options that a data plane requires.
    fn required(kind: DataPlaneKind) -> Vec<&'static str> {
        match kind {
            DataPlaneKind::Xdp | DataPlaneKind::Software => vec![],
            #[cfg(feature = "p4")]
            DataPlaneKind::Bmv2 => vec!["data-address"],
            #[cfg(feature = "p4")]
            DataPlaneKind::Tofino => {
                vec!["data-address", "tofino-server", "tofino-program", "tofino-ports"]
            }
        }
    }

    fn value(option: &str) -> &'static str {
        let found = VALUES.iter().find(|(name, _)| *name == option);
        found
            .unwrap_or_else(|| {
                panic!("--{option} is new: give it a value here, and say in OF_SOME what it is for")
            })
            .1
    }

    /// The daemon's arguments with this data plane, and with an option.
    fn with(kind: DataPlaneKind, option: &str) -> Result<(Cli, ArgMatches), clap::Error> {
        let is_below = matches!(
            option,
            "parent"
                | "cells"
                | "parent-tls-fingerprint"
                | "parent-tls-ca"
                | "uplink-port"
                | "uplink-mac"
        );
        let below: &[&str] = match (is_below, kind) {
            (false, _) => &[],
            (true, DataPlaneKind::Xdp | DataPlaneKind::Software) => &["parent"],
            #[cfg(feature = "p4")]
            (true, _) => &["parent", "uplink-port", "uplink-mac"],
        };
        let below = below.iter().copied().filter(|name| *name != option);
        let besides = match option {
            "tls-cert" => Some("tls-key"),
            "tls-key" => Some("tls-cert"),
            "tls-client-ca" | "packet-tags" => Some("tls-self-signed"),
            "tls-client-crl" => Some("tls-client-ca"),
            "tenant-quota" => Some("token-key"),
            "drop-rate" => Some("for-tests"),
            "for-tests" => Some("drop-rate"),
            _ => None,
        };
        let tls = (option == "tls-client-crl").then_some("tls-self-signed");
        let options = required(kind).into_iter().filter(|name| *name != option);
        let options = options.chain(below).chain(besides).chain(tls).chain([option]);
        let given = options
            .flat_map(|name| [format!("--{name}"), value(name).to_owned()])
            .filter(|text| !text.is_empty());
        parse_from(
            ["aggregator".to_owned(), "--data-plane".to_owned(), name(kind)]
                .into_iter()
                .chain(given),
        )
    }

    #[test]
    fn every_mistake_is_one_line() {
        switchml_cli::test::every_mistake_is_one_line::<Cli>();
    }

    /// Tries all options with all data planes: options with an effect are accepted, all others
    /// refused.
    #[test]
    fn options_without_an_effect_are_refused() {
        let command = Cli::command();
        let options = command.get_arguments().filter(|option| {
            !matches!(
                option.get_id().as_str(),
                "config" | "check_config" | "data_plane" | "help" | "version"
            )
        });
        for option in options {
            let long = option.get_long().expect("all have one");
            for kind in DataPlaneKind::value_variants() {
                let effect = match long {
                    "iface" | "mode" | "fanout" | "pin-dir" | "trace" => {
                        *kind == DataPlaneKind::Xdp
                    }
                    "rocev2" => name(*kind) != "tofino",
                    "data-port" | "slots" | "cells" | "packet-tags" => {
                        matches!(kind, DataPlaneKind::Xdp | DataPlaneKind::Software)
                    }
                    "uplink-port" | "uplink-mac" => kind.is_switch(),
                    "parent" | "parent-tls-fingerprint" | "parent-tls-ca" => true,
                    "drop-rate" | "for-tests" => true,
                    "control" | "data-address" | "log-format" | "otlp-endpoint" | "tls-cert"
                    | "tls-key" | "tls-self-signed" | "tls-client-ca" | "tls-client-crl"
                    | "token-key" | "tenant-quota" => true,
                    other => other.starts_with(&name(*kind)),
                };
                match with(*kind, long) {
                    Ok(_) => assert!(effect, "--{long} does nothing with {kind:?}"),
                    Err(error) => {
                        assert!(!effect, "{error}");
                        let line = switchml_cli::one_line(&error);
                        let start = format!(
                            "--{long} has no effect with --data-plane {}, only with ",
                            name(*kind)
                        );
                        assert!(line.starts_with(&start) && !line.contains('\n'), "{line}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_given_otherwise_is_named() {
        let matches = |given: &[&str]| {
            let given = [&["aggregator", "--data-plane", "software"], given].concat();
            parse_from(given).expect("right").1
        };
        let before = matches(&["--slots", "1024", "--control", "127.0.0.1:1"]);
        assert_eq!(changed(&before, &before), [] as [&str; 0]);
        let now = matches(&["--slots=512", "--control", "127.0.0.1:1", "--tls-self-signed"]);
        assert_eq!(changed(&before, &now), ["slots", "tls-self-signed"]);
        assert_eq!(changed(&now, &before), ["slots", "tls-self-signed"]);
    }

    #[test]
    fn keys_of_tags_do_not_travel_in_the_clear() {
        let refused =
            parse_from(["aggregator", "--data-plane", "software", "--packet-tags"]).expect_err("");
        let line = switchml_cli::one_line(&refused);
        assert!(line.starts_with("--packet-tags needs TLS, "), "{line}");
        for tls in [&["--tls-self-signed"][..], &["--tls-cert", "c.pem", "--tls-key", "k.pem"]] {
            let given = [&["aggregator", "--data-plane", "software", "--packet-tags"], tls];
            assert!(parse_from(given.concat()).is_ok());
        }
    }

    #[test]
    fn packets_are_lost_only_by_those_who_say_that_they_test() {
        let software = |given: &[&str]| {
            parse_from([&["aggregator", "--data-plane", "software"], given].concat())
        };
        let line = |given: &[&str]| switchml_cli::one_line(&software(given).expect_err("refused"));
        let refused = line(&["--drop-rate", "0.05"]);
        assert!(refused.starts_with("--drop-rate loses packets of all jobs on "), "{refused}");
        assert!(line(&["--for-tests"]).contains("--drop-rate"));
        for wrong in ["5", "5%", "nan"] {
            let refused = line(&["--for-tests", "--drop-rate", wrong]);
            assert!(refused.contains("0 to 1 are allowed") && !refused.contains('\n'), "{refused}");
        }
        for right in ["0", "0.05", "1"] {
            assert!(software(&["--for-tests", "--drop-rate", right]).is_ok(), "{right}");
        }
    }

    #[test]
    fn rocev2_is_for_native_xdp_and_has_a_port_of_its_own() {
        let native = ["aggregator", "--rocev2"];
        for mode in [&[][..], &["--mode", "auto"], &["--mode", "native"]] {
            let (cli, _) = parse_from([&native[..], mode].concat()).expect("it can be");
            assert_eq!(cli.options.xdp_mode(), Mode::Native);
        }
        let refused = parse_from([&native[..], &["--mode", "bundle"]].concat());
        let line = switchml_cli::one_line(&refused.expect_err("not native"));
        assert!(line.starts_with("--mode bundle: tc ingress takes no packets by RoCEv2"), "{line}");
        let refused = parse_from([&native[..], &["--trace"]].concat()).expect_err("no stack");
        assert!(switchml_cli::one_line(&refused).contains("leave out --trace or --rocev2"));
        let software = ["aggregator", "--rocev2", "--data-plane", "software"];
        let v6 = ["--data-address", "fd88::1"];
        assert!(parse_from([&native[..], &v6].concat()).is_ok());
        let refused = parse_from([&software[..], &v6].concat()).expect_err("sockets");
        let line = switchml_cli::one_line(&refused);
        assert!(line.starts_with("--data-address fd88::1: ") && !line.contains('\n'), "{line}");
        for options in [&native[..], &software] {
            let refused = parse_from([options, &["--data-port", "4791"]].concat());
            let line = switchml_cli::one_line(&refused.expect_err("the port is taken"));
            assert!(line.starts_with("--data-port 4791: ") && !line.contains('\n'), "{line}");
        }
    }

    #[cfg(feature = "p4")]
    #[test]
    fn a_switch_is_told_the_way_to_its_parent() {
        let bmv2 = ["aggregator", "--data-plane", "bmv2", "--data-address", "10.0.0.1"];
        let below = [&bmv2[..], &["--parent", "10.0.0.2"]].concat();
        let (port, mac) = (["--uplink-port", "4"], ["--uplink-mac", "02:00:00:0A:0b:01"]);
        let line = |given: &[&[&str]]| {
            let refused = parse_from(given.concat()).expect_err("refused");
            let line = switchml_cli::one_line(&refused);
            assert!(!line.contains('\n'), "{line}");
            line
        };
        for incomplete in [&[&below[..]][..], &[&below, &port], &[&below, &mac]] {
            let line = line(incomplete);
            assert!(
                line.starts_with("--parent needs --uplink-port and --uplink-mac with "),
                "{line}"
            );
        }
        for without_parent in [&port, &mac] {
            assert!(line(&[&bmv2, without_parent]).contains("--parent <HOST[:PORT]>"));
        }
        let (cli, _) = parse_from([&below[..], &port, &mac].concat()).expect("complete");
        assert_eq!(cli.options.p4.uplink_mac, Some([2, 0, 0, 0x0A, 0x0B, 1]));
        for (mac, why) in [
            ("02:00:00:00:00", "write one as 02:00:00:00:00:01"),
            ("02:00:00:00:00:00:01", "write one as 02:00:00:00:00:01"),
            ("02:00:00:00:00:1", "write one as 02:00:00:00:00:01"),
            ("00:00:00:00:00:00", "no host has this MAC"),
            ("01:00:5e:00:00:01", "the MAC of a group"),
            ("ff:ff:ff:ff:ff:ff", "the MAC of a group"),
        ] {
            let line = line(&[&below, &port, &["--uplink-mac", mac]]);
            assert!(line.contains(mac) && line.contains(why), "{line}");
        }
    }

    #[test]
    fn nobody_is_asked_at_port_0() {
        for subcommand in ["status", "jobs"] {
            let given = ["aggregator", subcommand, "--connect", "10.0.0.1:0"];
            let line = switchml_cli::one_line(&parse_from(given).expect_err("no port"));
            assert!(line.contains("nothing listens at port 0") && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn the_data_port_is_not_0_but_for_a_socket() {
        let refused = parse_from(["aggregator", "--data-port", "0"]).expect_err("no port");
        let line = switchml_cli::one_line(&refused);
        assert!(line.starts_with("--data-port 0: 1 to 65535 are allowed; "), "{line}");
        assert!(parse_from(["aggregator", "--data-plane", "software", "--data-port", "0"]).is_ok());
    }
}
