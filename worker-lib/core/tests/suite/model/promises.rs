//! The promises by name, and how they are broken.

use super::tally::Tally;

pub const RIGHT_SUMS: &str =
    "what a worker accepts is the sum of all ranks' contributions, once each";
pub const NO_REFUSAL: &str =
    "no contribution of a worker that keeps the rules is answered REJECT(ROUND)";
pub const PAYLOAD_LAST: &str = "the contribution that completes a round has a payload";
pub const FINISHES: &str =
    "once faults stop, everybody finishes, or fails where the session is over";
pub const DONE: &str = "everybody has all results";

pub const ALL: &[&str] = &[RIGHT_SUMS, NO_REFUSAL, PAYLOAD_LAST, FINISHES, DONE];

pub const NO_RACE: &str = "no rank reads a packet in shared memory while another one writes it";
pub const SETTLES: &str =
    "once faults stop, the living finish but for dead ones, and if all live, new chunks come once";

/// How a state breaks a promise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    WrongSum { session: usize, rank: u16, chunk: usize, sum: Tally },
    Refused { session: usize, rank: u16, chunk: usize },
    CompletedByEmpty { session: usize, rank: u16, chunk: usize },
    Race { rank: u16 },
}
