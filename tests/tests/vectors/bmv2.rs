//! `p4/bmv2.p4` on `simple_switch` as a subject: frames come and go through veths, and the tables are filled by the daemon's data plane.

use crate::in_kernel::{PORTS, by_name};
use crate::packet::{HELLO, Packet};
use crate::raw::{ALL, RawSocket};
use crate::spec::{OpenJobs, spec};
use std::fs;
use std::time::{Duration, Instant};
use switchml_protocol::outcome::Outcome;
use switchml_rack::vectors::{Age, Answer, Counters, Job, Member, Offer, Subject};
use switchml_rack::{MAX_MTU, Mode, Namespace, Rack, RackOptions, SimpleSwitch};
use switchml_userspace::data_plane::DataPlane;
use switchml_userspace::data_plane::bmv2::Bmv2;
use switchml_userspace::data_plane::bmv2::thrift::Client;
use switchml_userspace::data_plane::p4::P4DataPlane;
use tokio::sync::mpsc;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// The register with the round of each set.
const ROUNDS: &str = "FrameIngress.aggregator.slot.tag.rounds";
/// A broadcast of nobody's protocol: behind it at every port, there is nothing left of what came before it.
const FENCE: &[u8] =
    b"\xff\xff\xff\xff\xff\xff\x02\0\0\0\xff\xff\x88\xb5 a frame to wait for, as long as it must be at least.";
/// Passes through the pipeline that a frame takes at most, each of which puts it behind what came meanwhile.
const PASSES: usize = 3;

/// `simple_switch`, and who is at its ports.
pub struct Bmv2Switch {
    data_plane: P4DataPlane,
    /// For what the data plane does not do.
    client: Client,
    /// At port n + 1.
    ports: Vec<RawSocket>,
    /// Jobs that were opened since the last reset, and their first slots.
    jobs: OpenJobs,
    fences: u64,
    // In the order in which they must end.
    _switch: SimpleSwitch,
    rack: Rack,
}

impl Bmv2Switch {
    /// Without jobs. Its ports are those of the vectors.
    pub fn new() -> Self {
        let options = RackOptions { workers: PORTS, mtu: MAX_MTU, mode: Mode::Bmv2, ..RackOptions::default() };
        let rack = Rack::new(options).expect("a rack");
        rack.workers().iter().chain([rack.switch()]).for_each(keep_quiet);
        let switch = SimpleSwitch::start(rack.switch(), &rack.ports()).expect("simple_switch");
        let (data_plane, client) =
            rack.switch().run(|| (take_over(), Client::connect(SimpleSwitch::THRIFT).expect("control")));
        let ports = rack.workers().iter().map(|worker| RawSocket::open(worker, ALL)).collect();
        Self { data_plane, client, ports, jobs: OpenJobs::new(), fences: 0, _switch: switch, rack }
    }

    /// The same switch, in the hands of another daemon: the first has ended without a word.
    pub fn taken_over(self) -> Self {
        let Self { data_plane, .. } = self;
        drop(data_plane);
        let data_plane = self.rack.switch().run(take_over);
        Self { data_plane, jobs: OpenJobs::new(), fences: 0, ..self }
    }

    fn raw_counters(&self) -> Result<[u64; Outcome::COUNT], String> {
        self.data_plane.counters().map_err(|error| error.to_string())
    }

    /// Has a frame come in by a port, and returns what leaves, by ports.
    fn exchange(&mut self, port: u16, frame: &[u8]) -> Result<Vec<(u16, Vec<u8>)>, String> {
        let before: u64 = self.raw_counters()?.iter().sum();
        self.ports[usize::from(port) - 1].send(frame);
        let begin = Instant::now();
        // A switch does not tell how long it looks at a frame: no more than until it is counted, and passed on as often as can be.
        while self.raw_counters()?.iter().sum::<u64>() == before {
            if begin.elapsed() > PATIENCE {
                return Err(format!("a frame was not counted within {PATIENCE:?}"));
            }
            std::thread::yield_now();
        }
        let mut left = Vec::new();
        for _ in 0..PASSES {
            self.ports[0].send(FENCE);
            self.fences += 1;
            for (port, socket) in (1..).zip(&self.ports) {
                collect(port, socket, &mut left)?;
            }
        }
        Ok(left)
    }

    /// Has a rank say HELLO from its place, until the switch has learned it.
    fn greet(&mut self, job: &Job, rank: u16, member: &Member) -> Result<(), String> {
        let frame = hello(job, rank, member);
        let begin = Instant::now();
        loop {
            let left = self.exchange(member.port, &frame)?;
            if left.iter().any(|(port, answer)| *port == member.port && answer[43] == HELLO) {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("the HELLO of rank {rank} did not come back within {PATIENCE:?}"));
            }
        }
    }

    /// Waits until the place of a HELLO that had the right secret is known: the data plane hears of it later.
    fn await_place(&self, frame: &[u8]) -> Result<(), String> {
        let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (job, rank) = (number(44), number(50));
        let begin = Instant::now();
        while self.data_plane.place(job, rank).map_err(|error| error.to_string())?.is_none() {
            if begin.elapsed() > PATIENCE {
                return Err(format!("the place of rank {rank} was not learned within {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The data plane of a daemon that starts.
fn take_over() -> P4DataPlane {
    let (switch, learned) = Bmv2::connect(SimpleSwitch::THRIFT).expect("control");
    let (events, _) = mpsc::channel(1);
    P4DataPlane::start(Box::new(switch), true, learned, events).expect("a data plane")
}

/// Has the kernel say nothing of its own accord.
fn keep_quiet(namespace: &Namespace) {
    namespace.run(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")).expect("a network without IPv6");
}

/// Takes in what leaves by a port, up to the fence.
fn collect(port: u16, socket: &RawSocket, left: &mut Vec<(u16, Vec<u8>)>) -> Result<(), String> {
    let mut buffer = [0; 4096];
    let begin = Instant::now();
    loop {
        match socket.receive(&mut buffer) {
            Some(FENCE) => return Ok(()),
            Some(frame) => left.push((port, frame.to_vec())),
            None if begin.elapsed() > PATIENCE => return Err(format!("port {port} is silent for {PATIENCE:?}")),
            None => {}
        }
    }
}

/// A frame as packet sockets show it: the kernel takes its outermost tag off before.
fn as_received(frame: &[u8]) -> Vec<u8> {
    match frame.get(12..14) {
        Some([0x81, 0x00] | [0x88, 0xA8]) => [&frame[..12], &frame[16..]].concat(),
        _ => frame.to_vec(),
    }
}

fn hello(job: &Job, rank: u16, member: &Member) -> Vec<u8> {
    let packet = Packet::contribution(rank, 0, 0, &[]);
    let packet = Packet { kind: HELLO, job: job.number, epoch: job.epoch, aux: member.secret, ..packet };
    let payload = packet.bytes();
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[2..4].copy_from_slice(&(28 + payload.len() as u16).to_be_bytes());
    ip[12..16].copy_from_slice(&member.address.ip().octets());
    ip[16..20].copy_from_slice(&job.aggregator.ip().octets());
    let sum: u32 = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    ip[10..12].copy_from_slice(&(!((sum & 0xFFFF) + (sum >> 16)) as u16).to_be_bytes());
    let udp = [member.address.port(), job.aggregator.port(), 8 + payload.len() as u16, 0].map(u16::to_be_bytes);
    [&job.mac[..], &member.mac, &[8, 0], &ip, udp.as_flattened(), &payload].concat()
}

impl Subject for Bmv2Switch {
    fn offer(&self) -> Offer {
        let features = ["age", "frames", "long", "max", "runts", "verify"].map(str::to_owned).to_vec();
        Offer { strict: false, lanes: 64, ranks: 32, features }
    }

    fn reset(&mut self) -> Result<(), String> {
        std::mem::take(&mut self.jobs).into_keys().try_for_each(|job| self.close(job))
    }

    fn open(&mut self, job: &Job) -> Result<(), String> {
        let spec = spec(&self.jobs, job);
        self.data_plane.open(&spec).map_err(|error| error.to_string())?;
        for (rank, member) in (0..).zip(&job.members).filter(|(_, member)| !member.newcomer) {
            self.greet(job, rank, member)?;
        }
        self.data_plane.start(job.number).map_err(|error| error.to_string())?;
        self.jobs.insert(job.number, (job.clone(), spec.slots.start));
        Ok(())
    }

    fn abort(&mut self, job: u16) -> Result<(), String> {
        self.data_plane.abort(job).map_err(|error| error.to_string())
    }

    fn close(&mut self, job: u16) -> Result<(), String> {
        self.data_plane.close(job).map_err(|error| error.to_string())
    }

    fn age(&mut self, age: &Age) -> Result<(), String> {
        let (job, first_slot) = &self.jobs[&age.job];
        let even = 2 * first_slot + u32::from(age.slot);
        for set in [even, even + job.slots] {
            let round = self.client.read_register(ROUNDS, set).map_err(|error| error.to_string())?;
            let written = self.client.write_registers(ROUNDS, set..set + 1, round.wrapping_add(age.by));
            written.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn send(&mut self, port: u16, frame: &[u8]) -> Result<Option<Answer>, String> {
        let newcomers = |counters: &[u64; Outcome::COUNT]| counters[Outcome::NoHello as usize];
        let before = newcomers(&self.raw_counters()?);
        let left = self.exchange(port, frame)?;
        if frame.get(43) == Some(&HELLO) && newcomers(&self.raw_counters()?) > before {
            self.await_place(frame)?;
        }
        let Some((first_port, answer)) = left.first() else { return Ok(None) };
        if left.iter().any(|(_, other)| other != answer) {
            return Err(format!("answers that differ: {left:02x?}"));
        }
        if *answer == as_received(frame) {
            return Ok(Some(Answer::Passed(frame.to_vec())));
        }
        let mut at: Vec<_> = left.iter().map(|(port, _)| *port).collect();
        at.sort_unstable();
        if answer[0] & 1 == 0 {
            return if at.len() == 1 {
                Ok(Some(Answer::Port(*first_port, answer.clone())))
            } else {
                Err(format!("an answer to one at ports {at:?}"))
            };
        }
        let number = u16::from_be_bytes([answer[44], answer[45]]);
        let mut ports: Vec<_> = self.jobs[&number].0.members.iter().map(|member| member.port).collect();
        ports.sort_unstable();
        ports.dedup();
        if at == ports {
            Ok(Some(Answer::Group(number, answer.clone())))
        } else {
            Err(format!("an answer to all at ports {at:?}"))
        }
    }

    fn counters(&mut self) -> Result<Counters, String> {
        let mut counters = by_name(&self.raw_counters()?);
        *counters.get_mut("not_ours").expect("such an outcome") -= self.fences;
        Ok(counters)
    }
}
