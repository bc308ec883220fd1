//! The times that a rank can wait.

use std::time::Duration;

use switchml_worker_core::engine::TIMEOUT_CEILING;

use crate::error::Error;

/// Least deadline and timeout: less would be over before a rank has asked who is missing.
const LEAST_WAIT: Duration = TIMEOUT_CEILING;

/// Refuses a setting that is less than the shortest wait.
///
/// # Errors
/// [`Error::Setting`], with the setting's name.
pub(crate) fn check_wait(name: &'static str, time: Duration) -> Result<(), Error> {
    if time >= LEAST_WAIT {
        return Ok(());
    }
    let given = format!("{} s", time.as_secs_f64());
    Err(Error::Setting { name, given, allowed: "it must be 0.1 s or more" })
}
