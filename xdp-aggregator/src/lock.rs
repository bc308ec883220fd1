//! A try-lock with a bounded number of tries: a BPF program may not wait forever.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xchg};

/// Far longer than adding the largest packet takes when the slot's values are in another CPU's
/// cache, which is the usual case: ranks send the same chunk at the same time. A holder that takes
/// longer was interrupted.
const TRIES: u32 = 2048;
const FREE: u32 = 0;
const HELD: u32 = 1;

// Relaxed or acquire-release atomics miscompile on this target when their result is used:
// sequentially consistent ones.
const ORDER: AtomicOrdering = AtomicOrdering::SeqCst;

/// Takes the lock; false if another CPU keeps it for too long.
///
/// # Safety
///
/// `word` is a lock word in a map's value, which nothing but this module writes to.
#[inline(always)]
pub unsafe fn acquire(word: *mut u32) -> bool {
    // The programs that log each packet have no stack left for another call.
    if cfg!(feature = "trace") {
        // SAFETY: the caller vouches for the pointer.
        unsafe { wait(word) }
    } else {
        // SAFETY: as above.
        unsafe { acquire_lock(word) != 0 }
    }
}

/// [`wait`], as a global function, which verifiers check on its own: they follow each of its turns
/// once, and not on every path to the call.
///
/// # Safety
///
/// As for [`acquire`], or the pointer is null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn acquire_lock(word: *mut u32) -> u64 {
    // SAFETY: the caller vouches for the pointer.
    u64::from(!word.is_null() && unsafe { wait(word) })
}

/// [`acquire`] without a function call: a combiner's program at tc has no stack left for a call on
/// Linux 6.1, which counts 32 bytes for it.
///
/// # Safety
///
/// As for [`acquire`].
#[inline(always)]
pub unsafe fn wait(word: *mut u32) -> bool {
    for _ in 0..TRIES {
        // SAFETY: the caller vouches for the pointer; all accesses to the word are atomic.
        let (_, taken) = unsafe { atomic_cxchg::<u32, ORDER, ORDER>(word, FREE, HELD) };
        if taken {
            return true;
        }
    }
    false
}

/// Gives the lock back.
///
/// # Safety
///
/// As for [`acquire`], which must have returned true to the caller.
#[inline(always)]
pub unsafe fn release(word: *mut u32) {
    // SAFETY: as in `acquire`.
    unsafe { atomic_xchg::<u32, ORDER>(word, FREE) };
}
