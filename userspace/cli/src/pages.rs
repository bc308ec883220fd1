//! The files that packages install beside a program: manual pages and shell completions.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

/// The parts of a program's manual that are not about its options.
pub struct Manual {
    /// 1 for commands of users, 8 for those of administrators.
    pub section: &'static str,
    /// Sections of the program's own page, behind its options.
    pub sections: &'static [Section],
    /// Sections of the page on the program's file of options; none if it has no such page.
    pub of_file: Option<&'static [Section]>,
}

/// A section: its heading, and pairs of a term and its description.
pub type Section = (&'static str, &'static [(&'static str, &'static str)]);

/// Writes `<program>.<section>` and, for each command, `<program>-<command>.<section>` into the
/// folder, `<program>.toml.5` if there is such a page, and the completions for bash, zsh and fish.
pub fn write<C: CommandFactory>(folder: &Path, manual: &Manual) -> io::Result<()> {
    let mut command = C::command().disable_help_subcommand(true);
    command.build();
    let name = command.get_name().to_owned();
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        Man::new(inner.clone()).section(manual.section).generate_to(folder)?;
    }
    let page = folder.join(format!("{name}.{}", manual.section));
    fs::write(page, own_page(&command, manual)?)?;
    if let Some(sections) = manual.of_file {
        fs::write(folder.join(format!("{name}.toml.5")), file_page(&command, manual, sections)?)?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut C::command(), &name, folder)?;
    }
    Ok(())
}

/// The program's own page: its options as clap describes them, then the manual's sections.
fn own_page(command: &Command, manual: &Manual) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).section(manual.section);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    man.render_subcommands_section(&mut page)?;
    add(manual.sections, &mut page)?;
    man.render_version_section(&mut page)?;
    Ok(page)
}

/// The page on the file of options. Its keys are the options of the command line.
fn file_page(command: &Command, manual: &Manual, sections: &[Section]) -> io::Result<Vec<u8>> {
    let name = command.get_name();
    let title = format!("{name}.toml");
    let source = format!("{name} {}", command.get_version().unwrap_or_default());
    let mut roff = Roff::new();
    roff.control("TH", [title.as_str(), "5", "", source.as_str()]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{title} - options of {name}"))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([
        roman("The file of "),
        bold("--config"),
        roman(", in TOML. Each key is the name of an option of "),
        bold(name),
        roman(format!(
            "({}). Options on the command line override those in the file. A key that is unknown, \
             or a value that the option does not take, is an error.",
            manual.section
        )),
    ]);
    roff.control("SH", ["KEYS"]);
    for (key, option) in keys(command) {
        add_key(key, option, &mut roff);
    }
    let mut page = Vec::new();
    roff.to_writer(&mut page)?;
    add(sections, &mut page)?;
    Ok(page)
}

/// The options that a file may set, by name: not `config` itself, nor those for interactive use.
pub(crate) fn keys(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let options = command.get_arguments().filter(|option| !option.is_hide_set());
    let named = options.filter_map(|option| Some((option.get_long()?, option)));
    named.filter(|(name, _)| !["config", "help", "version"].contains(name))
}

/// What the file has as the option's value.
pub(crate) fn kind(option: &Arg) -> &'static str {
    match option.get_action() {
        clap::ArgAction::Append => "a list of strings",
        action if action.takes_values() => "a string or an integer",
        _ => "true or false",
    }
}

/// The option's default values; a flag has none.
pub(crate) fn defaults(option: &Arg) -> Vec<String> {
    let values = option.get_default_values().iter().map(|value| value.to_string_lossy());
    values.filter(|_| option.get_action().takes_values()).map(Into::into).collect()
}

fn add_key(name: &str, option: &Arg, roff: &mut Roff) {
    roff.control("TP", []);
    roff.text([bold(name), roman(" = "), italic(kind(option))]);
    // clap takes away the full stop.
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    let mut sentences = format!("{}.", help.trim_end_matches('.'));
    let values = option.get_possible_values().into_iter().map(|value| value.get_name().to_owned());
    let values: Vec<_> = values.filter(|_| option.get_action().takes_values()).collect();
    if !values.is_empty() {
        sentences += &format!(" One of {}.", values.join(", "));
    }
    let defaults = defaults(option);
    if !defaults.is_empty() {
        sentences += &format!(" [default: {}]", defaults.join(", "));
    }
    roff.text([roman(sentences)]);
}

/// Adds sections to a page.
fn add(sections: &[Section], page: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    for (heading, entries) in sections {
        roff.control("SH", [*heading]);
        for (term, said) in *entries {
            roff.control("TP", []);
            roff.text([bold(*term)]);
            roff.text([roman(*said)]);
        }
    }
    roff.to_writer(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Serves.
    #[derive(Parser)]
    #[command(name = "server", version = "1.2")]
    struct Server {
        /// File with options.
        #[arg(long)]
        config: Option<String>,
        /// A port; give it once for each.
        #[arg(long)]
        port: Vec<u32>,
        /// How many there are.
        #[arg(long, default_value_t = 7)]
        slots: u32,
        /// How it ends.
        #[arg(long, value_parser = ["soon", "late"])]
        end: Option<String>,
        /// Say nothing.
        #[arg(long)]
        quiet: bool,
        #[command(subcommand)]
        command: Option<Inner>,
    }

    #[derive(clap::Subcommand)]
    enum Inner {
        /// Says how it is.
        Status,
    }

    const MANUAL: Manual = Manual {
        section: "8",
        sections: &[("FILES", &[("/etc/server.toml", "Its options.")])],
        of_file: Some(&[("EXAMPLES", &[("quiet = true", "Says nothing.")])]),
    };

    /// A page without roff's own lines, as `man` has its text.
    fn page(name: &str) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        write::<Server>(folder.path(), &MANUAL).expect("written");
        let text = fs::read_to_string(folder.path().join(name)).expect(name);
        text.replace("\\-", "-").replace("\\fB", "").replace("\\fI", "").replace("\\fR", "")
    }

    #[test]
    fn a_programs_page_is_of_its_section_and_has_what_the_manual_says() {
        let text = page("server.8");
        assert!(text.contains("\n.TH server 8 "), "{text}");
        assert!(text.contains("\n.SH FILES\n.TP\n/etc/server.toml\nIts options.\n"), "{text}");
        assert!(text.contains("server-status(8)"), "{text}");
        assert!(page("server-status.8").contains(".TH server-status 8 "));
    }

    #[test]
    fn the_files_page_has_all_options_but_those_for_people() {
        let text = page("server.toml.5");
        for part in [
            "\n.TH server.toml 5 ",
            "\nport = a list of strings\nA port; give it once for each.\n",
            "\nslots = a string or an integer\nHow many there are. [default: 7]\n",
            "\nend = a string or an integer\nHow it ends. One of soon, late.\n",
            "\nquiet = true or false\nSay nothing.\n",
            "\n.SH EXAMPLES\n.TP\nquiet = true\nSays nothing.\n",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        for key in ["\nconfig = ", "\nhelp = ", "\nversion = "] {
            assert!(!text.contains(key), "{text}");
        }
    }
}
