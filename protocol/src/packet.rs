//! One packet of the protocol, as its aggregator has it in hand.

use zerocopy::FromBytes;

use crate::U32;
use crate::wire::header::Header;

/// A packet that is served in place: it becomes its answer.
pub struct Packet<'a, P: ?Sized> {
    /// Its header.
    pub header: &'a mut Header,
    /// Its payload, behind the header.
    pub payload: &'a mut P,
    /// Bytes of the payload, as the packet came.
    pub len: usize,
}

impl<'a, P: ?Sized> Packet<'a, P> {
    /// A packet of which `len` bytes follow the header.
    #[inline(always)]
    pub const fn new(header: &'a mut Header, payload: &'a mut P, len: usize) -> Self {
        Self { header, payload, len }
    }
}

impl<'a> Packet<'a, [U32]> {
    /// The packet in a datagram: its header and its whole lanes. `None` if it has no header.
    pub fn of(datagram: &'a mut [u8]) -> Option<Self> {
        let (header, rest) = Header::mut_from_prefix(datagram).ok()?;
        let len = rest.len();
        // Bytes after the last whole lane make the length wrong, which the node finds out.
        let (payload, _) = <[U32]>::mut_from_prefix_with_elems(rest, len / 4).ok()?;
        Some(Self { header, payload, len })
    }
}
