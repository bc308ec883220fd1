//! Pages for users keep to the words of the style guide in CONTRIBUTING.md, as far as patterns can
//! tell: each of these is wrong in (almost) every sentence of such a page.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use regex::Regex;

use super::{Finding, has_extension};

/// Folders and files of pages for users.
const PAGES: [&str; 2] = ["docs", "README.md"];
/// Pages for others: the specification, how to test, and reports of research and of measurements;
/// and the metrics, which have the specification's words for packets.
const EXEMPT: [&str; 6] = [
    "docs/SUMMARY.md",
    "docs/plots",
    "docs/reference/metrics.md",
    "docs/research",
    "docs/spec",
    "docs/testing.md",
];

/// Words that a page does not have: a pattern, what is no error although it matches, and what to
/// write. A sentence begins at `^` or behind one of `.:;`.
const RULES: [(&str, &str, &str); 22] = [
    (
        r"(\w+ )?\bwho\b",
        r"(?i)^(people|users?|readers|operators|engineers|anyone|everybody|those) who",
        "name the noun: a rank that, a client that",
    ),
    (r"\b(whoever|whom(ever)?|whose owner)\b", "", "name the noun: a rank that, a client that"),
    (r"(^|[.:;] )What\b[^.?]*[.?]", r"\?$", "name the noun: a packet that, the values that"),
    (r"(^|[.:;] )Where\b[^.?]*[.?]", r"\?$", "if"),
    (r"\bin vain\b", "", "without success"),
    (r"\bmend(s|ed|ing)?\b", "", "fix, repair"),
    (r"\bamid\b", "", "during"),
    (r"\banew\b", "", "again"),
    (r"\bbeside\b", "", "next to, compared with, during"),
    (r"\balone\b", "", "only, without others"),
    (r", too\b", "", "also, before the verb"),
    (
        r"\bby (RDMA|TLS|HTTP|UDP|TCP|IPv[46]|OTLP|gRPC|NVLink|[a-z]+up|memory|theory)\b",
        "",
        "over, through, with, according to",
    ),
    (r"\b(hears?|heard)\b", "", "receive an error, learn"),
    (
        r"(\w+ )?\b(is|are|was) no \w+",
        r"(?i)^there |(er|more|less)$",
        "is not a, cannot be, does not have",
    ),
    (r"\b(all else|but for|cut over|belongs? into|time-outs?)\b", "", "see the style guide"),
    (r"(?i)(^|[.:;] )so (does|do|did|is|are) ", "", "also, with the subject before the verb"),
    (r"\b[Nn]or (does|do|did|is|are|can)\b", "", "a sentence with not"),
    (r"\bsome \d", "", "about"),
    (r"\btime to (ours|it|Gloo's|dense)\b", "", "say which time is divided by which"),
    (r"\b([Nn]obody|[Ss]omebody)\b", "", "name the noun: no rank, a client"),
    (r"\b(go|goes|going|went) on\b", "", "continue"),
    (r"\bin place of\b|, (we|us|ours) \d", "", "instead of; a verb for each number"),
];

static COMPILED: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let compile = |pattern: &str| Regex::new(pattern).expect("a valid expression");
    let rule = |&(pattern, allowed, instead): &(&str, &str, &'static str)| Rule {
        pattern: compile(pattern),
        allowed: (!allowed.is_empty()).then(|| compile(allowed)),
        instead,
    };
    RULES.iter().map(rule).collect()
});

struct Rule {
    pattern: Regex,
    allowed: Option<Regex>,
    instead: &'static str,
}

/// Checks the pages for users among these.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let starts = |path: &Path, places: &[&str]| places.iter().any(|place| path.starts_with(place));
    let pages = files.iter().filter(|path| {
        has_extension(path, &["md"]) && starts(path, &PAGES) && !starts(path, &EXEMPT)
    });
    let mut findings = Vec::new();
    for path in pages {
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        findings.extend(of_page(path, &text));
    }
    Ok(findings)
}

fn of_page(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for block in Block::all_of(text) {
        for Rule { pattern, allowed, instead } in &*COMPILED {
            for found in pattern.find_iter(&block.text) {
                let is_allowed = |allowed: &Regex| allowed.is_match(found.as_str());
                if allowed.as_ref().is_some_and(is_allowed) {
                    continue;
                }
                let words: String = found.as_str().chars().take(50).collect();
                findings.push(Finding {
                    path: path.to_owned(),
                    line: block.line_of(found.start(), text),
                    text: format!("{:?}; write: {instead}", words.trim_start_matches(['.', ' '])),
                });
            }
        }
    }
    findings
}

/// A paragraph, an item of a list or a cell of a table, without code.
#[derive(Default)]
struct Block {
    text: String,
    /// Where pieces begin: in `text`, and in the page.
    pieces: Vec<(usize, usize)>,
}

impl Block {
    fn all_of(page: &str) -> Vec<Self> {
        let (mut blocks, mut block, mut is_left_out) = (Vec::new(), Self::default(), false);
        for (event, range) in Parser::new_ext(page, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::CodeBlock(_) | Tag::Heading { .. }) => is_left_out = true,
                Event::End(TagEnd::CodeBlock | TagEnd::Heading(_)) => is_left_out = false,
                Event::Start(Tag::Paragraph | Tag::Item | Tag::TableCell)
                | Event::End(TagEnd::Paragraph | TagEnd::Item | TagEnd::TableCell) => {
                    blocks.push(std::mem::take(&mut block));
                }
                Event::Text(words) if !is_left_out => block.push(&words, range.start),
                Event::Code(_) => block.push("CODE", range.start),
                Event::SoftBreak => block.push(" ", range.start),
                _ => {}
            }
        }
        blocks
    }

    fn push(&mut self, words: &str, begin: usize) {
        self.pieces.push((self.text.len(), begin));
        self.text.push_str(words);
    }

    /// The line of the page on which a place of the text is.
    fn line_of(&self, place: usize, page: &str) -> usize {
        let piece = self.pieces.iter().rev().find(|(begin, _)| *begin <= place);
        page[..piece.map_or(0, |(_, begin)| *begin)].matches('\n').count() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let findings = of_page(Path::new("a.md"), text);
        findings.iter().map(|Finding { line, text, .. }| format!("{line}: {text}")).collect()
    }

    #[test]
    fn each_rule_finds_its_sentence() {
        let sentences = [
            "A rank says who stalls.",
            "They log for whom they wait.",
            "It ends. What comes late is lost.",
            "Where Rust is, pip builds.",
            "It waits in vain.",
            "It names the command that mends it.",
            "It fails amid a call.",
            "They join anew.",
            "It ran beside Gloo.",
            "Links alone take time.",
            "Gloo waits, too.",
            "It comes by TLS.",
            "The others hear of it.",
            "A switch is no parent.",
            "All works but for Tofino.",
            "It stops. So does that rank.",
            "It does not start, nor does it say why.",
            "It takes some 6 calls.",
            "Gloo's time to ours.",
            "Nobody may write there.",
            "Calls go on.",
            "Gloo took 2, we 3.",
        ];
        assert_eq!(sentences.len(), RULES.len());
        for (sentence, (pattern, ..)) in sentences.iter().zip(RULES) {
            assert!(Regex::new(pattern).unwrap().is_match(sentence), "{pattern}: {sentence}");
            assert_eq!(found(sentence).len(), 1, "{sentence}: {:?}", found(sentence));
        }
    }

    #[test]
    fn plain_sentences_pass() {
        for sentence in [
            "A rank that stalls is named. It is for people who train models.",
            "What does the log say?",
            "There is no multicast. It is no faster than Gloo.",
            "The file `whoever.rs`",
            "## What runs in the network",
            "```\nwhoever\n```",
            "The daemon also waits. Something is too long.",
        ] {
            assert_eq!(found(sentence), [""; 0], "{sentence}");
        }
    }

    #[test]
    fn findings_have_the_line_of_the_page() {
        let page = "# A page\n\nAll is well,\nand they join\nanew.\n\n- one\n- | no table\n\n\
                    | a | b |\n|---|---|\n| c | beside d |\n";
        let expected =
            ["5: \"anew\"; write: again", "12: \"beside\"; write: next to, compared with, during"];
        assert_eq!(found(page), expected);
    }
}
