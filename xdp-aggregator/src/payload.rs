//! The payload's loops, as global functions of BPF: the verifier checks each of them once, on its
//! own, instead of along every path through the program that comes by it. Inlined, they exceed its
//! limit of a million instructions.

use core::arch::asm;

use aya_ebpf::bindings::xdp_md;
use switchml_protocol::header::Op;
use switchml_protocol::lanes::{self, Block, Payload, ShortPayload, Values};
use switchml_protocol::{MAX_LANES, U32};

use crate::packet::Frame;

/// The payload of a frame.
pub struct Lanes<'a>(&'a Frame);

impl<'a> Lanes<'a> {
    /// The payload of that frame.
    ///
    /// # Safety
    ///
    /// Nothing else has the payload for as long.
    #[inline(always)]
    pub const unsafe fn new(frame: &'a Frame) -> Self {
        Self(frame)
    }

    #[inline(always)]
    fn context(&self) -> *mut xdp_md {
        self.0.context()
    }
}

impl Payload for Lanes<'_> {
    #[inline(always)]
    fn block(&self, index: usize) -> Option<&Block> {
        // SAFETY: the block lies in the frame, and is borrowed from `self`.
        self.0.block(index).map(|block| unsafe { &*block })
    }

    #[inline(always)]
    fn block_mut(&mut self, index: usize) -> Option<&mut Block> {
        // SAFETY: as in `block`.
        self.0.block(index).map(|block| unsafe { &mut *block })
    }

    #[inline(always)]
    fn sum(&self, op: Op, blocks: usize) -> Result<u32, ShortPayload> {
        // SAFETY: the context is that of the running program.
        let sum = unsafe { payload_sum(self.context(), op as u32, blocks as u32) };
        u32::try_from(sum).map_err(|_| ShortPayload)
    }

    #[inline(always)]
    fn store_in(&self, values: &mut Values, blocks: usize) -> Result<(), ShortPayload> {
        // SAFETY: as in `sum`; `values` is borrowed for as long as the call takes.
        done(unsafe { payload_store(self.context(), values, blocks as u32) })
    }

    #[inline(always)]
    fn made(sums: [u32; 2]) -> [u32; 2] {
        made(sums)
    }

    #[inline(always)]
    fn add_to(&self, op: Op, values: &mut Values, blocks: usize) -> Result<u32, ShortPayload> {
        // SAFETY: as in `store_in`.
        let sum = unsafe { payload_add(self.context(), values, op as u32, blocks as u32) };
        u32::try_from(sum).map_err(|_| ShortPayload)
    }

    #[inline(always)]
    fn subtract_from(
        &self,
        op: Op,
        values: &mut Values,
        blocks: usize,
    ) -> Result<(), ShortPayload> {
        // SAFETY: as in `store_in`.
        done(unsafe { payload_subtract(self.context(), values, op as u32, blocks as u32) })
    }

    #[inline(always)]
    fn maximum_into(&self, op: Op, values: &mut Values, blocks: usize) -> Result<(), ShortPayload> {
        // SAFETY: as in `store_in`.
        done(unsafe { payload_maximum(self.context(), values, op as u32, blocks as u32) })
    }

    #[inline(always)]
    fn load_from(&mut self, values: &Values, blocks: usize) -> Result<(), ShortPayload> {
        // SAFETY: as in `store_in`; the function only reads `values`.
        done(unsafe {
            payload_load(self.context(), (&raw const *values).cast_mut(), blocks as u32)
        })
    }
}

/// The payload of a packet that was copied into a map.
#[repr(transparent)]
pub struct Copied([U32; MAX_LANES]);

impl Copied {
    #[inline(always)]
    fn as_ptr(&self) -> *mut Copied {
        (&raw const *self).cast_mut()
    }
}

impl Payload for Copied {
    #[inline(always)]
    fn block(&self, index: usize) -> Option<&Block> {
        self.0.as_chunks().0.get(index)
    }

    #[inline(always)]
    fn block_mut(&mut self, index: usize) -> Option<&mut Block> {
        self.0.as_chunks_mut().0.get_mut(index)
    }

    #[inline(always)]
    fn sum(&self, op: Op, blocks: usize) -> Result<u32, ShortPayload> {
        // SAFETY: the function only reads the lanes, which are borrowed for as long as the call
        // takes.
        let sum = unsafe { copied_sum(self.as_ptr(), op as u32, blocks as u32) };
        u32::try_from(sum).map_err(|_| ShortPayload)
    }

    #[inline(always)]
    fn store_in(&self, values: &mut Values, blocks: usize) -> Result<(), ShortPayload> {
        // SAFETY: as in `sum`; `values` is borrowed, too.
        done(unsafe { copied_store(self.as_ptr(), values, blocks as u32) })
    }

    #[inline(always)]
    fn made(sums: [u32; 2]) -> [u32; 2] {
        made(sums)
    }

    #[inline(always)]
    fn add_to(&self, op: Op, values: &mut Values, blocks: usize) -> Result<u32, ShortPayload> {
        // SAFETY: as in `store_in`.
        let sum = unsafe { copied_add(self.as_ptr(), values, op as u32, blocks as u32) };
        u32::try_from(sum).map_err(|_| ShortPayload)
    }

    #[inline(always)]
    fn subtract_from(
        &self,
        op: Op,
        values: &mut Values,
        blocks: usize,
    ) -> Result<(), ShortPayload> {
        // SAFETY: as in `store_in`.
        done(unsafe { copied_subtract(self.as_ptr(), values, op as u32, blocks as u32) })
    }

    #[inline(always)]
    fn maximum_into(&self, op: Op, values: &mut Values, blocks: usize) -> Result<(), ShortPayload> {
        // SAFETY: as in `store_in`.
        done(unsafe { copied_maximum(self.as_ptr(), values, op as u32, blocks as u32) })
    }

    #[inline(always)]
    fn load_from(&mut self, values: &Values, blocks: usize) -> Result<(), ShortPayload> {
        // SAFETY: as in `store_in`; the function only reads `values`.
        done(unsafe { copied_load(self.as_ptr(), (&raw const *values).cast_mut(), blocks as u32) })
    }
}

/// See [`Payload::made`].
#[inline(always)]
fn made(mut sums: [u32; 2]) -> [u32; 2] {
    // The registers are named because a template that names its operands is a comment, not empty,
    // and the loader takes the line information of no instruction for a mistake. SAFETY: no
    // instruction.
    unsafe { asm!("", inout("r7") sums[0], inout("r8") sums[1]) };
    sums
}

const SHORT: u64 = u64::MAX;

#[inline(always)]
fn done(result: u64) -> Result<(), ShortPayload> {
    if result == SHORT { Err(ShortPayload) } else { Ok(()) }
}

#[inline(always)]
fn result_of(result: Result<(), ShortPayload>) -> u64 {
    result.map_or(SHORT, |()| 0)
}

#[inline(always)]
fn op_of(op: u32) -> Op {
    Op::from_wire(op as u8).unwrap_or(Op::SumI32)
}

/// [`lanes::sum`], or [`SHORT`].
///
/// # Safety
///
/// As for [`Frame::new`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn payload_sum(ctx: *mut xdp_md, op: u32, blocks: u32) -> u64 {
    // SAFETY: the caller vouches for the context.
    let frame = unsafe { Frame::new(ctx) };
    lanes::sum(op_of(op), &Lanes(&frame), blocks as usize).map_or(SHORT, u64::from)
}

/// [`lanes::store`]: 0, or [`SHORT`].
///
/// # Safety
///
/// As for [`Frame::new`]; `values` is null or borrowed mutably by the caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn payload_store(ctx: *mut xdp_md, values: *mut Values, blocks: u32) -> u64 {
    // SAFETY: the caller vouches for the context and for the values.
    let (frame, values) = unsafe { (Frame::new(ctx), values.as_mut()) };
    let Some(values) = values else { return SHORT };
    result_of(lanes::store(values, &Lanes(&frame), blocks as usize))
}

/// [`lanes::add`]: the sum, or [`SHORT`].
///
/// # Safety
///
/// As for [`payload_store`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn payload_add(
    ctx: *mut xdp_md,
    values: *mut Values,
    op: u32,
    blocks: u32,
) -> u64 {
    // SAFETY: the caller vouches for the context and for the values.
    let (frame, values) = unsafe { (Frame::new(ctx), values.as_mut()) };
    let Some(values) = values else { return SHORT };
    lanes::add(op_of(op), values, &Lanes(&frame), blocks as usize).map_or(SHORT, u64::from)
}

/// [`lanes::subtract`]: 0, or [`SHORT`].
///
/// # Safety
///
/// As for [`payload_store`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn payload_subtract(
    ctx: *mut xdp_md,
    values: *mut Values,
    op: u32,
    blocks: u32,
) -> u64 {
    // SAFETY: the caller vouches for the context and for the values.
    let (frame, values) = unsafe { (Frame::new(ctx), values.as_mut()) };
    let Some(values) = values else { return SHORT };
    result_of(lanes::subtract(op_of(op), values, &Lanes(&frame), blocks as usize))
}

/// [`lanes::maximum`]: 0, or [`SHORT`].
///
/// # Safety
///
/// As for [`payload_store`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn payload_maximum(
    ctx: *mut xdp_md,
    values: *mut Values,
    op: u32,
    blocks: u32,
) -> u64 {
    // SAFETY: the caller vouches for the context and for the values.
    let (frame, values) = unsafe { (Frame::new(ctx), values.as_mut()) };
    let Some(values) = values else { return SHORT };
    result_of(lanes::maximum(op_of(op), values, &Lanes(&frame), blocks as usize))
}

/// [`lanes::load`]: 0, or [`SHORT`].
///
/// # Safety
///
/// As for [`Frame::new`]; `values` is null or borrowed by the caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn payload_load(ctx: *mut xdp_md, values: *mut Values, blocks: u32) -> u64 {
    // SAFETY: the caller vouches for the context and for the values.
    let (frame, values) = unsafe { (Frame::new(ctx), values.as_ref()) };
    let Some(values) = values else { return SHORT };
    result_of(lanes::load(values, &mut Lanes(&frame), blocks as usize))
}

/// [`lanes::sum`], or [`SHORT`].
///
/// # Safety
///
/// The payload is null or borrowed by the caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn copied_sum(payload: *mut Copied, op: u32, blocks: u32) -> u64 {
    // SAFETY: the caller vouches for the payload.
    let Some(payload) = (unsafe { payload.as_ref() }) else { return SHORT };
    lanes::sum(op_of(op), payload, blocks as usize).map_or(SHORT, u64::from)
}

/// [`lanes::store`]: 0, or [`SHORT`].
///
/// # Safety
///
/// The payload is null or borrowed by the caller, as are the values, mutably.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn copied_store(
    payload: *mut Copied,
    values: *mut Values,
    blocks: u32,
) -> u64 {
    // SAFETY: the caller vouches for both.
    let (Some(payload), Some(values)) = (unsafe { (payload.as_ref(), values.as_mut()) }) else {
        return SHORT;
    };
    result_of(lanes::store(values, payload, blocks as usize))
}

/// [`lanes::add`], or [`SHORT`].
///
/// # Safety
///
/// As for [`copied_store`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn copied_add(
    payload: *mut Copied,
    values: *mut Values,
    op: u32,
    blocks: u32,
) -> u64 {
    // SAFETY: the caller vouches for both.
    let (Some(payload), Some(values)) = (unsafe { (payload.as_ref(), values.as_mut()) }) else {
        return SHORT;
    };
    lanes::add(op_of(op), values, payload, blocks as usize).map_or(SHORT, u64::from)
}

/// [`lanes::subtract`]: 0, or [`SHORT`].
///
/// # Safety
///
/// As for [`copied_store`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn copied_subtract(
    payload: *mut Copied,
    values: *mut Values,
    op: u32,
    blocks: u32,
) -> u64 {
    // SAFETY: the caller vouches for both.
    let (Some(payload), Some(values)) = (unsafe { (payload.as_ref(), values.as_mut()) }) else {
        return SHORT;
    };
    result_of(lanes::subtract(op_of(op), values, payload, blocks as usize))
}

/// [`lanes::maximum`]: 0, or [`SHORT`].
///
/// # Safety
///
/// As for [`copied_store`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn copied_maximum(
    payload: *mut Copied,
    values: *mut Values,
    op: u32,
    blocks: u32,
) -> u64 {
    // SAFETY: the caller vouches for both.
    let (Some(payload), Some(values)) = (unsafe { (payload.as_ref(), values.as_mut()) }) else {
        return SHORT;
    };
    result_of(lanes::maximum(op_of(op), values, payload, blocks as usize))
}

/// [`lanes::load`]: 0, or [`SHORT`].
///
/// # Safety
///
/// The payload is null or borrowed mutably by the caller, as are the values.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn copied_load(
    payload: *mut Copied,
    values: *mut Values,
    blocks: u32,
) -> u64 {
    // SAFETY: the caller vouches for both.
    let (Some(payload), Some(values)) = (unsafe { (payload.as_mut(), values.as_ref()) }) else {
        return SHORT;
    };
    result_of(lanes::load(values, payload, blocks as usize))
}
