//! Causes that keep packets from passing, in one line each, with the command that fixes them.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use switchml_host::neighbours::mac_text;
use switchml_protocol::CONTROL_PORT;
use switchml_protocol::node::roce;
use switchml_worker::interface::unspecified;
use switchml_worker_core::cost;

use super::burst::Poor;
use super::fix::{Fix, HERE, THERE, interfaces};
use super::obstacle::Obstacle;

/// A cause of trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The host refuses connections to the control plane.
    NobodyListens(SocketAddr),
    /// No host answers for the next hop: ARP, or neighbour discovery over IPv6.
    NoNeighbour {
        /// The next hop.
        address: IpAddr,
        /// This host's interface.
        interface: String,
        /// A MAC of the next hop, if it is known.
        mac: Option<String>,
        /// Id of an XDP program on the interface, which may drop the answers.
        program: Option<u32>,
        /// Whether only the settings name this host, so that it may not exist.
        may_be_mistyped: bool,
    },
    /// A wrong MAC of the next hop was entered by hand.
    WrongNeighbour {
        /// The next hop.
        address: IpAddr,
        /// This host's interface.
        interface: String,
        /// The MAC that was entered.
        mac: [u8; 6],
    },
    /// A firewall keeps packets of a port from passing.
    Filtered {
        /// The packets that are filtered.
        flow: Flow,
        /// Where the packets are filtered.
        place: Place,
        /// Whether the packets are IPv6.
        is_ipv6: bool,
    },
    /// Large packets do not pass.
    SmallMtu(SmallMtu),
    /// Another program sees frames first.
    ForeignProgram {
        /// Whether the program is on this host, not on the aggregator's.
        is_here: bool,
        /// The interface that the program is attached to.
        interface: String,
        /// The program's id.
        id: u32,
        /// The hook where the program runs.
        hook: Hook,
    },
    /// The aggregator does not take frames from the interface through which packets come to its
    /// host.
    NotOnPort {
        /// The interface, as far as the aggregator's host knows it.
        interface: Option<String>,
        /// The interfaces that the aggregator takes frames from.
        ports: Vec<String>,
    },
    /// The aggregator's program is not attached to its port.
    NotAttached {
        /// The port.
        port: String,
        /// Why, in the aggregator's words.
        why: String,
    },
    /// Answers come in through another interface than the one that packets leave through.
    AsymmetricRoute {
        /// The destination of packets.
        target: IpAddr,
        /// The interface that packets leave through.
        out: String,
        /// The interface that answers come in through.
        back: String,
    },
    /// A veth has neither GRO nor an XDP program, so it drops all frames that XDP sends to it.
    GroOff {
        /// The aggregator's port.
        port: String,
        /// This host's interface, if it is the port's other end.
        here: Option<String>,
    },
    /// The aggregator's port is not faster, or hardly faster, than this host's link.
    SlowPort(SlowPort),
    /// This host's firewall drops results to all.
    FilteredGroup {
        /// The multicast group of these results.
        group: SocketAddrV4,
        /// The chains that results pass on their way in, if they can be seen.
        chains: Option<Vec<String>>,
        /// What ranks get instead of multicast.
        instead: Instead,
    },
    /// What ranks by RDMA alone have.
    Rdma(Obstacle),
    /// The path loses packets, or is slower than its link.
    Poor(Poor),
    /// Results to all do not arrive.
    LostMulticast {
        /// The multicast group of these results, if it is this rank's.
        group: Option<SocketAddrV4>,
        /// What ranks get instead of multicast.
        instead: Instead,
    },
}

/// What ranks get if multicast does not reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// Their own copies of results.
    Copies,
    /// Nothing, because the daemon with these ports was told so (`--fanout multicast`).
    Nothing(Vec<String>),
}

/// A port of the aggregator compared with a link of this host; speeds in bits per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowPort {
    /// The port.
    pub port: String,
    /// The port's speed.
    pub speed: u64,
    /// This host's interface.
    pub interface: String,
    /// The interface's speed.
    pub own: u64,
    /// The number of hosts from which on a ring would be faster, if all hosts share the port.
    pub most: Option<u32>,
}

/// The number of hosts up to which a slow port is reported.
pub const FEW_HOSTS: u32 = 8;

/// The time with an aggregator whose only port has `speed`, as a part of a ring's time, for hosts
/// whose links have `own`.
pub fn beside_a_ring(hosts: u32, speed: u64, own: u64) -> f64 {
    cost::aggregated(hosts, 0, speed as f64 / own as f64) / cost::ring(hosts)
}

/// The hook where a program sees frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// XDP in the driver.
    Driver,
    /// XDP in the network stack.
    Generic,
    /// The tc ingress hook.
    Ingress,
}

/// Packets of a port, and their answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Packets to the data plane, at this UDP port.
    Data(u16),
    /// Packets to the control plane, at this TCP port.
    Control(u16),
    /// Packets by RDMA.
    Rdma,
}

impl Flow {
    fn protocol(self) -> (&'static str, u16) {
        match self {
            Self::Data(port) => ("udp", port),
            Self::Control(port) => ("tcp", port),
            Self::Rdma => ("udp", roce::PORT),
        }
    }

    /// Whether answers have the port as their own, or go to it (rule 37.3).
    fn is_answered_from_port(self) -> bool {
        self != Self::Rdma
    }
}

/// Where packets are filtered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the way out of this host, by these chains of nftables if they can be seen.
    Out(Option<Vec<String>>),
    /// On the way in to this host, by these chains of nftables if they can be seen.
    In(Option<Vec<String>>),
    /// At this router, which reports it.
    Router(IpAddr),
    /// Between the last router that packets reach, or this host, and the aggregator.
    There(Option<IpAddr>),
    /// On the way back from the aggregator.
    Back,
}

/// A place with a smaller MTU than both ends have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallMtu {
    /// This host's interface.
    pub interface: String,
    /// The interface's MTU.
    pub mtu: u32,
    /// Size of IP packets that pass, in bytes.
    pub passes: u32,
    /// Size of IP packets that do not pass, in bytes.
    pub vanishes: u32,
    /// Whether the packets that pass have room for lanes.
    pub works: bool,
    /// The narrow place.
    pub place: Narrow,
}

/// The place where a path is narrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Narrow {
    /// At the aggregator's port, with this MTU.
    Port(String, u32),
    /// Behind this router, which reports the MTU of its way to this address.
    Router(IpAddr, u32, IpAddr),
    /// Behind the last router that large packets reach, or between this host and the first router.
    Silent(Option<IpAddr>),
}

/// The MTU of usual networks.
const USUAL_MTU: u32 = 1500;

impl Cause {
    /// Whether the cause breaks things, and does not only slow them down.
    pub fn breaks(&self) -> bool {
        match self {
            Self::SmallMtu(SmallMtu { works, .. }) => !works,
            Self::LostMulticast { instead, .. } | Self::FilteredGroup { instead, .. } => {
                *instead != Instead::Copies
            }
            Self::SlowPort(_) | Self::Poor(_) => false,
            Self::Rdma(obstacle) => obstacle.breaks(),
            _ => true,
        }
    }

    /// The command that fixes the cause.
    pub fn fix(&self) -> Fix {
        let on = |host: &str, command: String| Fix { host: host.to_owned(), command };
        match self {
            Self::NoNeighbour { address, interface, mac: Some(mac), .. } => {
                on(HERE, format!("ip neigh replace {address} lladdr {mac} dev {interface}"))
            }
            Self::NobodyListens(target) => on(&target.ip().to_string(), start_at(*target)),
            Self::NoNeighbour { mac: None, may_be_mistyped: true, .. } => on(
                &format!("{HERE}, with the address of a host that is up"),
                "switchml-worker doctor --aggregator ADDRESS".to_owned(),
            ),
            Self::NoNeighbour { address, mac: None, .. } => on(
                &address.to_string(),
                format!("ip link set dev {} up arp on", interface_with(*address)),
            ),
            Self::WrongNeighbour { address, interface, .. } => {
                on(HERE, format!("ip neigh del {address} dev {interface}"))
            }
            Self::Filtered { flow, place, is_ipv6 } => pass(*flow, place, *is_ipv6),
            Self::SmallMtu(small) => small.fix(),
            Self::ForeignProgram { is_here, interface, hook, .. } => {
                let host = if *is_here { HERE } else { THERE };
                match hook {
                    Hook::Driver => on(host, format!("ip link set dev {interface} xdp off")),
                    Hook::Generic => {
                        on(host, format!("ip link set dev {interface} xdpgeneric off"))
                    }
                    // The daemon attaches before all other programs.
                    Hook::Ingress => on(host, "systemctl restart switchml-aggregator".to_owned()),
                }
            }
            Self::NotOnPort { interface, ports } => {
                let missing = interface.as_deref().unwrap_or("INTERFACE");
                let all = ports.iter().map(String::as_str).chain([missing]);
                on(THERE, format!("switchml-aggregator{}", interfaces(all)))
            }
            Self::NotAttached { port, .. } => {
                on(THERE, format!("ip -details link show dev {port}"))
            }
            Self::AsymmetricRoute { back, .. } => {
                // sysctl's notation for names with dots in them.
                let name = back.replace('.', "/");
                on(HERE, format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2"))
            }
            Self::GroOff { here: Some(interface), .. } => {
                on(HERE, format!("ethtool -K {interface} gro on"))
            }
            Self::GroOff { port, here: None } => {
                on(&format!("the other end of {port}"), "ethtool -K INTERFACE gro on".to_owned())
            }
            Self::SlowPort(SlowPort { most: Some(_), .. }) => on(
                "each rank's host (then give ranks all aggregators), if ranks have TLS or tokens; \
                 otherwise their hosts help by themselves",
                "switchml-aggregator --data-plane software".to_owned(),
            ),
            Self::SlowPort(SlowPort { port, most: None, .. }) => on(
                &format!("{THERE}, with a faster port or one more"),
                format!("switchml-aggregator{}", interfaces([port, "INTERFACE"].into_iter())),
            ),
            Self::Rdma(obstacle) => obstacle.fix(),
            Self::Poor(poor) => poor.fix(),
            Self::FilteredGroup { group, chains, .. } => on(HERE, pass_group(*group, chains)),
            Self::LostMulticast { instead: Instead::Nothing(ports), .. } => {
                let ports = interfaces(ports.iter().map(String::as_str));
                on(THERE, format!("switchml-aggregator --fanout auto{ports}"))
            }
            Self::LostMulticast { instead: Instead::Copies, .. } => on(
                "a switch that blocks it, to save the copies",
                "bridge link set dev PORT mcast_flood on".to_owned(),
            ),
        }
    }
}

/// The command that starts a daemon whose control plane can be reached at `control`.
fn start_at(control: SocketAddr) -> String {
    let any = unspecified(control).ip();
    let control = match control.port() {
        CONTROL_PORT => String::new(),
        port => format!(" --control {}", SocketAddr::new(any, port)),
    };
    format!("switchml-aggregator --iface INTERFACE{control}")
}

/// A shell expression for the name of the interface that has an address.
fn interface_with(address: IpAddr) -> String {
    format!("$(ip -o address show to {address} | awk '{{print $2}}')")
}

/// The command that makes this host's firewall pass results to all groups, since each job has its
/// own group.
fn pass_group(group: SocketAddrV4, chains: &Option<Vec<String>>) -> String {
    let [first, second, ..] = group.ip().octets();
    let (groups, port) = (format!("{first}.{second}.0.0/16"), group.port());
    let rule = |chain| format!("nft insert rule {chain} ip daddr {groups} udp dport {port} accept");
    let seen = chains.iter().flatten().map(rule).collect::<Vec<_>>();
    match seen.is_empty() {
        false => seen.join(" && "),
        true => format!("iptables -I INPUT -d {groups} -p udp --dport {port} -j ACCEPT"),
    }
}

/// The command that makes firewalls pass packets of a flow.
fn pass(flow: Flow, place: &Place, is_ipv6: bool) -> Fix {
    let iptables = if is_ipv6 { "ip6tables" } else { "iptables" };
    let (protocol, port) = flow.protocol();
    let back = if flow.is_answered_from_port() { "sport" } else { "dport" };
    let local = |chains: &Option<Vec<String>>, end: &str, name: &str| {
        let rule = |chain| format!("nft insert rule {chain} {protocol} {end} {port} accept");
        let seen = chains.iter().flatten().map(rule).collect::<Vec<_>>();
        let command = match seen.is_empty() {
            false => seen.join(" && "),
            true => format!("{iptables} -I {name} -p {protocol} --{end} {port} -j ACCEPT"),
        };
        Fix { host: HERE.to_owned(), command }
    };
    let forward = |host: String, end: &str| {
        let command = format!("nft insert rule inet filter forward {protocol} {end} {port} accept");
        Fix { host, command }
    };
    match place {
        Place::Out(chains) => local(chains, "dport", "OUTPUT"),
        Place::In(chains) => local(chains, back, "INPUT"),
        Place::Router(router) => forward(router.to_string(), "dport"),
        Place::There(Some(router)) => forward(format!("{router}, or the next one"), "dport"),
        Place::There(None) => forward("the first router or firewall".to_owned(), "dport"),
        Place::Back => forward("the router or firewall on the way back".to_owned(), back),
    }
}

impl SmallMtu {
    /// The command for the narrow place if its interface is known; otherwise a command for this
    /// host that helps.
    fn fix(&self) -> Fix {
        let Self { interface, mtu, passes, vanishes, works, place } = self;
        let raise = |host: &str, interface: &str| Fix {
            host: host.to_owned(),
            command: format!("ip link set dev {interface} mtu {mtu}"),
        };
        match place {
            Narrow::Port(port, _) => raise(THERE, port),
            Narrow::Router(router, _, target) => {
                let route = format!("$(ip route get {target} | grep -o 'dev [^ ]*' | cut -c 5-)");
                raise(&router.to_string(), &route)
            }
            Narrow::Silent(_) if *works => {
                let usual = (*passes..*vanishes).contains(&USUAL_MTU);
                let mtu = if usual { USUAL_MTU } else { *passes };
                let command = format!("ip link set dev {interface} mtu {mtu}");
                Fix { host: HERE.to_owned(), command }
            }
            Narrow::Silent(_) => raise("each switch and router on the way", "INTERFACE"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NobodyListens(target) => {
                let (ip, port) = (target.ip(), target.port());
                write!(f, "nobody listens: {ip} is up, and refuses TCP to port {port}")
            }
            Self::NoNeighbour { address, interface, program, may_be_mistyped, .. } => {
                write_no_neighbour(f, *address, interface, *program, *may_be_mistyped)
            }
            Self::WrongNeighbour { address, interface, mac } => write!(
                f,
                "wrong neighbour: {address} was given the MAC {} on {interface} by hand, and \
                 nothing comes back from there",
                mac_text(*mac)
            ),
            Self::Filtered { flow, place, .. } => write_filtered(f, *flow, place),
            Self::SmallMtu(small) => small.fmt(f),
            Self::ForeignProgram { is_here, interface, id, hook } => {
                let host = if *is_here { HERE } else { THERE };
                let (kind, place) = match hook {
                    Hook::Ingress => ("", "at tc ingress of"),
                    Hook::Driver | Hook::Generic => ("XDP ", "on"),
                };
                write!(
                    f,
                    "foreign {kind}program: the program with id {id} {place} {interface} of {host} \
                     sees frames before the {} does",
                    if *is_here { "rank" } else { "aggregator" }
                )
            }
            Self::NotOnPort { interface: Some(interface), ports } => write!(
                f,
                "aggregator not on that port: packets from here reach its host through \
                 {interface}, and it serves {}",
                list(ports)
            ),
            Self::NotOnPort { interface: None, ports } => write!(
                f,
                "aggregator not on that port: packets from here bypass its program, and it serves \
                 {}; INTERFACE is where they come in",
                list(ports)
            ),
            Self::NotAttached { port, why } => write!(
                f,
                "aggregator not on that port: its program is not attached to {port}: {why}"
            ),
            Self::AsymmetricRoute { target, out, back } => write!(
                f,
                "asymmetric route: packets to {target} leave through {out}, the answers come in \
                 through {back}, whose rp_filter drops them"
            ),
            Self::GroOff { port, .. } => write!(
                f,
                "GRO off: the other end of {port}, a port of the aggregator's in native XDP, has \
                 neither GRO nor an XDP program, and so drops all answers"
            ),
            Self::SlowPort(slow) => slow.fmt(f),
            Self::Rdma(obstacle) => obstacle.fmt(f),
            Self::Poor(poor) => poor.fmt(f),
            Self::LostMulticast { group, instead } => {
                let group = group.map(|group| format!(" to {group}")).unwrap_or_default();
                write!(f, "lost multicast: results{group} do not arrive; {instead}")
            }
            Self::FilteredGroup { group, chains, instead } => write!(
                f,
                "filtered multicast: results to {group} are dropped by this host's firewall on \
                 their way in{}; {instead}",
                unseen(chains)
            ),
        }
    }
}

impl fmt::Display for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing(_) => "the aggregator is told to send no copies",
            Self::Copies => "the aggregator sends copies instead, which works",
        })
    }
}

/// The remark on a firewall whose chains cannot be seen.
pub fn unseen(chains: &Option<Vec<String>>) -> &'static str {
    match chains {
        None => " (only root can see its rules: `sudo nft list ruleset`)",
        Some(_) => "",
    }
}

fn list(ports: &[String]) -> String {
    if ports.is_empty() { "no interface".to_owned() } else { ports.join(", ") }
}

fn write_no_neighbour(
    f: &mut fmt::Formatter<'_>,
    address: IpAddr,
    interface: &str,
    program: Option<u32>,
    may_be_mistyped: bool,
) -> fmt::Result {
    let question = if address.is_ipv6() { "neighbour discovery" } else { "ARP" };
    write!(f, "missing neighbour: nobody answers {question} for {address} on {interface}")?;
    if may_be_mistyped {
        f.write_str("; no host there has this address, or it is down")?;
    }
    match program {
        Some(id) => write!(f, ", or the XDP program with id {id} there drops answers"),
        None => Ok(()),
    }
}

fn write_filtered(f: &mut fmt::Formatter<'_>, flow: Flow, place: &Place) -> fmt::Result {
    let (protocol, port) = flow.protocol();
    let protocol = protocol.to_uppercase();
    write!(f, "filtered port: {protocol} ")?;
    let own = match flow {
        Flow::Rdma => ", or its NIC keeps it for the host's own RDMA (mlx5: enable_roce)",
        Flow::Data(_) | Flow::Control(_) => "",
    };
    match place {
        Place::Out(chains) => {
            let unseen = unseen(chains);
            write!(f, "to port {port} is dropped by this host's firewall on its way out{unseen}")
        }
        Place::In(chains) => {
            let unseen = unseen(chains);
            let end = if flow.is_answered_from_port() { "from" } else { "to" };
            write!(f, "{end} port {port} is dropped by this host's firewall on its way in{unseen}")
        }
        Place::Router(router) => write!(f, "to port {port} is refused by {router}"),
        Place::There(Some(router)) => write!(
            f,
            "to port {port} gets to {router}, and is dropped there or between there and the \
             aggregator{own}"
        ),
        Place::There(None) => {
            write!(f, "to port {port} is dropped between this host and the aggregator{own}")
        }
        Place::Back => {
            write!(f, "to port {port} gets to the aggregator, and its answers are dropped")
        }
    }
}

impl fmt::Display for SlowPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, speed, interface, own, most } = self;
        let gigabits = |speed: &u64| *speed as f64 / 1e9;
        let (speed, own) = (gigabits(speed), gigabits(own));
        write!(
            f,
            "slow port: {port} of {THERE} has {speed} Gb/s, {interface} of {HERE} {own} Gb/s"
        )?;
        match most {
            Some(hosts) => write!(
                f,
                "; all hosts share it, so with {hosts} or more of them a ring such as Gloo's takes \
                 less time; with {FEW_HOSTS} this takes {:.1} times as long",
                beside_a_ring(FEW_HOSTS, self.speed, self.own)
            ),
            None => Ok(()),
        }
    }
}

impl fmt::Display for SmallMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, mtu, passes, vanishes, place, .. } = self;
        match place {
            Narrow::Port(port, small) => {
                write!(f, "smaller MTU: {small} on {port} of {THERE}")?;
            }
            Narrow::Router(router, small, _) => {
                write!(f, "smaller MTU: {small} behind {router}, which says so")?;
            }
            Narrow::Silent(Some(router)) => {
                write!(f, "smaller MTU: between {router} and the aggregator")?;
            }
            Narrow::Silent(None) => {
                write!(f, "smaller MTU: between {interface} of {HERE} and the next router")?;
            }
        }
        write!(
            f,
            "; {interface} here takes {mtu}, IP packets of {passes} bytes pass, those of \
             {vanishes} vanish"
        )
    }
}
