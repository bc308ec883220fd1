//! What this host's kernel knows about the path to an address.

use std::fs;
use std::net::IpAddr;

use switchml_host::interfaces::{self, Interface};
use switchml_host::neighbours::{self, Neighbour};
use switchml_host::{offloads, routes};

/// The first hop of the path. [`Default`] is for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// The interface through which packets leave.
    pub interface: Interface,
    /// Whether the interface merges packets of a stream on their way in; `None` if the kernel does
    /// not tell.
    pub has_gro: Option<bool>,
    /// The router that packets go to; `None` if the address is on the same link.
    pub gateway: Option<IpAddr>,
    /// The neighbour that packets go to, if the kernel has asked for it.
    pub neighbour: Option<Neighbour>,
}

impl Here {
    /// The first hop towards this address; `None` if there is no route.
    pub fn towards(target: IpAddr) -> Option<Self> {
        let route = routes::to(target).ok()?;
        let all = interfaces::list().ok()?;
        let interface = all.into_iter().find(|interface| interface.index == route.interface)?;
        let features = offloads::active(interface.index).ok();
        Some(Self {
            has_gro: features
                .map(|features| features.iter().any(|feature| feature == offloads::GRO)),
            gateway: route.gateway,
            neighbour: neighbours::find(route.next_hop(target), interface.index),
            interface,
        })
    }

    /// The address whose MAC packets to `target` carry.
    pub fn next_hop(&self, target: IpAddr) -> IpAddr {
        self.gateway.unwrap_or(target)
    }
}

/// Whether the interface drops packets if the route to their sender goes through another interface:
/// `rp_filter` is 1 for this interface or for all, and 2 for neither.
pub fn is_strict(interface: &str) -> bool {
    let setting = |name: &str| -> u8 {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    setting("all").max(setting(interface)) == 1
}
