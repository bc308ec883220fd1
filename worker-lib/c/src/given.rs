//! What C gives of the settings, read as values.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;

use switchml_worker::settings::{Form, Value};

/// What C gives of a setting; zero or null is nothing.
pub enum Given {
    Text(*const c_char),
    File(*const c_char),
    Number(u32),
    Numbers(*const c_char),
    Seconds(f64),
    Switch(Switch),
}

/// Yes or no: SWITCHML_YES, SWITCHML_NO, or SWITCHML_DEFAULT, which is 0.
pub type Switch = u32;
/// What the environment says, or the default.
pub const SWITCHML_DEFAULT: Switch = 0;
/// Yes.
pub const SWITCHML_YES: Switch = 1;
/// No.
pub const SWITCHML_NO: Switch = 2;

impl Given {
    /// The value, if there is one.
    ///
    /// # Errors
    /// What is given and what is allowed, if that is no value.
    ///
    /// # Safety
    /// Text is NULL or ends with a zero byte.
    pub unsafe fn read(self) -> Result<Option<Value>, (String, &'static str)> {
        Ok(match self {
            // SAFETY: the caller's promise.
            Self::Text(text) => unsafe { self::text(text) }?.map(Value::Text),
            Self::File(name) => {
                // SAFETY: the caller's promise.
                let name = unsafe { bytes(name) };
                name.map(|name| Value::File(OsStr::from_bytes(name).into()))
            }
            // SAFETY: the caller's promise.
            Self::Numbers(text) => unsafe { self::text(text) }?
                .map(|text| Form::Numbers.parse(&text).map_err(|allowed| (text, allowed)))
                .transpose()?,
            Self::Number(0) | Self::Switch(SWITCHML_DEFAULT) => None,
            Self::Number(number) => Some(Value::Number(number)),
            Self::Seconds(0.0) => None,
            Self::Seconds(seconds) => {
                let wrong = |allowed| (format!("{seconds} s"), allowed);
                Some(Value::Seconds(Form::seconds(seconds).map_err(wrong)?))
            }
            Self::Switch(SWITCHML_YES) => Some(Value::Switch(true)),
            Self::Switch(SWITCHML_NO) => Some(Value::Switch(false)),
            Self::Switch(other) => {
                let allowed = "SWITCHML_DEFAULT, SWITCHML_YES and SWITCHML_NO are allowed";
                return Err((other.to_string(), allowed));
            }
        })
    }
}

/// # Safety
/// `text` is NULL or ends with a zero byte.
unsafe fn text(text: *const c_char) -> Result<Option<String>, (String, &'static str)> {
    // SAFETY: the caller's promise.
    let Some(bytes) = (unsafe { bytes(text) }) else { return Ok(None) };
    let wrong = |_| (format!("\"{}\"", bytes.escape_ascii()), "it must be UTF-8");
    Ok(Some(str::from_utf8(bytes).map_err(wrong)?.to_owned()))
}

/// # Safety
/// `text` is NULL or ends with a zero byte.
unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_bytes())
}
