//! The network interface that leads to the aggregator.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket},
    path::PathBuf,
};

/// An interface of this host.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Largest IP packet in bytes.
    pub mtu: Option<u32>,
    /// Link speed in bits per second, where there is a link: a veth and other virtual interfaces
    /// have none, whatever they report.
    pub speed: Option<f64>,
}

impl Interface {
    /// The one that the routing table chooses for packets to `target`.
    pub fn towards(target: SocketAddrV4) -> Option<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // Sends nothing: a UDP connection only looks up the route.
        socket.connect(target).ok()?;
        let local = socket.local_addr().ok()?.ip();
        Self::with_address(local)
    }

    /// Whether an address is of this host. One of loopback is of every host, and tells nothing.
    pub fn has(address: Ipv4Addr) -> bool {
        !address.is_loopback() && Self::with_address(address.into()).is_some()
    }

    fn with_address(address: IpAddr) -> Option<Self> {
        let interfaces = if_addrs::get_if_addrs().ok()?;
        let name = interfaces.into_iter().find(|interface| interface.ip() == address)?.name;
        let folder = PathBuf::from("/sys/class/net").join(&name);
        let number =
            |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<i64>().ok();
        let is_real = folder.join("device").exists();
        // -1: the driver does not know.
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
        let interface = Interface::towards(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1)).unwrap();
        assert_eq!((interface.name.as_str(), interface.speed), ("lo", None));
        assert!(interface.mtu.unwrap() >= 1500);
        assert!(!Interface::has(Ipv4Addr::LOCALHOST));
    }
}
