//! Tests the plugin as NCCL uses it: a library that is opened at run time.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`net`] | point-to-point messages, by the library's table alone |
//! | [`coll_net`] | calls for collectives, in a rack, by a program in C |

mod coll_net;
mod net;
