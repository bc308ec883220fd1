//! The progress of a shard, and the ranks that its oldest unfinished round lacks. Both are found by
//! reading few of its slots. All its unfinished rounds are found by reading all of them.

use std::ops::Range;

use switchml_protocol::bpf_types::job::JobEntry;
use switchml_protocol::ranks::{Ranks, Words};
use switchml_protocol::root::slot::{SetHead, Slot};
use switchml_protocol::wire::header::Op;
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
    /// `docs/spec`).
    pub chunk: u64,
    /// The ranks whose contributions it lacks.
    pub lacks: Ranks,
}

/// The newest round of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The round.
    pub round: u32,
    /// The missing ranks; none if the round is complete, or will never be.
    pub lacks: Ranks,
    /// How lanes are combined, and how many, if that is known.
    pub operation: Option<(Op, u16)>,
}

/// Slots one after the other, whose newest rounds are alike, and lack ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alike {
    /// The slots, counted in their shard.
    pub slots: Range<u32>,
    /// What is the same in all of them.
    pub newest: Newest,
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
    let operation = Op::of(set.head.op).map(|op| (op, set.head.lanes));
    Some(Newest { round: set.head.round, lacks, operation })
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

/// The slots of a shard with `slots` slots whose rounds are unfinished, the oldest round first.
/// `look` reads a slot.
pub fn all_unfinished<E>(
    slots: u32,
    mut look: impl FnMut(u32) -> Result<Option<Newest>, E>,
) -> Result<Vec<Alike>, E> {
    let mut found: Vec<Alike> = Vec::new();
    for slot in 0..slots {
        let Some(newest) = look(slot)?.filter(|newest| !newest.lacks.is_empty()) else { continue };
        match found.last_mut() {
            Some(last) if last.slots.end == slot && last.newest == newest => last.slots.end += 1,
            _ => found.push(Alike { slots: slot..slot + 1, newest }),
        }
    }
    found.sort_by_key(|alike| (alike.newest.round, alike.slots.start));
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
        let operation = Some((Op::Sum, 352));
        Some(Newest { round: (chunk / u64::from(slots)) as u32, lacks, operation })
    }

    /// Of 8 slots, chunks 5 to 9 are begun and lack ranks: 8 and 9 are the next round of slots 0
    /// and 1, and the last one lacks one more.
    #[test]
    fn unfinished_slots_that_are_alike_are_found_together_the_oldest_first() {
        let find = |complete, look: &dyn Fn(u32) -> Option<Newest>| {
            let shown = |slot| look(slot).or_else(|| shown(slot, 8, complete, 10));
            all_unfinished(8, |slot| Ok::<_, Infallible>(shown(slot))).unwrap()
        };
        let alike = |slots, round, lacks: &[u16]| {
            let lacks = lacks.iter().copied().collect();
            Alike { slots, newest: Newest { round, lacks, operation: Some((Op::Sum, 352)) } }
        };
        let all = [alike(5..8, 0, &[3]), alike(0..1, 1, &[3]), alike(1..2, 1, &[1, 3])];
        assert_eq!(find(5, &|_| None), all);
        assert_eq!(find(10, &|_| None), []);
        // Another operation in slot 6.
        let other = Newest { operation: Some((Op::Max, 352)), ..all[0].newest };
        let found = find(5, &|slot| (slot == 6).then_some(other));
        let slots: Vec<_> = found.iter().map(|alike| alike.slots.clone()).collect();
        assert_eq!(slots, [5..6, 6..7, 7..8, 0..1, 1..2]);
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
