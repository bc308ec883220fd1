//! The phases of a call, one file each.
//!
//! A float sum's are: [exponents], [speculation] if it is small, [data]. All others have data
//! alone. Where the data plane does not check maxima, the [witnesses] of a phase's maxima follow
//! it. A phase knows its own chunks, what is to be sent next of them, and what their results mean;
//! `collective` puts them in order.

pub(crate) mod data;
pub(crate) mod elements;
pub(crate) mod exponents;
pub(crate) mod layout;
pub(crate) mod predictor;
pub(crate) mod speculation;
pub(crate) mod witnesses;
