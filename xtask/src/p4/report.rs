//! The resources of Tofino 1 that a program uses, from the compiler's logs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::measure::Table;

/// Containers of each kind and width that a pipeline has: <https://github.com/p4lang/p4c>,
/// `backends/tofino/bf-p4c/specs/phv_spec.cpp`.
const CONTAINERS: [(&str, u32, usize); 6] = [
    ("normal", 32, 64),
    ("normal", 16, 96),
    ("normal", 8, 64),
    ("tagalong", 32, 32),
    ("tagalong", 16, 48),
    ("tagalong", 8, 32),
];

/// The report as tables in Markdown: for each stage, and for packet header vectors.
pub fn text(logs: &Path) -> Result<String> {
    let read = |name: &str, tables: fn(&str) -> Option<Table>| {
        let path = logs.join(name);
        let log = fs::read_to_string(&path);
        let hint = || format!("cannot read {}; p4c-barefoot writes it with -g", path.display());
        let table = tables(&log.with_context(hint)?);
        table.with_context(|| format!("{name} is not what p4c-barefoot 9.13 writes"))
    };
    Ok(format!("{}\n{}", read("resources.json", stages)?, read("phv.json", containers)?))
}

fn stages(log: &str) -> Option<Table> {
    let log: Value = serde_json::from_str(log).ok()?;
    let mut table = Table::new(["stage", "tables", "SRAM", "map RAM", "TCAM", "stateful ALUs"]);
    for stage in log["resources"]["mau"]["mau_stages"].as_array()? {
        // How many units are used, of the product of these fields.
        let used = |kind: &str, units: &str, fields: &[&str]| {
            let all: u64 =
                fields.iter().map(|field| stage[kind][field].as_u64()).product::<Option<_>>()?;
            let units = stage[kind][units].as_array()?.iter();
            // A unit counts once, however many tables share it.
            let place =
                |unit: &Value| ["id", "row", "column", "unit_id"].map(|field| unit[field].as_u64());
            Some(format!("{} of {all}", units.map(place).collect::<BTreeSet<_>>().len()))
        };
        table.row(&[
            &stage["stage_number"].as_u64()?,
            &used("logical_tables", "ids", &["size"])?,
            &used("rams", "srams", &["nRows", "nColumns"])?,
            &used("map_rams", "maprams", &["nRows", "nUnits"])?,
            &used("tcams", "tcams", &["nRows", "nColumns"])?,
            &used("meter_alus", "meters", &["nAlus"])?,
        ]);
    }
    Some(table)
}

fn containers(log: &str) -> Option<Table> {
    let log: Value = serde_json::from_str(log).ok()?;
    let listed = log["containers"].as_array()?;
    let mut table = Table::new(["containers", "used"]);
    for (kind, bits, all) in CONTAINERS {
        let is_it = |container: &&Value| {
            container["container_type"] == kind && container["bit_width"] == bits
        };
        let used = listed.iter().filter(is_it).count();
        table.row(&[&format!("{kind}, {bits} bits"), &format!("{used} of {all}")]);
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_tables_share_counts_once() {
        let log = r#"{"resources": {"mau": {"mau_stages": [{
            "stage_number": 3,
            "logical_tables": {"size": 16, "ids": [
                {"id": 0, "table_name": "a"}, {"id": 2, "table_name": "b"}]},
            "rams": {"nRows": 8, "nColumns": 10, "srams": [
                {"row": 0, "column": 2, "usages": []}, {"row": 0, "column": 2, "usages": []},
                {"row": 1, "column": 2, "usages": []}]},
            "map_rams": {"nRows": 8, "nUnits": 6, "maprams": [
                {"row": 0, "unit_id": 1, "usages": []}]},
            "tcams": {"nRows": 12, "nColumns": 2, "tcams": []},
            "meter_alus": {"nAlus": 4, "meters": [
                {"row": 1, "usages": []}, {"row": 3, "usages": []}]}
        }]}}}"#;
        let text = stages(log).unwrap().to_string();
        assert!(
            text.ends_with("| 3 | 2 of 16 | 2 of 80 | 1 of 48 | 0 of 24 | 2 of 4 |\n"),
            "{text}"
        );
    }

    #[test]
    fn containers_are_counted_by_kind_and_width() {
        let log = r#"{"containers": [
            {"bit_width": 16, "container_type": "normal"},
            {"bit_width": 16, "container_type": "normal"},
            {"bit_width": 32, "container_type": "tagalong"}]}"#;
        let text = containers(log).unwrap().to_string();
        assert!(text.contains("| normal, 16 bits | 2 of 96 |\n"), "{text}");
        assert!(text.contains("| tagalong, 32 bits | 1 of 32 |\n"), "{text}");
        assert!(text.contains("| normal, 32 bits | 0 of 64 |\n"), "{text}");
    }
}
