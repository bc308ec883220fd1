//! The CRC-32 in the ICRC of a message of RoCEv2 (rule 37.5 of `docs/spec`), for BPF, which
//! has no carry-less multiplication.
//!
//! A register is linear in what it has taken in, so the registers of headers and packet are
//! computed apart: [`join`] puts them together, and of several messages with the same packet only
//! the headers' differ. A packet's words are folded onto later ones ([`Folding`]), by a sparse
//! multiple of the CRC's polynomial; the rest is taken in by tables.

use crate::MAX_LANES;
use crate::wire::header::{HEADER_LEN, TAG_LEN};

/// The polynomial of Ethernet's CRC-32, with the coefficient of x^31 in the lowest bit.
const POLYNOMIAL: u32 = 0xEDB8_8320;
/// More than any packet's words of payload, a tag among them; a power of two.
const MAX_WORDS: usize = (MAX_LANES + TAG_LEN / 4).next_power_of_two();

/// What becomes of a byte that so many others follow in its word.
static TABLES: [[u32; 256]; 4] = tables();
/// What a register is multiplied by when a packet with so many words of payload follows: a power of
/// x.
static POWERS: [u32; MAX_WORDS] = powers();

/// The register that a message begins with.
pub const FIRST: u32 = u32::MAX;

/// The register after four more bytes.
#[inline(always)]
pub fn take(register: u32, word: [u8; 4]) -> u32 {
    let [a, b, c, d] = (register ^ u32::from_le_bytes(word)).to_le_bytes();
    TABLES[3][usize::from(a)]
        ^ TABLES[2][usize::from(b)]
        ^ TABLES[1][usize::from(c)]
        ^ TABLES[0][usize::from(d)]
}

/// The ICRC of a message whose headers left the first register, and whose packet, with so many
/// words of payload, leaves the other one, beginning with 0.
#[inline(always)]
pub fn join(headers: u32, packet: u32, words: usize) -> [u8; 4] {
    // The verifier knows the bounds of a remainder.
    let moved = product(headers, POWERS[words % MAX_WORDS]);
    (!(moved ^ packet)).to_le_bytes()
}

/// Words that were folded onto the five that follow them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Folding([u64; 5]);

impl Folding {
    /// Takes in the next eight bytes. `made` is the identity: see
    /// [`Payload::made`](crate::lanes::Payload::made).
    ///
    /// x^300 + x^155 + x^117 + x^89 + 1 is a multiple of the polynomial, so a bit may be replaced
    /// by those that are 145, 183, 211 and 300 behind it.
    #[inline(always)]
    pub fn take(&mut self, bytes: [u8; 8], made: impl Fn(u64) -> u64) {
        let [first, second, third, fourth, fifth] = self.0;
        let word = made(first ^ u64::from_le_bytes(bytes));
        self.0 = [
            second,
            third ^ word << 17 ^ word << 55,
            fourth ^ word >> 47 ^ word >> 9 ^ word << 19,
            fifth ^ word >> 45 ^ word << 44,
            word >> 20,
        ];
    }

    /// What has been folded onto word `index` of the five that end the packet.
    #[inline(always)]
    pub const fn onto(&self, index: usize) -> u64 {
        self.0[index]
    }
}

/// The product of two registers, modulo the polynomial.
#[inline(always)]
const fn product(mut of: u32, mut with: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        // No branch: a verifier would follow both ways of each.
        product ^= with * (of >> 31);
        of <<= 1;
        with = times_x(with);
        bit += 1;
    }
    product
}

#[inline(always)]
const fn times_x(register: u32) -> u32 {
    (register >> 1) ^ (POLYNOMIAL * (register & 1))
}

const fn tables() -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut table = 0;
        while table < 4 {
            let mut bit = 0;
            while bit < 8 {
                register = times_x(register);
                bit += 1;
            }
            tables[table][byte] = register;
            table += 1;
        }
        byte += 1;
    }
    tables
}

const fn powers() -> [u32; MAX_WORDS] {
    const ONE: u32 = 1 << 31;
    let mut powers = [0; MAX_WORDS];
    let (mut register, mut words) = (ONE, 0);
    while words < HEADER_LEN / 4 + MAX_WORDS {
        if words >= HEADER_LEN / 4 {
            powers[words - HEADER_LEN / 4] = register;
        }
        let mut bit = 0;
        while bit < 32 {
            register = times_x(register);
            bit += 1;
        }
        words += 1;
    }
    powers
}
