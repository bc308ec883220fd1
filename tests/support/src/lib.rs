//! What tests of several packages share. What expected values come from is written here from the
//! specification alone, without the types of the protocol crate.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`packet`] | packets byte by byte, with their check words |
//! | [`mod@reference`] | what an aggregator must answer, over an unbounded history |
//! | [`switch`] | the protocol crate's aggregator, with its slots in vectors |
//! | [`answers`] | what aggregators answer in place of a RESULT |
//! | [`frame`] | frames around packets, for a job that tests share |
//! | [`message`] | the same with messages of RoCEv2 |
//! | [`host`] | the protocol crate's aggregator as the programs in the kernel use it |
//! | `kernel` | the loaded programs and their maps |

pub mod answers;
pub mod frame;
pub mod host;
#[cfg(feature = "kernel")]
pub mod kernel;
pub mod message;
pub mod packet;
pub mod reference;
pub mod switch;
