//! The compiled programs in a folder.

use std::path::{Path, PathBuf};

use super::SCHEMA;
use super::names::{Names, NamesError};
use crate::program::ProgramKind;

/// The folder of a root's program for packets of 256 lanes, in that of the program for 64.
const OF_256: &str = "256";

/// A program that `cargo xtask p4 build` compiled.
pub struct Built {
    /// The folder with its files.
    pub folder: PathBuf,
    /// The names of its tables.
    pub names: Names,
}

impl Built {
    /// The program of either kind in this folder.
    pub fn any(folder: &Path) -> Result<Self, NamesError> {
        let names = Names::read_any(&folder.join(SCHEMA))?;
        Ok(Self { folder: folder.to_owned(), names })
    }

    /// The programs of this kind that a switch may run: that of the folder, and if it is a root's
    /// for 64 lanes, the one for 256 that is in it.
    pub fn all(folder: &Path, kind: ProgramKind) -> Result<Vec<Self>, NamesError> {
        let read = |folder: PathBuf| {
            let names = Names::read(&folder.join(SCHEMA), kind)?;
            Ok(Self { folder, names })
        };
        let first = read(folder.to_owned())?;
        let wide = folder.join(OF_256);
        let is_both =
            kind == ProgramKind::Root && first.names.parts == 1 && wide.join(SCHEMA).exists();
        let second = is_both.then(|| read(wide)).transpose()?;
        Ok([first].into_iter().chain(second).collect())
    }
}
