//! Bounds of lanes, as every verifier learns them.

use core::arch::asm;

use switchml_protocol::MAX_LANES;

/// A power of two above the number of any lane.
pub const LANE_BOUND: usize = (MAX_LANES + 1).next_power_of_two();

/// `lane` if it is at most `max`; bounded by [`LANE_BOUND`] for verifiers.
///
/// The verifier of Linux 6.1 forgets a comparison if the compiler has put the number onto the stack
/// before. It remembers the bounds that a number has when it is put there.
#[inline(always)]
pub fn at_most(max: usize, mut lane: usize) -> Option<usize> {
    // SAFETY: only registers are used. The compiler would leave out a mask that changes nothing.
    unsafe { asm!("{lane} &= {mask}", lane = inout(reg) lane, mask = const LANE_BOUND - 1) };
    (lane <= max).then_some(lane)
}
