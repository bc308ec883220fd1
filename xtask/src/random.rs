//! Numbers drawn from a seed.

/// SplitMix64 (Steele, Lea and Flood).
pub struct Random(pub u64);

impl Random {
    /// From 0 to below 1.
    pub fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word >> 40) as f64 / (1u64 << 24) as f64
    }

    /// From 0 to below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.share() * end as f64) as usize
    }
}
