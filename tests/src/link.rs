//! The links of racks, and what is at their ends.

use crate::{Error, Namespace};
use std::net::Ipv4Addr;

/// The aggregator's address, for contributions and for the control plane.
pub const AGGREGATOR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 254);

/// The switch host's only port, where there is a network behind it.
pub const NIC: &str = "nic0";

/// The end of a worker's link that is not the worker's.
pub fn port(rank: usize) -> String {
    format!("p{rank}")
}

/// Makes a veth pair: namespace, name and MAC of each end. Both start where they belong, so that
/// they are never seen, nor left, outside the rack.
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
