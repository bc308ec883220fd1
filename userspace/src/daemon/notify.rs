//! Tells the service manager that has started this process how it is (sd_notify(3)); nobody, if
//! none has.

use std::convert::Infallible;
use std::future::pending;

use sd_notify::NotifyState;
use tracing::warn;

/// The daemon serves; `status` is for people.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// It reads its options again, until it is [`ready`].
pub fn reloading() {
    tell(&[NotifyState::Reloading]);
}

/// It is about to end.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says in time, again and again, that the daemon lives, after `check` has returned. Nothing if
/// nobody waits for that.
pub async fn watchdog(check: impl Fn()) -> Infallible {
    let Some(limit) = sd_notify::watchdog_enabled() else { return pending().await };
    loop {
        check();
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep(limit / 2).await;
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!("cannot notify the service manager: {error}");
    }
}
