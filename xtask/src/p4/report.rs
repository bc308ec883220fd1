//! The resources of Tofino 1 that a program uses, from the compiler's logs.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

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
    Ok(stages(&read(&logs.join("resources.json"))?)?
        + "\n"
        + &containers(&read(&logs.join("phv.json"))?)?)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path)
        .with_context(|| format!("cannot read {}; p4c-barefoot writes it with -g", path.display()))
}

#[derive(Deserialize)]
struct Log {
    resources: Resources,
}

#[derive(Deserialize)]
struct Resources {
    mau: Mau,
}

#[derive(Deserialize)]
struct Mau {
    mau_stages: Vec<Stage>,
}

#[derive(Deserialize)]
struct Stage {
    stage_number: u32,
    logical_tables: Ids,
    rams: Rams,
    map_rams: MapRams,
    tcams: Tcams,
    meter_alus: MeterAlus,
}

#[derive(Deserialize)]
struct Ids {
    ids: Vec<Id>,
    size: usize,
}

#[derive(Deserialize)]
struct Id {
    id: u32,
}

/// A unit of memory or arithmetic: one, however many tables share it.
#[derive(Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(default)]
struct Unit {
    row: u32,
    column: u32,
    unit_id: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rams {
    n_rows: usize,
    n_columns: usize,
    srams: Vec<Unit>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MapRams {
    n_rows: usize,
    n_units: usize,
    maprams: Vec<Unit>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tcams {
    n_rows: usize,
    n_columns: usize,
    tcams: Vec<Unit>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MeterAlus {
    n_alus: usize,
    meters: Vec<Unit>,
}

fn stages(log: &str) -> Result<String> {
    let log: Log =
        serde_json::from_str(log).context("resources.json is not what p4c-barefoot 9.13 writes")?;
    let mut text = "| stage | tables | SRAM | map RAM | TCAM | stateful ALUs |\n\
                    | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for stage in log.resources.mau.mau_stages {
        let tables = distinct(stage.logical_tables.ids.iter().map(|id| id.id));
        let _ = writeln!(
            text,
            "| {} | {tables} of {} | {} of {} | {} of {} | {} of {} | {} of {} |",
            stage.stage_number,
            stage.logical_tables.size,
            distinct(stage.rams.srams),
            stage.rams.n_rows * stage.rams.n_columns,
            distinct(stage.map_rams.maprams),
            stage.map_rams.n_rows * stage.map_rams.n_units,
            distinct(stage.tcams.tcams),
            stage.tcams.n_rows * stage.tcams.n_columns,
            distinct(stage.meter_alus.meters),
            stage.meter_alus.n_alus,
        );
    }
    Ok(text)
}

fn distinct<T: Ord>(units: impl IntoIterator<Item = T>) -> usize {
    units.into_iter().collect::<BTreeSet<_>>().len()
}

#[derive(Deserialize)]
struct PhvLog {
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    bit_width: u32,
    container_type: String,
}

fn containers(log: &str) -> Result<String> {
    let log: PhvLog =
        serde_json::from_str(log).context("phv.json is not what p4c-barefoot 9.13 writes")?;
    let mut used = BTreeMap::new();
    for container in log.containers {
        *used.entry((container.container_type, container.bit_width)).or_insert(0) += 1;
    }
    let mut text = "| containers | used |\n| --- | --- |\n".to_owned();
    for (kind, bits, all) in CONTAINERS {
        let used = used.get(&(kind.to_owned(), bits)).copied().unwrap_or(0);
        let _ = writeln!(text, "| {kind}, {bits} bits | {used} of {all} |");
    }
    Ok(text)
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
        let text = stages(log).unwrap();
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
        let text = containers(log).unwrap();
        assert!(text.contains("| normal, 16 bits | 2 of 96 |\n"), "{text}");
        assert!(text.contains("| tagalong, 32 bits | 1 of 32 |\n"), "{text}");
        assert!(text.contains("| normal, 32 bits | 0 of 64 |\n"), "{text}");
    }
}
