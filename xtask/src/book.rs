//! `cargo xtask book`: `docs/` as a book, in `target/book`.
//!
//! mdBook wants all pages in one folder, so it gets a copy: `docs/` and the README. In it a link to
//! a file that is no page, such as a source, becomes its words and the file's path.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use switchml_cli::say;

use crate::cargo;
use crate::command::succeed;
use crate::setup::cargo_tool::MDBOOK;

/// What a README is called in the copy, as mdBook makes `index.html` of it, but not of links to it.
const FIRST_PAGE: &str = "index.md";

/// Installs mdBook if it is missing, and builds the book.
///
/// # Errors
///
/// If mdBook cannot be built, or finds a mistake.
pub fn run() -> Result<()> {
    let target = cargo::target_folder()?;
    let mdbook = MDBOOK.ensure(&target)?;
    let (copy, book) = (target.join("book-source"), target.join("book"));
    for folder in [&copy, &book] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    let pages = copy.join("src");
    copy_pages("docs", &pages)?;
    let readme = fs::read_to_string(cargo::workspace().join("README.md"))?;
    fs::write(pages.join(FIRST_PAGE), as_page(&readme, ""))?;
    fs::rename(pages.join("book.toml"), copy.join("book.toml"))?;
    succeed(Command::new(mdbook).arg("build").arg(&copy).arg("--dest-dir").arg(&book))?;
    say!("{}", book.join("index.html").display());
    Ok(())
}

/// Copies pages and pictures of a folder of the workspace.
fn copy_pages(folder: &str, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(cargo::workspace().join(folder))? {
        let file = entry?.path();
        let name =
            file.file_name().and_then(OsStr::to_str).context("a file's name is not UTF-8")?;
        if file.is_dir() {
            copy_pages(&format!("{folder}/{name}"), &to.join(name))?;
        } else if file.extension().is_some_and(|extension| extension == "md") {
            let page = as_page(&fs::read_to_string(&file)?, folder);
            fs::write(to.join(renamed(name)), page)?;
        } else {
            fs::copy(&file, to.join(name))?;
        }
    }
    Ok(())
}

/// The text of a page of this folder of the workspace, with the links of its copy.
fn as_page(text: &str, folder: &str) -> String {
    // From the page's copy to the book's first page.
    let up = "../".repeat(folder.matches('/').count());
    let mut page = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        page.push_str(before);
        let (link, behind) = after.split_once(')').unwrap_or((after, ""));
        rest = behind;
        if link.contains("://") || link.starts_with('#') {
            page.push_str(&format!("]({link})"));
            continue;
        }
        let path = path_of(link, folder);
        match (place_of(&path), page.rfind('[')) {
            (None, Some(begin)) => {
                page.remove(begin);
                page.push_str(&format!(" (`{path}`)"));
            }
            (place, _) => page.push_str(&format!("]({up}{})", place.unwrap_or(path))),
        }
    }
    page + rest
}

/// Where a link of a page of this folder leads to, from the workspace's root.
fn path_of(link: &str, folder: &str) -> String {
    let mut folders: Vec<_> = folder.split_terminator('/').collect();
    let mut rest = link;
    while let Some(above) = rest.strip_prefix("../") {
        folders.pop();
        rest = above;
    }
    folders.push(rest);
    folders.join("/")
}

/// Where the copy of a page or picture lies, if this path leads to one.
fn place_of(path: &str) -> Option<String> {
    let first = path.starts_with("README.md").then_some(path);
    path.strip_prefix("docs/").or(first).map(renamed)
}

/// A file's name, or a link to it, in the copy.
fn renamed(name: &str) -> String {
    name.replace("README.md", FIRST_PAGE)
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
        assert_eq!(as_page(page, "docs"), expected);
        let readme = "[a](docs/b.md#c), [d](CHANGELOG.md), ![e](docs/plots/f.svg)";
        assert_eq!(as_page(readme, ""), "[a](b.md#c), d (`CHANGELOG.md`), ![e](plots/f.svg)");
    }

    #[test]
    fn links_of_folders_below_lead_to_pages() {
        assert_eq!(as_page("[a](b/README.md#c)", "docs"), "[a](b/index.md#c)");
        let page = "[a](c.md#d) [e](../f.md) [g](../../README.md) [h](../../i/README.md) [j](#k)";
        let expected = "[a](../b/c.md#d) [e](../f.md) [g](../index.md) h (`i/README.md`) [j](#k)";
        assert_eq!(as_page(page, "docs/b"), expected);
    }
}
