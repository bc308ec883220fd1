//! Ranks of one host that share slots in memory (rule 38.6): every order of the steps of their real
//! code.
//!
//! - A rank may send each chunk that it awaits again at any time, as in the world of ranks that
//!   share results ([`super::host`]).
//! - A rank that finds a slot's lock taken may wait, which is a later try, or give up.
//! - Ranks may die between any two steps, also while they have a lock. The living then wait for
//!   nobody else, and are told so.

mod memory;
mod world;

use super::plan::{Plan, Setup};
use super::search_host::search_host;
use world::{Bounds, Host};

/// Searches worlds; prints a line of a table for each.
fn hold(worlds: &[Bounds]) {
    worlds.iter().for_each(search);
}

fn search(bounds: &Bounds) {
    let Bounds { ranks, slots, rounds, .. } = *bounds;
    let plan = Plan::new(Setup { rounds, ..Setup::new(ranks, slots) });
    search_host(Host::new(plan, *bounds), bounds, |_, _| String::new());
}

#[test]
fn ranks_share_slots() {
    hold(&[
        Bounds::new(2, 1, 4),
        Bounds::new(2, 2, 1),
        Bounds::new(3, 1, 1),
        Bounds::new(3, 1, 2).resending(1),
    ]);
}

#[test]
fn ranks_that_share_slots_die() {
    hold(&[
        Bounds::new(2, 1, 3).dying(),
        Bounds::new(2, 2, 1).resending(2).dying(),
        Bounds::new(3, 1, 1).resending(2).dying(),
    ]);
}
