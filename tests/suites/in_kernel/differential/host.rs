//! The aggregator on the host: the protocol crate over vectors.

use std::cell::RefCell;
use switchml_protocol::U32;
use switchml_protocol::aggregator::Tables;
use switchml_protocol::frame::{Checksum, ENVELOPE_LEN, Envelope};
use switchml_protocol::header::{HEADER_LEN, Header};
use switchml_protocol::job::{Binding, JobEntry, MemberEntry};
use switchml_protocol::maps::{Endpoint, Event, MAX_JOBS};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::shell::{self, Hook};
use switchml_protocol::slot::Slot;
use zerocopy::FromBytes;

use crate::kernel::IFINDEX;
use crate::packet::{AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT, JOB};

pub struct Host {
    /// Whether to answer as the program at tc ingress does, instead of that in XDP.
    pub at_tc: bool,
    pub job: JobEntry,
    pub members: RefCell<Vec<MemberEntry>>,
    pub slots: RefCell<Vec<Slot>>,
    /// Whether another CPU holds all slots.
    pub busy: bool,
    /// Whether the job has a group for its RESULTs.
    pub has_group: bool,
    pub counters: [u64; Outcome::COUNT],
    pub events: Vec<Event>,
}

impl Tables for Host {
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

    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome {
        match self.slots.borrow_mut().get_mut(index as usize) {
            None => Outcome::BadSlot,
            Some(_) if self.busy => Outcome::SlotBusy,
            Some(slot) => f(slot),
        }
    }
}

/// A frame as it came in.
struct Whole(Vec<u8>);

impl Hook for Whole {
    fn frame_len(&self) -> usize {
        self.0.len()
    }

    fn ifindex(&self) -> u32 {
        IFINDEX
    }

    fn has_tag(&self) -> bool {
        false
    }

    fn word(&self, offset: usize) -> Option<[u8; 4]> {
        self.0.get(offset..offset + 4)?.try_into().ok()
    }

    fn is_local(&self, endpoint: Endpoint) -> bool {
        let served = Endpoint::served(AGGREGATOR_MAC, AGGREGATOR_IP, AGGREGATOR_PORT.into());
        [served, Endpoint::own(AGGREGATOR_IP)].contains(&endpoint)
    }
}

impl Host {
    /// Serves a frame in place, and says what becomes of it.
    pub fn run(&mut self, frame: &mut Vec<u8>) -> Outcome {
        let whole = frame.clone();
        let outcome = self.serve(frame).unwrap_or_else(|outcome| outcome);
        let outcome = if let Action::Drop | Action::Pass = outcome.action() {
            if self.at_tc {
                // A copy was served.
                *frame = whole;
            }
            outcome
        } else {
            self.answer(frame, outcome)
        };
        self.counters[outcome as usize] += 1;
        outcome
    }

    fn serve(&mut self, frame: &mut [u8]) -> Result<Outcome, Outcome> {
        let whole = frame.to_vec();
        let (envelope, rest) = Envelope::mut_from_prefix(frame).map_err(|_| Outcome::NotOurs)?;
        let (origin, payload_len) = shell::open(&Whole(whole), envelope)?;
        let (header, payload) = Header::mut_from_prefix(rest).map_err(|_| Outcome::Truncated)?;
        let (payload, _) = <[U32]>::mut_from_prefix_with_elems(payload, payload.len() / 4).unwrap();
        let mut event = None;
        let report = |this| event = Some(this);
        let outcome = shell::serve(self, &origin, header, payload, payload_len, report);
        self.events.extend(event);
        Ok(outcome)
    }

    /// Makes the frame the answer.
    fn answer(&mut self, frame: &mut Vec<u8>, outcome: Outcome) -> Outcome {
        let (envelope, rest) = Envelope::mut_from_prefix(frame).unwrap();
        let (header, _) = Header::mut_from_prefix(rest).unwrap();
        let lanes = header.payload_lanes();
        let to_all = outcome.action() == Action::Broadcast;
        if to_all && !self.has_group {
            if self.at_tc {
                // Segments have their counters, the superpacket that they are in has this one.
                self.counters[outcome as usize] += 1;
            }
            return Outcome::SendFailed;
        }
        let (group, address) = (self.job.group_at(IFINDEX), self.job.address);
        let to_group = to_all || header.is_for_group();
        if header.is_for_group() {
            header.aux.set(0);
        }
        match (self.at_tc, to_group) {
            (true, true) => envelope.send_bundle_to(&group, address, Checksum::None),
            (true, false) => envelope.turn_bundle_back(Checksum::None),
            (false, true) => envelope.send_to(&group, address, lanes),
            (false, false) => envelope.turn_back(lanes),
        }
        if !self.at_tc {
            frame.truncate(ENVELOPE_LEN + HEADER_LEN + 4 * usize::from(lanes));
        }
        outcome
    }
}
