//! Links in Markdown lead to files, and to headings, that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::{Finding, has_extension};

/// Checks the Markdown files among these.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut documents = BTreeMap::new();
    for path in files.iter().filter(|path| has_extension(path, &["md"])) {
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        documents.insert(path.clone(), Document::parse(&text));
    }
    // A folder exists if it contains a file.
    let existing = files.iter().flat_map(|path| path.ancestors()).collect();
    Ok(findings(&documents, &existing))
}

/// The links and anchors of a Markdown file.
struct Document {
    /// The links, with their lines.
    links: Vec<(usize, String)>,
    anchors: BTreeSet<String>,
}

impl Document {
    fn parse(text: &str) -> Self {
        let mut document = Self { links: Vec::new(), anchors: BTreeSet::new() };
        let mut heading: Option<String> = None;
        for (event, range) in
            Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES)
                .into_offset_iter()
        {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    let line = text[..range.start].matches('\n').count() + 1;
                    document.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    document.add_anchor(&anchor(&heading.take().unwrap_or_default()));
                }
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                Event::Html(html) | Event::InlineHtml(html) => document.add_ids(&html),
                _ => {}
            }
        }
        document
    }

    /// Adds an anchor. If several headings have the same text, all after the first get numbers.
    fn add_anchor(&mut self, name: &str) {
        let numbered = (1..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.to_owned())
            .chain(numbered)
            .find(|name| !self.anchors.contains(name));
        self.anchors.extend(free);
    }

    /// `<a id="name">`
    fn add_ids(&mut self, html: &str) {
        let ids = html.split("id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        self.anchors.extend(ids.map(str::to_owned));
    }
}

/// The anchor that GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(is_kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn findings(documents: &BTreeMap<PathBuf, Document>, existing: &BTreeSet<&Path>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, document) in documents {
        for (line, link) in &document.links {
            if let Some(text) = broken(path, link, documents, existing) {
                findings.push(Finding { path: path.clone(), line: *line, text });
            }
        }
    }
    findings
}

/// The error in a link of the file `from`, if any.
fn broken(
    from: &Path,
    link: &str,
    documents: &BTreeMap<PathBuf, Document>,
    existing: &BTreeSet<&Path>,
) -> Option<String> {
    // Other sites are not asked: the check works without a network.
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() {
        from.to_owned()
    } else {
        resolve(from.parent().unwrap_or(Path::new("")), Path::new(file))
    };
    if !existing.contains(target.as_path()) {
        return Some(format!(
            "link {link}: there is no {}; links lead to files of this repository",
            target.display()
        ));
    }
    let is_there = match documents.get(&target) {
        Some(document) => document.anchors.contains(anchor),
        None => false,
    };
    (!anchor.is_empty() && !is_there).then(|| {
        format!(
            "link {link}: {} has no heading #{anchor}; anchors are headings' words in lower case, \
             joined by hyphens",
            target.display()
        )
    })
}

/// The target of a relative path, seen from a folder.
pub fn resolve(folder: &Path, relative: &Path) -> PathBuf {
    let mut path = folder.to_owned();
    for component in relative.components() {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<String> {
        let other = Document::parse("# Other\n## Two\n## Two\n<a id=\"mark\"></a>\n");
        let documents = BTreeMap::from([
            (PathBuf::from("docs/this.md"), Document::parse(text)),
            (PathBuf::from("docs/other.md"), other),
        ]);
        let files = ["docs/this.md", "docs/other.md", "src/code.rs"].map(Path::new);
        let existing = files.iter().flat_map(|path| path.ancestors()).collect();
        findings(&documents, &existing).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let fine = "# A `code` word: it's _here_\n\n\
                    [a](#a-code-word-its-here) [b](other.md#two-1) [c](./other.md#mark)\n\
                    [d](../src/code.rs) [e](../src) [f](https://example.org/none) [g][h]\n\n\
                    [h]: other.md#two\n\n```\n[not](a-link.md)\n```\n";
        assert_eq!(check(fine), [""; 0]);
    }

    #[test]
    fn broken_links_are_named() {
        let text =
            "# Here\n\n[a](none.md)\nand [b](other.md#three),\n[c](#there) [d](src/code.rs)\n";
        let found = check(text);
        let begins = [
            "docs/this.md:3: link none.md: there is no docs/none.md; ",
            "docs/this.md:4: link other.md#three: docs/other.md has no heading #three; ",
            "docs/this.md:5: link #there: docs/this.md has no heading #there; ",
            "docs/this.md:5: link src/code.rs: there is no docs/src/code.rs; ",
        ];
        assert_eq!(found.len(), begins.len(), "{found:?}");
        for (found, begin) in found.iter().zip(begins) {
            assert!(found.starts_with(begin), "{found}");
        }
    }
}
