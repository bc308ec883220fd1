//! A bad link: a tc program at the ingress of each end of a wire, which sends each frame out of the
//! other end, or drops it.
//!
//! Program: `impair`. Maps: `DIRECTIONS` and `HELD`, see the library of this crate.
//!
//! Only frames of the aggregation protocol are impaired; other traffic (ARP, the control plane's
//! TCP) passes unchanged. A frame is held back by storing its bytes while others pass. Only a frame
//! can make the program run, so a frame that is held when traffic ends is sent when there is
//! traffic again, however late.
#![no_std]
#![no_main]
// The entry point that the `classifier` macro makes has no documentation.
#![allow(missing_docs)]
// core::sync::atomic is nearly empty on this target.
#![feature(core_intrinsics)]
#![allow(internal_features)]

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd, atomic_xchg};

use aya_ebpf::bindings::{__sk_buff, TC_ACT_OK, TC_ACT_SHOT};
use aya_ebpf::btf_maps::{Array, HashMap};
use aya_ebpf::helpers::{
    bpf_clone_redirect, bpf_redirect, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes,
};
use aya_ebpf::macros::{btf_map, classifier};
use aya_ebpf::programs::TcContext;
use impairment_bpf::{Counter, Direction, Held, MAX_DISTANCE, MAX_FRAME, ROOM, below, random};
use switchml_protocol::DATA_PORT;
use switchml_protocol::node::frame::{Envelope, Ipv4, Ipv6};
use switchml_protocol::node::roce::{self, Transport};
use switchml_protocol::wire::header::HEADER_LEN;

/// Both directions of each link that a rack may have.
const MAX_DIRECTIONS: usize = 32;

#[btf_map]
static DIRECTIONS: HashMap<u32, Direction, MAX_DIRECTIONS> = HashMap::new();
#[btf_map]
static HELD: Array<Held, { MAX_DIRECTIONS * ROOM as usize }> = Array::new();

const ETHERNET: u32 = 14;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xDD];
const UDP: u8 = 17;
/// Length of the UDP header.
const UDP_LEN: usize = 8;

// Relaxed or acquire-release atomics miscompile on this target when their result is used, so these
// are sequentially consistent.
const ORDER: AtomicOrdering = AtomicOrdering::SeqCst;

/// The decision that each random word of a frame makes.
#[repr(u64)]
enum Draw {
    Loss,
    Duplication,
    Reordering,
    Distance,
    Corruption,
    Flips,
    CorruptedBit,
    FlippedBit,
}

/// Sends a frame on, or drops it.
#[classifier]
pub fn impair(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    // SAFETY: the context is the one of the running program.
    let from = unsafe { (*skb).ifindex };
    let Some(direction) = DIRECTIONS.get_ptr_mut(from) else { return TC_ACT_OK };
    let wire = Wire { skb, direction };
    match envelope_len(skb) {
        Some(len) => wire.impair((len + HEADER_LEN) as u32),
        None => wire.redirect(),
    }
}

/// A frame, and its direction.
struct Wire {
    skb: *mut __sk_buff,
    /// Stays valid while the program runs. User space writes to it before the program is attached.
    direction: *mut Direction,
}

impl Wire {
    /// Impairs a frame of the protocol, whose headers end at `headers`. Returns the verdict.
    #[inline(always)]
    fn impair(&self, headers: u32) -> i32 {
        // SAFETY: `direction` is valid; the counter is only changed by atomics.
        let number =
            unsafe { atomic_xadd::<u64, u64, ORDER>(&raw mut (*self.direction).sequence, 1) };
        self.count(Counter::Frames);
        let faults = self.direction().faults;
        let current_goes = if self.happens(number, Draw::Loss, faults.loss) {
            self.count(Counter::Lost);
            false
        } else {
            self.damage(number, headers);
            !(self.happens(number, Draw::Reordering, faults.reordering) && self.hold_back(number))
        };
        let twice = current_goes && self.happens(number, Draw::Duplication, faults.duplication);
        if twice {
            self.count(Counter::Duplicated);
            self.send_copy();
        }
        match self.find_due(number) {
            Some(held) => {
                if current_goes {
                    self.send_copy();
                }
                self.release(held)
            }
            None if current_goes => self.redirect(),
            None => TC_ACT_SHOT,
        }
    }

    /// Flips bits.
    #[inline(always)]
    fn damage(&self, number: u64, headers: u32) {
        let faults = self.direction().faults;
        if self.happens(number, Draw::Corruption, faults.corruption) {
            self.count(Counter::Corrupted);
            self.flip(ETHERNET, headers - ETHERNET, self.random(number, Draw::CorruptedBit));
        }
        // SAFETY: the context is the one of the running program.
        let len = unsafe { (*self.skb).len };
        if len > headers && self.happens(number, Draw::Flips, faults.flips) {
            self.count(Counter::Flipped);
            self.flip(headers, len - headers, self.random(number, Draw::FlippedBit));
        }
    }

    /// Flips one random bit of the `len` bytes from `start` on.
    #[inline(always)]
    fn flip(&self, start: u32, len: u32, random: u64) {
        let offset = start + below(len, random);
        let mut byte = 0u8;
        // SAFETY: the context is the one of the running program, and the pointer is to one byte.
        let loaded =
            unsafe { bpf_skb_load_bytes(self.skb.cast(), offset, (&raw mut byte).cast(), 1) };
        let flipped = byte ^ 1 << (random & 7);
        // SAFETY: as above.
        let store =
            || unsafe { bpf_skb_store_bytes(self.skb, offset, (&raw const flipped).cast(), 1, 0) };
        if loaded != 0 || store() != 0 {
            self.count(Counter::Failed);
        }
    }

    /// Holds the frame back; false when there is no room.
    #[inline(always)]
    fn hold_back(&self, number: u64) -> bool {
        // SAFETY: the context is the one of the running program.
        let len = unsafe { (*self.skb).len };
        let Some(held) = self.find(|held| take(held, Held::FREE)) else {
            self.count(Counter::NoRoom);
            return false;
        };
        let distance = self.direction().faults.distance.clamp(1, MAX_DISTANCE);
        let due = number + 1 + u64::from(below(distance, self.random(number, Draw::Distance)));
        // The verifier must see that the compared value is the one passed on.
        let len = core::hint::black_box(len);
        // SAFETY: only this run uses the entry since `take`.
        let bytes = unsafe { (&raw mut (*held).bytes).cast() };
        let state = if (1..=MAX_FRAME as u32).contains(&len)
            // SAFETY: the frame fits into the entry.
            && unsafe { bpf_skb_load_bytes(self.skb.cast(), 0, bytes, len) } == 0
        {
            // SAFETY: as above.
            unsafe {
                (*held).len = len;
                (*held).due = due;
            }
            self.count(Counter::Reordered);
            Held::FULL
        } else {
            self.count(Counter::Failed);
            Held::FREE
        };
        give_back(held, state);
        state == Held::FULL
    }

    /// A frame that was held back for long enough, taken.
    #[inline(always)]
    fn find_due(&self, number: u64) -> Option<*mut Held> {
        if self.direction().faults.reordering == 0 {
            return None;
        }
        self.find(|held| {
            // SAFETY: the entry stays valid. Another CPU may write to it; it is looked at again
            // once it is taken.
            let due = || unsafe { (&raw const (*held).due).read_volatile() <= number };
            if !due() || !take(held, Held::FULL) {
                return false;
            }
            if !due() {
                give_back(held, Held::FULL);
                return false;
            }
            true
        })
    }

    /// Sends a held frame in place of the current one.
    #[inline(always)]
    fn release(&self, held: *mut Held) -> i32 {
        // SAFETY: only this run uses the entry.
        let len = core::hint::black_box(unsafe { (*held).len });
        // SAFETY: as above.
        let bytes = unsafe { (&raw const (*held).bytes).cast() };
        let written = (1..=MAX_FRAME as u32).contains(&len)
            // SAFETY: the context is the one of the running program; the entry holds `len` bytes.
            && unsafe {
                bpf_skb_change_tail(self.skb, len, 0) == 0
                    && bpf_skb_store_bytes(self.skb, 0, bytes, len, 0) == 0
            };
        give_back(held, Held::FREE);
        if !written {
            self.count(Counter::Failed);
            return TC_ACT_SHOT;
        }
        self.count(Counter::Released);
        self.redirect()
    }

    /// The first entry of the direction for which `f` is true.
    #[inline(always)]
    fn find(&self, f: impl Fn(*mut Held) -> bool) -> Option<*mut Held> {
        let first = self.direction().first_held;
        for index in 0..ROOM {
            let held = HELD.get_ptr_mut(first + index)?;
            if f(held) {
                return Some(held);
            }
        }
        None
    }

    /// Sends a copy of the frame.
    #[inline(always)]
    fn send_copy(&self) {
        // SAFETY: the context is the one of the running program.
        if unsafe { bpf_clone_redirect(self.skb, self.direction().to, 0) } < 0 {
            self.count(Counter::Failed);
        }
    }

    /// The verdict that sends the frame.
    #[inline(always)]
    fn redirect(&self) -> i32 {
        // SAFETY: no pointer is passed.
        unsafe { bpf_redirect(self.direction().to, 0) as i32 }
    }

    #[inline(always)]
    fn happens(&self, number: u64, draw: Draw, threshold: u32) -> bool {
        threshold != 0 && (self.random(number, draw) >> 32) < u64::from(threshold)
    }

    #[inline(always)]
    fn random(&self, number: u64, draw: Draw) -> u64 {
        random(self.direction().seed, number, draw as u64)
    }

    #[inline(always)]
    fn count(&self, counter: Counter) {
        // SAFETY: as in `impair`.
        unsafe {
            atomic_xadd::<u64, u64, ORDER>(&raw mut (*self.direction).counters[counter as usize], 1)
        };
    }

    #[inline(always)]
    fn direction(&self) -> &Direction {
        // SAFETY: the pointer is valid; fields that change are not read through this reference.
        unsafe { &*self.direction }
    }
}

/// Takes an entry that is in this state; false if it is not.
#[inline(always)]
fn take(held: *mut Held, state: u32) -> bool {
    // SAFETY: the entry of a map stays valid; its state is only changed by atomics.
    unsafe { atomic_cxchg::<u32, ORDER, ORDER>(&raw mut (*held).state, state, Held::BUSY).1 }
}

/// Releases an entry that was taken.
#[inline(always)]
fn give_back(held: *mut Held, state: u32) {
    // SAFETY: as in `take`.
    unsafe { atomic_xchg::<u32, ORDER>(&raw mut (*held).state, state) };
}

/// Length of the headers in front of the packet, if the frame is UDP to or from the data plane's
/// port, or RoCEv2.
#[inline(always)]
fn envelope_len(skb: *mut __sk_buff) -> Option<usize> {
    // EtherType up to IPv4's protocol field; IPv6's comes earlier.
    let start: [u8; 12] = load(skb, 12)?;
    let len = match ([start[0], start[1]], start[2] >> 4) {
        (ETHERTYPE_IPV4, 4) if start[2] == 0x45 && start[11] == UDP => Envelope::<Ipv4>::LEN,
        (ETHERTYPE_IPV6, 6) if start[8] == UDP => Envelope::<Ipv6>::LEN,
        _ => return None,
    };
    let ports: [u8; 4] = load(skb, (len - UDP_LEN) as u32)?;
    let [source, destination] =
        [[ports[0], ports[1]], [ports[2], ports[3]]].map(u16::from_be_bytes);
    match destination {
        roce::PORT => Some(len + Transport::LEN),
        _ if source == DATA_PORT || destination == DATA_PORT => Some(len),
        _ => None,
    }
}

/// Bytes of the frame from `offset` on, if the frame is long enough.
#[inline(always)]
fn load<const N: usize>(skb: *mut __sk_buff, offset: u32) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the context is the one of the running program; the buffer has that length.
    let loaded =
        unsafe { bpf_skb_load_bytes(skb.cast(), offset, (&raw mut bytes).cast(), N as u32) };
    (loaded == 0).then_some(bytes)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

// Only GPL-compatible programs may use bpf_clone_redirect and other functions.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
