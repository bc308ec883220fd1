//! The progress of a shard, and the ranks that its oldest unfinished round lacks. Both are found by
//! reading few of its slots. All its unfinished rounds are found by reading all of them.

use switchml_protocol::job::JobEntry;
use switchml_protocol::ranks::{Ranks, Words};
use switchml_protocol::slot::{SetHead, Slot};
use switchml_protocol::{MAX_RANKS, RANKS_PER_GROUP};

/// The progress of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of chunks begun since the start of the epoch.
    pub begun: u64,
    /// The oldest unfinished chunk, if there is one.
    pub unfinished: Option<Unfinished>,
}

impl Progress {
    /// Number of chunks completed: all that are older than the oldest unfinished one.
    pub fn complete(&self) -> u64 {
        self.unfinished.as_ref().map_or(self.begun, |unfinished| unfinished.chunk)
    }
}

/// A round that lacks contributions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The chunk that it adds up, counted from the start of the epoch (section 12 of
    /// `docs/protocol.md`).
    pub chunk: u64,
    /// The ranks whose contributions it lacks.
    pub lacks: Ranks,
}

/// The newest round of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    round: u32,
    /// The missing ranks; none if the round is complete, or will never be.
    lacks: Ranks,
}

/// The newest round of a slot in the job's epoch, if it has had one.
pub fn newest(job: &JobEntry, slot: &Slot) -> Option<Newest> {
    let [even, odd] = &slot.sets;
    let is_used = |head: &SetHead| head.epoch == job.epoch;
    let set = match (is_used(&even.head), is_used(&odd.head)) {
        (false, false) => return None,
        (true, false) => even,
        (false, true) => odd,
        (true, true) => {
            let is_later = odd.head.round.wrapping_sub(even.head.round) as i32 > 0;
            if is_later { odd } else { even }
        }
    };
    let lacks = if set.head.is_filling() { lacking(job, &set.seen) } else { Ranks::NONE };
    Some(Newest { round: set.head.round, lacks })
}

fn lacking(job: &JobEntry, seen: &Words) -> Ranks {
    let is_in = |rank: u16| seen[usize::from(rank / RANKS_PER_GROUP)] >> (rank % RANKS_PER_GROUP);
    (0..job.ranks.min(MAX_RANKS as u32) as u16).filter(|rank| is_in(*rank) & 1 == 0).collect()
}

/// The progress of a shard with `slots` slots, which `look` reads one at a time.
///
/// Chunks start and complete in order, so two binary searches are enough: for the newest chunk,
/// then for the oldest unfinished one. If packets overtook each other, the searches may find a
/// later chunk, or none.
pub fn progress<E>(
    slots: u32,
    mut look: impl FnMut(u32) -> Result<Option<Newest>, E>,
) -> Result<Progress, E> {
    if slots == 0 {
        return Ok(Progress::default());
    }
    let Some(Newest { round, .. }) = look(0)? else { return Ok(Progress::default()) };
    // The first `begun` slots are at the same round as slot 0.
    let (mut begun, mut end) = (1, slots);
    while begun < end {
        let middle = begun + (end - begun) / 2;
        match look(middle)? {
            Some(newest) if newest.round == round => begun = middle + 1,
            _ => end = middle,
        }
    }
    let slots = u64::from(slots);
    let next = u64::from(round) * slots + u64::from(begun);
    let (mut oldest, mut end) = (next.saturating_sub(slots), next);
    let mut unfinished = None;
    while oldest < end {
        let chunk = oldest + (end - oldest) / 2;
        match look((chunk % slots) as u32)? {
            Some(Newest { lacks, .. }) if !lacks.is_empty() => {
                unfinished = Some(Unfinished { chunk, lacks });
                end = chunk;
            }
            _ => oldest = chunk + 1,
        }
    }
    Ok(Progress { begun: next, unfinished })
}

/// All unfinished chunks of a shard with `slots` slots, the oldest first. `look` reads a slot.
pub fn all_unfinished<E>(
    slots: u32,
    mut look: impl FnMut(u32) -> Result<Option<Newest>, E>,
) -> Result<Vec<Unfinished>, E> {
    let mut found = Vec::new();
    for slot in 0..slots {
        if let Some(Newest { round, lacks }) = look(slot)?
            && !lacks.is_empty()
        {
            let chunk = u64::from(round) * u64::from(slots) + u64::from(slot);
            found.push(Unfinished { chunk, lacks });
        }
    }
    found.sort_by_key(|unfinished| unfinished.chunk);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// The newest round of slot `slot` of `slots`, when the chunks below `next` have begun, and
    /// those below `complete` are complete. The others lack rank 3, and the newest also lacks rank
    /// 1.
    fn shown(slot: u32, slots: u32, complete: u64, next: u64) -> Option<Newest> {
        let chunk = (0..next).rev().find(|chunk| chunk % u64::from(slots) == u64::from(slot))?;
        let lacks = match chunk {
            _ if chunk < complete => Ranks::NONE,
            _ if chunk + 1 == next => Ranks::from([1, 3]),
            _ => Ranks::from([3]),
        };
        Some(Newest { round: (chunk / u64::from(slots)) as u32, lacks })
    }

    /// Of 8 slots, chunks 5 to 9 are begun and lack ranks: 8 and 9 are the next round of slots 0
    /// and 1.
    #[test]
    fn all_unfinished_chunks_are_found_the_oldest_first() {
        let found = all_unfinished(8, |slot| Ok::<_, Infallible>(shown(slot, 8, 5, 10)));
        let chunk = |chunk| Unfinished { chunk, lacks: Ranks::from([3]) };
        let last = Unfinished { chunk: 9, lacks: Ranks::from([1, 3]) };
        assert_eq!(found, Ok(vec![chunk(5), chunk(6), chunk(7), chunk(8), last]));
        let none = all_unfinished(8, |slot| Ok::<_, Infallible>(shown(slot, 8, 10, 10)));
        assert_eq!(none, Ok(Vec::new()));
    }

    proptest! {
        /// The oldest unfinished chunk is found by reading few slots, whichever chunks are
        /// complete.
        #[test]
        fn the_oldest_chunk_that_is_not_complete_is_found(
            bits in 0u32..=9,
            next in 0u64..2_000,
            open in 0u64..512,
        ) {
            let slots = 1 << bits;
            let open = open.min(next).min(u64::from(slots));
            let complete = next - open;
            let mut looks = 0;
            let found = progress(slots, |slot| {
                looks += 1;
                Ok::<_, Infallible>(shown(slot, slots, complete, next))
            });
            let lacks = if open == 1 { Ranks::from([1, 3]) } else { Ranks::from([3]) };
            let unfinished = (open > 0).then_some(Unfinished { chunk: complete, lacks });
            prop_assert_eq!(found, Ok(Progress { begun: next, unfinished }));
            prop_assert!(looks <= 1 + 2 * (bits + 1), "{} looks", looks);
        }
    }
}
