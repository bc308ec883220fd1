//! The way from a combiner to its parent, as the kernel knows it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_host::interfaces::{self, Interface};
use switchml_host::{neighbours, routes, way};
use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::bpf_types::uplink::Uplink;
use switchml_protocol::wire::ip::Ip;

use super::local::Local;

/// Longest wait for the next hop's MAC.
const ASKING: Duration = Duration::from_millis(300);
/// The discard port: a packet to it only makes the kernel look up the next hop's MAC.
const DISCARD: u16 = 9;

/// The part of an uplink that the kernel knows.
pub struct WayUp {
    /// The combiner's MAC towards its parent.
    pub mac: [u8; 6],
    /// The combiner's address towards its parent.
    pub address: Ip,
    /// The parent, and how frames get there.
    pub parent: Binding,
}

impl WayUp {
    /// The uplink with this way.
    pub fn put_into(self, uplink: Uplink) -> Uplink {
        let Self { mac, address, parent } = self;
        Uplink { mac, address, parent, ..uplink }
    }
}

/// The way to `parent`. Its source address is one of the served addresses, else `otherwise`.
///
/// # Errors
///
/// Why there is no way, in one line.
pub fn find(
    parent: SocketAddr,
    served: &[String],
    local: &Local,
    otherwise: IpAddr,
) -> Result<WayUp, String> {
    let route = routes::to(parent.ip())
        .map_err(|error| format!("no route to the parent {}: {error}", parent.ip()))?;
    let next_hop = route.next_hop(parent.ip());
    let mac = mac_of(next_hop, route.interface, parent).ok_or_else(|| {
        format!("{next_hop}, the next hop to the parent {}, does not answer", parent.ip())
    })?;
    let interface = interface_towards(parent.ip())?;
    if !interface.is_among(served) {
        return Err(format!(
            "the parent {} is reached through interface {name}, which is not served: add --iface \
             {name}",
            parent.ip(),
            name = interface.name
        ));
    }
    let source = route.source.filter(|source| local.addresses.contains(source));
    let parent = Binding {
        ip: parent.ip().into(),
        ifindex: interface.index,
        mac,
        port: U16::new(parent.port()),
        ..Binding::default()
    };
    Ok(WayUp {
        mac: interface.mac.unwrap_or_default(),
        address: source.unwrap_or(otherwise).into(),
        parent,
    })
}

fn interface_towards(parent: IpAddr) -> Result<Interface, String> {
    let name = way::interface_towards(parent).ok_or("the interface to the parent is not known")?;
    let all = interfaces::list().map_err(|error| error.to_string())?;
    let found = all.into_iter().find(|interface| interface.name == name);
    found.ok_or_else(|| format!("interface {name}, which leads to the parent, is gone"))
}

/// The MAC of a neighbour, which is asked for if the kernel does not know it.
fn mac_of(next_hop: IpAddr, interface: u32, parent: SocketAddr) -> Option<[u8; 6]> {
    let known = || neighbours::find(next_hop, interface).and_then(|neighbour| neighbour.mac);
    let begin = Instant::now();
    let mut has_asked = false;
    loop {
        if let Some(mac) = known() {
            return Some(mac);
        }
        if begin.elapsed() > ASKING {
            return None;
        }
        if !has_asked {
            ask(parent.ip());
            has_asked = true;
        }
        sleep(Duration::from_millis(5));
    }
}

/// Has the kernel look up the MAC of the next hop to this address. An error shows as no answer.
fn ask(parent: IpAddr) {
    let any: IpAddr = match parent {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let _ = UdpSocket::bind((any, 0)).and_then(|socket| socket.send_to(&[], (parent, DISCARD)));
}
