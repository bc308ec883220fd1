//! The rack: its interfaces, and how they are joined.

use crate::link::{AGGREGATOR_ADDRESS, Ip, NIC, join, port};
use crate::network::{self, Router, Topology};
use crate::xdp::{self, XDP_PASS};
use crate::{Error, MAX_MTU, MAX_WORKERS, MIN_MTU, Namespace};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

/// The address for contributions in [`Mode::Bmv2`], from which the switch lets no other host send,
/// and so not the daemon either.
pub const SWITCHED_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 253);

/// The hook at which [`Aggregator::in_rack`](crate::Aggregator::in_rack) takes frames, and the
/// set-up of the workers' ends of the links for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The daemon's choice: on these links, superpackets at tc ingress. `eth0` has all offloads,
    /// and no program.
    Auto,
    /// In native XDP. `eth0` has no offloads, and runs an XDP program that passes frames.
    Native,
    /// In native XDP, without that program: GRO alone makes `eth0` take frames from XDP, and only
    /// those that are redirected.
    NativeWithGro,
    /// In bmv2's `simple_switch`, which the daemon controls. `eth0` has no offloads.
    Bmv2,
}

impl Mode {
    /// The daemon's `--mode`, if it takes the frames itself.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Auto | Self::Bmv2 => "auto",
            Self::Native | Self::NativeWithGro => "native",
        }
    }
}

/// The options of a rack.
#[derive(Debug, Clone)]
pub struct RackOptions {
    /// The number of workers, 1 to [`MAX_WORKERS`].
    pub workers: usize,
    /// The MTU of every link in bytes, [`MIN_MTU`] to [`MAX_MTU`].
    pub mtu: u32,
    /// Where the aggregator takes frames; the workers' ends are set up for it.
    pub mode: Mode,
    /// Whether each link runs through the namespace [`Rack::wires`], where an
    /// [`Impairment`](crate::Impairment) joins its two halves. Without an impairment, nothing
    /// passes. Frames cross it one by one; GRO merges them again before tc ingress of the switch.
    pub wires: bool,
    /// How the workers are joined to the switch host.
    pub topology: Topology,
    /// Whether the switch host is one more worker, after the others. Its packets come in through
    /// `lo`.
    pub own_host: bool,
    /// The VLAN of each worker's link in a star, 1 to 4094, or 0 for none; no VLANs if this is
    /// empty. Workers see no tags: frames get them in the namespace [`Rack::wires`], one by one.
    /// This needs Linux 6.6 (TCX), but not the VLAN interfaces that some kernels lack.
    pub vlans: Vec<u16>,
    /// The IP version of the hosts' addresses.
    pub ip: Ip,
}

impl Default for RackOptions {
    /// Four workers in a star, an MTU of 1500 bytes, the aggregator in its preferred mode, no VLAN.
    fn default() -> Self {
        Self {
            workers: 4,
            mtu: 1500,
            mode: Mode::Auto,
            wires: false,
            topology: Topology::Star,
            own_host: false,
            vlans: Vec::new(),
            ip: Ip::V4,
        }
    }
}

impl RackOptions {
    /// Checks that a rack with these options is possible.
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
        let has_nat = matches!(self.topology, Topology::Routed(Router { nat: true, .. }));
        if self.ip == Ip::V6 && (self.mode == Mode::Bmv2 || has_nat) {
            return Err(Error::Ipv6);
        }
        let fits = self.mode != Mode::Bmv2 && self.topology == Topology::Star && !self.wires;
        if !self.vlans.is_empty() && !fits {
            return Err(Error::Vlan);
        }
        Ok(())
    }
}

/// A switch and N workers; see the [crate's documentation](crate). It is removed when this is
/// dropped.
pub struct Rack {
    /// Attachments of programs that pass or tag frames; dropped first.
    programs: Vec<OwnedFd>,
    workers: Vec<Namespace>,
    wires: Option<Namespace>,
    /// Descriptors that keep the routers' multicast routes.
    _routes: Vec<OwnedFd>,
    network: network::Path,
    switch: Namespace,
    mode: Mode,
    own_host: bool,
    ip: Ip,
    topology: Topology,
}

impl Rack {
    /// Builds a rack, which takes about 100 ms.
    pub fn new(options: RackOptions) -> Result<Self, Error> {
        options.check()?;
        let switch = new_switch("switch", "02:00:00:00:00:fe", AGGREGATOR_ADDRESS, &options)?;
        let has_wires = options.wires || !options.vlans.is_empty();
        let wires = has_wires.then(|| Namespace::new("wires")).transpose()?;
        let network = network::new(&switch, options.topology, options.ip, options.mtu)?;
        let ports = network.first().unwrap_or(&switch);
        let workers: Vec<_> = (0..options.workers)
            .map(|rank| {
                let address = options.topology.worker_address(rank);
                let gateway = options.topology.gateway(rank);
                new_worker(ports, wires.as_ref(), rank, &options, (address, gateway))
            })
            .collect::<Result<_, _>>()?;
        let routes = match options.topology {
            Topology::Routed(router) => network::start(&network, options.workers, router)?,
            _ => Vec::new(),
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
        let RackOptions { mode, own_host, ip, topology, .. } = options;
        let _routes = routes;
        let mut rack = Self {
            programs,
            workers,
            wires,
            _routes,
            network,
            switch,
            mode,
            own_host,
            ip,
            topology,
        };
        for (rank, vlan) in options.vlans.iter().enumerate() {
            rack.put_into_vlan(rank, *vlan)?;
        }
        Ok(rack)
    }

    /// Puts the link of this rank into a VLAN, if `vlan` is not 0: the switch host's port has tags,
    /// which the wires add and remove. The switch host's own stack sees no tags there.
    fn put_into_vlan(&mut self, rank: usize, vlan: u16) -> Result<(), Error> {
        let Some(wires) = &self.wires else { return Ok(()) };
        let vlan = (vlan != 0).then_some(vlan);
        let (to_worker, to_port) = wire_ends(rank);
        // Native XDP sees only tags that are in frames.
        if self.mode != Mode::Auto {
            let tags = "txvlan off tx-vlan-stag-hw-insert off";
            wires.tool("ethtool", &format!("-K {to_port} {tags}"))?;
        }
        let attach = |what: String, attached: io::Result<[OwnedFd; 2]>| {
            attached.map_err(|source| Error::Kernel { what, source })
        };
        let what = format!("join {to_worker} and {to_port} of {}", wires.name());
        let joined = wires.run(move || xdp::join(&to_worker, &to_port, vlan));
        self.programs.extend(attach(what, joined)?);
        if let Some(vlan) = vlan {
            let what = format!("tag the frames at {} of {}", port(rank), self.switch.name());
            let tagged = self.switch.run(move || xdp::tag(&port(rank), vlan));
            self.programs.extend(attach(what, tagged)?);
        }
        Ok(())
    }

    /// Where the aggregator takes frames.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The namespace of the aggregator.
    pub fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// The namespace of the worker of this rank.
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

    /// All workers with their own namespace, by rank.
    pub fn workers(&self) -> &[Namespace] {
        &self.workers
    }

    /// The namespace in which the halves of each link meet, if the rack was made with
    /// [`RackOptions::wires`] or with VLANs.
    pub fn wires(&self) -> Option<&Namespace> {
        self.wires.as_ref()
    }

    /// The Ethernet switch or the router at the workers, if the switch host has a single port.
    pub fn network(&self) -> Option<&Namespace> {
        self.network.first()
    }

    /// The second router, if there is one.
    pub fn core(&self) -> Option<&Namespace> {
        self.network.get(1)
    }

    /// The aggregator's address.
    pub fn aggregator_address(&self) -> IpAddr {
        self.ip.of(AGGREGATOR_ADDRESS)
    }

    /// The address of the worker of this rank.
    pub fn address(&self, rank: usize) -> IpAddr {
        self.ip.of(self.topology.worker_address(rank))
    }

    /// The IPv4 address of the worker of this rank, which is less than [`MAX_WORKERS`], if no
    /// router is in between.
    pub fn worker_address(rank: usize) -> Ipv4Addr {
        Topology::Star.worker_address(rank)
    }

    /// The interfaces through which the aggregator gets the workers' packets: in a star `p0`, `p1`,
    /// … by rank; otherwise one. The switch host's own interface comes last.
    pub fn ports(&self) -> Vec<String> {
        let mut ports = match self.network() {
            Some(_) => vec![NIC.to_owned()],
            None => (0..self.workers.len()).map(port).collect(),
        };
        ports.extend(self.own_host.then(|| "lo".to_owned()));
        ports
    }

    /// The interfaces that are ports 1, 2, … of `simple_switch`: the workers', and the one to the
    /// host with the aggregator's address.
    pub fn ports_of_simple_switch(&self) -> Vec<String> {
        [self.ports(), vec![HOST_PORT.to_owned()]].concat()
    }
}

/// The interface at which `simple_switch` gets packets from the host with the aggregator's address.
const HOST_PORT: &str = "host";

/// A namespace with an aggregator's address: on the bridge that joins the ports, or on a link to
/// the `simple_switch` that joins them. With a single port, the address is assigned to it later.
pub(crate) fn new_switch(
    name: &str,
    mac: &str,
    address: Ipv4Addr,
    options: &RackOptions,
) -> Result<Namespace, Error> {
    let &RackOptions { mtu, mode, topology, ip, .. } = options;
    let switch = Namespace::new(name)?;
    switch.tool("ip", "link set lo up")?;
    if topology != Topology::Star {
        return Ok(switch);
    }
    let (interface, kind) = match mode {
        Mode::Bmv2 => ("agg0", format!("veth peer name {HOST_PORT} mtu {mtu}")),
        _ => ("br0", "bridge".to_owned()),
    };
    switch.tool("ip", &format!("link add {interface} address {mac} mtu {mtu} type {kind}"))?;
    ip.assign(&switch, address, interface)?;
    if mode == Mode::Bmv2 {
        // The interface answers ARP for this address, too.
        ip.assign(&switch, SWITCHED_ADDRESS, interface)?;
        // `simple_switch` passes frames on unchanged, so they must have their final size and
        // checksums.
        switch.tool("ethtool", &format!("-K {interface} tx off tso off gso off"))?;
        switch.tool("ip", &format!("link set {HOST_PORT} arp off up"))?;
    }
    switch.tool("ip", &format!("link set {interface} up"))?;
    ip.route_groups(&switch, interface)?;
    Ok(switch)
}

/// The interfaces in the namespace of the wires at which the link of this rank is open: the ends of
/// the worker's half and of the port's half.
pub(crate) fn wire_ends(rank: usize) -> (String, String) {
    (format!("w{rank}"), format!("s{rank}"))
}

/// A worker joined to a port of the switch, or of the network: directly, or with its link open in
/// the namespace of the wires. It has the given address, and router, if any.
pub(crate) fn new_worker(
    switch: &Namespace,
    wires: Option<&Namespace>,
    rank: usize,
    &RackOptions { mtu, mode, topology, ip, .. }: &RackOptions,
    (address, gateway): (Ipv4Addr, Option<Ipv4Addr>),
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
            // Frames come in one by one, and GRO merges them, as on a NIC. A veth uses GRO only for
            // frames from an end without TSO.
            wires.tool("ethtool", &format!("-K {to_port} tso off"))?;
            switch.tool("ethtool", &format!("-K p{rank} gro on rx-udp-gro-forwarding on"))?;
        }
    } else {
        join(port, eth0, mtu)?;
    }
    match mode {
        // Only `simple_switch` may answer there: the kernel would answer ARP for the aggregator's
        // address.
        Mode::Bmv2 => switch.tool("ip", &format!("link set p{rank} arp off up"))?,
        _ => network::plug_in(switch, rank, topology, ip)?,
    }
    worker.tool("ip", "link set lo up")?;
    ip.assign(&worker, address, "eth0")?;
    worker.tool("ip", "link set eth0 up")?;
    if let Some(gateway) = gateway {
        worker.tool("ip", &format!("route add default via {}", ip.of(gateway)))?;
    }
    // XDP on the port would see fields that the sender leaves to the hardware, and the wires pass
    // frames one by one.
    let offloads = if mode == Mode::Auto && wires.is_none() { "on" } else { "off" };
    // GRO is on, as it is on every NIC; turned on while the link is up, it lets the port send here
    // from XDP.
    let tags = format!("txvlan {offloads} tx-vlan-stag-hw-insert {offloads}");
    worker.tool(
        "ethtool",
        &format!("-K eth0 tx {offloads} tso {offloads} gso {offloads} gro on {tags}"),
    )?;
    // RESULTs come as multicast; joining a group needs a route for it.
    ip.route_groups(&worker, "eth0")?;
    Ok(worker)
}

/// Attaches a program that passes frames to an end of a link, without which veth drops frames from
/// XDP.
pub(crate) fn pass_frames(namespace: &Namespace, interface: String) -> Result<OwnedFd, Error> {
    let what = format!("attach XDP to {interface} of {}", namespace.name());
    namespace
        .run(move || xdp::attach(&xdp::load(XDP_PASS)?, &interface))
        .map_err(|source| Error::Kernel { what, source })
}
