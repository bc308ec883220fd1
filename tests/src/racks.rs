//! Several racks of workers, each with a host that has one uplink, and the root host above them.

use crate::link::{AGGREGATOR_ADDRESS, join, port};
use crate::network::{forward, gateway};
use crate::rack::{new_switch, new_worker, pass_frames, wire_ends};
use crate::{Error, Mode, Namespace, RackOptions, Topology};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::{fs, io};

/// A rack host's interface towards the root.
const UPLINK: &str = "uplink";

/// The root's interface towards a rack.
fn root_port(rack: usize) -> String {
    format!("u{rack}")
}

/// A rack host's address in the root's subnet.
fn uplink_address(rack: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, 0, rack as u8 + 1)
}

/// Racks and their root; see the [crate's documentation](crate). They are removed when this is
/// dropped.
///
/// Each rack is a subnet, and its host a router, so workers reach the root and each other over the
/// uplinks whether or not an aggregator runs in the rack. Multicast does not leave a rack.
pub struct Racks {
    /// Attachments of programs that pass frames; dropped first.
    _programs: Vec<OwnedFd>,
    workers: Vec<Namespace>,
    hosts: Vec<Namespace>,
    wires: Namespace,
    root: Namespace,
    options: RackOptions,
}

/// Bytes that an uplink carried, Ethernet headers counted; a superpacket has one set of headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Towards the root.
    pub up: u64,
    /// Towards the rack.
    pub down: u64,
}

impl Racks {
    /// Builds `racks` racks, over which the workers of `options` are spread evenly: the first ranks
    /// are in the first rack. With [`RackOptions::wires`] the uplinks are open.
    pub fn new(racks: usize, options: RackOptions) -> Result<Self, Error> {
        Self::check(racks, &options)?;
        let root = new_switch("root", "02:00:00:00:00:fe", AGGREGATOR_ADDRESS, &options)?;
        let wires = Namespace::new("wires")?;
        let hosts: Vec<_> = (0..racks)
            .map(|rack| new_host(&root, &wires, rack, &options))
            .collect::<Result<_, _>>()?;
        for host in &hosts {
            route_to_others(host, racks, &options)?;
        }
        route_to_others(&root, racks, &options)?;
        let mut racks =
            Self { _programs: Vec::new(), workers: Vec::new(), hosts, wires, root, options };
        for rank in 0..racks.options.workers {
            let host = &racks.hosts[racks.rack_of(rank)];
            let place = (racks.address_in_rack(rank), Some(gateway(racks.rack_of(rank))));
            racks.workers.push(new_worker(host, None, rank, &racks.options, place)?);
        }
        racks._programs = racks.pass_all_frames()?;
        Ok(racks)
    }

    /// Checks that such racks are possible.
    pub fn check(racks: usize, options: &RackOptions) -> Result<(), Error> {
        options.check()?;
        if !(1..=options.workers).contains(&racks) {
            return Err(Error::Racks { racks, workers: options.workers });
        }
        let obstacles = [
            (options.mode == Mode::Bmv2, "bmv2"),
            (options.topology != Topology::Star, "the topology"),
            (options.own_host, "the switch host as a worker"),
            (!options.vlans.is_empty(), "VLANs"),
        ];
        match obstacles.into_iter().find(|(is_there, _)| *is_there) {
            Some((_, obstacle)) => Err(Error::NotInRacks(obstacle)),
            None => Ok(()),
        }
    }

    /// Attaches the programs without which a veth drops frames from XDP.
    fn pass_all_frames(&self) -> Result<Vec<OwnedFd>, Error> {
        let is_native = self.options.mode == Mode::Native;
        let workers = self.workers.iter().filter(|_| is_native);
        let mut programs: Vec<_> = workers
            .map(|worker| pass_frames(worker, "eth0".to_owned()))
            .collect::<Result<_, _>>()?;
        // On open uplinks, the program also makes the other ends split superpackets.
        if is_native || self.options.wires {
            for (wires, end) in self.uplink_ends() {
                programs.push(pass_frames(wires, end)?);
            }
        }
        Ok(programs)
    }

    /// The number of racks.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// The rack of the worker of this rank.
    pub fn rack_of(&self, rank: usize) -> usize {
        rank * self.hosts.len() / self.options.workers
    }

    /// The ranks of a rack's workers.
    pub fn ranks_in(&self, rack: usize) -> impl Iterator<Item = usize> {
        (0..self.options.workers).filter(move |rank| self.rack_of(*rank) == rack)
    }

    /// The root host.
    pub fn root(&self) -> &Namespace {
        &self.root
    }

    /// The rack hosts.
    pub fn hosts(&self) -> &[Namespace] {
        &self.hosts
    }

    /// All workers, by rank.
    pub fn workers(&self) -> &[Namespace] {
        &self.workers
    }

    /// The address of the worker of this rank.
    pub fn worker_address(&self, rank: usize) -> IpAddr {
        self.options.ip.of(self.address_in_rack(rank))
    }

    fn address_in_rack(&self, rank: usize) -> Ipv4Addr {
        let rack = self.rack_of(rank);
        let place = self.ranks_in(rack).position(|other| other == rank).unwrap_or_default();
        Ipv4Addr::new(10, 88, rack as u8 + 1, place as u8 + 1)
    }

    /// The root's address.
    pub fn root_address(&self) -> IpAddr {
        self.options.ip.of(AGGREGATOR_ADDRESS)
    }

    /// The address of a rack host that its workers know.
    pub fn host_address(&self, rack: usize) -> IpAddr {
        self.options.ip.of(gateway(rack))
    }

    /// The root's ports, by rack.
    pub fn root_ports(&self) -> Vec<String> {
        (0..self.len()).map(root_port).collect()
    }

    /// A rack host's ports: its workers', and the uplink.
    pub fn host_ports(&self, rack: usize) -> Vec<String> {
        self.ranks_in(rack).map(port).chain([UPLINK.to_owned()]).collect()
    }

    /// Where the aggregators take frames.
    pub fn mode(&self) -> Mode {
        self.options.mode
    }

    /// The namespace in which the halves of each uplink meet, if they are open.
    pub fn open_wires(&self) -> Option<&Namespace> {
        self.options.wires.then_some(&self.wires)
    }

    /// Both ends of the middle of each uplink: towards the rack, and towards the root.
    pub(crate) fn uplink_ends(&self) -> impl Iterator<Item = (&Namespace, String)> {
        let ends = (0..self.len()).flat_map(|rack| <[String; 2]>::from(wire_ends(rack)));
        ends.map(|end| (&self.wires, end))
    }

    /// The bytes that each uplink has carried so far.
    pub fn carried(&self) -> Result<Vec<Carried>, Error> {
        let racks = self.len();
        let read = |rack| -> io::Result<Carried> {
            let (to_rack, to_root) = wire_ends(rack);
            Ok(Carried { up: bytes(&to_root, "tx")?, down: bytes(&to_rack, "tx")? })
        };
        self.wires
            .run(move || (0..racks).map(read).collect::<io::Result<Vec<_>>>())
            .map_err(|source| Error::Kernel { what: "count an uplink's bytes".to_owned(), source })
    }

    /// The bytes that the link of the worker of this rank has carried so far.
    pub fn carried_by_worker(&self, rank: usize) -> Result<Carried, Error> {
        self.workers[rank]
            .run(|| -> io::Result<Carried> {
                Ok(Carried { up: bytes("eth0", "tx")?, down: bytes("eth0", "rx")? })
            })
            .map_err(|source| Error::Kernel { what: "count a link's bytes".to_owned(), source })
    }
}

/// The bytes that an interface of this namespace has sent (`tx`) or received (`rx`).
fn bytes(interface: &str, way: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/sys/class/net/{interface}/statistics/{way}_bytes"))?;
    text.trim().parse().map_err(io::Error::other)
}

/// A rack host with its uplink to the root, through the wires.
fn new_host(
    root: &Namespace,
    wires: &Namespace,
    rack: usize,
    options: &RackOptions,
) -> Result<Namespace, Error> {
    let &RackOptions { mtu, mode, ip, .. } = options;
    let mac = |kind: u8| format!("02:00:00:01:{kind:02x}:{rack:02x}");
    let host = new_switch(&format!("rack {rack}"), &mac(0), gateway(rack), options)?;
    let ((to_rack, to_root), root_port) = (wire_ends(rack), root_port(rack));
    join((&host, UPLINK.to_owned(), mac(1)), (wires, to_rack.clone(), mac(2)), mtu)?;
    join((wires, to_root.clone(), mac(3)), (root, root_port.clone(), mac(4)), mtu)?;
    if !options.wires {
        let cable = format!("cable{rack}");
        wires.tool("ip", &format!("link add {cable} mtu {mtu} type bridge mcast_snooping 0"))?;
        wires.tool("ip", &format!("link set {cable} up"))?;
        wires.tool("ip", &format!("link set {to_rack} master {cable}"))?;
        wires.tool("ip", &format!("link set {to_root} master {cable}"))?;
    }
    for end in [&to_rack, &to_root] {
        // With GRO, a veth takes frames from XDP.
        wires.tool("ethtool", &format!("-K {end} gro on"))?;
        wires.tool("ip", &format!("link set {end} up"))?;
    }
    for (namespace, end, wire) in [(&host, UPLINK, &to_rack), (root, &*root_port, &to_root)] {
        if mode == Mode::Auto && options.wires {
            // Frames come in one by one, and GRO merges them, as on a NIC.
            wires.tool("ethtool", &format!("-K {wire} tso off"))?;
            namespace.tool("ethtool", &format!("-K {end} gro on rx-udp-gro-forwarding on"))?;
        }
        if mode == Mode::Native {
            // XDP at the other end would see checksums that are not filled in.
            namespace.tool("ethtool", &format!("-K {end} tx off tso off gso off"))?;
        }
        namespace.tool("ip", &format!("link set {end} up"))?;
    }
    root.tool("ip", &format!("link set {root_port} master br0"))?;
    ip.assign(&host, uplink_address(rack), UPLINK)?;
    forward(&host)?;
    Ok(host)
}

/// Adds routes to the racks in which a host has no address.
fn route_to_others(host: &Namespace, racks: usize, options: &RackOptions) -> Result<(), Error> {
    let length = if options.ip == crate::Ip::V4 { 24 } else { 64 };
    for rack in (0..racks).filter(|rack| host.name() != format!("rack {rack}")) {
        let [a, b, c, _] = gateway(rack).octets();
        let subnet = options.ip.of(Ipv4Addr::new(a, b, c, 0));
        let via = options.ip.of(uplink_address(rack));
        host.tool("ip", &format!("route add {subnet}/{length} via {via}"))?;
    }
    Ok(())
}
