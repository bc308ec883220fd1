//! Where the stream of chunks is cut into bundles: runs of packets that go out together, as one
//! superpacket.
//!
//! A switch that takes superpackets whole sends the result on when the last rank's has come. Ranks
//! that cut at different places complete a part of a superpacket at a time, and the rest of it
//! travels again. So the cuts follow from what all ranks know alike, a chunk's place in its
//! collective: before the first exponent chunk, before the first data chunk, and after each full
//! bundle. The window is each rank's own; a smaller one halves bundles, which puts more cuts
//! between those of the others.

use switchml_protocol::header::Op;

use crate::engine::Chunk;

/// What full bundles are multiples of: they can be halved twice.
pub(crate) const HALVES: u32 = 4;

/// Follows the stream of a rank's new chunks.
#[derive(Clone, Debug)]
pub(crate) struct Bundles {
    /// Chunks of a full bundle, at least 1.
    full: u32,
    /// Collective and operator of the chunk before: exponent chunks have an operator of their own.
    run: Option<(u64, Op)>,
    /// Chunks of its latest full bundle that are out.
    place: u32,
}

impl Bundles {
    /// For superpackets of up to `most` packets.
    pub fn new(most: u32) -> Self {
        let full = if most < HALVES { most.max(1) } else { most - most % HALVES };
        Self { full, run: None, place: 0 }
    }

    /// How many chunks go out together from the next one, `chunk`, on, if the window is of this
    /// size: up to the end of its bundle. There may be fewer left.
    pub fn rest(&self, chunk: &Chunk, window: u32) -> u32 {
        let (size, place) = (self.size(window), self.place_of(chunk));
        (size - place % size).min(self.full - place)
    }

    /// The next chunk, `chunk`, goes out.
    pub fn advance(&mut self, chunk: &Chunk) {
        self.place = (self.place_of(chunk) + 1) % self.full;
        self.run = Some((chunk.collective, chunk.op));
    }

    /// Chunks of a bundle: no more than half of the window, so that one is under way while the
    /// result of another is taken in.
    fn size(&self, window: u32) -> u32 {
        let mut size = self.full;
        while size > 1 && 2 * size > window {
            size /= 2;
        }
        size
    }

    fn place_of(&self, chunk: &Chunk) -> u32 {
        if self.run == Some((chunk.collective, chunk.op)) { self.place } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::Part;

    fn chunk(collective: u64, op: Op) -> Chunk {
        Chunk { collective, part: Part::Data(0), op, lanes: 32, fingerprint: 0, empty: false }
    }

    #[test]
    fn full_bundles_from_the_beginning_of_each_run() {
        let runs = [(0, Op::Max, 3), (0, Op::Sum, 100), (1, Op::Sum, 50)];
        let chunks: Vec<_> = runs
            .into_iter()
            .flat_map(|(number, op, count)| vec![chunk(number, op); count])
            .collect();
        let starts: Vec<_> = (0..chunks.len())
            .scan(Bundles::new(45), |bundles, number| {
                let rest = bundles.rest(&chunks[number], 200);
                bundles.advance(&chunks[number]);
                Some((number, rest))
            })
            .filter(|(_, rest)| *rest == 44)
            .map(|(number, _)| number)
            .collect();
        assert_eq!(starts, [0, 3, 47, 91, 103, 147]);
    }

    #[test]
    fn at_most_half_a_window() {
        let bundles = Bundles::new(45);
        let sizes = [1000, 88, 87, 44, 43, 22, 16, 4, 2, 1, 0]
            .map(|window| bundles.rest(&chunk(0, Op::Sum), window));
        assert_eq!(sizes, [44, 44, 22, 22, 11, 11, 5, 2, 1, 1, 1]);
        assert_eq!([1, 2, 3, 4, 21].map(|most| Bundles::new(most).full), [1, 2, 3, 4, 20]);
        assert_eq!(Bundles::new(0).rest(&chunk(0, Op::Sum), 0), 1);
    }

    proptest! {
        /// However a rank's window changes, its bundles do not reach over the cuts between full
        /// ones.
        #[test]
        fn small_windows_keep_the_cuts_of_large_ones(
            most in 1u32..64,
            windows in proptest::collection::vec(0u32..300, 1..500),
        ) {
            let mut bundles = Bundles::new(most);
            for (place, window) in (0..).zip(windows) {
                let rest = bundles.rest(&chunk(0, Op::Sum), window);
                prop_assert!((1..=(window / 2).max(1)).contains(&rest));
                prop_assert!(place % bundles.full + rest <= bundles.full);
                bundles.advance(&chunk(0, Op::Sum));
            }
        }
    }
}
