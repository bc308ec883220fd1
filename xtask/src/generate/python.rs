//! The protocol's numbers as Python, for the generator of the vectors.

use std::fmt::{self, Display, Write};

use switchml_protocol::outcome::{Outcome, RejectReason};
use switchml_protocol::wire::header::{Kind, Op, flags};
use switchml_protocol::{EVERYONE, VERSION};

use super::ABOUT;

/// The file's path in the repository.
pub const PATH: &str = "tests/vectors/generator/numbers.py";

/// The text of [`PATH`].
pub fn text() -> String {
    let mut text = format!("\"\"\"{ABOUT}\"\"\"\n\nVERSION = {VERSION}\nEVERYONE = {EVERYONE}\n");
    let kinds = Kind::ALL.iter().map(|kind| (kind.name(), *kind as u32));
    let ops = Op::ALL.iter().map(|op| (op.name(), *op as u32));
    let flags = flags::ALL.iter().map(|(name, flag)| (*name, u32::from(*flag)));
    let reasons = RejectReason::ALL.iter().map(|reason| (reason.name(), *reason as u32));
    let _ = write!(text, "{}", Table("KINDS", kinds.collect()));
    let _ = write!(text, "{}", Table("OPS", ops.collect()));
    let _ = write!(text, "{}", Table("FLAGS", flags.collect()));
    let _ = write!(text, "{}", Table("REASONS", reasons.collect()));
    text += "\nOUTCOMES = {\n";
    for outcome in Outcome::ALL {
        let _ = writeln!(text, "    \"{}\",", outcome.name());
    }
    text + "}\n"
}

/// Constants, and a dictionary from their numbers to their names.
struct Table(&'static str, Vec<(&'static str, u32)>);

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(table, rows) = self;
        writeln!(f)?;
        for (name, number) in rows {
            writeln!(f, "{name} = {number:#04x}")?;
        }
        writeln!(f, "{table} = {{")?;
        for (name, _) in rows {
            writeln!(f, "    {name}: \"{name}\",")?;
        }
        writeln!(f, "}}")
    }
}
