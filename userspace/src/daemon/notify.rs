//! Tells the state of this process to the service manager that started it (sd_notify(3)), if one
//! did.

use std::convert::Infallible;
use std::future::pending;

use sd_notify::NotifyState;
use tracing::warn;

/// The daemon serves; `status` is for people.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The daemon reads its options again, until it is [`ready`].
pub fn reloading() {
    tell(&[NotifyState::Reloading]);
}

/// The daemon is about to end.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells regularly, within the service manager's time, that the daemon lives, each time after
/// `check` has returned. Does nothing if no watchdog was asked for.
pub async fn watchdog(check: impl AsyncFn()) -> Infallible {
    let Some(limit) = sd_notify::watchdog_enabled() else { return pending().await };
    loop {
        check().await;
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep(limit / 2).await;
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!("cannot notify the service manager: {error}");
    }
}
