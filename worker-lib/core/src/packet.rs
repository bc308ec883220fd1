//! How long packets are.

use switchml_protocol::header::HEADER_LEN;

/// Most bytes in one UDP datagram, and so in a superpacket: IPv4's length field is 16 bits. Over
/// IPv6 it would be 20 more.
pub const LARGEST_DATAGRAM: usize = 65_535 - ip_udp_len(false);

/// IP and UDP headers.
pub const fn ip_udp_len(is_ipv6: bool) -> usize {
    let ip = if is_ipv6 { 40 } else { 20 };
    ip + 8
}

/// Bytes of a packet of `lanes` lanes, header included.
pub const fn packet_len(lanes: usize) -> usize {
    HEADER_LEN + 4 * lanes
}

/// Size of the IP packet that carries `len` bytes.
pub const fn ip_packet_len(len: usize, is_ipv6: bool) -> usize {
    len + ip_udp_len(is_ipv6)
}
