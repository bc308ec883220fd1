//! The verifier's check of a program, which a signal ends early.

use std::io::ErrorKind;

use aya::programs::ProgramError;

/// As often as libbpf tries (`PROG_LOAD_ATTEMPTS`).
const ATTEMPTS: usize = 5;

/// Has the verifier check a program with `load`, again if a signal came meanwhile: the verifier
/// then gives up with EAGAIN. Also a debugger and a freezer of control groups send signals, none of
/// which a thread can block.
///
/// # Errors
///
/// What `load` says in the end.
pub fn check<T>(mut load: impl FnMut() -> Result<T, ProgramError>) -> Result<T, ProgramError> {
    for _ in 1..ATTEMPTS {
        match load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.kind() == ErrorKind::WouldBlock => {}
            checked => return checked,
        }
    }
    load()
}
