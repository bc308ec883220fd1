//! VLAN tags, and where a frame says that it comes from, whatever tags it has.

use core::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::network::{Ipv4, Ipv6, Network};
use super::{ETHERNET_LEN, ETHERTYPE_QINQ, ETHERTYPE_VLAN};
use crate::U16;
use crate::wire::ip::Ip;

/// The bits of a tag's value that hold the VLAN.
const VLAN_MASK: u16 = 0x0FFF;
/// Offset of the source address in an IPv4 header.
const IPV4_SOURCE: usize = 12;
/// Offset of the source address in an IPv6 header.
const IPV6_SOURCE: usize = 8;

/// VLAN tags that networks put on a frame: one, or two of 802.1ad.
const MAX_TAGS: usize = 2;

/// The VLAN tag that was taken off a frame, between MACs and EtherType: kind and value, or 0 if
/// there was none. One number, because verifiers refuse an enum that is copied with a field that it
/// does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u32);

impl Tag {
    /// No tag.
    pub const NONE: Self = Self(0);

    /// The tag with this kind and this value in a frame.
    #[inline(always)]
    pub const fn new(kind: u16, value: u16) -> Self {
        Self((kind as u32) << 16 | value as u32)
    }

    /// Rule 5.10: the VLAN, 0 for none; `None` if frames with such a tag are not served.
    #[inline(always)]
    pub const fn vlan(self) -> Option<u16> {
        match (self.0 >> 16) as u16 {
            0 => Some(0),
            ETHERTYPE_VLAN => Some(self.0 as u16 & VLAN_MASK),
            _ => None,
        }
    }
}

/// The beginning of a frame with a tag.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Tagged {
    /// Destination and source MAC.
    pub macs: [u8; 12],
    /// 0x8100 for 802.1Q.
    pub kind: U16,
    /// Priority and VLAN.
    pub value: U16,
}

/// Size of a tag in bytes.
pub const TAG_LEN: usize = 4;

const _: () = assert!(size_of::<Tagged>() == ETHERNET_LEN - 2 + TAG_LEN);

impl Tagged {
    /// The beginning of a frame with these MACs and this tag.
    #[inline(always)]
    pub const fn new(macs: [u8; 12], tag: Tag) -> Self {
        Self { macs, kind: U16::new((tag.0 >> 16) as u16), value: U16::new(tag.0 as u16) }
    }

    /// The tag, if it is one of 802.1Q.
    #[inline(always)]
    pub const fn dot1q(&self) -> Tag {
        match self.kind.get() {
            kind @ ETHERTYPE_VLAN => Tag::new(kind, self.value.get()),
            _ => Tag::NONE,
        }
    }
}

/// Where a frame says that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An IP address, whatever the packet is.
    Ip(Ip),
    /// Not an IP packet.
    Other,
    /// Hidden behind more tags than networks use. Linux takes off any number of tags that name no
    /// VLAN, and then takes the packet.
    Hidden,
}

/// Where a frame says that it comes from; `read` gives four of its bytes from an offset on, if the
/// frame is that long. `tag` has been taken off it.
#[inline(always)]
pub fn source(tag: Tag, read: impl Fn(usize) -> Option<[u8; 4]>) -> Source {
    // Offset of the EtherType.
    let mut offset = ETHERNET_LEN - 2;
    let removed = usize::from(tag != Tag::NONE);
    for _ in removed..=MAX_TAGS {
        let Some([high, low, ..]) = read(offset) else { return Source::Other };
        let address = match u16::from_be_bytes([high, low]) {
            Ipv4::ETHERTYPE => read(offset + 2 + IPV4_SOURCE).map(Ip::v4),
            Ipv6::ETHERTYPE => address(offset + 2 + IPV6_SOURCE, &read),
            ETHERTYPE_VLAN | ETHERTYPE_QINQ => {
                offset += TAG_LEN;
                continue;
            }
            _ => None,
        };
        return address.map_or(Source::Other, Source::Ip);
    }
    Source::Hidden
}

/// An IPv6 address in the frame.
#[inline(always)]
fn address(offset: usize, read: &impl Fn(usize) -> Option<[u8; 4]>) -> Option<Ip> {
    let mut bytes = [0; 16];
    for (index, word) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
        *word = read(offset + 4 * index)?;
    }
    Some(Ip(bytes))
}
