//! The commands, files and expected output of a page in `docs/`, for tests that do what it says.
//!
//! Blocks of code of the kind `console` begin with the comment `# on HOST`, or `# on HOST, until
//! the end` for a program that the reader ends. Lines with `$ ` are commands, and those after them
//! are what they print: `…` is any text, and a line of `…` any lines. The blocks below one heading
//! run at the same time. If a block's program runs until the end, the blocks below it start once it
//! has said its first line. A block of the kind `python` is the file that the paragraph above it
//! names.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Process;

/// What a page says.
pub struct Page {
    /// Names and content of files.
    pub files: Vec<(String, String)>,
    /// The blocks below each heading that has some.
    pub sections: Vec<Vec<Block>>,
}

/// Commands for one host.
pub struct Block {
    /// Name of the host.
    pub host: String,
    until_the_end: bool,
    /// Commands of a shell, one after the other.
    pub commands: Vec<String>,
    /// Lines that the commands print together.
    printed: Vec<String>,
}

impl Page {
    /// Reads a page.
    ///
    /// # Panics
    ///
    /// If the page is not as described above.
    pub fn parse(text: &str) -> Self {
        let mut page = Self { files: Vec::new(), sections: vec![Vec::new()] };
        let (mut paragraph, mut is_over) = (String::new(), true);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(kind) = line.strip_prefix("```") else {
                if line.starts_with("## ") {
                    page.sections.push(Vec::new());
                }
                // A paragraph stays known until the next one begins.
                if is_over && !line.is_empty() {
                    paragraph.clear();
                }
                is_over = line.is_empty();
                paragraph.push_str(line);
                continue;
            };
            let code: Vec<&str> =
                lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            match kind {
                "console" => page.sections.last_mut().expect("one").push(Block::parse(&code)),
                "python" => page.files.push((name_in(&paragraph), code.join("\n") + "\n")),
                _ => panic!("a block of the kind {kind:?}"),
            }
        }
        page.sections.retain(|blocks| !blocks.is_empty());
        page
    }

    /// Writes the page's files into the folder, and runs its commands, which `start` starts.
    ///
    /// # Panics
    ///
    /// If a command fails, prints something else, or takes longer than `patience`.
    pub fn follow(&self, folder: &Path, patience: Duration, start: impl Fn(&Block) -> Process) {
        for (name, text) in &self.files {
            fs::write(folder.join(name), text).unwrap();
        }
        let mut daemons = Vec::new();
        for blocks in &self.sections {
            let mut started = Vec::new();
            for block in blocks {
                let mut process = start(block);
                if block.until_the_end {
                    // What comes next needs it.
                    process.wait_for_line(&block.first_words(), patience).unwrap();
                    daemons.push(process);
                } else {
                    started.push((process, block));
                }
            }
            for (mut process, block) in started {
                process.wait_success(patience).unwrap();
                block.check(&process.stdout());
            }
        }
    }
}

/// The file that a paragraph names, such as `sum.py`.
fn name_in(paragraph: &str) -> String {
    let mut names = paragraph.split('`').skip(1).step_by(2);
    names.find(|name| name.ends_with(".py")).expect("a file's name").to_owned()
}

impl Block {
    fn parse(code: &[&str]) -> Self {
        let (head, rest) = code.split_first().expect("a comment that names the host");
        let head = head.strip_prefix("# on ").expect("a comment that names the host");
        let (host, until_the_end) = match head.strip_suffix(", until the end") {
            Some(host) => (host, true),
            None => (head, false),
        };
        Self::new(host, until_the_end, rest)
    }

    /// The lines of a block, without the comment about its host.
    pub fn new(host: &str, until_the_end: bool, lines: &[&str]) -> Self {
        let (commands, printed): (Vec<&str>, Vec<&str>) =
            lines.iter().copied().partition(|line| line.starts_with("$ "));
        Self {
            host: host.to_owned(),
            until_the_end,
            commands: commands.iter().map(|line| line[2..].to_owned()).collect(),
            printed: printed.into_iter().map(str::to_owned).collect(),
        }
    }

    /// The first expected line, up to what differs.
    fn first_words(&self) -> String {
        self.printed[0].split('…').next().unwrap_or_default().trim_end().to_owned()
    }

    /// Fails unless the commands have printed the expected lines. A block that shows none may print
    /// anything.
    pub fn check(&self, stdout: &str) {
        let expected: Vec<&str> = self.printed.iter().map(String::as_str).collect();
        let lines: Vec<&str> = stdout.lines().collect();
        assert!(
            expected.is_empty() || match_lines(&expected, &lines),
            "{:?} is to print\n{}\nand printed\n{stdout}",
            self.commands,
            self.printed.join("\n")
        );
    }
}

/// Whether lines are the expected ones; a line of `…` is any number of lines.
fn match_lines(expected: &[&str], lines: &[&str]) -> bool {
    match (expected, lines) {
        ([], lines) => lines.is_empty(),
        (["…", rest @ ..], lines) => (0..=lines.len()).any(|n| match_lines(rest, &lines[n..])),
        ([first, rest @ ..], [line, more @ ..]) => {
            match_line(first, line) && match_lines(rest, more)
        }
        _ => false,
    }
}

/// Whether a line is the expected one, where `…` is any text.
fn match_line(expected: &str, line: &str) -> bool {
    match expected.split_once('…') {
        None => expected == line,
        Some((start, rest)) => line.strip_prefix(start).is_some_and(|left| {
            let ends = left.char_indices().map(|(i, _)| i).chain([left.len()]);
            ends.into_iter().any(|i| match_line(rest, &left[i..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_any_text_and_any_lines() {
        for (expected, line, is_one) in [
            ("a … c", "a b c", true),
            ("a … c", "a  c", true),
            ("a … c", "a b d", false),
            ("…b…", "abc", true),
            ("…", "", true),
            ("a", "ab", false),
        ] {
            assert_eq!(match_line(expected, line), is_one, "{expected} {line}");
        }
        assert!(match_lines(&["…", "b", "…"], &["a", "b"]));
        assert!(!match_lines(&["b", "…"], &["a", "b"]));
        assert!(!match_lines(&["a"], &["a", "b"]));
    }

    #[test]
    fn a_page_is_files_and_blocks_by_heading() {
        let text = "Save as `x.py`:\n\n```python\n1\n```\n## One\n```console\n# on a\n$ x\n2\n```\n\
                    ```console\n# on b, until the end\n$ y\n```\n## Two\n";
        let page = Page::parse(text);
        assert_eq!(page.files, [("x.py".to_owned(), "1\n".to_owned())]);
        let [blocks] = &page.sections[..] else { panic!("{} sections", page.sections.len()) };
        assert_eq!((blocks[0].host.as_str(), blocks[0].until_the_end), ("a", false));
        assert_eq!(
            (&blocks[0].commands[..], &blocks[0].printed[..]),
            (&["x".to_owned()][..], &["2".to_owned()][..])
        );
        assert!(blocks[1].until_the_end);
    }
}
