//! The protocol's numbers as Python, for the generator of the vectors.

use std::fmt::{self, Display, Write};

use switchml_protocol::{EVERYONE, VERSION};

use super::{ABOUT, groups};

/// The file's path in the repository.
pub const PATH: &str = "tests/vectors/generator/numbers.py";

/// The text of [`PATH`].
pub fn text() -> String {
    let mut text = format!("\"\"\"{ABOUT}\"\"\"\n\nVERSION = {VERSION}\nEVERYONE = {EVERYONE}\n");
    let [kinds, ops, flags, reasons, outcomes] = groups();
    for (table, (_, rows)) in
        [("KINDS", kinds), ("OPS", ops), ("FLAGS", flags), ("REASONS", reasons)]
    {
        let _ = write!(text, "{}", Table(table, rows));
    }
    text += "\nOUTCOMES = {\n";
    for (name, _) in outcomes.1 {
        let _ = writeln!(text, "    \"{name}\",");
    }
    text + "}\n"
}

/// Constants, and a dictionary from their numbers to their names.
struct Table(&'static str, Vec<(&'static str, u64)>);

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
