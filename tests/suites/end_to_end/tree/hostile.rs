//! Partial sums that no combiner of these ranks has sent: none changes a sum. Answers that are not
//! the parent's are in the kernel's tests and in `userspace/tests/suite/combiner.rs`.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_rack::{Namespace, Plane, RackOptions};

use super::{GRACE, Site, Summing};
use crate::PATIENCE;
use crate::strangers::sniffer::Sniffer;
use switchml_rack::raw_socket::{ALL, RawSocket};
use switchml_test_support::frame::{AGGREGATOR_PORT, CHECKED, PARTIAL, Packet};

/// Copies of each forgery.
const COPIES: u64 = 50;

/// Ranks 0 and 1 are in rack 0, ranks 2 and 3 in rack 1.
const RACK_0: u32 = 0b0011;
const RANK_2: u32 = 0b0100;
const EVERYBODY: u32 = 0b1111;
const BEYOND: u32 = 0b1_0000;

pub fn partial_sums_that_are_no_combiners_change_no_sum(plane: Plane, options: RackOptions) {
    let site = Site::new(plane, options);
    let sniffer = at_rank(&site, 0);
    let summing = Summing::start(&site);
    summing.progress(20);
    let (root, combiner) = (at(site.racks.root_address()), at(site.racks.host_address(0)));
    let rank_1 = socket(&site.racks.workers()[1]);
    let rack_1 = socket(&site.racks.hosts()[1]);
    let forge = |socket: &UdpSocket, to: SocketAddr, ranks: u32| {
        for _ in 0..COPIES {
            let mut packet = sniffer.contribution().packet;
            packet.values.iter_mut().for_each(|value| *value ^= 0x5EED);
            socket.send_to(&partial(&packet, ranks), to).unwrap();
        }
    };
    // A rank sends for its neighbours too, to their combiner and past it.
    forge(&rank_1, combiner, RACK_0);
    forge(&rank_1, root, RACK_0);
    // The combiner of one rack sends for ranks of another: only for them, and together with its
    // own.
    forge(&rack_1, combiner, RACK_0);
    forge(&rack_1, root, RACK_0);
    forge(&rack_1, root, EVERYBODY);
    forge(&rack_1, root, EVERYBODY | BEYOND);
    wait_for(&site, Some(0), "wrong_place", 2 * COPIES);
    wait_for(&site, None, "wrong_place", 3 * COPIES);
    wait_for(&site, None, "bad_rank", COPIES);
    summing.progress(20);
    summing.stop();
}

/// Rank 2's contributions are also sent as partial sums of that rank, to the combiner from the
/// rank's host and to the root from the combiner's host: before, beside and after the sum that they
/// are part of.
pub fn partial_sums_that_overlap_add_nobody_twice(plane: Plane, options: RackOptions) {
    let site = Site::new(plane, options);
    let sniffer = at_rank(&site, 2);
    let summing = Summing::start(&site);
    summing.progress(20);
    let (root, combiner) = (at(site.racks.root_address()), at(site.racks.host_address(1)));
    let rank_2 = socket(&site.racks.workers()[2]);
    let rack_1 = socket(&site.racks.hosts()[1]);
    let happened = || {
        [(None, "overlap"), (None, "duplicate"), (Some(1), "duplicate")]
            .map(|(rack, name)| site.counter(rack, name))
    };
    let begin = Instant::now();
    while happened().contains(&0) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", happened());
        for _ in 0..COPIES {
            let packet = partial(&sniffer.contribution().packet, RANK_2);
            rack_1.send_to(&packet, root).unwrap();
            rank_2.send_to(&packet, combiner).unwrap();
            sleep(Duration::from_micros(200));
        }
    }
    summing.progress(20);
    summing.stop();
}

fn at(host: IpAddr) -> SocketAddr {
    SocketAddr::new(host, AGGREGATOR_PORT)
}

fn socket(host: &Namespace) -> UdpSocket {
    host.run(|| UdpSocket::bind("0.0.0.0:0").unwrap())
}

/// Sniffs the contributions of this rank, on its own host.
fn at_rank(site: &Site, rank: usize) -> Sniffer {
    let IpAddr::V4(combiner) = site.racks.host_address(site.racks.rack_of(rank)) else {
        panic!("not IPv4")
    };
    Sniffer::start(RawSocket::open(&site.racks.workers()[rank], ALL), combiner)
}

/// A partial sum of this set of ranks, otherwise like this contribution.
fn partial(contribution: &Packet, ranks: u32) -> Vec<u8> {
    let partial = Packet {
        kind: PARTIAL,
        rank: 0,
        aux: ranks,
        flags: CHECKED,
        contributions: ranks.count_ones(),
        ..contribution.clone()
    };
    partial.bytes()
}

/// Waits until a daemon has counted `count` packets, and no more.
fn wait_for(site: &Site, rack: Option<usize>, name: &str, count: u64) {
    let counted = || site.counter(rack, name);
    switchml_rack::wait_until!(GRACE, counted() >= count, "{name}: {} of {count}", counted());
    assert_eq!(site.counter(rack, name), count, "{name}");
}
