//! What packages install beside a program: its manual's pages and the shells' completions.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

/// Writes `<program>.1` and, for each command, `<program>-<command>.1` into the folder, and what
/// bash, zsh and fish complete.
///
/// # Errors
///
/// When the system refuses to write.
pub fn write<C: CommandFactory>(folder: &Path) -> io::Result<()> {
    let command = C::command();
    let name = command.get_name().to_owned();
    clap_mangen::generate_to(command, folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut C::command(), &name, folder)?;
    }
    Ok(())
}
