//! The 32-byte header that every packet of the protocol begins with, in network byte order (rule
//! 1.2): section 2 of `docs/spec`.

use core::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{CONTROL_REPLY_LANES, LANES_PER_BLOCK, MAX_LANES, U16, U32, VERSION};

/// Size of [`Header`] in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();
/// Size in bytes of the tag that a packet may have behind its payload.
pub const TAG_LEN: usize = 8;

/// The header as it is on the wire.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// [`VERSION`].
    pub version: u8,
    /// A [`Kind`].
    pub kind: u8,
    /// Job number, given by the control plane.
    pub job: U16,
    /// Random per session; a packet of another epoch never touches a slot.
    pub epoch: U32,
    /// CONTRIBUTION, HELLO: the sender. PARTIAL: the first rank of its group. Unicast replies: the
    /// addressee. RESULT for all: [`crate::EVERYONE`].
    pub rank: U16,
    /// Slot within the job's range, 0..S-1.
    pub slot: U16,
    /// Use count of the slot since the start of the epoch, modulo 2^32.
    pub round: U32,
    /// An [`Op`], and the result's audience ([`Audience`](crate::wire::audience::Audience)).
    pub op: u8,
    /// See [`flags`].
    pub flags: u8,
    /// 32-bit words of payload that follow.
    pub lanes: U16,
    /// Hash of (collective number, op, dtype, element count): equal on all ranks, or the call
    /// fails.
    pub fingerprint: U32,
    /// See [`Header::check_of`].
    pub check: U32,
    /// A value of the sender's choice: echoed in unicast replies, 0 in a RESULT for all. In a
    /// HELLO, the secret; in a PARTIAL, which ranks of its group it stands for.
    pub aux: U32,
}

const _: () = {
    assert!(HEADER_LEN == 32);
    assert!(offset_of!(Header, version) == 0);
    assert!(offset_of!(Header, kind) == 1);
    assert!(offset_of!(Header, job) == 2);
    assert!(offset_of!(Header, epoch) == 4);
    assert!(offset_of!(Header, rank) == 8);
    assert!(offset_of!(Header, slot) == 10);
    assert!(offset_of!(Header, round) == 12);
    assert!(offset_of!(Header, op) == 16);
    assert!(offset_of!(Header, flags) == 17);
    assert!(offset_of!(Header, lanes) == 18);
    assert!(offset_of!(Header, fingerprint) == 20);
    assert!(offset_of!(Header, check) == 24);
    assert!(offset_of!(Header, aux) == 28);
};

numbers! {
    /// What a packet is.
    pub enum Kind: u8 {
        /// A rank's values for one round of a slot.
        Contribution = 1, "CONTRIBUTION";
        /// The aggregate of one round of a slot.
        Result = 2, "RESULT";
        /// The bitmap of ranks already in the slot, for a rank that sent again.
        Pending = 3, "PENDING";
        /// A [`RejectReason`](crate::outcome::RejectReason) and a detail word.
        Reject = 4, "REJECT";
        /// Opens a rank's data path.
        Hello = 5, "HELLO";
        /// Padding: takes the place of a segment without an answer, in a superpacket of answers
        /// that must be as long as the one it is made of.
        Filler = 6, "FILLER";
        /// A contribution without payload must be sent again in full: its answer needs the room.
        Room = 7, "ROOM";
        /// What several ranks contribute to one round of a slot, added up on the way.
        Partial = 8, "PARTIAL";
        /// Rounds are complete, for ranks that need none of their lanes.
        Done = 9, "DONE";
    }
}

numbers! {
    /// How lanes are combined.
    pub enum Op: u8 {
        /// Wrapping sum.
        Sum = 0x00, "SUM";
        /// Maximum of signed numbers.
        Max = 0x01, "MAX";
    }
}

impl Op {
    /// The operator in a packet's op field, which may also name the result's
    /// [`Audience`](crate::wire::audience::Audience).
    #[inline(always)]
    pub const fn of(op: u8) -> Option<Self> {
        match op >> 6 {
            0 => Self::from_wire(op),
            1 | 2 => Some(Self::Sum),
            _ => None,
        }
    }

    /// One lane of two contributions, combined. It is associative and commutative, so ranks may
    /// come in any order.
    #[inline(always)]
    pub const fn combine(self, a: u32, b: u32) -> u32 {
        match self {
            Self::Sum => a.wrapping_add(b),
            Self::Max => {
                if (a as i32) < b as i32 {
                    b
                } else {
                    a
                }
            }
        }
    }

    /// The lane that leaves others as they are when it is combined with them.
    #[inline(always)]
    pub const fn identity(self) -> u32 {
        match self {
            Self::Sum => 0,
            Self::Max => i32::MIN as u32,
        }
    }

    /// What a result's check word is.
    #[inline(always)]
    pub const fn check_word(self) -> CheckWord {
        match self {
            Self::Sum => CheckWord::AddsUp,
            Self::Max => CheckWord::OfLanes,
        }
    }
}

/// What the check word of combined contributions is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckWord {
    /// The sum of their check words (rule 3.1): lanes add up. So they can be taken out again, too.
    AddsUp,
    /// It follows from the result's lanes (rule 8.12). Contributions cannot be taken out again.
    OfLanes,
}

/// Bits of the flags byte.
pub mod flags {
    bits! {
        /// The sender sent this packet before.
        RETRANSMIT = 0;
        /// Congestion was seen on the way (ECN), by this packet or by one that it aggregates.
        CE = 1;
        /// The check word is valid.
        CHECKED = 2;
        /// In a CONTRIBUTION: all lanes are zero, and the payload is left out.
        EMPTY = 3;
        /// In a HELLO: the answer goes to the job's group.
        GROUP = 4;
        /// A tag follows the payload.
        TAGGED = 5;
    }
}

/// Why bytes are not a packet of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than a header.
    Truncated,
    /// Another version than [`VERSION`].
    Version,
    /// No such [`Kind`].
    Kind,
    /// No such [`Op`], or one that lanes cannot be left out of.
    Op,
    /// A lane count that this kind cannot have.
    Lanes,
    /// The payload is not as long as `lanes` says, or shorter in a PENDING or REJECT.
    Length,
}

impl Header {
    /// Rule 7.8: whether it is a HELLO whose answer goes to the job's group.
    #[inline(always)]
    pub const fn is_for_group(&self) -> bool {
        self.kind == Kind::Hello as u8 && self.flags & flags::GROUP != 0
    }

    /// Rules 7.2 and 7.3: checks every field that can be judged without knowing the job, against a
    /// payload of `payload_len` bytes.
    #[inline(always)]
    pub fn validate(&self, payload_len: usize) -> Result<(Kind, Op), Malformed> {
        if self.version != VERSION {
            return Err(Malformed::Version);
        }
        let Some(kind) = Kind::from_wire(self.kind) else {
            return Err(Malformed::Kind);
        };
        if kind == Kind::Filler {
            // A filler keeps the bytes of the segment that it replaces.
            return Ok((kind, Op::Sum));
        }
        let Some(op) = Op::of(self.op) else {
            return Err(Malformed::Op);
        };
        if kind == Kind::Contribution && self.is_all_zeros() && op.identity() != 0 {
            return Err(Malformed::Op);
        }
        if !lanes_fit(kind, usize::from(self.lanes.get())) {
            return Err(Malformed::Lanes);
        }
        let len = 4 * usize::from(self.payload_lanes()) + self.tag_len();
        if !length_fits(kind, len, payload_len) {
            return Err(Malformed::Length);
        }
        Ok((kind, op))
    }

    /// Whether a contribution's lanes are all zero, and left out.
    #[inline(always)]
    pub const fn is_all_zeros(&self) -> bool {
        self.flags & flags::EMPTY != 0 && !self.is_partial()
    }

    /// Whether it stands for a set of ranks: a PARTIAL.
    #[inline(always)]
    pub const fn is_partial(&self) -> bool {
        self.kind == Kind::Partial as u8
    }

    /// Rule 2.4: words of payload that follow, of a packet of any kind but FILLER.
    #[inline(always)]
    pub fn payload_lanes(&self) -> u16 {
        let has_none = self.kind == Kind::Room as u8
            || self.kind == Kind::Contribution as u8 && self.is_all_zeros();
        if has_none { 0 } else { self.lanes.get() }
    }

    /// Rule 28.1: bytes of the tag that follows the payload, 0 without one.
    #[inline(always)]
    pub const fn tag_len(&self) -> usize {
        if self.flags & flags::TAGGED != 0 { TAG_LEN } else { 0 }
    }

    /// Rule 3.1: what the header adds to the check word, a hash of the fields that are equal on all
    /// ranks of a round.
    ///
    /// Every step is a bijection of the word it takes in, so a change to any single field changes
    /// the hash.
    #[inline(always)]
    pub fn salt(&self) -> u32 {
        const K: u32 = 0x9E37_79B1; // odd, hence invertible modulo 2^32
        let words = [
            u32::from(self.job.get()) << 16 | u32::from(self.lanes.get()),
            self.epoch.get(),
            u32::from(self.slot.get()) << 8 | u32::from(self.op),
            self.round.get(),
            self.fingerprint.get(),
        ];
        let mut hash = 0u32;
        for word in words {
            hash = hash.wrapping_add(word).wrapping_mul(K);
        }
        hash
    }

    /// Rules 3.1 and 3.2: the check word of a packet that aggregates `contributions` contributions
    /// and whose lanes add up to `lane_sum` (see [`crate::lanes::sum`]): `lane_sum + contributions
    /// * salt`, modulo 2^32.
    ///
    /// A contribution counts 1, as do PENDING and REJECT; a RESULT counts the job's ranks. So check
    /// words add up as lanes do, and a data plane need not know more about them.
    #[inline(always)]
    pub fn check_of(&self, lane_sum: u32, contributions: u32) -> u32 {
        lane_sum.wrapping_add(self.salt().wrapping_mul(contributions))
    }
}

/// Rule 2.3.
#[inline(always)]
const fn lanes_fit(kind: Kind, lanes: usize) -> bool {
    let whole_blocks = lanes.is_multiple_of(LANES_PER_BLOCK) && lanes <= MAX_LANES;
    match kind {
        Kind::Contribution | Kind::Partial | Kind::Result | Kind::Room => whole_blocks && lanes > 0,
        Kind::Hello => whole_blocks,
        Kind::Pending => lanes == CONTROL_REPLY_LANES || lanes == LANES_PER_BLOCK,
        Kind::Reject => lanes == CONTROL_REPLY_LANES,
        Kind::Done => lanes <= MAX_LANES,
        Kind::Filler => true,
    }
}

/// Rule 2.4: a control reply may lie in a segment that was larger: a superpacket cannot be cut.
/// `len` is that of lanes and tag, in bytes.
#[inline(always)]
const fn length_fits(kind: Kind, len: usize, payload_len: usize) -> bool {
    match kind {
        Kind::Contribution
        | Kind::Partial
        | Kind::Result
        | Kind::Hello
        | Kind::Room
        | Kind::Done => payload_len == len,
        Kind::Pending | Kind::Reject => payload_len >= len,
        Kind::Filler => true,
    }
}

/// Splits a datagram into its header and its payload's lanes (none of a FILLER), after checking
/// that the two agree.
pub fn decode(datagram: &[u8]) -> Result<(&Header, Kind, Op, &[U32]), Malformed> {
    let Ok((header, payload)) = Header::ref_from_prefix(datagram) else {
        return Err(Malformed::Truncated);
    };
    let (kind, op) = header.validate(payload.len())?;
    let count = if kind == Kind::Filler { 0 } else { usize::from(header.payload_lanes()) };
    let Ok((lanes, _)) = <[U32]>::ref_from_prefix_with_elems(payload, count) else {
        return Err(Malformed::Length);
    };
    Ok((header, kind, op, lanes))
}
