//! What the table of settings is made into.

/// Makes of the rows: the struct of what is given, the list of all settings, and a macro that makes
/// the builder's methods.
macro_rules! settings {
    ($(
        $(#[doc = $meaning:literal])+
        $name:ident: $form:ident $(($($of:literal),+))?, $how:ident $default:tt,
            $variable:literal, $group:ident;
    )+) => {
        /// What is given of the settings of a communicator; the rest comes from the environment or
        /// is the default.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Settings {
            $(
                $(#[doc = $meaning])+
                pub $name: Option<table::value_of!($form)>,
            )+
        }

        /// All settings.
        pub const SETTINGS: &[Setting] = &[$(
            Setting {
                name: stringify!($name),
                form: table::form!($form $($($of),+)?),
                variable: Variable {
                    name: $variable,
                    values: table::values!($form $($($of),+)?),
                    default: table::default_text!($form $default),
                    meaning: concat!($($meaning),+).trim_ascii(),
                },
                group: Group::$group,
            },
        )+];

        impl Settings {
            $( table::getter! { $form $how $default $name } )+

            /// Gives a setting; whether there is one of this name and form.
            pub fn put(&mut self, name: &str, value: Value) -> bool {
                match (name, value) {
                    $( (stringify!($name), Value::$form(value)) => self.$name = Some(value), )+
                    _ => return false,
                }
                true
            }

            /// What is given, in the order of [`SETTINGS`].
            pub fn values(&self) -> [Option<Value>; SETTINGS.len()] {
                [$( self.$name.clone().map(Value::$form), )+]
            }

            fn or(self, other: Self) -> Self {
                Self { $( $name: self.$name.or(other.$name), )+ }
            }
        }

        /// The builder's methods, one for each setting.
        macro_rules! builder_methods {
            () => {
                $( $crate::settings::table::setter! { $form $(#[doc = $meaning])+ $name } )+
            };
        }
        pub(crate) use builder_methods;
    };
}

/// The type of values.
macro_rules! value_of {
    (Text) => { String };
    (File) => { PathBuf };
    (Number) => { u32 };
    (Numbers) => { Vec<u32> };
    (Seconds) => { Duration };
    (Switch) => { bool };
}

macro_rules! form {
    (Text $name:literal, $values:literal) => {
        Form::Text($name)
    };
    (Number $least:literal, $most:literal) => {
        Form::Number($least, $most, concat!($least, " to ", $most, " are allowed"))
    };
    ($form:ident) => {
        Form::$form
    };
}

/// The values that are allowed, in words.
macro_rules! values {
    (Text $name:literal, $values:literal) => {
        $values
    };
    (File) => {
        "a file"
    };
    (Number $least:literal, $most:literal) => {
        concat!($least, " to ", $most)
    };
    (Numbers) => {
        "numbers of 1 or more, with commas between them"
    };
    (Seconds) => {
        "seconds, 0.1 or more"
    };
    (Switch) => {
        "0 or 1"
    };
}

macro_rules! default_text {
    (Switch true) => {
        "1"
    };
    (Switch false) => {
        "0"
    };
    ($form:ident $default:tt) => {
        concat!($default)
    };
}

/// The value that counts, if the default is a value.
macro_rules! getter {
    (Seconds or $default:tt $name:ident) => {
        /// What is given, or the default.
        pub fn $name(&self) -> Duration {
            self.$name.unwrap_or(Duration::from_secs($default)).min(LONGEST_WAIT)
        }
    };
    (Switch or $default:tt $name:ident) => {
        /// What is given, or the default.
        pub fn $name(&self) -> bool {
            self.$name.unwrap_or($default)
        }
    };
    ($form:ident otherwise $default:tt $name:ident) => {};
}

/// The builder's method for a setting.
macro_rules! setter {
    (Text $(#[doc = $meaning:literal])+ $name:ident) => {
        $(#[doc = $meaning])+
        pub fn $name(mut self, text: impl Into<String>) -> Self {
            self.settings.$name = Some(text.into());
            self
        }
    };
    (Number $(#[doc = $meaning:literal])+ $name:ident) => {
        $(#[doc = $meaning])+
        pub fn $name(mut self, number: u32) -> Self {
            self.settings.$name = Some(number);
            self
        }
    };
    (Numbers $(#[doc = $meaning:literal])+ $name:ident) => {
        $(#[doc = $meaning])+
        pub fn $name(mut self, numbers: impl IntoIterator<Item = u32>) -> Self {
            let numbers = numbers.into_iter().collect();
            self.settings.$name = Some(numbers).filter(|numbers: &Vec<u32>| !numbers.is_empty());
            self
        }
    };
    (Seconds $(#[doc = $meaning:literal])+ $name:ident) => {
        $(#[doc = $meaning])+
        pub fn $name(mut self, time: std::time::Duration) -> Self {
            self.settings.$name = Some(time);
            self
        }
    };
    (Switch $(#[doc = $meaning:literal])+ $name:ident) => {
        $(#[doc = $meaning])+
        pub fn $name(mut self, is_on: bool) -> Self {
            self.settings.$name = Some(is_on);
            self
        }
    };
    // `Builder::tls` and `Builder::token` set what belongs together.
    (File $(#[doc = $meaning:literal])+ $name:ident) => {};
}

pub(crate) use setter;
pub(super) use {default_text, form, getter, settings, value_of, values};
