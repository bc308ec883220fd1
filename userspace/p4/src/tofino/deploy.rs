//! Giving a switch the program.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use serde_json::json;

use super::connection::{Connection, Program};
use super::names::{Names, NamesError};
use super::{SCHEMA, StartError, name_of};

/// Sends the program that `cargo xtask p4 build` wrote to `folder` to the switch, replacing the
/// switch's program.
pub fn deploy(server: SocketAddr, folder: &Path) -> Result<(), StartError> {
    let names = Names::read_any(&folder.join(SCHEMA))?;
    let program = names.program;
    let config = config(folder, name_of(program))?;
    let failed = |why: String| StartError::Switch { server, program, why };
    // The library reads the program from files that a configuration file lists.
    let path = std::env::temp_dir().join(format!("switchml-deploy-{}.json", std::process::id()));
    std::fs::write(&path, config.to_string())
        .map_err(|error| failed(format!("cannot write {}: {error}", path.display())))?;
    let (learned, _) = mpsc::channel();
    let all = names.all().map(str::to_owned).collect();
    let deployed = Connection::open(server, Program::Deploy(&path), all, |_| None, learned);
    let _ = std::fs::remove_file(&path);
    deployed.map(drop).map_err(|error| failed(error.0))
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
