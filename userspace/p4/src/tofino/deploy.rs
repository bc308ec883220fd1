//! Giving a switch the program.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use serde_json::json;
use tempfile::NamedTempFile;

use super::connection::Program;
use super::names::NamesError;
use super::programs::Built;
use super::{SCHEMA, StartError, Tofino};
use crate::switch::Learned;

/// Sends the program that `cargo xtask p4 build` wrote to `folder` to the switch, replacing the
/// switch's program.
pub fn deploy(server: SocketAddr, folder: &Path) -> Result<(), StartError> {
    send(server, &Built::any(folder)?).map(drop)
}

/// Sends a program to the switch, and stays connected.
pub(super) fn send(
    server: SocketAddr,
    program: &Built,
) -> Result<(Tofino, Receiver<Learned>), StartError> {
    let config = config(&program.folder, program.names.program_name())?;
    // The library reads the program from files that a configuration file lists. That has a name of
    // its own: programs may be sent to several switches at once.
    let written = NamedTempFile::new().and_then(|mut file| {
        file.write_all(config.to_string().as_bytes())?;
        Ok(file.into_temp_path())
    });
    let file = written.map_err(|error| {
        let why = format!("cannot write to {}: {error}", std::env::temp_dir().display());
        StartError::of_switch(server, &program.names, why)
    })?;
    Tofino::connect(server, Program::Deploy(&file), program)
}

/// The program's files, as bf_switchd's own configuration names them.
fn config(folder: &Path, name: &str) -> Result<serde_json::Value, NamesError> {
    let pipe = folder.join("pipe");
    let file = |path: PathBuf| {
        let readable = std::fs::File::open(&path).and_then(|_| path.canonicalize());
        readable.map_err(|error| NamesError::Unreadable { path, why: error.to_string() })
    };
    Ok(json!({ "p4_devices": [{
        "device-id": 0,
        "p4_programs": [{
            "program-name": name,
            "bfrt-config": file(folder.join(SCHEMA))?,
            "p4_pipelines": [{
                "p4_pipeline_name": "pipe",
                "context": file(pipe.join("context.json"))?,
                "config": file(pipe.join("tofino.bin"))?,
                "pipe_scope": [0, 1, 2, 3],
            }],
        }],
    }]}))
}
