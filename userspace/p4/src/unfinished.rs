//! The rounds that ranks are missing in, from the registers of the program.

use switchml_protocol::ranks::Ranks;
use switchml_userspace_core::oldest_round::{Alike, Newest, all_unfinished};

use crate::entries::{OpenJob, RANKS, ROUNDS};
use crate::switch::{Switch, SwitchError};

/// A job's slots with unfinished rounds, the oldest round first, if the switch shows its registers.
/// Packets change them meanwhile.
pub fn unfinished(switch: &dyn Switch, job: &OpenJob) -> Result<Option<Vec<Alike>>, SwitchError> {
    let parts = job.first_rounds();
    if parts.is_empty() {
        // A combiner has cells instead of slots.
        return Ok(None);
    }
    let mut sets = Vec::new();
    for (indices, unused) in parts {
        let before = switch.read_register(ROUNDS, indices.clone())?;
        let ranks = switch.read_register(RANKS, indices.clone())?;
        let after = switch.read_register(ROUNDS, indices)?;
        let (Some(before), Some(ranks), Some(after)) = (before, ranks, after) else {
            return Ok(None);
        };
        // Who is in a round that began between these reads is not known.
        let same = |(before, after)| if before == after { before } else { unused };
        sets.push((unused, before.into_iter().zip(after).map(same).collect::<Vec<_>>(), ranks));
    }
    let look = |slot: u32| {
        let sets = sets.iter().filter_map(|(unused, rounds, ranks)| {
            let (round, seen) = (*rounds.get(slot as usize)?, *ranks.get(slot as usize)?);
            (round != *unused).then_some((round, seen))
        });
        // Where rounds wrap around, the older one of the two is taken for unused.
        let newest = sets.max_by_key(|(round, _)| *round);
        Ok(newest.map(|(round, seen)| Newest { round, lacks: lacking(job, seen), operation: None }))
    };
    all_unfinished(job.spec.slots.end - job.spec.slots.start, look).map(Some)
}

/// The ranks whose bits are not among those of the ranks that are in.
fn lacking(job: &OpenJob, seen: u32) -> Ranks {
    let ranks = 0..job.spec.secrets.len() as u16;
    ranks.filter(|rank| u64::from(seen) >> rank & 1 == 0).collect()
}
