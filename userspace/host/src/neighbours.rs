//! Hosts on the same link: their MACs, and the ports of a bridge that they are behind.

use std::fs;
use std::net::IpAddr;

use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Nda, Nud, RtAddrFamily, Rtm, Rtn};
use neli::rtnl::{Ndmsg, NdmsgBuilder};

use crate::netlink;

/// The kernel's neighbour entry of a host on the same link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The host's MAC; `None` if it does not answer, or has not yet.
    pub mac: Option<[u8; 6]>,
    /// Whether the MAC was entered by hand, so that nothing corrects it.
    pub is_permanent: bool,
}

/// The neighbour with this address at the interface with this number; `None` if the kernel has no
/// entry.
pub fn find(address: IpAddr, interface: u32) -> Option<Neighbour> {
    let family = if address.is_ipv6() { RtAddrFamily::Inet6 } else { RtAddrFamily::Inet };
    let request = NdmsgBuilder::default()
        .ndm_family(family)
        .ndm_index(0)
        .ndm_state(Nud::empty())
        .ndm_type(Rtn::Unspec)
        .build()
        .ok()?;
    let read = |entry: &Ndmsg| {
        let is_here = u32::try_from(*entry.ndm_index()) == Ok(interface);
        (is_here && address_of(entry) == Some(address)).then(|| neighbour(entry)).flatten()
    };
    netlink::read_route(Rtm::Getneigh, NlmF::DUMP, request, read).ok()?.pop()
}

fn address_of(entry: &Ndmsg) -> Option<IpAddr> {
    let attributes = entry.rtattrs().get_attr_handle();
    match entry.ndm_family() {
        RtAddrFamily::Inet => {
            attributes.get_attr_payload_as::<[u8; 4]>(Nda::Dst).ok().map(IpAddr::from)
        }
        RtAddrFamily::Inet6 => {
            attributes.get_attr_payload_as::<[u8; 16]>(Nda::Dst).ok().map(IpAddr::from)
        }
        _ => None,
    }
}

/// `None` where the link needs no MAC.
fn neighbour(entry: &Ndmsg) -> Option<Neighbour> {
    let state = *entry.ndm_state();
    let mac = entry.rtattrs().get_attr_handle().get_attr_payload_as(Nda::Lladdr).ok();
    let is_unknown = state.intersects(Nud::INCOMPLETE | Nud::FAILED) || state.is_empty();
    (!state.contains(Nud::NOARP)).then(|| Neighbour {
        mac: mac.filter(|_| !is_unknown),
        is_permanent: state.contains(Nud::PERMANENT),
    })
}

/// A MAC as people write it.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Name of the bridge's port that a MAC was learned at.
pub fn bridge_port(bridge: &str, mac: [u8; 6]) -> Option<String> {
    let table = fs::read(format!("/sys/class/net/{bridge}/brforward")).ok()?;
    let number = learned_at(&table, mac)?;
    fs::read_dir(format!("/sys/class/net/{bridge}/brif")).ok()?.find_map(|port| {
        let port = port.ok()?;
        let text = fs::read_to_string(port.path().join("port_no")).ok()?;
        let text = text.trim().trim_start_matches("0x");
        (u16::from_str_radix(text, 16) == Ok(number))
            .then(|| port.file_name().into_string().ok())?
    })
}

/// Number of the port in the kernel's table of a bridge: `struct __fdb_entry` of linux/if_bridge.h.
fn learned_at(table: &[u8], mac: [u8; 6]) -> Option<u16> {
    const ENTRY: usize = 16;
    let mut entries = table.chunks_exact(ENTRY);
    // MAC, port, whether it is the bridge's own, age (4 bytes), the port's high byte.
    let is_found = |entry: &&[u8]| entry[..6] == mac && entry[7] == 0;
    entries.find(is_found).map(|entry| u16::from_le_bytes([entry[6], entry[12]]))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use neli::rtnl::RtattrBuilder;
    use neli::types::RtBuffer;

    use super::*;

    fn entry(state: Nud, address: &[u8], mac: Option<[u8; 6]>) -> Ndmsg {
        let family = if address.len() == 4 { RtAddrFamily::Inet } else { RtAddrFamily::Inet6 };
        let attribute = |kind, bytes: &[u8]| {
            RtattrBuilder::default().rta_type(kind).rta_payload(bytes.to_vec()).build().unwrap()
        };
        let mut attributes = RtBuffer::new();
        attributes.push(attribute(Nda::Dst, address));
        if let Some(mac) = mac {
            attributes.push(attribute(Nda::Lladdr, &mac));
        }
        let entry = NdmsgBuilder::default().ndm_family(family).ndm_index(1).ndm_state(state);
        entry.ndm_type(Rtn::Unicast).rtattrs(attributes).build().unwrap()
    }

    #[test]
    fn an_entry_is_read() {
        let mac = [2, 0, 0, 0, 1, 0xFE];
        let known = |is_permanent| Some(Neighbour { mac: Some(mac), is_permanent });
        let (v4, v6) = ([10, 0, 0, 1], Ipv6Addr::LOCALHOST.octets());
        for (state, expected) in [
            (Nud::STALE, known(false)),
            (Nud::PERMANENT, known(true)),
            (Nud::FAILED, Some(Neighbour { mac: None, is_permanent: false })),
            (Nud::NOARP, None),
        ] {
            assert_eq!(neighbour(&entry(state, &v4, Some(mac))), expected, "{state:?}");
        }
        let asked = entry(Nud::INCOMPLETE, &v6, None);
        assert_eq!(neighbour(&asked), Some(Neighbour { mac: None, is_permanent: false }));
        assert_eq!(address_of(&asked), Some(Ipv6Addr::LOCALHOST.into()));
        assert_eq!(address_of(&entry(Nud::STALE, &v4, None)), Some(IpAddr::from(v4)));
        assert_eq!(mac_text(mac), "02:00:00:00:01:fe");
    }

    #[test]
    fn a_macs_port_is_found_and_the_bridges_own_is_not() {
        let entry = |mac: u8, port: u16, is_own: u8| {
            let [low, high] = port.to_le_bytes();
            [0, 0, 0, 0, 0, mac, low, is_own, 0, 0, 0, 0, high, 0, 0, 0]
        };
        let table = [entry(1, 3, 1), entry(2, 0x102, 0)].concat();
        assert_eq!(learned_at(&table, [0, 0, 0, 0, 0, 2]), Some(0x102));
        assert_eq!(learned_at(&table, [0, 0, 0, 0, 0, 1]), None);
    }
}
