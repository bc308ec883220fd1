//! Writes the Rust code of the .proto files into the tree, so that only this program, and no other
//! build, compiles the parsers of protobuf: `cargo xtask gen` runs it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// A .proto file and the folder for its code, relative to the workspace.
struct Source {
    folder: &'static str,
    file: &'static str,
    target: &'static str,
    configure: fn() -> tonic_prost_build::Builder,
}

const SOURCES: [Source; 2] = [
    Source {
        folder: "control/proto",
        file: "switchml.proto",
        target: "control/src/generated",
        configure: control,
    },
    Source {
        folder: "tests/bfrt/proto",
        file: "bfruntime.proto",
        target: "tests/bfrt/src/generated",
        configure: bfrt,
    },
];

/// The control plane: state machines want its messages without stubs.
fn control() -> tonic_prost_build::Builder {
    const STUBS: &str = "#[cfg(feature = \"grpc\")]";
    tonic_prost_build::configure()
        .client_mod_attribute("switchml.v1", STUBS)
        .server_mod_attribute("switchml.v1", STUBS)
        // What is printed for debugging gets into logs and bug reports: see control/src/lib.rs.
        .skip_debug(["switchml.v1.MemberId", "switchml.v1.Assigned"])
}

/// The switch's side of BFRT.
fn bfrt() -> tonic_prost_build::Builder {
    tonic_prost_build::configure().build_client(false)
}

impl Source {
    /// The path of the code in the workspace, and the code. Its file has the name of the .proto
    /// file's package.
    fn code(&self) -> Result<(PathBuf, String)> {
        let folder = tempfile::tempdir()?;
        let files = protox::compile([self.file], [workspace().join(self.folder)])?;
        (self.configure)().out_dir(folder.path()).compile_fds(files)?;
        let files: Vec<_> = fs::read_dir(folder.path())?.collect::<Result<_, _>>()?;
        ensure!(files.len() == 1, "{} has more than one package", self.file);
        let code = fs::read_to_string(files[0].path())?;
        Ok((workspace().join(self.target).join(files[0].file_name()), code))
    }
}

/// Writes the code.
fn main() -> Result<()> {
    for source in SOURCES {
        let (path, code) = source.code()?;
        fs::write(&path, code).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_code_is_that_of_the_proto_files() {
        for source in SOURCES {
            let (path, code) = source.code().expect("code");
            let is_current = fs::read_to_string(&path).is_ok_and(|committed| committed == code);
            assert!(is_current, "{} is not current: run `cargo xtask gen`", path.display());
        }
    }
}
