//! Jobs whose packets have tags: their sums are right. An attacker who sees all packets, and sends
//! from a member's own place, or to a member in the aggregator's name, has no effect without the
//! keys.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use switchml_rack::{
    AGGREGATOR_ADDRESS, Aggregator, Binaries, Mode, Namespace, RackOptions, in_both_modes,
    wait_until,
};
use switchml_worker::control::ClientTls;
use switchml_worker::engine::Ignored;
use switchml_worker::{Builder, Communicator, ReduceOp, Stats};

use crate::strangers::sniffer::{Contribution, Sniffer};
use crate::strangers::{Stop, as_aggregator, replies_to, sum_until, to_group, to_member};
use crate::{Cluster, PATIENCE};
use switchml_rack::raw_socket::{self, RawSocket};
use switchml_test_support::frame::{Packet, tagged};

in_both_modes! {
    forged_packets_are_refused_even_from_a_members_place,
    tags_outlive_the_daemon,
}

const MEMBERS: usize = 3;
const OPTIONS: [&str; 2] = ["--tls-self-signed", "--packet-tags"];
/// Copies of each forgery.
const COPIES: u64 = 50;
/// The forger's guess of a key.
const KEY: [u8; 16] = [0x11; 16];

fn pinned(fingerprint: &str) -> ClientTls {
    ClientTls { fingerprint: Some(fingerprint.to_owned()), ..ClientTls::default() }
}

/// The data plane's counters.
fn counters(cluster: &Cluster) -> BTreeMap<String, u64> {
    let aggregator = &cluster.aggregator;
    let fingerprint = aggregator.fingerprint();
    let text = cluster.ask(&[
        "status",
        "--connect",
        aggregator.control(),
        "--tls-fingerprint",
        fingerprint,
    ]);
    let counter = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    };
    text.lines().skip_while(|line| !line.starts_with("packets")).filter_map(counter).collect()
}

/// Contributions of member 0 from its own place, right except for their values and tags.
fn forge_contributions(socket: &RawSocket, sniffer: &Sniffer) -> u64 {
    let mut sent = 0;
    for copy in 0..COPIES {
        let seen = sniffer.contribution();
        let Contribution { envelope, packet, bytes } = &seen;
        let forged = Packet { values: vec![copy as u32; 352], ..packet.clone() }.bytes();
        let mut without = forged.clone();
        without[17] &= !32;
        // Other values with the tag of the real packet, with a tag by a guessed key, and without a
        // tag.
        let with_its_tag = [&forged[..], &bytes[bytes.len() - 8..]].concat();
        for forged in [with_its_tag, tagged(&forged, KEY), without] {
            socket.send(&envelope.bytes(&forged));
            sent += 1;
        }
        // A replay of the real packet: counted as such, and added to no sum again.
        socket.send(&envelope.bytes(bytes));
    }
    sent
}

/// Answers to member 0 in the aggregator's name, which reach it. Returns how many the member must
/// ignore for their tags, at least.
fn forge_answers(socket: &RawSocket, sniffer: &Sniffer) -> u64 {
    for _ in 0..COPIES {
        let seen = sniffer.contribution();
        for reply in replies_to(&seen) {
            for bytes in [tagged(&reply.bytes(), KEY), reply.bytes()] {
                socket.send(&as_aggregator(&to_member(&seen)).bytes(&bytes));
                socket.send(&as_aggregator(&to_group(&seen)).bytes(&bytes));
            }
        }
        socket.send(&sniffer.result());
    }
    COPIES
}

fn forged_packets_are_refused_even_from_a_members_place(mode: Mode) {
    let rack = RackOptions { workers: MEMBERS, mode, ..RackOptions::default() };
    let cluster = &Cluster::with_options(rack, &OPTIONS);
    let home = cluster.rack.worker(0);
    let sniffer = Sniffer::start(RawSocket::open(home, raw_socket::ALL), AGGREGATOR_ADDRESS);
    // A namespace does one thing at a time: before it is a member's.
    let from_member = RawSocket::open(home, raw_socket::IPV4);
    let to_member = RawSocket::open_on(cluster.rack.switch(), "p0", raw_socket::IPV4);
    let stop = Arc::new(AtomicBool::new(false));
    let fingerprint = cluster.aggregator.fingerprint().to_owned();
    let (lives, refused, ignored) = thread::scope(|scope| {
        let stop_members = Arc::clone(&stop);
        let members = scope.spawn(move || {
            cluster.run_ranks(MEMBERS, "members", move |rank, builder| {
                sum_until(&stop_members, rank, builder.tls(pinned(&fingerprint)))
            })
        });
        let _stop = Stop(stop);
        sniffer.wait();
        let refused = forge_contributions(&from_member, &sniffer);
        let ignored = forge_answers(&to_member, &sniffer);
        wait_for(cluster, "bad_tag", refused);
        wait_for(cluster, "completed", counters(cluster)["completed"] + 1000);
        drop(_stop);
        (members.join().unwrap(), refused, ignored)
    });
    // The sniffer hears the forger, too, so some forgeries are played again.
    assert!((refused..=refused + COPIES).contains(&counters(cluster)["bad_tag"]));
    let by_tag = |stats: &Stats| stats.engine.ignored(Ignored::Tag);
    for (rank, (_, stats)) in lives.iter().enumerate() {
        let usual = [Ignored::Kind, Ignored::NotOutstanding, Ignored::Filler, Ignored::Tag];
        let others = Ignored::ALL.iter().filter(|reason| !usual.contains(reason));
        let others: u64 = others.map(|reason| stats.engine.ignored(*reason)).sum();
        assert_eq!(others, 0, "rank {rank}: {stats:?}");
    }
    assert!(by_tag(&lives[0].1) >= ignored, "{} of {ignored}", by_tag(&lives[0].1));
}

/// A rank's calls, of all kinds of packets: sums in one chunk and in many, speculative ones,
/// broadcasts whose other ranks send EMPTY, maxima.
fn make_calls(communicator: &Communicator, ranks: u32) {
    let rank = communicator.rank();
    for size in [1, 12, 5000, 1 << 20] {
        let mut values = vec![rank as f32 + 1.0; size];
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        assert_eq!(values, vec![(ranks * (ranks + 1) / 2) as f32; size]);
        let mut values = vec![rank as i32; size];
        communicator.all_reduce(&mut values, ReduceOp::Max).unwrap();
        assert_eq!(values, vec![ranks as i32 - 1; size]);
        let mut values = vec![rank as i32 + 7; size];
        communicator.broadcast(&mut values, ranks - 1).unwrap();
        assert_eq!(values, vec![ranks as i32 + 6; size]);
    }
    communicator.barrier().unwrap();
}

/// The data plane has the keys, so the next daemon does not need them.
fn tags_outlive_the_daemon(mode: Mode) {
    let rack = RackOptions { workers: MEMBERS, mode, ..RackOptions::default() };
    // The next daemon has the same certificate, so ranks trust it.
    let folder = tempfile::tempdir().unwrap();
    let file = |name| folder.path().join(name).display().to_string();
    let [cert, key] = ["cert.pem", "key.pem"].map(file);
    let options = [&OPTIONS[..], &["--tls-cert", &cert, "--tls-key", &key]].concat();
    let mut cluster = Cluster::with_options(rack, &options);
    let control = cluster.aggregator.control().to_owned();
    let fingerprint = cluster.aggregator.fingerprint().to_owned();
    let stop = Arc::new(AtomicBool::new(false));
    let lives = thread::scope(|scope| {
        let place = &cluster.rack;
        let _stop = Stop(Arc::clone(&stop));
        let start = |rank: usize| {
            let builder = Communicator::builder().aggregator(&control).job("kept");
            let builder = builder.rank(rank as u32).world_size(MEMBERS as u32);
            let (builder, stop) = (builder.tls(pinned(&fingerprint)), Arc::clone(&stop));
            let worker = place.worker(rank);
            scope.spawn(move || worker.run(move || sum_until(&stop, rank as u32, builder)))
        };
        let ranks: Vec<_> = (0..MEMBERS).map(start).collect();
        wait_for(&cluster, "completed", 1000);
        cluster.aggregator.process().kill().unwrap();
        cluster.aggregator =
            Aggregator::in_rack_at(&cluster.binaries, &cluster.rack, &control, &options).unwrap();
        let now = counters(&cluster)["completed"];
        wait_for(&cluster, "completed", now + 1000);
        drop(_stop);
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(lives.iter().all(|(_, stats)| stats.engine.ignored(Ignored::Tag) == 0));
    assert_eq!(counters(&cluster).get("bad_tag"), None);
}

/// Waits until `count` packets are counted under this name.
fn wait_for(cluster: &Cluster, name: &str, count: u64) {
    wait_until!(
        PATIENCE,
        counters(cluster).get(name) >= Some(&count),
        "fewer than {count} {name}: {:?}",
        counters(cluster)
    );
}

/// Sums with several data threads over the software data plane.
#[test]
fn sums_by_software() {
    let binaries = Binaries::for_test().unwrap();
    let host = Namespace::of_host().unwrap();
    let aggregator = Aggregator::on_loopback_with(&binaries, &host, &OPTIONS).unwrap();
    let rank = |rank: u32| -> Builder {
        Communicator::builder()
            .aggregator(aggregator.control())
            .tls(pinned(aggregator.fingerprint()))
            .job("software")
            .data_threads(4)
            .rank(rank)
            .world_size(MEMBERS as u32)
    };
    thread::scope(|scope| {
        for number in 0..MEMBERS as u32 {
            let builder = rank(number);
            scope.spawn(move || {
                let communicator = builder.connect().unwrap();
                make_calls(&communicator, MEMBERS as u32);
                assert_eq!(communicator.stats().engine.ignored(Ignored::Tag), 0);
                communicator.close().unwrap();
            });
        }
    });
    let mut status = Command::new(&binaries.aggregator);
    status.args(["status", "--connect", aggregator.control()]);
    status.args(["--tls-fingerprint", aggregator.fingerprint()]);
    let status = String::from_utf8(host.output(status).unwrap().stdout).unwrap();
    assert!(!status.contains("bad_tag"), "{status}");
}
