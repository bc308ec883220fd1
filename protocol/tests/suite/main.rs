//! Tests of the protocol crate on the host. `docs/testing.md` says how they are layered.
//!
//! Expected values come from `docs/spec` and from arithmetic of the tests' own: of
//! [`switchml_test_support`], [`packet`] encodes packets and computes check words, [`reference`]
//! says what an aggregator must answer, both written from the specification alone.
//!
//! [`packet`]: switchml_test_support::packet
//! [`reference`]: switchml_test_support::reference

mod combiner_reference;
mod specification;
mod worker;

mod auth;
mod combiner;
mod done;
mod envelope;
mod header;
mod hold_time;
mod hostile;
mod icrc;
mod ipv6;
mod lanes;
mod large;
mod node;
mod outcome;
mod partial;
mod roce;
mod rules;
mod times;
mod traces;
mod trees;
mod zeros;
