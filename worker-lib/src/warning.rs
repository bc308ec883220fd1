//! Lines for people that a rank writes while it goes on.

use std::fmt::Display;
use std::io::Write;

/// Writes a line of a rank's to the standard error stream, as torch and MPI do.
pub(crate) fn warn(job: &str, rank: u32, what: impl Display) {
    note(format_args!("rank {rank} of job {job:?}{what}"));
}

/// Writes a line there that is not of one rank alone.
pub(crate) fn note(what: impl Display) {
    // A process without that stream does without the line.
    let _ = writeln!(std::io::stderr(), "switchml: {what}");
}
