//! A program's part of the pages in docs/reference, in Markdown: its command line, and its file of
//! options. `cargo xtask gen` joins the parts of all programs.

use clap::{Arg, Command, CommandFactory};

use crate::markdown::{self, code, prose};
use crate::pages::{Manual, Section, defaults, keys, kind};

/// Sections of a manual that other pages have.
const ELSEWHERE: [&str; 2] = ["ENVIRONMENT", "SEE ALSO"];

/// The command line: the options of the program and of each command, then the manual's sections.
pub fn command_line<C: CommandFactory>(manual: &Manual) -> String {
    let mut command = C::command().disable_help_subcommand(true).disable_help_flag(true);
    command.build();
    let name = command.get_name().to_owned();
    let mut text = format!("## {name}\n\n{}", of_command(&command));
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        text += &format!("### {name} {}\n\n{}", inner.get_name(), of_command(inner));
    }
    let sections = manual.sections.iter().filter(|(heading, _)| !ELSEWHERE.contains(heading));
    text + &sections.map(|section| of_section(section, &name)).collect::<String>()
}

/// The keys of the program's file of options, then the sections of the manual page on it.
pub fn file<C: CommandFactory>(manual: &Manual) -> String {
    let mut command = C::command();
    command.build();
    let name = format!("{}.toml", command.get_name());
    let rows = keys(&command).map(|(key, option)| {
        [code(key), kind(option).to_owned(), default(option), meaning(option)]
    });
    let keys = markdown::table(["key", "value", "default", "meaning"], rows);
    let sections = manual.of_file.unwrap_or_default().iter();
    let sections = sections.filter(|(heading, _)| !ELSEWHERE.contains(heading));
    keys + &sections.map(|section| of_section(section, &name)).collect::<String>()
}

/// What a command does, and a table of options for each heading of its help.
fn of_command(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut text = format!("{}\n\n", markdown::wrapped(&sentence(&about)));
    let options = || {
        let options = command.get_arguments().filter(|option| !option.is_hide_set());
        options.filter(|option| !["help", "version"].contains(&option.get_id().as_str()))
    };
    let mut headings: Vec<_> = options().map(Arg::get_help_heading).collect();
    // As in the help: options without a heading come first.
    headings.sort_by_key(Option::is_some);
    let mut written = Vec::new();
    for heading in headings {
        if written.contains(&heading) {
            continue;
        }
        written.push(heading);
        let rows = options().filter(|option| option.get_help_heading() == heading).map(row);
        text += &heading.map(|heading| format!("**{heading}**\n\n")).unwrap_or_default();
        text += &markdown::table(["option", "default", "variable", "meaning"], rows);
    }
    text
}

fn row(option: &Arg) -> [String; 4] {
    [usage(option), default(option), note(option, "env"), meaning(option)]
}

/// The option as it is given: `-b`, `--minbytes <SIZE>`.
fn usage(option: &Arg) -> String {
    let value = option.get_value_names().unwrap_or_default().first();
    let value = value.filter(|_| option.get_action().takes_values());
    let value = value.map(|name| format!(" <{name}>")).unwrap_or_default();
    match (option.get_short(), option.get_long()) {
        (Some(short), Some(long)) => format!("`-{short}`, `--{long}{value}`"),
        (None, Some(long)) => format!("`--{long}{value}`"),
        _ => code(value.trim()),
    }
}

/// The default: clap's, or that which the help has in words.
fn default(option: &Arg) -> String {
    let values = defaults(option);
    match (values.is_empty(), option.is_required_set()) {
        (false, _) => code(&values.join(", ")),
        (true, true) => "required".to_owned(),
        (true, false) => note(option, "default"),
    }
}

/// A remark in the help, such as `[env: NAME]`.
fn note(option: &Arg, kind: &str) -> String {
    let (_, notes) = parts(option);
    let of_kind = |note: &String| note.strip_prefix(kind)?.strip_prefix(": ").map(prose);
    notes.iter().find_map(of_kind).unwrap_or_default()
}

/// The help without remarks, and the values.
fn meaning(option: &Arg) -> String {
    let (help, _) = parts(option);
    let values = option.get_possible_values().into_iter().map(|value| {
        let help = value.get_help().map(|help| format!(" ({})", prose(&help.to_string())));
        code(value.get_name()) + &help.unwrap_or_default()
    });
    let values: Vec<_> = values.filter(|_| option.get_action().takes_values()).collect();
    match values.is_empty() {
        true => sentence(&help),
        false => format!("{} Values: {}.", sentence(&help), values.join("; ")),
    }
}

/// The help, and the remarks in brackets at its end.
fn parts(option: &Arg) -> (String, Vec<String>) {
    let mut help = option.get_help().map(ToString::to_string).unwrap_or_default();
    let mut notes = Vec::new();
    while let Some((before, note)) =
        help.strip_suffix(']').and_then(|start| start.rsplit_once(" ["))
    {
        notes.push(note.to_owned());
        help = before.to_owned();
    }
    (help, notes)
}

/// Prose with a full stop, which clap takes away.
fn sentence(text: &str) -> String {
    format!("{}.", prose(text).trim_end_matches('.'))
}

fn of_section((heading, entries): &Section, of: &str) -> String {
    let heading = format!("{}{}", &heading[..1], heading[1..].to_lowercase());
    let rows = entries.iter().map(|(term, said)| [code(term), prose(said)]);
    format!("### {heading} of {of}\n\n{}", markdown::table(["", "meaning"], rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Parser, Subcommand, ValueEnum};

    /// Serves.
    #[derive(Parser)]
    #[command(name = "server")]
    struct Server {
        /// File with options.
        #[arg(long)]
        config: Option<String>,
        /// How many there are; see --end [default: what fits] [env: MAX_SLOTS, or RANK]
        #[arg(long, value_name = "N", help_heading = "Memory")]
        slots: Option<u32>,
        /// How it ends.
        #[arg(short, long, default_value = "late")]
        end: End,
        #[command(subcommand)]
        command: Option<Inner>,
    }

    #[derive(Clone, Copy, ValueEnum)]
    enum End {
        /// At once | now
        Soon,
        Late,
    }

    #[derive(Subcommand)]
    enum Inner {
        /// Says how it is
        Status {
            /// Name of it
            job: String,
        },
        #[command(hide = true)]
        Pages,
    }

    const MANUAL: Manual = Manual {
        section: "8",
        sections: &[("EXIT STATUS", &[("0", "Done.")]), ("SEE ALSO", &[("man(1)", "More.")])],
        of_file: Some(&[("EXAMPLES", &[("slots = 1", "One.")])]),
    };

    #[test]
    fn the_command_line_has_options_by_heading_commands_and_sections() {
        let expected = "\
## server

Serves.

| option | default | variable | meaning |
|---|---|---|---|
| `--config <CONFIG>` |  |  | File with options. |
| `-e`, `--end <END>` | `late` |  | How it ends. Values: `soon` (At once \\| now); `late`. |

**Memory**

| option | default | variable | meaning |
|---|---|---|---|
| `--slots <N>` | what fits | `MAX_SLOTS`, or `RANK` | How many there are; see `--end`. |

### server status

Says how it is.

| option | default | variable | meaning |
|---|---|---|---|
| `<JOB>` | required |  | Name of it. |

### Exit status of server

|  | meaning |
|---|---|
| `0` | Done. |

";
        assert_eq!(command_line::<Server>(&MANUAL), expected);
    }

    #[test]
    fn the_file_has_all_options_but_its_own() {
        let text = file::<Server>(&MANUAL);
        let row =
            "| `slots` | a string or an integer | what fits | How many there are; see `--end`. |";
        assert!(text.contains(row), "{text}");
        assert!(!text.contains("config"), "{text}");
        assert!(text.contains("### Examples of server.toml\n"), "{text}");
    }
}
