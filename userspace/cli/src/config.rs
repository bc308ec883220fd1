//! Options from a file, in TOML, with the names that they have on the command line:
//!
//! ```toml
//! iface = ["eth1", "eth2"]
//! slots = 16384
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, Parser};
use toml::{Table, Value};

use crate::{one_line, parse_from};

/// Parses arguments as [`parse_from`] does. If the program's or its command's `--config` names a
/// file, the options in the file count as given, too; those on the command line take precedence.
pub fn parse_with_file<C: Parser>(
    arguments: impl IntoIterator<Item: Into<OsString> + Clone>,
) -> Result<(C, ArgMatches), clap::Error> {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let Some(Named { path, command, given, at }) = named::<C>(&arguments) else {
        return parse_from(arguments);
    };
    let refused =
        |why| C::command().error(ErrorKind::InvalidValue, format!("--config {path:?}: {why}"));
    let options = read(&path, &command, |option| {
        given.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine)
    });
    arguments.splice(at..at, options.map_err(refused)?);
    parse_from(arguments).map_err(|error| {
        // The mistake may be in the file or on the command line; the message names the file and the
        // option.
        let line = one_line(&error).replace(" (see --help)", "");
        let told = format!("{line} (options of {path:?} included)");
        if error.use_stderr() { C::command().error(error.kind(), told) } else { error }
    })
}

/// A file that the command line names.
struct Named {
    path: PathBuf,
    /// The program or command whose options are in the file.
    command: Command,
    /// The other arguments.
    given: ArgMatches,
    /// Position among the arguments at which the file's options may stand.
    at: usize,
}

/// The file that the command line names. Mistakes on the command line are found later, when all is
/// parsed.
fn named<C: CommandFactory>(arguments: &[OsString]) -> Option<Named> {
    let mut command = C::command();
    let mut given = command.clone().ignore_errors(true).try_get_matches_from(arguments).ok()?;
    let mut at = 1;
    loop {
        if let Ok(Some(path)) = given.try_get_one::<PathBuf>("config") {
            return Some(Named { path: path.clone(), command, given, at });
        }
        let (name, inner) = given.remove_subcommand()?;
        at += 1 + arguments[at..].iter().position(|argument| *argument == *name)?;
        command = command.find_subcommand(&name)?.clone();
        given = inner;
    }
}

/// The options in the file as arguments, except those that the command line has already.
fn read(
    path: &Path,
    command: &Command,
    is_given: impl Fn(&Arg) -> bool,
) -> Result<Vec<OsString>, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        format!("line {line}: {}", error.message())
    })?;
    let mut arguments = Vec::new();
    for (name, value) in &table {
        let option = options(command)
            .find(|option| option.get_long() == Some(name))
            .ok_or_else(|| unknown(name, command))?;
        if !is_given(option) {
            arguments.extend(given_as(option, name, value)?);
        }
    }
    Ok(arguments)
}

/// The options that a file may set.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|option| option.get_long() != Some("config"))
}

fn unknown(name: &str, command: &Command) -> String {
    let all: Vec<_> = options(command).filter_map(Arg::get_long).collect();
    format!("unknown option {name:?}; options are {}", all.join(", "))
}

/// An option of the file as the command line has it.
fn given_as(option: &Arg, name: &str, value: &Value) -> Result<Vec<OsString>, String> {
    let argument = |value: &dyn std::fmt::Display| OsString::from(format!("--{name}={value}"));
    Ok(match value {
        Value::String(text) => vec![argument(text)],
        Value::Integer(number) => vec![argument(number)],
        Value::Boolean(true) if !option.get_action().takes_values() => {
            vec![format!("--{name}").into()]
        }
        Value::Boolean(false) if !option.get_action().takes_values() => Vec::new(),
        Value::Array(values) => {
            let each = values.iter().map(|value| given_as(option, name, value));
            each.collect::<Result<Vec<_>, _>>()?.concat()
        }
        other => {
            return Err(format!(
                "{name} is a {}; give a string, an integer or a list of them, or true or false to \
                 an option without a value",
                other.type_str()
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser, PartialEq)]
    struct Options {
        #[arg(long)]
        config: Option<PathBuf>,
        #[arg(long = "iface")]
        interfaces: Vec<String>,
        #[arg(long, required = true)]
        name: String,
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=9), default_value_t = 5)]
        slots: u32,
        #[arg(long)]
        quiet: bool,
    }

    /// A program with options of its commands alone.
    #[derive(Debug, Parser, PartialEq)]
    enum Commands {
        Count(Options),
        Look { place: String },
    }

    /// The options of a file with this text and of this command line, or the line that says why
    /// not.
    fn parse(text: &str, further: &[&str]) -> Result<Options, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(&file, text).expect("written");
        let path = file.path().to_str().expect("text");
        let parsed = parse_with_file::<Options>([&["program", "--config", path], further].concat());
        parsed.map(|(options, _)| Options { config: None, ..options }).map_err(|error| {
            assert_eq!(error.exit_code(), 2);
            let line = one_line(&error);
            assert!(!line.contains('\n') && line.ends_with(" (see --help)"), "{line:?}");
            line.replace(path, "FILE")
        })
    }

    fn options(interfaces: &[&str], name: &str, slots: u32, quiet: bool) -> Options {
        let interfaces = interfaces.iter().map(|&name| name.to_owned()).collect();
        Options { config: None, interfaces, name: name.to_owned(), slots, quiet }
    }

    #[test]
    fn the_file_has_options_and_the_command_line_goes_before_it() {
        let file = "iface = ['p0', 'p1']\nname = 'a'\nslots = 7\nquiet = true\n";
        assert_eq!(parse(file, &[]), Ok(options(&["p0", "p1"], "a", 7, true)));
        let given = ["--iface", "p2", "--slots=8", "--name", "b"];
        assert_eq!(parse(file, &given), Ok(options(&["p2"], "b", 8, true)));
        let few = parse("name = 'a'\nquiet = false\n", &[]);
        assert_eq!(few, Ok(options(&[], "a", 5, false)));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_one_line() {
        for (file, told) in [
            ("nam = 'a'", "--config \"FILE\": unknown option \"nam\"; options are iface, name, "),
            ("config = 'a'", "--config \"FILE\": unknown option \"config\"; "),
            ("name = 'a'\nslots = ", "--config \"FILE\": line 2: "),
            ("name = 1.5", "--config \"FILE\": name is a float; give a string, "),
            ("[name]\na = 1", "--config \"FILE\": name is a table; give a string, "),
            ("name = 'a'\nslots = 10", "invalid value '10' for '--slots <SLOTS>': 10 is not in 1"),
            ("name = 'a'\nquiet = 1", "unexpected value '1' for '--quiet' found"),
            ("slots = 1", "the following required arguments were not provided: --name <NAME>"),
        ] {
            let line = parse(file, &[]).expect_err("refused");
            assert!(line.starts_with(told), "{line}");
            assert!(line.contains("FILE"), "{line}");
        }
        let none = parse_with_file::<Options>(["program", "--config", "/no/such/file"]);
        let line = one_line(&none.expect_err("no such file"));
        assert!(line.starts_with("--config \"/no/such/file\": No such file"), "{line}");
    }

    #[test]
    fn a_command_has_a_file_of_its_own_options() {
        let temporary = tempfile::NamedTempFile::new().expect("a file");
        let path = temporary.path();
        fs::write(path, "iface = ['p0']\nname = 'a'\nslots = 7\n").expect("written");
        let file = path.to_str().expect("text");
        let parse = |arguments: &[&str]| {
            let parsed = parse_with_file::<Commands>([&["program"], arguments].concat());
            parsed.map(|(command, _)| command).map_err(|error| one_line(&error))
        };
        // A value with the same name as the command is not taken for the command.
        let given = ["count", "--slots", "8", "--config", file, "--iface", "count"];
        let all = Options { config: Some(path.to_owned()), ..options(&["count"], "a", 8, false) };
        assert_eq!(parse(&given), Ok(Commands::Count(all)));
        let place = "count".to_owned();
        assert_eq!(parse(&["look", "count"]), Ok(Commands::Look { place }));
        let line = parse(&["look", "here", "--config", file]).expect_err("it has no such option");
        assert!(line.starts_with("unexpected argument '--config' found"), "{line}");
        fs::write(path, "place = 'here'\n").expect("written");
        let line = parse(&["count", "--config", file]).expect_err("another command's option");
        let told = ": unknown option \"place\"; options are iface, name, slots, quiet";
        assert!(line.contains(told), "{line}");
    }
}
