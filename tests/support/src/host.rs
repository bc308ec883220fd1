//! The aggregator on the host: the protocol crate over vectors.

use std::cell::RefCell;
use switchml_protocol::U32;
use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry};
use switchml_protocol::bpf_types::maps::{Endpoint, Event, MAX_JOBS};
use switchml_protocol::node::frame::{
    Checksum, ETHERNET_LEN, Envelope, Ipv4, Ipv6, Network, TAG_LEN, Tag, sum_of_done, sum_of_packet,
};
use switchml_protocol::node::ingress::{self, Hook};
use switchml_protocol::node::{self, Medium, Served, Target};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::packet::Packet;
use switchml_protocol::root::admission::{Members, Tables};
use switchml_protocol::root::done::Done;
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::header::{HEADER_LEN, Header};
use zerocopy::FromBytes;

use crate::frame::IFINDEX;
use crate::frame::{AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT, JOB, v6};

/// Bytes before a tag.
const MACS: usize = 12;
const UDP_LEN: usize = 8;

pub struct Host {
    /// Whether to answer like the program at tc ingress instead of the one in XDP.
    pub at_tc: bool,
    pub job: JobEntry,
    pub members: RefCell<Vec<MemberEntry>>,
    pub slots: RefCell<Vec<Slot>>,
    /// Whether another CPU holds all slots.
    pub busy: bool,
    /// Whether the job has a group for its RESULTs.
    pub has_group: bool,
    pub counters: [u64; Outcome::COUNT],
    pub events: RefCell<Vec<Event>>,
}

impl Members for Host {
    fn job(&self, number: u16) -> Option<JobEntry> {
        if number == JOB {
            Some(self.job)
        } else {
            (usize::from(number) < MAX_JOBS).then(JobEntry::default)
        }
    }

    fn member(&self, _: u16, rank: u16) -> Option<MemberEntry> {
        self.members.borrow().get(usize::from(rank)).copied()
    }

    fn learn(&self, _: u16, rank: u16, epoch: u32, binding: &Binding) {
        let member = &mut self.members.borrow_mut()[usize::from(rank)];
        (member.epoch, member.binding) = (epoch, *binding);
    }
}

impl Tables for Host {
    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome {
        match self.slots.borrow_mut().get_mut(index as usize) {
            None => Outcome::BadSlot,
            Some(_) if self.busy => Outcome::SlotBusy,
            Some(slot) => f(slot),
        }
    }
}

impl Medium for Host {
    fn has_groups(&self) -> bool {
        true
    }

    fn report(&self, event: Event) {
        self.events.borrow_mut().push(event);
    }
}

/// A frame as it came in, and the tag that was taken off it.
struct Whole(Vec<u8>, Tag);

impl Hook for Whole {
    fn frame_len(&self) -> usize {
        self.0.len()
    }

    fn ifindex(&self) -> u32 {
        IFINDEX
    }

    fn tag(&self) -> Tag {
        self.1
    }

    fn word(&self, offset: usize) -> Option<[u8; 4]> {
        self.0.get(offset..offset + 4)?.try_into().ok()
    }

    fn is_local(&self, endpoint: Endpoint) -> bool {
        [AGGREGATOR_IP.into(), v6(AGGREGATOR_IP).into()].into_iter().any(|ip| {
            let served = Endpoint::served(AGGREGATOR_MAC, ip, AGGREGATOR_PORT.into());
            [served, Endpoint::own(ip)].contains(&endpoint)
        })
    }
}

impl Host {
    /// Serves a frame in place, and returns its outcome.
    pub fn run(&mut self, frame: &mut Vec<u8>) -> Outcome {
        let tagged = usize::from(!self.at_tc && is_tagged(frame));
        let ethertype = MACS + tagged * TAG_LEN..ETHERNET_LEN + tagged * TAG_LEN;
        if frame.get(ethertype) == Some(&Ipv6::ETHERTYPE.to_be_bytes()) {
            self.run_over::<Ipv6>(frame)
        } else {
            self.run_over::<Ipv4>(frame)
        }
    }

    fn run_over<N: Network>(&mut self, frame: &mut Vec<u8>) -> Outcome {
        let whole = frame.clone();
        let tag = self.take_tag(frame);
        let served = self.serve::<N>(frame, tag_of(&tag)).unwrap_or_else(Served::unanswered);
        let outcome = if let Target::Nobody | Target::Host = served.target {
            if self.at_tc {
                // A copy was served.
                *frame = whole;
            }
            served.outcome
        } else {
            self.answer::<N>(frame, served)
        };
        if outcome.action() != Action::Drop && !tag.is_empty() {
            frame.splice(MACS..MACS, tag);
        }
        self.counters[outcome as usize] += 1;
        outcome
    }

    /// Takes off the first tag, as the program does in XDP. At tc the kernel does that, except in
    /// test runs.
    fn take_tag(&self, frame: &mut Vec<u8>) -> Vec<u8> {
        if self.at_tc || !is_tagged(frame) {
            return Vec::new();
        }
        frame.drain(MACS..MACS + TAG_LEN).collect()
    }

    fn serve<N: Network>(&self, frame: &mut [u8], tag: Tag) -> Result<Served, Outcome> {
        let whole = frame.to_vec();
        let (envelope, rest) =
            Envelope::<N>::mut_from_prefix(frame).map_err(|_| Outcome::NotOurs)?;
        let (origin, payload_len) = ingress::open(&Whole(whole, tag), envelope)?;
        let packet = Packet::of(rest).ok_or(Outcome::Truncated)?;
        Ok(node::serve(self, self, &origin, &mut Packet { len: payload_len, ..packet }))
    }

    /// Makes the frame the answer.
    fn answer<N: Network>(&mut self, frame: &mut Vec<u8>, served: Served) -> Outcome {
        let Served { outcome, target } = served;
        let (envelope, rest) = Envelope::<N>::mut_from_prefix(frame).unwrap();
        let (header, payload) = Header::mut_from_prefix(rest).unwrap();
        let lanes = header.payload_lanes();
        let to_all = target == Target::All;
        if to_all && !self.has_group {
            if self.at_tc {
                // Segments have their counters, the superpacket that they are in has this one.
                self.counters[outcome as usize] += 1;
            }
            return Outcome::SendFailed;
        }
        let (group, address) = (self.job.group_at(IFINDEX), self.job.address);
        let to_group = to_all || target == Target::SendersGroup;
        // The kernel has one place, that of rank 0.
        let done = Done::of(header).filter(|done| self.at_tc && to_all && done.is_for(1));
        if let Some(mut done) = done {
            let lane = done.add(header).unwrap();
            *header = done.header();
            payload[..4].copy_from_slice(&lane.to_be_bytes());
            let sum = sum_of_done(header, (lane >> 16) + (lane & 0xFFFF));
            envelope.send_instead(&group, address, 1, Checksum::Whole, sum);
            frame.truncate(Envelope::<N>::LEN + HEADER_LEN + 4);
            return outcome;
        }
        let (payload, _) = <[U32]>::mut_from_prefix_with_elems(payload, payload.len() / 4).unwrap();
        // At tc an answer is as long as the packet that it answers.
        let rest = usize::from(envelope.udp_len.get()) - UDP_LEN - HEADER_LEN;
        let summed = if self.at_tc { (rest - header.tag_len()) / 4 } else { lanes.into() };
        let sum = sum_of_packet(header, payload, summed).unwrap();
        let lanes = lanes + header.tag_len() as u16 / 4;
        match (self.at_tc, to_group) {
            (true, true) => envelope.send_bundle_to(&group, address, Checksum::Whole, sum),
            (true, false) => {
                let (sender, own) = (envelope.binding(IFINDEX, 0), envelope.ip.destination());
                envelope.send_bundle_to(&sender, own, Checksum::Whole, sum);
            }
            (false, true) => envelope.send_to(&group, address, lanes, sum),
            (false, false) => envelope.turn_back(lanes, sum),
        }
        if !self.at_tc {
            frame.truncate(Envelope::<N>::LEN + HEADER_LEN + 4 * usize::from(lanes));
        }
        outcome
    }
}

/// Whether an 802.1Q tag comes first.
fn is_tagged(frame: &[u8]) -> bool {
    frame.len() >= MACS + TAG_LEN + 2 && frame[MACS..MACS + 2] == [0x81, 0]
}

/// The tag in some bytes, if there are any.
fn tag_of(bytes: &[u8]) -> Tag {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    if bytes.is_empty() { Tag::NONE } else { Tag::new(word(0), word(2)) }
}
