//! Payload arithmetic (rule 2.6): a slot's values on one side, a packet's big-endian lanes on the
//! other.

use zerocopy::{transmute, transmute_mut, transmute_ref};

use crate::wire::auth::Key;
use crate::wire::header::{Header, Op};
use crate::{CONTROL_REPLY_LANES, LANES_PER_BLOCK, MAX_BLOCKS, MAX_LANES, U32, U64};

/// 32 lanes of a packet.
pub type Block = [U32; LANES_PER_BLOCK];

/// A packet's payload, reached a block at a time.
///
/// In BPF, a block is what one bounds check makes accessible; on hosts this is a slice.
pub trait Payload {
    /// Block `index`, or `None` when the packet ends before it.
    fn block(&self, index: usize) -> Option<&Block>;
    /// Block `index` for writing, or `None` when the packet ends before it.
    fn block_mut(&mut self, index: usize) -> Option<&mut Block>;

    /// The two lanes from `lane` on, an even number, or `None` when the packet ends before them.
    fn pair(&self, lane: usize) -> Option<U64>;
    /// Overwrites the two lanes from `lane` on; `None` as for [`Self::pair`].
    fn set_pair(&mut self, lane: usize, pair: U64) -> Option<()>;

    /// [`Key::tag`].
    #[inline(always)]
    fn tag(key: &Key, header: &Header) -> U64 {
        key.tag(header)
    }

    /// [`sum`] of this payload.
    ///
    /// This and the methods below are loops over blocks. BPF implements them, and [`Self::tag`], as
    /// calls of functions that the verifier checks one at a time: inlined, they have too many
    /// paths.
    #[inline(always)]
    fn sum(&self, blocks: usize) -> Result<u32, ShortPayload> {
        sum(self, blocks)
    }

    /// [`fold`] of this payload.
    #[inline(always)]
    fn fold(&self, lanes: usize) -> Result<u32, ShortPayload> {
        fold(self, lanes)
    }

    /// [`exchange`] of this payload.
    #[inline(always)]
    fn exchange_with(&mut self, values: &mut Values, blocks: usize) -> Result<u32, ShortPayload> {
        exchange(values, self, blocks)
    }

    /// The unchanged sums, computed before this call returns.
    ///
    /// Otherwise LLVM would postpone the additions to the end of a block. BPF has too few registers
    /// for the lanes that they wait for.
    #[inline(always)]
    fn made(sums: [u32; 2]) -> [u32; 2] {
        sums
    }

    /// [`add`] of this payload.
    #[inline(always)]
    fn add_to(&self, values: &mut Values, blocks: usize) -> Result<u32, ShortPayload> {
        add(values, self, blocks)
    }

    /// [`subtract`] of this payload.
    #[inline(always)]
    fn subtract_from(&self, values: &mut Values, blocks: usize) -> Result<(), ShortPayload> {
        subtract(values, self, blocks)
    }

    /// [`combine`] with this payload.
    #[inline(always)]
    fn combine_into(&self, op: Op, values: &mut Values, blocks: usize) -> Result<(), ShortPayload> {
        combine(op, values, self, blocks)
    }

    /// [`load`] into this payload.
    #[inline(always)]
    fn load_from(&mut self, values: &Values, blocks: usize) -> Result<(), ShortPayload> {
        load(values, self, blocks)
    }
}

impl Payload for [U32] {
    fn block(&self, index: usize) -> Option<&Block> {
        self.as_chunks().0.get(index)
    }

    fn block_mut(&mut self, index: usize) -> Option<&mut Block> {
        self.as_chunks_mut().0.get_mut(index)
    }

    fn pair(&self, lane: usize) -> Option<U64> {
        let (pairs, _) = self.as_chunks::<2>();
        pairs.get(lane / 2).map(|pair| transmute!(*pair))
    }

    fn set_pair(&mut self, lane: usize, pair: U64) -> Option<()> {
        let (pairs, _) = self.as_chunks_mut::<2>();
        *pairs.get_mut(lane / 2)? = transmute!(pair);
        Some(())
    }
}

/// A slot's values: lanes in the machine's byte order, two in each number, the first one in its
/// upper half. So one byte swap takes both in or out.
pub type Values = [u64; MAX_LANES / 2];

/// The payload is shorter than its lane count says; the slot's values must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortPayload;

/// Wrapping sum of the first `blocks` blocks of a payload, as the check word takes it.
#[inline(always)]
pub fn sum<P: Payload + ?Sized>(payload: &P, blocks: usize) -> Result<u32, ShortPayload> {
    // The sum of all pairs, each its first lane times 2^32 plus its second; and the sum of the
    // second lanes alone.
    let (mut both, mut second) = (0u64, 0u64);
    for index in 0..MAX_BLOCKS {
        if index >= blocks {
            break;
        }
        for pair in pairs(payload.block(index).ok_or(ShortPayload)?) {
            both = both.wrapping_add(pair.get());
            second += pair.get() & 0xFFFF_FFFF;
        }
    }
    let first = both.wrapping_sub(second) >> 32;
    Ok(first.wrapping_add(second) as u32)
}

/// Sum of the first `lanes` lanes, 2 or whole blocks, for a UDP checksum: modulo 65535 it equals
/// the sum of their 16-bit words.
#[inline(always)]
pub fn fold<P: Payload + ?Sized>(payload: &P, lanes: usize) -> Result<u32, ShortPayload> {
    let mut sum = 0u64;
    if lanes == CONTROL_REPLY_LANES {
        let [first, second] = halves(pairs(payload.block(0).ok_or(ShortPayload)?)[0].get());
        sum = u64::from(first) + u64::from(second);
    } else {
        for index in 0..MAX_BLOCKS {
            if index >= lanes / LANES_PER_BLOCK {
                break;
            }
            for pair in pairs(payload.block(index).ok_or(ShortPayload)?) {
                let [first, second] = halves(pair.get());
                sum += u64::from(first) + u64::from(second);
            }
        }
    }
    // 2^32 is 1 modulo 65535.
    sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
    Ok((sum as u32).wrapping_add((sum >> 32) as u32))
}

/// Overwrites `values` with the payload, and the payload with the old values: a second call undoes
/// the first. Returns the [`sum`] of the new values.
#[inline(always)]
pub fn exchange<P: Payload + ?Sized>(
    values: &mut Values,
    payload: &mut P,
    blocks: usize,
) -> Result<u32, ShortPayload> {
    let (value_blocks, _) = values.as_chunks_mut::<PAIRS_PER_BLOCK>();
    let mut sums = [0u32; 2];
    for (index, to) in value_blocks.iter_mut().enumerate().take(MAX_BLOCKS) {
        if index >= blocks {
            break;
        }
        let from = payload.block_mut(index).ok_or(ShortPayload)?;
        for (to, from) in to.iter_mut().zip(pairs_mut(from)) {
            let pair = from.get();
            from.set(*to);
            *to = pair;
            sums = with::<P>(sums, halves(pair));
        }
    }
    Ok(sums[0].wrapping_add(sums[1]))
}

/// Adds the payload to `values`, and returns its [`sum`]: both in one pass over the packet.
#[inline(always)]
pub fn add<P: Payload + ?Sized>(
    values: &mut Values,
    payload: &P,
    blocks: usize,
) -> Result<u32, ShortPayload> {
    let (value_blocks, _) = values.as_chunks_mut::<PAIRS_PER_BLOCK>();
    let mut sums = [0u32; 2];
    for (index, to) in value_blocks.iter_mut().enumerate().take(MAX_BLOCKS) {
        if index >= blocks {
            break;
        }
        let to: &mut [[u32; 2]; PAIRS_PER_BLOCK] = transmute_mut!(to);
        for (to, pair) in to.iter_mut().zip(pairs(payload.block(index).ok_or(ShortPayload)?)) {
            let lanes = halves(pair.get());
            to[FIRST] = to[FIRST].wrapping_add(lanes[0]);
            to[1 - FIRST] = to[1 - FIRST].wrapping_add(lanes[1]);
            sums = with::<P>(sums, lanes);
        }
    }
    Ok(sums[0].wrapping_add(sums[1]))
}

/// The sums with two more lanes.
#[inline(always)]
fn with<P: Payload + ?Sized>(sums: [u32; 2], lanes: [u32; 2]) -> [u32; 2] {
    P::made([sums[0].wrapping_add(lanes[0]), sums[1].wrapping_add(lanes[1])])
}

/// Takes the payload out of `values` again, exactly: sums wrap.
#[inline(always)]
pub fn subtract<P: Payload + ?Sized>(
    values: &mut Values,
    payload: &P,
    blocks: usize,
) -> Result<(), ShortPayload> {
    combine_with(values, payload, blocks, u32::wrapping_sub)
}

/// Combines each lane of `values` with that of the payload.
#[inline(always)]
pub fn combine<P: Payload + ?Sized>(
    op: Op,
    values: &mut Values,
    payload: &P,
    blocks: usize,
) -> Result<(), ShortPayload> {
    combine_with(values, payload, blocks, |a, b| op.combine(a, b))
}

/// Writes `values` into the payload.
#[inline(always)]
pub fn load<P: Payload + ?Sized>(
    values: &Values,
    payload: &mut P,
    blocks: usize,
) -> Result<(), ShortPayload> {
    let (value_blocks, _) = values.as_chunks::<PAIRS_PER_BLOCK>();
    for (index, from) in value_blocks.iter().enumerate().take(MAX_BLOCKS) {
        if index >= blocks {
            break;
        }
        let to = payload.block_mut(index).ok_or(ShortPayload)?;
        for (to, from) in pairs_mut(to).iter_mut().zip(from) {
            to.set(*from);
        }
    }
    Ok(())
}

#[inline(always)]
fn combine_with<P: Payload + ?Sized>(
    values: &mut Values,
    payload: &P,
    blocks: usize,
    f: impl Fn(u32, u32) -> u32,
) -> Result<(), ShortPayload> {
    let (value_blocks, _) = values.as_chunks_mut::<PAIRS_PER_BLOCK>();
    for (index, to) in value_blocks.iter_mut().enumerate().take(MAX_BLOCKS) {
        if index >= blocks {
            break;
        }
        let to: &mut [[u32; 2]; PAIRS_PER_BLOCK] = transmute_mut!(to);
        for (to, pair) in to.iter_mut().zip(pairs(payload.block(index).ok_or(ShortPayload)?)) {
            let lanes = halves(pair.get());
            to[FIRST] = f(to[FIRST], lanes[0]);
            to[1 - FIRST] = f(to[1 - FIRST], lanes[1]);
        }
    }
    Ok(())
}

/// Where the first lane of a pair lies in memory.
const FIRST: usize = cfg!(target_endian = "little") as usize;
const PAIRS_PER_BLOCK: usize = LANES_PER_BLOCK / 2;

/// Two lanes as one number, the first one in the upper half.
#[inline(always)]
fn pairs(block: &Block) -> &[U64; PAIRS_PER_BLOCK] {
    transmute_ref!(block)
}

#[inline(always)]
fn pairs_mut(block: &mut Block) -> &mut [U64; PAIRS_PER_BLOCK] {
    transmute_mut!(block)
}

/// The two lanes of a pair.
#[inline(always)]
const fn halves(pair: u64) -> [u32; 2] {
    [(pair >> 32) as u32, pair as u32]
}
