//! All orders of the steps of a driver, and of the thread that moves its shards.

use loom::sync::Arc;
use loom::thread;

use changeover::Changeover;

/// The driver's own, over the model checker's lock and flag.
#[path = "changeover.rs"]
#[expect(clippy::duplicate_mod, reason = "the model checker has locks of its own")]
mod changeover;

mod sync {
    pub use std::sync::PoisonError;

    pub use loom::sync::atomic::{AtomicBool, Ordering};
    pub use loom::sync::{Mutex, MutexGuard};
}

#[test]
fn a_driver_gets_to_the_last_aggregator_however_fast_others_are_lost() {
    loom::model(|| {
        let changeover = Arc::new(Changeover::new());
        let others = Arc::clone(&changeover);
        let mover = thread::spawn(move || {
            for next in [1, 2] {
                others.lose();
                others.arrive(next);
            }
        });
        let look = || if changeover.is_lost() { changeover.take() } else { None };
        let early = look();
        mover.join().unwrap();
        // Woken again: unless it was there before, it gets there now.
        let last = look().or(early);
        assert_eq!((last, changeover.is_lost()), (Some(2), false));
    });
}
