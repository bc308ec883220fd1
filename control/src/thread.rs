//! Threads of a library that write to connections.

use std::{io, thread};

use nix::sys::signal::{SigSet, Signal};

/// Starts a thread on which a write to a broken connection is an error only. Rust's own programs
/// and Python ignore SIGPIPE, but the library is also in programs of C, which that signal ends: a
/// write of several parts (`writev`, as HTTP/2 makes them) has no flag against it.
///
/// # Errors
///
/// The system refuses the thread.
pub fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // It fails for a value of its arguments only, and these are constants.
        let _ = SigSet::from(Signal::SIGPIPE).thread_block();
        work();
    })
}
