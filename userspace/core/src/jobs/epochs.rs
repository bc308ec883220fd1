//! Which epoch comes next: never one twice, and none can be guessed from another (rule 10.1).

use std::hash::Hasher;

use rand::{Rng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

/// As many rounds as NIST SP 800-38G has for FF1, which is a Feistel network, too.
const ROUNDS: u8 = 10;

/// The epochs of a data plane, in their order: a permutation of all 32-bit numbers, determined by a
/// secret key. So an epoch comes again only after all others, and some epochs reveal nothing about
/// the rest, except that they are different.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epochs {
    key: [u64; 2],
    /// Places in the permutation that were used.
    used: u32,
}

impl Epochs {
    /// Epochs of a data plane that has used none.
    pub fn new(rng: &mut StdRng) -> Self {
        Self { key: [rng.next_u64(), rng.next_u64()], used: 0 }
    }

    /// The next epoch, which is not 0.
    pub fn draw(&mut self) -> u32 {
        loop {
            let epoch = self.permute(self.used);
            self.used = self.used.wrapping_add(1);
            if epoch != 0 {
                return epoch;
            }
        }
    }

    /// A Feistel network: it is a permutation for any round function.
    fn permute(&self, place: u32) -> u32 {
        let halves = ((place >> 16) as u16, place as u16);
        let (left, right) = (0..ROUNDS)
            .fold(halves, |(left, right), round| (right, left ^ self.round(round, right)));
        u32::from(left) << 16 | u32::from(right)
    }

    fn round(&self, round: u8, half: u16) -> u16 {
        let mut hasher = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        let [high, low] = half.to_be_bytes();
        hasher.write(&[round, high, low]);
        hasher.finish() as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use std::collections::HashSet;

    fn epochs(seed: u64) -> Epochs {
        Epochs::new(&mut StdRng::seed_from_u64(seed))
    }

    /// The place of an epoch: the rounds undone, from the last to the first.
    fn place(epochs: &Epochs, epoch: u32) -> u32 {
        let halves = ((epoch >> 16) as u16, epoch as u16);
        let (left, right) = (0..ROUNDS)
            .rev()
            .fold(halves, |(left, right), round| (right ^ epochs.round(round, left), left));
        u32::from(left) << 16 | u32::from(right)
    }

    #[test]
    fn each_has_a_place_of_its_own() {
        let epochs = epochs(1);
        for at in (0..1000).chain(u32::MAX - 1000..=u32::MAX).chain((0..32).map(|bit| 1 << bit)) {
            assert_eq!(place(&epochs, epochs.permute(at)), at);
        }
        let mut next = epochs.clone();
        assert_eq!((0..100_000).map(|_| next.draw()).collect::<HashSet<_>>().len(), 100_000);
    }

    #[test]
    fn none_is_0() {
        let mut epochs = epochs(2);
        epochs.used = place(&epochs, 0);
        let after = epochs.permute(epochs.used.wrapping_add(1));
        assert_eq!(epochs.draw(), after);
    }

    /// Neither the difference of two epochs nor their common bits tell the next one.
    #[test]
    fn those_of_a_key_look_random() {
        let mut epochs = epochs(3);
        let drawn: Vec<u32> = (0..10_000).map(|_| epochs.draw()).collect();
        let steps: HashSet<_> =
            drawn.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        // Of 9,999 random steps, 0.01 pairs coincide on average; 5 or more practically never do.
        assert!(steps.len() > 9_994, "{}", steps.len());
        for bit in 0..32 {
            // Binomial(9,999, 1/2): 5,000 on average, standard deviation 50.
            let flips = drawn.windows(2).filter(|pair| (pair[0] ^ pair[1]) >> bit & 1 == 1).count();
            assert!((4_700..5_300).contains(&flips), "bit {bit}: {flips}");
        }
    }

    #[test]
    fn another_key_another_order() {
        let (mut one, mut other) = (epochs(4), epochs(5));
        // In two lists of 1,000 random numbers, 0.0002 places on average have the same number.
        assert!((0..1000).all(|_| one.draw() != other.draw()));
    }

    #[test]
    fn what_was_kept_goes_on_where_it_was() {
        let mut first = epochs(6);
        (0..7).for_each(|_| assert_ne!(first.draw(), 0));
        let text = serde_json::to_string(&first).unwrap();
        let mut next: Epochs = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (0..100).map(|_| next.draw()).collect::<Vec<_>>(),
            (0..100).map(|_| first.draw()).collect::<Vec<_>>()
        );
    }

    /// A daemon of a later version must go on with the same permutation: these come from another
    /// implementation of SipHash-2-4.
    #[test]
    fn the_permutation_is_fixed() {
        let epochs = Epochs { key: [0x0706_0504_0302_0100, 0x0F0E_0D0C_0B0A_0908], used: 0 };
        assert_eq!(
            [0, 1, u32::MAX].map(|place| epochs.permute(place)),
            [0x743C_5645, 0x70C9_D5F2, 0x8A68_DDD7]
        );
    }
}
