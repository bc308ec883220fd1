//! The addresses and MACs that the aggregator answers to, as its interfaces have them now.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use switchml_host::interfaces::{Address, Interface};
use switchml_host::neighbours::mac_text;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// See the [module's documentation](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Addresses that workers send to.
    pub addresses: Vec<Ipv4Addr>,
    /// MACs that they send to.
    pub macs: BTreeSet<Mac>,
}

impl Local {
    /// Of these ports, among all interfaces and addresses of the namespace. The addresses are those
    /// of the ports and of the bridges that these are ports of, unless one is `configured`; the
    /// MACs also that of whatever interface has such an address.
    pub fn new(
        configured: Option<Ipv4Addr>,
        ports: &[Interface],
        interfaces: &[Interface],
        addresses: &[Address],
    ) -> Self {
        let mut indices: BTreeSet<_> =
            ports.iter().flat_map(|port| [Some(port.index), port.master]).flatten().collect();
        // Those of 127.0.0.0/8 are of every host: other ranks would send to themselves.
        let addresses_of_ports = addresses
            .iter()
            .filter(|address| indices.contains(&address.index) && !address.ip.is_loopback());
        let served = match configured {
            Some(address) => vec![address],
            None => addresses_of_ports.filter_map(v4).collect(),
        };
        indices.extend(
            addresses
                .iter()
                .filter(|address| v4(address).is_some_and(|ip| served.contains(&ip)))
                .map(|address| address.index),
        );
        let own = interfaces.iter().filter(|interface| indices.contains(&interface.index));
        Self { addresses: served, macs: own.filter_map(|interface| interface.mac).collect() }
    }
}

fn v4(address: &Address) -> Option<Ipv4Addr> {
    match address.ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
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

    fn interface(index: u32, master: Option<u32>) -> Interface {
        let mac = Some([2, 0, 0, 0, 0, index as u8]);
        Interface { index, master, mac, ..Interface::default() }
    }

    fn local(configured: Option<[u8; 4]>) -> Local {
        with_ports(configured, &[PORT])
    }

    fn with_ports(configured: Option<[u8; 4]>, ports: &[u32]) -> Local {
        let interfaces = [
            interface(LO, None),
            interface(BRIDGE, None),
            interface(PORT, Some(BRIDGE)),
            interface(OTHER, Some(BRIDGE)),
            interface(VIRTUAL, None),
        ];
        let addresses = [(LO, [127, 0, 0, 1]), (BRIDGE, [10, 0, 0, 254]), (VIRTUAL, [10, 0, 0, 9])];
        let addresses = addresses.map(|(index, ip)| Address { index, ip: ip.into() });
        let mut served = interfaces.to_vec();
        served.retain(|interface| ports.contains(&interface.index));
        Local::new(configured.map(Ipv4Addr::from), &served, &interfaces, &addresses)
    }

    fn macs(indices: &[u32]) -> BTreeSet<Mac> {
        indices.iter().map(|index| [2, 0, 0, 0, 0, *index as u8]).collect()
    }

    #[test]
    fn those_of_ports_and_of_their_bridge() {
        assert_eq!(
            local(None),
            Local { addresses: vec![Ipv4Addr::new(10, 0, 0, 254)], macs: macs(&[BRIDGE, PORT]) },
            "not of the bridge's other port, which is not the aggregator's"
        );
    }

    #[test]
    fn loopback_brings_its_mac_alone() {
        assert_eq!(
            with_ports(None, &[PORT, LO]),
            Local {
                addresses: vec![Ipv4Addr::new(10, 0, 0, 254)],
                macs: macs(&[LO, BRIDGE, PORT])
            }
        );
    }

    #[test]
    fn that_of_whoever_has_the_address() {
        let with_mac_of = |address, indices: &[u32]| {
            assert_eq!(
                local(Some(address)),
                Local { addresses: vec![address.into()], macs: macs(indices) }
            );
        };
        with_mac_of([10, 0, 0, 9], &[BRIDGE, PORT, VIRTUAL]);
        with_mac_of([10, 0, 0, 7], &[BRIDGE, PORT]);
    }
}
