//! A bar that moves with the iterations: on a terminal only, and only on the rank that reports.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Disappears when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of `iterations` iterations. indicatif draws nothing where standard error is not a
    /// terminal.
    pub fn new(shown: bool, iterations: usize) -> Self {
        let target =
            if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(iterations as u64), target);
        let style = ProgressStyle::with_template("{wide_bar} {percent}% {msg} {eta}");
        Self(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// Shows the size that is being measured.
    pub fn describe(&self, bytes: usize) {
        self.0.set_message(format!("{bytes} B"));
    }

    /// Counts `iterations` more iterations as done.
    pub fn advance(&self, iterations: usize) {
        self.0.inc(iterations as u64);
    }

    /// Prints something without the bar in its way.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
