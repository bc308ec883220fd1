//! The daemon from outside: its control plane, what it shows, its data planes.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`common`] | a control plane over the software data plane, and ranks made by hand |
//! | [`cli`] | the command line, without privilege |
//! | [`combiner`] | a combiner over loopback: what strangers send to it changes nothing |
//! | [`crowds`] | many strangers at once: what they cost, and that ranks join meanwhile |
//! | [`files`] | a daemon that may open no more files |
//! | [`missing_capabilities`] | ranks over a data plane without checks of maxima |
//! | [`page`] | the status page in a browser |
//! | [`reload`] | SIGHUP: what takes effect, and that nothing ends |
//! | [`roce`] | the software data plane by RoCEv2, message by message |
//! | [`service`] | the control plane over gRPC: who hears what, and every refusal |
//! | [`service_file`] | commands that ask the service of their host |
//! | [`slots`] | `slots`: which ranks the unfinished rounds of a job lack |
//! | [`software`] | the software data plane, packet by packet |
//! | `tofino` | the daemon over BFRT, if it has P4 data planes |
//! | [`start`] | the daemon on XDP before it is ready, and where interfaces come later |
//! | [`top`] | `top` in a terminal |
//! | [`traces`] | traces, as a collector gets them |
//! | [`web`] | status and metrics over HTTP, and before Prometheus |
//! | [`xdp`] | the daemon on XDP, in a rack; on other kernels by `cargo xtask matrix`, too |

mod common;

mod cli;
mod combiner;
mod crowds;
mod files;
mod missing_capabilities;
mod page;
mod reload;
mod roce;
mod service;
mod service_file;
mod slots;
mod software;
mod start;
#[cfg(feature = "p4")]
mod tofino;
mod top;
mod traces;
mod web;
mod xdp;
