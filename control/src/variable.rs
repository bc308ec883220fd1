//! Environment variables, declared where they are read.

/// An environment variable, as manual pages and docs/reference/environment.md describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The variable's name.
    pub name: &'static str,
    /// Values that are allowed.
    pub values: &'static str,
    /// The setting if it is not set; empty if there is none.
    pub default: &'static str,
    /// What it sets.
    pub meaning: &'static str,
}
