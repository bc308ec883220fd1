//! The forms that values of settings have.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use switchml_worker_core::engine::TIMEOUT_CEILING;

use crate::error::Error;

/// Shortest wait: a shorter one would be over before a rank has asked which ranks are missing.
const SHORTEST_WAIT: Duration = TIMEOUT_CEILING;

/// The form of a setting's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text: its name in a command line.
    Text(&'static str),
    /// A file's path.
    File,
    /// A whole number, with the least and the most that is allowed, and an error's words for it.
    Number(u32, u32, &'static str),
    /// Whole numbers, each at least 1; in text, with commas between them.
    Numbers,
    /// A time in seconds, at least 0.1.
    Seconds,
    /// Yes or no; in text, 1 or 0.
    Switch,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Form::Text`].
    Text(String),
    /// Of [`Form::File`].
    File(PathBuf),
    /// Of [`Form::Number`].
    Number(u32),
    /// Of [`Form::Numbers`].
    Numbers(Vec<u32>),
    /// Of [`Form::Seconds`].
    Seconds(Duration),
    /// Of [`Form::Switch`].
    Switch(bool),
}

impl Form {
    /// What an error says of the values that are allowed.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Text(_) => "text is allowed",
            Self::File => "a file is allowed",
            Self::Number(_, _, rule) => rule,
            Self::Numbers => "give numbers of 1 or more, with commas between them",
            Self::Seconds => "it must be 0.1 s or more",
            Self::Switch => "0 and 1 are allowed",
        }
    }

    /// The value that a text stands for.
    ///
    /// # Errors
    /// What is allowed, if the text stands for none.
    pub fn parse(self, text: &str) -> Result<Value, &'static str> {
        let number = |text: &str| text.trim().parse().ok();
        let value = match self {
            Self::Text(_) => Some(Value::Text(text.to_owned())),
            Self::File => Some(Value::File(text.into())),
            Self::Number(..) => number(text).map(Value::Number),
            Self::Numbers => text.split(',').map(number).collect::<Option<_>>().map(Value::Numbers),
            Self::Seconds => {
                let seconds = text.parse().ok().and_then(|seconds| Self::seconds(seconds).ok());
                seconds.map(Value::Seconds)
            }
            Self::Switch => match text {
                "0" => Some(Value::Switch(false)),
                "1" => Some(Value::Switch(true)),
                _ => None,
            },
        };
        value.filter(|value| self.allows(value)).ok_or(self.rule())
    }

    /// The time of a number of seconds.
    ///
    /// # Errors
    /// What is allowed, if the number is no time.
    pub fn seconds(seconds: f64) -> Result<Duration, &'static str> {
        Duration::try_from_secs_f64(seconds).map_err(|_| Self::Seconds.rule())
    }

    /// Refuses a value that is out of range.
    ///
    /// # Errors
    /// [`Error::Setting`], with the setting's name.
    pub(crate) fn check(self, name: &'static str, value: &Value) -> Result<(), Error> {
        if self.allows(value) {
            return Ok(());
        }
        Err(Error::Setting { name, given: value.to_string(), allowed: self.rule() })
    }

    fn allows(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Number(least, most, _), Value::Number(number)) => {
                (least..=most).contains(number)
            }
            (Self::Seconds, Value::Seconds(time)) => *time >= SHORTEST_WAIT,
            (Self::Numbers, Value::Numbers(numbers)) => !numbers.contains(&0),
            _ => true,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => formatter.write_str(text),
            Self::File(file) => file.display().fmt(formatter),
            Self::Number(number) => number.fmt(formatter),
            Self::Numbers(numbers) => write!(formatter, "{numbers:?}"),
            Self::Seconds(time) => write!(formatter, "{} s", time.as_secs_f64()),
            Self::Switch(is_on) => u8::from(*is_on).fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_values() {
        let number = Form::Number(1, 8, "1 to 8 are allowed");
        for (form, text, expected) in [
            (Form::Text("NAME"), "a b", Ok(Value::Text("a b".to_owned()))),
            (Form::File, "/a", Ok(Value::File("/a".into()))),
            (number, "8", Ok(Value::Number(8))),
            (number, "9", Err("1 to 8 are allowed")),
            (number, "-1", Err("1 to 8 are allowed")),
            (number, "1.0", Err("1 to 8 are allowed")),
            (Form::Numbers, "2,1", Ok(Value::Numbers(vec![2, 1]))),
            (Form::Numbers, "2,0", Err("give numbers of 1 or more, with commas between them")),
            (Form::Numbers, "2,", Err("give numbers of 1 or more, with commas between them")),
            (Form::Seconds, "0.25", Ok(Value::Seconds(Duration::from_millis(250)))),
            (Form::Seconds, "0.09", Err("it must be 0.1 s or more")),
            (Form::Seconds, "nan", Err("it must be 0.1 s or more")),
            (Form::Seconds, "1e300", Err("it must be 0.1 s or more")),
            (Form::Switch, "0", Ok(Value::Switch(false))),
            (Form::Switch, "yes", Err("0 and 1 are allowed")),
        ] {
            assert_eq!(form.parse(text), expected, "{form:?} {text}");
        }
    }
}
