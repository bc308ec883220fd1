//! Tests of the protocol crate on the host. `docs/testing.md` says how they are layered.
//!
//! Expected values come from `docs/spec` and from arithmetic of the tests' own: [`packet`]
//! encodes packets and computes check words, [`reference`] says what an aggregator must answer,
//! both written from the specification alone.

mod combiner_reference;
mod packet;
mod reference;
mod specification;
mod switch;
mod worker;

mod auth;
mod done;
mod envelope;
mod header;
mod hostile;
mod icrc;
mod ipv6;
mod lanes;
mod large;
mod node;
mod outcome;
mod partial;
mod patience;
mod relay;
mod roce;
mod rules;
mod times;
mod traces;
mod trees;
mod zeros;
