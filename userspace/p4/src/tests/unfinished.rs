//! Unfinished rounds, as registers have them: a job's sets for even rounds begin at twice its first
//! slot, those for odd rounds follow (rule 24.7, docs/research/tofino.md).

use switchml_protocol::ranks::Ranks;
use switchml_userspace_core::data_plane::{DataPlane, ServesJobs};
use switchml_userspace_core::oldest_round::{Alike, Newest, Progress, Unfinished};

use super::changes::Bench;
use super::spec;

const ALL: u32 = 0b111;

fn lack(slots: std::ops::Range<u32>, round: u32, ranks: &[u16]) -> Alike {
    let lacks: Ranks = ranks.iter().copied().collect();
    Alike { slots, newest: Newest { round, lacks, operation: None } }
}

#[test]
fn the_newest_rounds_of_sets_lack_the_ranks_whose_bits_are_not_set() {
    let bench = Bench::new();
    // Three ranks, slots 16 to 31: even sets are 32 to 47, odd ones 48 to 63.
    bench.data_plane.open(&spec(1, 3, 16..32)).unwrap();
    let unfinished = || bench.data_plane.unfinished(1).unwrap();
    assert_eq!(unfinished(), Some(vec![]));
    let [even, odd] = [32, 48];
    // Slots 2 and 3 wait for rank 1 in their first round.
    bench.contribute(even + 2, 0, 0b101);
    bench.contribute(even + 3, 0, 0b101);
    // Slot 4 has finished its first round, and so has slot 5, which has begun the next one.
    bench.contribute(even + 4, 0, ALL);
    bench.contribute(even + 5, 0, ALL);
    bench.contribute(odd + 5, 1, 0b001);
    // Slot 6 is at its third round. Slot 7 begins with 0 again, after 2^32 rounds.
    bench.contribute(odd + 6, 1, ALL);
    bench.contribute(even + 6, 2, 0b010);
    bench.contribute(odd + 7, u32::MAX, ALL);
    bench.contribute(even + 7, 0, 0b011);
    let expected = vec![
        lack(2..4, 0, &[1]),
        lack(7..8, 0, &[2]),
        lack(5..6, 1, &[1, 2]),
        lack(6..7, 2, &[0, 2]),
    ];
    assert_eq!(unfinished(), Some(expected));
}

/// The registers still hold an earlier job's ranks.
#[test]
fn a_new_job_has_begun_nothing() {
    let bench = Bench::new();
    bench.contribute(32, 6, 0b001);
    bench.contribute(48, 7, 0b001);
    bench.data_plane.open(&spec(1, 3, 16..32)).unwrap();
    assert_eq!(bench.data_plane.unfinished(1).unwrap(), Some(vec![]));
    assert_eq!(bench.data_plane.unfinished(2).unwrap(), Some(vec![]), "no such job");
}

/// Of 16 slots, chunks 0 to 18 have begun: slots 0 to 2 are in their second round. The oldest that
/// lacks a rank is chunk 14.
#[test]
fn progress_is_the_oldest_round_that_ranks_are_missing_in() {
    let bench = Bench::new();
    let progress = || bench.data_plane.progress(1).unwrap();
    assert_eq!(progress(), None, "no job");
    bench.data_plane.open(&spec(1, 3, 16..32)).unwrap();
    assert_eq!(progress(), Some(Progress::default()));
    let [even, odd] = [32, 48];
    for slot in 0..14 {
        bench.contribute(even + slot, 0, ALL);
    }
    bench.contribute(even + 14, 0, 0b101);
    bench.contribute(even + 15, 0, 0b001);
    for slot in 0..3 {
        bench.contribute(odd + slot, 1, 0b001);
    }
    let lacks = [1].into_iter().collect();
    let unfinished = Some(Unfinished { chunk: 14, lacks });
    assert_eq!(progress(), Some(Progress { begun: 19, unfinished }));
    for slot in [14, 15] {
        bench.contribute(even + slot, 0, ALL);
    }
    let lacks = [1, 2].into_iter().collect();
    let unfinished = Some(Unfinished { chunk: 16, lacks });
    assert_eq!(progress(), Some(Progress { begun: 19, unfinished }));
    for slot in 0..3 {
        bench.contribute(odd + slot, 1, ALL);
    }
    assert_eq!(progress(), Some(Progress { begun: 19, unfinished: None }));
    bench.data_plane.abort(1).unwrap();
    assert_eq!(progress(), None, "nobody waits for its ranks");
}
