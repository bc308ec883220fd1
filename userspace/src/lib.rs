//! The aggregator daemon's parts that do I/O. The decisions are in the crate
//! `switchml-userspace-core`.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`combiner`] | the gRPC service of a combiner, and its parent |
//! | [`service`] | the gRPC service: requests to the control plane of `switchml-userspace-core` |
//! | [`guard`] | who may talk to the control plane |
//! | [`exposure`] | the networks from which the control plane can be reached |
//! | [`tls`] | the daemon's certificate |
//! | [`tokens`] | which jobs a rank may join |
//! | [`hosts`] | limits of the control plane for each host |
//! | [`refusals`] | counts of refusals |
//! | [`incoming`] | incoming connections to the control plane |
//! | [`mailbox`] | a rank's unread events |
//! | [`embedded`] | an aggregator inside another process |
//! | [`events`] | the log of notable packets |
//! | [`secret`] | which ranks may join at an aggregator inside another process |
//! | [`segments`] | TCP's segments on ways whose MTU nobody knows |
//! | `standstill` | how long a rank's process may say nothing |
//! | [`throttle`] | log lines that strangers can cause |
//! | [`traces`] | spans of jobs and ranks |
//! | [`view`] | an aggregator as operators see it |
//! | [`web`] | status over HTTP: page, JSON, metrics, probes |

#![forbid(unsafe_code)]

pub mod combiner;
pub mod embedded;
pub mod events;
pub mod exposure;
pub mod guard;
pub mod hosts;
pub mod incoming;
pub mod mailbox;
pub mod refusals;
pub mod secret;
pub mod segments;
pub mod service;
mod standstill;
pub mod throttle;
pub mod tls;
pub mod tokens;
pub mod traces;
pub mod view;
pub mod web;
