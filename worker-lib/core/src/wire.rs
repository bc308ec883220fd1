//! The interface by which a turn's packets leave.

use std::convert::Infallible;

use switchml_protocol::wire::header::Header;

use crate::engine::Failure;
use crate::packet::len_of;

/// A way to the aggregator: sockets, memory shared with other ranks, a simulated network.
pub trait Wire {
    /// Why a packet cannot be sent.
    type Error;

    /// Adds a packet with this header to the superpacket: [`len_of`] bytes, which `fill` writes. A
    /// superpacket without room for it is sent first.
    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Self::Error>;

    /// Sends the superpacket; later packets go into another one.
    fn flush(&mut self) -> Result<(), Self::Error>;
}

/// Collects packets in their order, without superpackets.
impl Wire for Vec<Vec<u8>> {
    type Error = Infallible;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Infallible> {
        // Bytes that a packet must overwrite.
        let mut packet = vec![0xEE; len_of(header)];
        fill(&mut packet);
        self.push(packet);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Why a turn has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnError<E> {
    /// The data path has failed.
    DataPath(Failure),
    /// The wire has failed.
    Wire(E),
}
