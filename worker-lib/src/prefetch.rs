//! A hint to the processor that memory will be read soon.

#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

/// Has the processor fetch these bytes into its cache, if it knows how to be asked.
///
/// Tensors do not fit into caches. Processors fetch ahead by themselves, but start again on each
/// page and each chunk.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch affects only caches, whatever the address; this address is in a slice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
