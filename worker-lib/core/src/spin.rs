//! Adaptive spinning: decides whether to wait for packets by polling, or asleep.
//!
//! A wakeup costs microseconds, tens of them on an idle core: as much as a small call takes.
//! Polling costs nothing while nobody else wants the core, and is harmful when another does:
//! another rank, whose packets this one may be waiting for, or the training itself. So a wait
//! offers the core to others after every look. If another took it, this wait and the next ones go
//! to sleep soon; if nobody did, a wait polls for a few round trips. So the decision needs no
//! knowledge of ranks, cores and containers, and adapts when they change.
//!
//! Where a link is slow, each superpacket takes longer than a wait would poll. Polling would be in
//! vain each time, and on a crowded core worse: who offers that is put behind the others for a time
//! slice, in which a link passes several superpackets. So after a long wait the next one sleeps at
//! once, until a wait was short again.

use std::fmt;
use std::ops::AddAssign;

/// Longest time of polling without a result, in ns: some round trips, or twice the worst cost of
/// sleeping and waking up.
const LOOKING: u64 = 100_000;
/// Looks of a wait on a core that others want, too: this wait may be for them.
const LOOKS_WHEN_CROWDED: u32 = 3;
/// After this many waits in which nobody wanted the core, it counts as free again.
const CALM: u32 = 16;
/// One wait in this many on a crowded core goes to sleep at once: the kernel finds an idle core for
/// threads that wake up, but leaves two that offer each other the same core together for long.
const MOVING: u64 = 64;

/// Statistics of waits for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitStats {
    /// Number of waits: times that no packet was there.
    pub waits: u64,
    /// Looks again, each after the core was offered to others.
    pub looks: u64,
    /// Offers that another thread took: the core is not this rank's alone.
    pub taken: u64,
    /// Waits that went to sleep.
    pub sleeps: u64,
}

impl AddAssign<&Self> for WaitStats {
    fn add_assign(&mut self, other: &Self) {
        self.waits += other.waits;
        self.looks += other.looks;
        self.taken += other.taken;
        self.sleeps += other.sleeps;
    }
}

/// For people: `slept in 3 of 20 waits; others took the core in 5 of 31 checks`.
impl fmt::Display for WaitStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waits, looks, taken, sleeps } = self;
        write!(
            f,
            "slept in {sleeps} of {waits} waits; others took the core in {taken} of {looks} checks"
        )
    }
}

/// See the [module's documentation](self).
#[derive(Default)]
pub struct Spin {
    /// The current wait, if there is one that is not asleep.
    wait: Option<Wait>,
    /// Number of waits for which the core still counts as wanted by others.
    crowded: u32,
    /// Whether the last wait was too long for polling.
    was_long: bool,
    stats: WaitStats,
}

struct Wait {
    begin: u64,
    looks: u32,
    /// Whether another thread took the core meanwhile.
    taken: bool,
}

impl Spin {
    /// A packet has come, or the thread has slept, at `now`, in ns: ends the wait, if there is one.
    pub fn end(&mut self, now: u64) {
        let Some(wait) = self.wait.take() else { return };
        self.was_long = now.saturating_sub(wait.begin) >= LOOKING;
        if !wait.taken {
            self.crowded = self.crowded.saturating_sub(1);
        }
    }

    /// Nothing was there at `now`, in ns. If it is worth looking again, first offers the core to
    /// others; if not, returns false: the caller should sleep. `offer` offers the core, and tells
    /// whether another took it.
    pub fn look_again(&mut self, now: u64, offer: impl FnOnce() -> bool) -> bool {
        let Self { wait, crowded, was_long, stats } = self;
        let wait = wait.get_or_insert_with(|| {
            stats.waits += 1;
            Wait { begin: now, looks: 0, taken: false }
        });
        let is_over = if *crowded > 0 {
            wait.looks >= LOOKS_WHEN_CROWDED || stats.waits.is_multiple_of(MOVING)
        } else {
            now.saturating_sub(wait.begin) >= LOOKING
        };
        if *was_long || is_over {
            stats.sleeps += 1;
            return false;
        }
        wait.looks += 1;
        stats.looks += 1;
        if offer() {
            wait.taken = true;
            stats.taken += 1;
            *crowded = CALM;
        }
        true
    }

    /// Statistics of the waits so far.
    pub fn stats(&self) -> WaitStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits once, for a packet that comes at `until`, with looks `step` ns apart. Returns the
    /// number of looks.
    fn wait(spin: &mut Spin, step: u64, until: u64, taken: impl Fn(u64) -> bool) -> u64 {
        let mut looks = 0;
        while looks * step < until && spin.look_again(looks * step, || taken(looks)) {
            looks += 1;
        }
        spin.end(until);
        looks
    }

    #[test]
    fn looks_for_a_while_on_a_core_of_its_own() {
        let looks = |step| wait(&mut Spin::default(), step, 10 * LOOKING, |_| false);
        assert_eq!([1_000, 50_000, 200_000].map(looks), [100, 2, 1]);
        let mut spin = Spin::default();
        assert_eq!([1, 2, 3].map(|_| wait(&mut spin, 1_000, 50_000, |_| false)), [50; 3]);
        assert_eq!(spin.stats(), WaitStats { waits: 3, looks: 150, taken: 0, sleeps: 0 });
    }

    #[test]
    fn sleeps_soon_while_others_want_the_core() {
        let mut spin = Spin::default();
        let mut wait = |taken: &dyn Fn(u64) -> bool| wait(&mut spin, 1_000, LOOKING - 1, taken);
        assert_eq!(wait(&|look| look == 1), 3, "the second offer is taken");
        for number in 2..MOVING {
            let looks = wait(&|look| look == 2);
            assert_eq!(looks, 3, "wait {number}: the last of the few looks tells");
        }
        assert_eq!(wait(&|_| true), 0, "may wake up on another core");
        assert_eq!(wait(&|_| true), 3);
        for _ in 0..CALM {
            assert_eq!(wait(&|_| false), 3);
        }
        assert_eq!(wait(&|_| false), 100, "nobody has wanted it for a while");
    }

    #[test]
    fn sleeps_at_once_after_a_wait_too_long_to_poll() {
        let mut spin = Spin::default();
        let mut wait = |until| wait(&mut spin, 1_000, until, |_| false);
        let waits = [LOOKING, LOOKING, 10 * LOOKING, LOOKING - 1, LOOKING - 1, LOOKING - 1];
        assert_eq!(waits.map(&mut wait), [100, 0, 0, 0, 100, 100]);
    }

    #[test]
    fn every_wait_has_its_own_time() {
        let mut spin = Spin::default();
        assert!(spin.look_again(0, || false));
        spin.end(1);
        // No wait in between.
        spin.end(LOOKING);
        assert!(spin.look_again(LOOKING, || false));
        assert!(!spin.look_again(2 * LOOKING, || false));
        assert_eq!(spin.stats(), WaitStats { waits: 2, looks: 2, taken: 0, sleeps: 1 });
    }
}
