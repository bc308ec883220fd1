//! The protocol as it is: nothing is violated in any state.

use std::time::Instant;

use super::plan::Setup;
use super::promises::ALL;
use super::search::search;

/// A world with one session: its ranks, slots and rounds.
fn session(ranks: u16, slots: u16, rounds: usize) -> Setup {
    Setup { rounds, ..Setup::new(ranks, slots) }
}

/// A world with a second session of `next_rounds` rounds, which takes over the slots at any moment.
fn sessions(ranks: u16, slots: u16, rounds: usize, next_rounds: usize) -> Setup {
    Setup { next_rounds, ..session(ranks, slots, rounds) }
}

/// Searches worlds, and larger ones where they are asked for; prints a line of a table for each.
fn hold(setups: &[Setup], large: &[Setup]) {
    let also = std::env::var("SWITCHML_MODEL").is_ok_and(|value| value == "large");
    for setup in setups.iter().chain(if also { large } else { &[] }) {
        let begin = Instant::now();
        let searched = search(setup.clone(), ALL);
        if let Some(found) = searched.violation {
            panic!("{setup}: violated: {}\n{}", found.property, found.story);
        }
        assert_eq!(
            searched.done,
            setup.mismatch.is_none(),
            "{setup}: whether all can get all results"
        );
        println!(
            "| {setup} | {} | {} | {:.1} |",
            searched.states,
            searched.depth,
            begin.elapsed().as_secs_f64()
        );
    }
}

#[test]
fn loss_duplication_and_reordering() {
    hold(
        &[session(1, 2, 4), session(2, 1, 8), session(2, 2, 3), session(3, 1, 5), session(4, 1, 3)],
        &[session(2, 2, 6), session(2, 3, 3), session(4, 1, 4), session(5, 1, 3)],
    );
}

/// Round numbers wrap around after the second round.
#[test]
fn wrap_around() {
    let late = |setup| Setup { origin: u32::MAX - 1, ..setup };
    hold(
        &[
            late(session(2, 1, 8)),
            late(session(2, 2, 3)),
            late(session(3, 1, 5)),
            late(session(4, 1, 3)),
        ],
        &[late(session(3, 2, 4))],
    );
}

#[test]
fn three_workers_and_two_slots() {
    hold(&[session(3, 2, 3)], &[session(3, 2, 4)]);
}

/// Whether engines finish depends on what they know of late peers and of time.
#[test]
fn pending_and_timers() {
    let told = |setup| Setup { pending: true, ..setup };
    hold(
        &[
            Setup { alarms: 3, ..told(session(2, 1, 3)) },
            Setup { alarms: 1, ..told(session(2, 2, 1)) },
            told(session(3, 1, 3)),
            told(session(2, 2, 2)),
        ],
        &[
            told(session(2, 2, 3)),
            Setup { alarms: 1, ..told(session(3, 1, 3)) },
            Setup { alarms: 1, ..told(session(2, 2, 2)) },
        ],
    );
}

#[test]
fn corruption() {
    let corrupted = |setup| Setup { corruption: true, ..setup };
    hold(
        &[corrupted(session(2, 1, 3)), corrupted(session(2, 2, 3)), corrupted(session(3, 1, 3))],
        &[corrupted(session(3, 2, 3))],
    );
}

/// No worker accepts the sum of different calls, and every worker hears of the mismatch.
#[test]
fn mismatched_calls() {
    let mismatched = |setup, chunk| Setup { mismatch: Some(chunk), ..setup };
    hold(
        &[
            mismatched(session(2, 1, 3), 0),
            mismatched(session(2, 1, 3), 1),
            mismatched(session(2, 2, 3), 3),
            mismatched(session(3, 1, 3), 2),
        ],
        &[mismatched(session(3, 2, 3), 2)],
    );
}

/// The next session finds slots full of the last session's rounds, and the network full of its
/// packets.
#[test]
fn epoch_change() {
    hold(
        &[sessions(2, 1, 3, 3), sessions(3, 1, 3, 3), sessions(2, 2, 1, 3)],
        &[sessions(3, 2, 1, 1), sessions(2, 2, 3, 3)],
    );
}

/// The aggregator loses its state. Its workers fail; the next session is as good as the first.
#[test]
fn restart() {
    let restarted = |setup| Setup { restart: true, ..setup };
    hold(
        &[
            restarted(sessions(2, 1, 3, 3)),
            restarted(sessions(3, 1, 3, 3)),
            restarted(session(2, 2, 3)),
            restarted(session(3, 2, 3)),
        ],
        &[restarted(sessions(2, 2, 2, 2))],
    );
}

#[test]
fn abort() {
    let aborted = |setup| Setup { abort: true, ..setup };
    hold(
        &[aborted(session(2, 2, 2)), aborted(session(3, 1, 3)), aborted(sessions(2, 1, 2, 2))],
        &[aborted(session(2, 2, 3)), Setup { restart: true, ..aborted(sessions(2, 1, 3, 3)) }],
    );
}

/// A rank that has left has contributed to all chunks: no worker may conclude from an old PENDING
/// that it never will.
#[test]
fn departures() {
    let leave = |setup| Setup { leave: true, ..setup };
    hold(
        &[leave(session(2, 1, 3)), leave(session(3, 1, 1)), leave(session(2, 2, 2))],
        &[leave(session(3, 1, 2))],
    );
}

/// Chunks that are zero on these ranks, a bitmap for each chunk in turn. When a timer expires, the
/// oldest chunk goes out in full, and one more chunk at each further expiry.
fn zeros(setup: Setup, ranks: &[u8]) -> Setup {
    Setup { zeros: ranks.to_vec(), alarms: setup.slots as u8, ..setup }
}

/// In broadcasts all ranks except the root have zeros, and in sums any rank may.
#[test]
fn empty_contributions() {
    hold(
        &[
            zeros(session(2, 1, 8), &[0b00, 0b01, 0b10, 0b11]),
            zeros(session(2, 2, 2), &[0b01, 0b11, 0b10, 0b00]),
            zeros(session(3, 1, 4), &[0b110]),
            zeros(session(3, 1, 4), &[0b011, 0b111]),
            zeros(session(4, 1, 2), &[0b1110]),
        ],
        &[
            zeros(session(2, 2, 3), &[0b10]),
            zeros(session(2, 2, 3), &[0b11, 0b01]),
            zeros(session(4, 1, 3), &[0b1110]),
            zeros(session(3, 2, 2), &[0b110]),
        ],
    );
}

#[test]
fn empty_contributions_and_other_faults() {
    let sent = |setup| zeros(setup, &[0b10, 0b11, 0b01]);
    hold(
        &[
            Setup { origin: u32::MAX - 1, ..sent(session(2, 1, 4)) },
            Setup { pending: true, ..sent(session(2, 1, 3)) },
            Setup { corruption: true, ..sent(session(2, 1, 3)) },
            Setup { mismatch: Some(0), ..sent(session(2, 1, 3)) },
            Setup { mismatch: Some(1), ..sent(session(2, 1, 3)) },
            Setup { abort: true, ..sent(session(2, 1, 3)) },
            Setup { leave: true, ..sent(session(2, 1, 3)) },
            Setup { restart: true, ..sent(sessions(2, 1, 2, 2)) },
            sent(sessions(2, 1, 3, 3)),
            Setup { corruption: true, ..sent(session(3, 1, 3)) },
            Setup { mismatch: Some(1), ..sent(session(3, 1, 3)) },
            Setup { abort: true, ..sent(session(3, 1, 3)) },
        ],
        &[sent(sessions(3, 1, 2, 2))],
    );
}

/// Ranks below combiners, a bitmap for each combiner.
fn tree(setup: Setup, combiners: &[u8]) -> Setup {
    Setup { combiners: combiners.to_vec(), ..setup }
}

/// Combiners that hold, forget, let go and are bypassed, over a network that does as it likes. With
/// two slots, both want the same cell.
#[test]
fn combiners() {
    hold(
        &[
            tree(session(2, 1, 8), &[0b11]),
            tree(session(2, 2, 2), &[0b11]),
            tree(session(3, 1, 4), &[0b011, 0b100]),
            tree(session(3, 1, 2), &[0b111]),
            tree(session(3, 1, 1), &[0b011, 0b111]),
            tree(session(4, 1, 1), &[0b0011, 0b1100]),
        ],
        &[
            tree(session(2, 2, 3), &[0b11]),
            tree(session(3, 1, 2), &[0b011, 0b111]),
            tree(session(4, 1, 2), &[0b0011, 0b1100]),
        ],
    );
}

#[test]
fn combiners_and_other_faults() {
    hold(
        &[
            Setup { mismatch: Some(0), ..tree(session(3, 1, 1), &[0b111]) },
            Setup { mismatch: Some(1), ..tree(session(3, 1, 2), &[0b011, 0b100]) },
            Setup { pending: true, alarms: 1, ..tree(session(2, 1, 2), &[0b11]) },
            Setup { restart: true, ..tree(sessions(2, 1, 1, 2), &[0b11]) },
            Setup { abort: true, ..tree(session(2, 1, 2), &[0b11]) },
            Setup { origin: u32::MAX - 1, ..tree(session(2, 1, 4), &[0b11]) },
            tree(sessions(2, 1, 1, 2), &[0b11]),
        ],
        &[tree(sessions(2, 1, 2, 2), &[0b11])],
    );
}
