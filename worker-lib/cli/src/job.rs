//! Which job, and which rank in it: an option for each setting, over the environment.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use switchml_worker::control::{self, Access, AggregatorStatus};
use switchml_worker::settings::{Form, Group, SETTINGS, Setting, Value};
use switchml_worker::{Builder, Communicator, Settings};

use super::Failure;

/// Longest wait for the aggregator's answer to a question about itself.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of a rank that looks at the way to an aggregator or to other ranks, and makes no
/// calls of a user's.
const OF_WAY: [&str; 11] = [
    "aggregator",
    "meeting",
    "rank",
    "world_size",
    "join_timeout",
    "tls_fingerprint",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "token_file",
    "rdma",
];

/// Options for all settings of a rank.
pub type Job = Options<true>;
/// Options for the settings in [`OF_WAY`].
pub type Way = Options<false>;

/// Options for settings: for all of them, or for those in [`OF_WAY`].
pub struct Options<const ALL: bool>(Settings);

impl<const ALL: bool> Options<ALL> {
    /// The settings of the environment, overridden by the options.
    pub fn settings(&self) -> Result<Builder, Failure> {
        let settings = Communicator::builder().env().map_err(Failure::joining)?;
        Ok(settings.with(self.0.clone()))
    }

    fn all() -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().filter(|setting| ALL || OF_WAY.contains(&setting.name))
    }
}

impl<const ALL: bool> Args for Options<ALL> {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config").long("config").value_name("FILE").help(
            "TOML file with options of this command, such as `aggregator = \"10.0.0.254\"`; \
             options given here override it, and it overrides the environment",
        );
        command.arg(file.value_parser(value_parser!(PathBuf))).args(Self::all().map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const ALL: bool> FromArgMatches for Options<ALL> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Settings::default();
        for Setting { name, .. } in Self::all() {
            if let Some(value) = matches.get_one::<Value>(name) {
                settings.put(name, value.clone());
            }
        }
        Ok(Self(settings))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The option for a setting.
fn option(setting: &'static Setting) -> Arg {
    let Setting { name, form, variable, group } = *setting;
    let mut help = format!("{} [env: {}]", variable.meaning.trim_end_matches('.'), variable.name);
    if !variable.default.is_empty() {
        help += &format!(" [default: {}]", variable.default);
    }
    let option = Arg::new(name).long(name.replace('_', "-")).value_name(match form {
        Form::Text(name) => name,
        Form::File => "FILE",
        Form::Number(..) => "N",
        Form::Numbers => "N,N",
        Form::Seconds => "SECONDS",
        Form::Switch => "0|1",
    });
    let option = option.help(help).value_parser(move |text: &str| form.parse(text));
    match group {
        // Options that most users need stand above the headings.
        Group::Job => option,
        Group::Access => option.help_heading(switchml_cli::tls::HEADING),
        Group::Waits => option.help_heading("Waits"),
        Group::Tuning => option.help_heading("Tuning"),
    }
}

/// The aggregator's status.
pub fn status(aggregator: &Access) -> Result<AggregatorStatus, Failure> {
    control::status(aggregator.clone(), STATUS_TIMEOUT)
        .map_err(|error| Failure::joining(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use switchml_worker::settings::setting;

    fn given(arguments: &[&str]) -> Result<Settings, clap::Error> {
        let command = Job::augment_args(Command::new("bench").no_binary_name(true));
        Ok(Job::from_arg_matches(&command.try_get_matches_from(arguments)?)?.0)
    }

    #[test]
    fn every_form_of_values_has_an_option() {
        let arguments = [
            "--aggregator=a,b",
            "--tls-ca=/ca",
            "--rank=3",
            "--weights=2,1",
            "--deadline=0.5",
            "--local-sums=0",
        ];
        let expected = Settings {
            aggregator: Some("a,b".to_owned()),
            tls_ca: Some("/ca".into()),
            rank: Some(3),
            weights: Some(vec![2, 1]),
            deadline: Some(Duration::from_millis(500)),
            local_sums: Some(false),
            ..Settings::default()
        };
        assert_eq!(given(&arguments).unwrap(), expected);
        assert_eq!(given(&[]).unwrap(), Settings::default());
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let error = given(&["--data-threads", "9"]).unwrap_err().to_string();
        assert!(error.contains("'--data-threads <N>': 1 to 8 are allowed"), "{error}");
    }

    #[test]
    fn a_way_has_settings_that_are_there() {
        assert!(OF_WAY.iter().all(|name| setting(name).is_some()));
    }
}
