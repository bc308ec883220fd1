//! The description of a switch's tables: its bf-rt.json.

use serde::Deserialize;

/// Tables and digests of a program, or of the switch itself.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Schema {
    /// Tables, registers and counters.
    pub tables: Vec<Table>,
    /// Digests.
    #[serde(default)]
    pub learn_filters: Vec<LearnFilter>,
}

/// A table, a register or a counter.
#[derive(Clone, Debug, Deserialize)]
pub struct Table {
    /// Full name.
    pub name: String,
    /// The table's number.
    pub id: u32,
    /// `Register`, `Counter`, `MatchAction_Direct`, …
    pub table_type: String,
    /// The table's size in entries.
    pub size: usize,
    /// Fields of the key.
    #[serde(default)]
    pub key: Vec<KeyField>,
    /// The actions that an entry may have.
    #[serde(default)]
    pub action_specs: Vec<Action>,
    /// The values of an entry, besides parameters.
    #[serde(default)]
    pub data: Vec<Data>,
    /// The operations of the table.
    #[serde(default)]
    pub supported_operations: Vec<String>,
}

/// A field of a key.
#[derive(Clone, Debug, Deserialize)]
pub struct KeyField {
    /// The field's number within the table.
    pub id: u32,
    /// The field's name.
    pub name: String,
    /// Whether an entry must have the field.
    pub mandatory: bool,
    /// `Exact` or `Ternary`.
    pub match_type: String,
    /// The type of the field's values.
    #[serde(rename = "type")]
    pub kind: Kind,
}

/// Type of a value.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Kind {
    /// `bytes`, `uint32`, `string`, …
    #[serde(rename = "type")]
    pub name: String,
    /// The number of bits, for `bytes`.
    pub width: Option<usize>,
    /// The allowed values of a string.
    #[serde(default)]
    pub choices: Vec<String>,
}

/// An action.
#[derive(Clone, Debug, Deserialize)]
pub struct Action {
    /// The action's number.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// `DefaultOnly`, if no entry may have it.
    #[serde(default)]
    pub action_scope: String,
    /// The action's parameters.
    #[serde(default)]
    pub data: Vec<Field>,
}

/// A value of an entry.
#[derive(Clone, Debug, Deserialize)]
pub struct Data {
    /// Whether a new entry must have the value.
    pub mandatory: bool,
    /// The field.
    pub singleton: Field,
}

/// A parameter or another value of an entry; or a field of a digest.
#[derive(Clone, Debug, Deserialize)]
pub struct Field {
    /// The field's number.
    pub id: u32,
    /// The field's name.
    pub name: String,
    /// Whether the field is an array.
    #[serde(default)]
    pub repeated: bool,
    /// The type of the field's value; none for a structure, which no written table here has.
    #[serde(rename = "type", default)]
    pub kind: Kind,
}

/// A digest.
#[derive(Clone, Debug, Deserialize)]
pub struct LearnFilter {
    /// Full name.
    pub name: String,
    /// The digest's number.
    pub id: u32,
    /// The fields of the digest.
    pub fields: Vec<Field>,
}

impl Kind {
    /// The number of bits of a number; `None` for other types.
    pub fn bits(&self) -> Option<usize> {
        match &*self.name {
            "bytes" => self.width,
            "uint64" => Some(64),
            "uint32" => Some(32),
            "uint16" => Some(16),
            "uint8" => Some(8),
            _ => None,
        }
    }
}
