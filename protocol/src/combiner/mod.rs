//! The combiner, which adds up contributions on their way to the root: section 27 of `docs/spec`.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`admission`] | one packet from below or from the parent, over any storage of jobs and cells |
//! | [`cell`] | the cell state machine |
//! | [`hold_time`] | how long a cell waits for its ranks |

pub mod admission;
pub mod cell;
pub mod hold_time;
