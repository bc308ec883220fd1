//! Ethernet, IP and UDP around a packet, for data planes that see whole frames.
//!
//! [`Envelope`] has the parts that IPv4 and IPv6 share, and [`Network`] the rest. A VLAN tag is not
//! part of it: all data planes serve frames without the tag, and put it back into the answer. At tc
//! the kernel has taken the tag off; an XDP program does so itself.

mod network;
mod tag;

use core::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::U16;
use crate::bpf_types::job::Binding;
use crate::bpf_types::maps::Endpoint;
use crate::lanes::{Payload, ShortPayload};
use crate::outcome::Outcome;
use crate::wire::header::{HEADER_LEN, Header};
use crate::wire::ip::Ip;

pub use network::{Ipv4, Ipv6, Network};
pub use tag::{Source, TAG_LEN, Tag, Tagged, source};

const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88A8;
const ECN_MASK: u8 = 0b11;
const ECN_CE: u8 = 0b11;
const ECN_ECT0: u8 = 0b10;

/// Size of an Ethernet header in bytes.
pub const ETHERNET_LEN: usize = 14;
const UDP_LEN: u16 = 8;

/// Who fills in the UDP checksum of a frame on its way out (rule 6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The program that makes the frame; or nobody, where the checksum may be left out.
    Whole,
    /// The device, or the kernel when it cuts the frame apart: the field holds the sum that they
    /// start from.
    Offloaded,
}

/// Ethernet, IP and UDP headers: what comes before the protocol's header in a frame (rule 2.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Envelope<N> {
    /// Destination MAC.
    pub mac_destination: [u8; 6],
    /// Source MAC.
    pub mac_source: [u8; 6],
    /// EtherType.
    pub ethertype: U16,
    /// IP header.
    pub ip: N,
    /// UDP source port.
    pub source_port: U16,
    /// UDP destination port.
    pub destination_port: U16,
    /// Length of the UDP packet, its header included.
    pub udp_len: U16,
    /// UDP checksum, 0 for none.
    pub udp_checksum: U16,
}

impl<N: Network> Envelope<N> {
    /// Size of these headers in bytes.
    pub const LEN: usize = size_of::<Self>();

    /// Rule 5.8: whether the frame may be for the aggregator: plain UDP over this kind of IP. The
    /// error says why not.
    ///
    /// The caller must then check that address and port are the aggregator's, and
    /// [`Self::payload_len`].
    #[inline(always)]
    pub fn is_udp(&self) -> Result<(), Outcome> {
        match self.ethertype.get() {
            ethertype if ethertype == N::ETHERTYPE => self.ip.is_udp(),
            ETHERTYPE_VLAN | ETHERTYPE_QINQ => Err(Outcome::Vlan),
            _ => Err(Outcome::NotOurs),
        }
    }

    /// Rules 5.6 and 7.1: bytes of payload behind the protocol's header, once the lengths of all
    /// layers agree with each other and with the frame's length (Ethernet may pad).
    #[inline(always)]
    pub fn payload_len(&self, frame_len: usize) -> Result<usize, Outcome> {
        if !self.ip.is_intact() {
            return Err(Outcome::BadIpChecksum);
        }
        let packet_len = self.ip.packet_len();
        if packet_len + ETHERNET_LEN > frame_len {
            return Err(Outcome::Truncated);
        }
        let udp_len = usize::from(self.udp_len.get());
        if udp_len + usize::from(N::LEN) != packet_len {
            return Err(Outcome::BadLength);
        }
        let headers = usize::from(UDP_LEN) + HEADER_LEN;
        if udp_len < headers {
            return Err(Outcome::Truncated);
        }
        Ok(udp_len - headers)
    }

    /// The endpoint that the frame is addressed to.
    #[inline(always)]
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::served(self.mac_destination, self.ip.destination(), self.destination_port)
    }

    /// Where the frame's sender lives, in this VLAN.
    #[inline(always)]
    pub fn binding(&self, ifindex: u32, vlan: u16) -> Binding {
        Binding {
            ifindex,
            ip: self.ip.source(),
            mac: self.mac_source,
            port: self.source_port,
            vlan,
            roce: [0; 2],
        }
    }

    /// Whether a host sent the frame to itself: only by loopback does a frame without a MAC reach a
    /// host.
    #[inline(always)]
    pub fn is_looped(&self) -> bool {
        self.mac_destination == [0; 6]
    }

    /// Whether a router marked the packet for congestion (RFC 3168).
    #[inline(always)]
    pub fn congestion_experienced(&self) -> bool {
        self.ip.traffic_class() & ECN_MASK == ECN_CE
    }

    /// Rule 5.1: turns the frame back to its sender, with `lanes` words of payload. `sum` is the
    /// sum of header and payload ([`sum_of_packet`]), used where UDP needs a checksum.
    #[inline(always)]
    pub fn turn_back(&mut self, lanes: u16, sum: u16) {
        self.swap_ends();
        self.finish(udp_len(lanes), Checksum::Whole, sum);
    }

    /// Rule 5.2: sends the frame from the aggregator's address to this place, with `lanes` words of
    /// payload. `sum` is as for [`Self::turn_back`].
    #[inline(always)]
    pub fn send_to(&mut self, place: &Binding, source: Ip, lanes: u16, sum: u16) {
        self.leave_for(place, source);
        self.finish(udp_len(lanes), Checksum::Whole, sum);
    }

    /// Sends a bundle to this place, with its length unchanged. `sum` is the sum of its packet,
    /// unless the checksum is offloaded.
    #[inline(always)]
    pub fn send_bundle_to(&mut self, place: &Binding, source: Ip, checksum: Checksum, sum: u16) {
        self.leave_for(place, source);
        self.finish(self.udp_len.get(), checksum, sum);
    }

    /// Sends a packet of `lanes` words of payload to this place, instead of the bundle. `sum` is as
    /// for [`Self::send_bundle_to`].
    #[inline(always)]
    pub fn send_instead(
        &mut self,
        place: &Binding,
        source: Ip,
        lanes: u16,
        checksum: Checksum,
        sum: u16,
    ) {
        self.leave_for(place, source);
        self.finish(udp_len(lanes), checksum, sum);
    }

    /// Shortens a frame that is complete otherwise to `lanes` words of payload. `sum` is as for
    /// [`Self::turn_back`].
    #[inline(always)]
    pub fn shorten(&mut self, lanes: u16, sum: u16) {
        self.finish(udp_len(lanes), Checksum::Whole, sum);
    }

    /// Changes its lengths by this number of bytes, modulo 2^16; a wrong checksum stays wrong.
    #[inline(always)]
    pub fn lengthen(&mut self, by: u16) {
        self.ip.lengthen(by);
        self.udp_len.set(self.udp_len.get().wrapping_add(by));
    }

    /// Rule 37.5: has routers drop it where they would mark it for congestion.
    #[inline(always)]
    pub fn forbid_marks(&mut self) {
        self.ip.set_traffic_class(self.ip.traffic_class() & !ECN_MASK);
    }

    /// Removes the destination of a frame that is complete otherwise: no host takes such a frame.
    #[inline(always)]
    pub const fn leave_open(&mut self) {
        self.mac_destination = [0; 6];
    }

    /// Whether the frame has no destination yet.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        self.mac_destination == [0; 6]
    }

    /// Sends a frame without a destination to this place.
    #[inline(always)]
    pub fn close(&mut self, place: &Binding) {
        // RFC 1624, equation 3.
        let mut sum = u32::from(!self.udp_checksum.get());
        sum += u32::from(!ones_complement_sum(self.sum_of_destination()));
        self.address(place);
        self.ip.seal();
        if !N::CHECKSUM_IS_OPTIONAL {
            self.set_checksum(sum + self.sum_of_destination());
        }
    }

    #[inline(always)]
    fn swap_ends(&mut self) {
        core::mem::swap(&mut self.mac_destination, &mut self.mac_source);
        core::mem::swap(&mut self.destination_port, &mut self.source_port);
        self.ip.swap_ends();
    }

    #[inline(always)]
    fn leave_for(&mut self, place: &Binding, source: Ip) {
        self.mac_source = self.mac_destination;
        self.ip.set_source(source);
        self.source_port = self.destination_port;
        self.address(place);
    }

    #[inline(always)]
    fn address(&mut self, place: &Binding) {
        self.mac_destination = place.mac;
        self.ip.set_destination(place.ip);
        self.destination_port = place.port;
    }

    /// Rules 5.4 and 5.5.
    #[inline(always)]
    fn finish(&mut self, udp_len: u16, checksum: Checksum, sum: u16) {
        let mut traffic_class = self.ip.traffic_class();
        if self.congestion_experienced() {
            traffic_class = (traffic_class & !ECN_MASK) | ECN_ECT0;
        }
        self.ip.finish(traffic_class, udp_len);
        self.udp_len.set(udp_len);
        let pseudo_header = self.ip.sum_of_pseudo_header(udp_len);
        match checksum {
            Checksum::Offloaded => self.udp_checksum.set(ones_complement_sum(pseudo_header)),
            // The check word guards header and payload.
            Checksum::Whole if N::CHECKSUM_IS_OPTIONAL => self.udp_checksum.set(0),
            Checksum::Whole => {
                let ports =
                    u32::from(self.source_port.get()) + u32::from(self.destination_port.get());
                self.set_checksum(pseudo_header + ports + u32::from(udp_len) + u32::from(sum));
            }
        }
    }

    /// Sets the UDP checksum for words with this sum.
    #[inline(always)]
    fn set_checksum(&mut self, sum: u32) {
        // 0 would say that there is none.
        self.udp_checksum.set(match !ones_complement_sum(sum) {
            0 => 0xFFFF,
            checksum => checksum,
        });
    }

    /// Sum of the words that say where the frame goes.
    #[inline(always)]
    fn sum_of_destination(&self) -> u32 {
        self.ip.sum_of_destination() + u32::from(self.destination_port.get())
    }
}

/// Sum of the words of a packet with `lanes` lanes and maybe a tag, for its UDP checksum.
#[inline(always)]
pub fn sum_of_packet<P: Payload + ?Sized>(
    header: &Header,
    payload: &P,
    lanes: usize,
) -> Result<u16, ShortPayload> {
    let mut sum = u32::from(ones_complement_sum(payload.fold(lanes)?)) + sum_of_header(header);
    if header.tag_len() > 0 {
        let tag = payload.pair(lanes).ok_or(ShortPayload)?.get();
        for shift in [0, 16, 32, 48] {
            sum += u32::from((tag >> shift) as u16);
        }
    }
    Ok(ones_complement_sum(sum))
}

/// Sum of the words of a DONE for its UDP checksum, given the sum of its lanes' words.
#[inline(always)]
pub fn sum_of_done(header: &Header, lanes: u32) -> u16 {
    ones_complement_sum(u32::from(ones_complement_sum(lanes)) + sum_of_header(header))
}

/// Sum of a header's words.
#[inline(always)]
fn sum_of_header(header: &Header) -> u32 {
    let mut sum = 0;
    let (words, _) = header.as_bytes().as_chunks::<2>();
    for word in words {
        sum += u32::from(u16::from_be_bytes(*word));
    }
    sum
}

/// Length of a UDP packet with `lanes` words of payload.
#[inline(always)]
const fn udp_len(lanes: u16) -> u16 {
    UDP_LEN + HEADER_LEN as u16 + 4 * lanes
}

/// The ones' complement sum (RFC 1071) of 16-bit words whose plain sum is `sum`.
#[inline(always)]
const fn ones_complement_sum(sum: u32) -> u16 {
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = (sum & 0xFFFF) + (sum >> 16);
    sum as u16
}
