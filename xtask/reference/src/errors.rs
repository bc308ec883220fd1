//! errors.md: the messages of errors, as the source words them. It has them in attributes of
//! `thiserror`, and their meanings in the comments on them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use switchml_cli::markdown::{prose, table, wrapped};
use syn::{Attribute, Expr, ExprLit, Ident, Item, Lit, LitStr, Meta};

pub const INTRO: &str = "\
# Error messages

This page is for users and operators who search for an error message. `…` stands for a part that
differs. Most messages say after a semicolon what to do. If the meaning is empty, the message says
it. [Troubleshooting](../troubleshooting.md) explains the most frequent messages. `switchml-worker
doctor` looks for causes in the network: it prints each cause after `WHY`, and the command that
fixes it after `FIX`.

";

/// Messages with the same origin: the types that have them, by file.
struct Origin {
    heading: &'static str,
    about: &'static str,
    types: &'static [(&'static str, &'static str)],
}

const ORIGINS: [Origin; 5] = [
    Origin {
        heading: "Calls of a rank",
        about: "A rank gets these messages when it connects, and from its calls.",
        types: &[
            ("worker-lib/src/error.rs", "Error"),
            ("worker-lib/src/control/error.rs", "Error"),
        ],
    },
    Origin {
        heading: "Refused by the aggregator",
        about: "A rank gets these messages with the words \"says the aggregator at …\" at the end.",
        types: &[
            ("userspace/core/src/jobs/error.rs", "JoinError"),
            ("userspace/core/src/data_plane.rs", "Error"),
            ("userspace/core/src/version.rs", "OtherVersion"),
            ("userspace/src/tokens.rs", "TokenError"),
            ("userspace/src/hosts.rs", "TooMuch"),
        ],
    },
    Origin {
        heading: "TLS",
        about: "These messages follow \"no TLS connection to the aggregator at …\"; \"it\" is the \
                aggregator.",
        types: &[("control/src/tls.rs", "TlsError")],
    },
    Origin {
        heading: "RDMA",
        about: "A rank with RDMA prints these messages if RDMA cannot be used.",
        types: &[("worker-lib/src/transport/rdma/unusable.rs", "Unusable")],
    },
    Origin {
        heading: "Start of switchml-aggregator",
        about: "The daemon prints these messages if it cannot start.",
        types: &[
            ("userspace/data-plane/src/xdp/attach.rs", "StartError"),
            ("userspace/data-plane/src/xdp/pins.rs", "PinError"),
            ("userspace/src/combiner/parent.rs", "ParentError"),
            ("userspace/src/daemon.rs", "Exposed"),
            ("userspace/src/tokens.rs", "KeyError"),
        ],
    },
];

/// The parts of the page.
pub fn parts(root: &Path) -> Result<Vec<String>> {
    ORIGINS.iter().map(|origin| origin.text(root)).collect()
}

impl Origin {
    fn text(&self, root: &Path) -> Result<String> {
        let mut rows = Vec::new();
        for (file, name) in self.types {
            let source = fs::read_to_string(root.join(file)).context(*file)?;
            let found = messages(&source, name).context(*file)?;
            ensure!(!found.is_empty(), "{file} has no messages of {name}");
            rows.extend(found.into_iter().map(|(text, meaning)| [quoted(&text), prose(&meaning)]));
        }
        let about = wrapped(self.about);
        Ok(format!("## {}\n\n{about}\n\n{}", self.heading, table(["message", "meaning"], rows)))
    }
}

/// As code, which may have code in it.
fn quoted(text: &str) -> String {
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

/// The messages of the type with this name, each with its meaning.
fn messages(source: &str, name: &str) -> Result<Vec<(String, String)>> {
    let file = syn::parse_file(source)?;
    let of_item = |item: Item| match item {
        Item::Enum(item) if is(&item.ident, name) => {
            item.variants.into_iter().filter_map(|variant| message(&variant.attrs)).collect()
        }
        Item::Struct(item) if is(&item.ident, name) => message(&item.attrs).into_iter().collect(),
        _ => Vec::new(),
    };
    Ok(file.items.into_iter().flat_map(of_item).collect())
}

fn is(ident: &Ident, name: &str) -> bool {
    ident == name
}

/// The message and the comment; none if the message is another error's.
fn message(attributes: &[Attribute]) -> Option<(String, String)> {
    let error = attributes.iter().find(|attribute| attribute.path().is_ident("error"))?;
    let text = error.parse_args_with(|input: syn::parse::ParseStream| {
        let text: LitStr = input.parse()?;
        // What is formatted does not matter.
        input.parse::<proc_macro2::TokenStream>()?;
        Ok(text.value())
    });
    let text = with_gaps(&text.ok()?);
    let has_words = text.chars().filter(|c| c.is_alphabetic()).count() > 10;
    has_words.then(|| (text, comment(attributes)))
}

/// The text of a format, with … for what is formatted.
fn with_gaps(format: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for c in format.chars() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                text.push('…');
            }
            c if depth == 0 => text.push(c),
            _ => {}
        }
    }
    text.replace('\n', " ").replace("……", "…")
}

/// The first paragraph of a comment in the source, as plain text.
fn comment(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => Some(line.value().trim().to_owned()),
            _ => None,
        },
        _ => None,
    });
    let lines: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    lines.join(" ").replace("[`", "`").replace("`]", "`")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
        enum Error {
            /// It is not there,
            /// see [`Other`].
            ///
            /// More.
            #[error("no {what:?} in {}: {why}; look into {}", file.display(), 1)]
            Missing { what: String, why: String },
            #[error(transparent)]
            Other(#[from] Alone),
            #[error("{0}")]
            Any(String),
        }
        #[error("this stands alone")]
        struct Alone;
    "#;

    #[test]
    fn messages_have_gaps_and_meanings() {
        let found = messages(SOURCE, "Error").unwrap();
        let expected = ("no … in …: …; look into …", "It is not there, see `Other`.");
        assert_eq!(found, [(expected.0.to_owned(), expected.1.to_owned())]);
        let found = messages(SOURCE, "Alone").unwrap();
        assert_eq!(found, [("this stands alone".to_owned(), String::new())]);
        assert!(messages(SOURCE, "None").unwrap().is_empty());
    }
}
