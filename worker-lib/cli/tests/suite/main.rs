//! Tests of the program `switchml-worker`, on loopback.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`bad_input`] | errors around a job: a line, and an exit code for its kind |
//! | [`bench`] | `bench` and `doctor` from end to end |
//! | [`plan`] | `plan` from end to end |

mod bad_input;
mod bench;
mod plan;
