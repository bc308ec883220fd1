//! A host on a port of the switch that is not a member of the job. Whatever it sends, no sum
//! changes, nothing answers it, and everything is counted. It knows everything that a sniffer at a
//! member's port could know.

mod damage;
pub mod sniffer;

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use switchml_rack::{AGGREGATOR_ADDRESS, Mode, Rack, in_both_modes, wait_until};
use switchml_worker::control::Membership;
use switchml_worker::engine::Ignored;
use switchml_worker::{Builder, ReduceOp, Stats};

use crate::multicast::block_multicast_of_the_aggregator;
use crate::{Cluster, PATIENCE};
use sniffer::{Capture, Contribution, Sniffer};
use switchml_rack::raw_socket::{self, RawSocket};
use switchml_test_support::frame::{EVERYONE, Envelope, HELLO, Packet, RESULT, fix_ip_checksum};

in_both_modes! {
    a_stranger_changes_no_sum_and_is_not_answered_and_is_counted,
    nor_where_a_member_gets_copies,
}

const MEMBERS: usize = 3;
/// The rack's last port is the stranger's.
const STRANGER: usize = MEMBERS;
const STRANGER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, STRANGER as u8 + 1];
const AGGREGATOR_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0xFE];
const AGGREGATOR_PORT: u16 = 48864;
const ELEMENTS: i32 = 50_000;
/// Copies of each forgery.
const COPIES: u64 = 50;
/// The flag of rule 7.8.
const GROUP: u8 = 16;
const RANDOM_FRAMES: u64 = 100_000;
/// Fewer than the queue of a veth holds.
const BURST: u64 = 100;
/// Counters of members' packets.
const OF_MEMBERS: [&str; 8] =
    ["started", "added", "completed", "replayed", "pending", "stale", "hello", "slot_busy"];

/// Counters of frames that hosts send by themselves: ARP, TCP, IPv6 neighbours, IGMP.
const OF_HOSTS: [&str; 3] = ["not_ours", "ipv6", "ip_options"];

/// The life of a member: makes sums, each element checked, until a rank wants to stop. Returns
/// their number, and the statistics.
pub fn sum_until(stop: &AtomicBool, rank: u32, builder: Builder) -> (i32, Stats) {
    let communicator = builder.connect().unwrap();
    let mut round = 0;
    loop {
        let wants_to_stop = i32::from(stop.load(Ordering::Relaxed));
        let mine = (0..ELEMENTS)
            .map(|i| i.wrapping_mul(rank as i32 + 1).wrapping_add(round))
            .chain([wants_to_stop]);
        let mut values: Vec<i32> = mine.collect();
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        let stop = values.pop();
        // Factors 1, 2 and 3.
        let right = |(i, &value): (i32, &i32)| {
            value == i.wrapping_mul(6).wrapping_add(round.wrapping_mul(3))
        };
        assert!((0..).zip(&values).all(right), "a wrong sum in round {round} of rank {rank}");
        round += 1;
        if stop != Some(0) {
            break;
        }
    }
    let stats = communicator.stats();
    communicator.close().unwrap();
    (round, stats)
}

/// Makes the members stop when the stranger is done, or has panicked.
pub struct Stop(pub Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The stranger's port, and the frames that it has sent.
struct Stranger<'a> {
    cluster: &'a Cluster,
    socket: RawSocket,
    sniffer: &'a Sniffer,
    /// Frames that had come in through its port before it sent any.
    before: u64,
    sent: u64,
    /// Packets sent, by the counter that must count them.
    expected: BTreeMap<&'static str, u64>,
}

impl Stranger<'_> {
    /// Sends a frame that must be counted as `counter`.
    fn send(&mut self, counter: &'static str, frame: &[u8]) {
        self.socket.send(frame);
        self.sent += 1;
        *self.expected.entry(counter).or_default() += 1;
        if self.sent.is_multiple_of(BURST) {
            self.wait_for_arrival();
        }
    }

    /// Waits until the port has taken in all that was sent.
    fn wait_for_arrival(&self) {
        wait_until!(
            PATIENCE,
            arrived(self.cluster) >= self.before + self.sent,
            "of {} frames, some got lost on the way to the port",
            self.sent
        );
    }

    /// The newest contribution of member 0, which is most likely waiting for its result.
    fn outstanding(&self) -> Contribution {
        self.sniffer.contribution()
    }

    fn send_copies(&mut self, counter: &'static str, frame: impl Fn(&Contribution) -> Vec<u8>) {
        for _ in 0..COPIES {
            let frame = frame(&self.outstanding());
            self.send(counter, &frame);
        }
    }
}

/// Frames that have come in through the stranger's port.
fn arrived(cluster: &Cluster) -> u64 {
    let path = format!("/sys/class/net/p{STRANGER}/statistics/rx_packets");
    cluster
        .rack
        .switch()
        .run(move || std::fs::read_to_string(path))
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// The stranger's own envelope to the aggregator.
fn own_envelope() -> Envelope {
    Envelope {
        mac_destination: AGGREGATOR_MAC,
        mac_source: STRANGER_MAC,
        tos: 0,
        id: 1,
        fragment: 0x4000,
        ttl: 64,
        source: Rack::worker_address(STRANGER).octets(),
        destination: AGGREGATOR_ADDRESS.octets(),
        source_port: 40_000,
        destination_port: AGGREGATOR_PORT,
        udp_checksum: 0,
    }
}

/// An envelope in the aggregator's name, to a member or to the group.
pub fn as_aggregator(to: &Envelope) -> Envelope {
    Envelope {
        mac_source: AGGREGATOR_MAC,
        source: AGGREGATOR_ADDRESS.octets(),
        source_port: AGGREGATOR_PORT,
        ..to.clone()
    }
}

/// An envelope to the member that sent this contribution.
pub fn to_member(contribution: &Contribution) -> Envelope {
    let Envelope { mac_source, source, source_port, .. } = contribution.envelope.clone();
    Envelope {
        mac_destination: mac_source,
        destination: source,
        destination_port: source_port,
        ..own_envelope()
    }
}

/// An envelope to the job's group.
pub fn to_group(contribution: &Contribution) -> Envelope {
    let [high, low] = contribution.packet.job.to_be_bytes();
    Envelope {
        mac_destination: [0x01, 0x00, 0x5E, 0x7F, high, low],
        destination: [239, 255, high, low],
        destination_port: 48866,
        ..own_envelope()
    }
}

/// HELLOs in members' names, which ask for an answer to one rank or to the group.
fn forge_hellos(stranger: &mut Stranger, flags: u8) {
    let hello = |seen: &Contribution, rank: u16, aux: u32| Packet {
        kind: HELLO,
        rank,
        aux,
        flags,
        check: Some(0),
        values: vec![0; 32],
        ..seen.packet.clone()
    };
    let secret = stranger.sniffer.secret();
    for rank in 0..MEMBERS as u16 {
        stranger.send_copies("wrong_secret", |seen| {
            own_envelope().bytes(&hello(seen, rank, 0).bytes())
        });
        // HELLOs from the member's own address, except for the port.
        stranger.send_copies("wrong_secret", |seen| {
            seen.envelope.bytes(&hello(seen, rank, !secret).bytes())
        });
    }
    // Member 0's secret is right only for its own rank, whose place is known already.
    stranger
        .send_copies("wrong_place", |seen| own_envelope().bytes(&hello(seen, 0, secret).bytes()));
    stranger
        .send_copies("wrong_place", |seen| seen.envelope.bytes(&hello(seen, 0, secret).bytes()));
    stranger
        .send_copies("wrong_secret", |seen| own_envelope().bytes(&hello(seen, 1, secret).bytes()));
    stranger.send_copies("bad_rank", |seen| {
        own_envelope().bytes(&hello(seen, MEMBERS as u16, secret).bytes())
    });
    stranger.send_copies("wrong_epoch", |seen| {
        let hello = hello(seen, 0, secret);
        own_envelope().bytes(&Packet { epoch: hello.epoch ^ 1, ..hello }.bytes())
    });
    stranger.send_copies("unknown_job", |seen| {
        own_envelope().bytes(&Packet { job: 200, ..hello(seen, 0, secret) }.bytes())
    });
}

/// Contributions that are right except for their source, and worse ones; `unopened` is a job whose
/// ranks have not said HELLO.
fn forge_contributions(stranger: &mut Stranger, unopened: (u16, u32)) {
    let values: Vec<u32> = (0..352).map(|i| i * 77).collect();
    let contribution =
        |seen: &Contribution| Packet { values: values.clone(), ..seen.packet.clone() };
    let from_own_address = |packet: Packet| own_envelope().bytes(&packet.bytes());
    for rank in 0..MEMBERS as u16 {
        stranger.send_copies("wrong_place", |seen| {
            from_own_address(Packet { rank, ..contribution(seen) })
        });
    }
    // Contributions with member 0's MAC, IP address and UDP port.
    stranger.send_copies("wrong_place", |seen| seen.envelope.bytes(&contribution(seen).bytes()));
    stranger.send_copies("wrong_place", |seen| {
        let round = seen.packet.round.wrapping_add(1);
        seen.envelope.bytes(&Packet { round, ..contribution(seen) }.bytes())
    });
    // Contributions with one of them.
    stranger.send_copies("wrong_place", |seen| {
        Envelope { source: seen.envelope.source, ..own_envelope() }
            .bytes(&contribution(seen).bytes())
    });
    stranger.send_copies("wrong_place", |seen| {
        Envelope { mac_source: seen.envelope.mac_source, ..own_envelope() }
            .bytes(&contribution(seen).bytes())
    });
    stranger.send_copies("bad_rank", |seen| {
        from_own_address(Packet { rank: MEMBERS as u16, ..contribution(seen) })
    });
    stranger.send_copies("bad_rank", |seen| {
        from_own_address(Packet { rank: EVERYONE, ..contribution(seen) })
    });
    for bit in [0, 13, 31] {
        stranger.send_copies("wrong_epoch", |seen| {
            from_own_address(Packet { epoch: seen.packet.epoch ^ 1 << bit, ..contribution(seen) })
        });
    }
    stranger.send_copies("unknown_job", |seen| {
        from_own_address(Packet { job: 255, ..contribution(seen) })
    });
    stranger.send_copies("unknown_job", |seen| {
        from_own_address(Packet { job: 0xFFFF, ..contribution(seen) })
    });
    stranger.send_copies("no_hello", |seen| {
        let (job, epoch) = unopened;
        from_own_address(Packet { job, epoch, rank: 0, ..contribution(seen) })
    });
    stranger.send_copies("bad_kind", |seen| {
        from_own_address(Packet { kind: RESULT, ..contribution(seen) })
    });
}

/// A RESULT for the chunk that a member waits for, right except for its values; a PENDING and
/// REJECTs.
pub fn replies_to(seen: &Contribution) -> [Packet; 6] {
    let garbage = vec![0x0BAD_5EED; seen.packet.values.len()];
    let all = seen.packet.result_for_all(4, MEMBERS as u32, &garbage);
    let one = seen.packet.result(4, MEMBERS as u32, &garbage);
    let reject = |reason| seen.packet.reject(reason, 1);
    [all, one, seen.packet.pending(1), reject(1), reject(2), reject(3)]
}

/// Answers to members. Returns how many went to the group from the stranger's own address.
fn forge_replies(stranger: &mut Stranger) -> u64 {
    let mut foreign = 0;
    for kind in 0..6 {
        let reply = |seen: &Contribution| replies_to(seen)[kind].bytes();
        stranger.send_copies("spoofed", |seen| as_aggregator(&to_member(seen)).bytes(&reply(seen)));
        stranger.send_copies("spoofed", |seen| as_aggregator(&to_group(seen)).bytes(&reply(seen)));
        // Answers from any port of the aggregator's address, and with a tag that names no VLAN,
        // which a host removes.
        stranger.send_copies("spoofed", |seen| {
            Envelope { source_port: 1, ..as_aggregator(&to_member(seen)) }.bytes(&reply(seen))
        });
        stranger.send_copies("spoofed", |seen| {
            let mut frame = as_aggregator(&to_group(seen)).bytes(&reply(seen));
            frame.splice(12..12, [0x81, 0, 0, 0]);
            frame
        });
        // Answers from the stranger's own address. The group's sockets receive them, and the ranks
        // ignore them; a member's own socket is connected.
        stranger.send_copies("not_ours", |seen| {
            Envelope {
                mac_source: STRANGER_MAC,
                source: own_envelope().source,
                ..as_aggregator(&to_group(seen))
            }
            .bytes(&reply(seen))
        });
        stranger.send_copies("not_ours", |seen| {
            Envelope { source_port: AGGREGATOR_PORT, ..to_member(seen) }.bytes(&reply(seen))
        });
        foreign += COPIES;
    }
    // An answer in two fragments, the second of which has no ports.
    for _ in 0..COPIES {
        let seen = stranger.outstanding();
        for fragment in fragments(&as_aggregator(&to_member(&seen)), &replies_to(&seen)[1].bytes())
        {
            stranger.send("spoofed", &fragment);
        }
    }
    // Replays of answers that the aggregator has sent.
    for _ in 0..COPIES {
        let result = stranger.sniffer.result();
        stranger.send("spoofed", &result);
    }
    foreign
}

/// The packet in two IP fragments.
fn fragments(envelope: &Envelope, payload: &[u8]) -> [Vec<u8>; 2] {
    let whole = envelope.bytes(payload);
    let (headers, body) = whole.split_at(14 + 20);
    // Offsets count in words of 8 bytes.
    let cut = body.len() / 16 * 8;
    let fragment = |offset: usize, bytes: &[u8], more: u16| {
        let mut frame = [headers, bytes].concat();
        frame[16..18].copy_from_slice(&(20 + bytes.len() as u16).to_be_bytes());
        frame[20..22].copy_from_slice(&(more << 13 | (offset / 8) as u16).to_be_bytes());
        fix_ip_checksum(&mut frame[14..]);
        frame
    };
    [fragment(0, &body[..cut], 1), fragment(cut, &body[cut..], 0)]
}

/// Noise: random bytes, random bytes behind right headers, and contributions with some bytes
/// changed.
fn send_noise(stranger: &mut Stranger) {
    let mut random = StdRng::seed_from_u64(0x57A6);
    for number in 0..RANDOM_FRAMES {
        let frame = match number % 4 {
            0 => {
                let mut frame = vec![0; random.random_range(14..1514)];
                random.fill_bytes(&mut frame);
                // A source that is a group's is refused by the sender's own host.
                frame[6] &= 0xFE;
                frame
            }
            1 => {
                let mut seen = stranger.outstanding();
                // The bridge must not learn a member's MAC here: that would be an attack on the
                // network.
                seen.envelope.mac_source = STRANGER_MAC;
                let mut frame = seen.envelope.bytes(&seen.packet.bytes());
                for _ in 0..random.random_range(1..4) {
                    let byte = random.random_range(12..frame.len());
                    frame[byte] = random.random();
                }
                frame
            }
            _ => {
                let mut payload = vec![0; random.random_range(0..1472)];
                random.fill_bytes(&mut payload);
                own_envelope().bytes(&payload)
            }
        };
        stranger.send("", &frame);
    }
    stranger.wait_for_arrival();
}

/// How many packets of each kind have been counted since `before`, once that is enough: at tc
/// ingress they are counted a moment after they have arrived.
fn moved_enough(
    cluster: &Cluster,
    before: &BTreeMap<String, u64>,
    is_enough: impl Fn(&BTreeMap<String, u64>) -> bool,
) -> BTreeMap<String, u64> {
    let begin = Instant::now();
    loop {
        let moved = moved(before, &cluster.counters());
        // After that time the caller reports what is missing.
        if is_enough(&moved) || begin.elapsed() > Duration::from_secs(5) {
            return moved;
        }
    }
}

/// How many packets of each kind have been counted since `before`.
fn moved(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let since = |name: &String| before.get(name).copied().unwrap_or(0);
    after.iter().map(|(name, packets)| (name.clone(), packets - since(name))).collect()
}

/// A job whose ranks have joined, but do not say HELLO.
fn unopened_job(cluster: &Cluster) -> [(Membership, (u16, u32)); 2] {
    let join = |namespace: usize| {
        let address = cluster.aggregator.control().to_owned();
        let rank = namespace as u32;
        let place =
            if namespace == 0 { cluster.rack.switch() } else { cluster.rack.worker(STRANGER) };
        let (session, assigned) = place
            .run(move || Membership::join(&address, "unopened", rank, 2, Some(1), PATIENCE))
            .unwrap();
        (session, (assigned.job, assigned.epoch))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| join(1));
        [join(0), other.join().unwrap()]
    })
}

fn a_stranger_changes_no_sum_and_is_not_answered_and_is_counted(mode: Mode) {
    a_stranger_gets_nowhere(&Cluster::in_mode(MEMBERS + 1, mode), &[]);
}

/// The stranger gets no copies, and its forgeries of the group's frames or of copies are ignored.
fn nor_where_a_member_gets_copies(mode: Mode) {
    let cluster = Cluster::in_mode(MEMBERS + 1, mode);
    // Packets that the stranger sends to the group do reach this member.
    block_multicast_of_the_aggregator(cluster.rack.worker(0));
    a_stranger_gets_nowhere(&cluster, &[0]);
}

/// Runs all attacks of a stranger; the members in `copied` get copies.
fn a_stranger_gets_nowhere(cluster: &Cluster, copied: &[usize]) {
    let home = cluster.rack.worker(STRANGER);
    // Without IPv6 the host sends nothing by itself.
    home.run(|| std::fs::write("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1")).unwrap();
    let unopened = unopened_job(cluster);
    let sniffer = Sniffer::start(
        RawSocket::open(cluster.rack.worker(0), raw_socket::ALL),
        AGGREGATOR_ADDRESS,
    );
    let capture = Capture::start(RawSocket::open(home, raw_socket::IPV4));
    let stop = Arc::new(AtomicBool::new(false));
    let (lives, foreign) = thread::scope(|scope| {
        let (members, stop_members) = (cluster, Arc::clone(&stop));
        let members = scope.spawn(move || {
            members.run_ranks(MEMBERS, "members", move |rank, builder| {
                sum_until(&stop_members, rank, builder)
            })
        });
        let _stop = Stop(stop);
        sniffer.wait();

        let mut stranger = Stranger {
            cluster,
            socket: RawSocket::open(home, raw_socket::IPV4),
            sniffer: &sniffer,
            before: arrived(cluster),
            sent: 0,
            expected: BTreeMap::new(),
        };
        let foreign = all_forgeries_are_counted(&mut stranger, unopened[0].1);
        all_noise_is_counted(&mut stranger);
        drop(_stop);
        (members.join().unwrap(), foreign)
    });
    for (rank, (rounds, stats)) in lives.iter().enumerate() {
        println!(
            "rank {rank}: {rounds} sums, {} foreign, ignored {:?}",
            stats.foreign, stats.engine.ignored
        );
        assert!(*rounds > 10, "hardly anything was summed meanwhile");
        // A member that gets copies has left the group.
        assert_unimpressed(stats, if copied.contains(&rank) { 0..=0 } else { 1..=foreign });
    }
    assert_nothing_was_answered(cluster, &capture);
    for (session, _) in unopened {
        session.leave();
    }
}

/// Forges all kinds of packets in members' names and the aggregator's. Returns how many answers
/// went to the group from the stranger's own address.
fn all_forgeries_are_counted(stranger: &mut Stranger, unopened: (u16, u32)) -> u64 {
    let before = stranger.cluster.counters();
    [0, GROUP].into_iter().for_each(|flags| forge_hellos(stranger, flags));
    forge_contributions(stranger, unopened);
    let foreign = forge_replies(stranger);
    stranger.wait_for_arrival();
    let forged = moved_enough(stranger.cluster, &before, |moved| {
        stranger.expected.iter().all(|(name, packets)| moved.get(*name) >= Some(packets))
    });
    println!("forged: {:?}", stranger.expected);
    let not_ours = stranger.expected.remove("not_ours").unwrap();
    // The members and their control connections add nothing to the other counters.
    assert!(forged["not_ours"] >= not_ours, "{forged:?}");
    for (name, packets) in forged.iter().filter(|(name, _)| !OF_MEMBERS.contains(&name.as_str())) {
        let expected = stranger.expected.get(name.as_str()).copied().unwrap_or(0);
        let is_right = *packets == expected || OF_HOSTS.contains(&name.as_str());
        assert!(is_right, "{packets} {name} instead of {expected}");
    }
    let uncounted = stranger.expected.keys().filter(|name| !forged.contains_key(**name));
    assert_eq!(uncounted.count(), 0, "{forged:?}");
    foreign
}

fn all_noise_is_counted(stranger: &mut Stranger) {
    let before = stranger.cluster.counters();
    send_noise(stranger);
    let of_others = |moved: &BTreeMap<String, u64>| -> u64 {
        let others = moved.iter().filter(|(name, _)| !OF_MEMBERS.contains(&name.as_str()));
        others.map(|(_, packets)| packets).sum()
    };
    let enough = |moved: &BTreeMap<String, u64>| of_others(moved) >= RANDOM_FRAMES;
    let noise = moved_enough(stranger.cluster, &before, enough);
    let counted = of_others(&noise);
    println!("noise: {noise:?}");
    // The control connections add a few frames a second.
    assert!(
        (RANDOM_FRAMES..RANDOM_FRAMES + 1000).contains(&counted),
        "{counted} of {RANDOM_FRAMES}: {noise:?}"
    );
}

/// Asserts that nothing forged has reached a member's engine. After a resend, a HELLO may come back
/// late, and a result twice; superpackets have FILLERs in them.
fn assert_unimpressed(stats: &Stats, foreign: RangeInclusive<u64>) {
    let is_usual = |reason: &Ignored| {
        matches!(reason, Ignored::Kind | Ignored::NotOutstanding | Ignored::Filler)
    };
    let ignored = Ignored::ALL.iter().filter(|reason| !is_usual(reason));
    assert_eq!(ignored.map(|reason| stats.engine.ignored(*reason)).sum::<u64>(), 0, "{stats:?}");
    assert!(foreign.contains(&stats.foreign), "{} of {foreign:?}", stats.foreign);
}

/// Asserts that the capture has received nothing from the aggregator's port, and that it can: it
/// receives a datagram that the switch sends from there.
fn assert_nothing_was_answered(cluster: &Cluster, capture: &Capture) {
    assert_eq!(capture.packets(), 0, "the aggregator has answered a stranger");
    let address = Rack::worker_address(STRANGER);
    let socket = cluster
        .rack
        .switch()
        .run(|| UdpSocket::bind((AGGREGATOR_ADDRESS, AGGREGATOR_PORT)))
        .unwrap();
    socket.send_to(b"hello", (address, 9)).unwrap();
    wait_until!(PATIENCE, capture.packets() != 0, "the capture hears nothing");
}
