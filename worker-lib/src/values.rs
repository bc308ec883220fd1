//! Values of environment variables.

use std::env::VarError;
use std::time::Duration;

use crate::error::Error;

/// A variable's value; an empty one is as good as none.
///
/// # Errors
/// [`Error::Setting`] for other bytes than UTF-8.
pub fn variable(
    name: &'static str,
    value: Result<String, VarError>,
) -> Result<Option<String>, Error> {
    match value {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(value)) => {
            Err(Error::Setting { name, given: format!("{value:?}"), allowed: "it must be UTF-8" })
        }
    }
}

/// A variable that is 0 or 1.
///
/// # Errors
/// [`Error::Setting`] for any other value.
pub fn switch(
    name: &'static str,
    text: impl Fn(&'static str) -> Result<Option<String>, Error>,
) -> Result<Option<bool>, Error> {
    let allowed = "0 and 1 are allowed";
    text(name)?
        .map(|given| match given.as_str() {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(Error::Setting { name, given, allowed }),
        })
        .transpose()
}

/// A variable that is a number of seconds.
///
/// # Errors
/// [`Error::Setting`] for any other value.
pub fn seconds(name: &'static str, value: Option<String>) -> Result<Option<Duration>, Error> {
    let wrong = |given: &str| Error::Setting {
        name,
        given: format!("{given:?}"),
        allowed: "it must be a number of seconds, 0.1 or more",
    };
    let parse = |value: String| {
        let seconds =
            value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        seconds.ok_or_else(|| wrong(&value))
    };
    value.map(parse).transpose()
}

/// A variable that is a whole number.
///
/// # Errors
/// [`Error::Setting`] for any other value.
pub fn number(name: &'static str, value: Option<String>) -> Result<Option<u32>, Error> {
    let wrong = |given: &str| Error::Setting {
        name,
        given: format!("{given:?}"),
        allowed: "it must be a whole number, 0 or more",
    };
    value.map(|value| value.parse().map_err(|_| wrong(&value))).transpose()
}
