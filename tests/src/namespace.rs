//! A network namespace without a name: it is the namespace of one thread.

use crate::{Error, Process, kernel};
use rustix::process::{Pid, getpid};
use rustix::thread::gettid;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// The variable by which rank 0 writes a summary of its job, or does not.
const SUMMARY: &str = "SWITCHML_SUMMARY";

/// A namespace of a rack, with its own interfaces, routes and sockets, its own `/sys` and BPF file
/// system.
///
/// A thread lives in the namespace and runs the jobs given to it. When this is dropped, the thread
/// ends, which kills the processes that it started, except for tools, which end by themselves; the
/// kernel then removes the namespace with everything in it.
pub struct Namespace {
    name: String,
    tid: Pid,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    /// Makes a namespace that contains a loopback interface, still down.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        Self::with_thread(name, kernel::enter_new_namespace).map_err(|source| Error::Kernel {
            what: format!("make the network namespace of {name}"),
            source,
        })
    }

    /// The namespace that this process is in, for tests that need neither rack nor privilege, only
    /// a loopback interface. Processes started in it die with this value, like those in a rack.
    pub fn of_host() -> Result<Self, Error> {
        Self::with_thread("the host", || Ok(()))
            .map_err(|source| Error::Kernel { what: "start a thread".to_owned(), source })
    }

    /// Starts the thread, which calls `enter` before anything else.
    fn with_thread(name: &str, enter: fn() -> io::Result<()>) -> io::Result<Self> {
        let (ready, entered) = mpsc::channel();
        let (jobs, queue) = mpsc::channel::<Job>();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let result = enter();
            let usable = result.is_ok();
            // The caller waits for this; if it had gone, the queue below would be closed.
            let _ = ready.send(result.map(|()| gettid()));
            if usable {
                queue.iter().for_each(|job| job());
            }
        })?;
        let tid = entered.recv().unwrap_or_else(|_| Err(io::Error::other("its thread died")))?;
        Ok(Self { name: name.to_owned(), tid, jobs: Some(jobs), thread: Some(thread) })
    }

    /// The namespace's name in messages: `switch`, `worker 0`, ….
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A prefix for commands that run in this namespace: `nsenter --target <thread> --net --mount`.
    pub fn enter_command(&self) -> String {
        format!("nsenter --target {} --net --mount", self.tid)
    }

    /// A number that no other namespace of this process has.
    pub(crate) fn number(&self) -> i32 {
        self.tid.as_raw_nonzero().get()
    }

    /// The file of the network namespace, for tools that take one (`ip link … netns <path>`).
    pub fn path(&self) -> String {
        format!("/proc/{}/task/{}/ns/net", getpid(), self.tid)
    }

    /// Runs `job` on the namespace's thread and returns its result. Sockets that it opens stay in
    /// this namespace, wherever they are used later. Jobs should be short: the namespace runs one
    /// at a time.
    ///
    /// # Panics
    ///
    /// If `job` panics, with its panic.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let job = Box::new(move || {
            let _ = done.send(catch_unwind(AssertUnwindSafe(job)));
        });
        self.jobs
            .as_ref()
            .expect("the queue is open until drop")
            .send(job)
            .expect("the thread lives until drop");
        match result.recv().expect("every job answers, a panicking one too") {
            Ok(value) => value,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Starts a program in this namespace. Its output is kept line by line ([`Process::stdout`],
    /// [`Process::wait_for_line`]); its input is empty. `name` is its name in messages. Ranks write
    /// no summary of their job unless the command sets `SWITCHML_SUMMARY`.
    pub fn spawn(&self, name: &str, mut command: Command) -> Result<Process, Error> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if !command.get_envs().any(|(name, _)| name == SUMMARY) {
            command.env(SUMMARY, "0");
        }
        kernel::die_with_parent(&mut command);
        Process::new(name, self.start(command)?)
    }

    /// Starts a program in here that shares this process's output, for one that draws on the
    /// terminal.
    pub fn spawn_inherited(&self, name: &str, mut command: Command) -> Result<Process, Error> {
        command.stdin(Stdio::null()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
        kernel::die_with_parent(&mut command);
        Process::new(name, self.start(command)?)
    }

    /// Runs a tool in this namespace until it ends.
    pub fn output(&self, mut command: Command) -> Result<Output, Error> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let line = command_line(&command);
        // The tool ends by itself. A process that must die with its parent is forked, and a fork
        // copies the page tables of this process, which takes longer than most tools.
        let output = self.start(command)?.wait_with_output().map_err(|source| Error::Start {
            command: line.clone(),
            namespace: self.name.clone(),
            source,
        })?;
        if output.status.success() {
            return Ok(output);
        }
        Err(Error::Tool {
            command: line,
            namespace: self.name.clone(),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// Runs `<program> <arguments>`, arguments separated by spaces; the output is dropped.
    pub(crate) fn tool(&self, program: &str, arguments: &str) -> Result<(), Error> {
        let mut command = Command::new(program);
        command.args(arguments.split_whitespace());
        self.output(command).map(drop)
    }

    /// A child of the namespace's thread inherits the namespace.
    fn start(&self, mut command: Command) -> Result<Child, Error> {
        let line = command_line(&command);
        self.run(move || command.spawn()).map_err(|source| Error::Start {
            command: line,
            namespace: self.name.clone(),
            source,
        })
    }
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
