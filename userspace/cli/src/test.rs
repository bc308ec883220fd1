//! For the tests of each program: every wrong argument that clap can detect gives an error of one
//! line.

use clap::{Arg, Command, CommandFactory, Parser};

use crate::{one_line, parse_from};

/// Only an option that takes any text takes this.
const NONSENSE: &str = "\u{3b1}=/no such\n\nthing";

/// Makes every mistake that can be made with any one option of any command, and checks the error.
///
/// # Panics
///
/// If an error has several lines or does not name the option, or if a mistake is accepted.
pub fn every_mistake_is_one_line<C: Parser>() {
    C::command().debug_assert();
    check::<C>(&C::command(), &[]);
}

fn check<C: Parser + CommandFactory>(command: &Command, path: &[&str]) {
    let takes_anything = command.get_positionals().any(Arg::is_trailing_var_arg_set);
    let mistakes = [vec!["--no-such-option"], vec!["--no-such-option=1"], vec!["-\u{3b1}"]];
    for mistake in mistakes.iter().filter(|_| !takes_anything) {
        refuses::<C>(path, mistake, mistake[0].split('=').next().unwrap_or_default());
    }
    for argument in command.get_arguments().filter(|argument| !argument.is_positional()) {
        let Some(name) = argument.get_long() else { continue };
        let option = format!("--{name}");
        if argument.get_action().takes_values() {
            refuses::<C>(path, &[&option], &option);
            // An option that takes any text accepts it.
            if let Err(error) = parse_from::<C>(line(path, &[&format!("{option}={NONSENSE}")])) {
                assert_one_line(&error, &option);
            }
        } else {
            refuses::<C>(path, &[&format!("{option}=1")], &option);
        }
    }
    for subcommand in command.get_subcommands() {
        check::<C>(subcommand, &[path, &[subcommand.get_name()]].concat());
    }
}

fn line<'a>(path: &[&'a str], arguments: &[&'a str]) -> Vec<&'a str> {
    [&["program"], path, arguments].concat()
}

fn refuses<C: Parser>(path: &[&str], arguments: &[&str], named: &str) {
    match parse_from::<C>(line(path, arguments)) {
        Ok(_) => panic!("{path:?} takes {arguments:?}"),
        Err(error) => assert_one_line(&error, named),
    }
}

fn assert_one_line(error: &clap::Error, named: &str) {
    let text = one_line(error);
    assert!(!text.contains('\n') && text.ends_with(" (see --help)"), "{text:?}");
    // Help and the version need no words.
    assert!(
        !error.use_stderr() || text.contains(named) || text.contains("required"),
        "{named}: {text:?}"
    );
}
