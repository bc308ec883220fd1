//! The switch's tables: checks writes like a switch, and stores them.

use std::collections::{BTreeMap, HashMap};

use tonic::Code;

use crate::proto::data_field::Value;
use crate::proto::key_field::MatchType;
use crate::proto::{DataField, KeyField, TableData, TableEntry, TableKey, update};
use crate::schema::{Action, Field, Kind, Schema, Table};

/// The reason for a refusal.
pub type Refusal = (Code, String);

/// Key fields by number, in the given bytes.
type Key = BTreeMap<u32, Bits>;

/// A match: its bytes, and the bytes of the mask if there is one.
pub type Bits = (Vec<u8>, Option<Vec<u8>>);

/// An entry without its key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Number of the action; 0 in tables without actions.
    pub action: u32,
    /// Values, by number of their field.
    pub fields: BTreeMap<u32, Value>,
}

/// All tables.
#[derive(Debug, Default)]
pub struct State {
    /// The program's tables, then the switch's own.
    pub tables: Vec<Table>,
    entries: HashMap<u32, BTreeMap<Key, Row>>,
    defaults: HashMap<u32, Row>,
    /// Counters in the hardware; reads return the values of the last sync.
    pub counted: HashMap<(u32, u64), u64>,
    /// Registers in the hardware: the values of an index in the pipelines. Reads return those of
    /// the last sync, or of a later write.
    pub registers: HashMap<(u32, u64), Pipelines>,
    copied: HashMap<(u32, u64), Pipelines>,
}

/// Pipelines of the switch.
pub const PIPELINES: usize = 4;

/// A register's entry, in each pipeline.
pub type Pipelines = [u32; PIPELINES];

impl State {
    /// Empty tables, of a program and the switch's own. The front panel has 16 connectors with four
    /// channels each at each of two pipelines, and one of the host's.
    pub fn new(program: &Schema, own: &Schema) -> Self {
        let tables: Vec<_> = program.tables.iter().chain(&own.tables).cloned().collect();
        let mut state = Self { tables, ..Self::default() };
        if let Some(names) = own.tables.iter().find(|table| table.name == "$PORT_STR_INFO") {
            let port = |(connector, channel): (u32, u32)| {
                let key = Key::from([(1, (format!("{connector}/{channel}").into_bytes(), None))]);
                let (pipeline, place) = ((connector - 1) / 16, (connector - 1) % 16);
                let number = match pipeline {
                    0 | 1 => 128 * pipeline + 4 * place + channel,
                    _ => 64 + channel,
                };
                (
                    key,
                    Row {
                        action: 0,
                        fields: BTreeMap::from([(1, Value::Stream(number.to_be_bytes().to_vec()))]),
                    },
                )
            };
            let ports =
                (1..=33).flat_map(|connector| (0..4).map(move |channel| (connector, channel)));
            state.entries.insert(names.id, ports.map(port).collect());
        }
        state
    }

    /// A table by its number.
    pub fn table(&self, id: u32) -> Result<&Table, Refusal> {
        let table = self.tables.iter().find(|table| table.id == id);
        table.ok_or_else(|| (Code::NotFound, format!("Table not found for id {id}")))
    }

    /// Entries of a table, as they are.
    pub fn rows(&self, id: u32) -> impl Iterator<Item = (&BTreeMap<u32, Bits>, &Row)> {
        self.entries.get(&id).into_iter().flatten()
    }

    /// A table's default, if it was changed.
    pub fn default_row(&self, id: u32) -> Option<&Row> {
        self.defaults.get(&id)
    }

    /// Inserts, modifies or deletes.
    pub fn write(&mut self, kind: update::Type, entry: &TableEntry) -> Result<(), Refusal> {
        let table = self.table(entry.table_id)?.clone();
        let named = |(code, why): Refusal| (code, format!("table:{} {why}", table.name));
        self.write_to(&table, kind, entry).map_err(named)
    }

    fn write_to(
        &mut self,
        table: &Table,
        kind: update::Type,
        entry: &TableEntry,
    ) -> Result<(), Refusal> {
        let data = || {
            row(
                table,
                entry.data.as_ref().ok_or_else(|| invalid("Table data cannot be empty"))?,
                kind,
                entry.is_default_entry,
            )
        };
        let fields =
            entry.key.as_ref().map(|key| &key.fields[..]).filter(|fields| !fields.is_empty());
        if entry.is_default_entry {
            return match (kind, fields) {
                (_, Some(_)) => Err(invalid("Non-empty key for default entry")),
                (update::Type::Modify, None) => {
                    self.defaults.insert(table.id, data()?);
                    Ok(())
                }
                _ => Err((
                    Code::Unimplemented,
                    "INSERT of default entry is not supported".to_owned(),
                )),
            };
        }
        let Some(fields) = fields else {
            if kind != update::Type::Delete {
                return Err(invalid("Table key cannot be empty"));
            }
            self.entries.remove(&table.id);
            return Ok(());
        };
        let key = key(table, fields)?;
        let data = data();
        let [is_register, is_pruning] =
            ["Register", "PrePrune"].map(|kind| table.table_type == kind);
        if table.table_type == "PreMgid" && kind == update::Type::Insert {
            self.check_nodes(data.as_ref().map_err(Clone::clone)?)?;
        }
        let entries = self.entries.entry(table.id).or_default();
        let is_there = entries.contains_key(&key);
        match kind {
            // In these tables all entries always exist.
            update::Type::Insert | update::Type::Modify if is_register || is_pruning => {
                let row = data?;
                if let (true, Some(Value::Stream(value))) =
                    (is_register, row.fields.values().next())
                {
                    let (at, value) = ((table.id, index_of(&key)), number(value) as u32);
                    self.registers.insert(at, [value; PIPELINES]);
                    self.copied.insert(at, [value; PIPELINES]);
                }
                drop(entries.insert(key, row));
            }
            update::Type::Insert if is_there => {
                return Err((Code::AlreadyExists, "Table Add failed: already exists".to_owned()));
            }
            update::Type::Insert if entries.len() >= table.size => {
                return Err((Code::ResourceExhausted, "Table Add failed: no space".to_owned()));
            }
            update::Type::Insert => drop(entries.insert(key, data?)),
            update::Type::Delete if is_pruning => drop(entries.remove(&key)),
            update::Type::Modify | update::Type::Delete if !is_there || is_register => {
                return Err((Code::NotFound, "object not found".to_owned()));
            }
            update::Type::Modify => drop(entries.insert(key, data?)),
            update::Type::Delete => drop(entries.remove(&key)),
            other => return Err(invalid(&format!("Invalid update type {other:?}"))),
        }
        Ok(())
    }

    /// Checks that the nodes of a multicast group exist.
    fn check_nodes(&self, group: &Row) -> Result<(), Refusal> {
        let Some(Value::IntArrVal(nodes)) = group.fields.get(&1) else { return Ok(()) };
        let table = self
            .tables
            .iter()
            .find(|table| table.table_type == "PreNode")
            .map(|table| table.id)
            .unwrap_or_default();
        for node in &nodes.val {
            let key = Key::from([(1, (node.to_be_bytes().to_vec(), None))]);
            if !self.entries.get(&table).is_some_and(|nodes| nodes.contains_key(&key)) {
                return Err((Code::NotFound, format!("node {node} not found")));
            }
        }
        Ok(())
    }

    /// Copies the hardware's counters or registers.
    pub fn sync(&mut self, id: u32, operation: &str) -> Result<(), Refusal> {
        let table = self.table(id)?;
        // The compiler calls the operation `Sync`, whatever it reads.
        let is_known = match &*table.table_type {
            "Counter" => ["Sync", "SyncCounters"].contains(&operation),
            "Register" => ["Sync", "SyncRegisters"].contains(&operation),
            _ => false,
        };
        if !is_known || !table.supported_operations.iter().any(|known| known == "Sync") {
            return Err((
                Code::Unimplemented,
                format!("Operation {operation} not supported by table:{}", table.name),
            ));
        }
        if table.table_type == "Register" {
            let held = self.registers.iter().filter(|((table, _), _)| *table == id);
            self.copied.extend(held.map(|(at, values)| (*at, *values)));
            return Ok(());
        }
        let field = table
            .data
            .iter()
            .find(|data| data.singleton.name == "$COUNTER_SPEC_PKTS")
            .map(|data| data.singleton.id);
        let key_id = table.key.first().map(|field| field.id);
        let (Some(field), Some(key_id)) = (field, key_id) else { return Ok(()) };
        let counted = (0..table.size as u64).map(|index| {
            let packets = self.counted.get(&(id, index)).copied().unwrap_or_default();
            let key = Key::from([(key_id, ((index as u32).to_be_bytes().to_vec(), None))]);
            (
                key,
                Row {
                    action: 0,
                    fields: BTreeMap::from([(
                        field,
                        Value::Stream(packets.to_be_bytes().to_vec()),
                    )]),
                },
            )
        });
        let counted = counted.collect();
        self.entries.insert(id, counted);
        Ok(())
    }

    /// An entry of a register, as it was copied: all entries exist, and the field comes once for
    /// each pipeline.
    fn register_entry(&self, table: &Table, key: &Key) -> TableEntry {
        let copied = self.copied.get(&(table.id, index_of(key)));
        let field_id = table.data.first().map(|data| data.singleton.id).unwrap_or_default();
        let field = |value: u32| {
            let value = Some(Value::Stream(value.to_be_bytes().to_vec()));
            DataField { field_id, value }
        };
        TableEntry {
            table_id: table.id,
            key: Some(TableKey {
                fields: key.iter().map(|(id, bits)| key_field(*id, bits)).collect(),
            }),
            data: Some(TableData {
                action_id: 0,
                fields: copied.copied().unwrap_or_default().map(field).to_vec(),
            }),
            is_default_entry: false,
        }
    }

    /// The entry of a key, or all; of a register only by its key.
    pub fn read(&self, wanted: &TableEntry) -> Result<Vec<TableEntry>, Refusal> {
        let table = self.table(wanted.table_id)?;
        let answer = |(key, row): (&Key, &Row)| TableEntry {
            table_id: table.id,
            key: Some(TableKey {
                fields: key.iter().map(|(id, bits)| key_field(*id, bits)).collect(),
            }),
            data: Some(TableData {
                action_id: row.action,
                fields: row
                    .fields
                    .iter()
                    .map(|(id, value)| DataField { field_id: *id, value: Some(value.clone()) })
                    .collect(),
            }),
            is_default_entry: false,
        };
        let Some(fields) =
            wanted.key.as_ref().map(|key| &key.fields).filter(|fields| !fields.is_empty())
        else {
            return Ok(self.rows(table.id).map(answer).collect());
        };
        let key = key(table, fields)?;
        if table.table_type == "Register" {
            return Ok(vec![self.register_entry(table, &key)]);
        }
        let found = self.entries.get(&table.id).and_then(|entries| entries.get_key_value(&key));
        let found = found
            .ok_or_else(|| (Code::NotFound, format!("table:{} object not found", table.name)))?;
        Ok(vec![answer(found)])
    }
}

fn key_field(id: u32, (value, mask): &Bits) -> KeyField {
    let value = value.clone();
    let matched = match mask.clone() {
        None => MatchType::Exact(crate::proto::key_field::Exact { value }),
        Some(mask) => MatchType::Ternary(crate::proto::key_field::Ternary { value, mask }),
    };
    KeyField { field_id: id, match_type: Some(matched) }
}

/// A key that the table may have.
fn key(table: &Table, fields: &[KeyField]) -> Result<Key, Refusal> {
    let mut key = Key::new();
    for field in fields {
        let known = table.key.iter().find(|known| known.id == field.field_id);
        let known = known.ok_or_else(|| invalid(&format!("no key field {}", field.field_id)))?;
        let bits = match (&field.match_type, &*known.match_type) {
            (Some(MatchType::Exact(exact)), "Exact") => (exact.value.clone(), None),
            (Some(MatchType::Ternary(ternary)), "Ternary") => {
                (ternary.value.clone(), Some(ternary.mask.clone()))
            }
            _ => return Err(invalid(&format!("key field {} is matched otherwise", known.name))),
        };
        for bytes in std::iter::once(&bits.0).chain(&bits.1) {
            check_width(&known.name, &known.kind, bytes)?;
        }
        if key.insert(known.id, bits).is_some() {
            return Err(invalid(&format!("key field {} twice", known.name)));
        }
    }
    // A field that is matched by a mask may be left out; then it matches anything.
    let is_needed =
        |name: &str, match_type: &str| match_type == "Exact" && name != "$MATCH_PRIORITY";
    let missing = table
        .key
        .iter()
        .find(|field| is_needed(&field.name, &field.match_type) && !key.contains_key(&field.id));
    if let Some(field) = missing {
        return Err(invalid(&format!("key field {} is missing", field.name)));
    }
    if ["Register", "Counter", "PrePrune"].contains(&&*table.table_type) {
        let index = index_of(&key);
        if index >= table.size as u64 {
            return Err(invalid(&format!("index {index} of {}", table.size)));
        }
    }
    Ok(key)
}

/// The index that is the only field of this key.
fn index_of(key: &Key) -> u64 {
    key.values().next().map(|(bytes, _)| number(bytes)).unwrap_or_default()
}

/// Checks the data of an entry, and converts it.
fn row(
    table: &Table,
    data: &TableData,
    kind: update::Type,
    is_default: bool,
) -> Result<Row, Refusal> {
    let action = table.action_specs.iter().find(|action| action.id == data.action_id);
    let (parameters, needed): (Vec<&Field>, Vec<u32>) = match action {
        Some(Action { action_scope, name, .. }) if action_scope == "DefaultOnly" && !is_default => {
            return Err(invalid(&format!("action {name} is for the default alone")));
        }
        Some(action) => {
            (action.data.iter().collect(), action.data.iter().map(|field| field.id).collect())
        }
        None if table.action_specs.is_empty() => {
            let needed =
                table.data.iter().filter(|data| data.mandatory && kind == update::Type::Insert);
            (
                table.data.iter().map(|data| &data.singleton).collect(),
                needed.map(|data| data.singleton.id).collect(),
            )
        }
        None => return Err(invalid(&format!("no action {}", data.action_id))),
    };
    let mut fields = BTreeMap::new();
    for field in &data.fields {
        let known = parameters.iter().find(|known| known.id == field.field_id);
        let known = known.ok_or_else(|| invalid(&format!("no data field {}", field.field_id)))?;
        let value = field
            .value
            .clone()
            .ok_or_else(|| invalid(&format!("data field {} is empty", known.name)))?;
        check_value(known, &value)?;
        fields.insert(known.id, value);
    }
    match needed.iter().find(|id| !fields.contains_key(id)) {
        Some(id) => Err(invalid(&format!("data field {id} is missing"))),
        None => Ok(Row { action: data.action_id, fields }),
    }
}

fn check_value(field: &Field, value: &Value) -> Result<(), Refusal> {
    let fits = match (value, field.repeated, &*field.kind.name) {
        (Value::StrVal(text), false, "string") => {
            field.kind.choices.is_empty() || field.kind.choices.contains(text)
        }
        (Value::BoolVal(_), false, "bool") | (Value::BoolArrVal(_), true, "bool") => true,
        (Value::IntArrVal(numbers), true, _) => {
            let bits = field.kind.bits().unwrap_or_default();
            numbers.val.iter().all(|number| u64::from(*number) >> bits.min(63) == 0)
        }
        (Value::Stream(bytes), false, _) if field.kind.bits().is_some() => {
            return check_width(&field.name, &field.kind, bytes);
        }
        _ => false,
    };
    if fits { Ok(()) } else { Err(invalid(&format!("{} cannot be {value:?}", field.name))) }
}

/// Checks that a value has as many bytes as the field, and no bits beyond it.
fn check_width(name: &str, kind: &Kind, bytes: &[u8]) -> Result<(), Refusal> {
    let Some(bits) = kind.bits() else { return Ok(()) };
    if bytes.len() != bits.div_ceil(8) || (bits < 64 && number(bytes) >> bits != 0) {
        return Err(invalid(&format!("{name} has {bits} bits, not {bytes:02x?}")));
    }
    Ok(())
}

/// A number in network order.
pub fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn invalid(why: &str) -> Refusal {
    (Code::InvalidArgument, why.to_owned())
}
