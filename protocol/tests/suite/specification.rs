//! The crate's tables of numbers against those of `docs/spec`.

use std::collections::BTreeMap;

use switchml_protocol::VERSION;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::features::{Features, JobShape, Reason};
use switchml_protocol::outcome::RejectReason;
use switchml_protocol::wire::audience::Audience;
use switchml_protocol::wire::header::{Kind, Op, flags};

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

/// Of every pair of a capability and a property of jobs, the page says whether one excludes the
/// other.
#[test]
fn what_excludes_capabilities_is_on_the_page() {
    let job = |ranks| JobShape { ranks, ..JobShape::default() };
    let properties = [
        ("combiners", JobShape { has_combiners: true, ..job(4) }, Reason::Combiners),
        ("tags", JobShape { has_tags: true, ..job(4) }, Reason::Tags),
        ("more than 64 ranks", job(65), Reason::ManyRanks),
        ("IPv6", JobShape { is_ipv6: true, ..job(4) }, Reason::Ipv6),
    ];
    let page = table(&["bit", "data plane", "excluded by"]);
    let page: BTreeMap<_, _> = page.map(|row| (row[0].split(' ').nth(1), row[2])).collect();
    let all = Capabilities::all();
    for (name, capability) in all.iter_names() {
        let excluded: Vec<_> = page[&Some(name)].split(", ").collect();
        let of = |job| Features::of(job, all, Capabilities::empty());
        assert_eq!(of(job(64)).why_not(capability), None, "{name}");
        for (property, job, reason) in properties {
            let is_said =
                excluded.contains(&property) && !excluded.contains(&"at some data planes");
            assert_eq!(
                of(job).why_not(capability),
                is_said.then_some(reason),
                "{name}, {property}"
            );
        }
        let lacks = Features::of(job(4), all - capability, Capabilities::empty());
        assert_eq!(lacks.why_not(capability), Some(Reason::NotOffered), "{name}");
    }
    let over_ipv6 = JobShape { is_ipv6: true, ..job(4) };
    let roce = Features::of(over_ipv6, all, Capabilities::ROCE).why_not(Capabilities::ROCE);
    assert_eq!(roce, Some(Reason::Ipv6), "at some data planes");
}

/// In every job, a capability is used unless there is a reason against it.
#[test]
fn what_is_not_used_has_a_reason() {
    let flags = (0..8).map(|bits| [0, 1, 2].map(|bit| bits >> bit & 1 == 1));
    let jobs = flags.flat_map(|[has_tags, has_combiners, is_ipv6]| {
        [64, 65].map(|ranks| JobShape { ranks, has_tags, has_combiners, is_ipv6 })
    });
    let all = Capabilities::all();
    for job in jobs {
        for offered in (0..=all.bits()).map(Capabilities::from_bits_truncate) {
            for ipv4_only in [Capabilities::empty(), Capabilities::ROCE] {
                let features = Features::of(job, offered, ipv4_only);
                let is_used = |one: &Capabilities| features.why_not(*one).is_none();
                let used: Capabilities = all.iter().filter(is_used).collect();
                assert_eq!(features.used(), used, "{features:?}");
                assert!(offered.contains(used), "{features:?}");
            }
        }
    }
}

/// The way between a rank and its combiner is the combiner's, and all else is the root's.
#[test]
fn a_combiner_has_its_own_way_to_its_ranks() {
    let job = JobShape { ranks: 4, has_combiners: true, ..JobShape::default() };
    let of = |offered| Features::of(job, offered, Capabilities::empty());
    let root = Capabilities::CHECKED_MAXIMA | Capabilities::ROCE;
    let own = Capabilities::GROUP_HELLOS | Capabilities::PARTIAL_SUMS;
    let expected = Capabilities::CHECKED_MAXIMA | Capabilities::GROUP_HELLOS;
    assert_eq!(of(own).below_combiner(root), expected);
}
