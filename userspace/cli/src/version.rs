//! The text of `--version`.

#[doc(hidden)]
pub use git_version::git_version;

/// The release, the commit that the program is built from, and a version of the protocol, as in
/// `0.1.0 (commit 8cb684d2dbb1, protocol 1)`. The commit ends with `-dirty` if tracked files were
/// changed, and is `unknown` outside a repository. Only programs' own crates should use this: cargo
/// recompiles its caller after each commit.
#[macro_export]
macro_rules! version {
    ($protocol:expr) => {
        format!(
            "{} (commit {}, protocol {})",
            env!("CARGO_PKG_VERSION"),
            $crate::commit!(),
            $protocol
        )
    };
}

/// The commit alone.
#[macro_export]
macro_rules! commit {
    () => {
        $crate::version::git_version!(
            args = ["--always", "--dirty", "--abbrev=12", "--exclude=*"],
            fallback = "unknown"
        )
    };
}
