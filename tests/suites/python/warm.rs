//! Python processes that have imported torch, and fork a process for each rank: a rank starts in
//! milliseconds instead of seconds of CPU time. `warm.py` is both the client and the server.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use switchml_rack::{Namespace, Process};

/// Far longer than importing torch takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// A process that forks ranks, and the namespace that it dies with.
struct Server {
    socket: PathBuf,
    _process: Process,
    _host: Namespace,
}

/// The script that is both client and server.
pub fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("suites/python/warm.py")
}

/// The socket at which to ask for ranks of an interpreter, until this program ends.
pub fn socket(name: &'static str, python: &Path) -> PathBuf {
    static SERVERS: Mutex<Option<HashMap<&'static str, Server>>> = Mutex::new(None);
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let servers = servers.get_or_insert_default();
    servers.entry(name).or_insert_with(|| start(name, python)).socket.clone()
}

fn start(name: &str, python: &Path) -> Server {
    let socket = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("torch-{name}"));
    // Removes the socket of an earlier run.
    let _ = std::fs::remove_file(&socket);
    // The thread of this namespace lives as long as the program, unlike a test's.
    let host = Namespace::of_host().unwrap();
    let mut command = Command::new(python);
    command.args(["-W", "ignore"]).arg(script()).arg("serve").arg(&socket);
    command.env("OMP_NUM_THREADS", "1");
    let mut process = host.spawn(&format!("torch, {name}"), command).unwrap();
    process.wait_for_line("ready", PATIENCE).unwrap();
    Server { socket, _process: process, _host: host }
}
