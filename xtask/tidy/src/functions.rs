//! Python functions have at most 70 lines. Clippy checks functions in Rust.

use std::path::Path;

use super::{Finding, has_extension};

/// The same limit as `too-many-lines-threshold` in `clippy.toml`.
const LINES: usize = 70;

pub fn check(path: &Path, text: &str) -> Vec<Finding> {
    if !has_extension(path, &["py"]) {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let long = |(first, line): (usize, &&str)| {
        let (indent, rest) = indentation(line);
        let name = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("def ")?;
        let length = 1 + body(&lines[first + 1..], indent);
        (length > LINES).then(|| Finding {
            path: path.to_owned(),
            line: first + 1,
            text: format!(
                "{} has {length} lines; {LINES} are allowed",
                name.split('(').next().unwrap_or_default()
            ),
        })
    };
    lines.iter().enumerate().filter_map(long).collect()
}

/// The number of lines up to the last one that is indented more than `indent`, or that closes the
/// brackets of the function's head.
fn body(lines: &[&str], indent: usize) -> usize {
    let belongs = |line: &&&str| {
        let (columns, rest) = indentation(line);
        rest.is_empty() || columns > indent || (columns == indent && rest.starts_with(')'))
    };
    let body: Vec<_> = lines.iter().take_while(belongs).collect();
    body.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |last| last + 1)
}

fn indentation(line: &str) -> (usize, &str) {
    let rest = line.trim_start();
    (line.len() - rest.len(), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_70_lines_at_most() {
        let file = |lines: usize| {
            let body = "        pass\n".repeat(lines - 4);
            format!("class A:\n    def f(\n        a\n    ):\n{body}\n        pass\n\n    x = 1\n")
        };
        let of = |name, lines| {
            let findings = check(Path::new(name), &file(lines));
            findings.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of("a.py", 69), [""; 0]);
        assert_eq!(of("a.py", 70), ["a.py:2: f has 71 lines; 70 are allowed"]);
        assert_eq!(of("a.pyi", 70), [""; 0]);
    }
}
