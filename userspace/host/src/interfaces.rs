//! The interfaces of this network namespace, queried over netlink.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use neli::attr::Attribute;
use neli::consts::genl::{Cmd, NlAttrType};
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Ifa, IfaF, Ifla, IflaInfo, RtAddrFamily, RtaType, Rtm};
use neli::neli_enum;
use neli::rtnl::{IfaddrmsgBuilder, IfinfomsgBuilder};
use neli::types::Buffer;

use crate::netlink::{self, NetlinkError, failed};

// Bits of `enum netdev_xdp_act` in linux/netdev.h.
const XDP_ACT_BASIC: u64 = 1;
const XDP_ACT_REDIRECT: u64 = 2;
const XDP_ACT_NDO_XMIT: u64 = 4;

/// A driver's XDP features, as the kernel reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpFeatures(u64);

impl XdpFeatures {
    /// All features that matter here, for tests.
    pub const ALL: Self = Self(XDP_ACT_BASIC | XDP_ACT_REDIRECT | XDP_ACT_NDO_XMIT);

    /// Whether the driver runs programs natively, and sends frames that they redirect.
    pub fn has_native(self) -> bool {
        self.0 & (XDP_ACT_BASIC | XDP_ACT_REDIRECT) == XDP_ACT_BASIC | XDP_ACT_REDIRECT
    }

    /// Whether frames that XDP sends out of the interface arrive. On a veth they do only while the
    /// other end takes such frames.
    pub fn delivers(self) -> bool {
        self.0 & XDP_ACT_NDO_XMIT != 0
    }
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The interface's number.
    pub index: u32,
    /// The interface's name.
    pub name: String,
    /// Further names, which only the newer tools know.
    pub altnames: Vec<String>,
    /// The bridge or bond that it is a port of.
    pub master: Option<u32>,
    /// The interface whose VLAN it is, if it is one for a VLAN.
    pub vlan_of: Option<u32>,
    /// The interface's Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// The kind of a virtual interface: `veth`, `bridge`, ….
    pub kind: Option<String>,
    /// Id of the XDP program that is attached to it.
    pub program: Option<u32>,
    /// Whether the XDP program runs in the network stack (xdpgeneric), not in the driver.
    pub program_is_generic: bool,
    /// Counters of the interface's traffic.
    pub traffic: Traffic,
}

impl Interface {
    /// Whether the interface has this name, maybe among others.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.altnames.iter().any(|own| own == name)
    }

    /// Whether the interface has one of these names.
    pub fn is_among(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.is_called(name))
    }
}

/// Bytes of the frames that an interface has carried since it was made, and frames that it lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
    /// Frames that came in damaged, or that driver or kernel dropped, as each driver counts them.
    pub receive_drops: u64,
    /// Frames that were not sent.
    pub send_drops: u64,
}

impl Traffic {
    /// Reads `struct rtnl_link_stats64` (linux/if_link.h): packets received and sent, then bytes,
    /// errors and drops, and after seven other fields the frames missed, which are not among the
    /// drops; later kernels append more fields.
    fn from_stats(stats: &[u8]) -> Option<Self> {
        let numbers: Vec<_> =
            stats.as_chunks::<8>().0.iter().map(|number| u64::from_ne_bytes(*number)).collect();
        let [
            _,
            _,
            received,
            sent,
            receive_errors,
            send_errors,
            receive_drops,
            send_drops,
            rest @ ..,
        ] = &numbers[..]
        else {
            return None;
        };
        Some(Self {
            received: *received,
            sent: *sent,
            receive_drops: receive_errors + receive_drops + rest.get(7).unwrap_or(&0),
            send_drops: send_errors + send_drops,
        })
    }
}

/// Attributes of an interface's XDP. (`IFLA_XDP_*` of linux/if_link.h.)
#[neli_enum(serialized_type = "u16")]
enum XdpAttribute {
    Attached = 2,
    ProgramId = 4,
}

/// The kernel marks this attribute as one that holds others (`IFLA_PROP_LIST`, `NLA_F_NESTED`).
const PROPERTIES: Ifla = Ifla::UnrecognizedConst(1 << 15 | 52);

/// `XDP_ATTACHED_SKB` of an `enum` in linux/if_link.h.
const ATTACHED_SKB: u8 = 2;

impl RtaType for XdpAttribute {}

/// Commands of the generic netlink family `netdev`.
#[neli_enum(serialized_type = "u8")]
enum NetdevCommand {
    DevGet = 1,
}

impl Cmd for NetdevCommand {}

/// Attributes of its devices.
#[neli_enum(serialized_type = "u16")]
enum NetdevAttribute {
    Ifindex = 1,
    XdpFeatures = 3,
}

impl NlAttrType for NetdevAttribute {}

/// All interfaces of the namespace.
pub fn list() -> Result<Vec<Interface>, NetlinkError> {
    let request = IfinfomsgBuilder::default().ifi_family(RtAddrFamily::Unspecified);
    let mut interfaces = Vec::new();
    for link in netlink::route(Rtm::Getlink, NlmF::DUMP, request.build().map_err(failed)?)? {
        let attributes = link.rtattrs().get_attr_handle();
        let kind = attributes
            .get_nested_attributes::<IflaInfo>(Ifla::Linkinfo)
            .and_then(|info| info.get_attr_payload_as_with_len::<String>(IflaInfo::Kind))
            .ok();
        let properties = attributes.get_nested_attributes::<Ifla>(PROPERTIES).ok();
        let altnames = properties.iter().flat_map(|properties| properties.get_attrs());
        let below = attributes.get_attr_payload_as(Ifla::Link).ok();
        let xdp = attributes.get_nested_attributes::<XdpAttribute>(Ifla::Xdp).ok();
        let attached =
            xdp.as_ref().and_then(|xdp| xdp.get_attr_payload_as(XdpAttribute::Attached).ok());
        interfaces.push(Interface {
            index: u32::try_from(*link.ifi_index()).map_err(failed)?,
            name: attributes
                .get_attr_payload_as_with_len::<String>(Ifla::Ifname)
                .map_err(failed)?,
            altnames: altnames
                .filter(|property| *property.rta_type() == Ifla::AltIfname)
                .filter_map(|property| property.get_payload_as_with_len::<String>().ok())
                .collect(),
            master: attributes.get_attr_payload_as(Ifla::Master).ok(),
            mac: attributes.get_attr_payload_as(Ifla::Address).ok(),
            mtu: attributes.get_attr_payload_as(Ifla::Mtu).map_err(failed)?,
            vlan_of: below.filter(|_| kind.as_deref() == Some("vlan")),
            kind,
            program: xdp.and_then(|xdp| xdp.get_attr_payload_as(XdpAttribute::ProgramId).ok()),
            program_is_generic: attached == Some(ATTACHED_SKB),
            traffic: attributes
                .get_attr_payload_as_with_len::<Buffer>(Ifla::Stats64)
                .ok()
                .and_then(|stats| Traffic::from_stats(stats.as_ref()))
                .unwrap_or_default(),
        });
    }
    Ok(interfaces)
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface's number.
    pub index: u32,
    /// The address.
    pub ip: IpAddr,
    /// Whether this host alone has it.
    pub uniqueness: Uniqueness,
}

/// What the kernel knows of other hosts of the link with an address (RFC 4862, section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uniqueness {
    /// None has it.
    Unique,
    /// The kernel still asks.
    Tentative,
    /// Another one has it, too, so the kernel does not use it.
    Duplicate,
}

/// All addresses of the namespace's interfaces.
pub fn addresses() -> Result<Vec<Address>, NetlinkError> {
    let request = IfaddrmsgBuilder::default()
        .ifa_family(RtAddrFamily::Unspecified)
        .ifa_prefixlen(0)
        .ifa_scope(neli::consts::rtnl::RtScope::Universe)
        .ifa_index(0)
        .build()
        .map_err(failed)?;
    let mut addresses = Vec::new();
    for message in netlink::route(Rtm::Getaddr, NlmF::DUMP, request)? {
        let attributes = message.rtattrs().get_attr_handle();
        let local = match message.ifa_family() {
            RtAddrFamily::Inet6 => attributes
                .get_attr_payload_as::<[u8; 16]>(Ifa::Local)
                // A point-to-point link has the other end's address here; any other interface its
                // own.
                .or_else(|_| attributes.get_attr_payload_as(Ifa::Address))
                .map(IpAddr::from),
            _ => attributes.get_attr_payload_as::<[u8; 4]>(Ifa::Local).map(IpAddr::from),
        };
        if let Ok(ip) = local {
            let has = |flag| message.ifa_flags().contains(flag);
            let uniqueness = match () {
                // A duplicate keeps the other flag.
                () if has(IfaF::DADFAILED) => Uniqueness::Duplicate,
                () if has(IfaF::TENTATIVE) => Uniqueness::Tentative,
                () => Uniqueness::Unique,
            };
            addresses.push(Address { index: *message.ifa_index(), ip, uniqueness });
        }
    }
    Ok(addresses)
}

/// The XDP features of the interface's driver. `None` for kernels that do not tell (before 6.3).
pub fn xdp_features(index: u32) -> Result<Option<XdpFeatures>, NetlinkError> {
    let device = [netlink::attribute(NetdevAttribute::Ifindex, index)?];
    let answers = netlink::generic("netdev", NetdevCommand::DevGet, device)?;
    let Some(device) = answers.and_then(|devices| devices.into_iter().next()) else {
        return Ok(None);
    };
    let attributes = device.attrs().get_attr_handle();
    let features = attributes.get_attr_payload_as(NetdevAttribute::XdpFeatures);
    features.map(XdpFeatures).map(Some).map_err(failed)
}

/// The speed of an interface's link in bits per second, if it has one and the driver tells. Virtual
/// interfaces have no speed, whatever they report.
pub fn link_speed(name: &str) -> Option<u64> {
    let folder = Path::new("/sys/class/net").join(name);
    let is_real = folder.join("device").exists();
    fs::read_to_string(folder.join("speed")).ok().filter(|_| is_real).and_then(|text| speed(&text))
}

/// What a driver tells in Mb/s, in bits per second: -1 or 0 if it does not know.
fn speed(text: &str) -> Option<u64> {
    let megabits = text.trim().parse::<i64>().ok().filter(|megabits| *megabits > 0)?;
    megabits.unsigned_abs().checked_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_that_drivers_do_not_know_are_none() {
        let known = ["-1\n", "0\n", "", "1\n", "100000\n"].map(speed);
        assert_eq!(known, [None, None, None, Some(1_000_000), Some(100_000_000_000)]);
    }

    /// Every namespace has its loopback interface, and this test no privilege.
    #[test]
    fn the_loopback_interface_is_found() {
        let lo = list()
            .expect("netlink")
            .into_iter()
            .find(|interface| interface.name == "lo")
            .expect("lo");
        assert_eq!((lo.index, lo.master, lo.program), (1, None, None));
        assert_eq!(lo.mac, Some([0; 6]));
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let own = Address { index: lo.index, ip, uniqueness: Uniqueness::Unique };
        assert!(addresses().expect("netlink").contains(&own));
        assert_eq!(link_speed("lo"), None);
        // Loopback has no native XDP.
        assert!(!xdp_features(lo.index).expect("netlink").is_some_and(XdpFeatures::delivers));
    }
}
