//! What to do about a cause: a command, and where.

/// A command, and the host to run it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// The host.
    pub host: String,
    /// The command.
    pub command: String,
}

/// This host, for people.
pub const HERE: &str = "this host";
/// The other end, for people.
pub const THERE: &str = "the aggregator's host";

/// The daemon's options for these interfaces.
pub fn interfaces<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!(" --iface {name}")).collect()
}
