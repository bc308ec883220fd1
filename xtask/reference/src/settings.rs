//! The settings of a communicator in C and in Python.

use std::fmt::Write;

use switchml_cli::markdown::wrapped_at;
use switchml_worker::settings::{Form, SETTINGS, Setting};

/// Width of a line.
const COLUMNS: usize = 100;

/// The first line of each file.
const ABOUT: &str = "Made by `cargo xtask gen` from `worker-lib/src/settings.rs`: change it there.";

/// C's struct, of which cbindgen makes the header.
pub const C_PATH: &str = "worker-lib/c/src/settings.rs";
/// Keyword arguments of Python's `Communicator`.
pub const PYTHON_PATH: &str = "worker-lib/python/switchml/_settings.py";

const C_HEAD: &str = "
use std::ffi::c_char;

use crate::given::{Given, Switch};

/// How to connect. What is zero or null comes from the environment, as torchrun and srun set it, or
/// is the default: `{ .size = sizeof(switchml_settings) }` takes all from there.
#[repr(C)]
pub struct Settings {
    /// `sizeof(switchml_settings)`, as in `switchml_settings settings = { .size = sizeof settings
    /// };`: a library that is newer than the program knows by it which settings the program has.
    pub size: usize,
    /// Where ranks meet, instead of meeting: the SWITCHML_UNIQUE_ID_BYTES bytes that
    /// switchml_unique_id gave one of them, or null.
    pub unique_id: *const u8,
";

const PYTHON_HEAD: &str = "
from __future__ import annotations

import os
from typing import Sequence, TypedDict


class Settings(TypedDict, total=False):
    \"\"\"Keyword arguments of `Communicator`.

    What is None or not given comes from the environment, as torchrun and srun set it, or is the
    default.

";

/// The text of [`C_PATH`].
pub fn c() -> String {
    let mut text = format!("//! {ABOUT}\n{C_HEAD}");
    for setting in SETTINGS {
        text += &comment("    /// ", &c_meaning(setting));
        let _ = writeln!(text, "    pub {}: {},", setting.name, c_type(setting.form));
    }
    let count = SETTINGS.len();
    let _ = write!(
        text,
        "}}\n\nimpl Settings {{\n    /// Each setting's name and what C gives.\n    pub fn \
         given(&self) -> [(&'static str, Given); {count}] {{\n        [\n"
    );
    for Setting { name, form, .. } in SETTINGS {
        let _ = writeln!(text, "            (\"{name}\", Given::{}(self.{name})),", variant(*form));
    }
    text + "        ]\n    }\n}\n"
}

/// The text of [`PYTHON_PATH`].
pub fn python() -> String {
    let mut text = format!("\"\"\"{ABOUT}\"\"\"\n{PYTHON_HEAD}");
    for setting in SETTINGS {
        let Setting { name, variable, .. } = setting;
        let defaults = defaults(setting, "Not given");
        let meaning = format!("{name}: {} {defaults}", variable.meaning);
        let lines = wrapped_at(COLUMNS - 8, &meaning).replace('\n', "\n        ");
        let _ = writeln!(text, "    {lines}");
    }
    text += "    \"\"\"\n\n";
    for Setting { name, form, .. } in SETTINGS {
        let _ = writeln!(text, "    {name}: {} | None", python_type(*form));
    }
    text
}

/// A setting's meaning with the values that are allowed, and the value that stands for the default.
fn c_meaning(setting: &Setting) -> String {
    let Setting { name, form, variable, .. } = setting;
    let values = match form {
        Form::Text(_) | Form::Numbers => format!(" Text: {}.", variable.values),
        Form::Number(..) => format!(" {}.", variable.values),
        Form::Seconds => " In seconds, 0.1 or more.".to_owned(),
        Form::File | Form::Switch => String::new(),
    };
    let unset = match (*name, form) {
        ("rank", _) => {
            return variable.meaning.to_owned() + " If world_size is 0, it does not count.";
        }
        (_, Form::Number(..) | Form::Seconds) => "0",
        (_, Form::Switch) => "SWITCHML_DEFAULT",
        (_, Form::Text(_) | Form::File | Form::Numbers) => "Null",
    };
    format!("{}{values} {}", variable.meaning, defaults(setting, unset)).trim_end().to_owned()
}

/// What stands for the default, and what that is.
fn defaults(setting: &Setting, unset: &str) -> String {
    let Setting { form, variable, .. } = setting;
    match (form, variable.default) {
        (_, "") => format!("{unset}: {}.", variable.name),
        (Form::Switch, on) => {
            format!("{unset}: {}, or {}.", variable.name, if on == "1" { "yes" } else { "no" })
        }
        (_, default) => format!("{unset}: {}, or {default}.", variable.name),
    }
}

fn c_type(form: Form) -> &'static str {
    match form {
        Form::Text(_) | Form::File | Form::Numbers => "*const c_char",
        Form::Number(..) => "u32",
        Form::Seconds => "f64",
        Form::Switch => "Switch",
    }
}

fn python_type(form: Form) -> &'static str {
    match form {
        Form::Text(_) => "str",
        Form::File => "str | os.PathLike[str]",
        Form::Number(..) => "int",
        Form::Numbers => "Sequence[int]",
        Form::Seconds => "float",
        Form::Switch => "bool",
    }
}

fn variant(form: Form) -> &'static str {
    match form {
        Form::Text(_) => "Text",
        Form::File => "File",
        Form::Number(..) => "Number",
        Form::Numbers => "Numbers",
        Form::Seconds => "Seconds",
        Form::Switch => "Switch",
    }
}

/// A comment in lines that start alike.
fn comment(start: &str, text: &str) -> String {
    let lines = wrapped_at(COLUMNS - start.len(), text);
    lines.lines().map(|line| format!("{start}{line}\n")).collect()
}
