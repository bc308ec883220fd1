//! The combiner, which adds up contributions on their way to the root: section 27 of `docs/spec`.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`admission`] | one packet from below or from the parent, over any storage of jobs and cells |
//! | [`cell`] | the cell state machine |
//! | [`hold_time`] | how long a cell waits for its ranks |
//!
//! | part elsewhere | where |
//! | --- | --- |
//! | partial sums in packets | [`crate::wire::share`] |
//! | over sockets | `userspace/data-plane/src/software/combiner.rs` |
//! | in P4 | `p4/include/cell.p4` and `combiner.p4`; `userspace/p4/src/combiner.rs` and `program.rs` |
//! | the way to the parent | `userspace/data-plane/src/port/uplink.rs`; `userspace/src/daemon/p4.rs` for a P4 switch |
//! | control plane | `userspace/core/src/proxy.rs`, and `userspace/src/combiner.rs` around it |

pub mod admission;
pub mod cell;
pub mod hold_time;
