//! The network interface that leads to the aggregator.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use switchml_host::interfaces::{self, addresses, link_speed};
use switchml_host::neighbours::mac_text;

/// An interface of this host.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// Its MAC address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Link speed in bits per second, if there is a link: veths and other virtual interfaces have
    /// none, whatever they report.
    pub speed: Option<f64>,
}

/// The address to bind a socket to that sends to `target`: any address of the same IP version, any
/// port.
pub fn unspecified(target: SocketAddr) -> SocketAddr {
    match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

impl Interface {
    /// The interface that the routing table chooses for packets to `target`.
    pub fn towards(target: SocketAddr) -> Option<Self> {
        let socket = UdpSocket::bind(unspecified(target)).ok()?;
        // Sends nothing: a UDP connection only looks up the route.
        socket.connect(target).ok()?;
        let local = socket.local_addr().ok()?.ip();
        Self::with_address(local)
    }

    /// The interface towards the first of these targets that has one.
    pub fn towards_any(targets: &[SocketAddr]) -> Option<Self> {
        targets.iter().find_map(|target| Self::towards(*target))
    }

    /// Whether an address belongs to this host. Loopback addresses belong to every host, so they do
    /// not count.
    pub fn has(address: IpAddr) -> bool {
        !address.is_loopback() && Self::with_address(address).is_some()
    }

    /// The interface that has this address.
    pub(crate) fn with_address(address: IpAddr) -> Option<Self> {
        let index = addresses().ok()?.into_iter().find(|own| own.ip == address)?.index;
        Self::find(|interface| interface.index == index)
    }

    fn find(is_it: impl Fn(&interfaces::Interface) -> bool) -> Option<Self> {
        let interfaces::Interface { name, mac, mtu, .. } =
            interfaces::list().ok()?.into_iter().find(is_it)?;
        let speed = link_speed(&name).map(|speed| speed as f64);
        Some(Self { mac, mtu, speed, name })
    }

    /// The change of its MAC address since this was made, if there was one.
    pub(crate) fn mac_change(&self) -> Option<MacChange> {
        let now = Self::find(|interface| interface.name == self.name)?;
        let (before, now) = (self.mac?, now.mac?);
        (before != now).then(|| MacChange {
            interface: self.name.clone(),
            before: mac_text(before),
            now: mac_text(now),
        })
    }
}

/// Another MAC address that an interface has by now.
#[derive(Debug)]
pub(crate) struct MacChange {
    pub interface: String,
    pub before: String,
    pub now: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_mtu_and_no_speed() {
        for address in ["127.0.0.1:1", "[::1]:1"] {
            let address: SocketAddr = address.parse().unwrap();
            let interface = Interface::towards(address).unwrap();
            assert_eq!((interface.name.as_str(), interface.speed), ("lo", None));
            assert!(interface.mtu >= 1500);
            assert!(!Interface::has(address.ip()));
        }
    }
}
