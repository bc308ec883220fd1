//! What is between the workers and a switch host that has a single port: an Ethernet switch, or a
//! router.

use crate::{
    Error, Namespace,
    link::{AGGREGATOR_ADDRESS, NIC, join, port},
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
    /// By one port at a router, behind which each worker has a subnet of its own.
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
}

/// The interface of the fabric, or of the router, at the switch host.
pub(crate) const UP: &str = "uplink";

/// The router's address in the switch host's subnet.
const ROUTER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 253);

/// The router's address in the subnet of a worker.
pub(crate) fn gateway(rank: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, rank as u8 + 1, 254)
}

/// Makes the network with the switch host's link to it; none for a star.
pub(crate) fn new(
    switch: &Namespace,
    topology: Topology,
    mtu: u32,
) -> Result<Option<Namespace>, Error> {
    let (name, gro) = match topology {
        Topology::Star => return Ok(None),
        Topology::OneNic(fabric) => ("fabric", fabric.gro),
        Topology::Routed(_) => ("router", true),
    };
    let network = Namespace::new(name)?;
    network.tool("ip", "link set lo up")?;
    let nic = (switch, NIC.to_owned(), "02:00:00:00:00:fe".to_owned());
    join(nic, (&network, UP.to_owned(), "02:00:00:00:04:fe".to_owned()), mtu)?;
    network.tool("ethtool", &format!("-K {UP} gro {}", if gro { "on" } else { "off" }))?;
    switch.tool("ip", &format!("address add {AGGREGATOR_ADDRESS}/24 dev {NIC}"))?;
    switch.tool("ip", &format!("link set {NIC} up"))?;
    switch.tool("ip", &format!("route add 224.0.0.0/4 dev {NIC}"))?;
    network.tool("ip", &format!("link set {UP} up"))?;
    match topology {
        Topology::OneNic(fabric) => make_bridge(&network, fabric.multicast, mtu)?,
        _ => {
            network.tool("ip", &format!("address add {ROUTER_ADDRESS}/24 dev {UP}"))?;
            switch.tool("ip", &format!("route add default via {ROUTER_ADDRESS}"))?;
        }
    }
    Ok(Some(network))
}

fn make_bridge(fabric: &Namespace, multicast: Multicast, mtu: u32) -> Result<(), Error> {
    let snooping = match multicast {
        Multicast::Flooded | Multicast::Blocked => "mcast_snooping 0",
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
pub(crate) fn plug_in(network: &Namespace, rank: usize, topology: Topology) -> Result<(), Error> {
    let port = port(rank);
    network.tool("ip", &format!("link set {port} up"))?;
    match topology {
        Topology::Star => network.tool("ip", &format!("link set {port} master br0")),
        Topology::OneNic(fabric) => {
            network.tool("ip", &format!("link set {port} master br0"))?;
            if fabric.multicast == Multicast::Blocked {
                network.tool("bridge", &format!("link set dev {port} mcast_flood off"))?;
            }
            Ok(())
        }
        Topology::Routed(_) => {
            network.tool("ip", &format!("address add {}/24 dev {port}", gateway(rank)))
        }
    }
}

/// Has a router forward, once all workers are there. Returns what multicast routing lives by.
pub(crate) fn start(
    network: &Namespace,
    workers: usize,
    router: Router,
) -> Result<Option<OwnedFd>, Error> {
    let kernel = |what: &str| {
        let what = what.to_owned();
        move |source| Error::Kernel { what, source }
    };
    network
        .run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))
        .map_err(kernel("have a router forward"))?;
    if router.nat {
        network.tool("nft", "add table ip nat")?;
        let hook = "type nat hook postrouting priority 100 ;";
        network.tool("nft", &format!("add chain ip nat out {{ {hook} }}"))?;
        network.tool("nft", &format!("add rule ip nat out oifname {UP} masquerade"))?;
    }
    if !router.multicast {
        return Ok(None);
    }
    let ports = (0..workers).map(port).collect();
    network
        .run(move || multicast_router::forward(AGGREGATOR_ADDRESS, UP, ports))
        .map(Some)
        .map_err(kernel("have a router forward multicast"))
}

impl Topology {
    /// A worker's address.
    pub(crate) fn worker_address(self, rank: usize) -> Ipv4Addr {
        match self {
            Self::Star | Self::OneNic(_) => Ipv4Addr::new(10, 88, 0, rank as u8 + 1),
            Self::Routed(_) => Ipv4Addr::new(10, 88, rank as u8 + 1, 1),
        }
    }
}
