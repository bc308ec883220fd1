//! The rack: which interfaces there are, and how they are joined.

use crate::{
    Error, MAX_MTU, MAX_WORKERS, MIN_MTU, Namespace,
    link::{AGGREGATOR_ADDRESS, NIC, join, port},
    network::{self, Topology},
    xdp::{self, XDP_PASS},
};
use std::{net::Ipv4Addr, os::fd::OwnedFd};

/// That for contributions in [`Mode::Bmv2`], where the switch lets nobody else send from it, and so
/// not the daemon either.
pub(crate) const SWITCHED_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 253);

/// Where [`Aggregator::in_rack`](crate::Aggregator::in_rack) takes frames, and what the workers'
/// ends of the links need for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Where the daemon thinks best: on these links, superpackets at tc ingress. `eth0` has all
    /// offloads, and no program.
    Auto,
    /// In native XDP. `eth0` has no offloads, and runs a passing XDP program.
    Native,
    /// The same without the program: GRO alone makes `eth0` take frames from XDP, and only those
    /// that are redirected.
    NativeWithGro,
    /// In bmv2's `simple_switch`, which the daemon steers. `eth0` has no offloads.
    Bmv2,
}

impl Mode {
    /// The daemon's `--mode`, where it takes the frames itself.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Auto | Self::Bmv2 => "auto",
            Self::Native | Self::NativeWithGro => "native",
        }
    }
}

/// What a rack is to be like.
#[derive(Debug, Clone)]
pub struct RackOptions {
    /// How many workers, 1 to [`MAX_WORKERS`].
    pub workers: usize,
    /// The MTU of every link in bytes, [`MIN_MTU`] to [`MAX_MTU`].
    pub mtu: u32,
    /// Where the aggregator is to take frames; the workers' ends are made to suit it.
    pub mode: Mode,
    /// Whether each link runs through the namespace [`Rack::wires`], where an
    /// [`Impairment`](crate::Impairment) joins its two halves. Without one, nothing passes. Frames
    /// cross it one by one; at tc ingress of the switch GRO has merged them again.
    pub wires: bool,
    /// How the workers are joined to the switch host.
    pub topology: Topology,
    /// Whether the switch host is one more worker, behind the others. Its packets come in by `lo`.
    pub own_host: bool,
}

impl Default for RackOptions {
    /// Four workers in a star, an MTU of 1500 bytes, the aggregator where it does best.
    fn default() -> Self {
        let topology = Topology::Star;
        Self { workers: 4, mtu: 1500, mode: Mode::Auto, wires: false, topology, own_host: false }
    }
}

impl RackOptions {
    /// Whether a rack can be like that.
    ///
    /// # Errors
    ///
    /// [`Error::Workers`] and [`Error::Mtu`] for an option out of range, [`Error::Topology`] for
    /// bmv2 in another rack than a star.
    pub fn check(&self) -> Result<(), Error> {
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return Err(Error::Workers(self.workers));
        }
        if !(MIN_MTU..=MAX_MTU).contains(&self.mtu) {
            return Err(Error::Mtu(self.mtu));
        }
        if self.mode == Mode::Bmv2 && self.topology != Topology::Star {
            return Err(Error::Topology);
        }
        Ok(())
    }
}

/// A switch and N workers; see the [crate's documentation](crate). It is removed when the value is
/// dropped.
pub struct Rack {
    /// The passing programs' attachments; dropped first.
    _programs: Vec<OwnedFd>,
    workers: Vec<Namespace>,
    wires: Option<Namespace>,
    /// What a router's routes of multicast live by.
    _routes: Option<OwnedFd>,
    network: Option<Namespace>,
    switch: Namespace,
    mode: Mode,
    own_host: bool,
}

impl Rack {
    /// Builds a rack; takes some 100 ms.
    ///
    /// # Errors
    ///
    /// As [`RackOptions::check`]; [`Error::Kernel`] without the privilege; [`Error::Start`] and
    /// [`Error::Tool`] if a tool (`ip`, `ethtool`, for NAT `nft`) is missing or refuses. Whatever
    /// was made until then is removed.
    pub fn new(options: RackOptions) -> Result<Self, Error> {
        options.check()?;
        let switch = new_switch(&options)?;
        let wires = options.wires.then(|| Namespace::new("wires")).transpose()?;
        let network = network::new(&switch, options.topology, options.mtu)?;
        let ports = network.as_ref().unwrap_or(&switch);
        let workers: Vec<_> = (0..options.workers)
            .map(|rank| new_worker(ports, wires.as_ref(), rank, &options))
            .collect::<Result<_, _>>()?;
        let routes = match options.topology {
            Topology::Routed(router) => network::start(ports, options.workers, router)?,
            _ => None,
        };
        let mut programs = Vec::new();
        for worker in workers.iter().filter(|_| options.mode == Mode::Native) {
            programs.push(pass_frames(worker, "eth0".to_owned())?);
        }
        for (rank, wires) in
            wires.iter().flat_map(|wires| (0..options.workers).map(move |rank| (rank, wires)))
        {
            programs.push(pass_frames(wires, wire_ends(rank).1)?);
        }
        let RackOptions { mode, own_host, .. } = options;
        let _routes = routes;
        let _programs = programs;
        Ok(Self { _programs, workers, wires, _routes, network, switch, mode, own_host })
    }

    /// Where the aggregator is to take frames.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Where the aggregator runs.
    pub fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// Where the worker of this rank runs.
    ///
    /// # Panics
    ///
    /// If the rack has no such worker.
    pub fn worker(&self, rank: usize) -> &Namespace {
        match self.workers.get(rank) {
            None if self.own_host && rank == self.workers.len() => &self.switch,
            _ => &self.workers[rank],
        }
    }

    /// All workers with a namespace of their own, by rank.
    pub fn workers(&self) -> &[Namespace] {
        &self.workers
    }

    /// Where the two halves of each link meet, if the rack was made with [`RackOptions::wires`].
    pub fn wires(&self) -> Option<&Namespace> {
        self.wires.as_ref()
    }

    /// The Ethernet switch or the router between a switch host with a single port and the workers.
    pub fn network(&self) -> Option<&Namespace> {
        self.network.as_ref()
    }

    /// The address of the worker of this rank, which is less than [`MAX_WORKERS`], where no router
    /// is in between.
    pub fn worker_address(rank: usize) -> Ipv4Addr {
        Topology::Star.worker_address(rank)
    }

    /// The interfaces on which the aggregator hears the workers: in a star, by rank, `p0`, `p1`, …;
    /// otherwise one. That of the switch host itself comes last.
    pub fn ports(&self) -> Vec<String> {
        let mut ports = match self.network {
            Some(_) => vec![NIC.to_owned()],
            None => (0..self.workers.len()).map(port).collect(),
        };
        ports.extend(self.own_host.then(|| "lo".to_owned()));
        ports
    }
}

/// The interface at which `simple_switch` hears the host with the aggregator's address.
pub(crate) const HOST_PORT: &str = "host";

/// A namespace with the aggregator's address: on the bridge that joins the ports, or on a link to
/// the `simple_switch` that does. With a single port the address will be there.
fn new_switch(options: &RackOptions) -> Result<Namespace, Error> {
    let &RackOptions { mtu, mode, topology, .. } = options;
    let switch = Namespace::new("switch")?;
    switch.tool("ip", "link set lo up")?;
    if topology != Topology::Star {
        return Ok(switch);
    }
    let (interface, kind) = match mode {
        Mode::Bmv2 => ("agg0", format!("veth peer name {HOST_PORT} mtu {mtu}")),
        _ => ("br0", "bridge".to_owned()),
    };
    switch.tool(
        "ip",
        &format!("link add {interface} address 02:00:00:00:00:fe mtu {mtu} type {kind}"),
    )?;
    switch.tool("ip", &format!("address add {AGGREGATOR_ADDRESS}/24 dev {interface}"))?;
    if mode == Mode::Bmv2 {
        // It answers ARP for that address, too.
        switch.tool("ip", &format!("address add {SWITCHED_ADDRESS}/24 dev {interface}"))?;
        // `simple_switch` passes frames on as they are: whole, and with their checksums.
        switch.tool("ethtool", &format!("-K {interface} tx off tso off gso off"))?;
        switch.tool("ip", &format!("link set {HOST_PORT} arp off up"))?;
    }
    switch.tool("ip", &format!("link set {interface} up"))?;
    switch.tool("ip", &format!("route add 224.0.0.0/4 dev {interface}"))?;
    Ok(switch)
}

/// The interfaces in the namespace of the wires at which the link of this rank is open: the end of
/// the worker's half, and that of the port's.
pub(crate) fn wire_ends(rank: usize) -> (String, String) {
    (format!("w{rank}"), format!("s{rank}"))
}

/// A worker joined to a port of the switch, or of the network: directly, or with its link open in
/// the namespace of the wires.
fn new_worker(
    switch: &Namespace,
    wires: Option<&Namespace>,
    rank: usize,
    &RackOptions { mtu, mode, topology, .. }: &RackOptions,
) -> Result<Namespace, Error> {
    let worker = Namespace::new(&format!("worker {rank}"))?;
    let n = rank + 1;
    let eth0 = (&worker, "eth0".to_owned(), format!("02:00:00:00:00:{n:02x}"));
    let port = (switch, port(rank), format!("02:00:00:00:01:{n:02x}"));
    if let Some(wires) = wires {
        let (to_worker, to_port) = wire_ends(rank);
        join(port, (wires, to_port.clone(), format!("02:00:00:00:02:{n:02x}")), mtu)?;
        join((wires, to_worker.clone(), format!("02:00:00:00:03:{n:02x}")), eth0, mtu)?;
        wires.tool("ip", &format!("link set {to_port} up"))?;
        wires.tool("ip", &format!("link set {to_worker} up"))?;
        if mode == Mode::Auto {
            // As a NIC does: frames come in one by one, and GRO merges them. A veth has GRO only
            // for what comes from an end without TSO.
            wires.tool("ethtool", &format!("-K {to_port} tso off"))?;
            switch.tool("ethtool", &format!("-K p{rank} gro on rx-udp-gro-forwarding on"))?;
        }
    } else {
        join(port, eth0, mtu)?;
    }
    match mode {
        // Only `simple_switch` answers there: the kernel would answer ARP for the
        // aggregator's address.
        Mode::Bmv2 => switch.tool("ip", &format!("link set p{rank} arp off up"))?,
        _ => network::plug_in(switch, rank, topology)?,
    }
    worker.tool("ip", "link set lo up")?;
    worker.tool("ip", &format!("address add {}/24 dev eth0", topology.worker_address(rank)))?;
    worker.tool("ip", "link set eth0 up")?;
    if let Topology::Routed(_) = topology {
        worker.tool("ip", &format!("route add default via {}", network::gateway(rank)))?;
    }
    // XDP on the port would see what the sender left for the hardware to fill in, and the wires
    // pass frames one by one.
    let offloads = if mode == Mode::Auto && wires.is_none() { "on" } else { "off" };
    // GRO is on, as it is on every NIC; turned on while the link is up, it lets the port send to
    // here from XDP.
    let tags = format!("txvlan {offloads} tx-vlan-stag-hw-insert {offloads}");
    worker.tool(
        "ethtool",
        &format!("-K eth0 tx {offloads} tso {offloads} gso {offloads} gro on {tags}"),
    )?;
    // RESULTs come as multicast; joining a group needs a route for it.
    worker.tool("ip", "route add 224.0.0.0/4 dev eth0")?;
    Ok(worker)
}

/// Attaches the passing program to an end of a link, without which veth drops what XDP sends to it.
fn pass_frames(namespace: &Namespace, interface: String) -> Result<OwnedFd, Error> {
    let what = format!("attach XDP to {interface} of {}", namespace.name());
    namespace
        .run(move || xdp::attach(&xdp::load(XDP_PASS)?, &interface))
        .map_err(|source| Error::Kernel { what, source })
}
