//! Placeholder.

pub mod numerics;
