//! What a switch knows of its tables: its bf-rt.json.

use serde::Deserialize;

/// Tables and digests of a program, or those of the switch itself.
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
    /// Its number.
    pub id: u32,
    /// `Register`, `Counter`, `MatchAction_Direct`, …
    pub table_type: String,
    /// Most entries.
    pub size: usize,
    /// Fields of the key.
    #[serde(default)]
    pub key: Vec<KeyField>,
    /// What an entry may do.
    #[serde(default)]
    pub action_specs: Vec<Action>,
    /// What an entry holds, besides parameters.
    #[serde(default)]
    pub data: Vec<Data>,
    /// What it can be asked to do.
    #[serde(default)]
    pub supported_operations: Vec<String>,
}

/// A field of a key.
#[derive(Clone, Debug, Deserialize)]
pub struct KeyField {
    /// Its number within the table.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Whether an entry must have it.
    pub mandatory: bool,
    /// `Exact` or `Ternary`.
    pub match_type: String,
    /// Of its values.
    #[serde(rename = "type")]
    pub kind: Kind,
}

/// Type of a value.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Kind {
    /// `bytes`, `uint32`, `string`, …
    #[serde(rename = "type")]
    pub name: String,
    /// Bits, of `bytes`.
    pub width: Option<usize>,
    /// What a string may be.
    #[serde(default)]
    pub choices: Vec<String>,
}

/// An action.
#[derive(Clone, Debug, Deserialize)]
pub struct Action {
    /// Its number.
    pub id: u32,
    /// Full name.
    pub name: String,
    /// `DefaultOnly`, if no entry may have it.
    #[serde(default)]
    pub action_scope: String,
    /// Its parameters.
    #[serde(default)]
    pub data: Vec<Field>,
}

/// What an entry holds.
#[derive(Clone, Debug, Deserialize)]
pub struct Data {
    /// Whether a new entry must have it.
    pub mandatory: bool,
    /// The field.
    pub singleton: Field,
}

/// A parameter or another value of an entry; or a field of a digest.
#[derive(Clone, Debug, Deserialize)]
pub struct Field {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Whether it is an array.
    #[serde(default)]
    pub repeated: bool,
    /// Of its value; nothing of a structure, which no table here has that is written.
    #[serde(rename = "type", default)]
    pub kind: Kind,
}

/// A digest.
#[derive(Clone, Debug, Deserialize)]
pub struct LearnFilter {
    /// Full name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// What it carries.
    pub fields: Vec<Field>,
}

impl Kind {
    /// Bits of a number; none of what is no number.
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
