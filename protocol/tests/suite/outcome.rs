//! Outcomes: the table of actions, and the numbers and names that operators see.

use std::collections::BTreeSet;

use switchml_protocol::outcome::{Action, Outcome, RejectReason};
use switchml_protocol::wire::header::Malformed;

#[test]
fn every_outcome_has_the_action_of_the_specification() {
    let passed =
        [Outcome::NotOurs, Outcome::Vlan, Outcome::Ipv6, Outcome::IpOptions, Outcome::Fragment];
    let replied = [Outcome::Replayed, Outcome::Pending, Outcome::Room, Outcome::Hello];
    // Section 27.
    let up = [
        Outcome::Combined,
        Outcome::Evicted,
        Outcome::Passed,
        Outcome::Flushed,
        Outcome::HelloPassed,
    ];
    for outcome in Outcome::ALL {
        let expected = match outcome {
            Outcome::Completed | Outcome::ToAll => Action::Broadcast,
            Outcome::ToRank => Action::Down,
            _ if up.contains(outcome) => Action::Up,
            _ if passed.contains(outcome) => Action::Pass,
            _ if replied.contains(outcome) || outcome.reject_reason().is_some() => Action::Reply,
            _ => Action::Drop,
        };
        assert_eq!(outcome.action(), expected, "{outcome:?}");
    }
}

#[test]
fn counters_are_numbered_and_named_without_gaps() {
    assert_eq!(Outcome::COUNT, Outcome::ALL.len());
    for (number, outcome) in Outcome::ALL.iter().enumerate() {
        assert_eq!(*outcome as usize, number);
        // CamelCase to snake_case, with IPv4 and IP as words
        let mut name = String::new();
        for (at, letter) in format!("{outcome:?}").char_indices() {
            if at > 0 && letter.is_uppercase() {
                name.push('_');
            }
            name.extend(letter.to_lowercase());
        }
        assert_eq!(outcome.name(), name);
        assert!(
            outcome.help().ends_with('.') && !outcome.help().starts_with(' '),
            "{}",
            outcome.help()
        );
    }
    let names: BTreeSet<_> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
    assert_eq!(names.len(), Outcome::COUNT);
}

#[test]
fn each_reason_has_an_outcome_of_its_own() {
    for reason in RejectReason::ALL {
        assert_eq!(reason.outcome().reject_reason(), Some(*reason));
    }
    let rejected = Outcome::ALL.iter().filter(|outcome| outcome.reject_reason().is_some());
    assert_eq!(rejected.count(), RejectReason::ALL.len());
    let outcomes = [RejectReason::Mismatch, RejectReason::Round, RejectReason::Aborted]
        .map(RejectReason::outcome);
    assert_eq!(outcomes, [Outcome::Mismatch, Outcome::WrongRound, Outcome::Aborted]);
}

#[test]
fn operators_hear_of_arrivals_and_of_what_should_not_happen() {
    let notable: Vec<_> = Outcome::ALL.iter().filter(|outcome| outcome.is_notable()).collect();
    let expected = [
        Outcome::Mismatch,
        Outcome::WrongRound,
        Outcome::Hello,
        Outcome::WrongSecret,
        Outcome::WrongPlace,
        Outcome::HelloPassed,
    ];
    assert_eq!(notable, expected.iter().collect::<Vec<_>>());
}

#[test]
fn malformed_packets_are_counted_by_what_is_wrong() {
    let pairs = [
        (Malformed::Truncated, Outcome::Truncated),
        (Malformed::Version, Outcome::BadVersion),
        (Malformed::Kind, Outcome::BadKind),
        (Malformed::Op, Outcome::BadOp),
        (Malformed::Lanes, Outcome::BadLanes),
        (Malformed::Length, Outcome::BadLength),
    ];
    for (malformed, outcome) in pairs {
        assert_eq!(Outcome::from(malformed), outcome);
    }
}
