//! Ethernet, IPv4 and UDP around a packet, for data planes that see whole frames.

use core::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::header::HEADER_LEN;
use crate::job::Binding;
use crate::maps::Endpoint;
use crate::outcome::Outcome;
use crate::{U16, U32};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86DD;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88A8;
const IPV4_WITHOUT_OPTIONS: u8 = 0x45;
const PROTOCOL_UDP: u8 = 17;
/// More-fragments bit and fragment offset.
const FRAGMENT_MASK: u16 = 0x3FFF;
const DONT_FRAGMENT: u16 = 0x4000;
const TTL: u8 = 64;
const ECN_MASK: u8 = 0b11;
const ECN_CE: u8 = 0b11;
const ECN_ECT0: u8 = 0b10;

/// Size of an Ethernet header in bytes.
pub const ETHERNET_LEN: usize = 14;
const IPV4_LEN: u16 = 20;
/// Offset of the source address in an IPv4 header.
const IPV4_SOURCE: usize = 12;
const UDP_LEN: u16 = 8;
/// Size of [`Envelope`]: what comes before the protocol's header in a frame.
pub const ENVELOPE_LEN: usize = size_of::<Envelope>();

/// VLAN tags that networks put on a frame: one, or two of 802.1ad.
const MAX_TAGS: usize = 2;

/// Where a frame says that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An IPv4 address, whatever the packet is.
    Ipv4([u8; 4]),
    /// No IPv4 address.
    Other,
    /// Behind more tags than networks use. Linux takes off any number of them that give no VLAN,
    /// and then takes the packet.
    Hidden,
}

/// Where a frame says that it comes from; `read` gives four of its bytes from an offset on, if the
/// frame is that long. The kernel has taken `removed` tags off it.
#[inline(always)]
pub fn source(removed: usize, read: impl Fn(usize) -> Option<[u8; 4]>) -> Source {
    // Of the EtherType.
    let mut offset = ETHERNET_LEN - 2;
    for _ in removed..=MAX_TAGS {
        let Some([high, low, ..]) = read(offset) else { return Source::Other };
        match u16::from_be_bytes([high, low]) {
            ETHERTYPE_IPV4 => {
                return read(offset + 2 + IPV4_SOURCE).map_or(Source::Other, Source::Ipv4);
            }
            ETHERTYPE_VLAN | ETHERTYPE_QINQ => offset += 4,
            _ => return Source::Other,
        }
    }
    Source::Hidden
}

/// Who fills in the UDP checksum of a frame on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nobody: it is left out.
    None,
    /// The device, or the kernel where it cuts the frame apart: the field holds what they go on
    /// from.
    Offloaded,
}

/// Ethernet, IPv4 (without options) and UDP headers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Envelope {
    /// Destination MAC.
    pub mac_destination: [u8; 6],
    /// Source MAC.
    pub mac_source: [u8; 6],
    /// EtherType.
    pub ethertype: U16,
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
    /// IP header checksum.
    pub ip_checksum: U16,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
    /// UDP source port.
    pub source_port: U16,
    /// UDP destination port.
    pub destination_port: U16,
    /// Length of the UDP packet, its header included.
    pub udp_len: U16,
    /// UDP checksum, 0 for none.
    pub udp_checksum: U16,
}

const _: () = assert!(ENVELOPE_LEN == ETHERNET_LEN + IPV4_LEN as usize + UDP_LEN as usize);

impl Envelope {
    /// Rule 5.8: whether the frame may be for the aggregator: plain IPv4 and UDP. Says why not
    /// otherwise.
    ///
    /// A yes leaves to check that address and port are the aggregator's, then
    /// [`Self::payload_len`].
    #[inline(always)]
    pub fn is_udp(&self) -> Result<(), Outcome> {
        match self.ethertype.get() {
            ETHERTYPE_IPV4 => {}
            ETHERTYPE_IPV6 => return Err(Outcome::Ipv6),
            ETHERTYPE_VLAN | ETHERTYPE_QINQ => return Err(Outcome::Vlan),
            _ => return Err(Outcome::NotOurs),
        }
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

    /// Rules 5.6 and 7.1: bytes of payload behind the protocol's header, once the lengths of all
    /// layers agree with each other and with the frame's length (Ethernet may pad).
    #[inline(always)]
    pub fn payload_len(&self, frame_len: usize) -> Result<usize, Outcome> {
        if self.sum_of_ip_header() != 0xFFFF {
            return Err(Outcome::BadIpChecksum);
        }
        let total_len = usize::from(self.total_len.get());
        if total_len + ETHERNET_LEN > frame_len {
            return Err(Outcome::Truncated);
        }
        let udp_len = usize::from(self.udp_len.get());
        if udp_len + usize::from(IPV4_LEN) != total_len {
            return Err(Outcome::BadLength);
        }
        let headers = usize::from(UDP_LEN) + HEADER_LEN;
        if udp_len < headers {
            return Err(Outcome::Truncated);
        }
        Ok(udp_len - headers)
    }

    /// What the frame is addressed to.
    #[inline(always)]
    pub const fn endpoint(&self) -> Endpoint {
        Endpoint::served(self.mac_destination, self.destination, self.destination_port)
    }

    /// Where the frame's sender lives.
    #[inline(always)]
    pub fn binding(&self, ifindex: u32) -> Binding {
        Binding { ifindex, ip: self.source, mac: self.mac_source, port: self.source_port }
    }

    /// Whether it is what a host sends to itself: by loopback alone does a frame without a MAC
    /// reach a host.
    #[inline(always)]
    pub fn is_looped(&self) -> bool {
        self.mac_destination == [0; 6]
    }

    /// Whether a router marked the packet for congestion (RFC 3168).
    #[inline(always)]
    pub fn congestion_experienced(&self) -> bool {
        self.tos & ECN_MASK == ECN_CE
    }

    /// Rule 5.1: turns the frame back to its sender, with `lanes` words of payload.
    #[inline(always)]
    pub fn turn_back(&mut self, lanes: u16) {
        self.swap_ends();
        self.finish(udp_len(lanes));
    }

    /// Turns a bundle back to its sender, as long as it is.
    #[inline(always)]
    pub fn turn_bundle_back(&mut self, checksum: Checksum) {
        self.swap_ends();
        self.finish_bundle(checksum);
    }

    /// Rule 5.2: sends the frame from the aggregator's address to that place, with `lanes` words of
    /// payload.
    #[inline(always)]
    pub fn send_to(&mut self, place: &Binding, source: [u8; 4], lanes: u16) {
        self.leave_for(place, source);
        self.finish(udp_len(lanes));
    }

    /// Sends a bundle there, as long as it is.
    #[inline(always)]
    pub fn send_bundle_to(&mut self, place: &Binding, source: [u8; 4], checksum: Checksum) {
        self.leave_for(place, source);
        self.finish_bundle(checksum);
    }

    /// Leaves open where a frame goes that is complete otherwise: no host takes it as it is.
    #[inline(always)]
    pub const fn leave_open(&mut self) {
        self.mac_destination = [0; 6];
    }

    /// Whether where it goes was left open.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.mac_destination == [0; 6]
    }

    /// Sends a frame to that place whose destination was left open.
    #[inline(always)]
    pub fn close(&mut self, place: &Binding) {
        self.address(place);
        self.ip_checksum.set(0);
        self.ip_checksum.set(!self.sum_of_ip_header());
    }

    #[inline(always)]
    fn swap_ends(&mut self) {
        core::mem::swap(&mut self.mac_destination, &mut self.mac_source);
        core::mem::swap(&mut self.destination, &mut self.source);
        core::mem::swap(&mut self.destination_port, &mut self.source_port);
    }

    #[inline(always)]
    fn leave_for(&mut self, place: &Binding, source: [u8; 4]) {
        self.mac_source = self.mac_destination;
        self.source = source;
        self.source_port = self.destination_port;
        self.address(place);
    }

    #[inline(always)]
    fn address(&mut self, place: &Binding) {
        self.mac_destination = place.mac;
        self.destination = place.ip;
        self.destination_port = place.port;
    }

    #[inline(always)]
    fn finish_bundle(&mut self, checksum: Checksum) {
        self.finish(self.udp_len.get());
        if checksum == Checksum::Offloaded {
            self.udp_checksum.set(self.sum_of_pseudo_header());
        }
    }

    #[inline(always)]
    fn finish(&mut self, udp_len: u16) {
        // Rules 5.4 and 5.5.
        if self.congestion_experienced() {
            self.tos = (self.tos & !ECN_MASK) | ECN_ECT0;
        }
        self.total_len.set(IPV4_LEN + udp_len);
        self.id.set(0);
        self.fragment.set(DONT_FRAGMENT);
        self.ttl = TTL;
        self.ip_checksum.set(0);
        self.ip_checksum.set(!self.sum_of_ip_header());
        self.udp_len.set(udp_len);
        // The check word guards header and payload; over IPv4 the UDP checksum may be left out.
        self.udp_checksum.set(0);
    }

    /// Ones' complement sum of the IP header's 16-bit words (RFC 1071); all ones when its checksum
    /// is right.
    #[inline(always)]
    fn sum_of_ip_header(&self) -> u16 {
        ones_complement_sum(&[
            u16::from_be_bytes([self.version_ihl, self.tos]),
            self.total_len.get(),
            self.id.get(),
            self.fragment.get(),
            u16::from_be_bytes([self.ttl, self.protocol]),
            self.ip_checksum.get(),
            high(self.source),
            low(self.source),
            high(self.destination),
            low(self.destination),
        ])
    }

    /// Ones' complement sum of what UDP's checksum covers beside the UDP packet (RFC 768).
    #[inline(always)]
    fn sum_of_pseudo_header(&self) -> u16 {
        ones_complement_sum(&[
            high(self.source),
            low(self.source),
            high(self.destination),
            low(self.destination),
            u16::from(self.protocol),
            self.udp_len.get(),
        ])
    }
}

/// Length of a UDP packet with `lanes` words of payload.
#[inline(always)]
const fn udp_len(lanes: u16) -> u16 {
    UDP_LEN + HEADER_LEN as u16 + 4 * lanes
}

#[inline(always)]
fn ones_complement_sum(words: &[u16]) -> u16 {
    let mut sum = 0u32;
    for word in words {
        sum += u32::from(*word);
    }
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum as u16
}

#[inline(always)]
fn high(address: [u8; 4]) -> u16 {
    (U32::from_bytes(address).get() >> 16) as u16
}

#[inline(always)]
fn low(address: [u8; 4]) -> u16 {
    U32::from_bytes(address).get() as u16
}
