//! The places of a call's data chunks in its elements, and the rank whose part they belong to.
//!
//! Of a reduce-scatter and an all-gather each rank has a part, and the chunks of one part go to, or
//! come from, one rank's link. So the order goes from part to part after each bundle (rule 17.9),
//! and all links are in use all the time.

use std::ops::Range;

/// Chunks of a call in their order.
pub(crate) enum Layout {
    /// In the order of the elements.
    Straight {
        /// Bytes of the elements.
        len: usize,
        /// Bytes of a full chunk.
        full: usize,
    },
    /// A bundle of each part in turn.
    Striped {
        /// Bytes of a full chunk.
        full: usize,
        /// Runs in the order of their chunks.
        runs: Vec<Run>,
        /// Number of chunks.
        chunks: usize,
    },
}

/// Chunks of one part that follow each other.
pub(crate) struct Run {
    /// Number of the first chunk.
    first: usize,
    bytes: Range<usize>,
    owner: u16,
}

impl Layout {
    /// Parts whose bytes are these, of ranks 0, 1, …, in chunks of `full` bytes and bundles of
    /// `bundle` chunks.
    pub fn striped(parts: &[Range<usize>], full: usize, bundle: usize) -> Self {
        let (mut runs, mut chunks) = (Vec::new(), 0);
        let step = bundle * full;
        let longest = parts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        for from in (0..longest).step_by(step) {
            for (owner, part) in (0..).zip(parts) {
                let start = (part.start + from).min(part.end);
                let bytes = start..(start + step).min(part.end);
                if !bytes.is_empty() {
                    let first = chunks;
                    chunks += bytes.len().div_ceil(full);
                    runs.push(Run { first, bytes, owner });
                }
            }
        }
        Self::Striped { full, runs, chunks }
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        match self {
            Self::Straight { len, full } => len.div_ceil(*full),
            Self::Striped { chunks, .. } => *chunks,
        }
    }

    /// The bytes of a chunk; none behind the last one.
    pub fn range(&self, chunk: usize) -> Range<usize> {
        let (bytes, place, full) = match self {
            Self::Straight { len, full } => (0..*len, chunk, *full),
            Self::Striped { full, .. } => match self.run(chunk) {
                Some(run) => (run.bytes.clone(), chunk - run.first, *full),
                None => (0..0, 0, *full),
            },
        };
        let start = (bytes.start + place * full).min(bytes.end);
        start..(start + full).min(bytes.end)
    }

    /// The rank to whose part a chunk belongs.
    pub fn owner(&self, chunk: usize) -> Option<u16> {
        self.run(chunk).map(|run| run.owner)
    }

    fn run(&self, chunk: usize) -> Option<&Run> {
        let Self::Striped { runs, .. } = self else { return None };
        runs.partition_point(|run| run.first <= chunk).checked_sub(1).map(|at| &runs[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bundles_of_the_parts_take_turns() {
        // Parts of 5, 3 and 0 chunks, the last of each shorter; bundles of two.
        let layout = Layout::striped(&[0..45, 45..70, 70..70], 10, 2);
        let ranges: Vec<_> = (0..layout.chunks())
            .map(|chunk| (layout.owner(chunk).unwrap(), layout.range(chunk)))
            .collect();
        let expected = [
            (0, 0..10),
            (0, 10..20),
            (1, 45..55),
            (1, 55..65),
            (0, 20..30),
            (0, 30..40),
            (1, 65..70),
            (0, 40..45),
        ];
        assert_eq!(ranges, expected);
        assert!(layout.range(8).is_empty() && layout.range(12).is_empty());
    }

    proptest! {
        #[test]
        fn chunks_cover_each_byte_once(
            lens in proptest::collection::vec(0usize..300, 1..9),
            full in 1usize..40,
            bundle in 1usize..9,
        ) {
            let mut end = 0;
            let parts: Vec<_> = lens
                .iter()
                .map(|len| {
                    end += len;
                    end - len..end
                })
                .collect();
            let layout = Layout::striped(&parts, full, bundle);
            let mut seen = vec![None; end];
            for chunk in 0..layout.chunks() {
                let range = layout.range(chunk);
                prop_assert!((1..=full).contains(&range.len()));
                let owner = layout.owner(chunk).unwrap();
                let part = &parts[usize::from(owner)];
                prop_assert!(part.start <= range.start && range.end <= part.end);
                for byte in range {
                    prop_assert!(seen[byte].replace(owner).is_none());
                }
            }
            prop_assert!(seen.iter().all(Option::is_some));
        }
    }
}
