//! `cargo xtask run`: the main job, from one command.

mod bench;
mod interfaces;
mod job;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::builder::RangedU64ValueParser as Number;
use rustix::process::getuid;
use switchml_rack::{
    Binaries, Fabric, Ip, MAX_MTU, MAX_WORKERS, MIN_MTU, Mode, Multicast, Plane, RackOptions,
    Racks, Router, SimpleSwitch, Topology,
};

use crate::{cargo, cargo::Selection};
use bench::Bench;
use job::Load;

/// The value of options with which the daemon chooses.
const AUTO: &str = "auto";

/// Options of `cargo xtask run`.
#[derive(clap::Args)]
#[command(
    after_help = "Without --iface: a rack of network namespaces on this machine, in which every \
                  worker runs the all-reduce benchmark; it is removed at the end."
)]
pub struct Run {
    /// Serve real interfaces instead, until interrupted; give it once for each port
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = [
            "workers", "racks", "peers", "jobs", "mtu", "mode", "vlan", "data_plane", "topology",
            "multicast", "fanout", "ipv6"
        ]
    )]
    iface: Vec<String>,

    /// Workers in all, 1 to 16
    #[arg(
        long,
        default_value_t = 4,
        value_parser = Number::<usize>::new().range(1..=MAX_WORKERS as u64)
    )]
    workers: usize,

    /// Number of racks to spread the workers over, each with a combiner and one uplink to the root;
    /// --rate then also applies to the uplinks
    #[arg(
        long,
        value_name = "N",
        value_parser = Number::<usize>::new().range(1..=MAX_WORKERS as u64),
        conflicts_with_all = ["vlan", "topology", "multicast", "fanout", "own_host"]
    )]
    racks: Option<usize>,

    /// Without an aggregator: the workers serve each other
    #[arg(
        long,
        conflicts_with_all = [
            "racks", "mode", "vlan", "data_plane", "multicast", "fanout", "own_host"
        ]
    )]
    peers: bool,

    /// Jobs that run the benchmark at once, 1 to 64; the first one prints as it goes
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = Number::<usize>::new().range(1..=64)
    )]
    jobs: usize,

    /// MTU of the rack's links in bytes, 68 to 3500
    #[arg(
        long,
        default_value_t = 1500,
        value_parser = Number::<u32>::new().range(u64::from(MIN_MTU)..=MAX_MTU.into())
    )]
    mtu: u32,

    /// Where the aggregator takes frames: superpackets whole at tc ingress, as suits the rack's
    /// links, or frame by frame in native XDP
    #[arg(long, default_value = AUTO, value_parser = [AUTO, "native"])]
    mode: String,

    /// The VLAN that all addresses are in, 1 to 4094; without it frames have no tags
    #[arg(
        long,
        value_name = "NUMBER",
        value_parser = Number::<u16>::new().range(1..=4094)
    )]
    vlan: Option<u16>,

    /// What adds up: BPF programs in a rack, a process on loopback that needs no privilege, or
    /// bmv2's simple_switch in a rack, which is slow
    #[arg(long, value_enum, default_value_t = DataPlane::Xdp)]
    data_plane: DataPlane,

    /// How the rack's workers are joined to the switch host
    #[arg(long, value_enum, default_value_t = RackTopology::Star)]
    topology: RackTopology,

    /// Which workers the network brings multicast to: in most clouds to none; in a star to all
    #[arg(long, value_enum, default_value_t = RackMulticast::All)]
    multicast: RackMulticast,

    /// How the aggregator sends results to all: by multicast with copies for ranks that it does not
    /// reach, by multicast alone, or by copies alone
    #[arg(long, default_value = AUTO, value_parser = [AUTO, "multicast", "unicast"])]
    fanout: String,

    /// Give the rack's hosts addresses of IPv6 alone
    #[arg(long)]
    ipv6: bool,

    /// Also run a worker on the switch host
    #[arg(long)]
    own_host: bool,

    /// Give each worker's link this rate in megabits per second; one port has that of all of them
    #[arg(long, value_name = "MBIT", value_parser = Number::<u64>::new().range(1..=1_000_000))]
    rate: Option<u64>,

    #[command(flatten)]
    bench: Bench,

    /// Use the binaries in this folder: set when the rack alone runs as root
    #[arg(long, hide = true)]
    binaries: Option<PathBuf>,
}

/// How workers are joined to the switch host.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RackTopology {
    /// A port of the switch host for each
    Star,
    /// One port of the switch host at an Ethernet switch, where the workers are, too
    OneNic,
    /// One port of the switch host at a router, and a subnet for each worker
    Routed,
    /// The same with a second router between the first and the switch host
    TwoRouters,
    /// As `routed`, and the router hides the workers behind its own address, as Docker does;
    /// without multicast
    Nat,
}

/// Which workers the network brings multicast to.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RackMulticast {
    All,
    /// Those of even rank, at an Ethernet switch
    Even,
    None,
}

impl RackTopology {
    fn with(self, multicast: RackMulticast, mtu: u32) -> Result<Topology> {
        let (is_all, is_even) = (multicast == RackMulticast::All, multicast == RackMulticast::Even);
        ensure!(
            is_all || !matches!(self, Self::Star | Self::Nat),
            "--multicast is for --topology one-nic, routed or two-routers"
        );
        ensure!(!is_even || self == Self::OneNic, "--multicast even is for --topology one-nic");
        let router = Router { multicast: is_all, ..Router::default() };
        let at_switch = |multicast| Topology::OneNic(Fabric { multicast, ..Fabric::default() });
        Ok(match (self, multicast) {
            (Self::Star, _) => Topology::Star,
            (Self::OneNic, RackMulticast::All) => at_switch(Multicast::Flooded),
            (Self::OneNic, RackMulticast::Even) => at_switch(Multicast::Partial),
            (Self::OneNic, RackMulticast::None) => at_switch(Multicast::Blocked),
            (Self::Routed, _) => Topology::Routed(router),
            (Self::TwoRouters, _) => Topology::Routed(Router { core: Some(mtu), ..router }),
            (Self::Nat, _) => Topology::Routed(Router { nat: true, ..Router::default() }),
        })
    }
}

/// What adds up the contributions.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DataPlane {
    Xdp,
    Software,
    Bmv2,
}

impl Run {
    /// Sets up, builds and runs.
    pub fn run(&self) -> Result<()> {
        let mode = match self.data_plane {
            DataPlane::Bmv2 => Mode::Bmv2,
            DataPlane::Xdp | DataPlane::Software if self.mode == AUTO => Mode::Auto,
            DataPlane::Xdp | DataPlane::Software => Mode::Native,
        };
        let topology = self.topology.with(self.multicast, self.mtu)?;
        let rack = RackOptions {
            workers: self.workers,
            mtu: self.mtu,
            mode,
            topology,
            own_host: self.own_host,
            ip: if self.ipv6 { Ip::V6 } else { Ip::V4 },
            vlans: self.vlan.map_or_else(Vec::new, |vlan| vec![vlan; self.workers]),
            ..RackOptions::default()
        };
        match self.racks {
            Some(racks) => Racks::check(racks, &rack)?,
            None => rack.check()?,
        }
        ensure!(
            self.jobs == 1 || self.bench.json().is_none(),
            "--json works with one job; remove --json or --jobs"
        );
        ensure!(
            !self.ipv6 || self.data_plane == DataPlane::Xdp,
            "--ipv6 needs --data-plane xdp: it makes a rack"
        );
        ensure!(
            self.vlan.is_none() || self.data_plane == DataPlane::Xdp,
            "--vlan needs --data-plane xdp: the others have no frames with a tag"
        );
        ensure!(
            self.fanout == AUTO || self.data_plane == DataPlane::Xdp,
            "--fanout needs --data-plane xdp: the others have one way to send results to all"
        );
        ensure!(
            !self.peers || matches!(self.topology, RackTopology::Star | RackTopology::OneNic),
            "--peers is for --topology star or one-nic"
        );
        if let (DataPlane::Bmv2, Some(obstacle)) = (self.data_plane, SimpleSwitch::obstacle()) {
            // Rather now than after the build.
            return Err(switchml_rack::Error::NoSimpleSwitch(obstacle).into());
        }
        let selection = match self.data_plane {
            DataPlane::Bmv2 => Selection::All,
            DataPlane::Xdp | DataPlane::Software => Selection::Job,
        };
        let folder = cargo::binaries_folder(self.binaries.as_deref(), selection)?;
        let binaries = Binaries::in_folder(&folder)?;
        if !self.iface.is_empty() {
            return Err(interfaces::serve(&binaries, &self.iface));
        }
        let load = Load { jobs: self.jobs, bench: &self.bench };
        match (self.data_plane, self.racks) {
            (DataPlane::Software, None) => job::on_loopback(&binaries, self.workers, load),
            (plane, Some(racks)) if getuid().is_root() => {
                let plane =
                    if plane == DataPlane::Software { Plane::Software } else { Plane::Programs };
                job::in_racks(&binaries, racks, rack, plane, self.rate, load)
            }
            _ if getuid().is_root() => {
                let fanout = (!self.peers).then_some(&*self.fanout);
                job::in_rack(&binaries, rack, fanout, self.rate, load)
            }
            // Without this, it would ask for sudo again and again.
            _ if self.binaries.is_some() => bail!("sudo did not make us root; a rack needs root"),
            _ => run_rack_as_root(&folder),
        }
    }
}

/// Runs this command again through sudo, after the build: only the rack needs root.
fn run_rack_as_root(folder: &std::path::Path) -> Result<()> {
    eprintln!(
        "a rack of network namespaces needs root; asking sudo (--data-plane software needs no \
         privilege)"
    );
    let status = Command::new("sudo")
        .arg(std::env::current_exe().context("cannot find out where this program lies")?)
        .args(std::env::args_os().skip(1))
        .arg("--binaries")
        .arg(folder)
        .status()
        .context("cannot start sudo; run as root, or with --data-plane software")?;
    ensure!(status.success(), "the run as root failed ({status})");
    Ok(())
}
