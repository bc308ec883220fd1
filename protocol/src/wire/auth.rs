//! Packet tags (section 28 of `docs/spec`): a key's two holders tell each other's packets
//! from forged ones.
//!
//! | part | where |
//! | --- | --- |
//! | keys, from the daemon | `userspace/core/src/jobs/assignment.rs` |
//! | tags of a rank's packets | `worker-lib/core/src/packet.rs` |
//! | tags at a root | [`crate::root::admission`] |
//! | tags in BPF | `packet_tag` in `xdp-aggregator/src/payload.rs` |

use core::fmt;

use zerocopy::little_endian::U64 as Little;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use crate::U64;
pub use crate::wire::header::TAG_LEN;
use crate::wire::header::{HEADER_LEN, Header, flags};

/// 128 random bits that two ends of a job know. With [`Key::NONE`], packets have no tag.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Key(pub [u64; 2]);

impl Key {
    /// The key of a job without tags.
    pub const NONE: Self = Self([0; 2]);

    /// Whether it is [`Self::NONE`].
    #[inline(always)]
    pub const fn is_none(&self) -> bool {
        self.0[0] | self.0[1] == 0
    }

    /// The key made of these bytes, in the order in which SipHash takes them.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_le_bytes(bytes);
        Self([number as u64, (number >> 64) as u64])
    }

    /// The bytes of [`Self::from_bytes`].
    pub const fn to_bytes(self) -> [u8; 16] {
        (self.0[0] as u128 | (self.0[1] as u128) << 64).to_le_bytes()
    }

    /// Rule 28.2: the tag of the packet with this header.
    #[inline(always)]
    pub fn tag(&self, header: &Header) -> U64 {
        let mut words: [Little; HEADER_LEN / 8] = transmute!(*header);
        let (word, byte) = (FLAGS_AT / 8, FLAGS_AT % 8);
        words[word].set(words[word].get() & !((flags::CE as u64) << (8 * byte)));
        U64::new(siphash_2_4(self, words.map(Little::get)))
    }
}

/// Keys must not get into logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() { "Key::NONE" } else { "Key(…)" })
    }
}

const FLAGS_AT: usize = core::mem::offset_of!(Header, flags);

/// SipHash-2-4 (Aumasson and Bernstein, 2012) of 32 bytes. Without branches and loops, for BPF.
#[inline(always)]
fn siphash_2_4(key: &Key, words: [u64; 4]) -> u64 {
    let [k0, k1] = key.0;
    let mut state = State([
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ]);
    let [a, b, c, d] = words;
    state.take(a);
    state.take(b);
    state.take(c);
    state.take(d);
    // The last block: no bytes are left, and the length in the highest byte.
    state.take((HEADER_LEN as u64) << 56);
    state.0[2] ^= 0xFF;
    state.round();
    state.round();
    state.round();
    state.round();
    let [a, b, c, d] = state.0;
    a ^ b ^ c ^ d
}

struct State([u64; 4]);

impl State {
    #[inline(always)]
    const fn take(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    #[inline(always)]
    const fn round(&mut self) {
        let [mut v0, mut v1, mut v2, mut v3] = self.0;
        v0 = v0.wrapping_add(v1);
        v2 = v2.wrapping_add(v3);
        v1 = v1.rotate_left(13) ^ v0;
        v3 = v3.rotate_left(16) ^ v2;
        v0 = v0.rotate_left(32).wrapping_add(v3);
        v2 = v2.wrapping_add(v1);
        v1 = v1.rotate_left(17) ^ v2;
        v3 = v3.rotate_left(21) ^ v0;
        v2 = v2.rotate_left(32);
        self.0 = [v0, v1, v2, v3];
    }
}
