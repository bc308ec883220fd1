//! Packets as the specification's table has them, encoded byte by byte, without the crate's types.
//! All tests in Rust that make packets by hand make them by this.

/// Numbers of the `kind` field.
pub const CONTRIBUTION: u8 = 1;
pub const RESULT: u8 = 2;
pub const PENDING: u8 = 3;
pub const REJECT: u8 = 4;
pub const HELLO: u8 = 5;
pub const FILLER: u8 = 6;
pub const ROOM: u8 = 7;
pub const PARTIAL: u8 = 8;
pub const DONE: u8 = 9;

/// Numbers of the `op` field.
pub const SUM: u8 = 0x00;
pub const MAX: u8 = 0x01;
pub const ALL_OPS: [u8; 2] = [SUM, MAX];

/// Bits of the `flags` field.
pub const RETRANSMIT: u8 = 1;
pub const CE: u8 = 2;
pub const CHECKED: u8 = 4;
pub const EMPTY: u8 = 8;
pub const GROUP: u8 = 16;
pub const TAGGED: u8 = 32;

/// The `rank` of a RESULT for all.
pub const EVERYONE: u16 = 0xFFFF;

/// One packet: the header's fields in their order, then the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub version: u8,
    pub kind: u8,
    pub job: u16,
    pub epoch: u32,
    pub rank: u16,
    pub slot: u16,
    pub round: u32,
    pub op: u8,
    pub flags: u8,
    pub lanes: u16,
    pub fingerprint: u32,
    pub check: u32,
    pub aux: u32,
    pub payload: Vec<u32>,
    /// The tag behind the payload, if it is TAGGED.
    pub tag: Option<u64>,
}

impl Packet {
    /// The lane count that fits the payload, and the check word that fits everything.
    pub fn sealed(mut self) -> Self {
        self.lanes = self.payload.len() as u16;
        self.flags |= CHECKED;
        self.check = check_word(&self, self.ranks().len() as u64);
        self
    }

    /// The partial sum of these ranks of one group with the lanes of this packet.
    pub fn partial(self, ranks: &[u16]) -> Self {
        let group = ranks[0] / 32;
        assert!(ranks.iter().all(|rank| rank / 32 == group), "one group");
        let set = ranks.iter().map(|rank| 1 << (rank % 32)).fold(0, |set, bit: u32| set | bit);
        Self { kind: PARTIAL, rank: 32 * group, aux: set, ..self }.sealed()
    }

    /// The ranks that a contribution or a partial sum stands for.
    pub fn ranks(&self) -> Vec<u16> {
        if self.kind != PARTIAL {
            return vec![self.rank];
        }
        (0..32)
            .filter(|bit| self.aux >> bit & 1 == 1)
            .map(|bit| self.rank.wrapping_add(bit))
            .collect()
    }

    /// The packet without its lanes, which are zeros.
    pub fn emptied(mut self) -> Self {
        self.flags |= CHECKED | EMPTY;
        self.payload.clear();
        self.check = check_word(&self, 1);
        self
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.version, self.kind];
        bytes.extend(self.job.to_be_bytes());
        bytes.extend(self.epoch.to_be_bytes());
        bytes.extend(self.rank.to_be_bytes());
        bytes.extend(self.slot.to_be_bytes());
        bytes.extend(self.round.to_be_bytes());
        bytes.extend([self.op, self.flags]);
        bytes.extend(self.lanes.to_be_bytes());
        bytes.extend(self.fingerprint.to_be_bytes());
        bytes.extend(self.check.to_be_bytes());
        bytes.extend(self.aux.to_be_bytes());
        assert_eq!(bytes.len(), 32);
        for lane in &self.payload {
            bytes.extend(lane.to_be_bytes());
        }
        bytes.extend(self.tag.into_iter().flat_map(u64::to_be_bytes));
        bytes
    }

    /// The packet in `bytes`, whose length is that of the header and a whole number of words.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        assert!(bytes.len() >= 32 && bytes.len().is_multiple_of(4));
        let has_tag = bytes[17] & TAGGED != 0 && bytes.len() >= 40;
        let end = if has_tag { bytes.len() - 8 } else { bytes.len() };
        let tag = || u64::from(u32_at(end)) << 32 | u64::from(u32_at(end + 4));
        Self {
            version: bytes[0],
            kind: bytes[1],
            job: u16_at(2),
            epoch: u32_at(4),
            rank: u16_at(8),
            slot: u16_at(10),
            round: u32_at(12),
            op: bytes[16],
            flags: bytes[17],
            lanes: u16_at(18),
            fingerprint: u32_at(20),
            check: u32_at(24),
            aux: u32_at(28),
            payload: (32..end).step_by(4).map(u32_at).collect(),
            tag: has_tag.then(tag),
        }
    }

    /// The packet with one bit flipped, bit 0 being the highest of the first byte.
    pub fn with_bit_flipped(&self, bit: usize) -> Self {
        let mut bytes = self.to_bytes();
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        Self::from_bytes(&bytes)
    }
}

/// The salt of the check word: h = (h + word) * 0x9E3779B1 modulo 2^32 over five words.
fn salt(packet: &Packet) -> u64 {
    let words = [
        u64::from(packet.job) * 65536 + u64::from(packet.lanes),
        u64::from(packet.epoch),
        u64::from(packet.slot) * 256 + u64::from(packet.op),
        u64::from(packet.round),
        u64::from(packet.fingerprint),
    ];
    words.into_iter().fold(0, |hash, word| ((hash + word) % (1 << 32)) * 0x9E37_79B1 % (1 << 32))
}

/// The check word of a packet that aggregates `contributions` of its kind.
pub fn check_word(packet: &Packet, contributions: u64) -> u32 {
    let salts = (0..contributions).map(|_| salt(packet) as u32);
    add_words(packet.payload.iter().copied().chain(salts).chain(surplus(packet)))
}

/// By how much a partial sum's check word exceeds the sum of its contributions' check words.
pub fn surplus(packet: &Packet) -> Vec<u32> {
    if packet.kind != PARTIAL {
        return vec![];
    }
    let is_even = packet.ranks().len().is_multiple_of(2);
    vec![packet.rank.into(), packet.aux, if is_even { salt(packet) as u32 } else { 0 }]
}

/// Adds words modulo 2^32.
pub fn add_words(words: impl Iterator<Item = u32>) -> u32 {
    (words.map(u64::from).sum::<u64>() % (1 << 32)) as u32
}

/// Combines one lane of every rank as `op` says, in wide integers.
pub fn combine_lane(op: u8, lanes: &[u32]) -> u32 {
    let numbers = lanes.iter().map(|lane| i64::from(*lane as i32));
    let combined = match op {
        // Rule 2.10: sums with an audience, too.
        SUM | 64..192 => numbers.sum(),
        MAX => numbers.max().expect("a rank"),
        _ => panic!("op {op:#x}"),
    };
    combined.rem_euclid(1 << 32) as u32
}

/// Combines the payloads of all ranks.
pub fn combine(op: u8, payloads: &[&[u32]]) -> Vec<u32> {
    let column = |at: usize| payloads.iter().map(|payload| payload[at]).collect::<Vec<_>>();
    (0..payloads[0].len()).map(|at| combine_lane(op, &column(at))).collect()
}
