//! The network between the workers and a switch host with a single port: an Ethernet switch, or one
//! or two routers.

use crate::link::{AGGREGATOR_ADDRESS, Ip, NIC, join, port};
use crate::{Error, Namespace, multicast_router};
use std::{fs, net::Ipv4Addr, os::fd::OwnedFd};

/// How the workers are joined to the switch host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Topology {
    /// The switch host has a port for each worker.
    #[default]
    Star,
    /// The switch host has one port, at an Ethernet switch to which the workers are connected, too.
    OneNic(Fabric),
    /// The switch host has one port, at a router with a subnet for each worker, or at a second
    /// router behind that one.
    Routed(Router),
}

/// The Ethernet switch: a bridge in the namespace [`Rack::network`](crate::Rack::network).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fabric {
    /// How the switch handles multicast.
    pub multicast: Multicast,
    /// Whether its port to the switch host has GRO, without which a veth drops frames from XDP.
    pub gro: bool,
}

impl Default for Fabric {
    /// A switch that floods, like a simple one.
    fn default() -> Self {
        Self { multicast: Multicast::Flooded, gro: true }
    }
}

/// How an Ethernet switch handles multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Multicast {
    /// Multicast goes to all ports.
    Flooded,
    /// IGMP snooping, but no querier: Linux's bridge floods then.
    Snooped,
    /// IGMP snooping with a querier: multicast goes to the ports of members.
    Queried,
    /// Multicast goes only to workers of even rank.
    Partial,
    /// Multicast goes to no worker.
    Blocked,
}

/// The router: a namespace that forwards, [`Rack::network`](crate::Rack::network).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Router {
    /// Whether the router forwards the groups of the first jobs to all workers. Linux does not
    /// forward superpackets of multicast.
    pub multicast: bool,
    /// Whether the router hides the workers behind its own address, as Docker does with containers.
    pub nat: bool,
    /// The MTU of the link to a second router, between this one and the switch host, if there is
    /// one.
    pub core: Option<u32>,
}

/// The interface of the fabric, or of the router, towards the switch host.
pub(crate) const UP: &str = "uplink";

/// The interface of the second router towards the first.
const DOWN: &str = "downlink";

/// The router's address in the switch host's subnet.
const ROUTER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 253);

/// The addresses of the first and the second router on the link between them.
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 255, 1);
const SECOND_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 255, 2);

/// The namespaces between the workers and the switch host, the workers' side first: one, or two
/// routers.
pub(crate) type Path = Vec<Namespace>;

/// The router's address in the subnet of a worker, or of one of several racks.
pub(crate) fn gateway(subnet: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, subnet as u8 + 1, 254)
}

/// Makes the network and the switch host's link to it; nothing for a star.
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
        // A bridge with a querier uses what it has learned only after the time for answers: here
        // 100 ms.
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

/// Makes routers forward, once all workers are there. Returns the descriptors that keep multicast
/// routes.
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

/// Makes a host forward like a router.
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
