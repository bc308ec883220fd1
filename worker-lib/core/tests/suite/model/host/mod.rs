//! Ranks of one host that add up in shared memory and read the results that one of them gets
//! (rule 12.11 and section 38): every order of the steps of their real code, over the real
//! aggregator.
//!
//! The network is a set, as in the other worlds ([`super`]). Ranks differ in this:
//!
//! - A rank may send each chunk that it awaits again at any time, as often as it likes, as if its
//!   timer had expired. Each time, that goes through the shared memory. Engines are told apart by
//!   what they sent and got, so their own timers are left alone.
//! - Of answers, RESULTs alone arrive. The others change only when an engine sends again.
//! - RESULTs to all come to the taker, and to ranks that do not share. The others get what answers
//!   them alone.
//! - Ranks of the host may die between any two steps. The living then wait for nobody else.
//! - A stranger may forge RESULTs, with the right sums. Ranks that are ahead by them break the
//!   rules, but not the memory.

mod bounds;
mod memory;
mod network;
mod properties;
mod settled;
mod tasks;
mod world;

use super::plan::{Plan, Setup};
use super::search_host::search_host;
use bounds::Bounds;
use network::Host;
use settled::Settled;

/// Searches worlds, and larger ones where they are asked for; prints a line of a table for each.
fn hold(worlds: &[Bounds], large: &[Bounds]) {
    let also = std::env::var("SWITCHML_MODEL").is_ok_and(|value| value == "large");
    worlds.iter().chain(if also { large } else { &[] }).for_each(search);
}

fn search(bounds: &Bounds) {
    let Bounds { ranks, slots, rounds, .. } = *bounds;
    let plan = Plan::new(Setup { rounds, ..Setup::new(ranks, slots) });
    let tell = |host: &Host, state: &_| format!("{:?}", Settled::of(host, state));
    search_host(Host::new(plan, *bounds), bounds, tell);
}

#[test]
fn ranks_share_results() {
    hold(
        &[
            Bounds::new(2, 2, 1, 3),
            Bounds::new(2, 2, 2, 1),
            Bounds::new(3, 2, 1, 2),
            Bounds::new(3, 3, 1, 1),
            Bounds::new(3, 3, 1, 2).resending(1),
        ],
        &[Bounds::new(3, 3, 1, 2).resending(2)],
    );
}

#[test]
fn ranks_that_share_results_die() {
    hold(
        &[
            Bounds::new(2, 2, 1, 2).dying(),
            Bounds::new(2, 2, 2, 1).dying(),
            Bounds::new(3, 2, 1, 1).dying(),
            Bounds::new(3, 3, 1, 1).dying(),
        ],
        &[Bounds::new(2, 2, 1, 3).dying()],
    );
}

#[test]
fn forged_results_harm_no_memory() {
    hold(&[Bounds::new(2, 2, 1, 2).forging(), Bounds::new(3, 3, 1, 1).forging()], &[]);
}
