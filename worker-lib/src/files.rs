//! The process's limit of open files.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that is asked for: some thousand groups of ranks. More would slow down programs that
/// close every number up to their limit before they start another.
const WANTED: u64 = 64 << 10;
/// Files that a communicator of many aggregators needs besides those that are open.
const NEEDED: u64 = 64;

/// Raises the soft limit as far as the hard one allows, to [`WANTED`] at most. The soft one of most
/// systems, 1024, is that of programs which call `select`.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(WANTED, |maximum| maximum.min(WANTED));
    if current.is_some_and(|current| current < wanted) {
        // Who may not, keeps the limit.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// An error of the system, with the remedy if the process has too many open files.
pub(crate) fn explained(error: &io::Error) -> String {
    explained_text(error.to_string())
}

/// The same for an error that is a text by now.
pub(crate) fn explained_text(error: String) -> String {
    let too_many = io::Error::from_raw_os_error(libc::EMFILE).to_string();
    if !error.contains(&too_many) {
        return error;
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let needed = limit.saturating_add(NEEDED);
    format!(
        "{error}; this process may have {limit} files, and needs some more, such as {needed}: \
         raise the limit (`ulimit -n {needed}`)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_files_has_that_remedy() {
        let refused = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        assert_eq!(explained(&refused), refused.to_string());
        let told = explained(&io::Error::from_raw_os_error(libc::EMFILE));
        assert!(
            told.starts_with("Too many open files (os error 24); ") && told.contains("ulimit -n")
        );
    }
}
