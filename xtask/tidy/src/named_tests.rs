//! Every test that a document names, as `path/file.rs::test`, exists.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result};
use regex::Regex;

use super::{Finding, has_extension};

/// A test in backticks: its file, below the workspace's root, and its name.
static NAMED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"`([\w./-]+\.rs)::(\w+)`").expect("a valid expression"));

/// Checks the Markdown files among these.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| has_extension(path, &["md"])) {
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        // A missing file has no tests.
        let source = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
        findings.extend(missing(path, &text, source));
    }
    Ok(findings)
}

fn missing(path: &Path, text: &str, source: impl Fn(&str) -> String) -> Vec<Finding> {
    let named = text.lines().enumerate().flat_map(|(line, text)| {
        NAMED.captures_iter(text).map(move |found| (line + 1, found.extract().1))
    });
    named
        .filter(|(_, [file, test])| !source(file).contains(&format!("fn {test}(")))
        .map(|(line, [file, test])| Finding {
            path: path.to_owned(),
            line,
            text: format!("{file} has no test {test}; name one that it has"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_tests_exist() {
        let source = |file: &str| match file {
            "a/tests.rs" => "#[test]\nfn it_adds() {}\n".to_owned(),
            _ => String::new(),
        };
        let text = "`a/tests.rs::it_adds`, `a/tests.rs`\n`a/tests.rs::it_add`\n`b.rs::it_adds`\n";
        let found = missing(Path::new("a.md"), text, source);
        let expected = [
            "a.md:2: a/tests.rs has no test it_add; name one that it has",
            "a.md:3: b.rs has no test it_adds; name one that it has",
        ];
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }
}
