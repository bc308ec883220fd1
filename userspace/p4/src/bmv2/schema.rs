//! The tables of the program that `simple_switch` runs, from the JSON that p4c wrote: names, and
//! lengths of fields.
//!
//! Names are those of the P4 source. The JSON puts the controls in front of them, which only
//! matters to `simple_switch`.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use super::{NAME, thrift};
use crate::program::ProgramKind;
use crate::switch::Match;

/// Why a program does not fit an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SchemaError {
    #[error("its program cannot be read: {0}")]
    Unreadable(String),
    #[error("it runs {}", .0.instead_of_other(NAME))]
    Other(ProgramKind),
    #[error("its program has no {kind} `{name}`; it is not one of this version's p4/")]
    Missing { kind: &'static str, name: String },
    #[error("its program has an unknown {kind} `{name}`; it is not one of this version's p4/")]
    Unset { kind: &'static str, name: String },
    #[error("`{name}` is matched {how} in its program; it is not one of this version's p4/")]
    Otherwise { name: String, how: &'static str },
    #[error("`{name}` has {width} bits, too few for {value:#x}")]
    TooLarge { name: String, width: u32, value: u64 },
}

/// The objects of the program.
#[derive(Debug)]
pub struct Schema {
    tables: Vec<Table>,
    counters: Vec<String>,
    registers: Vec<Register>,
    digests: Vec<Digest>,
}

/// A table.
#[derive(Debug)]
pub struct Table {
    /// The table's name, with the controls.
    pub name: String,
    key: Vec<Field>,
    actions: Vec<Action>,
    /// Whether the table's entries are constant, in the program itself.
    pub constant: bool,
}

/// An action.
#[derive(Debug)]
struct Action {
    name: String,
    data: Vec<Field>,
}

#[derive(Debug)]
struct Field {
    name: String,
    width: u32,
    ternary: bool,
}

#[derive(Deserialize)]
struct Program {
    header_types: Vec<HeaderType>,
    headers: Vec<Header>,
    pipelines: Vec<Pipeline>,
    actions: Vec<ActionDeclaration>,
    counter_arrays: Vec<Named>,
    register_arrays: Vec<Register>,
    learn_lists: Vec<Digest>,
}

#[derive(Deserialize)]
struct HeaderType {
    name: String,
    /// Name, length in bits, and more.
    fields: Vec<Vec<Value>>,
}

#[derive(Deserialize)]
struct Header {
    name: String,
    header_type: String,
}

#[derive(Deserialize)]
struct Pipeline {
    tables: Vec<TableDeclaration>,
}

#[derive(Deserialize)]
struct TableDeclaration {
    name: String,
    key: Vec<KeyField>,
    action_ids: Vec<u32>,
    entries: Option<Value>,
}

#[derive(Deserialize)]
struct KeyField {
    name: String,
    match_type: String,
    /// Header and field.
    target: (String, String),
}

#[derive(Deserialize)]
struct ActionDeclaration {
    id: u32,
    name: String,
    runtime_data: Vec<Parameter>,
}

#[derive(Deserialize)]
struct Parameter {
    name: String,
    bitwidth: u32,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// A register.
#[derive(Debug, Deserialize)]
pub struct Register {
    /// The register's name, with the controls.
    pub name: String,
    /// The number of its entries.
    pub size: u32,
}

/// A kind of digest.
#[derive(Debug, Deserialize)]
pub struct Digest {
    /// The structure in the source.
    pub name: String,
    /// The digest's number.
    pub id: i32,
}

impl Schema {
    /// Reads the JSON.
    pub fn parse(json: &str) -> Result<Self, SchemaError> {
        let program: Program = serde_json::from_str(json)
            .map_err(|error| SchemaError::Unreadable(error.to_string()))?;
        let widths = widths(&program);
        let actions: HashMap<u32, &ActionDeclaration> =
            program.actions.iter().map(|action| (action.id, action)).collect();
        let declared = program.pipelines.iter().flat_map(|pipeline| &pipeline.tables);
        let tables = declared.map(|table| Table::new(table, &widths, &actions)).collect();
        let counters = program.counter_arrays.iter().map(|counter| counter.name.clone()).collect();
        Ok(Self {
            tables,
            counters,
            registers: program.register_arrays,
            digests: program.learn_lists,
        })
    }

    /// All tables.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The table of that name.
    pub fn table(&self, name: &str) -> Result<&Table, SchemaError> {
        find("table", name, &self.tables, |table| &table.name)
    }

    /// The whole name of a counter.
    pub fn counter(&self, name: &str) -> Result<&str, SchemaError> {
        find("counter", name, &self.counters, |counter| counter).map(String::as_str)
    }

    /// The register of that name.
    pub fn register(&self, name: &str) -> Result<&Register, SchemaError> {
        find("register", name, &self.registers, |register| &register.name)
    }

    /// The register with an entry for each set or cell of a program of this kind.
    pub fn register_of(&self, kind: ProgramKind) -> Result<&Register, SchemaError> {
        let other = || self.register(kind.other().register()).is_ok();
        self.register(kind.register())
            .map_err(|missing| if other() { SchemaError::Other(kind) } else { missing })
    }

    /// The number of a kind of digest.
    pub fn digest(&self, name: &str) -> Result<i32, SchemaError> {
        find("digest", name, &self.digests, |digest| &digest.name).map(|digest| digest.id)
    }
}

impl Table {
    fn new(
        declared: &TableDeclaration,
        widths: &HashMap<(&str, &str), u32>,
        actions: &HashMap<u32, &ActionDeclaration>,
    ) -> Self {
        let field = |key: &KeyField| Field {
            name: key.name.clone(),
            // A key that is not a header's field says whether the header is there.
            width: widths
                .get(&(key.target.0.as_str(), key.target.1.as_str()))
                .copied()
                .unwrap_or(1),
            ternary: key.match_type == "ternary",
        };
        let parameter = |data: &Parameter| Field {
            name: data.name.clone(),
            width: data.bitwidth,
            ternary: false,
        };
        let action = |action: &&ActionDeclaration| Action {
            name: action.name.clone(),
            data: action.runtime_data.iter().map(parameter).collect(),
        };
        Self {
            name: declared.name.clone(),
            key: declared.key.iter().map(field).collect(),
            actions: declared
                .action_ids
                .iter()
                .filter_map(|id| actions.get(id))
                .map(action)
                .collect(),
            constant: declared.entries.is_some(),
        }
    }

    /// A table key, from the matches of its fields.
    pub fn key(&self, wanted: &[(&str, Match)]) -> Result<Vec<thrift::Match>, SchemaError> {
        for (name, _) in wanted {
            find("field", name, &self.key, |field| &field.name)?;
        }
        self.key.iter().map(|field| field.wanted(wanted)).collect()
    }

    /// The whole name of an action, and its data by name.
    pub fn action(
        &self,
        name: &str,
        data: &[(&str, u64)],
    ) -> Result<(&str, Vec<Vec<u8>>), SchemaError> {
        let action = find("action", name, &self.actions, |action| &action.name)?;
        for (name, _) in data {
            find("parameter", name, &action.data, |field| &field.name)?;
        }
        let value = |field: &Field| {
            let given = data.iter().find(|(name, _)| *name == field.name);
            let missing = || SchemaError::Unset { kind: "parameter", name: field.name.clone() };
            field.bytes(given.ok_or_else(missing)?.1)
        };
        Ok((&action.name, action.data.iter().map(value).collect::<Result<_, _>>()?))
    }
}

impl Field {
    fn wanted(&self, wanted: &[(&str, Match)]) -> Result<thrift::Match, SchemaError> {
        let given = wanted.iter().find(|(name, _)| is_named(&self.name, name));
        let missing = || SchemaError::Unset { kind: "field", name: self.name.clone() };
        match (given.ok_or_else(missing)?.1, self.ternary) {
            (Match::Exact(value), false) => Ok(thrift::Match::Exact(self.bytes(value)?)),
            (Match::Ternary { value, mask }, true) => {
                Ok(thrift::Match::Ternary { value: self.bytes(value)?, mask: self.bytes(mask)? })
            }
            (Match::Exact(_), true) => Err(self.matches_otherwise("ternary")),
            (Match::Ternary { .. }, false) => Err(self.matches_otherwise("exact")),
        }
    }

    fn matches_otherwise(&self, how: &'static str) -> SchemaError {
        SchemaError::Otherwise { name: self.name.clone(), how }
    }

    fn ones(&self) -> u64 {
        u64::MAX >> (64 - self.width.clamp(1, 64))
    }

    /// Big-endian, as long as the field.
    fn bytes(&self, value: u64) -> Result<Vec<u8>, SchemaError> {
        if value > self.ones() {
            return Err(SchemaError::TooLarge {
                name: self.name.clone(),
                width: self.width,
                value,
            });
        }
        let length = self.width.div_ceil(8) as usize;
        let bytes = value.to_be_bytes();
        Ok(bytes[bytes.len().saturating_sub(length)..].to_vec())
    }
}

/// The lengths of the headers' fields.
fn widths(program: &Program) -> HashMap<(&str, &str), u32> {
    let types: HashMap<&str, &[Vec<Value>]> = program
        .header_types
        .iter()
        .map(|kind| (kind.name.as_str(), kind.fields.as_slice()))
        .collect();
    let fields = program.headers.iter().flat_map(|header| {
        let fields = types.get(header.header_type.as_str()).copied().unwrap_or_default();
        fields.iter().filter_map(|field| match field.as_slice() {
            [Value::String(name), Value::Number(width), ..] => {
                Some(((header.name.as_str(), name.as_str()), width.as_u64()? as u32))
            }
            _ => None,
        })
    });
    fields.collect()
}

/// Whether `full` is the name, with or without controls in front.
fn is_named(full: &str, name: &str) -> bool {
    full.strip_suffix(name).is_some_and(|controls| controls.is_empty() || controls.ends_with('.'))
}

fn find<'a, T>(
    kind: &'static str,
    name: &str,
    among: &'a [T],
    name_of: impl Fn(&T) -> &String,
) -> Result<&'a T, SchemaError> {
    let found = among.iter().find(|candidate| is_named(name_of(candidate), name));
    found.ok_or_else(|| SchemaError::Missing { kind, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relevant part of p4c's JSON for a program.
    const PROGRAM: &str = r#"{
        "header_types": [{
            "name": "frame_t", "fields": [["rank", 16, false], ["port", 9, false], ["rest", "*"]]
        }],
        "headers": [{"name": "frame", "header_type": "frame_t"}],
        "pipelines": [{"tables": [
            {"name": "Ingress.in.members", "action_ids": [1, 2], "key": [
                {"name": "rank", "match_type": "ternary", "target": ["frame", "rank"]},
                {"name": "m.port", "match_type": "ternary", "target": ["frame", "port"]}]},
            {"name": "Ingress.in.here", "action_ids": [2], "entries": [], "key": [
                {"name": "is_frame", "match_type": "exact", "target": ["frame", "$valid$"]}]}]}],
        "actions": [
            {
                "id": 1, "name": "Ingress.in.admit",
                "runtime_data": [{"name": "own", "bitwidth": 32}]
            },
            {"id": 2, "name": "NoAction", "runtime_data": []}],
        "counter_arrays": [{"name": "Ingress.outcomes"}],
        "register_arrays": [{"name": "Ingress.in.rounds", "size": 64}],
        "learn_lists": [{"name": "learn_t", "id": 1}]
    }"#;

    #[test]
    fn values_are_as_long_as_their_fields() {
        let schema = Schema::parse(PROGRAM).unwrap();
        let members = schema.table("members").unwrap();
        let any = Match::Ternary { value: 0, mask: 0 };
        let key = members
            .key(&[("port", Match::Ternary { value: 0x101, mask: 0x1FF }), ("rank", any)])
            .unwrap();
        let ternary = |value: &[u8], mask: &[u8]| thrift::Match::Ternary {
            value: value.into(),
            mask: mask.into(),
        };
        assert_eq!(key, [ternary(&[0, 0], &[0, 0]), ternary(&[1, 1], &[1, 0xFF])]);
        let (action, data) = members.action("admit", &[("own", 1 << 31)]).unwrap();
        assert_eq!((action, data), ("Ingress.in.admit", vec![vec![0x80, 0, 0, 0]]));
        let here = schema.table("here").unwrap();
        assert_eq!(
            here.key(&[("is_frame", Match::Exact(1))]).unwrap(),
            [thrift::Match::Exact(vec![1])]
        );
        assert!(here.constant && !members.constant);
        assert_eq!(schema.counter("outcomes").unwrap(), "Ingress.outcomes");
        assert_eq!(schema.register("rounds").unwrap().size, 64);
        assert_eq!(schema.digest("learn_t").unwrap(), 1);
    }

    #[test]
    fn a_program_of_the_other_kind_is_named() {
        let (root, combiner) = (PROGRAM, PROGRAM.replace("rounds", "begins"));
        let refused = |program: &str, wanted| {
            Schema::parse(program).unwrap().register_of(wanted).unwrap_err().to_string()
        };
        assert_eq!(
            refused(root, ProgramKind::Combiner),
            "it runs bmv2.p4, the root's program; with --parent it must be bmv2_combiner.p4"
        );
        assert_eq!(
            refused(&combiner, ProgramKind::Root),
            "it runs bmv2_combiner.p4, a combiner's program; without --parent it must be bmv2.p4"
        );
        let neither = refused(&PROGRAM.replace("rounds", "other"), ProgramKind::Combiner);
        assert!(neither.starts_with("its program has no register `begins`; "), "{neither}");
        let cells = Schema::parse(&combiner).unwrap();
        assert_eq!(cells.register_of(ProgramKind::Combiner).unwrap().size, 64);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let schema = Schema::parse(PROGRAM).unwrap();
        let says = |error: SchemaError, expected: &str| assert_eq!(error.to_string(), expected);
        let other = "it is not one of this version's p4/";
        says(
            schema.table("embers").unwrap_err(),
            &format!("its program has no table `embers`; {other}"),
        );
        let members = schema.table("members").unwrap();
        let any = Match::Ternary { value: 0, mask: 0 };
        let unknown = members.key(&[("rank", any), ("port", any), ("age", any)]).unwrap_err();
        says(unknown, &format!("its program has no field `age`; {other}"));
        let missing = members.key(&[("rank", any)]).unwrap_err();
        says(missing, &format!("its program has an unknown field `m.port`; {other}"));
        let large = members
            .key(&[("rank", any), ("port", Match::Ternary { value: 512, mask: 0 })])
            .unwrap_err();
        says(large, "`m.port` has 9 bits, too few for 0x200");
        let exact = members.key(&[("rank", Match::Exact(1)), ("port", any)]).unwrap_err();
        says(exact, &format!("`rank` is matched ternary in its program; {other}"));
        let action = members.action("refuse", &[]).unwrap_err();
        says(action, &format!("its program has no action `refuse`; {other}"));
        let parameter = members.action("admit", &[("own", 1), ("others", 1)]).unwrap_err();
        says(parameter, &format!("its program has no parameter `others`; {other}"));
        assert!(matches!(Schema::parse("{}"), Err(SchemaError::Unreadable(_))));
    }
}
