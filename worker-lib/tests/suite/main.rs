//! The library with the real daemon, over loopback.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`certificates`] | certificates in files, of CAs made for a test |
//! | [`daemon`] | the daemon and workers as processes |
//! | [`folder`] | a folder for a test's files |
//! | [`collectives`] | collectives by the public API: results, statistics, failures |
//! | [`control`] | the control plane's client: who joins, who hears what |
//! | [`data_threads`] | several data threads: the same bits, errors and statistics as with one |
//! | [`metrics`] | small tensors of different numbers, summed as well as in f64 |
//! | [`rdma`] | a rank that wants RDMA where there is none |
//! | [`stripes`] | a job at several aggregators: the same bits, shared work, errors |
//! | [`tls`] | TLS of the control plane: every attack and mistake, refused and counted |
//! | [`tokens`] | job tokens: what lets a rank join, and what does not |

mod certificates;
mod folder;

mod collectives;
mod control;
mod data_threads;
mod metrics;
mod rdma;
mod stripes;
mod tls;
mod tokens;
