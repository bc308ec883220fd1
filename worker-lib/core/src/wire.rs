//! What a turn's packets leave by.

use std::convert::Infallible;

use switchml_protocol::header::Header;

use crate::engine::Failure;
use crate::packet::len_of;

/// A way to the aggregator: sockets, memory shared with other ranks, a simulated network.
pub trait Wire {
    /// Why a packet cannot be sent.
    type Error;

    /// Has a packet with this header, which is [`len_of`] it long and which `fill` writes, join the
    /// superpacket. One that has no room for it is sent first.
    ///
    /// # Errors
    /// When a superpacket cannot be sent.
    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Self::Error>;

    /// Sends the superpacket; what is put later is in another one.
    ///
    /// # Errors
    /// When it cannot be sent.
    fn flush(&mut self) -> Result<(), Self::Error>;
}

/// Packets in their order, where nothing is made of superpackets.
impl Wire for Vec<Vec<u8>> {
    type Error = Infallible;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Infallible> {
        // Bytes that a packet is not to leave as they are.
        let mut packet = vec![0xEE; len_of(header)];
        fill(&mut packet);
        self.push(packet);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Why a turn has ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnError<E> {
    /// The data path has failed.
    DataPath(Failure),
    /// The wire has.
    Wire(E),
}
