//! A development environment for Tofino, the vendor's or open-p4studio, as $SDE and $SDE_INSTALL
//! name it.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What of it is worth naming: the driver's server, to which our daemon connects, the model, and
/// what compiles.
const PROGRAMS: [&str; 4] = ["bf_switchd", "tofino-model", "p4c-barefoot", "bfas"];

/// The development environment.
pub struct Sde {
    install: Option<PathBuf>,
    version: Option<String>,
}

impl Sde {
    /// The one that the environment names.
    pub fn from_environment() -> Self {
        let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = folder("SDE");
        // As open-p4studio's create-setup-script.sh sets them.
        let beside = root.as_ref().map(|root| root.join("install"));
        let version = root.as_deref().and_then(version);
        Self { install: folder("SDE_INSTALL").or(beside), version }
    }

    /// Its folder of programs, if all of these are there.
    pub fn folder_with(&self, programs: &[&str]) -> Option<PathBuf> {
        let folder = self.install.as_ref()?.join("bin");
        let has_all = programs.iter().all(|program| folder.join(program).is_file());
        (!programs.is_empty() && has_all).then_some(folder)
    }
}

impl fmt::Display for Sde {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(install) = &self.install else {
            return f.write_str("neither $SDE nor $SDE_INSTALL is set");
        };
        if let Some(version) = &self.version {
            write!(f, "{version}, ")?;
        }
        write!(f, "{}", install.display())?;
        let has = |program: &&str| install.join("bin").join(program).is_file();
        match PROGRAMS.into_iter().filter(has).collect::<Vec<_>>()[..] {
            [] => f.write_str(": nothing of a switch in its folder bin"),
            ref programs => write!(f, ", with {}", programs.join(", ")),
        }
    }
}

/// The version, from the name of the manifest, as open-p4studio's
/// `p4studio/workspace/sde_workspace.py` reads it.
fn version(root: &Path) -> Option<String> {
    fs::read_dir(root).ok()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_prefix("bf-sde-")?.strip_suffix(".manifest")?.to_owned())
    })
}
