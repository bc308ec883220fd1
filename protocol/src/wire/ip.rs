//! IP addresses, of both kinds in one form.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An IPv6 address, or an IPv4 address as IPv6 maps it (RFC 4291, section 2.5.5.2), so that tables
/// have one kind of entry. The default is no address.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct Ip(pub [u8; 16]);

impl Ip {
    /// An IPv4 address, mapped into IPv6.
    #[inline(always)]
    pub const fn v4([a, b, c, d]: [u8; 4]) -> Self {
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d])
    }

    /// The last four bytes, which hold an IPv4 address.
    #[inline(always)]
    pub const fn low(self) -> [u8; 4] {
        let [.., a, b, c, d] = self.0;
        [a, b, c, d]
    }

    /// Whether it is an IPv4 address.
    pub const fn is_v4(self) -> bool {
        matches!(self.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, ..])
    }
}

impl From<[u8; 4]> for Ip {
    #[inline(always)]
    fn from(address: [u8; 4]) -> Self {
        Self::v4(address)
    }
}

impl From<[u8; 16]> for Ip {
    #[inline(always)]
    fn from(address: [u8; 16]) -> Self {
        Self(address)
    }
}

impl From<Ipv4Addr> for Ip {
    fn from(address: Ipv4Addr) -> Self {
        Self::v4(address.octets())
    }
}

impl From<Ipv6Addr> for Ip {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<IpAddr> for Ip {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<Ip> for IpAddr {
    fn from(Ip(bytes): Ip) -> Self {
        Self::V6(Ipv6Addr::from(bytes)).to_canonical()
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}
