//! Queues of packets for the ranks in this process.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Most bytes that wait for a rank; packets that do not fit are lost, as from a socket's buffer.
const ROOM: usize = 8 << 20;

/// The queues of the ranks in this process, by their addresses.
#[derive(Default)]
pub struct Queues(RwLock<Vec<(Place, Arc<Queue>)>>);

/// A rank's address and port, without what IPv6 adds to them.
type Place = (IpAddr, u16);

/// Packets on their way to a rank.
pub struct Queue {
    waiting: Mutex<Waiting>,
    /// Called when packets come after there were none.
    wake: Wake,
}

/// Called on any thread.
pub type Wake = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Waiting {
    bundles: Vec<Bundle>,
    bytes: usize,
}

/// Packets of one size, except for the last, which may be shorter.
struct Bundle {
    packets: Box<[u8]>,
    size: usize,
}

impl Queues {
    /// Takes packets to the rank at this address if it is in this process; `None` if it is not,
    /// false if it has no room.
    pub fn push(&self, address: SocketAddr, packets: &[u8], size: usize) -> Option<bool> {
        let queues = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (_, queue) = queues.iter().find(|(known, _)| *known == place(address))?;
        Some(queue.push(packets, size))
    }

    /// Whether the rank at this address is in this process.
    pub fn has(&self, address: SocketAddr) -> bool {
        let queues = self.0.read().unwrap_or_else(PoisonError::into_inner);
        queues.iter().any(|(known, _)| *known == place(address))
    }

    /// A queue for the rank at this address.
    pub fn add(&self, address: SocketAddr, wake: Wake) -> Arc<Queue> {
        let queue = Arc::new(Queue::new(wake));
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        queues.push((place(address), Arc::clone(&queue)));
        queue
    }

    /// Packets to that rank take another way from now on.
    pub fn remove(&self, queue: &Arc<Queue>) {
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|(_, other)| !Arc::ptr_eq(other, queue));
    }
}

impl Queue {
    /// An empty queue.
    fn new(wake: Wake) -> Self {
        Self { waiting: Mutex::default(), wake }
    }

    /// Takes out the packets, and hands them out. Returns their number.
    pub fn receive(&self, mut sink: impl FnMut(&[u8])) -> usize {
        let Waiting { bundles, .. } = std::mem::take(&mut *self.waiting());
        let packets = bundles.iter().flat_map(|bundle| bundle.packets.chunks(bundle.size));
        packets.map(&mut sink).count()
    }

    fn push(&self, packets: &[u8], size: usize) -> bool {
        let mut waiting = self.waiting();
        if waiting.bytes + packets.len() > ROOM {
            return false;
        }
        let is_first = waiting.bundles.is_empty();
        waiting.bundles.push(Bundle { packets: packets.into(), size });
        waiting.bytes += packets.len();
        drop(waiting);
        if is_first {
            (self.wake)();
        }
        true
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // A panic leaves nothing half changed that matters: packets may be lost.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(address: SocketAddr) -> Place {
    (address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn packets_without_room_are_lost() {
        let queues = Queues::default();
        let address = (Ipv4Addr::LOCALHOST, 9).into();
        let queue = queues.add(address, Box::new(|| ()));
        let packets = vec![0; ROOM / 4];
        let push = || queues.push(address, &packets, packets.len());
        assert_eq!([(); 5].map(|()| push()), [true, true, true, true, false].map(Some));
        assert_eq!(queue.receive(|packet| assert_eq!(packet.len(), ROOM / 4)), 4);
        assert_eq!(push(), Some(true));
        queues.remove(&queue);
        assert_eq!(push(), None, "it is gone");
    }
}
