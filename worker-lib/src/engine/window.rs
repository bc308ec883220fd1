//! How many chunks may be outstanding: slow start, then additive increase and multiplicative decrease (RFC 5681).

/// The congestion window, in chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    size: u32,
    maximum: u32,
    /// Where slow start ends.
    threshold: u32,
    /// Results since the last increase.
    credit: u32,
    /// Chunks below this number were sent before the last decrease: what happens to them is the same congestion.
    recovery: u64,
}

impl Window {
    /// The least that a decrease leaves.
    const MINIMUM: u32 = 2;

    /// A window of `initial` chunks that may grow to `maximum`, at least 1.
    pub fn new(initial: u32, maximum: u32) -> Self {
        let maximum = maximum.max(1);
        Self { size: initial.clamp(1, maximum), maximum, threshold: maximum, credit: 0, recovery: 0 }
    }

    /// Chunks that may be outstanding.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// A result came: one more chunk in slow start, one more per window's worth of results after it.
    pub fn grow(&mut self) {
        self.credit += 1;
        if self.size < self.threshold || self.credit >= self.size {
            self.credit = 0;
            self.size = (self.size + 1).min(self.maximum);
        }
    }

    /// Chunk `number` was lost or met congestion: halves the window, once for all that was sent before (`next` is the next
    /// new chunk). Returns whether it did.
    pub fn shrink(&mut self, number: u64, next: u64) -> bool {
        if number < self.recovery {
            return false;
        }
        self.recovery = next;
        self.size = (self.size / 2).max(Self::MINIMUM).min(self.maximum);
        self.threshold = self.size;
        self.credit = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_doubles_then_grows_by_one_a_window() {
        let mut window = Window::new(4, 100);
        (0..4).for_each(|_| window.grow());
        assert_eq!(window.size(), 8);
        assert!(window.shrink(10, 20));
        assert_eq!(window.size(), 4);
        (0..4).for_each(|_| window.grow());
        assert_eq!(window.size(), 5);
        (0..4).for_each(|_| window.grow());
        assert_eq!(window.size(), 5);
        window.grow();
        assert_eq!(window.size(), 6);
    }

    #[test]
    fn one_decrease_for_one_congestion() {
        let mut window = Window::new(64, 64);
        assert!(window.shrink(5, 70));
        assert!(!window.shrink(69, 90));
        assert_eq!(window.size(), 32);
        assert!(window.shrink(70, 90));
        assert_eq!(window.size(), 16);
    }

    #[test]
    fn bounds() {
        let mut window = Window::new(1_000, 3);
        assert_eq!(window.size(), 3);
        (0..100).for_each(|_| window.grow());
        assert_eq!(window.size(), 3);
        (0..100).for_each(|number| _ = window.shrink(number, number + 1));
        assert_eq!(window.size(), 2);
        let mut window = Window::new(0, 0);
        window.shrink(0, 1);
        assert_eq!(window.size(), 1);
    }
}
