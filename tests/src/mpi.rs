//! MPI programs with a rank in each worker's namespace, as if on separate hosts.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Namespace, Process};

/// An implementation of MPI, as Debian has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// Open MPI, over TCP.
    OpenMpi,
    /// MPICH, over UCX's TCP.
    Mpich,
}

impl Mpi {
    fn compiler(self) -> &'static str {
        match self {
            Self::OpenMpi => "mpicc.openmpi",
            Self::Mpich => "mpicc.mpich",
        }
    }

    /// Builds a program of one file in C into `folder`, and returns its path.
    pub fn program(self, source: &Path, folder: &Path) -> Result<PathBuf, Error> {
        let name = source.file_stem().unwrap_or_default();
        let program = folder.join(name).with_extension(format!("{self:?}"));
        self.compile(&["-o".as_ref(), program.as_os_str(), source.as_os_str()])?;
        Ok(program)
    }

    /// Builds `worker-lib/mpi`, which is loaded ahead of MPI, into `folder`, and returns its path.
    /// `libswitchml.so` is in the folder `libraries`.
    pub fn preload(self, libraries: &Path, folder: &Path) -> Result<PathBuf, Error> {
        let workers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker-lib");
        let sources = ["group", "types", "call", "collectives", "requests"]
            .map(|name| workers.join(format!("mpi/src/{name}.c")));
        let library = folder.join(format!("libswitchml-mpi.{self:?}.so"));
        let include = workers.join("c/include");
        let mut arguments: Vec<&OsStr> = ["-shared", "-fPIC", "-o"].map(OsStr::new).to_vec();
        arguments.push(library.as_os_str());
        arguments.extend(sources.iter().map(|source| source.as_os_str()));
        arguments.extend(["-I".as_ref(), include.as_os_str()]);
        arguments.extend(["-L".as_ref(), libraries.as_os_str(), "-lswitchml".as_ref()]);
        self.compile(&arguments)?;
        Ok(library)
    }

    fn compile(self, arguments: &[&OsStr]) -> Result<(), Error> {
        let mut command = Command::new(self.compiler());
        // MPICH's header has statuses that are ignored for an array without elements.
        command.args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-stringop-overflow",
        ]);
        command.args(arguments);
        let failed = |why| Error::Build { command: self.compiler().to_owned(), why };
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Starts `program`, with a rank for each worker, which have these addresses. The launcher runs
    /// in `top`, the ranks in the workers' namespaces, with `environment`. Its own files go to
    /// `folder`, whose path has no spaces.
    pub fn start(
        self,
        (top, top_address): (&Namespace, IpAddr),
        workers: &[(&Namespace, IpAddr)],
        folder: &Path,
        environment: &[(&str, &str)],
        program: &[&OsStr],
    ) -> Result<Process, Error> {
        let agent = agent(workers, folder)
            .map_err(|source| Error::Write { path: folder.join("agent"), source })?;
        let hosts: Vec<String> = workers.iter().map(|(_, address)| address.to_string()).collect();
        let mut command = match self {
            Self::OpenMpi => open_mpi(&hosts, &agent, folder, environment),
            Self::Mpich => mpich(&hosts, &agent, top_address, environment),
        };
        top.spawn(&format!("{self:?}"), {
            command.args(program);
            command
        })
    }
}

/// Writes a script that replaces ssh and runs a command on a host: in the namespace of its worker,
/// with a separate folder for what Open MPI's daemons otherwise share with others of the same host
/// name.
fn agent(workers: &[(&Namespace, IpAddr)], folder: &Path) -> io::Result<PathBuf> {
    let mut script = "#!/bin/sh\nwhile case $1 in -*) ;; *) false ;; esac; do shift; done\n\
                      host=$1; shift\nexport TMPDIR=$(dirname \"$0\")/$host\n\
                      mkdir -p \"$TMPDIR\"\ncase $host in\n"
        .to_owned();
    for (worker, address) in workers {
        script += &format!("{address}) exec {} sh -c \"$*\" ;;\n", worker.enter_command());
    }
    let path = folder.join("agent");
    fs::write(&path, script + "esac\n")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn open_mpi(
    hosts: &[String],
    agent: &Path,
    folder: &Path,
    environment: &[(&str, &str)],
) -> Command {
    let mut command = Command::new("mpirun.openmpi");
    command.args(["--allow-run-as-root", "--bind-to", "none"]);
    command.args(["-np", &hosts.len().to_string(), "--host", &hosts.join(",")]);
    command.args(["--mca", "plm_rsh_agent"]).arg(agent);
    command.env("TMPDIR", folder);
    // Ranks in other namespaces have this host's name too, so shared memory is disabled.
    command.args(["--mca", "btl", "self,tcp", "--mca", "pml", "ob1"]);
    command.args(["--mca", "btl_tcp_if_include", "eth0"]);
    // All ranks share this machine's processors, which mpirun takes for those of several machines.
    command.args(["--mca", "mpi_yield_when_idle", "1"]);
    for (name, value) in environment {
        command.arg("-x").arg(format!("{name}={value}"));
    }
    command
}

fn mpich(
    hosts: &[String],
    agent: &Path,
    top_address: IpAddr,
    environment: &[(&str, &str)],
) -> Command {
    let mut command = Command::new("mpiexec.mpich");
    command.args(["-launcher", "ssh", "-launcher-exec"]).arg(agent);
    command.args(["-localhost", &top_address.to_string(), "-bind-to", "none"]);
    command.args(["-np", &hosts.len().to_string(), "-hosts", &hosts.join(",")]);
    // The variables disable shared memory, and select the interface.
    for (name, value) in
        [("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "eth0")]
    {
        command.args(["-genv", name, value]);
    }
    for (name, value) in environment {
        command.args(["-genv", name, value]);
    }
    command
}
