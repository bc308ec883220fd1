//! `cargo xtask book`: `docs/` as a book, in `target/book`.
//!
//! mdBook wants all pages in one folder, so it gets a copy: `docs/` and the README. In it a link to
//! a file that is no page, such as a source, becomes its words and the file's path.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use switchml_cli::say;

use crate::{cargo, setup};

/// The copy of the README.
const FIRST_PAGE: &str = "index.md";

/// Installs mdBook if it is missing, and builds the book.
///
/// # Errors
///
/// If mdBook cannot be built, or finds a mistake.
pub fn run() -> Result<()> {
    let target = cargo::target_folder()?;
    let mdbook = setup::mdbook::ensure(&target)?;
    let (copy, book) = (target.join("book-source"), target.join("book"));
    for folder in [&copy, &book] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    let (docs, pages) = (cargo::workspace().join("docs"), copy.join("src"));
    copy_pages(&docs, &pages)?;
    let readme = fs::read_to_string(cargo::workspace().join("README.md"))?;
    fs::write(pages.join(FIRST_PAGE), as_page(&readme, true))?;
    fs::rename(pages.join("book.toml"), copy.join("book.toml"))?;
    let status = Command::new(mdbook)
        .arg("build")
        .arg(&copy)
        .arg("--dest-dir")
        .arg(&book)
        .status()
        .context("cannot start mdbook")?;
    ensure!(status.success(), "the book could not be built; mdbook's messages are above");
    say!("{}", book.join("index.html").display());
    Ok(())
}

/// Copies a folder of pages and pictures.
fn copy_pages(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let file = entry?.path();
        let copy = to.join(file.file_name().context("a file has no name")?);
        if file.is_dir() {
            copy_pages(&file, &copy)?;
        } else if file.extension().is_some_and(|extension| extension == "md") {
            fs::write(&copy, as_page(&fs::read_to_string(&file)?, false))?;
        } else {
            fs::copy(&file, &copy)?;
        }
    }
    Ok(())
}

/// The text of a page of `docs/`, or of the README, with the links of its copy.
fn as_page(text: &str, is_readme: bool) -> String {
    let mut page = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        page.push_str(before);
        let (link, behind) = after.split_once(')').unwrap_or((after, ""));
        rest = behind;
        let is_elsewhere = link.contains("://") || link.starts_with('#');
        // From the root, if it may leave `docs/`.
        let path = if is_readme { Some(link) } else { link.strip_prefix("../") };
        match path.filter(|_| !is_elsewhere) {
            None => page.push_str(&format!("]({link})")),
            Some(path) => match (place_of(path), page.rfind('[')) {
                (None, Some(begin)) => {
                    page.remove(begin);
                    page.push_str(&format!(" (`{path}`)"));
                }
                (place, _) => page.push_str(&format!("]({})", place.as_deref().unwrap_or(path))),
            },
        }
    }
    page + rest
}

/// Where the copy of a page or picture lies, if this path leads to one.
fn place_of(path: &str) -> Option<String> {
    let readme = path.strip_prefix("README.md").map(|anchor| format!("{FIRST_PAGE}{anchor}"));
    path.strip_prefix("docs/").map(str::to_owned).or(readme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_pages_or_become_words() {
        let page = "[a](b.md#c) ![d](plots/e.svg) [f](#g) [h](https://i.org/j)\n\
                    [k](../README.md#l) [two\nwords](../m/n.rs), [o](../README.md)";
        let expected = "[a](b.md#c) ![d](plots/e.svg) [f](#g) [h](https://i.org/j)\n\
                        [k](index.md#l) two\nwords (`m/n.rs`), [o](index.md)";
        assert_eq!(as_page(page, false), expected);
        let readme = "[a](docs/b.md#c), [d](CHANGELOG.md), ![e](docs/plots/f.svg)";
        assert_eq!(as_page(readme, true), "[a](b.md#c), d (`CHANGELOG.md`), ![e](plots/f.svg)");
    }
}
