//! Shared by the BPF program and its loader: keys and values of the maps, and the random numbers.
#![no_std]
#![forbid(unsafe_code)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Frames that one direction may hold back at a time.
pub const ROOM: u32 = 32;
/// The largest frame that is held back, in bytes: an Ethernet header and the largest MTU of a rack.
pub const MAX_FRAME: usize = 14 + 3500;
/// The farthest that a frame may be moved back, in frames.
pub const MAX_DISTANCE: u32 = 1024;

/// The program's counters, per direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Frames of the aggregation protocol that came in.
    Frames,
    /// Frames lost.
    Lost,
    /// Frames sent twice.
    Duplicated,
    /// Frames held back.
    Reordered,
    /// Frames with a flipped bit in the headers: IP, UDP or the protocol's own.
    Corrupted,
    /// Frames with a flipped bit in the payload.
    Flipped,
    /// Frames held back earlier, and now sent.
    Released,
    /// Frames sent at once instead of being held back, because [`ROOM`] others were held.
    NoRoom,
    /// Frames that the kernel refused to send or to change, lost without intent.
    Failed,
}

impl Counter {
    /// Number of counters.
    pub const COUNT: usize = 9;
    /// All counters in their order, with the names that users see.
    pub const ALL: [(Self, &'static str); Self::COUNT] = [
        (Self::Frames, "frames"),
        (Self::Lost, "lost"),
        (Self::Duplicated, "duplicated"),
        (Self::Reordered, "reordered"),
        (Self::Corrupted, "corrupted"),
        (Self::Flipped, "flipped"),
        (Self::Released, "released"),
        (Self::NoRoom, "no_room"),
        (Self::Failed, "failed"),
    ];
}

/// How likely each fault is: a fault happens to a frame when a random 32-bit number is below its
/// threshold.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Thresholds {
    /// Loss.
    pub loss: u32,
    /// Duplication.
    pub duplication: u32,
    /// Reordering.
    pub reordering: u32,
    /// Corruption of the headers.
    pub corruption: u32,
    /// A flipped bit in the payload.
    pub flips: u32,
    /// Largest number of later frames, at most [`MAX_DISTANCE`], after which a held frame is sent;
    /// it may be later if no frame comes to send it after.
    pub distance: u32,
}

/// One direction of a link: value of the map `DIRECTIONS`, whose key is the index of the interface
/// where frames come in.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Direction {
    /// The seed of the random numbers.
    pub seed: u64,
    /// Frames of the protocol so far. Only the program writes this, and the counters.
    pub sequence: u64,
    /// The counters, by [`Counter`].
    pub counters: [u64; Counter::COUNT],
    /// Index of the interface that frames are sent to.
    pub to: u32,
    /// First of the [`ROOM`] entries of the map `HELD` that are this direction's.
    pub first_held: u32,
    /// The faults of frames.
    pub faults: Thresholds,
}

/// A frame that is held back: value of the map `HELD`.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Held {
    /// One of [`Held::FREE`], [`Held::BUSY`] and [`Held::FULL`].
    pub state: u32,
    /// Length of the frame.
    pub len: u32,
    /// The number of the frame after which this one is sent.
    pub due: u64,
    /// The frame.
    pub bytes: [u8; MAX_FRAME.next_multiple_of(8)],
}

impl Held {
    /// The entry is free.
    pub const FREE: u32 = 0;
    /// The entry is being written or read.
    pub const BUSY: u32 = 1;
    /// The entry holds a frame.
    pub const FULL: u32 = 2;
}

/// The random word number `draw` for frame `number`, the same for the same seed: the faults of a
/// frame depend only on its place in its direction, not on which CPU sees it or when.
///
/// SplitMix64 (Steele, Lea and Flood) as a function of its counter.
#[inline(always)]
pub const fn random(seed: u64, number: u64, draw: u64) -> u64 {
    /// A number larger than the number of draws for a frame.
    const DRAWS: u64 = 8;
    let counter = number.wrapping_mul(DRAWS).wrapping_add(draw).wrapping_add(1);
    let mut word = seed.wrapping_add(counter.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// A number from 0 to `bound` - 1 from a random word's upper half; computed by multiplication,
/// because a BPF program that might divide by zero does not build.
#[inline(always)]
pub const fn below(bound: u32, random: u64) -> u32 {
    (((random >> 32) * bound as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_a_bound() {
        assert_eq!((below(10, 0), below(10, u64::MAX), below(10, 1 << 63)), (0, 9, 5));
    }

    /// The first outputs of the reference implementation (Vigna's splitmix64.c) for the seed
    /// 1234567.
    #[test]
    fn random_words_are_splitmix64s() {
        let words = [0, 1, 2].map(|draw| random(1_234_567, 0, draw));
        assert_eq!(
            words,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
        assert_eq!(random(7, 1, 0), random(7, 0, 8), "one sequence, eight words a frame");
    }
}
