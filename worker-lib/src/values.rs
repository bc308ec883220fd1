//! Values of environment variables.

use std::env::VarError;

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
