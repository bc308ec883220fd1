//! Which aggregator goes on with the shards of a lost one (rules 36.8 and 36.9 of
//! `docs/spec`). What is sent again there, the [`failover`](crate::failover) log says.
//!
//! All ranks must choose the same aggregator without asking each other, so the choice depends only
//! on what they know alike: the job's aggregators in their order, and where the shards were.

use std::time::Duration;

use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::ranks::Ranks;

/// Least time to wait for the other ranks at another aggregator. Those that make no call notice the
/// death of a host by their connection: after 15 s, and 10 s more where the data plane might live
/// on.
pub const LEAST_WAIT: Duration = Duration::from_secs(30);

/// One of a job's aggregators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregator {
    /// The capabilities that it had when the job began.
    pub capabilities: Capabilities,
    /// Whether a rank has brought it (rule 36.6).
    pub is_ranks_own: bool,
}

/// Where a job's stripes are: the shards that were at one aggregator when the job began.
#[derive(Clone, Debug)]
pub struct Moves {
    /// In the order of rule 36.2.
    aggregators: Vec<Aggregator>,
    /// The place of each stripe.
    places: Vec<Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// The index of the aggregator.
    at: usize,
    /// Moves so far.
    moves: u64,
    /// Whether the last of them is still under way.
    is_moving: bool,
}

/// A move of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The stripe.
    pub stripe: usize,
    /// The index of the lost aggregator.
    pub from: usize,
    /// Moves of the stripe, with this one.
    pub count: u64,
}

/// What the loss of an aggregator means for a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The stripe moves.
    Moves(Move),
    /// The stripe has moved since, or is about to.
    IsKnown,
    /// No other aggregator can do what the lost one could.
    HasNoOther,
    /// The job ends: a rank has left, or is gone, or it was that of a rank, which is lost with it.
    Ends,
}

impl Moves {
    /// The stripes of a job at these aggregators, in the order of rule 36.2.
    pub fn new(aggregators: Vec<Aggregator>) -> Self {
        let place = |at| Place { at, moves: 0, is_moving: false };
        let places = (0..aggregators.len()).map(place).collect();
        Self { aggregators, places }
    }

    /// The aggregator of a stripe that has moved `moves` times is lost; `names_ranks` if it says
    /// that the connections of ranks with it broke. `departed` are the ranks that have left
    /// normally.
    pub fn lose(&mut self, stripe: usize, moves: u64, names_ranks: bool, departed: &Ranks) -> Loss {
        let Place { at, moves: known, .. } = self.places[stripe];
        if !departed.is_empty() {
            return Loss::Ends;
        }
        if known != moves {
            return Loss::IsKnown;
        }
        // Rule 36.7.
        if self.aggregators[at].is_ranks_own {
            return Loss::Ends;
        }
        // Rule 36.8: as long as they are there for another aggregator, they are not gone.
        let mut others = self.places.iter().enumerate().filter(|(other, _)| *other != stripe);
        if names_ranks && others.all(|(_, place)| place.is_moving) {
            return Loss::Ends;
        }
        let count = moves + 1;
        let next = Move { stripe, from: at, count };
        if self.candidates(&next).next().is_none() {
            return Loss::HasNoOther;
        }
        let place = &mut self.places[stripe];
        (place.moves, place.is_moving) = (count, true);
        Loss::Moves(next)
    }

    /// The aggregators that may go on, in the order in which ranks try them (rule 36.9).
    pub fn candidates(&self, next: &Move) -> impl Iterator<Item = usize> + use<> {
        let Move { stripe, from, .. } = *next;
        let can = self.aggregators.iter().map(|other| self.can_serve(stripe, other.capabilities));
        let can: Vec<bool> = can.collect();
        let behind = (from + 1..self.aggregators.len()).chain(0..from);
        behind.filter(move |at| can[*at])
    }

    /// Whether an aggregator with these capabilities can go on with a stripe.
    pub fn can_serve(&self, stripe: usize, capabilities: Capabilities) -> bool {
        capabilities.contains(self.aggregators[stripe].capabilities & Capabilities::SHAPING)
    }

    /// All ranks have joined at another aggregator. Whether the stripe goes on there: not if that
    /// is lost, too, by now.
    pub fn arrive(&mut self, next: &Move, at: usize) -> bool {
        let place = &mut self.places[next.stripe];
        let is_current = place.moves == next.count;
        if is_current {
            (place.at, place.is_moving) = (at, false);
        }
        is_current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aggregator(capabilities: Capabilities) -> Aggregator {
        Aggregator { capabilities, is_ranks_own: false }
    }

    fn moves(aggregators: &[Capabilities]) -> Moves {
        Moves::new(aggregators.iter().copied().map(aggregator).collect())
    }

    fn lost(moves: &mut Moves, stripe: usize, count: u64) -> Move {
        match moves.lose(stripe, count, false, &Ranks::NONE) {
            Loss::Moves(next) => next,
            other => panic!("{other:?}"),
        }
    }

    fn candidates(moves: &Moves, next: &Move) -> Vec<usize> {
        moves.candidates(next).collect()
    }

    #[test]
    fn ranks_try_the_aggregators_behind_the_lost_one_round_and_round() {
        let mut moves = moves(&[Capabilities::all(); 4]);
        let first = lost(&mut moves, 1, 0);
        assert_eq!(first, Move { stripe: 1, from: 1, count: 1 });
        assert_eq!(candidates(&moves, &first), [2, 3, 0]);
        assert!(moves.arrive(&first, 3));
        let second = lost(&mut moves, 1, 1);
        assert_eq!(candidates(&moves, &second), [0, 1, 2], "the first may be back");
        assert!(!moves.arrive(&first, 2), "an old move");
        assert!(moves.arrive(&second, 0));
    }

    #[test]
    fn only_those_that_can_do_what_shapes_the_chunks_go_on() {
        let none = Capabilities::empty();
        let besides = Capabilities::all() - Capabilities::SHAPING;
        let mut moves = moves(&[Capabilities::all(), besides, none]);
        assert_eq!(moves.lose(0, 0, false, &Ranks::NONE), Loss::HasNoOther);
        let next = lost(&mut moves, 1, 0);
        assert_eq!(candidates(&moves, &next), [2, 0]);
        // What it needs is what the first aggregator of its shards could do.
        assert!(moves.arrive(&next, 0));
        let next = lost(&mut moves, 1, 1);
        assert_eq!(candidates(&moves, &next), [1, 2]);
        assert!(moves.can_serve(1, none) && !moves.can_serve(0, besides));
    }

    #[test]
    fn a_loss_counts_once_and_not_if_a_rank_is_gone() {
        let all = aggregator(Capabilities::all());
        let mut moves = Moves::new(vec![all, Aggregator { is_ranks_own: true, ..all }]);
        let mut departed = Ranks::NONE;
        departed.insert(2);
        assert_eq!(moves.lose(0, 0, false, &departed), Loss::Ends);
        assert_eq!(moves.lose(1, 0, false, &Ranks::NONE), Loss::Ends, "rule 36.7");
        lost(&mut moves, 0, 0);
        assert_eq!(moves.lose(0, 0, false, &Ranks::NONE), Loss::IsKnown);
    }

    #[test]
    fn a_rank_is_gone_once_the_last_aggregator_says_so() {
        let mut moves = moves(&[Capabilities::all(); 3]);
        let says_gone =
            |moves: &mut Moves, stripe, count| moves.lose(stripe, count, true, &Ranks::NONE);
        let first = Move { stripe: 0, from: 0, count: 1 };
        assert_eq!(says_gone(&mut moves, 0, 0), Loss::Moves(first));
        assert!(moves.arrive(&first, 1), "the rank was there for the second one");
        let second = Move { stripe: 1, from: 1, count: 1 };
        assert_eq!(says_gone(&mut moves, 1, 0), Loss::Moves(second));
        let third = Move { stripe: 0, from: 1, count: 2 };
        assert_eq!(says_gone(&mut moves, 0, 1), Loss::Moves(third));
        assert_eq!(says_gone(&mut moves, 2, 0), Loss::Ends);
        lost(&mut moves, 2, 0);
    }
}
