//! Turns at a control plane's state, which one request after the other changes. Its owner may wait
//! for a switch, for many seconds if that does not answer; nobody who waits for a turn keeps a
//! thread from other work.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use switchml_userspace_core::data_plane::DataPlane;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tonic::Status;

/// Longest wait of a request that only looks: shorter than those who ask wait.
pub const LOOK: Duration = Duration::from_secs(3);
/// Longest wait of a rank's request: as long as a switch has for a command.
pub const CHANGE: Duration = Duration::from_secs(20);
/// How often the state is tried without a pause: its usual owners are done in microseconds.
const TRIES: u32 = 8;
/// Time between later tries.
const PAUSE: Duration = Duration::from_millis(1);

/// The state, at once. A panic in a handler must not take the other jobs down; each change of the
/// state is atomic. For threads that may wait.
pub fn lock<S>(state: &Mutex<S>) -> MutexGuard<'_, S> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state, when it is free.
pub async fn turn<S>(state: &Mutex<S>) -> MutexGuard<'_, S> {
    let mut tries = 0;
    loop {
        if let Some(state) = free(state) {
            return state;
        }
        tries += 1;
        if tries < TRIES { yield_now().await } else { sleep(PAUSE).await }
    }
}

/// The state, when it is free.
///
/// # Errors
///
/// UNAVAILABLE, after which ranks try again, if the data plane has kept it for this time.
pub async fn turn_within<'a, S>(
    patience: Duration,
    state: &'a Mutex<S>,
    data_plane: &dyn DataPlane,
) -> Result<MutexGuard<'a, S>, Status> {
    unless(patience, || data_plane.is_waiting(), turn(state)).await
}

/// What a thread that may wait finds.
///
/// # Errors
///
/// UNAVAILABLE if the data plane has kept it waiting for the time of a request that only looks.
pub async fn look<T: Send + 'static>(
    data_plane: &dyn DataPlane,
    find: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let found = tokio::task::spawn_blocking(find);
    let found = unless(LOOK, || data_plane.is_waiting(), found).await?;
    found.map_err(|error| Status::internal(error.to_string()))
}

/// The result of `coming`; or an error if the data plane waits for its switch after this time. On a
/// busy machine a result takes long, too, but it comes.
async fn unless<T>(
    patience: Duration,
    is_waiting: impl Fn() -> bool,
    coming: impl Future<Output = T>,
) -> Result<T, Status> {
    let mut coming = pin!(coming);
    loop {
        match timeout(patience, &mut coming).await {
            Ok(there) => return Ok(there),
            Err(_) if is_waiting() => return Err(busy(patience)),
            Err(_) => {}
        }
    }
}

/// Changes the state at once if it is free, else when it is.
pub fn when_free<S: Send + 'static>(
    state: &Arc<Mutex<S>>,
    change: impl FnOnce(&mut S) + Send + 'static,
) {
    match (free(state), Handle::try_current()) {
        (Some(mut state), _) => change(&mut state),
        (None, Ok(runtime)) => {
            let state = Arc::clone(state);
            drop(runtime.spawn(async move { change(&mut *turn(&state).await) }));
        }
        // Nothing else runs here any more.
        (None, Err(_)) => change(&mut lock(state)),
    }
}

/// Returns if requests are served, or wait for a switch, which ends by itself.
pub async fn served_or_waiting<S>(state: &Mutex<S>, data_plane: &dyn DataPlane) {
    while free(state).is_none() && !data_plane.is_waiting() {
        sleep(PAUSE).await;
    }
}

fn free<S>(state: &Mutex<S>) -> Option<MutexGuard<'_, S>> {
    match state.try_lock() {
        Ok(state) => Some(state),
        Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn busy(patience: Duration) -> Status {
    Status::unavailable(format!(
        "the aggregator has waited for its switch for {} s; look after the switch, or try again",
        patience.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn only_a_switch_that_keeps_us_waiting_is_an_error() {
        let slow = unless(SHORT, || false, sleep(30 * SHORT)).await;
        slow.expect("a busy machine is none");
        let stuck = unless(SHORT, || true, sleep(Duration::from_secs(3600))).await;
        assert_eq!(stuck.expect_err("it does not come").code(), Code::Unavailable);
        unless(SHORT, || true, async {}).await.expect("it is there at once");
    }
}
