//! RDMA by RoCEv2 (section 37 of `docs/spec`): the NIC takes packets from registered memory
//! and writes answers there, without the kernel's sockets.

mod device;
mod queue_pair;
mod unusable;
mod verbs;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use self::device::Entry;
pub use self::queue_pair::Mtu;
use self::queue_pair::{BATCH, GRH_LEN, Peer, QueuePair};
pub use self::unusable::Unusable;
use self::verbs::Completion;
use super::Transport;
use super::udp::timespec;
use crate::interface::{MacChange, unspecified};
use crate::waker::Waker;

/// Packets that may be on their way to the device.
const SENDS: usize = 256;
/// Answers that may wait to be looked at; the device drops what comes on top.
const RECEIVES: usize = 1040;
/// Longest wait for room among the sends; packets that find none then are lost.
const PATIENCE: Duration = Duration::from_millis(100);

/// See the [module's documentation](self). The buffers are [`SENDS`] of packets that leave, in
/// turn, one for packets that find no room, and [`RECEIVES`] of those that come.
pub struct Rdma {
    aggregator: SocketAddr,
    /// The device's name.
    device: String,
    pair: QueuePair,
    waker: Waker,
    /// Packets so far, those that are over, and lengths of those to send, the last ones.
    begun: u64,
    over: u64,
    batch: Vec<usize>,
    /// Whether a packet has waited for room in vain, and none has left since.
    is_stuck: bool,
    /// Packets that have come, and were not handed out yet.
    completions: [Completion; BATCH],
    waiting: usize,
    foreign: u64,
}

impl Rdma {
    /// Opens a queue pair on the device that has the local address of the way to the aggregator.
    pub fn open(aggregator: SocketAddr, waker: Waker) -> Result<Self, Unusable> {
        let (Entry { device, .. }, mut pair) = open_pair(aggregator)?;
        let buffers: Vec<usize> = (SENDS + 1..SENDS + 1 + RECEIVES).collect();
        pair.post(&buffers)?;
        Ok(Self {
            aggregator,
            device,
            pair,
            waker,
            begun: 0,
            over: 0,
            batch: Vec::with_capacity(BATCH),
            is_stuck: false,
            completions: [Completion::default(); BATCH],
            waiting: 0,
            foreign: 0,
        })
    }

    /// Whether there is room for one more packet, in time.
    fn has_room(&mut self) -> io::Result<bool> {
        let mut deadline = None;
        loop {
            if self.begun - self.over < SENDS as u64 {
                return Ok(true);
            }
            let mut completions = [Completion::default(); BATCH];
            let count = self.pair.sent(&mut completions)?;
            if let Some(last) = completions[..count].last() {
                self.over = last.id;
                self.is_stuck = false;
                continue;
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
            if self.is_stuck || Instant::now() >= deadline {
                self.is_stuck = true;
                return Ok(false);
            }
            thread::yield_now();
        }
    }

    /// Looks what has come, unless something waits already.
    fn look(&mut self) -> io::Result<usize> {
        if self.waiting == 0 {
            self.waiting = self.pair.received(&mut self.completions)?;
        }
        Ok(self.waiting)
    }
}

/// A rank's queue pair, and the local address that it has.
fn open_pair(aggregator: SocketAddr) -> Result<(Entry, QueuePair), Unusable> {
    let probe = UdpSocket::bind(unspecified(aggregator))?;
    probe.connect(aggregator)?;
    let entry = device::find(probe.local_addr()?.ip())?;
    let peer = Peer { address: aggregator.ip(), pair: aggregator.port().into() };
    let pair = QueuePair::open(&entry, peer, SENDS + 1, RECEIVES)?;
    Ok((entry, pair))
}

/// A port of a device of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePort {
    /// The device's name.
    pub device: String,
    /// The port's number on the device.
    pub port: u8,
    /// The most bytes of a packet.
    pub mtu: Mtu,
}

impl DevicePort {
    /// The port that a rank of so many shards uses towards this data plane: opens their queue pairs
    /// as ranks do, and closes them.
    ///
    /// # Errors
    /// What keeps ranks from using RDMA.
    pub fn towards(aggregator: SocketAddr, shards: usize) -> Result<Self, Unusable> {
        let (Entry { device, port, .. }, pair) = open_pair(aggregator)?;
        // All at once: there has to be memory for all.
        let others = (1..shards).map(|_| open_pair(aggregator));
        others.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { device, port, mtu: pair.mtu() })
    }
}

/// The buffer of a packet, by its number.
fn buffer(number: u64) -> usize {
    (number % SENDS as u64) as usize
}

impl Transport for Rdma {
    fn aggregator(&self) -> SocketAddr {
        self.aggregator
    }

    fn device(&self) -> Option<&str> {
        Some(&self.device)
    }

    fn packet(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.batch.len() == BATCH {
            self.flush()?;
        }
        if self.begun - self.over >= SENDS as u64 {
            self.flush()?;
        }
        let number = if self.has_room()? {
            self.begun += 1;
            self.batch.push(len);
            buffer(self.begun - 1)
        } else {
            SENDS
        };
        Ok(&mut self.pair.buffer(number)[GRH_LEN..][..len])
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let first = self.begun - self.batch.len() as u64;
        let packet = |(number, len): (u64, usize)| (buffer(number), len, number + 1);
        let packets: Vec<_> = (first..).zip(self.batch.drain(..)).map(packet).collect();
        // What is not taken is lost.
        self.begun = first + self.pair.send(&packets)? as u64;
        Ok(())
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8], bool)) -> io::Result<usize> {
        let count = self.look()?;
        self.waiting = 0;
        let (mut packets, mut buffers) = (0, [0; BATCH]);
        for (completion, number) in self.completions[..count].iter().zip(&mut buffers) {
            *number = completion.id as usize;
            if self.pair.is_from_peer(completion) {
                // Rule 37.5: answers are not ECN-capable.
                let packet = self.pair.buffer(*number).get(GRH_LEN..completion.length as usize);
                sink(packet.unwrap_or_default(), false);
                packets += 1;
            } else {
                self.foreign += 1;
            }
        }
        self.pair.post(&buffers[..count])?;
        Ok(packets)
    }

    fn wait(&mut self, timeout: Option<Duration>, bell: Option<BorrowedFd<'_>>) -> io::Result<()> {
        // A packet that came before the queue was armed makes no event.
        self.pair.arm()?;
        if self.look()? > 0 {
            return Ok(());
        }
        let timeout = timeout.map(timespec);
        let events = self.pair.events();
        let mut came = false;
        self.waker.wait(|event| {
            let sources = [events, event, bell.unwrap_or(event)];
            let mut sources = sources.map(|from| PollFd::from_borrowed_fd(from, PollFlags::IN));
            match poll(&mut sources, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            came = !sources[0].revents().is_empty();
            Ok(())
        })?;
        if came {
            self.pair.clear_events();
        }
        Ok(())
    }

    fn largest_packet(&self) -> usize {
        self.pair.mtu().active
    }

    fn receive_room(&self, _: usize) -> usize {
        RECEIVES
    }

    fn batch(&self, _: usize) -> usize {
        BATCH
    }

    fn foreign(&self) -> u64 {
        self.foreign
    }

    fn take_too_long(&mut self) -> bool {
        false
    }

    fn mac_change(&self) -> Option<MacChange> {
        None
    }

    fn leave_group(&mut self) {}
}
