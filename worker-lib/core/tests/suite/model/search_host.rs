//! The search of a world of ranks on one host.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use super::promises::DONE;

/// Searches all states of a world, and prints a line of a table. `tell` says more about a state in
/// which a property is violated.
///
/// # Panics
///
/// If a property is violated, or no rank can get all results.
pub fn search_host<M>(world: M, name: impl Display, tell: impl Fn(&M, &M::State) -> String)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let begin = Instant::now();
    let checker = world.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let mut found = checker.discoveries();
    let done = found.remove(DONE);
    if let Some((property, path)) = found.into_iter().next() {
        let told = tell(checker.model(), path.last_state());
        panic!("{name}: violated: {property}\n{:?}\n{told}", path.into_actions());
    }
    assert!(done.is_some(), "{name}: no rank can get all results");
    println!(
        "| {name} | {} | {} | {:.1} |",
        checker.unique_state_count(),
        checker.max_depth() - 1,
        begin.elapsed().as_secs_f64()
    );
}
