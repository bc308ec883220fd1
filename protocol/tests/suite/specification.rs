//! The crate's tables of numbers against those of `docs/spec`.

use std::collections::BTreeMap;

use switchml_protocol::VERSION;
use switchml_protocol::audience::Audience;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::header::{Kind, Op, flags};
use switchml_protocol::outcome::RejectReason;

/// The pages of the specification that have rules.
const PAGES: [&str; 4] = [
    include_str!("../../../docs/spec/core.md"),
    include_str!("../../../docs/spec/options.md"),
    include_str!("../../../docs/spec/several-aggregators.md"),
    include_str!("../../../docs/spec/aggregators.md"),
];

/// The rows of the table that begins with a row of these cells.
fn table(head: &[&str]) -> impl Iterator<Item = Vec<&'static str>> {
    let mut lines = PAGES.into_iter().flat_map(str::lines).map(cells);
    assert!(lines.any(|cells| cells.starts_with(head)), "a page has a table of {head:?}");
    lines.skip(1).take_while(|cells| !cells.is_empty())
}

/// The cells of a table's row; none of any other line.
fn cells(line: &str) -> Vec<&str> {
    let row = line.strip_prefix('|').and_then(|line| line.strip_suffix('|'));
    row.map_or(vec![], |row| row.split('|').map(str::trim).collect())
}

/// The specification's description of a field of the header.
fn meaning(field: &str) -> &'static str {
    let mut rows = table(&["offset", "size", "field", "meaning"]);
    rows.find(|row| row[2] == field).map(|row| row[3]).expect("the field is in the table")
}

/// The number and the word behind it at the beginning of each of these.
fn numbered<'a>(texts: impl Iterator<Item = &'a str>) -> BTreeMap<u32, &'a str> {
    texts
        .map(|text| {
            let mut words = text.split_whitespace();
            let number = words.next().and_then(|word| word.parse().ok()).expect(text);
            (number, words.next().expect(text).trim_end_matches([':', ',', '.']))
        })
        .collect()
}

#[test]
fn the_version_is_that_of_the_page() {
    assert_eq!(meaning("version"), VERSION.to_string());
}

#[test]
fn kinds_are_those_of_the_page() {
    let kinds: BTreeMap<_, _> =
        Kind::ALL.iter().map(|kind| (u32::from(*kind as u8), kind.name())).collect();
    assert_eq!(kinds, numbered(meaning("kind").split(", ")));
}

#[test]
fn operators_are_those_of_the_page() {
    let mut ops: BTreeMap<_, _> =
        Op::ALL.iter().map(|op| (u32::from(*op as u8), op.name())).collect();
    for audience in [Audience::One(0), Audience::AllBut(0)] {
        ops.insert(audience.op(Op::Sum).into(), Op::Sum.name());
    }
    assert_eq!(ops, numbered(meaning("op").split(", ")));
}

#[test]
fn flags_are_those_of_the_page() {
    let bits: BTreeMap<_, _> =
        flags::ALL.iter().map(|(name, flag)| (flag.trailing_zeros(), *name)).collect();
    assert_eq!(bits, numbered(meaning("flags").split("bit ").skip(1)));
}

#[test]
fn reject_reasons_are_those_of_the_page() {
    let reasons: BTreeMap<_, _> =
        RejectReason::ALL.iter().map(|reason| (*reason as u32, reason.name())).collect();
    assert_eq!(reasons, numbered(table(&["reason", "meaning", "detail"]).map(|row| row[0])));
}

#[test]
fn capabilities_are_those_of_the_page() {
    let capabilities: BTreeMap<_, _> = Capabilities::all()
        .iter_names()
        .map(|(name, capability)| (capability.bits().trailing_zeros(), name))
        .collect();
    assert_eq!(capabilities, numbered(table(&["bit", "data plane"]).map(|row| row[0])));
}
