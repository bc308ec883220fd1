//! The root, which makes results: sections 7 and 8 of `docs/spec`.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`admission`] | one packet from admission to answer, over any storage of jobs and slots |
//! | [`slot`] | the slot state machine |
//! | [`done`] | complete rounds, reported to ranks that need none of their lanes |

use crate::capabilities::Capabilities;

pub mod admission;
pub mod done;
pub mod slot;

/// The capabilities of data planes that serve packets by this module.
pub const CAPABILITIES: Capabilities = Capabilities::CHECKED_MAXIMA
    .union(Capabilities::EMPTY_CONTRIBUTIONS)
    .union(Capabilities::PARTIAL_SUMS)
    .union(Capabilities::TAGS)
    .union(Capabilities::AUDIENCES);
