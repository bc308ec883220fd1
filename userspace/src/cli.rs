//! The command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use switchml_protocol::{CONTROL_PORT, DATA_PORT};
use switchml_userspace::slots::MIN_PER_JOB;

/// Where a data plane is kept unless something else is said.
const PIN_DIR: &str = "/sys/fs/bpf/switchml";

/// Where `simple_switch` is controlled unless it is told another port.
const BMV2_THRIFT_PORT: u16 = 9090;

/// Most slots in a pool: 6 GiB of memory.
const MAX_SLOTS: i64 = 1 << 20;

/// Adds up what the workers of a job send, and sends them the sum.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub options: Options,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows what a running aggregator is attached to, and its counters.
    Status {
        /// Its control plane.
        #[arg(long, default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, CONTROL_PORT)))]
        connect: SocketAddr,
    },
    /// Shows the jobs of a running aggregator.
    Jobs {
        /// Its control plane.
        #[arg(long, default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, CONTROL_PORT)))]
        connect: SocketAddr,
    },
    /// Removes the data plane that an aggregator has left which was killed; its jobs end.
    Detach {
        /// Where it was kept.
        #[arg(long, value_name = "FOLDER", default_value = PIN_DIR)]
        pin_dir: PathBuf,
    },
    /// Gives a Tofino switch the P4 program, in place of what it runs.
    Deploy {
        /// Its BFRT server.
        #[arg(long, value_name = "ADDRESS:PORT")]
        tofino_server: SocketAddr,
        /// Folder that `cargo xtask p4 build` has filled.
        #[arg(long, value_name = "FOLDER")]
        tofino_program: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct Options {
    /// What serves the packets.
    #[arg(long, value_enum, default_value_t = DataPlaneKind::Xdp)]
    pub data_plane: DataPlaneKind,
    /// Interface that workers are behind; give it once for each. For `--data-plane xdp`.
    #[arg(long = "iface", value_name = "NAME")]
    pub interfaces: Vec<String>,
    /// Where at the interfaces frames are taken.
    #[arg(long, value_enum, default_value_t = Mode::Auto)]
    pub mode: Mode,
    /// Address and TCP port of the control plane.
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, CONTROL_PORT)))]
    pub control: SocketAddr,
    /// UDP port of the data plane.
    #[arg(long, value_name = "PORT", default_value_t = DATA_PORT)]
    pub data_port: u16,
    /// IPv4 address of the data plane, if it is not the one by which workers reach the control plane. With `--data-plane tofino`
    /// and `bmv2` it must be another one: the switch takes what others send from it for forged.
    #[arg(long, value_name = "ADDRESS", required_if_eq_any([("data_plane", "tofino"), ("data_plane", "bmv2")]))]
    pub data_address: Option<Ipv4Addr>,
    /// Thrift port of bmv2's `simple_switch`. For `--data-plane bmv2`.
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, BMV2_THRIFT_PORT)))]
    pub bmv2_thrift: SocketAddr,
    /// Slots in the pool, for all jobs together; 6 KiB of memory each. A P4 program has as many as it says.
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(i64::from(MIN_PER_JOB)..=MAX_SLOTS))]
    pub slots: u32,
    /// Folder of the BPF file system in which the XDP data plane is kept, so that it outlives this process if that is killed,
    /// and the next one takes it over; one for each aggregator of a host.
    #[arg(long, value_name = "FOLDER", default_value = PIN_DIR)]
    pub pin_dir: PathBuf,
    /// BFRT server of the switch, for `--data-plane tofino`; bf_switchd has it on port 50052.
    #[arg(long, value_name = "ADDRESS:PORT", required_if_eq("data_plane", "tofino"))]
    pub tofino_server: Option<SocketAddr>,
    /// Folder that `cargo xtask p4 build` has filled; its program is what the switch runs.
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
    /// A P4 program on a Tofino switch, by BFRT.
    Tofino,
    /// bmv2's `simple_switch` with `p4/bmv2.p4`, which runs already: for trying the P4 program out.
    Bmv2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Where the interface does best; the log says what that is, and why.
    Auto,
    /// XDP in the driver, frame by frame: for NICs.
    Native,
    /// tc ingress, GSO and GRO superpackets whole: for veth, virtio and what has no XDP.
    Bundle,
}
