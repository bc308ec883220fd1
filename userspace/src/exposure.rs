//! The networks from which a control plane without access control can be reached.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context;
use switchml_host::interfaces;

/// The hosts that can reach a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Only this host.
    Host,
    /// Private networks.
    Private,
    /// Anybody, by this address.
    Public(IpAddr),
}

/// The exposure of a control plane that listens at an address, or at all of the host's addresses if
/// it is unspecified.
pub fn of(address: SocketAddr) -> anyhow::Result<Exposure> {
    let ip = address.ip().to_canonical();
    if !ip.is_unspecified() {
        return Ok(widest([ip]));
    }
    let all = interfaces::addresses().context("cannot tell this host's addresses")?;
    Ok(widest(all.into_iter().map(|own| own.ip).filter(|own| ip.is_ipv6() || own.is_ipv4())))
}

fn widest(addresses: impl IntoIterator<Item = IpAddr>) -> Exposure {
    let mut widest = Exposure::Host;
    for address in addresses {
        if !is_private(address) {
            return Exposure::Public(address);
        }
        if !address.is_loopback() {
            widest = Exposure::Private;
        }
    }
    widest
}

/// Whether an address cannot be reached from the Internet: loopback, RFC 1918, RFC 4193,
/// link-local, or behind a provider's NAT (RFC 6598).
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let is_shared = v4 & Ipv4Addr::new(255, 192, 0, 0) == Ipv4Addr::new(100, 64, 0, 0);
            v4.is_loopback() || v4.is_private() || v4.is_link_local() || is_shared
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first and the last address of each range, and their neighbours.
    #[test]
    fn ranges() {
        for private in [
            "127.0.0.0",
            "127.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "172.16.0.0",
            "172.31.255.255",
            "192.168.0.0",
            "192.168.255.255",
            "169.254.0.0",
            "169.254.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "::1",
            "fc00::",
            "fdff:ffff::1",
            "fe80::",
            "febf::1",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in [
            "126.255.255.255",
            "128.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "::2",
            "fbff::1",
            "fe00::1",
            "fe7f::1",
            "fec0::1",
            "2001:db8::1",
        ] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn the_widest_of_all_addresses_counts() {
        let of = |addresses: &[&str]| widest(addresses.iter().map(|text| text.parse().unwrap()));
        assert_eq!(of(&["127.0.0.1", "::1"]), Exposure::Host);
        assert_eq!(of(&["127.0.0.1", "10.0.0.1", "::1"]), Exposure::Private);
        let public = "2001:db8::1";
        let expected = Exposure::Public(public.parse().unwrap());
        assert_eq!(of(&["10.0.0.1", public, "::1"]), expected);
    }

    /// IPv4 in disguise, as a socket of IPv6 has it.
    #[test]
    fn an_address_that_maps_ipv4_is_ipv4() {
        assert_eq!(of("[::ffff:10.0.0.1]:1".parse().unwrap()).unwrap(), Exposure::Private);
    }
}
