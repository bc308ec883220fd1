//! Packets that a data plane loses on purpose, for tests (rule 24.15).

use std::fmt;
use std::str::FromStr;

/// The share of packets that a data plane loses, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DropRate(f64);

impl DropRate {
    /// A packet is lost if 32 random bits are below this.
    pub fn threshold(self) -> u64 {
        (self.0 * 2f64.powi(32)).round() as u64
    }

    /// The same of 16 random bits; at least 1 if packets are to be lost at all.
    pub fn threshold_of_16(self) -> u32 {
        if self.0 > 0.0 { (self.0 * 2f64.powi(16)).round().max(1.0) as u32 } else { 0 }
    }

    /// What to add to the description of a data plane with this rate.
    pub fn note(self) -> String {
        if self == Self::default() { String::new() } else { format!("; FOR TESTS, it {self}") }
    }
}

impl FromStr for DropRate {
    type Err = &'static str;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        given
            .parse()
            .ok()
            .filter(|share| (0.0..=1.0).contains(share))
            .map(Self)
            .ok_or("0 to 1 are allowed: 0.05 loses 5 % of the packets")
    }
}

impl fmt::Display for DropRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not every share of 1 is a whole number of hundredths: 0.07 * 100 is not 7.
        write!(f, "loses {} % of the packets that reach it", (self.0 * 1e8).round() / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_share() {
        for (given, threshold, words) in [
            ("0", 0, ""),
            ("0.5", 1 << 31, "; FOR TESTS, it loses 50 % of the packets that reach it"),
            // 0.07 * 2^32 = 300647710.72
            ("0.07", 300_647_711, "; FOR TESTS, it loses 7 % of the packets that reach it"),
            ("1", 1 << 32, "; FOR TESTS, it loses 100 % of the packets that reach it"),
        ] {
            let rate: DropRate = given.parse().unwrap();
            assert_eq!((rate.threshold(), &*rate.note()), (threshold, words));
        }
        // 0.05 * 2^16 = 3276.8, 0.000001 * 2^16 = 0.07
        for (given, threshold) in [("0", 0), ("0.000001", 1), ("0.05", 3277), ("1", 1 << 16)] {
            assert_eq!(given.parse::<DropRate>().unwrap().threshold_of_16(), threshold);
        }
        for wrong in ["", "5%", "-0.1", "1.01", "5", "nan", "inf"] {
            assert!(wrong.parse::<DropRate>().is_err(), "{wrong}");
        }
    }
}
