//! Modules do not import each other in a circle.
//!
//! A module and those below it are one unit: a module may build on the modules in it, and they may
//! use what it defines for them. So what counts is who imports whom among the modules that lie
//! side by side, each with all that is below it. Imports through a re-export are those of the
//! module that defines the thing. Code for tests does not count.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde::Deserialize;

use super::{
    Finding,
    modules::{Edge, Modules},
};
use crate::cargo;

/// To do: crates that have circles still. One that has none any more is to be removed here.
const NOT_YET: [&str; 1] = ["switchml-protocol"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    src_path: PathBuf,
}

/// Checks all crates of the workspace: libraries, programs, tests and examples.
///
/// # Errors
///
/// If cargo does not say what there is, or a file cannot be read.
pub fn check() -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let Metadata { packages, workspace_root } = cargo::metadata()?;
    for package in packages {
        let mut circles = Vec::new();
        for target in &package.targets {
            circles.extend(self::circles(&Modules::read(&target.src_path)?.edges()));
        }
        let exempt = NOT_YET.contains(&package.name.as_str());
        if exempt && circles.is_empty() {
            circles.push(Finding {
                path: package.manifest_path,
                line: 1,
                text: format!("{} has no circles; remove it from NOT_YET", package.name),
            });
        } else if exempt {
            continue;
        }
        findings.extend(
            circles
                .into_iter()
                .map(|finding| Finding { path: below(&workspace_root, &finding.path), ..finding }),
        );
    }
    Ok(findings)
}

fn below(root: &Path, path: &Path) -> PathBuf {
    super::links::resolve(Path::new(""), path.strip_prefix(root).unwrap_or(path))
}

/// Modules side by side, by name, and whom each imports, with the place where it does.
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
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        circles(&Modules::parse(text).edges()).iter().map(ToString::to_string).collect()
    }

    fn circle(line: usize, names: &str) -> String {
        format!(
            "lib.rs:{line}: modules import each other in a circle, {names}; they may import in \
             one direction only"
        )
    }

    #[test]
    fn three_modules_in_a_circle() {
        let text = "mod a {
                use crate::b::{self, c::C};
                struct A;
            }
            mod b {
                pub mod c { pub struct C; fn f() -> super::super::d::D { todo!() } }
            }
            mod d {
                pub struct D;
                fn f() { println!(\"{}\", crate::a::A); }
            }
            mod e { use super::{a, b}; }";
        assert_eq!(findings(text), [circle(2, "a -> b -> d -> a")]);
        // The same without one of the imports.
        assert_eq!(findings(&text.replace("crate::a::A", "1")), [""; 0]);
    }

    #[test]
    fn modules_below_others() {
        let text = "mod p {
                mod a { use super::b::B; }
                mod b { pub struct B; mod c { use crate::p::a; } }
            }";
        assert_eq!(findings(text), [circle(2, "p::a -> p::b -> p::a")]);
    }

    #[test]
    fn a_reexport_is_of_the_module_that_defines() {
        let text = "pub use a::A;
            pub use b::*;
            mod a { use crate::B; pub struct A; }
            mod b { use crate::A; pub struct B; }";
        assert_eq!(findings(text), [circle(3, "a -> b -> a")]);
    }

    #[test]
    fn modules_and_those_in_them_are_one_and_tests_do_not_count() {
        let text = "use a::A;
            pub struct Root;
            mod a {
                use super::Root;
                use crate::Root as R;
                pub struct A(super::Root);
                mod inner { use super::A; }
                use inner::X;
            }
            mod b {
                use crate::a::A;
                pub struct B;
            }
            mod c {
                #[cfg(test)] use crate::b::B;
                #[cfg(test)] mod tests { use crate::{b::B, d::D}; }
            }
            mod d { use crate::c; use std::c::d; use core::a::b; }";
        assert_eq!(findings(text), [""; 0]);
    }
}
