//! What data planes that see whole frames share of the ports that these come in by.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `alike` | what all ranks of a job must share |
//! | `local` | the addresses and MACs that the aggregator answers to |
//! | `uplink` | the way from a combiner to its parent |

pub mod alike;
pub mod local;
pub mod uplink;
