//! Whether this process may build racks.

use crate::xdp::{self, XDP_PASS};
use crate::{Error, Namespace};
use std::{any::type_name, fs::OpenOptions, io::Write, sync::OnceLock};

/// Whether the test `name` can run. If not, [`skip`] reports that; the test should then return at
/// once.
///
/// This is tried out: a namespace is made and a program is loaded. If a rack fails nevertheless,
/// that is an error.
pub fn can_build_racks(name: &str) -> bool {
    static OBSTACLE: OnceLock<Option<String>> = OnceLock::new();
    let obstacle = OBSTACLE.get_or_init(|| try_it().err().map(|error| error.to_string()));
    obstacle.as_ref().inspect(|reason| skip(name, reason)).is_none()
}

/// Ends the test that it stands in, and reports that, where no racks can be built.
#[macro_export]
macro_rules! needs_racks {
    () => {{
        fn here() {}
        if !$crate::can_build_racks($crate::name_of_test(here)) {
            return;
        }
    }};
}

/// The name that libtest has for the test around a function: its path without the crate's name.
#[doc(hidden)]
pub fn name_of_test<T>(_: T) -> &'static str {
    let path = type_name::<T>();
    let path = path.rsplit_once("::").map_or(path, |(test, _)| test);
    path.split_once("::").map_or(path, |(_, test)| test)
}

/// Reports that the test `name` cannot run: on standard error and, when the environment variable
/// `SWITCHML_SKIPPED` names a file, by a line `<name>: <reason>` at its end. `cargo xtask test`
/// reads that file.
pub fn skip(name: &str, reason: &str) {
    say("skipped ", "", &format!("{name}: {reason}"));
}

/// Reports that a test, or a part of it, cannot run because it needs something that not even CI
/// must have: a program that is in no package registry, or a module of the kernel. The line begins
/// with [`LEFT_OUT`].
pub fn leave_out(name: &str, reason: &str) {
    say(LEFT_OUT, LEFT_OUT, &format!("{name}: {reason}"));
}

/// The beginning of the line for a test that was left out.
pub const LEFT_OUT: &str = "left out ";

fn say(spoken: &str, written: &str, what: &str) {
    eprintln!("{spoken}{what}");
    if let Some(path) = std::env::var_os("SWITCHML_SKIPPED") {
        // One write, so that tests that run at the same time do not mix their lines.
        let line = format!("{written}{what}\n");
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut f| f.write_all(line.as_bytes()));
        if let Err(error) = written {
            panic!("cannot write to SWITCHML_SKIPPED={}: {error}", path.display());
        }
    }
}

fn try_it() -> Result<(), Error> {
    Namespace::new("a trial")?
        .run(|| xdp::load(XDP_PASS))
        .map(drop)
        .map_err(|source| Error::Kernel { what: "load an XDP program".to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::name_of_test;

    #[test]
    fn a_test_knows_its_name() {
        fn here() {}
        assert_eq!(name_of_test(here), "privilege::tests::a_test_knows_its_name");
    }
}
