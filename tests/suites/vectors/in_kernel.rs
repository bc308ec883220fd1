//! Both programs in the kernel's own test run, as subjects. A test run shows what became of the
//! frame, and that it is redirected, not to where: to its group if the frame is addressed to one,
//! else back.

use crate::kernel::{Kernel, POOL, Run};
use crate::packet::ROOM;
use crate::spec::FIRST_SLOT;
use crate::tc_program::ENVELOPE_LEN;
use std::collections::BTreeMap;
use switchml_protocol::U16;
use switchml_protocol::fanout::Receivers;
use switchml_protocol::job::{ABORTED, Binding, JobEntry, MemberEntry, OPEN};
use switchml_protocol::maps::{LockedSlot, MAX_JOBS};
use switchml_protocol::outcome::Outcome;
use switchml_rack::vectors::{self, Age, Answer, Counters, Offer, Subject};
use zerocopy::FromZeros;

/// Ports of the vectors; port n is the rack's port n - 1.
pub const PORTS: usize = 4;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
/// Where a packet's kind and job number are in its frame.
const KIND: usize = 43;
const JOB: usize = 44;

/// Which of the programs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// That for XDP.
    Xdp,
    /// That for tc ingress, packets one by one.
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
}

impl InKernel {
    /// Without jobs; ports are those of the rack whose switch the calling thread is in.
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
        let mut kernel = Kernel::new();
        interfaces.iter().for_each(|interface| kernel.add_port(*interface));
        Self { kernel, hook, interfaces, jobs: BTreeMap::new() }
    }

    /// Runs the program for tc on a superpacket of packets of this many bytes.
    pub fn run_superpacket(&self, port: u16, frame: &[u8], segment_len: usize) -> Run {
        self.kernel.tc().run_superpacket_at(frame, segment_len, self.interface(port))
    }

    fn interface(&self, port: u16) -> u32 {
        self.interfaces[usize::from(port) - 1]
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
            Hook::Xdp => &["age", "empty", "frames", "long", "macs", "max", "runts", "verify"][..],
            // What is longer than a packet may be is not copied, so not looked into. And the kernel
            // makes no test run at tc of a frame that ends in its headers.
            Hook::Tc => &["age", "empty", "frames", "macs", "max", "verify"],
        };
        let features = features.iter().map(ToString::to_string).collect();
        Offer {
            strict: true,
            lanes: 768,
            ranks: 64,
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
        self.kernel.add_local(job.mac, job.aggregator.ip().octets(), job.aggregator.port());
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
            address: job.aggregator.ip().octets(),
            group: job.group.ip().octets(),
            group_port: U16::new(job.group.port()),
            reserved: [0; 2],
        };
        let mut bindings = Vec::new();
        for (rank, member) in (0..).zip(&job.members) {
            let binding = Binding {
                ifindex: self.interface(member.port),
                ip: member.address.ip().octets(),
                mac: member.mac,
                port: U16::new(member.address.port()),
            };
            bindings.push(binding);
            let epoch = if member.newcomer { 0 } else { job.epoch };
            self.kernel.set_member(
                job.number,
                rank,
                &MemberEntry { secret: member.secret, epoch, binding },
            );
        }
        let receivers = Receivers::new(&entry, &bindings, u64::MAX);
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
            Hook::Xdp => self.kernel.slot(index),
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
            Hook::Xdp => self.kernel.run_xdp_at(frame, interface),
            Hook::Tc => self.kernel.tc().run_at(frame, interface),
        };
        match run.verdict {
            XDP_DROP => Ok(None),
            XDP_PASS => Ok(Some(Answer::Passed(run.frame))),
            XDP_REDIRECT => {
                let answer = if self.hook == Hook::Tc { cut(run.frame, frame)? } else { run.frame };
                let is_for_group = answer[0] & 1 == 1;
                let job = u16::from_be_bytes([answer[JOB], answer[JOB + 1]]);
                Ok(Some(if is_for_group {
                    Answer::Group(job, answer)
                } else {
                    Answer::Port(port, answer)
                }))
            }
            verdict => Err(format!("verdict {verdict}")),
        }
    }

    fn counters(&mut self) -> Result<Counters, String> {
        let counters = match self.hook {
            Hook::Xdp => self.kernel.counters(),
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

/// The program for tc cannot shorten a packet: its answers are as long as what they answer, with
/// what was there behind them. This is such an answer as the specification has it, once its length
/// was found to be what was allowed to differ.
fn cut(answer: Vec<u8>, packet: &[u8]) -> Result<Vec<u8>, String> {
    let lengths_agree = answer.len() == packet.len() && number(&answer, 16) == number(packet, 16);
    if !lengths_agree
        || number(&answer, 38) + 20 != number(&answer, 16)
        || ones_complement_sum(&answer[14..34]) != 0xFFFF
    {
        return Err(format!(
            "answer with wrong lengths or IP checksum: {:02x?}",
            &answer[..ENVELOPE_LEN]
        ));
    }
    let lanes = if answer[KIND] == ROOM { 0 } else { number(&answer, 60) };
    let len = ENVELOPE_LEN + 32 + 4 * lanes;
    if answer.len() < len || answer[len..] != packet[len..] {
        return Err("what is behind the answer is not what was behind the packet".to_owned());
    }
    let mut answer = answer;
    answer.truncate(len);
    for (offset, value) in [(16, len - 14), (24, 0), (38, len - 34)] {
        answer[offset..offset + 2].copy_from_slice(&(value as u16).to_be_bytes());
    }
    let checksum = !ones_complement_sum(&answer[14..34]);
    answer[24..26].copy_from_slice(&checksum.to_be_bytes());
    Ok(answer)
}

/// The 16-bit number there.
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
