//! Watches the packets at a port: keeps the newest of each kind.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::AGGREGATOR_PORT;
use crate::PATIENCE;
use switchml_rack::raw_socket::RawSocket;
use switchml_test_support::frame::{CONTRIBUTION, Envelope, HELLO, Packet, RESULT, TAGGED};

/// Offset of the packet in a frame.
const PAYLOAD: usize = 42;

/// A contribution of a member, with its envelope.
#[derive(Clone)]
pub struct Contribution {
    pub envelope: Envelope,
    pub packet: Packet,
    /// The packet's bytes on the wire, with its tag.
    pub bytes: Vec<u8>,
}

/// Listens at a member's port.
pub struct Sniffer {
    heard: Arc<Mutex<Heard>>,
    _thread: Listener,
}

#[derive(Default)]
struct Heard {
    secret: Option<u32>,
    contribution: Option<Contribution>,
    /// A RESULT for all, or the member's copy, as on the wire if it is not in a superpacket.
    result: Option<Vec<u8>>,
}

impl Sniffer {
    /// Starts at the port of a member of this aggregator.
    pub fn start(socket: RawSocket, aggregator: Ipv4Addr) -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let notes = Arc::clone(&heard);
        let note = move |frame: &[u8]| {
            let Some((envelope, packet)) = parse(frame) else { return };
            let tag = if packet.flags & TAGGED == 0 { 0 } else { 8 };
            let bytes = &frame[PAYLOAD..PAYLOAD + packet.bytes().len() + tag];
            let mut notes = notes.lock().unwrap();
            match packet.kind {
                // The answer by the group has no secret.
                HELLO if envelope.source != aggregator.octets() => {
                    notes.secret = Some(packet.aux);
                }
                CONTRIBUTION => {
                    let bytes = bytes.to_vec();
                    notes.contribution = Some(Contribution { envelope, packet, bytes });
                }
                // Packets that the stranger sends to the group in its own name come by here too.
                RESULT if envelope.source == aggregator.octets() => {
                    notes.result = Some(envelope.bytes(bytes));
                }
                _ => {}
            }
        };
        Self { heard, _thread: Listener::start(socket, note) }
    }

    /// Waits until there is a packet of each kind.
    pub fn wait(&self) {
        let begin = Instant::now();
        let all = || {
            let heard = self.heard.lock().unwrap();
            heard.secret.is_some() && heard.contribution.is_some() && heard.result.is_some()
        };
        while !all() {
            assert!(begin.elapsed() < PATIENCE, "the members do not get under way");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The secret of the member's HELLO.
    pub fn secret(&self) -> u32 {
        self.heard.lock().unwrap().secret.unwrap()
    }

    pub fn contribution(&self) -> Contribution {
        self.heard.lock().unwrap().contribution.clone().unwrap()
    }

    pub fn result(&self) -> Vec<u8> {
        self.heard.lock().unwrap().result.clone().unwrap()
    }
}

/// Counts packets that come in from the aggregator's port.
pub struct Capture {
    packets: Arc<AtomicU64>,
    _thread: Listener,
}

impl Capture {
    pub fn start(socket: RawSocket) -> Self {
        let packets = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&packets);
        let note = move |frame: &[u8]| {
            let from = AGGREGATOR_PORT.to_be_bytes();
            // UDP of IPv4 without options, or of IPv6 without extension headers.
            let is_v4 = |frame: &[u8]| frame[12..15] == [0x08, 0x00, 0x45] && frame[23] == 17;
            let is_v6 = |frame: &[u8]| frame[12..14] == [0x86, 0xDD] && frame[20] == 17;
            let is_answer = (frame.len() >= 42 && is_v4(frame) && frame[34..36] == from)
                || (frame.len() >= 62 && is_v6(frame) && frame[54..56] == from);
            if is_answer {
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        Self { packets, _thread: Listener::start(socket, note) }
    }

    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }
}

/// A thread that hands on frames until it is dropped.
struct Listener {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(socket: RawSocket, mut note: impl FnMut(&[u8]) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while !stopped.load(Ordering::Relaxed) {
                if let Some(frame) = socket.receive(&mut buffer) {
                    note(frame);
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A frame of the protocol, or the first packet of a superpacket; offsets are those of the
/// specification.
fn parse(frame: &[u8]) -> Option<(Envelope, Packet)> {
    let is_udp = frame.len() >= 74 && frame[12..15] == [0x08, 0x00, 0x45] && frame[23] == 17;
    let u16_at = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let u32_at =
        |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    if !is_udp || ![u16_at(34), u16_at(36)].contains(&AGGREGATOR_PORT) {
        return None;
    }
    let envelope = Envelope {
        mac_destination: frame[..6].try_into().ok()?,
        mac_source: frame[6..12].try_into().ok()?,
        tos: 0,
        id: u16_at(18),
        fragment: 0x4000,
        ttl: 64,
        source: frame[26..30].try_into().ok()?,
        destination: frame[30..34].try_into().ok()?,
        source_port: u16_at(34),
        destination_port: u16_at(36),
        udp_checksum: 0,
    };
    let packet = Packet {
        version: frame[42],
        kind: frame[43],
        job: u16_at(44),
        epoch: u32_at(46),
        rank: u16_at(50),
        slot: u16_at(52),
        round: u32_at(54),
        op: frame[58],
        flags: frame[59],
        lanes: None,
        fingerprint: u32_at(62),
        check: None,
        contributions: 1,
        aux: u32_at(70),
        values: frame[74..]
            .as_chunks()
            .0
            .iter()
            .take(u16_at(60).into())
            .map(|lane| u32::from_be_bytes(*lane))
            .collect(),
    };
    Some((envelope, packet))
}
