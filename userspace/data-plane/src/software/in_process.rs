//! Ranks in this process: their packets go to the data plane, and results to them, without a
//! system call. A rank is known by the address of a socket of its own, as any other.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn_udp::RecvMeta;

use super::Shared;
use super::outbox::Outbox;
use super::queues::{Queue, Wake};

/// A rank in this process, until it is dropped.
pub struct InProcessRank {
    data_plane: Arc<Shared>,
    /// What a socket would say of its packets.
    meta: RecvMeta,
    outbox: Outbox,
    queue: Arc<Queue>,
}

impl InProcessRank {
    /// See [`Software::rank_in_process`](super::Software::rank_in_process).
    pub(super) fn new(data_plane: Arc<Shared>, address: SocketAddr, wake: Wake) -> Self {
        let queue = data_plane.in_process.add(address, wake);
        let mut meta = RecvMeta::default();
        meta.addr = address;
        let outbox = Outbox::new(Arc::clone(&data_plane.port));
        Self { data_plane, meta, outbox, queue }
    }

    /// Sends packets of `size` bytes, except for the last, which may be shorter. On return the
    /// memory holds something else.
    pub fn send(&mut self, packets: &mut [u8], size: usize) {
        self.meta.len = packets.len();
        self.meta.stride = size;
        self.data_plane.serve_buffer(packets, &self.meta, &mut self.outbox);
        self.data_plane.send(&mut self.outbox);
    }

    /// Hands out the packets that have come. Returns their number.
    pub fn receive(&self, sink: impl FnMut(&[u8])) -> usize {
        self.queue.receive(sink)
    }
}

impl Drop for InProcessRank {
    fn drop(&mut self) {
        self.data_plane.in_process.remove(&self.queue);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::sync::atomic::{AtomicU32, Ordering};

    use switchml_protocol::wire::header::{HEADER_LEN, Header};
    use zerocopy::{FromBytes, IntoBytes};

    use super::super::tests::{hello, with_a_job};
    use super::*;

    #[test]
    fn packets_come_back_without_a_socket() {
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let software = with_a_job(address);
            let socket = UdpSocket::bind((address, 0)).unwrap();
            socket.set_nonblocking(true).unwrap();
            let woken = Arc::new(AtomicU32::new(0));
            let told = Arc::clone(&woken);
            let wake = move || {
                told.fetch_add(1, Ordering::SeqCst);
            };
            let mut rank = software.rank_in_process(socket.local_addr().unwrap(), wake);
            assert_eq!(rank.receive(|_| ()), 0);
            for _ in 0..2 {
                rank.send(&mut hello().as_bytes().repeat(3), HEADER_LEN);
            }
            assert_eq!(woken.load(Ordering::SeqCst), 1, "the second ones follow others");
            let mut answers = 0;
            let count = rank.receive(|packet| {
                let (header, _) = Header::ref_from_prefix(packet).unwrap();
                assert_eq!((header.kind, header.epoch.get()), (hello().kind, 9));
                answers += 1;
            });
            assert_eq!((count, answers), (6, 6));
            assert_eq!(socket.recv(&mut [0; 100]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    }
}
