//! Modules do not import each other in a circle.
//!
//! A module and its submodules are one unit: a module may build on its submodules, and they may use
//! its items. So only imports between sibling modules count, each with all its submodules. An
//! import through a re-export counts as an import of the module that defines the item. Code for
//! tests does not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Finding;
use super::modules::{Edge, Modules};

/// Checks the crates of the workspace in `folder` with these root files: libraries, programs, tests
/// and examples.
pub fn check(folder: &Path, roots: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for root in roots {
        let circles = circles(&Modules::read(root)?.edges());
        findings.extend(
            circles
                .into_iter()
                .map(|finding| Finding { path: below(folder, &finding.path), ..finding }),
        );
    }
    Ok(findings)
}

fn below(root: &Path, path: &Path) -> PathBuf {
    super::links::resolve(Path::new(""), path.strip_prefix(root).unwrap_or(path))
}

/// Sibling modules by name; for each the modules that it imports, with the place of the import.
type Siblings<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a Edge>>;

/// One finding for each group of modules that import each other: its shortest circle.
fn circles(edges: &[Edge]) -> Vec<Finding> {
    let mut parents: BTreeMap<&[String], Siblings> = BTreeMap::new();
    for edge in edges {
        let common = edge.from.iter().zip(&edge.to).take_while(|(a, b)| a == b).count();
        if let (Some(from), Some(to)) = (edge.from.get(common), edge.to.get(common)) {
            let siblings = parents.entry(&edge.from[..common]).or_default();
            siblings.entry(from).or_default().entry(to).or_insert(edge);
        }
    }
    parents.iter().flat_map(|(parent, siblings)| of_siblings(parent, siblings)).collect()
}

fn of_siblings(parent: &[String], siblings: &Siblings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut named = BTreeSet::new();
    for name in siblings.keys() {
        let Some(circle) = shortest(name, siblings) else { continue };
        if circle.iter().any(|name| named.contains(name)) {
            continue;
        }
        named.extend(circle.iter().copied());
        let path = |name: &&str| [parent, &[(*name).to_owned()]].concat().join("::");
        let names: Vec<_> = circle.iter().chain([name]).map(path).collect();
        let edge = siblings[name][circle.get(1).unwrap_or(name)];
        findings.push(Finding {
            path: edge.file.clone(),
            line: edge.line,
            text: format!(
                "modules import each other in a circle, {}; they may import in one direction only",
                names.join(" -> ")
            ),
        });
    }
    findings
}

/// The shortest way from a module back to itself, without its end.
fn shortest<'a>(start: &'a str, siblings: &Siblings<'a>) -> Option<Vec<&'a str>> {
    let mut ways = VecDeque::from([vec![start]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in siblings.get(way.last()?)?.keys() {
            if *next == start {
                return Some(way);
            }
            if siblings.contains_key(next) && seen.insert(*next) {
                ways.push_back([way.as_slice(), &[*next]].concat());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
