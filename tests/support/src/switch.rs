//! An aggregator in vectors: the crate's `serve` over the simplest storage there is, bytes in and
//! bytes out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use switchml_protocol::bpf_types::job::{ABORTED, Binding, JobEntry, MemberEntry, OPEN};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::packet;
use switchml_protocol::root::admission::{Members, Tables, serve};
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::auth::Key;

use crate::packet::{CONTRIBUTION, EVERYONE, HELLO, Packet, ROOM, SUM, TAGGED};

/// Number of the job under test; the numbers below it are vacant.
pub const JOB: u16 = 3;
/// Epoch that a new switch has.
pub const EPOCH: u32 = 0xE0C0_0001;
/// The job's slots begin here in the pool; slots before and behind belong to nobody.
pub const FIRST_SLOT: u32 = 2;

pub struct Switch {
    job: Cell<JobEntry>,
    members: RefCell<BTreeMap<u16, MemberEntry>>,
    pub slots: RefCell<Vec<Slot>>,
    /// Whether slots are held by someone else.
    pub busy: Cell<bool>,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub outcome: Outcome,
    pub answer: Option<Packet>,
}

impl Switch {
    /// A switch with one open job, whose ranks have not said HELLO yet. The member table is longer
    /// than the job, as in BPF maps.
    pub fn new(ranks: u32, slots: u32) -> Self {
        let job = JobEntry {
            state: OPEN,
            epoch: EPOCH,
            ranks,
            first_slot: FIRST_SLOT,
            slots,
            ..JobEntry::default()
        };
        let member = |rank| (rank, MemberEntry { secret: secret(rank), ..MemberEntry::default() });
        Self {
            job: Cell::new(job),
            members: RefCell::new((0..1024).map(member).collect()),
            slots: RefCell::new(vec![Slot::default(); (FIRST_SLOT + slots) as usize + 2]),
            busy: Cell::new(false),
        }
    }

    /// A switch whose ranks have all said HELLO.
    pub fn ready(ranks: u32, slots: u32) -> Self {
        let switch = Self::new(ranks, slots);
        switch.all_say_hello();
        switch
    }

    /// From now on the job's packets have tags.
    pub fn give_keys(&self) {
        self.job.set(JobEntry { key: Key::from_bytes(key(EVERYONE)), ..self.job.get() });
        for (rank, member) in self.members.borrow_mut().iter_mut() {
            member.key = Key::from_bytes(key(*rank));
        }
    }

    pub fn all_say_hello(&self) {
        let job = self.job.get();
        for rank in 0..job.ranks as u16 {
            let hello = Packet { epoch: job.epoch, ..hello(rank) };
            assert_eq!(self.receive(&binding(rank), &hello).outcome, Outcome::Hello);
        }
    }

    /// Begins a new session of the job.
    pub fn set_epoch(&self, epoch: u32) {
        self.job.set(JobEntry { state: OPEN, epoch, ..self.job.get() });
    }

    pub fn abort(&self) {
        self.job.set(JobEntry { state: ABORTED, ..self.job.get() });
    }

    pub fn vacate(&self) {
        self.job.set(JobEntry::default());
    }

    /// Serves a packet from where its rank lives.
    pub fn receive_from_home(&self, packet: &Packet) -> Served {
        self.receive(&binding(packet.rank), packet)
    }

    pub fn receive(&self, from: &Binding, packet: &Packet) -> Served {
        let mut bytes = packet.to_bytes();
        let outcome = self.receive_bytes(from, &mut bytes);
        let answered = matches!(outcome.action(), Action::Reply | Action::Broadcast);
        let answer = answered.then(|| {
            let Packet { kind, lanes, flags, .. } = Packet::from_bytes(&bytes);
            let lanes = if kind == ROOM { 0 } else { usize::from(lanes) };
            let tag_len = if flags & TAGGED == 0 { 0 } else { 8 };
            Packet::from_bytes(&bytes[..32 + 4 * lanes + tag_len])
        });
        Served { outcome, answer }
    }

    /// Serves a packet of at least a header, in place.
    pub fn receive_bytes(&self, from: &Binding, bytes: &mut [u8]) -> Outcome {
        serve(self, from, &mut packet::Packet::of(bytes).expect("a header"))
    }
}

impl Members for Switch {
    fn job(&self, number: u16) -> Option<JobEntry> {
        match number {
            JOB => Some(self.job.get()),
            0..JOB => Some(JobEntry::default()),
            _ => None,
        }
    }

    fn member(&self, job: u16, rank: u16) -> Option<MemberEntry> {
        assert_eq!(job, JOB);
        self.members.borrow().get(&rank).copied()
    }

    fn learn(&self, job: u16, rank: u16, epoch: u32, binding: &Binding) {
        assert_eq!(job, JOB);
        let mut members = self.members.borrow_mut();
        let member = members.get_mut(&rank).expect("a member");
        (member.epoch, member.binding) = (epoch, *binding);
    }
}

impl Tables for Switch {
    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome {
        if self.busy.get() {
            return Outcome::SlotBusy;
        }
        self.slots.borrow_mut().get_mut(index as usize).map_or(Outcome::BadSlot, f)
    }
}

/// Where a rank lives: four ranks share a host, each with a port of its own.
pub fn binding(rank: u16) -> Binding {
    let low = (rank / 4) as u8;
    Binding {
        ifindex: 10 + u32::from(low),
        ip: [10, 0, 0, low].into(),
        mac: [2, 0, 0, 0, 0, low],
        port: rank.wrapping_add(5000).into(),
        ..Binding::default()
    }
}

/// What a rank's HELLO carries.
pub fn secret(rank: u16) -> u32 {
    0x5EC2_0000 + u32::from(rank)
}

/// The key of a rank, or the job's for everyone.
pub fn key(rank: u16) -> [u8; 16] {
    let [high, low] = rank.to_be_bytes();
    [0x5E, 0xC2, high, low, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0xFF]
}

/// A rank's HELLO, with 32 lanes.
pub fn hello(rank: u16) -> Packet {
    let payload: Vec<u32> = (0..32).collect();
    Packet {
        kind: HELLO,
        aux: secret(rank),
        flags: 0,
        check: 0,
        ..contribution(rank, 0, 0, payload)
    }
}

/// A rank's contribution, checked.
pub fn contribution(rank: u16, slot: u16, round: u32, payload: Vec<u32>) -> Packet {
    let packet = Packet {
        version: 1,
        kind: CONTRIBUTION,
        job: JOB,
        epoch: EPOCH,
        rank,
        slot,
        round,
        op: SUM,
        flags: 0,
        lanes: 0,
        fingerprint: 0xF00D_0001,
        check: 0,
        aux: 0xA000_0000 + u32::from(rank),
        payload,
        tag: None,
    };
    packet.sealed()
}
