//! The protocol crate's combiner, as a subject. This file handles envelopes and ports itself, in
//! the shortest way.

use std::cell::RefCell;
use std::collections::BTreeMap;
use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry, OPEN};
use switchml_protocol::combiner::admission::Cells;
use switchml_protocol::combiner::cell::{self, Cell};
use switchml_protocol::node::egress::{self, Copies, Hop};
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::node::{self, Served, Target};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::packet::Packet;
use switchml_protocol::root::admission::Members;
use switchml_protocol::wire::auth::Key;
use switchml_protocol::wire::header::Header;
use switchml_protocol::wire::ip::Ip;
use switchml_protocol::{DATA_PORT, RANKS_PER_GROUP, U16};
use switchml_rack::vectors::{Age, Answer, Counters, Job, Layer, Offer, Parent, Subject};
use zerocopy::FromBytes;

use crate::in_kernel::by_name;

const ENVELOPE_LEN: usize = 42;
const PATIENCE: u32 = 100;

/// A combiner of one cell.
#[derive(Default)]
pub struct Combiner {
    jobs: BTreeMap<u16, Open>,
    cell: RefCell<Cell>,
    counters: RefCell<BTreeMap<u8, u64>>,
    now: u32,
}

struct Open {
    entry: JobEntry,
    parent: Parent,
    members: RefCell<BTreeMap<u16, MemberEntry>>,
}

/// The source and destination of a frame's packet.
struct Envelope {
    from: Binding,
    to: [u8; 4],
    port: u16,
}

impl Envelope {
    fn of(frame: &[u8], ifindex: u16) -> Self {
        let bytes = |at: usize| [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let mac = frame[6..12].try_into().expect("six bytes");
        let from = Binding {
            ifindex: ifindex.into(),
            ip: bytes(26).into(),
            mac,
            port: U16::new(port(34)),
            ..Binding::default()
        };
        Self { from, to: bytes(30), port: port(36) }
    }
}

impl Combiner {
    /// A frame as sockets show it: addresses, ports, packet.
    fn frame(&self, own: [u8; 4], from: u16, to: &Binding, packet: &[u8]) -> Vec<u8> {
        let ports = [U16::new(from), to.port].map(U16::to_bytes);
        [&[0; 26], &own[..], &to.ip.low(), ports.as_flattened(), &[0; 4], packet].concat()
    }

    fn serve(&self, envelope: &Envelope, origin: &Origin, packet: &mut [u8]) -> Served {
        let mut packet = Packet::of(packet).expect("a header");
        match envelope.port {
            DATA_PORT => node::up(self, &(), origin, &mut packet),
            port => node::down(self, &(), origin, port, &mut packet),
        }
    }

    fn answer(&self, envelope: &Envelope, target: Target, packet: &[u8]) -> Option<Answer> {
        let (header, _) = Header::ref_from_prefix(packet).expect("a header");
        let (job, rank) = (header.job.get(), header.rank.get());
        let from = match target {
            Target::Parent { from_port, .. } => from_port,
            _ => DATA_PORT,
        };
        let mut hop = Hop::default();
        match egress::route(self, target, (job, rank), 0, &mut hop)? {
            Copies::One => {
                let frame = self.frame(envelope.to, from, &hop.to, packet);
                Some(Answer::Port(hop.to.ifindex as u16, frame))
            }
            Copies::Each => {
                let frame = self.frame(envelope.to, from, &Binding::default(), packet);
                Some(Answer::Group(job, frame))
            }
            Copies::None | Copies::Back => None,
        }
    }
}

impl Subject for Combiner {
    fn offer(&self) -> Offer {
        Offer {
            strict: true,
            lanes: 768,
            ranks: 64,
            jobs: 512,
            slots: 512,
            features: ["collisions", "combiner", "verify"].map(str::to_owned).into(),
        }
    }

    fn layer(&self) -> Layer {
        Layer::Datagram
    }

    fn reset(&mut self) -> Result<(), String> {
        *self = Self::default();
        Ok(())
    }

    fn open(&mut self, job: &Job) -> Result<(), String> {
        let place = |member: &switchml_rack::vectors::Member| Binding {
            ifindex: member.port.into(),
            ip: member.over_v4().ip().octets().into(),
            mac: member.mac,
            port: U16::new(member.over_v4().port()),
            ..Binding::default()
        };
        let entry = |member: &switchml_rack::vectors::Member| {
            let (epoch, binding) =
                if member.newcomer { (0, Binding::default()) } else { (job.epoch, place(member)) };
            let entry = MemberEntry { secret: member.secret, epoch, binding, key: Key::NONE };
            (member.rank, entry)
        };
        let ranks = job.members.last().map_or(0, |member| u32::from(member.rank) + 1);
        let open = Open {
            entry: JobEntry {
                state: OPEN,
                epoch: job.epoch,
                ranks,
                slots: job.slots,
                ..JobEntry::default()
            },
            parent: job.parent.ok_or("a job without a parent")?,
            members: RefCell::new(job.members.iter().map(entry).collect()),
        };
        self.jobs.insert(job.number, open);
        Ok(())
    }

    fn abort(&mut self, _: u16) -> Result<(), String> {
        Err("a combiner goes on".to_owned())
    }

    fn close(&mut self, job: u16) -> Result<(), String> {
        self.jobs.remove(&job);
        Ok(())
    }

    fn age(&mut self, _: &Age) -> Result<(), String> {
        Err("a combiner has no slots".to_owned())
    }

    fn pause(&mut self) -> Result<(), String> {
        self.now += PATIENCE;
        Ok(())
    }

    fn send(&mut self, port: u16, frame: &[u8]) -> Result<Option<Answer>, String> {
        let envelope = Envelope::of(frame, port);
        let mut packet = frame[ENVELOPE_LEN..].to_vec();
        let origin = Origin { binding: envelope.from, congested: frame[15] & 3 == 3 };
        let Served { outcome, target } = self.serve(&envelope, &origin, &mut packet);
        let answer = self.answer(&envelope, target, &packet);
        *self.counters.borrow_mut().entry(outcome as u8).or_default() += 1;
        Ok(answer)
    }

    fn counters(&mut self) -> Result<Counters, String> {
        let mut counters = [0; Outcome::COUNT];
        for (outcome, count) in self.counters.borrow().iter() {
            counters[usize::from(*outcome)] = *count;
        }
        Ok(by_name(&counters))
    }
}

impl Members for Combiner {
    fn job(&self, number: u16) -> Option<JobEntry> {
        self.jobs.get(&number).map(|job| job.entry)
    }

    fn member(&self, job: u16, rank: u16) -> Option<MemberEntry> {
        self.jobs.get(&job)?.members.borrow().get(&rank).copied()
    }

    fn learn(&self, job: u16, rank: u16, epoch: u32, binding: &Binding) {
        let mut members = self.jobs[&job].members.borrow_mut();
        let member = members.get_mut(&rank).expect("a rank below");
        (member.epoch, member.binding) = (epoch, *binding);
    }

    fn parent(&self, job: u16) -> Option<(Binding, Ip)> {
        let Parent { port, mac, address } = self.jobs.get(&job)?.parent;
        let std::net::SocketAddr::V4(address) = address else { return None };
        let place = Binding {
            ifindex: port.into(),
            ip: address.ip().octets().into(),
            mac,
            port: U16::new(address.port()),
            ..Binding::default()
        };
        Some((place, Ip::default()))
    }
}

impl Cells for Combiner {
    fn below(&self, job: u16, group: u16) -> u32 {
        let Some(job) = self.jobs.get(&job) else { return 0 };
        let ranks = job.members.borrow();
        let ranks = ranks.keys().filter(|rank| **rank / RANKS_PER_GROUP == group);
        ranks.fold(0, |set, rank| set | 1 << (rank % RANKS_PER_GROUP))
    }

    fn data_port(&self, _: u16) -> u16 {
        DATA_PORT
    }

    fn clock(&self) -> (u32, u32) {
        (self.now, PATIENCE)
    }

    fn flush(&self, _: &mut Cell) {
        panic!("vectors have no way to say that two packets leave");
    }

    fn with_cell(&self, header: &Header, f: impl FnOnce(&mut Cell) -> Outcome) -> Outcome {
        assert_eq!(cell::cell_of(header, 1), 0);
        f(&mut self.cell.borrow_mut())
    }
}
