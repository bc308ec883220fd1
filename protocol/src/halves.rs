//! A word of a payload as two i16, its halves.

#[inline(always)]
fn halves(lane: u32) -> (i16, i16) {
    ((lane >> 16) as i16, lane as i16)
}

/// Adds both i16 halves of two lanes.
#[inline(always)]
pub(crate) const fn add_halves(a: u32, b: u32) -> u32 {
    // Without the top bits nothing carries from half to half; these are added by exclusive or.
    const TOP_BITS: u32 = 0x8000_8000;
    ((a & !TOP_BITS) + (b & !TOP_BITS)) ^ ((a ^ b) & TOP_BITS)
}

/// Applies `f` to both i16 halves of two lanes.
#[inline(always)]
pub(crate) fn by_halves(a: u32, b: u32, f: impl Fn(i16, i16) -> i16) -> u32 {
    let ((a_high, a_low), (b_high, b_low)) = (halves(a), halves(b));
    u32::from(f(a_high, b_high) as u16) << 16 | u32::from(f(a_low, b_low) as u16)
}
