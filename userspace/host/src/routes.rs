//! The routes of packets to an address.

use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{RtAddrFamily, RtScope, RtTable, Rta, Rtm, Rtn, Rtprot};
use neli::rtnl::{RtattrBuilder, RtmsgBuilder};
use neli::types::RtBuffer;

use crate::netlink::{self, NetlinkError, failed};

/// The kernel's choice for one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Number of the interface by which packets leave.
    pub interface: u32,
    /// The router that they go to; `None` if the address is on the same link.
    pub gateway: Option<IpAddr>,
    /// The address that they come from.
    pub source: Option<IpAddr>,
}

impl Route {
    /// The host on the link whose MAC packets to `target` carry.
    pub fn next_hop(&self, target: impl Into<IpAddr>) -> IpAddr {
        self.gateway.unwrap_or_else(|| target.into())
    }
}

/// The route to an address; an error if there is none.
pub fn to(address: impl Into<IpAddr>) -> Result<Route, NetlinkError> {
    let (family, bytes) = match address.into() {
        IpAddr::V4(address) => (RtAddrFamily::Inet, address.octets().to_vec()),
        IpAddr::V6(address) => (RtAddrFamily::Inet6, address.octets().to_vec()),
    };
    let bits = 8 * bytes.len() as u8;
    let destination = RtattrBuilder::default().rta_type(Rta::Dst).rta_payload(bytes);
    let mut attributes = RtBuffer::new();
    attributes.push(destination.build().map_err(failed)?);
    let request = RtmsgBuilder::default()
        .rtm_family(family)
        .rtm_dst_len(bits)
        .rtm_src_len(0)
        .rtm_tos(0)
        .rtm_table(RtTable::Unspec)
        .rtm_protocol(Rtprot::Unspec)
        .rtm_scope(RtScope::Universe)
        .rtm_type(Rtn::Unspec)
        .rtattrs(attributes)
        .build()
        .map_err(failed)?;
    let answers = netlink::route(Rtm::Getroute, NlmF::empty(), request)?;
    let answer = answers.first().ok_or_else(|| failed("no answer to a question for a route"))?;
    let attributes = answer.rtattrs().get_attr_handle();
    let ip = |kind| match family {
        RtAddrFamily::Inet6 => {
            attributes.get_attr_payload_as::<[u8; 16]>(kind).ok().map(IpAddr::from)
        }
        _ => attributes.get_attr_payload_as::<[u8; 4]>(kind).ok().map(IpAddr::from),
    };
    Ok(Route {
        interface: attributes.get_attr_payload_as(Rta::Oif).map_err(failed)?,
        gateway: ip(Rta::Gateway),
        source: ip(Rta::Prefsrc),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn loopback_is_on_the_same_link() {
        let addresses: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for address in addresses {
            let route = to(address).expect("netlink");
            assert_eq!((route.interface, route.gateway, route.source), (1, None, Some(address)));
            assert_eq!(route.next_hop(address), address);
        }
    }
}
