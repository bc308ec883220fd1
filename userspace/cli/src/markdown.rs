//! Markdown, as the pages in docs/reference have it.

/// Width of a line that is not in a table.
const COLUMNS: usize = 100;

/// A table, and an empty line; nothing without rows.
pub fn table<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rows: String = rows.into_iter().map(|row| line(&row.map(in_cell))).collect();
    match rows.is_empty() {
        true => String::new(),
        false => line(&head.map(str::to_owned)) + "|" + &"---|".repeat(N) + "\n" + &rows + "\n",
    }
}

/// A cell ends at a bar, also in code.
fn in_cell(text: String) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Text as code.
pub fn code(text: &str) -> String {
    format!("`{text}`")
}

/// Plain text, in which options and environment variables become code.
pub fn prose(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    let marked = pieces.map(|(number, piece)| match number % 2 {
        0 => piece.split_inclusive(ends_word).map(word).collect(),
        _ => code(piece),
    });
    marked.collect()
}

/// A word, with the character that ends it.
fn word(text: &str) -> String {
    let word = text.trim_end_matches(ends_word);
    let is_variable = word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        && (word.contains('_') || word == "RANK");
    let is_option = word.starts_with("--") && word.len() > 2;
    match is_option || is_variable {
        true => code(word) + &escaped(&text[word.len()..]),
        false => escaped(text),
    }
}

fn ends_word(c: char) -> bool {
    !c.is_ascii_alphanumeric() && !"-_=".contains(c)
}

/// Without characters that mean something to Markdown.
fn escaped(text: &str) -> String {
    text.replace('*', "\\*").replace('<', "\\<")
}

/// A paragraph in lines of at most 100 columns.
pub fn wrapped(text: &str) -> String {
    wrapped_at(COLUMNS, text)
}

/// A paragraph in lines of at most so many columns.
pub fn wrapped_at(columns: usize, text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(word.to_owned());
        } else {
            *line = [line, word].join(if line.is_empty() { "" } else { " " });
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_variables_in_prose_are_code() {
        for (text, marked) in [
            ("as --rate, and -b", "as `--rate`, and -b"),
            ("RANK, or SLURM_PROCID", "`RANK`, or `SLURM_PROCID`"),
            ("at HOST_A:PORT_A (RUST_LOG) -- or", "at `HOST_A`:`PORT_A` (`RUST_LOG`) -- or"),
            ("with `--a *` or --b=*.", "with `--a *` or `--b=`\\*."),
            ("<other end>", "\\<other end>"),
        ] {
            assert_eq!(prose(text), marked);
        }
    }

    #[test]
    fn lines_are_as_long_as_they_may_be() {
        let word = "x".repeat(49);
        let text = wrapped(&[word.as_str(); 3].join(" "));
        assert_eq!(text, format!("{word} {word}\n{word}"));
        assert_eq!(wrapped(&[&*word, &*word, "y"].join(" ")), format!("{word} {word}\ny"));
    }

    #[test]
    fn a_bar_does_not_end_a_cell() {
        let row = ["`a|b`".to_owned(), "c\nd".to_owned()];
        assert_eq!(table(["x", "y"], [row]), "| x | y |\n|---|---|\n| `a\\|b` | c d |\n\n");
    }
}
