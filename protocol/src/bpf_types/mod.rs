//! What lies in BPF maps: values that the control plane and the programs share.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`job`] | jobs and their members |
//! | [`fanout`] | where results for all go |
//! | [`uplink`] | a job's link to a combiner's parent |
//! | [`maps`] | keys and values of the other maps |
//! | [`times`] | a histogram of times |

pub mod fanout;
pub mod job;
pub mod maps;
pub mod times;
pub mod uplink;
