//! Placeholder.

pub mod control;
pub mod numerics;
