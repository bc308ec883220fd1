//! Both programs in the kernel's own test run, as subjects. A test run shows the resulting frame,
//! and that it is redirected, but not where to. This assumes: to all ports if it is for everyone,
//! otherwise back.

use crate::spec::{FIRST_SLOT, key};
use std::collections::BTreeMap;
use switchml_protocol::bpf_types::fanout::{Receivers, direct};
use switchml_protocol::bpf_types::job::{ABORTED, Binding, JobEntry, MemberEntry, OPEN};
use switchml_protocol::bpf_types::maps::MAX_JOBS;
use switchml_protocol::node::frame::TAG_LEN;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::root::slot::LockedSlot;
use switchml_protocol::{MAX_RANKS, U16};
use switchml_rack::vectors::{self, Age, Answer, Counters, Offer, Subject, headers_len, packet_in};
use switchml_test_support::frame::{ROOM, TAGGED};
use switchml_test_support::kernel::{Kernel, POOL, Run};
use zerocopy::FromZeros;

/// Ports of the vectors; port n is the rack's port n - 1.
pub const PORTS: usize = 4;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
/// Offsets of a packet's kind, job number, rank, flags and lanes.
const KIND: usize = 1;
const JOB: usize = 2;
const RANK: usize = 8;
const FLAGS: usize = 17;
const LANES: usize = 18;

/// One of the two programs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// The program for XDP.
    Xdp,
    /// The same, which also takes messages of RoCEv2.
    XdpWithRoce,
    /// The program for tc ingress, with packets one by one.
    Tc,
}

/// A program and its maps.
pub struct InKernel {
    kernel: Kernel,
    hook: Hook,
    /// Interfaces of the ports.
    interfaces: Vec<u32>,
    /// Jobs that were ever opened; they keep their slots.
    jobs: BTreeMap<u16, JobEntry>,
    /// The MACs of the jobs' first ranks.
    first: BTreeMap<u16, [u8; 6]>,
}

impl InKernel {
    /// A subject without jobs; its ports are those of the rack whose switch the calling thread is
    /// in.
    pub fn new(hook: Hook) -> Self {
        let index = |port| {
            let path = format!("/sys/class/net/p{port}/ifindex");
            std::fs::read_to_string(path)
                .expect("a port of the rack")
                .trim()
                .parse()
                .expect("an index")
        };
        let interfaces: Vec<u32> = (0..PORTS).map(index).collect();
        let mut kernel = match hook {
            Hook::XdpWithRoce => Kernel::with_roce(),
            Hook::Xdp | Hook::Tc => Kernel::of_root(),
        };
        interfaces.iter().for_each(|interface| kernel.add_port(*interface));
        Self { kernel, hook, interfaces, jobs: BTreeMap::new(), first: BTreeMap::new() }
    }

    /// Runs the program for tc on a superpacket of packets of this many bytes.
    pub fn run_superpacket(&self, port: u16, frame: &[u8], segment_len: usize) -> Run {
        self.kernel.tc().run_superpacket_at(frame, segment_len, self.interface(port))
    }

    fn interface(&self, port: u16) -> u32 {
        self.interfaces[usize::from(port) - 1]
    }

    /// Adds the destination to an answer: the port through which the packet came in, or all ports.
    fn addressed(&self, port: u16, mut answer: Vec<u8>) -> Answer {
        let tag = if answer[12..14] == [0x81, 0x00] { TAG_LEN } else { 0 };
        let packet =
            if tag > 0 { &answer[headers_len(&answer) + tag..] } else { packet_in(&answer) };
        if packet[RANK..RANK + 2] != [0xFF; 2] {
            return Answer::Port(port, answer);
        }
        let job = u16::from_be_bytes([packet[JOB], packet[JOB + 1]]);
        if answer[..6] == [0; 6] {
            // In XDP another program fills in the addresses of copies.
            answer[..6].copy_from_slice(&self.first[&job]);
        }
        Answer::Group(job, answer)
    }

    fn set_state(&mut self, number: u16, state: u32) {
        let job = self.jobs.get_mut(&number).expect("an open job");
        job.state = state;
        self.kernel.set_job(number, job);
    }
}

impl Subject for InKernel {
    fn offer(&self) -> Offer {
        let features = match self.hook {
            Hook::Xdp | Hook::XdpWithRoce => &[
                "age",
                "audiences",
                "empty",
                "frames",
                "group",
                "ipv6",
                "keys",
                "long",
                "macs",
                "max",
                "partial",
                "runts",
                "tags",
                "verify",
            ][..],
            // tc does not copy, and so not inspect, what is longer than a packet may be. And at tc
            // the kernel makes no test run of a frame that ends after its headers, or of one whose
            // tag was taken off.
            Hook::Tc => &[
                "age",
                "audiences",
                "empty",
                "frames",
                "group",
                "ipv6",
                "keys",
                "macs",
                "max",
                "partial",
                "verify",
            ],
        };
        let roce = (self.hook == Hook::XdpWithRoce).then_some(&"roce");
        let features = features.iter().chain(roce).map(ToString::to_string).collect();
        Offer {
            strict: true,
            lanes: 768,
            ranks: MAX_RANKS as u16,
            jobs: MAX_JOBS as u16,
            slots: POOL - FIRST_SLOT,
            features,
        }
    }

    fn reset(&mut self) -> Result<(), String> {
        for (number, job) in std::mem::take(&mut self.jobs) {
            self.kernel.set_job(number, &JobEntry::default());
            for index in job.first_slot..job.first_slot + job.slots {
                self.kernel.set_slot(index, &LockedSlot::new_zeroed());
            }
        }
        Ok(())
    }

    fn open(&mut self, job: &vectors::Job) -> Result<(), String> {
        self.kernel.add_local(job.mac, job.aggregator.ip(), job.aggregator.port());
        let first_slot = match self.jobs.get(&job.number) {
            Some(earlier) => earlier.first_slot,
            None => self
                .jobs
                .values()
                .map(|other| other.first_slot + other.slots)
                .max()
                .unwrap_or(FIRST_SLOT),
        };
        let entry = JobEntry {
            state: OPEN,
            epoch: job.epoch,
            ranks: job.members.len() as u32,
            first_slot,
            slots: job.slots,
            address: job.aggregator.ip().into(),
            group: job.group.map_or([0; 4], |group| group.ip().octets()),
            group_port: U16::new(job.group.map_or(0, |group| group.port())),
            reserved: [0; 6],
            key: key(job.key),
        };
        let mut bindings = Vec::new();
        for (rank, member) in (0..).zip(&job.members) {
            let binding = Binding {
                ifindex: self.interface(member.port),
                ip: member.address.ip().into(),
                mac: member.mac,
                port: U16::new(member.address.port()),
                ..Binding::default()
            };
            let binding = match member.queue_pair {
                Some(number) => binding.at_queue_pair(number),
                None => binding,
            };
            bindings.push(binding);
            let epoch = if member.newcomer { 0 } else { job.epoch };
            self.kernel.set_member(
                job.number,
                rank,
                &MemberEntry { secret: member.secret, epoch, binding, key: key(member.key) },
            );
        }
        // A test run shows the last copy at tc, and the first in XDP: the copy of rank 0.
        if self.hook == Hook::Tc {
            bindings.reverse();
        }
        let by_group = if job.group.is_some() { Ranks::ALL } else { Ranks::NONE };
        let receivers = Receivers::new(&entry, job.number, direct(&bindings, &by_group));
        self.first.insert(job.number, job.members[0].mac);
        let mut receivers = receivers.expect("few places");
        // With this, the copy that it shows has lanes if all ports need them.
        receivers.ranks.fill(u64::MAX);
        self.kernel.set_receivers(job.number, receivers);
        self.kernel.set_job(job.number, &entry);
        self.jobs.insert(job.number, entry);
        Ok(())
    }

    fn abort(&mut self, job: u16) -> Result<(), String> {
        self.set_state(job, ABORTED);
        Ok(())
    }

    fn close(&mut self, job: u16) -> Result<(), String> {
        self.kernel.set_job(job, &JobEntry::default());
        Ok(())
    }

    fn age(&mut self, age: &Age) -> Result<(), String> {
        let index = self.jobs[&age.job].first_slot + u32::from(age.slot);
        let mut element = match self.hook {
            Hook::Xdp | Hook::XdpWithRoce => self.kernel.slot(index),
            Hook::Tc => self.kernel.tc().slot(index),
        };
        for set in &mut element.slot.sets {
            set.head.round = set.head.round.wrapping_add(age.by);
        }
        self.kernel.set_slot(index, &element);
        Ok(())
    }

    fn send(&mut self, port: u16, frame: &[u8]) -> Result<Option<Answer>, String> {
        let interface = self.interface(port);
        let run = match self.hook {
            Hook::Xdp | Hook::XdpWithRoce => self.kernel.run_xdp_at(frame, interface),
            Hook::Tc => self.kernel.tc().run_at(frame, interface),
        };
        match run.verdict {
            XDP_DROP => Ok(None),
            XDP_PASS => Ok(Some(Answer::Passed(run.frame))),
            XDP_REDIRECT => {
                let answer = if self.hook == Hook::Tc { cut(run.frame, frame)? } else { run.frame };
                Ok(Some(self.addressed(port, answer)))
            }
            verdict => Err(format!("verdict {verdict}")),
        }
    }

    fn counters(&mut self) -> Result<Counters, String> {
        let counters = match self.hook {
            Hook::Xdp | Hook::XdpWithRoce => self.kernel.counters(),
            Hook::Tc => self.kernel.tc().counters(),
        };
        Ok(by_name(&counters))
    }
}

/// Counters by the names of outcomes.
pub fn by_name(counters: &[u64; Outcome::COUNT]) -> Counters {
    Outcome::ALL
        .iter()
        .map(|outcome| (outcome.name().to_owned(), counters[*outcome as usize]))
        .collect()
}

/// Cuts an answer at tc to the length that the specification gives it. The program for tc cannot
/// shorten a packet: its answers are as long as the packet that they answer, with that packet's
/// bytes behind them. Fails if anything else differs.
fn cut(mut answer: Vec<u8>, packet: &[u8]) -> Result<Vec<u8>, String> {
    let headers = headers_len(&answer);
    // The packet's padding stays behind the answer.
    let end = if headers == 62 { 54 + number(packet, 18) } else { 14 + number(packet, 16) };
    if answer.len() != packet.len() || !is_whole(&answer[..end]) {
        let shown = &answer[..headers];
        return Err(format!("answer with wrong lengths or checksums: {shown:02x?}"));
    }
    let lanes = match answer[headers + KIND] {
        ROOM => 0,
        _ => number(&answer, headers + LANES),
    };
    let tag_len = if answer[headers + FLAGS] & TAGGED != 0 { 8 } else { 0 };
    let len = headers + 32 + 4 * lanes + tag_len;
    if answer.len() < len || answer[len..] != packet[len..] {
        return Err("what is behind the answer is not what was behind the packet".to_owned());
    }
    answer.truncate(len);
    fix_lengths(&mut answer);
    Ok(answer)
}

/// Whether the lengths in a frame's headers and the checksums are right.
fn is_whole(frame: &[u8]) -> bool {
    let mut whole = frame.to_vec();
    fix_lengths(&mut whole);
    whole == frame
}

/// Writes the lengths and checksums that fit a frame: IP's checksum over IPv4, UDP's over IPv6.
fn fix_lengths(frame: &mut [u8]) {
    let udp = headers_len(frame) - 8;
    let udp_len = frame.len() - udp;
    set_number(frame, udp + 4, udp_len);
    if udp == 34 {
        set_number(frame, 16, 20 + udp_len);
        set_number(frame, 24, 0);
        let checksum = !ones_complement_sum(&frame[14..34]);
        set_number(frame, 24, checksum.into());
    } else {
        set_number(frame, 18, udp_len);
        set_number(frame, udp + 6, 0);
        let pseudo_header = [&frame[22..54], &(udp_len as u32).to_be_bytes(), &[0, 0, 0, 17]];
        let sum = ones_complement_sum(&[&pseudo_header.concat(), &frame[udp..]].concat());
        set_number(frame, udp + 6, if sum == 0xFFFF { 0xFFFF } else { (!sum).into() });
    }
}

fn set_number(frame: &mut [u8], offset: usize, value: usize) {
    frame[offset..offset + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

/// The 16-bit number at an offset.
pub fn number(frame: &[u8], offset: usize) -> usize {
    usize::from(frame[offset]) << 8 | usize::from(frame[offset + 1])
}

/// RFC 1071.
pub fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let mut sum: usize = (0..bytes.len()).step_by(2).map(|offset| number(bytes, offset)).sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}
