//! Lengths of packets, and their tags.

use switchml_protocol::wire::auth::{Key, TAG_LEN};
use switchml_protocol::wire::header::{HEADER_LEN, Header};
use zerocopy::IntoBytes;

/// Most bytes in one UDP datagram, and so in a superpacket: IPv4's length field has 16 bits. IPv6
/// would allow 20 bytes more.
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

/// Bytes of the packet with this header, its tag included.
pub fn len_of(header: &Header) -> usize {
    packet_len(header.payload_lanes().into()) + header.tag_len()
}

/// Rule 28.3: writes the tag of a packet with this header to its end, if it has one.
pub fn write_tag(key: &Key, header: &Header, packet: &mut [u8]) {
    if header.tag_len() > 0
        && let Some(end) = packet.last_chunk_mut::<TAG_LEN>()
    {
        end.copy_from_slice(key.tag(header).as_bytes());
    }
}

/// Whether the packet with this header has the right tag: the tag by this key, or none without a
/// key. Bytes behind the tag are ignored.
pub fn has_right_tag(key: &Key, header: &Header, packet: &[u8]) -> bool {
    if key.is_none() {
        return header.tag_len() == 0;
    }
    let behind = packet.get(packet_len(header.payload_lanes().into())..);
    header.tag_len() > 0
        && behind.is_some_and(|behind| behind.starts_with(key.tag(header).as_bytes()))
}

/// Writes a HELLO: lanes of zeros, and its tag.
pub fn write_hello(key: &Key, header: &Header, packet: &mut [u8]) {
    let (head, payload) = packet.split_at_mut(HEADER_LEN);
    head.copy_from_slice(header.as_bytes());
    payload.fill(0);
    write_tag(key, header, packet);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 791, RFC 8200, RFC 768, and section 2 of the specification.
    #[test]
    fn packets_have_the_headers_of_ip_and_udp() {
        assert_eq!(ip_packet_len(packet_len(352), false), 20 + 8 + 32 + 4 * 352);
        assert_eq!(ip_packet_len(packet_len(352), true), 40 + 8 + 32 + 4 * 352);
        assert_eq!(LARGEST_DATAGRAM, 65_507);
    }
}
