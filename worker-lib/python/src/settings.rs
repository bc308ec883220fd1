//! What Python gives of the settings, by keyword.

use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use switchml_worker::settings::{Form, Value, setting};
use switchml_worker::{Error, Settings};

use crate::raised;

/// The settings in a function's keyword arguments. What is None is not given.
pub fn given(keywords: &Bound<'_, PyDict>) -> PyResult<Settings> {
    let mut settings = Settings::default();
    for (keyword, given) in keywords.iter().filter(|(_, given)| !given.is_none()) {
        let keyword: String = keyword.extract()?;
        let unknown = || PyTypeError::new_err(format!("there is no setting {keyword:?}"));
        let setting = setting(&keyword).ok_or_else(unknown)?;
        settings.put(setting.name, value(setting.name, setting.form, &given)?);
    }
    Ok(settings)
}

fn value(name: &'static str, form: Form, given: &Bound<'_, PyAny>) -> PyResult<Value> {
    Ok(match form {
        Form::Text(_) => Value::Text(given.extract()?),
        Form::File => Value::File(given.extract()?),
        Form::Number(..) => Value::Number(given.extract()?),
        Form::Numbers => Value::Numbers(given.extract()?),
        Form::Switch => Value::Switch(given.extract()?),
        Form::Seconds => {
            let time = seconds(name, given.extract()?);
            Value::Seconds(time.map_err(|error| raised(given.py(), &error))?)
        }
    })
}

/// A time.
///
/// # Errors
/// [`Error::Setting`], with the setting's name.
pub fn seconds(name: &'static str, seconds: f64) -> Result<Duration, Error> {
    let wrong = |allowed| Error::Setting { name, given: format!("{seconds} s"), allowed };
    Form::seconds(seconds).map_err(wrong)
}
