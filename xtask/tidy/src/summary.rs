//! The book's summary lists every page of `docs/`, once. ([`links`](crate::links) sees to it that
//! what it lists exists.)

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Parser, Tag};

use super::{Finding, has_extension, links::resolve};

const DOCS: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks the summary against these files.
///
/// # Errors
///
/// If it cannot be read.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let text =
        fs::read_to_string(root.join(SUMMARY)).with_context(|| format!("cannot read {SUMMARY}"))?;
    Ok(findings(&text, files))
}

fn findings(summary: &str, files: &[PathBuf]) -> Vec<Finding> {
    let listed: Vec<_> = Parser::new(summary)
        .filter_map(|event| match event {
            Event::Start(Tag::Link { dest_url, .. }) => {
                Some(resolve(Path::new(DOCS), Path::new(&*dest_url)))
            }
            _ => None,
        })
        .collect();
    let pages = files.iter().filter(|file| {
        file.starts_with(DOCS) && has_extension(file, &["md"]) && *file != Path::new(SUMMARY)
    });
    let times = pages.map(|page| (page, listed.iter().filter(|other| *other == page).count()));
    times
        .filter(|(_, times)| *times != 1)
        .map(|(page, times)| Finding {
            path: SUMMARY.into(),
            line: 1,
            text: format!(
                "{} is listed {times} times; list each page of {DOCS} once",
                page.display()
            ),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_listed_once() {
        let files = ["docs/SUMMARY.md", "docs/a.md", "docs/b/c.md", "docs/d.svg", "e.md"];
        let files = files.map(PathBuf::from);
        let check = |summary: &str| -> Vec<_> {
            findings(summary, &files).into_iter().map(|finding| finding.text).collect()
        };
        assert_eq!(check("[E](../e.md)\n\n- [A](a.md)\n  - [C](b/c.md)\n"), [""; 0]);
        let found = check("- [C](b/c.md)\n- [C again](b/c.md)\n");
        let expected = [
            "docs/a.md is listed 0 times; list each page of docs once",
            "docs/b/c.md is listed 2 times; list each page of docs once",
        ];
        assert_eq!(found, expected);
    }
}
