//! The control plane uses the names of the P4 source, and the tables are large enough.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::outcome::Outcome;

use super::{below, job, jobs};
use crate::combiner;
use crate::entries::{
    Contents, LOSSES, MAX_JOBS, MAX_RANKS, MOST_LOSSES, MOST_PARTS, OUTCOMES, PARTS, RANKS, ROUNDS,
    Table, most_ternary,
};
use crate::program::ProgramKind;
use crate::roce;
use crate::switch::{Entry, Match};
use crate::tofino::names::EXCLUSIONS;
use crate::tofino::recirculation::{
    OWN_PORT, OWN_PORTS, PIPELINES, RECIRCULATES, RECIRCULATION, SLOT_CLASSES,
};

/// A file and the files that it includes, without comments.
pub fn source(file: &str) -> String {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4").join(file))
}

fn read(path: &Path) -> String {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().map(|line| match line.strip_prefix("#include \"") {
        Some(included) => read(&path.with_file_name(included.trim_end_matches('"'))),
        None => line.split("//").next().unwrap_or_default().to_owned() + "\n",
    });
    lines.collect()
}

/// The text between `begin` and the next `end`.
fn after<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let start =
        text.find(begin).unwrap_or_else(|| panic!("no `{begin}` in the source")) + begin.len();
    let len = text[start..].find(end).unwrap_or_else(|| panic!("`{begin}` has no end"));
    &text[start..start + len]
}

/// A field of a key is called by its annotation, or else by the end of its path.
fn key_name(line: &str) -> String {
    match line.split_once("@name(\"") {
        Some((_, annotated)) => annotated.split('"').next().unwrap_or_default().to_owned(),
        None => line
            .split(':')
            .next()
            .unwrap_or_default()
            .rsplit('.')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned(),
    }
}

fn defined(text: &str, name: &str) -> u64 {
    let value = after(text, &format!("#define {name} "), "\n");
    value.trim().parse().unwrap_or_else(|_| panic!("{name} is {value}"))
}

#[test]
fn tables_keys_actions_and_parameters_are_those_of_the_source() {
    let (shared, tofino) = (source("include/aggregator.p4"), source("tofino.p4"));
    let (combiner, losses) = (source("include/combiner.p4"), source("include/losses.p4"));
    let is_of_role = |table: &&Table| table.name != LOSSES.name;
    let of_root = ProgramKind::Root.tables().filter(is_of_role).map(|table| (table, &shared));
    let of_combiner = ProgramKind::Combiner.tables().filter(is_of_role);
    let of_combiner = of_combiner.map(|table| (table, &combiner));
    let bmv2 = source("bmv2.p4");
    let of_roce = roce::TABLES.iter().map(|table| (table, &bmv2));
    let of_tofino = [&EXCLUSIONS, &RECIRCULATION].map(|table| (table, &tofino));
    let others = of_tofino.into_iter().chain([(&LOSSES, &losses)]).chain(of_roce);
    for (table, text) in of_root.chain(of_combiner).chain(others) {
        let body = after(text, &format!("table {} {{", table.name), "\n    }\n");
        let keys: Vec<String> = after(body, "key = {", "}")
            .split(';')
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(key_name)
            .collect();
        assert_eq!(keys, table.key, "key of {}", table.name);
        let actions: Vec<&str> =
            after(body, "actions = {", "}").split(';').map(str::trim).collect();
        for (action, parameters) in table.actions {
            assert!(actions.contains(action), "{} has no action {action}: {actions:?}", table.name);
            let declared = after(text, &format!("action {action}("), ")");
            let declared =
                declared.split(',').filter_map(|parameter| parameter.split_whitespace().last());
            assert_eq!(declared.collect::<Vec<_>>(), *parameters, "parameters of {action}");
        }
    }
}

#[test]
fn every_front_has_the_register_and_the_counter() {
    for (front, register) in [
        ("bmv2.p4", ROUNDS),
        ("tofino.p4", ROUNDS),
        ("bmv2.p4", RANKS),
        ("bmv2_combiner.p4", combiner::CELLS),
        ("tofino_combiner.p4", combiner::CELLS),
    ] {
        let text = source(front).to_lowercase();
        assert!(text.contains(&format!("(entries) {register};")), "{front}");
        assert!(text.contains(&format!(") {OUTCOMES};")), "{front}");
        let lanes = text.matches("lane() lane").count();
        assert_eq!(2 * lanes, 2 * LANES_PER_BLOCK, "{front}");
    }
}

/// The programs for packets of several parts say how many, and only they have the table by which
/// the control plane knows them.
#[test]
fn programs_of_several_parts_are_known_by_their_table() {
    for front in ["bmv2_256.p4", "tofino_256.p4"] {
        let text = source(front);
        assert_eq!(defined(&text, "PARTS"), u64::from(MOST_PARTS), "{front}");
        assert_eq!(defined(&text, "ENTRIES") % (2 * u64::from(MOST_PARTS)), 0, "{front}");
    }
    let only_there = "#ifdef PARTS\n#include \"parts.p4\"\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4/include/aggregator.p4");
    let text = std::fs::read_to_string(path).expect("the source");
    assert_eq!(text.matches("\"parts.p4\"").count(), text.matches(only_there).count());
    assert!(source("include/parts.p4").contains(&format!("table {PARTS} {{")));
}

/// All pipelines' slots find room in the table that spreads them over ports, and the parser looks
/// for the value that the control plane writes.
#[test]
fn frames_come_again_by_ports_that_the_source_asks_for() {
    let text = source("tofino.p4");
    let given = |name: &str| u16::try_from(defined(&text, name)).expect("a small number");
    assert_eq!((given("SLOT_CLASSES"), given("PIPELINES")), (SLOT_CLASSES, PIPELINES));
    assert!(text.contains("size = PIPELINES * PARTS * SLOT_CLASSES;"));
    let own = format!("#define RECIRCULATION_PORTS 9w{OWN_PORT} &&& 9w0x{OWN_PORTS:X}\n");
    assert!(text.contains(&own), "{own}");
    assert!(text.contains(&format!("#define RECIRCULATION_PORT 9w{OWN_PORT}\n")));
    let parser = format!("select(of_port.{RECIRCULATES}, intrinsic.ingress_port) {{\n");
    let ways = after(&text, &parser, "}\n").lines().map(str::trim).collect::<Vec<_>>();
    let expected = ["(1, _): again;", "(_, RECIRCULATION_PORTS): again;", "default: first;"];
    assert_eq!(ways[..3], expected);
}

/// A combiner, whose ranks are below it in two groups, with the most jobs and ranks.
#[test]
fn all_jobs_find_room_in_a_combiner() {
    let text = source("include/combiner.p4");
    let all = jobs((0..MAX_JOBS).map(|number| below(number, 16..16 + MAX_RANKS)));
    let mut used: HashMap<_, u64> = HashMap::new();
    for entry in &Contents::of(&[1, 2], &all).entries {
        *used.entry(entry.table).or_default() += 1;
    }
    assert!(used["members"] >= u64::from(MAX_JOBS * (MAX_RANKS + 2)), "{used:?}");
    for (table, used) in used {
        let size = size_of(&text, table);
        assert!(used <= size, "{used} entries of {size} in {table}");
    }
}

/// An aggregator with the most jobs and ranks, before and after all of them have said HELLO.
#[test]
fn all_jobs_find_room() {
    let text = source("include/aggregator.p4");
    assert_eq!(
        (defined(&text, "MAX_JOBS"), defined(&text, "MAX_RANKS")),
        (MAX_JOBS.into(), MAX_RANKS.into())
    );
    let mut reached = HashSet::new();
    for is_known in [false, true] {
        // 31 ranks need more matches than 32.
        for ranks in [MAX_RANKS - 1, MAX_RANKS] {
            let contents = Contents::of(
                &[1, 2],
                &jobs((0..MAX_JOBS).map(|number| job(number, ranks, is_known))),
            );
            let mut used: HashMap<_, u64> = HashMap::new();
            let mut ternary: HashMap<_, usize> = HashMap::new();
            for entry in &contents.entries {
                *used.entry(entry.table).or_default() += 1;
                if entry.key.iter().any(|(_, matched)| matches!(matched, Match::Ternary { .. })) {
                    *ternary.entry((entry.table, entry.priority)).or_default() += 1;
                }
            }
            for ((table, priority), used) in ternary {
                let most = most_ternary(table, priority);
                assert!(used <= most, "{used} entries of {most} of priority {priority} in {table}");
                reached.extend((used == most).then_some((table, priority)));
            }
            for (table, used) in used {
                let size = size_of(&text, table);
                assert!(used <= size, "{used} entries of {size} in {table}");
            }
        }
    }
    assert_eq!(size_of(&source("include/losses.p4"), LOSSES.name), MOST_LOSSES as u64);
    for table in ["members", "refusals"] {
        let priorities =
            || (0..u32::from(u8::MAX)).map(|priority| (priority, most_ternary(table, priority)));
        let most: usize = priorities().map(|(_, most)| most).sum();
        let size = size_of(&text, table);
        assert!(most as u64 <= size, "{most} entries of {size} in {table}");
        for (priority, _) in priorities().filter(|(_, most)| *most > 0) {
            assert!(
                reached.contains(&(table, priority)),
                "there may be fewer of priority {priority} in {table}"
            );
        }
    }
}

/// The entries that a table has room for.
pub fn size_of(text: &str, table: &str) -> u64 {
    let size = after(after(text, &format!("table {table} {{"), "\n    }\n"), "size = ", ";");
    let size =
        if size.trim() == "ENDPOINTS" { after(text, "#define ENDPOINTS ", "\n") } else { size };
    let factor = |factor: &str| match factor.trim() {
        "MAX_JOBS" => MAX_JOBS.into(),
        "MAX_RANKS" => MAX_RANKS.into(),
        "MAX_MEMBERS" => u64::from(MAX_JOBS) * u64::from(MAX_RANKS),
        number => number.parse::<u64>().expect("a number"),
    };
    size.split('+').map(|product| product.split('*').map(factor).product::<u64>()).sum()
}

/// Entries use only the names of their program's tables, in their order, so that the test above
/// covers all entries.
#[test]
fn entries_use_the_listed_names_alone() {
    let mut all = jobs([job(0, 3, true), job(1, 31, false)]);
    let mut aborted = job(2, 2, true);
    aborted.is_aborted = true;
    all.insert(2, aborted);
    let queue_pair = all[&0].bindings[&1].at_queue_pair(0x00AB_CDEF);
    all.entry(0).and_modify(|job| {
        job.takes_roce = true;
        job.bindings.insert(1, queue_pair);
    });
    names_are_listed(&Contents::of(&[1, 2], &all).entries, ProgramKind::Root);
    let mut aborted = below(1, 0..3);
    aborted.is_aborted = true;
    let all = jobs([below(0, 20..40), aborted, below(2, 7..8)]);
    names_are_listed(&Contents::of(&[1, 2], &all).entries, ProgramKind::Combiner);
}

fn names_are_listed(entries: &[Entry], program: ProgramKind) {
    for entry in entries {
        let listed = program.tables().chain(roce::TABLES).find(|table| table.name == entry.table);
        let table = listed.expect("a listed table");
        let names: Vec<_> = entry.key.iter().map(|(name, _)| *name).collect();
        assert!(names.is_empty() || names == table.key, "{entry:?}");
        let (_, parameters) =
            table.actions.iter().find(|(name, _)| *name == entry.action).expect("a listed action");
        assert_eq!(
            entry.data.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            *parameters,
            "{entry:?}"
        );
        for (name, matched) in &entry.key {
            if let Match::Ternary { value, mask } = matched {
                assert_eq!(value & !mask, 0, "{name} of {entry:?}");
            }
        }
    }
}

/// The bit by which `refusals` knows that the reason was found before.
#[test]
fn what_parser_and_check_find_has_the_bit_and_what_precedes_has_not() {
    for outcome in
        Outcome::ALL.iter().filter(|outcome| (**outcome as u8) < Outcome::UnknownJob as u8)
    {
        let found_before = *outcome as u8 >= Outcome::Truncated as u8;
        assert_eq!(*outcome as u8 & Outcome::Truncated as u8 != 0, found_before, "{outcome:?}");
    }
}

/// Tofino's parser ORs a new value of a field to the old one: for a frame behind three tags it sets
/// "tagged", then "hidden".
#[test]
fn a_parser_that_ors_still_finds_hidden_frames() {
    assert_eq!(Outcome::Vlan as u8 | Outcome::Spoofed as u8, Outcome::Spoofed as u8);
}
