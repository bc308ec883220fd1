//! IP headers of both kinds. [`Network`] is what they have in common, and all that code for the
//! rest of a frame uses of them.

use core::mem::size_of;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ones_complement_sum;
use crate::outcome::Outcome;
use crate::wire::ip::Ip;
use crate::{U16, U32};

const IPV4_WITHOUT_OPTIONS: u8 = 0x45;
const PROTOCOL_UDP: u8 = 17;
/// More-fragments bit and fragment offset.
const FRAGMENT_MASK: u16 = 0x3FFF;
const DONT_FRAGMENT: u16 = 0x4000;
const HOPS: u8 = 64;
/// Headers that may stand between IPv6's and UDP's: hop-by-hop options, routing, fragment,
/// destination options.
const EXTENSIONS: [u8; 4] = [0, 43, 44, 60];
/// IPv6's first word without traffic class and flow label.
const IPV6: u32 = 6 << 28;
const VERSION_MASK: u32 = 0xF << 28;
/// Position of the traffic class in IPv6's first word.
const TRAFFIC_CLASS_SHIFT: u32 = 20;

/// An IP header without options or extensions.
pub trait Network:
    FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy + 'static
{
    /// EtherType of frames with this header.
    const ETHERTYPE: u16;
    /// Whether UDP may go without a checksum: over IPv6, hosts drop such packets (RFC 8200).
    const CHECKSUM_IS_OPTIONAL: bool;
    /// Size of this header in bytes.
    const LEN: u16 = size_of::<Self>() as u16;

    /// Rule 5.8: whether UDP follows this header, without anything unsupported. The error says why
    /// not.
    fn is_udp(&self) -> Result<(), Outcome>;
    /// Rule 7.1: whether this header's checksum is right, if it has one.
    fn is_intact(&self) -> bool;
    /// Bytes of the IP packet, this header included.
    fn packet_len(&self) -> usize;
    /// Source address.
    fn source(&self) -> Ip;
    /// Destination address.
    fn destination(&self) -> Ip;
    /// Exchanges the addresses.
    fn swap_ends(&mut self);
    /// Sets the source address.
    fn set_source(&mut self, address: Ip);
    /// Sets the destination address.
    fn set_destination(&mut self, address: Ip);
    /// DSCP and ECN.
    fn traffic_class(&self) -> u8;
    /// Rules 5.4 and 32.1: sets traffic class, length and the other fields of an answer, the
    /// checksum too.
    fn finish(&mut self, traffic_class: u8, udp_len: u16);
    /// Sets this header's checksum, if it has one.
    fn seal(&mut self);
    /// Changes the packet's length by this number of bytes, modulo 2^16, and the checksum
    /// accordingly.
    fn lengthen(&mut self, by: u16);
    /// Sets DSCP and ECN, and changes the checksum accordingly.
    fn set_traffic_class(&mut self, traffic_class: u8);
    /// A header with UDP behind it; its length is to be filled in.
    fn between(source: Ip, destination: Ip) -> Self;
    /// Rule 37.5: the header with ones in place of what changes on the way.
    fn masked(self) -> Self;
    /// Sum of the 16-bit words of the source address.
    fn sum_of_source(&self) -> u32;
    /// Sum of the 16-bit words of the destination address.
    fn sum_of_destination(&self) -> u32;

    /// Ones' complement sum of the pseudo-header, which UDP's checksum also covers (RFC 768, RFC
    /// 8200).
    #[inline(always)]
    fn sum_of_pseudo_header(&self, udp_len: u16) -> u32 {
        self.sum_of_source()
            + self.sum_of_destination()
            + u32::from(PROTOCOL_UDP)
            + u32::from(udp_len)
    }
}

/// Header of IPv4, without options.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ipv4 {
    /// IP version and header length.
    pub version_ihl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Length of the IP packet.
    pub total_len: U16,
    /// Identification.
    pub id: U16,
    /// Flags and fragment offset.
    pub fragment: U16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol.
    pub protocol: u8,
    /// Header checksum.
    pub checksum: U16,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
}

const _: () = assert!(size_of::<Ipv4>() == 20);

impl Ipv4 {
    /// Ones' complement sum of the header's 16-bit words (RFC 1071); all ones when its checksum is
    /// right.
    #[inline(always)]
    fn sum(&self) -> u16 {
        ones_complement_sum(
            u32::from(u16::from_be_bytes([self.version_ihl, self.tos]))
                + u32::from(self.total_len.get())
                + u32::from(self.id.get())
                + u32::from(self.fragment.get())
                + u32::from(u16::from_be_bytes([self.ttl, self.protocol]))
                + u32::from(self.checksum.get())
                + self.sum_of_source()
                + self.sum_of_destination(),
        )
    }
}

impl Network for Ipv4 {
    const ETHERTYPE: u16 = 0x0800;
    const CHECKSUM_IS_OPTIONAL: bool = true;

    #[inline(always)]
    fn is_udp(&self) -> Result<(), Outcome> {
        if self.protocol != PROTOCOL_UDP {
            return Err(Outcome::NotOurs);
        }
        if self.version_ihl != IPV4_WITHOUT_OPTIONS {
            return Err(Outcome::IpOptions);
        }
        if self.fragment.get() & FRAGMENT_MASK != 0 {
            return Err(Outcome::Fragment);
        }
        Ok(())
    }

    #[inline(always)]
    fn is_intact(&self) -> bool {
        self.sum() == 0xFFFF
    }

    #[inline(always)]
    fn packet_len(&self) -> usize {
        self.total_len.get().into()
    }

    #[inline(always)]
    fn source(&self) -> Ip {
        Ip::v4(self.source)
    }

    #[inline(always)]
    fn destination(&self) -> Ip {
        Ip::v4(self.destination)
    }

    #[inline(always)]
    fn swap_ends(&mut self) {
        core::mem::swap(&mut self.source, &mut self.destination);
    }

    #[inline(always)]
    fn set_source(&mut self, address: Ip) {
        self.source = address.low();
    }

    #[inline(always)]
    fn set_destination(&mut self, address: Ip) {
        self.destination = address.low();
    }

    #[inline(always)]
    fn traffic_class(&self) -> u8 {
        self.tos
    }

    #[inline(always)]
    fn finish(&mut self, traffic_class: u8, udp_len: u16) {
        self.tos = traffic_class;
        self.total_len.set(Self::LEN + udp_len);
        self.id.set(0);
        self.fragment.set(DONT_FRAGMENT);
        self.ttl = HOPS;
        self.seal();
    }

    #[inline(always)]
    fn seal(&mut self) {
        self.checksum.set(0);
        self.checksum.set(!self.sum());
    }

    #[inline(always)]
    fn lengthen(&mut self, by: u16) {
        let len = self.total_len.get().wrapping_add(by);
        self.checksum.set(updated(self.checksum.get(), self.total_len.get(), len));
        self.total_len.set(len);
    }

    #[inline(always)]
    fn set_traffic_class(&mut self, traffic_class: u8) {
        self.checksum.set(updated(self.checksum.get(), self.tos.into(), traffic_class.into()));
        self.tos = traffic_class;
    }

    fn between(source: Ip, destination: Ip) -> Self {
        Self {
            version_ihl: IPV4_WITHOUT_OPTIONS,
            protocol: PROTOCOL_UDP,
            source: source.low(),
            destination: destination.low(),
            ..Self::new_zeroed()
        }
    }

    #[inline(always)]
    fn masked(self) -> Self {
        Self { tos: 0xFF, ttl: 0xFF, checksum: U16::new(0xFFFF), ..self }
    }

    #[inline(always)]
    fn sum_of_source(&self) -> u32 {
        sum_of_halves(self.source)
    }

    #[inline(always)]
    fn sum_of_destination(&self) -> u32 {
        sum_of_halves(self.destination)
    }
}

/// Header of IPv6, without extensions.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Ipv6 {
    /// IP version, DSCP and ECN, flow label.
    pub version_class_flow: U32,
    /// Bytes behind this header.
    pub payload_len: U16,
    /// Kind of the next header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
}

const _: () = assert!(size_of::<Ipv6>() == 40);

impl Network for Ipv6 {
    const ETHERTYPE: u16 = 0x86DD;
    const CHECKSUM_IS_OPTIONAL: bool = false;

    #[inline(always)]
    fn is_udp(&self) -> Result<(), Outcome> {
        // In a binding, an IPv4-mapped address would mean another place. No host sends or takes
        // one.
        if self.source().is_v4() || self.destination().is_v4() {
            return Err(Outcome::NotOurs);
        }
        match self.next_header {
            PROTOCOL_UDP if self.version_class_flow.get() >> 28 == 6 => Ok(()),
            next if EXTENSIONS.contains(&next) => Err(Outcome::Ipv6),
            _ => Err(Outcome::NotOurs),
        }
    }

    #[inline(always)]
    fn is_intact(&self) -> bool {
        true
    }

    #[inline(always)]
    fn packet_len(&self) -> usize {
        usize::from(self.payload_len.get()) + usize::from(Self::LEN)
    }

    #[inline(always)]
    fn source(&self) -> Ip {
        Ip(self.source)
    }

    #[inline(always)]
    fn destination(&self) -> Ip {
        Ip(self.destination)
    }

    #[inline(always)]
    fn swap_ends(&mut self) {
        core::mem::swap(&mut self.source, &mut self.destination);
    }

    #[inline(always)]
    fn set_source(&mut self, address: Ip) {
        self.source = address.0;
    }

    #[inline(always)]
    fn set_destination(&mut self, address: Ip) {
        self.destination = address.0;
    }

    #[inline(always)]
    fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> TRAFFIC_CLASS_SHIFT) as u8
    }

    #[inline(always)]
    fn finish(&mut self, traffic_class: u8, udp_len: u16) {
        self.set_traffic_class(traffic_class);
        self.payload_len.set(udp_len);
        self.hop_limit = HOPS;
    }

    #[inline(always)]
    fn seal(&mut self) {}

    #[inline(always)]
    fn lengthen(&mut self, by: u16) {
        self.payload_len.set(self.payload_len.get().wrapping_add(by));
    }

    #[inline(always)]
    fn set_traffic_class(&mut self, traffic_class: u8) {
        let others = self.version_class_flow.get() & !(0xFF << TRAFFIC_CLASS_SHIFT);
        self.version_class_flow.set(others | u32::from(traffic_class) << TRAFFIC_CLASS_SHIFT);
    }

    fn between(source: Ip, destination: Ip) -> Self {
        Self {
            version_class_flow: U32::new(IPV6),
            next_header: PROTOCOL_UDP,
            source: source.0,
            destination: destination.0,
            ..Self::new_zeroed()
        }
    }

    #[inline(always)]
    fn masked(self) -> Self {
        let version_class_flow = U32::new(self.version_class_flow.get() | !VERSION_MASK);
        Self { version_class_flow, hop_limit: 0xFF, ..self }
    }

    #[inline(always)]
    fn sum_of_source(&self) -> u32 {
        sum_of_quarters(self.source)
    }

    #[inline(always)]
    fn sum_of_destination(&self) -> u32 {
        sum_of_quarters(self.destination)
    }
}

/// A checksum after a change of one of the words that it covers (RFC 1624, equation 3).
#[inline(always)]
fn updated(checksum: u16, before: u16, now: u16) -> u16 {
    !ones_complement_sum(u32::from(!checksum) + u32::from(!before) + u32::from(now))
}

#[inline(always)]
fn sum_of_halves(word: [u8; 4]) -> u32 {
    let word = U32::from_bytes(word).get();
    (word >> 16) + (word & 0xFFFF)
}

#[inline(always)]
fn sum_of_quarters(address: [u8; 16]) -> u32 {
    let (words, _) = address.as_chunks::<4>();
    let mut sum = 0;
    for word in words {
        sum += sum_of_halves(*word);
    }
    sum
}
