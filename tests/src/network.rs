//! What is between the workers and a switch host that has a single port: an Ethernet switch, or one
//! or two routers.

use crate::{
    Error, Namespace,
    link::{AGGREGATOR_ADDRESS, Ip, NIC, join, port},
    multicast_router,
};
use std::{fs, net::Ipv4Addr, os::fd::OwnedFd};

/// How the workers are joined to the switch host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Topology {
    /// By a port for each worker.
    #[default]
    Star,
    /// By one port at an Ethernet switch, at which the workers are, too.
    OneNic(Fabric),
    /// By one port at a router, behind which each worker has a subnet of its own; or at a second
    /// one behind that.
    Routed(Router),
}

/// The Ethernet switch: a bridge in the namespace [`Rack::network`](crate::Rack::network).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fabric {
    /// What becomes of multicast.
    pub multicast: Multicast,
    /// Whether its port to the switch host has GRO, without which a veth takes nothing from XDP.
    pub gro: bool,
}

impl Default for Fabric {
    /// A switch that floods, as a simple one does.
    fn default() -> Self {
        Self { multicast: Multicast::Flooded, gro: true }
    }
}

/// What an Ethernet switch does with multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Multicast {
    /// It goes to all ports.
    Flooded,
    /// IGMP snooping, but nobody asks for members: Linux's bridge floods then.
    Snooped,
    /// IGMP snooping with a querier: it goes to the ports of members.
    Queried,
    /// It goes to workers of even rank alone.
    Partial,
    /// It goes to no worker.
    Blocked,
}

/// The router: a namespace that forwards, [`Rack::network`](crate::Rack::network).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Router {
    /// Whether it forwards the groups of the first jobs to all workers. Linux does not forward
    /// superpackets of multicast.
    pub multicast: bool,
    /// Whether it hides the workers behind its own address, as Docker does with containers.
    pub nat: bool,
    /// The MTU of the link to a second router, between it and the switch host, if there is one.
    pub core: Option<u32>,
}

/// The interface of the fabric, or of the router, at the switch host.
pub(crate) const UP: &str = "uplink";

/// The interface of the second router at the first.
const DOWN: &str = "downlink";

/// The address, in the switch host's subnet, of the router there.
const ROUTER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 253);

/// The addresses of the first and the second router on the link between them.
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 255, 1);
const SECOND_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 255, 2);

/// What is between the workers and the switch host, workers' side first: one namespace, or two
/// routers.
pub(crate) type Path = Vec<Namespace>;

/// The router's address in the subnet of a worker, or of a rack of several.
pub(crate) fn gateway(subnet: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, subnet as u8 + 1, 254)
}

/// Makes the network with the switch host's link to it; nothing for a star.
pub(crate) fn new(switch: &Namespace, topology: Topology, ip: Ip, mtu: u32) -> Result<Path, Error> {
    let (name, gro) = match topology {
        Topology::Star => return Ok(Vec::new()),
        Topology::OneNic(fabric) => ("fabric", fabric.gro),
        Topology::Routed(_) => ("router", true),
    };
    let first = Namespace::new(name)?;
    first.tool("ip", "link set lo up")?;
    let core = match topology {
        Topology::Routed(Router { core: Some(mtu), .. }) => Some(new_core(&first, ip, mtu)?),
        _ => None,
    };
    let last = core.as_ref().unwrap_or(&first);
    let nic = (switch, NIC.to_owned(), "02:00:00:00:00:fe".to_owned());
    join(nic, (last, UP.to_owned(), "02:00:00:00:04:fe".to_owned()), mtu)?;
    last.tool("ethtool", &format!("-K {UP} gro {}", if gro { "on" } else { "off" }))?;
    ip.assign(switch, AGGREGATOR_ADDRESS, NIC)?;
    switch.tool("ip", &format!("link set {NIC} up"))?;
    ip.route_groups(switch, NIC)?;
    last.tool("ip", &format!("link set {UP} up"))?;
    match topology {
        Topology::OneNic(fabric) => make_bridge(last, fabric.multicast, mtu)?,
        _ => {
            ip.assign(last, ROUTER_ADDRESS, UP)?;
            switch.tool("ip", &format!("route add default via {}", ip.of(ROUTER_ADDRESS)))?;
        }
    }
    Ok([first].into_iter().chain(core).collect())
}

/// Makes the second router, with the link between it and the first.
fn new_core(first: &Namespace, ip: Ip, mtu: u32) -> Result<Namespace, Error> {
    let core = Namespace::new("core")?;
    core.tool("ip", "link set lo up")?;
    let end = (first, UP.to_owned(), "02:00:00:00:05:01".to_owned());
    join(end, (&core, DOWN.to_owned(), "02:00:00:00:05:02".to_owned()), mtu)?;
    for (router, link, address) in [(first, UP, FIRST_ADDRESS), (&core, DOWN, SECOND_ADDRESS)] {
        ip.assign(router, address, link)?;
        router.tool("ip", &format!("link set {link} up"))?;
    }
    first.tool("ip", &format!("route add default via {}", ip.of(SECOND_ADDRESS)))?;
    core.tool("ip", &format!("route add default via {}", ip.of(FIRST_ADDRESS)))?;
    Ok(core)
}

fn make_bridge(fabric: &Namespace, multicast: Multicast, mtu: u32) -> Result<(), Error> {
    let snooping = match multicast {
        Multicast::Flooded | Multicast::Partial | Multicast::Blocked => "mcast_snooping 0",
        // A querier's bridge trusts what it has learned once its questions must have been answered:
        // here after 100 ms.
        Multicast::Snooped | Multicast::Queried => {
            "mcast_snooping 1 mcast_query_response_interval 10"
        }
    };
    fabric.tool("ip", &format!("link add br0 mtu {mtu} type bridge {snooping}"))?;
    if multicast == Multicast::Queried {
        fabric.tool("ip", "link set br0 type bridge mcast_querier 1")?;
    }
    fabric.tool("ip", &format!("link set {UP} master br0"))?;
    fabric.tool("ip", "link set br0 up")
}

/// Joins the end of a worker's link, `port(rank)`, to the network.
pub(crate) fn plug_in(
    network: &Namespace,
    rank: usize,
    topology: Topology,
    ip: Ip,
) -> Result<(), Error> {
    let port = port(rank);
    network.tool("ip", &format!("link set {port} up"))?;
    match topology {
        Topology::Star => network.tool("ip", &format!("link set {port} master br0")),
        Topology::OneNic(fabric) => {
            network.tool("ip", &format!("link set {port} master br0"))?;
            let is_cut_off = match fabric.multicast {
                Multicast::Blocked => true,
                Multicast::Partial => rank % 2 == 1,
                _ => false,
            };
            if is_cut_off {
                network.tool("bridge", &format!("link set dev {port} mcast_flood off"))?;
            }
            Ok(())
        }
        Topology::Routed(_) => ip.assign(network, gateway(rank), &port),
    }
}

/// Has routers forward, once all workers are there. Returns what multicast routing lives by.
pub(crate) fn start(
    path: &[Namespace],
    workers: usize,
    router: Router,
) -> Result<Vec<OwnedFd>, Error> {
    let mut routes = Vec::new();
    let ports: Vec<_> = (0..workers).map(port).collect();
    for (network, ports) in path.iter().zip([ports, vec![DOWN.to_owned()]]) {
        routes.extend(start_one(network, ports, router)?);
    }
    Ok(routes)
}

/// Has a host forward, as routers do.
pub(crate) fn forward(router: &Namespace) -> Result<(), Error> {
    router
        .run(|| {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
            fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
        })
        .map_err(|source| Error::Kernel { what: "have a router forward".to_owned(), source })
}

fn start_one(
    network: &Namespace,
    ports: Vec<String>,
    router: Router,
) -> Result<Option<OwnedFd>, Error> {
    forward(network)?;
    if router.nat {
        network.tool("nft", "add table ip nat")?;
        let hook = "type nat hook postrouting priority 100 ;";
        network.tool("nft", &format!("add chain ip nat out {{ {hook} }}"))?;
        network.tool("nft", &format!("add rule ip nat out oifname {UP} masquerade"))?;
    }
    if !router.multicast {
        return Ok(None);
    }
    network.run(move || multicast_router::forward(AGGREGATOR_ADDRESS, UP, ports)).map(Some).map_err(
        |source| Error::Kernel { what: "have a router forward multicast".to_owned(), source },
    )
}

impl Topology {
    /// A worker's address.
    pub(crate) fn worker_address(self, rank: usize) -> Ipv4Addr {
        match self {
            Self::Star | Self::OneNic(_) => Ipv4Addr::new(10, 88, 0, rank as u8 + 1),
            Self::Routed(_) => Ipv4Addr::new(10, 88, rank as u8 + 1, 1),
        }
    }

    /// The router of a worker, if it has one.
    pub(crate) fn gateway(self, rank: usize) -> Option<Ipv4Addr> {
        matches!(self, Self::Routed(_)).then(|| gateway(rank))
    }
}
