//! How long packets are.

use switchml_protocol::header::HEADER_LEN;

/// IPv4 and UDP headers.
pub const IP_UDP_LEN: usize = 20 + 8;

/// Most bytes in one UDP datagram, and so in a superpacket: the IP length field is 16 bits.
pub const LARGEST_DATAGRAM: usize = 65_535 - IP_UDP_LEN;

/// Bytes of a packet of `lanes` lanes, header included.
pub const fn packet_len(lanes: usize) -> usize {
    HEADER_LEN + 4 * lanes
}

/// Size of the IP packet that carries `len` bytes.
pub const fn ip_packet_len(len: usize) -> usize {
    len + IP_UDP_LEN
}
