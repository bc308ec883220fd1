//! Two CPUs on the same cell of a combiner.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use switchml_protocol::bpf_types::uplink::Uplink;
use switchml_protocol::outcome::Outcome;
use switchml_rack::{Mode, in_both_modes};

use super::{
    Broken, KIND, MOST_ROUNDS, Players, Program, RANKS, ROUNDS, XDP_DROP, contribution, play_on,
    program, sum, without_lock,
};
use crate::combiner::{below, to_parent, uplink};
use crate::cpu::two_cpus;
use switchml_test_support::frame::{JOB, PARTIAL, Packet};
use switchml_test_support::kernel::{Kernel, job, member};

in_both_modes! {
    two_cpus_on_the_same_cell_lose_nothing,
    without_the_lock_two_cpus_break_partial_sums,
}

/// A combiner with one cell; all ranks are below.
fn combiner(object: &[u8]) -> Kernel {
    let mut kernel = Kernel::load_combiner(object, 1);
    kernel.set_uplink(JOB, &Uplink { below: below(0xFF), ..uplink(1) });
    for rank in 0..RANKS {
        kernel.set_member(JOB, rank, &member(rank));
    }
    kernel.set_job(JOB, &job(RANKS.into()));
    kernel
}

fn play(kernel: &Kernel, mode: Mode, cpus: &[usize], rounds: u32) -> Result<(), Broken> {
    let program = program(kernel, mode);
    let complete = AtomicU32::new(0);
    play_on(cpus, rounds, &|players, ranks, round| {
        play_round(&program, players, &complete, ranks, round)
    })
}

/// Plays ranks that send again and again, as if for the first time, until the partial sum of all
/// has gone to the parent, once. `complete` counts these sums.
fn play_round(
    program: Program,
    players: &Players,
    complete: &AtomicU32,
    ranks: Range<u16>,
    round: u32,
) -> Result<(), Broken> {
    let frames: Vec<_> = ranks.map(|rank| (rank, contribution(rank, round).frame())).collect();
    let expected = Packet {
        kind: PARTIAL,
        aux: 0xFF,
        contributions: RANKS.into(),
        values: sum(round),
        ..contribution(0, round)
    };
    let expected = expected.bytes();
    players.meet(round + 1)?;
    let begin = Instant::now();
    while complete.load(Ordering::SeqCst) == round {
        players.look_after(begin).map_err(|why| format!("round {round}: {why}"))?;
        for (rank, frame) in &frames {
            let run = program(frame);
            // Held; or gone on as it is, behind the partial sum.
            if run.verdict == XDP_DROP || run.frame[KIND] != PARTIAL {
                continue;
            }
            if run.frame != to_parent(&expected, *rank) {
                return Err(format!("round {round}: rank {rank} makes a wrong partial sum"));
            }
            if complete.fetch_add(1, Ordering::SeqCst) != round {
                return Err(format!("round {round}: rank {rank} makes a second partial sum"));
            }
        }
    }
    Ok(())
}

fn two_cpus_on_the_same_cell_lose_nothing(mode: Mode) {
    let Some(cpus) = two_cpus("two_cpus_on_the_same_cell_lose_nothing") else { return };
    let kernel = combiner(switchml_data_plane::xdp_object());
    assert_eq!(play(&kernel, mode, &cpus, ROUNDS), Ok(()));
    let (counters, cell) = match mode {
        Mode::Auto => (kernel.tc().counters(), kernel.tc().cell(0)),
        _ => (kernel.counters(), kernel.cell(0)),
    };
    let count = |outcome: Outcome| counters[outcome as usize];
    println!("{ROUNDS} rounds, {} times busy", count(Outcome::SlotBusy));
    assert_eq!(count(Outcome::Held), u64::from(ROUNDS) * u64::from(RANKS - 1));
    assert_eq!(count(Outcome::Combined), u64::from(ROUNDS));
    assert_eq!(cell.lock, 0);
}

/// If this fails, the test above proves nothing.
fn without_the_lock_two_cpus_break_partial_sums(mode: Mode) {
    let Some(cpus) = two_cpus("without_the_lock_two_cpus_break_partial_sums") else { return };
    let open = || combiner(&without_lock());
    assert_eq!(play(&open(), mode, &cpus[..1], ROUNDS), Ok(()), "nothing else is broken");
    let broken = play(&open(), mode, &cpus, MOST_ROUNDS);
    println!("without lock: {broken:?}");
    assert!(broken.is_err(), "{MOST_ROUNDS} rounds, and the two CPUs never met in the cell");
}
