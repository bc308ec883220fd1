//! The payload's loops, as global functions of BPF: the verifier checks each of them once, on its
//! own, instead of along every path through the program that comes by it. Inlined, they exceed its
//! limit of a million instructions.

use core::arch::asm;
use core::ptr;

use aya_ebpf::bindings::xdp_md;
use switchml_protocol::lanes::{self, Block, Payload, ShortPayload, Values};
use switchml_protocol::wire::auth::Key;
use switchml_protocol::wire::header::{Header, Op};
use switchml_protocol::{MAX_BLOCKS, MAX_LANES, U32, U64};

use crate::bounds::at_most;

/// A loop over the blocks of a payload: a function of [`lanes`].
#[derive(Clone, Copy)]
pub enum Loop {
    Sum,
    Fold,
    Exchange,
    Add,
    Subtract,
    Maximum,
    Load,
}

/// A pointer by which a global function can reach a payload.
pub trait Pointer: Copy {
    /// Whether it is null: verifiers want to see addresses checked for that.
    fn is_null(self) -> bool;

    /// Whether a loop that changes values prefetches them itself ([`fetch`]), or its caller does:
    /// verifiers should follow the loop from one state, not from one for each exit of [`fetch`].
    const FETCHES: bool;

    /// Block `index`, if the payload is that long.
    ///
    /// # Safety
    ///
    /// As for [`Lanes::new`].
    unsafe fn block(self, index: usize) -> Option<*mut Block>;

    /// The two lanes from `lane` on, if the payload is that long.
    ///
    /// # Safety
    ///
    /// As for [`Lanes::new`].
    unsafe fn pair(self, lane: usize) -> Option<*mut U64>;
}

/// A payload that was copied into a map, with room for a tag.
#[repr(C)]
pub struct Copied([Block; MAX_BLOCKS], U64);

impl Pointer for *mut Copied {
    #[inline(always)]
    fn is_null(self) -> bool {
        self.is_null()
    }

    /// For copies, verifiers keep the states of the exits apart in any case, and one more call
    /// inside the loop's function would take too much stack.
    const FETCHES: bool = false;

    #[inline(always)]
    unsafe fn block(self, index: usize) -> Option<*mut Block> {
        // SAFETY: the caller vouches for the address, and the block is one of the copy's.
        (index < MAX_BLOCKS).then(|| unsafe { self.cast::<Block>().add(index) })
    }

    #[inline(always)]
    unsafe fn pair(self, lane: usize) -> Option<*mut U64> {
        // SAFETY: as above; behind the lanes there is room for two more.
        at_most(MAX_LANES, lane).map(|lane| unsafe { self.cast::<U32>().add(lane).cast() })
    }
}

/// A pointer with global functions for its payload. [`loops!`] declares them.
pub trait Loops: Pointer {
    /// Calls the global function of a loop between payload and values. Returns the loop's result,
    /// if it has one, or [`SHORT`].
    ///
    /// # Safety
    ///
    /// As for [`Lanes::new`]. The values are borrowed, mutably except for [`Loop::Load`]; or null
    /// for [`Loop::Sum`] and [`Loop::Fold`], whose `blocks` are lanes.
    unsafe fn call(self, which: Loop, values: *mut Values, blocks: usize) -> u64;
}

/// What a loop returns when the payload is too short.
const SHORT: u64 = u64::MAX;

/// The payload that a pointer leads to.
pub struct Lanes<P>(P);

impl<P: Loops> Lanes<P> {
    /// The payload that the pointer leads to.
    ///
    /// # Safety
    ///
    /// The context is that of the running program, or the copy is borrowed. Nothing else uses the
    /// payload meanwhile.
    #[inline(always)]
    pub const unsafe fn new(pointer: P) -> Self {
        Self(pointer)
    }

    #[inline(always)]
    fn call(&self, which: Loop, values: *mut Values, blocks: usize) -> Result<u32, ShortPayload> {
        // SAFETY: who made this has vouched for the pointer; the methods below borrow the values.
        let result = unsafe { self.0.call(which, values, blocks) };
        u32::try_from(result).map_err(|_| ShortPayload)
    }
}

impl<P: Loops> Payload for Lanes<P> {
    #[inline(always)]
    fn block(&self, index: usize) -> Option<&Block> {
        // SAFETY: as in `call`; the block lies in the payload, and is borrowed from `self`.
        unsafe { self.0.block(index).map(|block| &*block) }
    }

    #[inline(always)]
    fn block_mut(&mut self, index: usize) -> Option<&mut Block> {
        // SAFETY: as in `block`.
        unsafe { self.0.block(index).map(|block| &mut *block) }
    }

    #[inline(always)]
    fn tag(key: &Key, header: &Header) -> U64 {
        // SAFETY: the header is borrowed.
        U64::new(unsafe { packet_tag(&raw const *header, key.0[0], key.0[1]) })
    }

    #[inline(always)]
    fn pair(&self, lane: usize) -> Option<U64> {
        // SAFETY: as in `block`.
        unsafe { self.0.pair(lane).map(|pair| pair.read()) }
    }

    #[inline(always)]
    fn set_pair(&mut self, lane: usize, pair: U64) -> Option<()> {
        // SAFETY: as in `block`.
        unsafe { self.0.pair(lane).map(|to| to.write(pair)) }
    }

    #[inline(always)]
    fn made(mut sums: [u32; 2]) -> [u32; 2] {
        // The registers are named because a template that names its operands is a comment, not
        // empty, and the loader takes the line information of no instruction for a mistake.
        // SAFETY: no instruction.
        unsafe { asm!("", inout("r7") sums[0], inout("r8") sums[1]) };
        sums
    }

    #[inline(always)]
    fn sum(&self, blocks: usize) -> Result<u32, ShortPayload> {
        self.call(Loop::Sum, ptr::null_mut(), blocks)
    }

    #[inline(always)]
    fn fold(&self, lanes: usize) -> Result<u32, ShortPayload> {
        self.call(Loop::Fold, ptr::null_mut(), lanes)
    }

    #[inline(always)]
    fn exchange_with(&mut self, values: &mut Values, blocks: usize) -> Result<u32, ShortPayload> {
        self.call(Loop::Exchange, values, blocks)
    }

    #[inline(always)]
    fn add_to(&self, values: &mut Values, blocks: usize) -> Result<u32, ShortPayload> {
        self.call(Loop::Add, values, blocks)
    }

    #[inline(always)]
    fn subtract_from(&self, values: &mut Values, blocks: usize) -> Result<(), ShortPayload> {
        self.call(Loop::Subtract, values, blocks).map(drop)
    }

    #[inline(always)]
    fn combine_into(&self, op: Op, values: &mut Values, blocks: usize) -> Result<(), ShortPayload> {
        let which = match op {
            Op::Sum => Loop::Add,
            Op::Max => Loop::Maximum,
        };
        self.call(which, values, blocks).map(drop)
    }

    #[inline(always)]
    fn load_from(&mut self, values: &Values, blocks: usize) -> Result<(), ShortPayload> {
        self.call(Loop::Load, (&raw const *values).cast_mut(), blocks).map(drop)
    }
}

/// The tag of the packet with this header by the key of these words.
///
/// # Safety
///
/// The header is borrowed, or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn packet_tag(header: *const Header, first: u64, second: u64) -> u64 {
    // SAFETY: the caller vouches for it.
    let Some(header) = (unsafe { header.as_ref() }) else { return 0 };
    Key([first, second]).tag(header).get()
}

/// The body of the global functions.
///
/// # Safety
///
/// As for [`Loops::call`].
#[inline(always)]
unsafe fn run<P: Loops>(which: Loop, pointer: P, values: *mut Values, blocks: u32) -> u64 {
    let blocks = blocks as usize;
    if pointer.is_null() {
        return SHORT;
    }
    let mut payload = Lanes(pointer);
    let result = if let Loop::Sum = which {
        lanes::sum(&payload, blocks)
    } else if let Loop::Fold = which {
        lanes::fold(&payload, blocks)
    } else if let Loop::Load = which {
        // SAFETY: the caller vouches for the values.
        let Some(values) = (unsafe { values.as_ref() }) else { return SHORT };
        lanes::load(values, &mut payload, blocks).map(|()| 0)
    } else {
        // SAFETY: the caller vouches for the values.
        let Some(values) = (unsafe { values.as_mut() }) else { return SHORT };
        if P::FETCHES {
            const MASK: usize = (MAX_BLOCKS + 1).next_power_of_two() - 1;
            let mut fetched = blocks;
            // SAFETY: only registers are used. The compiler would leave out a mask that changes
            // nothing.
            unsafe { asm!("{blocks} &= {mask}", blocks = inout(reg) fetched, mask = const MASK) };
            fetch(values, fetched as u32);
        }
        match which {
            Loop::Add => lanes::add(values, &payload, blocks),
            Loop::Subtract => lanes::subtract(values, &payload, blocks).map(|()| 0),
            Loop::Maximum => lanes::combine(Op::Max, values, &payload, blocks).map(|()| 0),
            _ => lanes::exchange(values, &mut payload, blocks),
        }
    };
    result.map_or(SHORT, u64::from)
}

/// Reads a word of each cache line, so that all lines come from another CPU's cache at once; they
/// are usually there. The following loop would wait for one after the other.
#[inline(always)]
fn fetch(values: &Values, blocks: u32) {
    const PER_LINE: usize = 64 / size_of::<u64>();
    const PER_BLOCK: usize = size_of::<Block>() / size_of::<u64>();
    let (value_blocks, _) = values.as_chunks::<PER_BLOCK>();
    for (index, block) in value_blocks.iter().enumerate() {
        if index >= blocks as usize {
            break;
        }
        for pair in block.iter().step_by(PER_LINE) {
            // SAFETY: the reference is valid.
            unsafe { (&raw const *pair).read_volatile() };
        }
    }
}

/// [`fetch`], as a global function.
///
/// # Safety
///
/// The values are borrowed, or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn fetch_values(values: *const Values, blocks: u32) -> u64 {
    // SAFETY: the caller vouches for them.
    if let Some(values) = unsafe { values.as_ref() } {
        fetch(values, blocks);
    }
    0
}

/// Declares a global function, which runs a loop. It takes only the arguments that the loop needs:
/// the compiler does not set an argument that nothing reads, and verifiers refuse one that is not
/// set.
macro_rules! global {
    ($function:ident($Pointer:ty $(, $argument:ident: $Argument:ty)?),
     $which:ident, $values:expr) => {
        /// See [`Loops::call`].
        ///
        /// # Safety
        ///
        /// As for [`Loops::call`]; null pointers are no payload.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub unsafe extern "C" fn $function(
            pointer: $Pointer,
            $($argument: $Argument,)?
            blocks: u32,
        ) -> u64 {
            // SAFETY: the caller vouches for the pointers.
            unsafe { run(Loop::$which, pointer, $values, blocks) }
        }
    };
}

/// Declares the global functions for payloads behind that pointer.
macro_rules! loops {
    ($Pointer:ty: $sum:ident, $fold:ident, $exchange:ident, $add:ident, $subtract:ident,
     $maximum:ident, $load:ident) => {
        global!($sum($Pointer), Sum, ptr::null_mut());
        global!($fold($Pointer), Fold, ptr::null_mut());
        global!($exchange($Pointer, values: *mut Values), Exchange, values);
        global!($add($Pointer, values: *mut Values), Add, values);
        global!($subtract($Pointer, values: *mut Values), Subtract, values);
        global!($maximum($Pointer, values: *mut Values), Maximum, values);
        global!($load($Pointer, values: *mut Values), Load, values);

        impl Loops for $Pointer {
            #[inline(always)]
            unsafe fn call(self, which: Loop, values: *mut Values, blocks: usize) -> u64 {
                let blocks = blocks as u32;
                let changes = !matches!(which, Loop::Sum | Loop::Fold | Loop::Load);
                // SAFETY: the caller vouches for the pointers.
                unsafe {
                    if changes && !Self::FETCHES {
                        fetch_values(values, blocks);
                    }
                    match which {
                        Loop::Sum => $sum(self, blocks),
                        Loop::Fold => $fold(self, blocks),
                        Loop::Exchange => $exchange(self, values, blocks),
                        Loop::Add => $add(self, values, blocks),
                        Loop::Subtract => $subtract(self, values, blocks),
                        Loop::Maximum => $maximum(self, values, blocks),
                        Loop::Load => $load(self, values, blocks),
                    }
                }
            }
        }
    };
}

loops! {
    *mut xdp_md:
    payload_sum, payload_fold, payload_exchange, payload_add, payload_subtract, payload_maximum,
    payload_load
}

loops! {
    *mut Copied:
    copied_sum, copied_fold, copied_exchange, copied_add, copied_subtract, copied_maximum,
    copied_load
}
