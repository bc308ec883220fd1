//! bmv2's `simple_switch` as a process, with a program of `p4/`.

use crate::{Error, Namespace, Process, tools};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// The compiler of the program, and the switch that runs it. Neither is in a package registry.
const COMPILER: &str = "p4c-bm2-ss";
const SWITCH: &str = "simple_switch";

/// The line that the switch logs once it can be controlled.
const READY: &str = "Thrift server was started";

/// Time to start: the switch reads the program, some 2 MB of JSON, before it listens.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A `simple_switch` that runs and can be controlled, and ends when this is dropped.
pub struct SimpleSwitch {
    _process: Process,
}

impl SimpleSwitch {
    /// The address of its control port, on the loopback interface of its namespace.
    pub const THRIFT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9090));

    /// What it needs on the PATH.
    pub const TOOLS: [&str; 2] = [COMPILER, SWITCH];

    /// What is missing on the PATH, if anything.
    pub fn obstacle() -> Option<String> {
        let missing = tools::missing(&Self::TOOLS);
        (!missing.is_empty()).then(|| format!("no {} on the PATH", missing.join(" and no ")))
    }

    /// Compiles a program of `p4/` with these macros, and starts it in a namespace where loopback
    /// is up, with these interfaces as its ports 1, 2, ….
    pub fn start(
        namespace: &Namespace,
        interfaces: &[String],
        program: &str,
        defines: &[&str],
    ) -> Result<Self, Error> {
        if let Some(obstacle) = Self::obstacle() {
            return Err(Error::NoSimpleSwitch(obstacle));
        }
        let program = Program::compile(namespace, program, defines)?;
        let mut command = with_priority();
        for (port, interface) in (1..).zip(interfaces) {
            command.args(["-i", &format!("{port}@{interface}")]);
        }
        command.args(["--thrift-port", &Self::THRIFT.port().to_string()]);
        // The default is a file in /tmp that nothing removes.
        command.args(["--notifications-addr", "tcp://127.0.0.1:9091"]);
        command.args(["--log-console", "--log-level", "info"]).arg(&program.0);
        let mut process = namespace.spawn(SWITCH, command)?;
        process.wait_for_line(READY, START_TIMEOUT)?;
        // The switch logs the line just before it listens.
        let begin = Instant::now();
        while namespace.run(|| TcpStream::connect(Self::THRIFT)).is_err() {
            if begin.elapsed() > START_TIMEOUT {
                return Err(process.timeout("control port".to_owned(), START_TIMEOUT));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { _process: process })
    }
}

/// If this variable is set, the switch runs before all else: a real switch does not wait until
/// hosts leave it a processor. On a busy machine hosts miss answers for seconds otherwise.
const REAL_TIME: &str = "SWITCHML_REAL_TIME";

fn with_priority() -> Command {
    if env::var_os(REAL_TIME).is_none_or(|value| value.is_empty()) {
        return Command::new(SWITCH);
    }
    let mut command = Command::new("chrt");
    command.args(["--rr", "1", SWITCH]);
    command
}

/// The compiled program, removed when this is dropped.
struct Program(PathBuf);

impl Program {
    fn compile(namespace: &Namespace, program: &str, defines: &[&str]) -> Result<Self, Error> {
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../p4")).join(program);
        // Racks may be built at the same time, by several processes.
        let number = namespace.number();
        let program = Self(
            env::temp_dir().join(format!("switchml-bmv2-{}-{number}.json", std::process::id())),
        );
        let mut command = Command::new(COMPILER);
        command.arg("--Wdisable=unused").args(defines).arg("-o").arg(&program.0).arg(source);
        namespace.output(command)?;
        Ok(program)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // There is no file if the compiler failed.
        let _ = fs::remove_file(&self.0);
    }
}
