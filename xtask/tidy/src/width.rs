//! Lines have at most 100 columns.

use std::path::Path;

use super::{Finding, has_extension};

/// The same limit as `max_width` in `rustfmt.toml`.
const COLUMNS: usize = 100;

/// File extensions of code and prose.
const CHECKED: [&str; 11] = ["rs", "p4", "py", "pyi", "c", "h", "cpp", "toml", "proto", "sh", "md"];
/// A script without an extension.
const SCRIPT: &str = ".ci/run";
/// Folders of generated files: reports of measurements, and files that others read unchanged.
const GENERATED: [&str; 1] = ["docs/plots"];

pub fn check(path: &Path, text: &str) -> Vec<Finding> {
    let is_generated = GENERATED.iter().any(|folder| path.starts_with(folder));
    if is_generated || !(has_extension(path, &CHECKED) || path == Path::new(SCRIPT)) {
        return Vec::new();
    }
    let wide = |(line, text): (usize, &str)| {
        let columns = text.chars().count();
        (columns > COLUMNS && can_be_broken(text)).then(|| Finding {
            path: path.to_owned(),
            line: line + 1,
            text: format!("{columns} columns; {COLUMNS} are allowed"),
        })
    };
    text.lines().enumerate().filter_map(wide).collect()
}

/// Whether a line can be broken. Rows of Markdown tables in documents and comments cannot, and
/// neither can a single word, such as a URL.
fn can_be_broken(line: &str) -> bool {
    let comment = line.trim_start().trim_start_matches(['/', '!', '#', '*']).trim_start();
    let content = comment.strip_prefix("- ").unwrap_or(comment);
    // The target of a Markdown reference: `[name]: URL`.
    let content = match content.split_once("]: ") {
        Some((name, url)) if name.starts_with('[') => url,
        _ => content,
    };
    !content.starts_with('|') && content.trim_end().contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(name: &str, line: &str) -> Vec<String> {
        check(Path::new(name), line).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_line_has_100_columns_at_most() {
        let line = format!("// {}", "word ".repeat(30));
        let allowed: String = line.chars().take(100).collect();
        assert_eq!(widths("a.rs", &allowed), [""; 0]);
        // Characters count, not bytes.
        assert_eq!(widths("a.rs", &allowed.replace('w', "ä")), [""; 0]);
        let wide: String = line.chars().take(101).collect();
        let text = format!("\n{wide}\n");
        for name in ["a.rs", "b/c.py", "d.p4", "e.md", "Cargo.toml", ".ci/run"] {
            let expected = format!("{name}:2: 101 columns; 100 are allowed");
            assert_eq!(widths(name, &text), [expected]);
        }
        for name in ["Cargo.lock", "a.vector", "docs/plots/bench.md", "bench.json"] {
            assert_eq!(widths(name, &wide), [""; 0]);
        }
    }

    #[test]
    fn tables_and_single_words_may_be_wider() {
        let word = "x".repeat(120);
        for line in [
            format!("| {word} | {word} |"),
            format!("//! | {word} | {word} |"),
            format!("- https://{word}"),
            format!("    # https://{word}"),
            format!("[name]: https://{word}"),
        ] {
            assert_eq!(widths("a.rs", &line), [""; 0], "{line}");
        }
        assert_eq!(widths("a.rs", &format!("see https://{word}")).len(), 1);
    }
}
