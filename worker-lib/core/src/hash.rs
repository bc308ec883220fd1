//! A hash with the same value on all ranks.

/// Hash of a run of words: two rounds of a multiply-xorshift mixer (Steele, Lea and Flood's
/// SplitMix64 finaliser) over each. Each step can be undone, so a change that is confined to one
/// word always shows.
pub(crate) fn fold(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0u64, |hash, word| mix(hash.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ word))
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}
