//! Cuts the stream of chunks into bundles: runs of packets that go out together, in one
//! superpacket, which may also hold the next bundle's first packets.
//!
//! A switch that takes superpackets whole sends the result on when the last rank's has come. Ranks
//! that cut at different places complete a part of a superpacket at a time, and the rest of it
//! travels again. So the cuts follow from what all ranks know alike, a chunk's place in its
//! collective (rule 12.9): before the first exponent chunk, before the first data chunk, and after
//! each full bundle. The window is each rank's own; a smaller one halves bundles, which puts more
//! cuts between those of the others.

use crate::engine::Chunk;

/// Full bundles are multiples of this, so that they can be halved twice.
pub(crate) const HALVES: u32 = 4;

/// Follows the stream of a rank's new chunks.
#[derive(Clone, Debug)]
pub(crate) struct Bundles {
    /// Chunks of a full bundle, at least 1.
    full: u32,
    /// Collective and op of the previous chunk: exponent chunks have their own op, and so has each
    /// rank's part of a reduce-scatter or an all-gather.
    run: Option<(u64, u8)>,
    /// Chunks of the latest full bundle that are out.
    place: u32,
    /// Number of further chunks for which room is reserved.
    granted: u32,
}

impl Bundles {
    /// Bundles for superpackets of up to `most` packets.
    pub fn new(most: u32) -> Self {
        let full = if most < HALVES { most.max(1) } else { most - most % HALVES };
        Self { full, run: None, place: 0, granted: 0 }
    }

    /// Whether there is room reserved for the next chunk, `chunk`, in its bundle.
    pub fn goes_on(&self, chunk: &Chunk) -> bool {
        self.granted > 0 && self.run == Some((chunk.collective, chunk.wire_op()))
    }

    /// Whether there is `room` for all chunks that go out together, from the next chunk, `chunk`,
    /// on, with a window of this size. Fewer may be left.
    pub fn begin(&mut self, chunk: &Chunk, room: u32, window: u32) -> bool {
        let run = Some((chunk.collective, chunk.wire_op()));
        if self.run != run {
            (self.run, self.place) = (run, 0);
        }
        let rest = self.rest(window);
        self.granted = if room < rest { 0 } else { rest };
        self.granted > 0
    }

    /// Counts the next chunk, which goes out.
    pub fn advance(&mut self) {
        self.granted -= 1;
        self.place += 1;
        if self.place == self.full {
            self.place = 0;
        }
    }

    /// A chunk comes in between that goes out alone.
    pub fn interrupt(&mut self) {
        (self.run, self.granted) = (None, 0);
    }

    /// No chunk follows for now: releases the reserved room.
    pub fn pause(&mut self) {
        self.granted = 0;
    }

    /// Number of chunks that go out together: up to the end of their bundle.
    fn rest(&self, window: u32) -> u32 {
        let size = self.size(window);
        (size - self.place % size).min(self.full - self.place)
    }

    /// Chunks of a bundle: at most half of the window, so that one bundle is in flight while
    /// another's result is received.
    fn size(&self, window: u32) -> u32 {
        let mut size = self.full;
        while size > 1 && 2 * size > window {
            size /= 2;
        }
        size
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::Part;
    use switchml_protocol::wire::audience::Audience;
    use switchml_protocol::wire::header::Op;

    fn chunk(collective: u64, op: Op) -> Chunk {
        Chunk {
            collective,
            part: Part::Data(0),
            op,
            audience: Audience::All,
            lanes: 32,
            fingerprint: 0,
            empty: false,
            may_wait: false,
        }
    }

    #[test]
    fn full_bundles_from_the_beginning_of_each_run() {
        let runs = [(0, Op::Max, 3), (0, Op::Sum, 100), (1, Op::Sum, 50)];
        let chunks: Vec<_> = runs
            .into_iter()
            .flat_map(|(number, op, count)| vec![chunk(number, op); count])
            .collect();
        let mut bundles = Bundles::new(45);
        let starts: Vec<_> = (0..chunks.len())
            .filter(|&number| {
                let begins = !bundles.goes_on(&chunks[number]);
                assert!(!begins || bundles.begin(&chunks[number], 200, 200));
                bundles.advance();
                begins
            })
            .collect();
        assert_eq!(starts, [0, 3, 47, 91, 103, 147]);
    }

    #[test]
    fn a_bundle_waits_for_room_for_all_of_it() {
        let (mut bundles, chunk) = (Bundles::new(45), chunk(0, Op::Sum));
        assert!(!bundles.begin(&chunk, 43, 200) && !bundles.goes_on(&chunk));
        assert!(bundles.begin(&chunk, 44, 200));
        bundles.advance();
        assert!(bundles.goes_on(&chunk));
        bundles.pause();
        assert!(!bundles.goes_on(&chunk) && !bundles.begin(&chunk, 42, 200));
        assert!(bundles.begin(&chunk, 43, 200));
    }

    #[test]
    fn what_comes_in_between_ends_a_bundle() {
        let (mut bundles, chunk) = (Bundles::new(16), chunk(0, Op::Sum));
        for _ in 0..2 {
            assert!(!bundles.goes_on(&chunk), "there may be no room");
            assert!(!bundles.begin(&chunk, 15, 200) && bundles.begin(&chunk, 16, 200));
            (0..12).for_each(|_| bundles.advance());
            bundles.interrupt();
        }
    }

    #[test]
    fn at_most_half_a_window() {
        let bundles = Bundles::new(45);
        let sizes = [1000, 88, 87, 44, 43, 22, 16, 4, 2, 1, 0].map(|window| bundles.rest(window));
        assert_eq!(sizes, [44, 44, 22, 22, 11, 11, 5, 2, 1, 1, 1]);
        assert_eq!([1, 2, 3, 4, 21].map(|most| Bundles::new(most).full), [1, 2, 3, 4, 20]);
        assert_eq!(Bundles::new(0).rest(0), 1);
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
                bundles.pause();
                let rest = bundles.rest(window);
                prop_assert!(bundles.begin(&chunk(0, Op::Sum), rest, window));
                prop_assert!((1..=(window / 2).max(1)).contains(&rest));
                prop_assert!(place % bundles.full + rest <= bundles.full);
                bundles.advance();
            }
        }
    }
}
