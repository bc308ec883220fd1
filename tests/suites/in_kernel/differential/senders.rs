//! The job's ranks, who mostly keep the rules, and others who do not.

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{RngExt, SeedableRng};

use switchml_test_support::frame::{
    AGGREGATOR_IP, CE, CHECKED, EMPTY, JOB, MAX, PARTIAL, Packet, RETRANSMIT, SUM, fix_ip_checksum,
    ip, mac,
};

/// The senders' view of the job, from which they make mostly right packets.
pub struct Senders {
    pub random: StdRng,
    epoch: u32,
    ranks: u16,
    slots: Vec<Slot>,
    /// Value of the tag that frames have, if they have one.
    tag: Option<u16>,
    /// Whether all ranks live at one place and differ only in the UDP port, and also send partial
    /// sums.
    together: bool,
    /// Frames of this epoch, for late duplicates.
    sent: Vec<Vec<u8>>,
}

/// The senders' view of a slot.
#[derive(Clone)]
struct Slot {
    round: u32,
    /// Ranks that are not in the round yet.
    missing: Vec<u16>,
}

impl Senders {
    pub fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            epoch: 0,
            ranks: 0,
            slots: vec![],
            tag: None,
            together: false,
            sent: vec![],
        }
    }

    /// All go on to this epoch.
    pub fn begin(&mut self, epoch: u32, ranks: u16, slots: u16, tag: Option<u16>, together: bool) {
        (self.epoch, self.ranks, self.tag, self.together) = (epoch, ranks, tag, together);
        let slot = Slot { round: 0, missing: (0..ranks).collect() };
        self.slots = vec![slot; usize::from(slots)];
        self.sent.clear();
    }

    /// A contribution to this slot is in.
    pub fn joined(&mut self, slot: u16, rank: u16) {
        self.slots[usize::from(slot)].missing.retain(|missing| *missing != rank);
    }

    /// This slot's round has completed.
    pub fn completed(&mut self, slot: u16, round: u32) {
        self.slots[usize::from(slot)] =
            Slot { round: round.wrapping_add(1), missing: (0..self.ranks).collect() };
    }

    /// All rounds of this slot have other numbers from now on.
    pub fn renumber(&mut self, slot: u16, shift: u32) {
        let round = &mut self.slots[usize::from(slot)].round;
        *round = round.wrapping_add(shift);
    }

    /// The next frame, of any sender.
    pub fn next(&mut self) -> Vec<u8> {
        if !self.sent.is_empty() && self.random.random_ratio(1, 12) {
            return self.sent.choose(&mut self.random).unwrap().clone();
        }
        let packet = self.packet();
        let mut envelope = packet.request();
        if self.together {
            (envelope.mac_source, envelope.source) = (mac(0), ip(0));
        }
        envelope.tos = if self.random.random_ratio(1, 20) { self.random.random() } else { 0 };
        let mut frame = envelope.bytes(&packet.bytes());
        if self.random.random_ratio(1, 8) {
            self.damage(&mut frame);
        }
        if self.random.random_ratio(1, 16) {
            frame.resize(frame.len() + self.random.random_range(1..200), 0xEE);
        }
        if let Some(tag) = self.tag {
            self.insert_tag(&mut frame, tag);
        }
        self.sent.push(frame.clone());
        frame
    }

    /// Mostly the right one; or of another VLAN, or another priority, or none.
    fn insert_tag(&mut self, frame: &mut Vec<u8>, tag: u16) {
        let tag = match self.random.random_range(0..40) {
            0 => return,
            1 => tag ^ 1 << self.random.random_range(0..12),
            2 => tag ^ 1 << self.random.random_range(12..16),
            _ => tag,
        };
        let [high, low] = tag.to_be_bytes();
        frame.splice(12..12, [0x81, 0x00, high, low]);
    }

    fn packet(&mut self) -> Packet {
        let slot = self.random.random_range(0..self.slots.len());
        let rank = self.rank(slot);
        if self.random.random_ratio(1, 40) {
            let lanes = 32 * self.random.random_range(0..=24);
            let hello = Packet { epoch: self.epoch, ..Packet::hello(rank, lanes) };
            return self.falsify(hello);
        }
        let round = self.slots[slot].round;
        let round = match self.random.random_range(0..60) {
            0 => round.wrapping_sub(1),
            1 => round.wrapping_sub(2),
            2 => round.wrapping_add(1),
            3 => round.wrapping_add(2),
            4 => self.random.random(),
            _ => round,
        };
        // Size and operator belong to the round, so that its ranks agree.
        let blocks = [1, 2, 11, 24][(round % 4) as usize];
        // Sums for rank 0 (the rank of the one place), for another rank, and for all others.
        let op = [SUM, MAX, 64, 64 + 28, 128][(round / 4 % 5) as usize];
        let mut values = vec![0; 32 * blocks];
        self.random.fill(&mut values[..]);
        let mut packet = Packet {
            op,
            epoch: self.epoch,
            ..Packet::contribution(rank, slot as u16, round, &values)
        };
        packet.flags = match self.random.random_range(0..20) {
            0 => 0,
            1 => CHECKED | CE,
            2 => CHECKED | RETRANSMIT,
            3 => self.random.random(),
            _ => CHECKED,
        };
        // Some of a maximum, too.
        if self.random.random_ratio(if op == SUM { 10 } else { 1 }, 30) {
            packet.flags |= EMPTY;
            packet.lanes = Some(packet.values.len() as u16);
            packet.values.clear();
        }
        if self.together && self.random.random_ratio(1, 4) {
            packet = self.partial(packet, slot);
        }
        self.falsify(packet)
    }

    /// A partial sum in its place: mostly of ranks that the round waits for.
    fn partial(&mut self, packet: Packet, slot: usize) -> Packet {
        let group = packet.rank / 32;
        let bit = |rank: &u16| if rank / 32 == group { 1 << (rank % 32) } else { 0 };
        let missing = self.slots[slot].missing.iter().fold(0, |set: u32, rank| set | bit(rank));
        let aux = match self.random.random_range(0..8) {
            0 => self.random.random(),
            1 => bit(&packet.rank) | bit(&self.random.random_range(0..self.ranks)),
            2..5 => missing & self.random.random::<u32>() | bit(&packet.rank),
            _ => missing,
        };
        let rank = if self.random.random_ratio(1, 50) { packet.rank } else { 32 * group };
        Packet { kind: PARTIAL, rank, aux, contributions: aux.count_ones(), ..packet }
    }

    /// Mostly one that the round waits for.
    fn rank(&mut self, slot: usize) -> u16 {
        match self.random.random_range(0..100) {
            0 => self.ranks,
            1 => self.random.random(),
            2..75 => self.slots[slot].missing.iter().copied().choose(&mut self.random).unwrap_or(0),
            _ => self.random.random_range(0..self.ranks),
        }
    }

    /// Now and then something is wrong in a packet that is whole, its check word made to fit.
    fn falsify(&mut self, mut packet: Packet) -> Packet {
        match self.random.random_range(0..500) {
            0 => packet.op = self.random.random(),
            1 if self.random.random() => packet.fingerprint = self.random.random(),
            2 if self.random.random() => packet.values.truncate(32),
            3..7 => packet.epoch = self.random.random(),
            7..9 => packet.job = self.random.random(),
            9 => packet.job = self.random.random_range(0..256),
            10..14 => packet.slot = packet.slot.wrapping_add(self.random.random_range(0..4)),
            14..18 => packet.kind = self.random.random_range(0..10),
            18..20 => packet.lanes = Some(self.random.random()),
            20..22 => packet.check = Some(self.random.random()),
            22..42 => packet.aux = self.random.random(),
            42..46 => packet.version = self.random.random_range(0..4),
            46..48 => packet.job = JOB ^ 1,
            _ => {}
        }
        packet
    }

    /// Damages a frame like a broken link, or an odd or malicious host.
    fn damage(&mut self, frame: &mut Vec<u8>) {
        match self.random.random_range(0..14) {
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
                // Next header of IPv6: some before UDP's, UDP's, another.
                let next = [0, 43, 44, 60, 17, 58].choose(&mut self.random).unwrap();
                frame[20] = *next;
            }
            5 => {
                // Options, a fragment.
                let (byte, value) =
                    *[(14, 0x46), (20, 0x20), (21, 0xB9)].choose(&mut self.random).unwrap();
                frame[byte] = value;
                fix_ip_checksum(&mut frame[14..]);
            }
            6 => {
                let byte = self.random.random_range(42..74);
                frame[byte] ^= 1 << self.random.random_range(0..8);
            }
            7 => {
                // Random bytes.
                *frame = vec![0; self.random.random_range(14..2000)];
                self.random.fill(&mut frame[..]);
            }
            8 => {
                // Garbage behind headers that are right.
                self.random.fill(&mut frame[42..]);
            }
            10 => {
                // Perhaps the aggregator's answer to somebody, perhaps with tags.
                frame[26..30].copy_from_slice(&AGGREGATOR_IP);
                frame[33] = self.random.random();
                fix_ip_checksum(&mut frame[14..]);
                for _ in 0..self.random.random_range(0..4) {
                    frame.splice(12..12, [0x81, 0x00, 0x00, 0x00]);
                }
            }
            9 => {
                let byte = self.random.random_range(14..34);
                frame[byte] ^= 1 << self.random.random_range(0..8);
            }
            _ => {
                let byte = self.random.random_range(0..frame.len());
                frame[byte] ^= 1 << self.random.random_range(0..8);
            }
        }
    }
}
