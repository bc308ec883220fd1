//! HELLO over paths that pass only packets up to some size.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::thread;

use switchml_protocol::wire::header::Kind;
use switchml_worker_core::engine::Keys;
use zerocopy::FromBytes;

use super::*;
use crate::interface::MacChange;

const IDENTITY: Identity = Identity { job: 1, epoch: 2, rank: 3, ranks: 4, keys: Keys::NONE };
const SECRET: u32 = 0x5EC2E7;
const AGGREGATOR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 48864);

/// A path that echoes a packet if it is no longer than `limit`.
struct Path {
    /// Largest packet that the interface takes.
    interface: usize,
    /// Largest packet that passes, in bytes. Longer packets are lost, or refused by the system.
    limit: usize,
    refuses: bool,
    /// The RDMA device, if it is one's.
    device: Option<&'static str>,
    /// Packets lost before any passes.
    lost: usize,
    sent: usize,
    change: fn(&mut Header),
    batch: Vec<u8>,
    back: VecDeque<Vec<u8>>,
}

impl Path {
    fn new(interface: usize, limit: usize) -> Self {
        Self {
            interface,
            limit,
            refuses: false,
            device: None,
            lost: 0,
            sent: 0,
            change: |_| {},
            batch: Vec::new(),
            back: VecDeque::new(),
        }
    }
}

impl Transport for Path {
    fn device(&self) -> Option<&str> {
        self.device
    }

    fn aggregator(&self) -> SocketAddr {
        AGGREGATOR
    }

    fn packet(&mut self, len: usize) -> io::Result<&mut [u8]> {
        assert!(len <= self.interface, "{len} bytes");
        self.batch = vec![0xFF; len];
        Ok(&mut self.batch)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut packet = std::mem::take(&mut self.batch);
        if packet.is_empty() {
            return Ok(());
        }
        if packet.len() > self.limit && self.refuses {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        self.sent += 1;
        if packet.len() <= self.limit && self.sent > self.lost {
            (self.change)(Header::mut_from_prefix(&mut packet).unwrap().0);
            self.back.push_back(packet);
        }
        Ok(())
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8], bool)) -> io::Result<usize> {
        let packet = self.back.pop_front();
        packet.iter().for_each(|packet| sink(packet, false));
        Ok(packet.iter().len())
    }

    fn wait(&mut self, timeout: Option<Duration>, _: Option<BorrowedFd<'_>>) -> io::Result<()> {
        thread::sleep(timeout.unwrap());
        Ok(())
    }

    fn largest_packet(&self) -> usize {
        self.interface
    }

    fn receive_room(&self, _: usize) -> usize {
        unreachable!()
    }

    fn batch(&self, _: usize) -> usize {
        unreachable!()
    }

    fn foreign(&self) -> u64 {
        0
    }

    fn take_too_long(&mut self) -> bool {
        false
    }

    fn mac_change(&self) -> Option<MacChange> {
        None
    }

    fn leave_group(&mut self) {}
}

fn lanes(path: &mut Path, max_lanes: u16) -> u16 {
    open_path(path, &IDENTITY, SECRET, max_lanes, false).unwrap().lanes
}

#[test]
fn the_interface_or_the_aggregator_sets_the_size() {
    // MTU 1500: 1472 bytes of UDP payload, 32 of them header, 360 lanes, 11 blocks.
    assert_eq!(lanes(&mut Path::new(1472, 1472), 768), 352);
    assert_eq!(lanes(&mut Path::new(1472, 1472), 256), 256);
    // An MTU of 9000 has room for 2235 lanes, of which a packet takes 768.
    assert_eq!(lanes(&mut Path::new(8972, 8972), 768), 768);
    assert_eq!(lanes(&mut Path::new(8972, 8972), u16::MAX), 768);
}

#[test]
fn the_largest_size_that_passes_is_found() {
    // 1200 bytes carry 292 lanes: 9 blocks.
    assert_eq!(lanes(&mut Path::new(8972, 1200), 768), 288);
    let mut refusing = Path { refuses: true, ..Path::new(8972, 1200) };
    assert_eq!(lanes(&mut refusing, 768), 288);
    assert!(
        open_path(&mut Path::new(8972, 1200), &IDENTITY, SECRET, 768, false).unwrap().is_narrow
    );
    assert!(
        !open_path(&mut Path::new(8972, 1200), &IDENTITY, SECRET, 288, false).unwrap().is_narrow,
        "all that was asked for"
    );
    // One block, and not a byte more.
    assert_eq!(lanes(&mut Path::new(1472, 160), 768), 32);
}

#[test]
fn a_lost_hello_is_said_again() {
    let mut path = Path { lost: 2, ..Path::new(1472, 1472) };
    assert_eq!(lanes(&mut path, 768), 352);
    assert_eq!(path.sent, 2 + 5);
}

#[test]
fn too_small_an_mtu() {
    for refuses in [false, true] {
        let mut path = Path { refuses, ..Path::new(1472, 159) };
        let error = open_path(&mut path, &IDENTITY, SECRET, 768, false).unwrap_err();
        // 28 bytes of IP and UDP, 32 of header, 128 of a block.
        assert_eq!(
            error,
            Error::PathMtu { aggregator: AGGREGATOR.into(), passed: 60, needed: 188 }
        );
    }
    let error = open_path(&mut Path::new(100, 100), &IDENTITY, SECRET, 768, false).unwrap_err();
    assert_eq!(error, Error::PathMtu { aggregator: AGGREGATOR.into(), passed: 60, needed: 188 });
}

#[test]
fn silence_and_strangers_answers_are_a_closed_path() {
    type Change = fn(&mut Header);
    let changes: [Change; 7] = [
        |header| header.kind = Kind::Result as u8,
        |header| header.job.set(7),
        |header| header.epoch.set(7),
        |header| header.rank.set(7),
        |header| header.aux.set(7),
        |header| header.round.set(700),
        |header| header.lanes.set(64),
    ];
    thread::scope(|scope| {
        for (device, port) in [(None, "48864"), (Some("mlx5_0"), "4791")] {
            scope.spawn(move || {
                let mut path = Path { device, ..Path::new(1472, 0) };
                let error = open_path(&mut path, &IDENTITY, SECRET, 768, false).unwrap_err();
                let expected = format!(
                    "the data path to 10.0.0.1:48864 is closed: no HELLO came back within 2.1 s; \
                     check that UDP port {port} passes both ways"
                );
                assert_eq!(error.to_string(), expected);
            });
        }
        for change in changes {
            scope.spawn(move || {
                let mut path = Path { change, ..Path::new(1472, 1472) };
                let error = open_path(&mut path, &IDENTITY, SECRET, 768, false).unwrap_err();
                assert!(matches!(error, Error::DataPathClosed { .. }), "{error}");
            });
        }
    });
}

#[test]
fn a_system_that_sends_nothing_is_a_closed_path() {
    let mut path = Path { refuses: true, ..Path::new(1472, 0) };
    let error = open_path(&mut path, &IDENTITY, SECRET, 768, false).unwrap_err();
    assert!(matches!(error, Error::DataPathClosed { .. }), "{error}");
}
