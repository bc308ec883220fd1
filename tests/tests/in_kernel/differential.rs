//! One random trace, legal, hostile and malformed, through the kernel and through the protocol crate on the host: the same
//! actions, bytes, slots and counters.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::cell::RefCell;
use switchml_protocol::U32;
use switchml_protocol::aggregator::{self, Tables};
use switchml_protocol::frame::{ENVELOPE_LEN, Envelope};
use switchml_protocol::header::{HEADER_LEN, Header, flags};
use switchml_protocol::job::{ABORTED, Job, Member, OPEN, Place};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::slot::Slot;
use switchml_rack::can_build_racks;
use zerocopy::FromBytes;

use crate::kernel::{IFINDEX, Kernel, POOL, job, member};
use crate::packet::{AGGREGATOR_IP, AGGREGATOR_PORT, CE, CHECKED, EPOCH, JOB, Packet, RETRANSMIT, fix_ip_checksum};

const PACKETS: usize = 20_000;
const RANKS: u16 = 3;
/// Few, so that packets meet in them.
const SLOTS: u16 = 2;

/// The aggregator on the host.
struct Host {
    job: Job,
    members: RefCell<Vec<Member>>,
    slots: RefCell<Vec<Slot>>,
    counters: [u64; Outcome::COUNT],
}

impl Tables for Host {
    fn job(&self, number: u16) -> Option<Job> {
        if number == JOB { Some(self.job) } else { (number < 256).then(Job::default) }
    }

    fn member(&self, _: u16, rank: u16) -> Option<Member> {
        self.members.borrow().get(usize::from(rank)).copied()
    }

    fn learn(&self, _: u16, rank: u16, epoch: u32, place: &Place) {
        let member = &mut self.members.borrow_mut()[usize::from(rank)];
        (member.epoch, member.place) = (epoch, *place);
    }

    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome {
        self.slots.borrow_mut().get_mut(index as usize).map_or(Outcome::BadSlot, f)
    }
}

impl Host {
    /// Serves a frame in place, and says what becomes of it.
    fn run(&mut self, frame: &mut Vec<u8>) -> Outcome {
        let outcome = self.serve(frame).unwrap_or_else(|outcome| outcome);
        self.counters[outcome as usize] += 1;
        if let Action::Reply | Action::Broadcast = outcome.action() {
            let (envelope, rest) = Envelope::mut_from_prefix(frame).unwrap();
            let (header, _) = Header::ref_from_prefix(rest).unwrap();
            let lanes = header.lanes.get();
            if outcome.action() == Action::Reply {
                envelope.turn_back(lanes);
            } else {
                envelope.send_to_group(&self.job, lanes);
            }
            frame.truncate(ENVELOPE_LEN + HEADER_LEN + 4 * usize::from(lanes));
        }
        outcome
    }

    fn serve(&self, frame: &mut [u8]) -> Result<Outcome, Outcome> {
        let frame_len = frame.len();
        let (envelope, rest) = Envelope::mut_from_prefix(frame).map_err(|_| Outcome::NotOurs)?;
        envelope.is_udp()?;
        if (envelope.destination, envelope.destination_port.get()) != (AGGREGATOR_IP, AGGREGATOR_PORT) {
            return Err(Outcome::NotOurs);
        }
        let payload_len = envelope.payload_len(frame_len)?;
        let (header, payload) = Header::mut_from_prefix(rest).map_err(|_| Outcome::Truncated)?;
        if envelope.congestion_experienced() {
            header.flags |= flags::CE;
        }
        let (payload, _) = <[U32]>::mut_from_prefix_with_elems(payload, payload.len() / 4).unwrap();
        Ok(aggregator::serve(self, &envelope.place(IFINDEX), header, payload, payload_len))
    }
}

/// What the packets' senders believe, so that many of their packets are right.
struct Senders {
    random: StdRng,
    epoch: u32,
    rounds: [u32; SLOTS as usize],
    sent: Vec<Vec<u8>>,
}

impl Senders {
    fn next(&mut self) -> Vec<u8> {
        if !self.sent.is_empty() && self.random.random_ratio(1, 12) {
            return self.sent.choose(&mut self.random).unwrap().clone();
        }
        let packet = self.packet();
        let mut envelope = packet.request();
        envelope.tos = if self.random.random_ratio(1, 20) { self.random.random() } else { 0 };
        let mut frame = envelope.bytes(&packet.bytes());
        if self.random.random_ratio(1, 8) {
            self.damage(&mut frame);
        }
        if self.random.random_ratio(1, 16) {
            frame.resize(frame.len() + self.random.random_range(1..200), 0xEE);
        }
        self.sent.push(frame.clone());
        frame
    }

    fn packet(&mut self) -> Packet {
        let slot = self.random.random_range(0..SLOTS);
        let stranger = self.random.random_ratio(1, 50);
        let rank = if stranger { RANKS } else { self.random.random_range(0..RANKS) };
        let round = self.rounds[usize::from(slot)];
        let round = match self.random.random_range(0..40) {
            0 => round.wrapping_sub(1),
            1 => round.wrapping_sub(2),
            2 => round.wrapping_add(1),
            3 => round.wrapping_add(2),
            4 => self.random.random(),
            _ => round,
        };
        if self.random.random_ratio(1, 40) {
            let lanes = 32 * self.random.random_range(0..=24);
            return Packet { epoch: self.epoch, ..Packet::hello(rank, lanes) };
        }
        // Size and operator belong to the round, so that its ranks agree.
        let blocks = [1, 2, 11, 24][(round % 4) as usize];
        let op = [0x00, 0x01, 0x10, 0x11][(round / 4 % 4) as usize];
        let mut values = vec![0; 32 * blocks];
        self.random.fill(&mut values[..]);
        let mut packet = Packet { op, epoch: self.epoch, ..Packet::contribution(rank, slot, round, &values) };
        packet.flags = match self.random.random_range(0..20) {
            0 => 0,
            1 => CHECKED | CE,
            2 => CHECKED | RETRANSMIT,
            3 => self.random.random(),
            _ => CHECKED,
        };
        match self.random.random_range(0..400) {
            0 => packet.op = self.random.random(),
            1 => packet.fingerprint = self.random.random(),
            2 => packet.values.truncate(32),
            3 => packet.epoch = self.random.random(),
            4 => packet.job = self.random.random(),
            5 => packet.slot = self.random.random_range(0..SLOTS + 2),
            6 => packet.kind = self.random.random_range(0..8),
            7 => packet.lanes = Some(self.random.random()),
            8 => packet.check = Some(self.random.random()),
            9 => packet.aux = self.random.random(),
            _ => {}
        }
        packet
    }

    fn damage(&mut self, frame: &mut Vec<u8>) {
        match self.random.random_range(0..10) {
            0 => frame.truncate(self.random.random_range(14..=frame.len())),
            1 => {
                // All layers agree on a length that is not the lanes'.
                let payload = self.random.random_range(0..frame.len() - 42);
                frame.truncate(42 + payload);
                frame[16..18].copy_from_slice(&(28 + payload as u16).to_be_bytes());
                frame[38..40].copy_from_slice(&(8 + payload as u16).to_be_bytes());
                fix_ip_checksum(&mut frame[14..]);
            }
            2 => self.random.fill(&mut frame[14..74]),
            3 => {
                let byte = self.random.random_range(0..42);
                frame[byte] = self.random.random();
                fix_ip_checksum(&mut frame[14..]);
            }
            4 => {
                let types = [[0x81, 0x00], [0x88, 0xA8], [0x86, 0xDD], [0x08, 0x06]];
                frame[12..14].copy_from_slice(types.choose(&mut self.random).unwrap());
            }
            5 => {
                // Options, a fragment.
                let (byte, value) = *[(14, 0x46), (20, 0x20), (21, 0xB9)].choose(&mut self.random).unwrap();
                frame[byte] = value;
                fix_ip_checksum(&mut frame[14..]);
            }
            6 => {
                let byte = self.random.random_range(42..74);
                frame[byte] ^= 1 << self.random.random_range(0..8);
            }
            _ => {
                let byte = self.random.random_range(0..frame.len());
                frame[byte] ^= 1 << self.random.random_range(0..8);
            }
        }
    }
}

fn verdict(outcome: Outcome) -> u32 {
    match outcome.action() {
        Action::Drop => 1,
        Action::Pass => 2,
        Action::Reply | Action::Broadcast => 4,
    }
}

fn play(seed: u64) -> [u64; Outcome::COUNT] {
    let mut kernel = Kernel::with_job(u32::from(RANKS));
    let job = Job { slots: u32::from(SLOTS), ..job(u32::from(RANKS)) };
    let members: Vec<Member> = (0..RANKS).map(member).collect();
    let mut host = Host {
        job,
        members: RefCell::new(members),
        slots: RefCell::new(vec![Slot::default(); POOL as usize]),
        counters: [0; Outcome::COUNT],
    };
    let random = StdRng::seed_from_u64(seed);
    let mut senders = Senders { random, epoch: EPOCH, rounds: [0; SLOTS as usize], sent: Vec::new() };
    for number in 0..PACKETS {
        // Poisoned slots end an epoch; so does the control plane, when it likes to.
        if number % 400 == 0 {
            let state = if senders.random.random_ratio(1, 20) { ABORTED } else { OPEN };
            senders.epoch = if number == 0 { EPOCH } else { senders.epoch.wrapping_add(1) };
            host.job = Job { epoch: senders.epoch, state, ..job };
            kernel.set_job(JOB, &host.job);
            senders.rounds = [0; SLOTS as usize];
            senders.sent.clear();
            for rank in 0..RANKS {
                // One that has to say HELLO first.
                let epoch = if senders.random.random_ratio(1, 4) { 0 } else { senders.epoch };
                let member = Member { epoch, ..member(rank) };
                host.members.borrow_mut()[usize::from(rank)] = member;
                kernel.set_member(JOB, rank, &member);
            }
        }
        let frame = senders.next();
        let run = kernel.run(&frame);
        let mut expected = frame.clone();
        let outcome = host.run(&mut expected);
        let context = || format!("seed {seed}, packet {number}: {outcome:?} of {frame:02x?}");
        assert_eq!(run.verdict, verdict(outcome), "{}", context());
        assert_eq!(run.frame, expected, "{}", context());
        for slot in 0..SLOTS {
            let index = (job.first_slot + u32::from(slot)) as usize;
            let element = kernel.slot(index as u32);
            assert_eq!(element.lock, 0, "{}", context());
            assert!(element.slot == host.slots.borrow()[index], "slot {slot} after {}", context());
        }
        if outcome == Outcome::Completed {
            let (header, _) = Header::ref_from_prefix(&expected[ENVELOPE_LEN..]).unwrap();
            let round = &mut senders.rounds[usize::from(header.slot.get())];
            *round = header.round.get().wrapping_add(1);
        }
    }
    assert_eq!(kernel.counters(), host.counters, "seed {seed}");
    for index in 0..POOL {
        assert!(kernel.slot(index).slot == host.slots.borrow()[index as usize], "slot {index}, seed {seed}");
    }
    for rank in 0..RANKS {
        assert_eq!(kernel.member(JOB, rank), host.members.borrow()[usize::from(rank)]);
    }
    host.counters
}

#[test]
fn kernel_and_host_agree_on_a_random_trace() {
    if !can_build_racks("kernel_and_host_agree_on_a_random_trace") {
        return;
    }
    let counters = play(0x5EED);
    // The trace is worth something only if it gets everywhere. Nothing locks a slot for long, and the group is there.
    let unreachable = [Outcome::SlotBusy, Outcome::SendFailed];
    for outcome in Outcome::ALL {
        let count = counters[*outcome as usize];
        println!("{count:6} {}", outcome.name());
        assert!(count > 0 || unreachable.contains(outcome), "the trace has no {}", outcome.name());
    }
}
