//! How packets get to the aggregator and back.

pub(crate) mod rdma;
mod udp;

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::control::Access;
use crate::interface::MacChange;
use crate::peers::OwnAggregator;
use crate::waker::Waker;

/// What packets travel by.
#[derive(Clone, Copy)]
pub(crate) enum Medium<'a> {
    Sockets,
    Rdma,
    /// Memory: the aggregator is in this process.
    Own(&'a OwnAggregator),
}

impl Medium<'_> {
    /// To an aggregator in another process. Those of other ranks have sockets alone.
    pub fn to(access: &Access, rdma: bool) -> Self {
        if rdma && access.peer.is_none() { Self::Rdma } else { Self::Sockets }
    }
}

/// Opens a way to the data plane `aggregator`, whose results for all go to `group`, over IPv4
/// alone, and not by RDMA.
pub(crate) fn open(
    aggregator: SocketAddr,
    group: Option<SocketAddrV4>,
    waker: Waker,
    medium: Medium<'_>,
) -> io::Result<Box<dyn Transport>> {
    Ok(match medium {
        Medium::Sockets => Box::new(udp::Udp::open(aggregator, group, waker, None)?),
        Medium::Own(own) => Box::new(udp::Udp::open(aggregator, group, waker, Some(own))?),
        Medium::Rdma => Box::new(rdma::Rdma::open(aggregator, waker)?),
    })
}

/// A way to the aggregator.
///
/// Packets go out in batches: as few system calls and trips through the kernel as the system can
/// do. They are lost, doubled and reordered as they will.
pub(crate) trait Transport: Send {
    /// The aggregator's address.
    fn aggregator(&self) -> SocketAddr;

    /// The RDMA device that packets go by; `None` for sockets.
    fn device(&self) -> Option<&str>;

    /// Room for one packet of `len` bytes, at the end of the batch. Sends the batch first when the
    /// packet does not fit.
    fn packet(&mut self, len: usize) -> io::Result<&mut [u8]>;

    /// Sends the batch.
    fn flush(&mut self) -> io::Result<()>;

    /// Hands out the packets that have arrived from the aggregator, with whether each met
    /// congestion (ECN). Returns their number, 0 when there are none; never waits.
    fn receive(&mut self, sink: &mut dyn FnMut(&[u8], bool)) -> io::Result<usize>;

    /// Waits until there is a packet, `bell` is readable if there is one, [`Waker::wake`] was
    /// called, or the timeout has passed.
    ///
    /// [`Waker::wake`]: crate::waker::Waker::wake
    fn wait(&mut self, timeout: Option<Duration>, bell: Option<BorrowedFd<'_>>) -> io::Result<()>;

    /// Largest packet in bytes that the interface to the aggregator takes.
    fn largest_packet(&self) -> usize;

    /// How many packets of `len` bytes may wait to be received before some are lost.
    fn receive_room(&self, len: usize) -> usize;

    /// How many packets of `len` bytes make a full batch.
    fn batch(&self, len: usize) -> usize;

    /// Packets dropped that did not come from the aggregator.
    fn foreign(&self) -> u64;

    /// Whether the kernel, or a router, has reported since the last call that a packet was too long
    /// for a link. Anybody can forge a router's report, so it ends nothing.
    fn take_too_long(&mut self) -> bool;

    /// The change of this host's MAC address since the start, if there was one and the data plane
    /// may see it.
    fn mac_change(&self) -> Option<MacChange>;

    /// Stops receiving from the group.
    fn leave_group(&mut self);
}
