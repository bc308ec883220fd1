//! The phases of a call, one file each.
//!
//! The phases of a float sum are [exponents], [speculation] if it is small, and [data]. Other calls
//! have only data. If the data plane does not check maxima, the [witnesses] of a phase's maxima
//! follow it. A phase knows its own chunks, the next one to send, and the meaning of results;
//! `collective` puts the phases in order.

pub(crate) mod data;
pub(crate) mod elements;
pub(crate) mod exponents;
pub(crate) mod layout;
pub(crate) mod predictor;
pub(crate) mod speculation;
pub(crate) mod witnesses;
