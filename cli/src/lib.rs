//! What the command lines of all programs have in common: wrong arguments are told in one line, and
//! a reader that has gone away is no failure.

#![forbid(unsafe_code)]

pub mod test;

use std::fmt::Display;
use std::io::Write;

use clap::{ArgMatches, Command, Parser};

/// The program's arguments. Ends the process where they ask for help or the version, and where they
/// are wrong: with one line on standard error, and exit code 2.
pub fn parse<C: Parser>() -> C {
    parse_from(std::env::args_os()).unwrap_or_else(|error| end(&error)).0
}

/// These arguments, the first being the program's name, and what clap knows of where they come
/// from.
///
/// # Errors
///
/// What clap has against them.
pub fn parse_from<C: Parser>(
    arguments: impl IntoIterator<Item: Into<std::ffi::OsString> + Clone>,
) -> Result<(C, ArgMatches), clap::Error> {
    let matches = without_pages(C::command()).try_get_matches_from(arguments)?;
    Ok((C::from_arg_matches(&matches)?, matches))
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

/// What clap spreads over lines: the complaint, with what is allowed and clap's tip, without the
/// reminder of the usage.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    // From the end: there may be anything in a value, which comes first.
    let end = |text: &str, mark| text.rfind(mark).unwrap_or(text.len());
    let complaint = &text[..end(&text, "\n\nFor more information")];
    let complaint = &complaint[..end(complaint, "\n\nUsage: ")];
    let words: Vec<&str> = complaint.trim_start_matches("error: ").split_whitespace().collect();
    format!("{} (see --help)", words.join(" "))
}

/// A command that is missing is a wrong argument like others, not a reason to print a page.
fn without_pages(command: Command) -> Command {
    command.arg_required_else_help(false).mut_subcommands(without_pages)
}

/// Prints a line on standard output. If nobody reads that any more, what the program does goes on.
pub fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// [`say`] with the arguments of `println`.
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => { $crate::say(format_args!($($arguments)*)) };
}
