//! Takes out each rule, alone or with the rules that stand behind it, and shows which property is
//! violated then, in how few events. A search that cannot fail shows nothing.

use super::plan::{Contribution, Setup};
use super::promises::{ALL, FINISHES, NO_REFUSAL, PAYLOAD_LAST, RIGHT_SUMS, Violation};
use super::rules::Rule;
use super::search::search;
use super::world::{Event, World};

/// Two workers and one slot, except some rules.
fn without(rules: &[Rule]) -> Setup {
    Setup { rounds: 3, without: rules.to_vec(), ..Setup::new(2, 1) }
}

/// [`without`], with a second session.
fn next_without(rules: &[Rule]) -> Setup {
    Setup { rounds: 1, next_rounds: 2, ..without(rules) }
}

fn corruption_without(rules: &[Rule]) -> Setup {
    Setup { corruption: true, ..without(rules) }
}

fn mismatch_without(rules: &[Rule]) -> Setup {
    Setup { mismatch: Some(1), ..without(rules) }
}

/// Asserts that a property is violated, after at least `events` events.
fn violates(setup: &Setup, property: &'static str, events: usize) {
    let found = search(setup.clone(), &[property]).violation;
    let found = found.unwrap_or_else(|| {
        panic!("{setup} without {:?}: never violated: {property}", setup.without)
    });
    println!("{setup} without {:?}: violated: {property}\n{}\n", setup.without, found.story);
    assert_eq!(found.events.len(), events, "events of the shortest way");
}

/// Asserts that nothing is violated without the rules.
fn changes_nothing(setup: &Setup) {
    if let Some(found) = search(setup.clone(), ALL).violation {
        panic!(
            "{setup} without {:?}: violated: {}\n{}",
            setup.without, found.property, found.story
        );
    }
}

#[test]
fn the_published_algorithm() {
    violates(&Setup { published: true, ..without(&[]) }, RIGHT_SUMS, 10);
    violates(&Setup { published: true, rounds: 2, ..Setup::new(3, 1) }, RIGHT_SUMS, 15);
}

/// The execution that docs/spec writes down: c1/0, c0/0, RESULT, c1/1, c1/0 again, c1/1
/// again.
#[test]
fn the_published_algorithm_as_in_the_specification() {
    let world = World::new(Setup { published: true, ..without(&[]) }, ALL);
    let arrive = |worker, chunk| Event::Arrive(worker, Contribution::in_full(chunk));
    let execution = [
        Event::Send(0),
        Event::Send(1),
        arrive(1, 0),
        arrive(0, 0),
        Event::Hear(0, 1),
        Event::Send(1),
        arrive(1, 1),
        arrive(1, 0),
        arrive(1, 1),
        Event::Hear(1, 1),
    ];
    let end = world.play(&execution);
    let twice = world.plan.contribution(0, 1, 1).map(|lane| 2 * lane);
    assert_eq!(
        end.violation,
        Some(Violation::WrongSum { session: 0, rank: 1, chunk: 1, sum: twice })
    );
}

/// The check word stands behind this rule: it costs the next session its round, and only without it
/// a wrong sum is accepted.
#[test]
fn packets_of_another_epoch() {
    violates(&next_without(&[Rule::PacketEpoch]), FINISHES, 1);
    violates(&next_without(&[Rule::PacketEpoch, Rule::AnswerCheck]), RIGHT_SUMS, 6);
}

#[test]
fn sets_of_another_epoch() {
    violates(&next_without(&[Rule::SetEpoch]), FINISHES, 3);
    violates(&next_without(&[Rule::SetEpoch, Rule::AnswerCheck]), RIGHT_SUMS, 6);
}

#[test]
fn answers_of_another_epoch() {
    violates(&next_without(&[Rule::AnswerEpoch]), RIGHT_SUMS, 7);
}

#[test]
fn sessions_of_the_same_epoch() {
    violates(&next_without(&[Rule::NewEpoch]), RIGHT_SUMS, 6);
}

#[test]
fn an_aggregator_that_goes_on_after_it_has_lost_its_memory() {
    let setup = Setup { restart: true, ..without(&[Rule::RestartEndsEpoch]) };
    violates(&setup, NO_REFUSAL, 8);
    violates(&setup, FINISHES, 22);
}

#[test]
fn ranks_that_are_in_already() {
    violates(&without(&[Rule::Seen]), FINISHES, 1);
    violates(&without(&[Rule::Seen, Rule::AnswerCheck]), RIGHT_SUMS, 6);
}

#[test]
fn rounds_that_lack_a_rank() {
    let three = |rules: &[Rule]| Setup { rounds: 2, without: rules.to_vec(), ..Setup::new(3, 1) };
    violates(&three(&[Rule::AllIn]), FINISHES, 0);
    violates(&three(&[Rule::AllIn, Rule::AnswerCheck]), RIGHT_SUMS, 5);
}

#[test]
fn results_that_got_lost() {
    violates(&without(&[Rule::Replay]), FINISHES, 4);
    violates(&without(&[Rule::Resend]), FINISHES, 1);
}

/// A late duplicate overwrites the stored copy that a rank still needs.
#[test]
fn rounds_that_start_again() {
    violates(&without(&[Rule::Order]), FINISHES, 18);
}

/// Late duplicates are counted in a later round, as in the published algorithm.
#[test]
fn rounds_that_are_not_compared() {
    violates(&without(&[Rule::Round]), FINISHES, 14);
    violates(&without(&[Rule::Round, Rule::AnswerCheck]), RIGHT_SUMS, 16);
    violates(&without(&[Rule::AnswerRound]), RIGHT_SUMS, 7);
}

#[test]
fn late_duplicates_that_are_refused() {
    violates(&without(&[Rule::Stale]), NO_REFUSAL, 14);
}

/// The next round overwrites the stored copy that the worker itself still needs.
#[test]
fn workers_that_do_not_wait() {
    violates(&without(&[Rule::Wait]), NO_REFUSAL, 2);
    violates(&without(&[Rule::Wait]), FINISHES, 5);
}

/// Workers that wait never send the rounds that rule 8.7 keeps out; the rule is for workers that do
/// not wait, and for forged packets.
#[test]
fn rounds_before_the_last_one_is_complete() {
    changes_nothing(&without(&[Rule::OneBeforeComplete]));
    violates(&without(&[Rule::OneBeforeComplete, Rule::Wait]), FINISHES, 4);
}

/// No execution leads to sets that are not one round apart: these two rules guard against faults of
/// memory and of data planes.
#[test]
fn sets_that_are_not_one_round_apart() {
    changes_nothing(&without(&[Rule::TwoBefore]));
    changes_nothing(&without(&[Rule::OneBefore]));
    changes_nothing(&Setup { slots: 2, rounds: 2, ..without(&[Rule::TwoBefore, Rule::OneBefore]) });
}

#[test]
fn results_of_another_slot() {
    violates(&Setup { slots: 2, rounds: 2, ..without(&[Rule::AnswerSlot]) }, RIGHT_SUMS, 7);
}

#[test]
fn contributions_that_are_corrupted() {
    violates(&corruption_without(&[Rule::ContributionCheck]), FINISHES, 2);
    violates(&corruption_without(&[Rule::ContributionCheck, Rule::AnswerCheck]), RIGHT_SUMS, 5);
}

/// Without corruption and with all other rules kept, the check word is not needed.
#[test]
fn results_that_are_corrupted() {
    violates(&corruption_without(&[Rule::AnswerCheck]), RIGHT_SUMS, 5);
    changes_nothing(&without(&[Rule::AnswerCheck]));
}

/// The salt of the check word differs by call: without the rule, a round of different calls never
/// completes, and nobody hears why.
#[test]
fn different_calls() {
    violates(&mismatch_without(&[Rule::SameCall]), FINISHES, 0);
    violates(&mismatch_without(&[Rule::SameCall, Rule::AnswerCheck]), RIGHT_SUMS, 11);
    changes_nothing(&mismatch_without(&[Rule::AnswerCall]));
    violates(
        &mismatch_without(&[Rule::SameCall, Rule::AnswerCheck, Rule::AnswerCall]),
        RIGHT_SUMS,
        11,
    );
}

/// What the aggregator tells one rank about a round is true for the other ranks, too.
#[test]
fn answers_to_another_rank() {
    changes_nothing(&Setup { pending: true, ..without(&[Rule::AnswerRank]) });
}

/// A PENDING from before another rank's contribution arrives after the news that the other rank is
/// done.
#[test]
fn pending_from_before_a_departure() {
    violates(&Setup { leave: true, rounds: 1, ..without(&[Rule::FreshPending]) }, FINISHES, 9);
}

/// Two workers and one slot; the last chunk is zero on these ranks, and its set holds values of the
/// first chunk.
fn zeros_without(rules: &[Rule], ranks: u8) -> Setup {
    Setup { zeros: vec![0, 0, ranks], alarms: 1, ..without(rules) }
}

/// No rank has sent values, so the RESULT has those of an earlier round. The check word stands
/// behind this rule.
#[test]
fn rounds_that_an_empty_contribution_completes() {
    let both = |rules: &[Rule]| zeros_without(rules, 0b11);
    violates(&both(&[Rule::PayloadLast]), PAYLOAD_LAST, 16);
    violates(&both(&[Rule::PayloadLast]), FINISHES, 0);
    violates(&both(&[Rule::PayloadLast, Rule::AnswerCheck]), RIGHT_SUMS, 17);
}

#[test]
fn first_values_that_are_added_to_those_of_an_earlier_round() {
    let one = |rules: &[Rule]| zeros_without(rules, 0b01);
    violates(&one(&[Rule::Overwrite]), FINISHES, 0);
    violates(&one(&[Rule::Overwrite, Rule::AnswerCheck]), RIGHT_SUMS, 17);
}

/// A rank that is not asked for lanes sends them when its timer expires; a rank that sends EMPTY
/// again is asked. Without both rules, no rank ever sends lanes.
#[test]
fn lanes_that_nobody_asks_for() {
    let both = |rules: &[Rule]| zeros_without(rules, 0b11);
    changes_nothing(&both(&[Rule::Room]));
    changes_nothing(&both(&[Rule::ResendInFull]));
    violates(&both(&[Rule::Room, Rule::ResendInFull]), FINISHES, 0);
}

/// One slot, and combiners.
fn tree_without(rules: &[Rule], ranks: u16, rounds: usize, combiners: &[u8]) -> Setup {
    Setup { rounds, combiners: combiners.to_vec(), without: rules.to_vec(), ..Setup::new(ranks, 1) }
}

/// The root adds a partial sum that overlaps with what it has: it counts a rank twice, and no
/// worker accepts the result.
#[test]
fn a_root_that_adds_overlaps() {
    violates(&tree_without(&[Rule::Overlap], 2, 1, &[0b11]), FINISHES, 3);
    violates(&tree_without(&[Rule::Overlap, Rule::AnswerCheck], 2, 1, &[0b11]), RIGHT_SUMS, 7);
}

/// If only one rank lacks the result, only it resends, and its combiner would hold that
/// contribution forever. Combiners remember what has passed only for speed.
#[test]
fn combiners_that_touch_resends() {
    violates(&tree_without(&[Rule::Untouched], 2, 1, &[0b11]), FINISHES, 5);
    changes_nothing(&tree_without(&[Rule::Passed], 2, 2, &[0b11]));
    changes_nothing(&tree_without(&[Rule::Passed], 3, 1, &[0b011, 0b111]));
}

/// The salts of check words tell how many contributions are in a partial sum, and of which round.
/// Without that, the sum would be wrong.
#[test]
fn combiners_that_add_a_rank_again() {
    changes_nothing(&tree_without(&[Rule::PartialCheck], 3, 1, &[0b111]));
    violates(&tree_without(&[Rule::Disjoint, Rule::PartialCheck], 3, 1, &[0b111]), RIGHT_SUMS, 9);
}

#[test]
fn combiners_that_mix_rounds() {
    changes_nothing(&tree_without(&[Rule::CellRound], 2, 2, &[0b11]));
    violates(&tree_without(&[Rule::CellRound, Rule::PartialCheck], 2, 2, &[0b11]), RIGHT_SUMS, 10);
}
