//! What happens to a rank or an aggregator.

use std::fmt;
use std::time::Duration;

use crate::random::Random;

use super::site::{AGGREGATORS, RANKS};

/// Who serves a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Several aggregators.
    Several,
    /// The ranks serve each other.
    Alone,
}

/// How long something lasts that a rank survives: shorter than the 5 s after which it is lost.
const SHORT: Duration = Duration::from_millis(1500);
/// How long something lasts by which it is lost.
const LONG: Duration = Duration::from_secs(12);

/// A rank or an aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Rank(usize),
    Aggregator(usize),
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It is killed.
    Kill,
    /// It is killed, and started again.
    Restart,
    /// It stands still for so long.
    Stop(Duration),
    /// Its host is cut off for so long.
    Cut(Duration),
    /// Its host loses packets until the job ends.
    Lose,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub target: Target,
    pub deed: Deed,
}

impl Event {
    /// Draws an event for a job that these have happened to. One aggregator is never hit, and after
    /// a rank is lost there are no more events.
    pub fn draw(kind: Kind, before: &[Self], random: &mut Random) -> Option<Self> {
        if before.iter().any(Self::loses_rank) {
            return None;
        }
        let hits_aggregator = kind == Kind::Several && random.share() < 0.6;
        let target = match hits_aggregator {
            true => Target::Aggregator(random.below(AGGREGATORS)),
            false => Target::Rank(random.below(RANKS)),
        };
        let deeds = [
            Deed::Kill,
            Deed::Restart,
            Deed::Stop(SHORT),
            Deed::Stop(LONG),
            Deed::Cut(SHORT),
            Deed::Cut(LONG),
            Deed::Lose,
            Deed::Lose,
        ];
        let event = Self { target, deed: deeds[random.below(deeds.len())] };
        let hurt = |target| before.iter().any(|event| event.target == target && event.hurts());
        let all = (0..AGGREGATORS).map(Target::Aggregator);
        let others = all.filter(|other| *other != target && !hurt(*other)).count();
        match target {
            Target::Aggregator(_) if event.hurts() && others == 0 => {
                Some(Self { target, deed: Deed::Lose })
            }
            _ => Some(event),
        }
    }

    /// Whether the target is lost, or may be taken for lost.
    pub fn hurts(&self) -> bool {
        matches!(self.deed, Deed::Kill | Deed::Restart | Deed::Stop(_) | Deed::Cut(_))
    }

    /// Whether a rank may be lost by it, and so the job.
    pub fn loses_rank(&self) -> bool {
        let stops_rank = matches!((self.target, self.deed), (Target::Rank(_), Deed::Stop(LONG)));
        stops_rank || self.surely_loses_rank()
    }

    /// Whether a rank is lost by it. Of a rank that stands still the host answers, so that others
    /// may wait for it.
    pub fn surely_loses_rank(&self) -> bool {
        let is_rank = matches!(self.target, Target::Rank(_));
        is_rank && matches!(self.deed, Deed::Kill | Deed::Restart | Deed::Cut(LONG))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match self.target {
            Target::Rank(rank) => format!("rank {rank}"),
            Target::Aggregator(number) => format!("aggregator {number}"),
        };
        match self.deed {
            Deed::Kill => write!(f, "{target} killed"),
            Deed::Restart => write!(f, "{target} killed and started again"),
            Deed::Stop(time) => write!(f, "{target} stopped for {:.1} s", time.as_secs_f64()),
            Deed::Cut(time) => write!(f, "{target} cut off for {:.1} s", time.as_secs_f64()),
            Deed::Lose => write!(f, "{target} loses packets"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An aggregator is always left that nothing was done to, or the job could not go on.
    #[test]
    fn one_aggregator_is_never_hurt_and_nothing_follows_a_lost_rank() {
        for seed in 0..1000 {
            let mut random = Random(seed);
            let mut events: Vec<Event> = Vec::new();
            while let Some(event) = Event::draw(Kind::Several, &events, &mut random)
                && events.len() < 50
            {
                assert!(!events.iter().any(Event::loses_rank), "{events:?}");
                events.push(event);
            }
            let is_hurt = |number: &usize| {
                let target = Target::Aggregator(*number);
                events.iter().any(|event| event.target == target && event.hurts())
            };
            assert!((0..AGGREGATORS).any(|number| !is_hurt(&number)), "{seed}: {events:?}");
            let mut alone = Random(seed);
            let event = Event::draw(Kind::Alone, &[], &mut alone).expect("a first one");
            assert!(matches!(event.target, Target::Rank(_)));
        }
    }
}
