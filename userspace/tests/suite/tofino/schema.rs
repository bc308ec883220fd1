//! The compiler's description of the program's tables, as far as the loader reads it: names, widths
//! and sizes of `p4/`.

use serde_json::{Value, json};

/// Name, size, key and actions of a table; fields with their bits.
pub type Table = (&'static str, u32, &'static [Field], &'static [(&'static str, &'static [Field])]);
type Field = (&'static str, u32);

/// Tables with a priority; the others match exactly.
const TERNARY: [&str; 4] = ["members", "refusals", "losses", RECIRCULATION];

/// The tables that are not in the control that all targets have.
pub const EXCLUSIONS: &str = "exclusions";
pub const RECIRCULATION: &str = "recirculation";
/// The parser's table.
pub const PORT_METADATA: &str = "pipe.IngressParser.$PORT_METADATA";

/// The key of `bindings`: a HELLO, and where it comes from.
const BINDING: &[Field] = &[
    ("job", 16),
    ("epoch", 32),
    ("rank", 16),
    ("secret", 32),
    ("port", 9),
    ("mac", 48),
    ("address", 32),
    ("udp_port", 16),
];

pub const TABLES: &[Table] = &[
    (
        "members",
        1024,
        &[
            ("m.is_contribution", 1),
            ("m.bad_ip_checksum", 1),
            ("flags", 8),
            ("job", 16),
            ("epoch", 32),
            ("rank", 16),
            ("slot", 16),
            ("parity", 1),
            ("port", 9),
            ("mac", 48),
            ("address", 32),
            ("aggregator", 32),
            ("udp_port", 16),
        ],
        &[("admit", &[("base", 16), ("own", 32), ("rest", 32), ("others", 8)]), ("turn_away", &[])],
    ),
    (
        "newcomers",
        512,
        &[("job", 16), ("epoch", 32), ("rank", 16), ("secret", 32)],
        &[("learn", &[]), ("misplaced", &[])],
    ),
    ("bindings", 512, BINDING, &[("greet", &[])]),
    (
        "jobs",
        16,
        &[("job", 16)],
        &[
            ("to_group", &[("group", 16), ("mac", 48), ("address", 32), ("udp_port", 16)]),
            ("vacant", &[]),
        ],
    ),
    ("aggregators", 16, &[("is_udp", 1), ("aggregator", 32), ("udp_port", 16)], &[("ours", &[])]),
    ("forgeries", 16, &[("is_ipv4", 1), ("aggregator", 32)], &[("forged", &[])]),
    (
        "refusals",
        1024,
        &[
            ("outcome", 8),
            ("bad_ip_checksum", 1),
            ("is_hello", 1),
            ("job", 16),
            ("epoch", 32),
            ("rank", 16),
            ("slot", 16),
            ("flags", 8),
        ],
        &[("refuse", &[("reason", 8)]), ("refuse_malformed", &[])],
    ),
    (
        "stations",
        4096,
        &[("mac", 48)],
        &[("forward", &[("port", 9)]), ("flood", &[("group", 16)]), ("nowhere", &[])],
    ),
    ("losses", 16, &[("draw", 16)], &[("lose", &[])]),
    (EXCLUSIONS, 288, &[("port", 9)], &[("exclude", &[("id", 9)])]),
];

/// The tables of a combiner that an aggregator lacks, or has otherwise.
const OF_COMBINER: &[Table] = &[
    (
        "members",
        1024,
        &[
            ("m.is_contribution", 1),
            ("m.bad_ip_checksum", 1),
            ("flags", 8),
            ("kind", 8),
            ("job", 16),
            ("epoch", 32),
            ("rank", 16),
            ("set", 32),
            ("slot", 16),
            ("port", 9),
            ("mac", 48),
            ("address", 32),
            ("aggregator", 32),
            ("udp_port", 16),
        ],
        &[
            ("admit", &[("own", 32), ("rest", 32), ("surplus", 32), ("salts", 8), ("from", 16)]),
            ("pass_by", &[("from", 16)]),
        ],
    ),
    (
        "bindings",
        512,
        BINDING,
        &[(
            "greet",
            &[("from", 16), ("parent_mac", 48), ("parent", 32), ("parent_port", 16), ("uplink", 9)],
        )],
    ),
    (
        "uplinks",
        16,
        &[("job", 16)],
        &[("up", &[("mac", 48), ("address", 32), ("udp_port", 16), ("port", 9)]), ("vacant", &[])],
    ),
    (
        "answers",
        528,
        &[
            ("job", 16),
            ("epoch", 32),
            ("rank", 16),
            ("uplink", 9),
            ("parent", 32),
            ("parent_port", 16),
            ("aggregator", 32),
            ("own_port", 16),
        ],
        &[
            ("to_group", &[("group", 16), ("mac", 48), ("address", 32), ("udp_port", 16)]),
            ("to_rank", &[("mac", 48), ("address", 32), ("udp_port", 16), ("port", 9)]),
        ],
    ),
    ("aggregators", 544, &[("is_udp", 1), ("aggregator", 32), ("udp_port", 16)], &[("ours", &[])]),
];

/// The other tables of a combiner, which are as those of an aggregator.
const SHARED: [&str; 6] = ["newcomers", "forgeries", "refusals", "stations", "losses", EXCLUSIONS];

/// All tables of a combiner.
pub fn tables_of_combiner() -> impl Iterator<Item = &'static Table> {
    OF_COMBINER.iter().chain(TABLES.iter().filter(|(name, ..)| SHARED.contains(name)))
}

/// Full names, as the loader must find them.
pub fn full(table: &str) -> String {
    format!("pipe.{}.{table}", control_of(table))
}

fn control_of(table: &str) -> &'static str {
    match table {
        EXCLUSIONS | RECIRCULATION => "Ingress",
        "losses" => "Ingress.losses",
        _ => "Ingress.aggregator",
    }
}

pub const ROUNDS: &str = "pipe.Ingress.aggregator.slot.tag.rounds";
pub const RANKS: &str = "pipe.Ingress.aggregator.slot.ranks";
pub const CELLS: &str = "pipe.Ingress.aggregator.cell.lease.begins";
pub const OUTCOMES: &str = "pipe.Ingress.outcomes";
pub const LEARN: &str = "pipe.IngressDeparser.learn";

/// Sets of the register.
pub const SETS: u32 = 16384;

/// The compiler's own output, if the environment names it, or else the description below.
pub fn of_program() -> Value {
    compiled("SWITCHML_BF_RT_JSON").unwrap_or_else(schema)
}

/// The same of a combiner's program.
pub fn of_combiner() -> Value {
    compiled("SWITCHML_COMBINER_BF_RT_JSON").unwrap_or_else(combiner)
}

fn compiled(variable: &str) -> Option<Value> {
    let path = std::env::var_os(variable)?;
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}")))
}

/// Slots of [`of_program`]: two sets each.
pub fn slots() -> u64 {
    let program = of_program();
    let rounds = program["tables"]
        .as_array()
        .and_then(|tables| tables.iter().find(|table| table["name"] == ROUNDS));
    rounds.and_then(|rounds| rounds["size"].as_u64()).expect("the register's size") / 2
}

/// The tables that only the program for packets of 256 lanes has. By the first it is known.
const OF_PARTS: [Table; 2] = [
    ("parts", 16, &[("part", 8)], &[("onward", &[("next", 8)])]),
    (
        RECIRCULATION,
        1024,
        &[("port", 9), ("part", 8), ("slot", 16)],
        &[("recirculate_by", &[("again", 9), ("later", 9), ("earlier", 9)])],
    ),
];

/// As the program for packets of 256 lanes has it.
pub fn of_256_lanes() -> Value {
    let mut schema = schema();
    let tables = schema["tables"].as_array_mut().expect("a list");
    tables.extend((98..).zip(&OF_PARTS).map(|(id, table)| match_table(id, table)));
    tables.push(port_metadata());
    schema
}

pub fn schema() -> Value {
    let registers = [register(100, ROUNDS, &["f1"]), register(102, RANKS, &["f1"])];
    program(TABLES.iter(), registers.into())
}

/// A combiner's.
fn combiner() -> Value {
    program(tables_of_combiner(), vec![register(100, CELLS, &["turn", "begin"])])
}

fn register(id: u32, name: &str, fields: &[&str]) -> Value {
    let short = name.trim_start_matches("pipe.");
    let fields = (2..).zip(fields);
    let fields = fields.map(|(id, field)| data(id, &format!("{short}.{field}"), bytes(32)));
    json!({
        "name": name, "id": id, "table_type": "Register", "size": SETS,
        "key": [key(1, "$REGISTER_INDEX", "Exact", json!({ "type": "uint32" }), true)],
        "data": fields.collect::<Vec<_>>(), "supported_operations": ["Sync"],
    })
}

fn program(tables: impl Iterator<Item = &'static Table>, registers: Vec<Value>) -> Value {
    let tables = (1..).zip(tables).map(|(id, table)| match_table(id, table));
    const COUNT: &str = "$COUNTER_SPEC_PKTS";
    let outcomes = json!({
        "name": OUTCOMES, "id": 101, "table_type": "Counter", "size": 256,
        "key": [key(65556, "$COUNTER_INDEX", "Exact", json!({ "type": "uint32" }), true)],
        "data": [data(65554, COUNT, json!({ "type": "uint64", "default_value": 0 }))],
        "supported_operations": ["Sync"],
    });
    let fields = [
        ("job", 16),
        ("epoch", 32),
        ("rank", 16),
        ("port", 9),
        ("mac", 48),
        ("address", 32),
        ("udp_port", 16),
    ];
    let fields = (1..).zip(fields).map(|(id, field)| parameter(id, field));
    json!({
        "schema_version": "1.0.0",
        "tables": tables.chain(registers).chain([outcomes]).collect::<Vec<_>>(),
        "learn_filters": [{
            "name": LEARN, "id": 200, "annotations": [], "fields": fields.collect::<Vec<_>>(),
        }],
    })
}

/// Entries have no action, but a value.
fn port_metadata() -> Value {
    json!({
        "name": PORT_METADATA, "id": 103, "table_type": "PortMetadata", "size": 288,
        "key": [key(65575, "intrinsic.ingress_port", "Exact", bytes(9), true)],
        "data": [{
            "mandatory": true, "read_only": false,
            "singleton": {
                "id": 1, "name": "recirculates", "repeated": false, "annotations": [],
                "type": bytes(8),
            },
        }],
        "supported_operations": [],
    })
}

fn match_table(id: u32, (name, size, fields, actions): &Table) -> Value {
    let control = control_of(name);
    let is_ternary = TERNARY.contains(name);
    let match_type = if is_ternary { "Ternary" } else { "Exact" };
    let fields = (1..).zip(*fields);
    let mut fields: Vec<_> =
        fields.map(|(id, (name, bits))| key(id, name, match_type, bytes(*bits), false)).collect();
    if is_ternary {
        fields.push(key(65537, "$MATCH_PRIORITY", "Exact", json!({ "type": "uint32" }), false));
    }
    let actions = (1000 * id..).zip(*actions).map(|(id, (name, parameters))| {
        let parameters: Vec<_> =
            (1..).zip(*parameters).map(|(id, field)| parameter(id, *field)).collect();
        json!({
            "id": id, "name": format!("{}.{name}", control), "action_scope": "TableAndDefault",
            "annotations": [], "data": parameters,
        })
    });
    let none = json!({
        "id": 21_257_015, "name": "NoAction", "action_scope": "DefaultOnly",
        "annotations": [{ "name": "@defaultonly" }], "data": [],
    });
    json!({
        "name": full(name), "id": id, "table_type": "MatchAction_Direct", "size": size,
        "annotations": [], "depends_on": [], "has_const_default_action": false, "key": fields,
        "action_specs": actions.chain([none]).collect::<Vec<_>>(), "data": [],
        "supported_operations": [], "attributes": ["EntryScope"],
    })
}

fn key(id: u32, name: &str, match_type: &str, kind: Value, mandatory: bool) -> Value {
    json!({
        "id": id, "name": name, "repeated": false, "annotations": [], "mandatory": mandatory,
        "match_type": match_type, "type": kind,
    })
}

fn data(id: u32, name: &str, kind: Value) -> Value {
    let singleton =
        json!({ "id": id, "name": name, "repeated": false, "annotations": [], "type": kind });
    json!({ "mandatory": false, "read_only": false, "singleton": singleton })
}

fn parameter(id: u32, (name, bits): Field) -> Value {
    json!({
        "id": id, "name": name, "repeated": false, "mandatory": true, "read_only": false,
        "annotations": [], "type": bytes(bits),
    })
}

fn bytes(bits: u32) -> Value {
    json!({ "type": "bytes", "width": bits })
}
