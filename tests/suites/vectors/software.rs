//! The software data plane over real sockets, as a subject: a socket for each place that packets
//! come from.

use crate::in_kernel::by_name;
use crate::spec::{FIRST_SLOT, OpenJobs, spec};
use rustix::net::sockopt::set_ip_tos;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};
use switchml_data_plane::software::Software;
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::bpf_types::maps::MAX_JOBS;
use switchml_protocol::node::roce;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::admission::Tables;
use switchml_protocol::root::slot::Slot;
use switchml_protocol::{DATA_PORT, MAX_RANKS};
use switchml_rack::vectors::{
    Age, Answer, Copies, Counters, Job, Layer, Member, Offer, Subject, packet_in,
};
use switchml_test_support::frame::{CE, DONE, Envelope, HELLO, Packet, Wire, tagged};
use switchml_test_support::message::message;
use switchml_userspace_core::data_plane::{DataPlane, ServesJobs};

const AGGREGATOR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 254), DATA_PORT);
/// Where messages of RoCEv2 go.
const QUEUE_PAIR: SocketAddrV4 = SocketAddrV4::new(*AGGREGATOR.ip(), roce::PORT);
const POOL: u32 = 1024;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(10);
const ENVELOPE_LEN: usize = 42;
const RANK: usize = 8;
const EVERYONE: [u8; 2] = [0xFF, 0xFF];

/// Makes the vectors' addresses local in the calling thread's namespace.
pub fn make_addresses_local() {
    for arguments in ["link set lo up", "route add local 10.0.0.0/24 dev lo"] {
        let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip runs");
        assert!(status.success(), "ip {arguments}");
    }
}

/// Receiving socket, sender and bytes of a datagram.
type Received = (SocketAddrV4, SocketAddr, Vec<u8>);

/// The data plane, and the sockets of all that send to it or may receive from it.
pub struct OverSockets {
    data_plane: Software,
    sockets: BTreeMap<SocketAddrV4, UdpSocket>,
    /// Jobs that were ever opened, and their first slots.
    jobs: OpenJobs,
    /// A socket that sends datagrams which are only counted, and their number.
    fence: UdpSocket,
    fences: u64,
    fences_by_roce: u64,
}

impl OverSockets {
    /// A subject without jobs, in the calling thread's namespace.
    pub fn new() -> Self {
        let data_plane = Software::start(
            Some((*AGGREGATOR.ip()).into()),
            AGGREGATOR.port(),
            POOL,
            Box::new(drop),
        )
        .and_then(|software| software.with_roce(Some((*AGGREGATOR.ip()).into())))
        .expect("a data plane");
        let fence = UdpSocket::bind("10.0.0.253:0").expect("a socket");
        Self {
            data_plane,
            sockets: BTreeMap::new(),
            jobs: OpenJobs::new(),
            fence,
            fences: 0,
            fences_by_roce: 0,
        }
    }

    fn total(&self) -> u64 {
        self.data_plane.counters().expect("counters").iter().sum()
    }

    /// Waits until `total` packets were counted.
    fn wait_for(&self, total: u64) -> Result<(), String> {
        let begin = Instant::now();
        while self.total() < total {
            if begin.elapsed() > PATIENCE {
                return Err(format!("a packet was not counted within {PATIENCE:?}"));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Waits until a datagram was served and, if it has an answer, answered: the next datagram is
    /// served after that.
    fn exchange(
        &mut self,
        (from, to): (SocketAddrV4, SocketAddrV4),
        tos: u8,
        datagram: &[u8],
    ) -> Result<(), String> {
        let total = self.total();
        let socket = self.sockets.entry(from).or_insert_with(|| socket(from));
        set_ip_tos(&*socket, tos).map_err(|error| error.to_string())?;
        socket.send_to(datagram, to).map_err(|error| error.to_string())?;
        self.wait_for(total + 1)?;
        // A counted datagram may not be answered yet. But the data plane has received it, so this
        // one comes behind it. A message of one byte names no queue pair.
        let (fence, fences): (&[u8], _) = match to {
            QUEUE_PAIR => (&[0], &mut self.fences_by_roce),
            _ => (&[], &mut self.fences),
        };
        *fences += 1;
        self.fence.send_to(fence, to).map_err(|error| error.to_string())?;
        self.wait_for(total + 2)
    }

    fn change_slot(&self, index: u32, change: impl FnOnce(&mut Slot)) {
        self.data_plane.tables().with_slot(index, |slot| {
            change(slot);
            // This outcome is not counted.
            Outcome::Started
        });
    }

    /// Has all ranks that have said HELLO get copies of RESULTs to all.
    fn start_all(&self) -> Result<(), String> {
        for (number, (job, _)) in &self.jobs {
            let ranks = 0..job.members.len() as u16;
            let ways: Vec<_> = ranks.map(|rank| (rank, Way::Copy)).collect();
            self.data_plane.start(*number, &ways).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// DONEs have the RESULT's bytes where a rank may get one in its place.
    fn as_results(&self, received: &mut [Received]) -> Result<(), String> {
        let is_done = |(.., bytes): &Received| bytes.get(1) == Some(&DONE);
        let Some((.., result)) = received.iter().find(|one| !is_done(one)).cloned() else {
            return Ok(());
        };
        for (at, _, bytes) in received.iter_mut().filter(|one| is_done(one)) {
            let packet = Wire::from_bytes(&result);
            let members = &self.jobs[&packet.job].0.members;
            let rank = members.iter().position(|member| member.over_v4() == *at);
            if *bytes != done_of(&packet).to_bytes() || needs_lanes(packet.op, rank.unwrap_or(0)) {
                return Err(format!("{rank:?} got {bytes:02x?} in place of {result:02x?}"));
            }
            bytes.clone_from(&result);
        }
        Ok(())
    }

    /// A RESULT to all of a job some of whose ranks have queue pairs. Those with sockets get the
    /// same datagram.
    fn copies(&self, number: u16, received: Vec<Received>) -> Result<Answer, String> {
        let mut copies = Copies::default();
        let mut missing: BTreeMap<_, _> =
            self.jobs[&number].0.members.iter().map(|it| (it.over_v4(), it)).collect();
        for (at, source, datagram) in received {
            let Some(member) = missing.remove(&at) else {
                return Err(format!("two frames to {at}, or no rank of the job"));
            };
            let frame = frame_of(v4(source)?, at, &datagram);
            if member.queue_pair.is_some() {
                copies.ranks.insert(member.rank, frame);
                continue;
            }
            let first = copies.group.get_or_insert_with(|| frame.clone());
            if first[ENVELOPE_LEN..] != frame[ENVELOPE_LEN..] {
                return Err(format!("{at} got {frame:02x?}, others {first:02x?}"));
            }
        }
        if missing.is_empty() {
            Ok(Answer::Ranks(number, copies))
        } else {
            Err(format!("nothing to {:?}", missing.keys()))
        }
    }

    /// The datagrams that have arrived.
    fn received(&self) -> Result<Vec<Received>, String> {
        let mut received = Vec::new();
        for (at, socket) in &self.sockets {
            let mut buffer = [0; 4096];
            loop {
                match socket.recv_from(&mut buffer) {
                    Ok((len, from)) => received.push((*at, from, buffer[..len].to_vec())),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(received)
    }
}

/// Rule 9.4, for one round.
fn done_of(result: &Wire) -> Wire {
    let lane = u32::from(result.slot) << 16 | result.round & 0xFFFF;
    let flags = result.flags & CE;
    Wire { kind: DONE, aux: 0, flags, payload: vec![lane], ..result.clone() }.sealed()
}

/// Rule 2.10: whether the lanes of a result are for a rank.
fn needs_lanes(op: u8, rank: usize) -> bool {
    let named = usize::from(op & 63) == rank;
    match op >> 6 {
        1 => named,
        2 => !named,
        _ => true,
    }
}

fn socket(address: SocketAddrV4) -> UdpSocket {
    let socket =
        UdpSocket::bind(address).unwrap_or_else(|error| panic!("bind to {address}: {error}"));
    socket.set_nonblocking(true).expect("non-blocking");
    socket
}

impl Subject for OverSockets {
    fn offer(&self) -> Offer {
        let features =
            ["age", "audiences", "empty", "keys", "long", "max", "partial", "roce", "verify"]
                .map(str::to_owned)
                .to_vec();
        Offer {
            strict: true,
            lanes: 768,
            ranks: MAX_RANKS as u16,
            jobs: MAX_JOBS as u16,
            slots: POOL - FIRST_SLOT,
            features,
        }
    }

    fn layer(&self) -> Layer {
        Layer::Datagram
    }

    fn reset(&mut self) -> Result<(), String> {
        // The sockets stay open: a process that another thread is starting inherits them until it
        // runs its own program, and until then nobody could bind to their addresses again.
        self.received()?;
        for (number, (job, first_slot)) in std::mem::take(&mut self.jobs) {
            self.close(number)?;
            for index in first_slot..first_slot + job.slots {
                self.change_slot(index, |slot| *slot = Slot::default());
            }
        }
        Ok(())
    }

    fn open(&mut self, job: &Job) -> Result<(), String> {
        assert_eq!(job.over_v4().0, AGGREGATOR, "where the data plane listens");
        let spec = spec(&self.jobs, job);
        self.data_plane.open(&spec).map_err(|error| error.to_string())?;
        for (rank, member) in (0..).zip(&job.members) {
            let address = member.over_v4();
            self.sockets.entry(address).or_insert_with(|| socket(address));
            if !member.newcomer {
                let hello = Packet::contribution(rank, 0, 0, &[]);
                let hello = Packet {
                    kind: HELLO,
                    job: job.number,
                    epoch: job.epoch,
                    aux: member.secret,
                    ..hello
                };
                let hello = match member.key {
                    Some(key) => tagged(&hello.bytes(), key),
                    None => hello.bytes(),
                };
                match member.queue_pair {
                    Some(number) => {
                        let message = message_of(number, &hello);
                        self.exchange((address, QUEUE_PAIR), 0, &message)?;
                    }
                    None => self.exchange((address, AGGREGATOR), 0, &hello)?,
                }
            }
        }
        self.jobs.insert(job.number, (job.clone(), spec.slots.start));
        let hellos = self.received()?.len();
        let expected = job.members.iter().filter(|member| !member.newcomer).count();
        if hellos == expected {
            Ok(())
        } else {
            Err(format!("{hellos} of {expected} HELLOs came back"))
        }
    }

    fn abort(&mut self, job: u16) -> Result<(), String> {
        self.data_plane.abort(job).map_err(|error| error.to_string())
    }

    fn close(&mut self, job: u16) -> Result<(), String> {
        self.data_plane.close(job).map_err(|error| error.to_string())
    }

    fn age(&mut self, age: &Age) -> Result<(), String> {
        let index = self.jobs[&age.job].1 + u32::from(age.slot);
        self.change_slot(index, |slot| {
            for set in &mut slot.sets {
                set.head.round = set.head.round.wrapping_add(age.by);
            }
        });
        Ok(())
    }

    fn send(&mut self, port: u16, frame: &[u8]) -> Result<Option<Answer>, String> {
        let (mut from, to) = (address(frame, 26, 34), address(frame, 30, 36));
        if to != AGGREGATOR && to != QUEUE_PAIR {
            return Err(
                "a frame that is not for the aggregator cannot be sent by a socket".to_owned()
            );
        }
        self.start_all()?;
        self.exchange((from, to), frame[15], &frame[ENVELOPE_LEN..])?;
        let mut received = self.received()?;
        if to == QUEUE_PAIR {
            // Answers come to RoCEv2's port, whichever the message came from.
            from.set_port(roce::PORT);
        }
        let has_queue_pairs = |job: &Job| job.members.iter().any(|it| it.queue_pair.is_some());
        if let [(at, source, datagram), ..] = &received[..] {
            let frame = frame_of(v4(*source)?, *at, datagram);
            let packet = packet_in(&frame);
            let job = u16::from_be_bytes([packet[2], packet[3]]);
            let is_mixed = self.jobs.get(&job).is_some_and(|(job, _)| has_queue_pairs(job));
            if is_mixed && packet.get(RANK..RANK + 2) == Some(&EVERYONE) {
                return self.copies(job, received).map(Some);
            }
            if is_mixed {
                return match &received[..] {
                    [(at, ..)] if *at == from => Ok(Some(Answer::Port(port, frame))),
                    _ => Err(format!("answers {received:02x?}, not one to {from}")),
                };
            }
        }
        self.as_results(&mut received)?;
        let Some((_, source, datagram)) = received.first() else { return Ok(None) };
        if received.iter().any(|(_, other, bytes)| (other, bytes) != (source, datagram)) {
            return Err(format!("answers that differ: {received:02x?}"));
        }
        let source = v4(*source)?;
        let receivers: Vec<_> = received.iter().map(|(at, ..)| *at).collect();
        let answer = frame_of(source, receivers[0], datagram);
        if datagram.get(RANK..RANK + 2) != Some(&EVERYONE) {
            return if receivers == [from] {
                Ok(Some(Answer::Port(port, answer)))
            } else {
                Err(format!("answer to {receivers:?}"))
            };
        }
        let number = u16::from_be_bytes([datagram[2], datagram[3]]);
        let mut members: Vec<_> =
            self.jobs[&number].0.members.iter().map(Member::over_v4).collect();
        members.sort();
        if receivers == members {
            Ok(Some(Answer::Group(number, answer)))
        } else {
            Err(format!("RESULT for all to {receivers:?}"))
        }
    }

    fn counters(&mut self) -> Result<Counters, String> {
        let mut counters = by_name(&self.data_plane.counters().map_err(|error| error.to_string())?);
        *counters.get_mut("truncated").expect("such an outcome") -= self.fences;
        *counters.get_mut("not_ours").expect("such an outcome") -= self.fences_by_roce;
        Ok(counters)
    }
}

fn v4(address: SocketAddr) -> Result<SocketAddrV4, String> {
    match address {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(address) => Err(format!("an answer from {address}")),
    }
}

/// What is behind the UDP header of a message from this queue pair to the aggregator's.
fn message_of(queue_pair: u32, packet: &[u8]) -> Vec<u8> {
    let envelope = Envelope { destination_port: roce::PORT, ..Envelope::FROM_AGGREGATOR };
    message(&envelope, queue_pair, AGGREGATOR.port().into(), 0, packet).split_off(ENVELOPE_LEN)
}

/// The address and UDP port at these offsets of a frame.
fn address(frame: &[u8], ip: usize, port: usize) -> SocketAddrV4 {
    let octets: [u8; 4] = frame[ip..ip + 4].try_into().expect("four bytes");
    SocketAddrV4::new(octets.into(), u16::from_be_bytes([frame[port], frame[port + 1]]))
}

/// A frame with everything known about a received datagram.
fn frame_of(source: SocketAddrV4, destination: SocketAddrV4, datagram: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ENVELOPE_LEN];
    for (address, ip, port) in [(source, 26, 34), (destination, 30, 36)] {
        frame[ip..ip + 4].copy_from_slice(&address.ip().octets());
        frame[port..port + 2].copy_from_slice(&address.port().to_be_bytes());
    }
    frame.extend_from_slice(datagram);
    frame
}
