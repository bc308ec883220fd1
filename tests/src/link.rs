//! The links of racks, and their ends.

use crate::{Error, Namespace};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The only kind of IP that hosts of a rack have addresses of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ip {
    /// 10.88.SUBNET.HOST, with 24 bits for the subnet.
    #[default]
    V4,
    /// fd88:0:0:SUBNET::HOST, with 64 bits for the subnet.
    V6,
}

impl Ip {
    /// The address of this IP version that stands for an IPv4 address.
    pub fn of(self, address: Ipv4Addr) -> IpAddr {
        let [_, _, subnet, host] = address.octets().map(u16::from);
        match self {
            Self::V4 => address.into(),
            Self::V6 => Ipv6Addr::new(0xFD88, 0, 0, subnet, 0, 0, 0, host).into(),
        }
    }

    /// Gives an interface an address, without duplicate address detection: no other interface has
    /// it.
    pub(crate) fn assign(
        self,
        host: &Namespace,
        address: Ipv4Addr,
        interface: &str,
    ) -> Result<(), Error> {
        let length = match self {
            Self::V4 => "/24",
            Self::V6 => "/64 nodad",
        };
        let address = self.of(address);
        host.tool("ip", &format!("address add dev {interface} {address}{length}"))
    }

    /// Routes multicast groups through an interface: to join one over IPv4, a host needs a route.
    /// IPv6 needs none.
    pub(crate) fn route_groups(self, host: &Namespace, interface: &str) -> Result<(), Error> {
        match self {
            Self::V4 => host.tool("ip", &format!("route add 224.0.0.0/4 dev {interface}")),
            Self::V6 => Ok(()),
        }
    }
}

/// The aggregator's address, for contributions and for the control plane.
pub const AGGREGATOR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 254);

/// The switch host's only port, if there is a network behind it.
pub const NIC: &str = "nic0";

/// The other end of a worker's link.
pub fn port(rank: usize) -> String {
    format!("p{rank}")
}

/// Makes a veth pair: namespace, name and MAC of each end. Both are created in their namespaces, so
/// that they never appear, or stay, outside the rack.
pub fn join(
    end: (&Namespace, String, String),
    peer: (&Namespace, String, String),
    mtu: u32,
) -> Result<(), Error> {
    let ((namespace, name, mac), (peer_namespace, peer_name, peer_mac)) = (end, peer);
    let path = peer_namespace.path();
    namespace.tool(
        "ip",
        &format!(
            "link add {name} address {mac} mtu {mtu} type veth \
             peer name {peer_name} address {peer_mac} mtu {mtu} netns {path}"
        ),
    )
}
