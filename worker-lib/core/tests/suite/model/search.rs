//! Runs the checker and tells in words what it found.

use stateright::{Checker, HasDiscoveries, Model};

use super::plan::Setup;
use super::promises::DONE;
use super::world::{Event, State, World};

/// Most states to generate, including repeated ones.
const MOST_STATES: usize = 1_000_000_000;

/// The result of a search.
pub struct Searched {
    /// Different states seen.
    pub states: usize,
    /// Events to the farthest state.
    pub depth: usize,
    /// Whether there is a state where everybody has all results.
    pub done: bool,
    pub violation: Option<Found>,
}

/// A violated property, and a shortest path to the violation.
pub struct Found {
    pub property: &'static str,
    pub events: Vec<Event>,
    /// The events in words.
    pub story: String,
}

/// Searches all states of a world, or until one of these properties is violated.
pub fn search(setup: Setup, properties: &[&'static str]) -> Searched {
    let checker = World::new(setup, properties)
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(MOST_STATES)
        .spawn_bfs()
        .join();
    let mut paths = checker.discoveries();
    let done = paths.remove(DONE).is_some();
    let violation = paths.into_iter().next().map(|(property, path)| {
        let steps = path.into_vec();
        let story = tell(checker.model(), &steps);
        Found {
            property,
            events: steps.into_iter().filter_map(|(_, event)| event).collect(),
            story,
        }
    });
    assert!(checker.state_count() < MOST_STATES, "a world without end");
    Searched {
        states: checker.unique_state_count(),
        depth: checker.max_depth() - 1,
        done,
        violation,
    }
}

/// A path in words, a line for each event.
fn tell(world: &World, steps: &[(State, Option<Event>)]) -> String {
    let mut lines: Vec<_> = steps
        .iter()
        .filter_map(|(state, event)| event.map(|event| world.describe(state, event)))
        .collect();
    let violation = steps.last().and_then(|(state, _)| state.violation.as_ref());
    lines.push(
        violation.map_or("from here not everybody finishes".into(), |violation| {
            format!("{violation:x?}")
        }),
    );
    lines.join("\n")
}
