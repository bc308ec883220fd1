//! How far a job is, and the rounds that ranks are missing in, from the registers of the program.

use std::ops::Range;

use switchml_protocol::ranks::Ranks;
use switchml_userspace_core::oldest_round::{Alike, Newest, Progress, all_unfinished, progress};

use crate::entries::{OpenJob, RANKS, ROUNDS};
use crate::switch::{Switch, SwitchError};

/// A job's slots with unfinished rounds, the oldest round first; `None` of a combiner, which has
/// cells instead of slots. Packets change them meanwhile.
pub fn unfinished(switch: &dyn Switch, job: &OpenJob) -> Result<Option<Vec<Alike>>, SwitchError> {
    let slots = slots(job);
    let sets = read(switch, job, 0..slots, |register| switch.renew(register))?;
    if sets.is_empty() {
        return Ok(None);
    }
    all_unfinished(slots, |slot| Ok(newest(job, &sets, slot))).map(Some)
}

/// The progress of a job, if it has slots. Reads some 20 of them, while packets change them: a
/// single result may be wrong. But of a round that two looks in turn find unfinished, the second
/// one finds the ranks: they are read before the round is.
pub fn progress_of(switch: &dyn Switch, job: &OpenJob) -> Result<Option<Progress>, SwitchError> {
    if job.first_rounds().is_empty() {
        return Ok(None);
    }
    switch.renew(RANKS)?;
    switch.renew(ROUNDS)?;
    let look = |slot| Ok(newest(job, &read(switch, job, slot..slot + 1, |_| Ok(()))?, 0));
    progress(slots(job), look).map(Some)
}

fn slots(job: &OpenJob) -> u32 {
    job.spec.slots.end - job.spec.slots.start
}

/// The sets of slots for even rounds, or those for odd ones.
struct Sets {
    /// What the register of rounds holds before a set is first used.
    unused: u32,
    rounds: Vec<u32>,
    ranks: Vec<u32>,
}

/// The sets of these slots, none of a combiner. `renew` is called for each register before it is
/// read.
fn read(
    switch: &dyn Switch,
    job: &OpenJob,
    slots: Range<u32>,
    renew: impl Fn(&str) -> Result<(), SwitchError>,
) -> Result<Vec<Sets>, SwitchError> {
    // Before a rank is known nothing has begun, in whatever pipeline.
    let port = job.bindings.values().next().map(|binding| binding.ifindex as u16);
    let pipeline = port.map_or(0, |port| switch.pipeline(port));
    let mut sets = Vec::new();
    for (indices, unused) in job.first_rounds() {
        let indices = indices.start + slots.start..indices.start + slots.end;
        let read = |name| {
            renew(name)?;
            switch.read_register(name, pipeline, indices.clone())
        };
        let (before, ranks, after) = (read(ROUNDS)?, read(RANKS)?, read(ROUNDS)?);
        // Who is in a round that began between these reads is not known.
        let same = |(before, after)| if before == after { before } else { unused };
        let rounds = before.into_iter().zip(after).map(same).collect();
        sets.push(Sets { unused, rounds, ranks });
    }
    Ok(sets)
}

/// The newest round of one of the slots that were read.
fn newest(job: &OpenJob, sets: &[Sets], slot: u32) -> Option<Newest> {
    let rounds = sets.iter().filter_map(|set| {
        let (round, seen) = (*set.rounds.get(slot as usize)?, *set.ranks.get(slot as usize)?);
        (round != set.unused).then_some((round, seen))
    });
    // Where rounds wrap around, the older one of the two is taken for unused.
    let (round, seen) = rounds.max_by_key(|(round, _)| *round)?;
    Some(Newest { round, lacks: lacking(job, seen), operation: None })
}

/// The ranks whose bits are not among those of the ranks that are in.
fn lacking(job: &OpenJob, seen: u32) -> Ranks {
    let ranks = 0..job.spec.secrets.len() as u16;
    ranks.filter(|rank| u64::from(seen) >> rank & 1 == 0).collect()
}
