//! The common part of all programs' command lines: an error about arguments is one line, options
//! may be in a file, `--version` names the commit, and the program goes on when its output is
//! closed.

#![forbid(unsafe_code)]

pub mod config;
pub mod markdown;
pub mod pages;
pub mod reference;
pub mod size;
pub mod test;
pub mod tls;
pub mod version;

use std::fmt::Display;
use std::io::Write;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Command, Parser};

/// The program's arguments. Ends the process if they ask for help or the version, and if they are
/// wrong, with one line on standard error and exit code 2.
pub fn parse<C: Parser>() -> C {
    parse_from(std::env::args_os()).unwrap_or_else(|error| end(&error)).0
}

/// The parsed arguments, the first of which is the program's name, and where clap took each from.
pub fn parse_from<C: Parser>(
    arguments: impl IntoIterator<Item: Into<std::ffi::OsString> + Clone>,
) -> Result<(C, ArgMatches), clap::Error> {
    let mut command = without_pages(C::command());
    let matches = command.try_get_matches_from_mut(arguments);
    let matches = matches.map_err(|error| without_hidden(error, &command))?;
    Ok((C::from_arg_matches(&matches)?, matches))
}

/// Removes hidden commands from the message about a missing command: clap names them, too.
fn without_hidden(mut error: clap::Error, command: &Command) -> clap::Error {
    let is_hidden = |name: &str| command.find_subcommand(name).is_some_and(Command::is_hide_set);
    if let Some(ContextValue::Strings(names)) = error.get(ContextKind::ValidSubcommand) {
        let shown = names.iter().filter(|name| !is_hidden(name)).cloned().collect();
        error.insert(ContextKind::ValidSubcommand, ContextValue::Strings(shown));
    }
    error
}

/// Ends the process as [`parse`] does.
pub fn end(error: &clap::Error) -> ! {
    if error.use_stderr() {
        eprintln!("error: {}", one_line(error));
    } else {
        let _ = error.print();
    }
    std::process::exit(error.exit_code());
}

/// Clap's message in one line: the mistake, the allowed values and clap's tip, without the usage.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    // Search from the end: the value comes first and may contain anything.
    let end = |text: &str, mark| text.rfind(mark).unwrap_or(text.len());
    let complaint = &text[..end(&text, "\n\nFor more information")];
    let complaint = &complaint[..end(complaint, "\n\nUsage: ")];
    let words: Vec<&str> = complaint.trim_start_matches("error: ").split_whitespace().collect();
    let complaint = WORDS_OF_THE_LIBRARY.iter().fold(words.join(" "), |said, (theirs, ours)| {
        match said.strip_suffix(theirs) {
            Some(start) => format!("{start}{ours}"),
            None => said,
        }
    });
    format!("{complaint} (see --help)")
}

/// How the standard library refuses text that is no number, and what is said instead.
const WORDS_OF_THE_LIBRARY: [(&str, &str); 3] = [
    ("invalid digit found in string", "a whole number is allowed"),
    ("cannot parse integer from empty string", "a whole number is allowed"),
    ("invalid float literal", "a number is allowed"),
];

/// Makes a missing command an error like others, where clap would print the help.
fn without_pages(command: Command) -> Command {
    command.arg_required_else_help(false).mut_subcommands(without_pages)
}

/// Prints a line on standard output. If standard output is closed, the program goes on.
pub fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// [`say`] with the arguments of `println`.
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => { $crate::say(format_args!($($arguments)*)) };
}
