//! The offloads of interfaces, which change frames before programs see them, read and set over
//! ethtool's netlink interface.

use neli::consts::genl::{Cmd, NlAttrType};
use neli::genl::{Genlmsghdr, Nlattr};
use neli::neli_enum;
use neli::types::Buffer;

use crate::netlink::{self, NetlinkError, attribute, failed};

/// The feature that merges packets of a stream on their way in.
pub const GRO: &str = "rx-gro";
/// Features, for 802.1Q and 802.1ad, that hide VLAN tags from XDP: the device takes the tag off a
/// frame and passes it beside the frame, where XDP does not look.
const HIDE_TAGS: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];

/// Commands of the generic netlink family `ethtool`, and the answers to them. (`ETHTOOL_MSG_*` of
/// linux/ethtool_netlink.h.)
#[neli_enum(serialized_type = "u8")]
enum Command {
    FeaturesGet = 11,
    FeaturesSet = 12,
}

impl Cmd for Command {}

/// `ETHTOOL_A_FEATURES_*`
#[neli_enum(serialized_type = "u16")]
enum Features {
    Header = 1,
    Wanted = 3,
    Active = 4,
}

impl NlAttrType for Features {}

/// `ETHTOOL_A_HEADER_*`
#[neli_enum(serialized_type = "u16")]
enum Header {
    Index = 1,
}

impl NlAttrType for Header {}

/// `ETHTOOL_A_BITSET_*`
#[neli_enum(serialized_type = "u16")]
enum Bitset {
    Bits = 3,
}

impl NlAttrType for Bitset {}

/// `ETHTOOL_A_BITSET_BITS_*`
#[neli_enum(serialized_type = "u16")]
enum Bits {
    Bit = 1,
}

impl NlAttrType for Bits {}

/// `ETHTOOL_A_BITSET_BIT_*`
#[neli_enum(serialized_type = "u16")]
enum Bit {
    Name = 2,
    Value = 3,
}

impl NlAttrType for Bit {}

/// Names of the interface's features that hide tags and are on.
pub fn that_hide_tags(index: u32) -> Result<Vec<&'static str>, NetlinkError> {
    active(index).map(|active| hiding(&active))
}

fn hiding(active: &[String]) -> Vec<&'static str> {
    let is_active = |name: &&str| active.iter().any(|active| active == name);
    HIDE_TAGS.into_iter().filter(is_active).collect()
}

/// Names of the interface's features that are on, as the kernel calls them.
pub fn active(index: u32) -> Result<Vec<String>, NetlinkError> {
    let mut found = Vec::new();
    for reply in ask(Command::FeaturesGet, [header(index)?])? {
        let attributes = reply.attrs().get_attr_handle();
        let active =
            attributes.get_nested_attributes::<Bitset>(Features::Active).map_err(failed)?;
        let bits = active.get_nested_attributes::<Bits>(Bitset::Bits).map_err(failed)?;
        for bit in bits.iter() {
            let bit = bit.get_attr_handle::<Bit>().map_err(failed)?;
            found.push(bit.get_attr_payload_as_with_len::<String>(Bit::Name).map_err(failed)?);
        }
    }
    Ok(found)
}

/// Turns a feature of the interface on or off. Devices may silently refuse.
pub fn set(index: u32, feature: &str, on: bool) -> Result<(), NetlinkError> {
    let name = attribute(Bit::Name, feature.to_owned())?;
    let bit = attribute(Bits::Bit, Buffer::new())?.nest(&name).map_err(failed)?;
    let bit =
        if on { bit.nest(&attribute(Bit::Value, Buffer::new())?).map_err(failed)? } else { bit };
    let bits = attribute(Bitset::Bits, Buffer::new())?.nest(&bit).map_err(failed)?;
    let wanted = attribute(Features::Wanted, Buffer::new())?.nest(&bits).map_err(failed)?;
    ask(Command::FeaturesSet, [header(index)?, wanted]).map(drop)
}

/// Says which interface a request is about.
fn header(index: u32) -> Result<Nlattr<Features, Buffer>, NetlinkError> {
    attribute(Features::Header, Buffer::new())?
        .nest(&attribute(Header::Index, index)?)
        .map_err(failed)
}

fn ask(
    command: Command,
    attributes: impl IntoIterator<Item = Nlattr<Features, Buffer>>,
) -> Result<Vec<Genlmsghdr<Command, Features>>, NetlinkError> {
    let answers = netlink::generic("ethtool", command, attributes)?;
    answers.ok_or_else(|| failed("it does not report offloads (Linux 5.7 does)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_features_that_are_on_hide_tags() {
        let on = ["rx-gro", "rx-vlan-hw-parse", "tx-vlan-hw-insert"].map(str::to_owned);
        assert_eq!(hiding(&on), ["rx-vlan-hw-parse"]);
        assert_eq!(hiding(&[]), [] as [&str; 0]);
    }

    /// Loopback strips no tags.
    #[test]
    fn the_loopback_interface_hides_nothing() {
        assert_eq!(that_hide_tags(1).expect("netlink"), [] as [&str; 0]);
    }
}
