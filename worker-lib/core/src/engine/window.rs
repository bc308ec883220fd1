//! How many chunks may be outstanding: slow start, then additive increase and multiplicative
//! decrease (RFC 5681, rule 12.8).
//!
//! It grows only while that helps. A part of a window is on the path itself: as much as fits into
//! the time that an idle path takes. The rest waits: in the queue of a link, for the processor of a
//! switch, or for a peer. Once the rest is a few bundles, a larger window would not be faster, and
//! a queue would overflow in the end. TCP Vegas keeps this rest between two bounds (Brakmo and
//! Peterson 1994); here it ends slow start and each increase, and never decreases the window,
//! because waiting for a peer says nothing about links. So a single rank on an idle link never
//! loses packets to its own window, if the link's queue holds [`Limits::waiting`] chunks and the
//! initial window.
//!
//! The window is decreased by an ECN mark, or by more loss than links have by themselves. A few
//! chunks that a link corrupts or drops say nothing about load, and a window halved at each of them
//! would stay small: at 1 % of loss, some ten chunks. A queue that overflows loses far more, and
//! goes on until less is sent. So, as in BBR version 3, loss counts only above a certain share.

/// Bounds of the window, in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Chunks outstanding at the start.
    pub initial: u32,
    /// Most chunks outstanding.
    pub maximum: u32,
    /// When this many chunks of a window wait on their way, it does not grow.
    pub waiting: u32,
}

impl WindowLimits {
    /// Limits that are so many times as large, but at least those of a decreased window.
    pub fn scaled(self, factor: f64) -> Self {
        let scaled = |chunks: u32| {
            let least = Window::MINIMUM.min(chunks);
            ((f64::from(chunks) * factor) as u32).clamp(least, chunks)
        };
        let Self { initial, maximum, waiting } = self;
        Self { initial: scaled(initial), maximum: scaled(maximum), waiting: scaled(waiting) }
    }
}

/// The congestion window, in chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    size: u32,
    maximum: u32,
    waiting: u32,
    /// The size at which slow start ends.
    threshold: u32,
    /// Results since the last increase.
    credit: u32,
    /// Chunks below this number were sent before the last decrease: their losses belong to the same
    /// congestion.
    recovery: u64,
    /// Results in the current period, and chunks lost.
    results: u32,
    lost: u32,
}

impl Window {
    /// The least window after a decrease: enough for later results to overtake a lost chunk, so
    /// that no timer has to find it.
    const MINIMUM: u32 = 16;
    /// Results over which loss is counted: several windows, so that the share is not a matter of
    /// chance.
    const PERIOD: u32 = 512;
    /// Chunks that may be lost in a period: 4 %, 2 % each way.
    const TOLERATED: u32 = Self::PERIOD / 25;

    /// A window within these limits, of at least 1 chunk.
    pub fn new(limits: WindowLimits) -> Self {
        let maximum = limits.maximum.max(1);
        let size = limits.initial.clamp(1, maximum);
        Self {
            size,
            maximum,
            waiting: limits.waiting,
            threshold: maximum,
            credit: 0,
            recovery: 0,
            results: 0,
            lost: 0,
        }
    }

    /// Chunks that may be outstanding.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// A result came after `elapsed` ns, of which the path itself takes `path`: adds one chunk in
    /// slow start, and later one for each window's worth of results.
    pub fn grow(&mut self, elapsed: u64, path: u64) {
        if self.waits(elapsed, path) {
            self.threshold = self.size;
        } else {
            self.credit += 1;
        }
        if self.size < self.threshold || self.credit >= self.size {
            self.credit = 0;
            self.size = (self.size + 1).min(self.maximum);
        }
        self.results += 1;
        if self.results >= Self::PERIOD {
            self.begin_period();
        }
    }

    /// Chunk `number` was lost: halves the window if too many were lost. Returns whether it did;
    /// `next` is the next new chunk.
    pub fn lose(&mut self, number: u64, next: u64) -> bool {
        self.lost += 1;
        self.lost > Self::TOLERATED && self.shrink(number, next)
    }

    /// Chunk `number` met congestion: halves the window, once for all chunks sent before `next`,
    /// the next new chunk. Returns whether it did.
    pub fn shrink(&mut self, number: u64, next: u64) -> bool {
        if number < self.recovery {
            return false;
        }
        self.recovery = next;
        self.size = (self.size / 2).max(Self::MINIMUM).min(self.size);
        self.threshold = self.size;
        self.credit = 0;
        self.begin_period();
        true
    }

    /// Whether too much of the window waits for a larger window to help.
    fn waits(&self, elapsed: u64, path: u64) -> bool {
        let times = |ns: u64, chunks: u32| ns.saturating_mul(chunks.into());
        times(elapsed.saturating_sub(path), self.size) >= times(elapsed, self.waiting)
    }

    fn begin_period(&mut self) {
        self.results = 0;
        self.lost = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Never waits.
    const QUICK: (u64, u64) = (10, 10);

    fn limited(initial: u32, maximum: u32) -> Window {
        Window::new(WindowLimits { initial, maximum, waiting: 100 })
    }

    fn grow(window: &mut Window, results: u32, (elapsed, path): (u64, u64)) {
        (0..results).for_each(|_| window.grow(elapsed, path));
    }

    #[test]
    fn slow_start_doubles_then_grows_by_one_a_window() {
        let mut window = limited(20, 100);
        grow(&mut window, 20, QUICK);
        assert_eq!(window.size(), 40);
        assert!(window.shrink(10, 20));
        assert_eq!(window.size(), 20);
        grow(&mut window, 20, QUICK);
        assert_eq!(window.size(), 21);
        grow(&mut window, 20, QUICK);
        assert_eq!(window.size(), 21);
        grow(&mut window, 1, QUICK);
        assert_eq!(window.size(), 22);
    }

    #[test]
    fn limits_are_scaled_down_to_those_of_a_decreased_window() {
        let limits = WindowLimits { initial: 86, maximum: 256, waiting: 130 };
        let quarter = WindowLimits { initial: 21, maximum: 64, waiting: 32 };
        assert_eq!(limits.scaled(0.25), quarter);
        assert_eq!(limits.scaled(1.0), limits);
        let least = WindowLimits { initial: 16, maximum: 16, waiting: 16 };
        assert_eq!(limits.scaled(0.01), least);
        let few = WindowLimits { initial: 3, maximum: 4, waiting: 130 };
        assert_eq!(few.scaled(0.0), WindowLimits { waiting: 16, ..few }, "never more");
    }

    #[test]
    fn one_decrease_for_one_congestion() {
        let mut window = limited(64, 64);
        assert!(window.shrink(5, 70));
        assert!(!window.shrink(69, 90));
        assert_eq!(window.size(), 32);
        assert!(window.shrink(70, 90));
        assert_eq!(window.size(), 16);
    }

    /// 20 in 512 results are 4 %.
    #[test]
    fn loss_counts_from_a_share_on() {
        let mut window = limited(256, 256);
        let period = |window: &mut Window, lost: u64, first: u64| {
            let cuts = (0..lost).filter(|number| window.lose(first + number, first + lost)).count();
            grow(window, 512, QUICK);
            cuts
        };
        for round in 0..100 {
            assert_eq!(period(&mut window, 20, round * 100), 0);
        }
        assert_eq!(window.size(), 256);
        assert_eq!(period(&mut window, 21, 100_000), 1);
        // Half of the window is lost, as when a queue overflows: it shrinks once a round trip, for
        // all losses in it.
        let mut window = limited(256, 256);
        assert_eq!((0..128).filter(|number| window.lose(*number, 256)).count(), 1);
        assert_eq!(window.size(), 128);
        assert_eq!((256..320).filter(|number| window.lose(*number, 384)).count(), 1);
        assert_eq!(window.size(), 64);
    }

    #[test]
    fn bounds() {
        let mut window = limited(1_000, 3);
        assert_eq!(window.size(), 3);
        grow(&mut window, 100, QUICK);
        assert_eq!(window.size(), 3);
        (0..100).for_each(|number| _ = window.shrink(number, number + 1));
        assert_eq!(window.size(), 3);
        let mut window = limited(100, 100);
        (0..100).for_each(|number| _ = window.shrink(number, number + 1));
        assert_eq!(window.size(), 16);
        let mut window = limited(0, 0);
        window.shrink(0, 1);
        assert_eq!(window.size(), 1);
    }

    /// 100 of the window's chunks wait if the path takes a third of the time and the window is 150.
    #[test]
    fn no_growth_while_more_would_only_wait() {
        let mut window = limited(80, 1000);
        grow(&mut window, 1000, (30, 10));
        assert_eq!(window.size(), 150);
        // An idle path again: slow start is over.
        grow(&mut window, 149, QUICK);
        assert_eq!(window.size(), 150);
        grow(&mut window, 1, QUICK);
        assert_eq!(window.size(), 151);
        // Waiting stops growth, and takes nothing back.
        grow(&mut window, 10_000, (1000, 10));
        assert_eq!((window.size(), window.shrink(0, 1), window.size()), (151, true, 75));
        grow(&mut window, 10_000, (1000, 0));
        assert_eq!(window.size(), 100, "no path takes no time");
    }

    #[test]
    fn a_clock_that_stands_still() {
        let mut window = limited(80, 1000);
        grow(&mut window, 80, (0, 0));
        assert_eq!(window.size(), 80, "0 of 0 tells nothing");
    }
}
