//! The network interface that leads to the aggregator.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;

/// An interface of this host.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// Largest IP packet in bytes.
    pub mtu: Option<u32>,
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

    fn with_address(address: IpAddr) -> Option<Self> {
        let interfaces = if_addrs::get_if_addrs().ok()?;
        let name = interfaces.into_iter().find(|interface| interface.ip() == address)?.name;
        let folder = PathBuf::from("/sys/class/net").join(&name);
        let number =
            |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<i64>().ok();
        let is_real = folder.join("device").exists();
        // -1 means that the driver does not know.
        let megabits = number("speed").filter(|&speed| is_real && speed > 0);
        Some(Self {
            mtu: number("mtu").and_then(|mtu| mtu.try_into().ok()),
            speed: megabits.map(|megabits| megabits as f64 * 1e6),
            name,
        })
    }
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
            assert!(interface.mtu.unwrap() >= 1500);
            assert!(!Interface::has(address.ip()));
        }
    }
}
