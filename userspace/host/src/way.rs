//! The interface by which frames of a host come in, as far as the kernel knows.

use std::net::IpAddr;

use crate::{interfaces, neighbours, routes};

/// Name of the interface by which the kernel sends to `peer`; for a bridge, the port at which it
/// has learned the peer's MAC. `None` if there is no route.
pub fn interface_towards(peer: IpAddr) -> Option<String> {
    let route = routes::to(peer).ok()?;
    let interface = interfaces::list()
        .ok()?
        .into_iter()
        .find(|interface| interface.index == route.interface)?;
    if interface.kind.as_deref() != Some("bridge") {
        return Some(interface.name);
    }
    let neighbour = neighbours::find(route.next_hop(peer), interface.index)?;
    neighbours::bridge_port(&interface.name, neighbour.mac?)
}
