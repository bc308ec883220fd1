//! Tools that are installed on this machine.

use std::env;
use std::path::PathBuf;

/// The first file of this name on the PATH.
pub fn on_path(tool: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(tool))
        .find(|path| path.is_file())
}

/// Those of these tools that are not on the PATH.
pub fn missing<'a>(tools: &[&'a str]) -> Vec<&'a str> {
    tools.iter().copied().filter(|tool| on_path(tool).is_none()).collect()
}
