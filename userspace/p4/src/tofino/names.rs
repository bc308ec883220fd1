//! The compiler's names for the program's tables, from its bf-rt.json: full names, found by the
//! names in the source.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::recirculation::{PORT_METADATA, RECIRCULATION};
use super::{COMBINER, NAME, OF_256, PROGRAM};
use crate::entries::{MOST_PARTS, OUTCOMES, PARTS, RANKS, ROUNDS, Table};
use crate::program::ProgramKind;

/// The digest of a HELLO, and its fields.
const DIGEST: &str = "learn";
const DIGEST_FIELDS: [&str; 7] = ["job", "epoch", "rank", "port", "mac", "address", "udp_port"];

/// The exclusion ids of ports, which bmv2 does not have.
pub const EXCLUSIONS: Table =
    Table { name: "exclusions", key: &["port"], actions: &[("exclude", &["id"])] };

/// Full names of the objects that the control plane writes and reads.
#[derive(Clone, Debug)]
pub struct Names {
    /// The kind of the program.
    pub program: ProgramKind,
    tables: HashMap<&'static str, TableNames>,
    /// The registers that the control plane writes and reads; a combiner has none.
    registers: HashMap<&'static str, Register>,
    /// The number of each register's entries.
    pub sets: u32,
    /// The register from which that is known.
    sized: String,
    /// Parts of 64 lanes that a packet may have.
    pub parts: u16,
    /// The counter of packets by outcome.
    pub outcomes: String,
    /// The digest of a HELLO.
    pub digest: String,
}

/// A register of numbers.
#[derive(Clone, Debug)]
pub struct Register {
    /// The register's full name.
    pub name: String,
    /// Its only field.
    pub field: String,
}

/// Full names within a table.
#[derive(Clone, Debug)]
pub struct TableNames {
    /// The table's full name.
    pub name: String,
    key: HashMap<&'static str, String>,
    actions: HashMap<&'static str, String>,
}

/// Why the names could not be found.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum NamesError {
    #[error(
        "cannot read {}: {why}; give the folder that `cargo xtask p4 build` has filled",
        .path.display()
    )]
    Unreadable { path: PathBuf, why: String },
    #[error(
        "{} has no {what}: it belongs to another program; build this version's with `cargo xtask \
         p4 build`",
        .path.display()
    )]
    Missing { path: PathBuf, what: String },
    #[error(
        "{} is of {}; give the folder of that one: `cargo xtask p4 build` fills p4 in the target \
         folder for a root, and p4/combiner there for a combiner",
        .path.display(),
        .wanted.instead_of_other(NAME)
    )]
    Other { path: PathBuf, wanted: ProgramKind },
}

#[derive(Deserialize)]
struct Schema {
    tables: Vec<SchemaTable>,
    #[serde(default)]
    learn_filters: Vec<LearnFilter>,
}

#[derive(Deserialize)]
struct SchemaTable {
    name: String,
    size: u32,
    #[serde(default)]
    key: Vec<Named>,
    #[serde(default)]
    action_specs: Vec<ActionSpec>,
    #[serde(default)]
    data: Vec<Data>,
}

#[derive(Deserialize)]
struct ActionSpec {
    name: String,
    #[serde(default)]
    data: Vec<Named>,
}

#[derive(Deserialize)]
struct Data {
    singleton: Option<Named>,
}

#[derive(Deserialize)]
struct LearnFilter {
    name: String,
    fields: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

impl Names {
    /// Reads the names of a program of this kind from a file that the compiler wrote.
    pub fn read(path: &Path, program: ProgramKind) -> Result<Self, NamesError> {
        let schema = Schema::read(path)?;
        let has = |kind: ProgramKind| schema.table(kind.register()).is_ok();
        if has(program.other()) && !has(program) {
            return Err(NamesError::Other { path: path.to_owned(), wanted: program });
        }
        Self::find_in(&schema, program, path)
    }

    /// Reads the names of a program of either kind.
    pub fn read_any(path: &Path) -> Result<Self, NamesError> {
        let schema = Schema::read(path)?;
        let is_combiner = schema.table(ProgramKind::Combiner.register()).is_ok();
        let kind = if is_combiner { ProgramKind::Combiner } else { ProgramKind::Root };
        Self::find_in(&schema, kind, path)
    }

    fn find_in(schema: &Schema, program: ProgramKind, path: &Path) -> Result<Self, NamesError> {
        let missing = |what| NamesError::Missing { path: path.to_owned(), what };
        Self::find(schema, program).map_err(missing)
    }

    /// Finds the names. The error is the missing object.
    fn find(schema: &Schema, program: ProgramKind) -> Result<Self, String> {
        let parts = if schema.table(PARTS).is_ok() { MOST_PARTS } else { 1 };
        let tables = tables(program, parts);
        let tables = tables.map(|table| Ok((table.name, table_names(schema, table)?)));
        let digest = schema.learn_filters.iter().find(|filter| is_called(&filter.name, DIGEST));
        let digest = digest.ok_or_else(|| format!("digest {DIGEST}"))?;
        for field in DIGEST_FIELDS {
            // The switch uses these names in the digests that it sends.
            if !digest.fields.iter().any(|named| named.name == field) {
                return Err(format!("field {field} in the digest {}", digest.name));
            }
        }
        let registers: &[&'static str] = match program {
            ProgramKind::Root => &[ROUNDS, RANKS],
            ProgramKind::Combiner => &[],
        };
        let registers = registers.iter().map(|name| Ok((*name, register(schema, name)?)));
        let sized = schema.table(program.register())?;
        Ok(Self {
            program,
            tables: tables.collect::<Result<_, String>>()?,
            registers: registers.collect::<Result<_, String>>()?,
            sets: sized.size,
            sized: sized.name.clone(),
            parts,
            outcomes: schema.table(OUTCOMES)?.name.clone(),
            digest: digest.name.clone(),
        })
    }

    /// The name that a switch knows the program by.
    pub const fn program_name(&self) -> &'static str {
        match self.program {
            ProgramKind::Root if self.parts > 1 => OF_256,
            ProgramKind::Root => PROGRAM,
            ProgramKind::Combiner => COMBINER,
        }
    }

    /// The program's file in `p4/`.
    pub fn source(&self) -> String {
        match self.program {
            ProgramKind::Root if self.parts > 1 => format!("{NAME}_256.p4"),
            kind => kind.source(NAME),
        }
    }

    /// A table by the name that it has in the source.
    pub fn table(&self, name: &str) -> &TableNames {
        &self.tables[name]
    }

    /// A root's register of rounds, or that of ranks, by the name that it has in the source.
    pub fn register(&self, name: &str) -> &Register {
        &self.registers[name]
    }

    /// All tables whose entries are the control plane's.
    pub fn tables(&self) -> impl Iterator<Item = &TableNames> {
        tables(self.program, self.parts).map(|table| self.table(table.name))
    }

    /// Full names of all of them, and of registers and counter.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        let registers = self.registers.values().map(|register| &*register.name);
        let others = [&*self.sized, &*self.outcomes];
        self.tables().map(|table| &*table.name).chain(registers).chain(others)
    }
}

fn tables(program: ProgramKind, parts: u16) -> impl Iterator<Item = &'static Table> {
    let of_parts = (parts > 1).then_some([&RECIRCULATION, &PORT_METADATA]);
    program.tables().chain([&EXCLUSIONS]).chain(of_parts.into_iter().flatten())
}

impl TableNames {
    /// A field of the key.
    pub fn field(&self, name: &str) -> &str {
        &self.key[name]
    }

    /// An action.
    pub fn action(&self, name: &str) -> &str {
        &self.actions[name]
    }
}

impl Schema {
    fn read(path: &Path) -> Result<Self, NamesError> {
        let unreadable = |why: String| NamesError::Unreadable { path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))
    }

    fn table(&self, name: &str) -> Result<&SchemaTable, String> {
        self.tables
            .iter()
            .find(|table| is_called(&table.name, name))
            .ok_or_else(|| format!("table {name}"))
    }
}

fn register(schema: &Schema, name: &str) -> Result<Register, String> {
    let table = schema.table(name)?;
    let mut fields = table.data.iter().filter_map(|data| data.singleton.as_ref());
    let field = fields.find(|field| field.name.ends_with(".f1"));
    let field = field.ok_or_else(|| format!("field f1 in the register {}", table.name))?;
    Ok(Register { name: table.name.clone(), field: field.name.clone() })
}

fn table_names(schema: &Schema, wanted: &Table) -> Result<TableNames, String> {
    let table = schema.table(wanted.name)?;
    let full = |names: &[Named], name: &'static str, what: &str| {
        let found =
            names.iter().find(|full| is_called(&full.name, name)).map(|full| full.name.clone());
        found.ok_or_else(|| format!("{what} {name} in the table {}", table.name))
    };
    let key = wanted.key.iter().map(|field| Ok((*field, full(&table.key, field, "field")?)));
    let action_names = |(action, parameters): &(&'static str, &'static [&'static str])| {
        let spec = table.action_specs.iter().find(|spec| is_called(&spec.name, action));
        let spec = spec.ok_or_else(|| format!("action {action} in the table {}", table.name))?;
        parameters.iter().try_for_each(|name| {
            full(&spec.data, name, &format!("parameter of {action}")).map(drop)
        })?;
        Ok((*action, spec.name.clone()))
    };
    let actions = wanted.actions.iter().map(action_names);
    Ok(TableNames {
        name: table.name.clone(),
        key: key.collect::<Result<_, String>>()?,
        actions: actions.collect::<Result<_, String>>()?,
    })
}

/// Whether a full name belongs to `name`: pipe and controls come before it.
fn is_called(full: &str, name: &str) -> bool {
    full == name || full.strip_suffix(name).is_some_and(|before| before.ends_with('.'))
}
