//! Every rule of the protocol that code or prose cites by its number is in `docs/spec`,
//! where it begins with that number in bold; and code cites every rule, where it is kept.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use regex::Regex;

use super::{Finding, has_extension};

/// The folder of the specification.
const SPECIFICATION: &str = "docs/spec";
const CODE: [&str; 7] = ["rs", "p4", "py", "c", "h", "proto", "cpp"];

/// The number that a rule begins with.
static DEFINITION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^\s*(?:[-*]\s+)?\*\*([0-9]+\.[0-9]+)\.?\*\*").expect("a valid expression")
});
/// A citation: the word and its numbers, in a list or as a range. A comment's line may end in it.
static CITATION: LazyLock<Regex> = LazyLock::new(|| {
    let gap = r"(?:\s|//[/!]?|\#)+";
    let number = r"[0-9]+\.[0-9]+";
    let between = format!(r"(?:[-–]|,?{gap}(?:(?:and|or|to){gap})?)");
    let list = format!(r"\b[Rr]ules?{gap}({number}(?:{between}{number})*)");
    Regex::new(&list).expect("a valid expression")
});
static NUMBER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[0-9]+\.[0-9]+").expect("a valid expression"));

/// Checks the citations in these files.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let read = |path: &Path| {
        fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))
    };
    let is_page = |path: &Path| path.starts_with(SPECIFICATION) && has_extension(path, &["md"]);
    let mut pages = Vec::new();
    for path in files.iter().filter(|path| is_page(path)) {
        pages.push((path, read(path)?));
    }
    ensure!(!pages.is_empty(), "there is no page in {SPECIFICATION}");
    let rules: BTreeSet<&str> = pages.iter().flat_map(|(_, text)| defined(text)).collect();
    let (mut findings, mut in_code) = (Vec::new(), BTreeSet::new());
    for path in files {
        let is_code = has_extension(path, &CODE);
        if !is_code && !has_extension(path, &["md"]) {
            continue;
        }
        let text = read(path)?;
        findings.extend(unknown(path, &text, &rules));
        if is_code {
            in_code.extend(cited(&text));
        }
    }
    for (path, text) in &pages {
        findings.extend(uncited(path, text, &in_code));
    }
    Ok(findings)
}

/// The rules that a page of the specification has.
fn defined(specification: &str) -> BTreeSet<&str> {
    let numbers = DEFINITION.captures_iter(specification);
    numbers.filter_map(|found| Some(found.get(1)?.as_str())).collect()
}

/// The rules that a text cites, with all of a range.
fn cited(text: &str) -> Vec<String> {
    let mut rules = Vec::new();
    for list in CITATION.captures_iter(text).filter_map(|found| found.get(1)) {
        let mut last: Option<regex::Match<'_>> = None;
        for number in NUMBER.find_iter(list.as_str()) {
            let between = last.map_or("", |last| &list.as_str()[last.end()..number.start()]);
            if between.contains(['-', '–']) || between.contains("to") {
                rules.extend(
                    last.into_iter().flat_map(|last| range(last.as_str(), number.as_str())),
                );
            }
            rules.push(number.as_str().to_owned());
            last = Some(number);
        }
    }
    rules
}

/// The rules of a section from one up to another.
fn range(from: &str, to: &str) -> Vec<String> {
    let (Some((section, first)), Some((other, last))) = (from.split_once('.'), to.split_once('.'))
    else {
        return Vec::new();
    };
    let numbers = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
    let numbers = numbers.filter(|_| section == other);
    numbers
        .into_iter()
        .flat_map(|(first, last)| first..=last)
        .map(|n| format!("{section}.{n}"))
        .collect()
}

fn uncited(path: &Path, page: &str, in_code: &BTreeSet<String>) -> Vec<Finding> {
    let definitions = DEFINITION.captures_iter(page).filter_map(|found| found.get(1));
    definitions
        .filter(|number| !in_code.contains(number.as_str()))
        .map(|number| Finding {
            path: path.to_owned(),
            line: page[..number.start()].matches('\n').count() + 1,
            text: format!(
                "rule {} is cited by no code; cite it in a comment where it is kept",
                number.as_str()
            ),
        })
        .collect()
}

fn unknown(path: &Path, text: &str, rules: &BTreeSet<&str>) -> Vec<Finding> {
    let lists = CITATION.captures_iter(text).filter_map(|found| found.get(1));
    let numbers = lists.flat_map(|list| {
        NUMBER.find_iter(list.as_str()).map(move |number| (list.start() + number.start(), number))
    });
    numbers
        .filter(|(_, number)| !rules.contains(number.as_str()))
        .map(|(at, number)| Finding {
            path: path.to_owned(),
            line: text[..at].matches('\n').count() + 1,
            text: format!(
                "rule {} is cited; {SPECIFICATION} has no such rule, only those that begin with \
                 their number in bold",
                number.as_str()
            ),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The word is put in here, for this file is checked, too.
    fn findings(text: &str) -> Vec<(usize, String)> {
        let specification = "# Rules\n\n**1.1** A.\n**1.2.** B, see **9.9**.\n- **2.10** C\n";
        let rules = defined(specification);
        assert_eq!(rules, BTreeSet::from(["1.1", "1.2", "2.10"]));
        let found = unknown(Path::new("a.rs"), &text.replace('%', "ule"), &rules);
        found
            .iter()
            .map(|finding| (finding.line, finding.text.split(' ').nth(1).unwrap_or("").to_owned()))
            .collect()
    }

    #[test]
    fn cited_rules_exist() {
        let fine = "// By r% 1.1, and r%s 1.2 and 2.10; as a r%\n// 1.2 is 3.4 times 5.6.\n";
        assert_eq!(findings(fine), []);
        let wrong = "x\n/// R% 1.3, or r%s 1.1, 1.4\n/// and 2.1-2.11; so r%\n/// 7.7 says\n";
        let expected = [(2, "1.3"), (2, "1.4"), (3, "2.1"), (3, "2.11"), (4, "7.7")];
        assert_eq!(findings(wrong), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn code_cites_all_rules() {
        let specification = "**1.1** A.\n\n**1.2** B.\n**1.3** C.\n**2.1** D.\n**2.2** E.\n";
        let code = "// R% 1.1; as by r%s 1.2 and 2.1.\n".replace('%', "ule");
        let lines = |code: &str| {
            let in_code = cited(code).into_iter().collect();
            let found = uncited(Path::new("a.md"), specification, &in_code);
            found.into_iter().map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert_eq!(lines(&code), [4, 6]);
        assert_eq!(lines(&"// r%s 1.1 to 1.3, 2.1-2.2".replace('%', "ule")), [] as [usize; 0]);
    }
}
