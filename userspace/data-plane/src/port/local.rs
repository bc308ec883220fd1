//! The addresses and MACs that the aggregator answers to, as its interfaces have them now.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use switchml_host::interfaces::{Address, Interface, Uniqueness};
use switchml_host::neighbours::mac_text;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// See the [module's documentation](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Addresses that workers send to.
    pub addresses: Vec<IpAddr>,
    /// MACs that they send to.
    pub macs: BTreeSet<Mac>,
    /// Addresses that would be served, but another host has them, too: the kernel does not use
    /// them.
    pub duplicates: Vec<IpAddr>,
}

impl Local {
    /// The addresses and MACs to serve at these ports, given all interfaces and addresses of the
    /// namespace. The addresses are those of the ports and of the bridges that these belong to, in
    /// all their VLANs, unless one is `configured`. The MACs include those of other interfaces with
    /// such an address.
    pub fn new(
        configured: Option<IpAddr>,
        ports: &[Interface],
        interfaces: &[Interface],
        addresses: &[Address],
    ) -> Self {
        let mut indices: BTreeSet<_> =
            ports.iter().flat_map(|port| [Some(port.index), port.master]).flatten().collect();
        let in_vlan = |interface: &&Interface| {
            interface.vlan_of.is_some_and(|below| indices.contains(&below))
        };
        let in_vlans: Vec<_> = interfaces.iter().filter(in_vlan).map(|one| one.index).collect();
        indices.extend(in_vlans);
        let addresses_of_ports = addresses
            .iter()
            .filter(|address| indices.contains(&address.index) && is_for_others(address.ip));
        let those = |uniqueness| {
            let such = addresses_of_ports.clone().filter(move |one| one.uniqueness == uniqueness);
            such.map(|address| address.ip).collect::<Vec<_>>()
        };
        // Frames from an address that is served are dropped. While the kernel asks whether another
        // host has it, they are that host's answers.
        let usable = those(Uniqueness::Unique);
        let served = configured.map_or(usable, |address| vec![address]);
        let duplicates = those(Uniqueness::Duplicate);
        indices.extend(
            addresses
                .iter()
                .filter(|address| served.contains(&address.ip))
                .map(|address| address.index),
        );
        let own = interfaces.iter().filter(|interface| indices.contains(&interface.index));
        let macs = own.filter_map(|interface| interface.mac).collect();
        Self { addresses: served, macs, duplicates }
    }
}

/// Whether other hosts can send to the address: every host has 127.0.0.0/8 and `::1`, and every
/// link has fe80::/10.
fn is_for_others(ip: IpAddr) -> bool {
    let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    !ip.is_loopback() && !is_link_local
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        let macs: Vec<_> = self.macs.iter().map(|mac| mac_text(*mac)).collect();
        write!(f, "{} at {}", addresses.join(", "), macs.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LO: u32 = 1;
    const BRIDGE: u32 = 2;
    const PORT: u32 = 3;
    const OTHER: u32 = 4;
    const VIRTUAL: u32 = 5;
    const VLAN: u32 = 6;
    const OTHERS_VLAN: u32 = 7;
    /// An address of the bridge that another host has, too.
    const DUPLICATE: &str = "fd00::99";
    const TENTATIVE: &str = "fd00::98";

    fn interface(index: u32, master: Option<u32>) -> Interface {
        let mac = Some([2, 0, 0, 0, 0, index as u8]);
        Interface { index, master, mac, ..Interface::default() }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn local(configured: Option<&str>) -> Local {
        with_ports(configured, &[PORT])
    }

    fn with_ports(configured: Option<&str>, ports: &[u32]) -> Local {
        let interfaces = [
            interface(LO, None),
            interface(BRIDGE, None),
            interface(PORT, Some(BRIDGE)),
            interface(OTHER, Some(BRIDGE)),
            interface(VIRTUAL, None),
            Interface { vlan_of: Some(BRIDGE), ..interface(VLAN, None) },
            Interface { vlan_of: Some(OTHER), ..interface(OTHERS_VLAN, None) },
        ];
        let addresses = [
            (LO, "127.0.0.1"),
            (LO, "::1"),
            (BRIDGE, "10.0.0.254"),
            (BRIDGE, "fd00::fe"),
            (BRIDGE, "fe80::fe"),
            (BRIDGE, DUPLICATE),
            (BRIDGE, TENTATIVE),
            (VIRTUAL, "10.0.0.9"),
            (VLAN, "10.0.5.254"),
            (OTHERS_VLAN, "10.0.6.254"),
        ];
        let addresses = addresses.map(|(index, text)| Address {
            index,
            ip: ip(text),
            uniqueness: match text {
                DUPLICATE => Uniqueness::Duplicate,
                TENTATIVE => Uniqueness::Tentative,
                _ => Uniqueness::Unique,
            },
        });
        let mut served = interfaces.to_vec();
        served.retain(|interface| ports.contains(&interface.index));
        Local::new(configured.map(ip), &served, &interfaces, &addresses)
    }

    fn macs(indices: &[u32]) -> BTreeSet<Mac> {
        indices.iter().map(|index| [2, 0, 0, 0, 0, *index as u8]).collect()
    }

    #[test]
    fn those_of_ports_and_of_their_bridge() {
        assert_eq!(
            local(None),
            Local {
                addresses: ["10.0.0.254", "fd00::fe", "10.0.5.254"].map(ip).to_vec(),
                macs: macs(&[BRIDGE, PORT, VLAN]),
                duplicates: vec![ip(DUPLICATE)],
            },
            "not of the bridge's other port, which is not the aggregator's"
        );
    }

    #[test]
    fn loopback_brings_its_mac_alone() {
        assert_eq!(
            with_ports(None, &[PORT, LO]),
            Local {
                addresses: ["10.0.0.254", "fd00::fe", "10.0.5.254"].map(ip).to_vec(),
                macs: macs(&[LO, BRIDGE, PORT, VLAN]),
                duplicates: vec![ip(DUPLICATE)],
            }
        );
    }

    #[test]
    fn that_of_whoever_has_the_address() {
        let with_mac_of = |address, indices: &[u32]| {
            assert_eq!(
                local(Some(address)),
                Local {
                    addresses: vec![ip(address)],
                    macs: macs(indices),
                    duplicates: vec![ip(DUPLICATE)],
                }
            );
        };
        with_mac_of("10.0.0.9", &[BRIDGE, PORT, VIRTUAL, VLAN]);
        with_mac_of("10.0.0.7", &[BRIDGE, PORT, VLAN]);
    }
}
