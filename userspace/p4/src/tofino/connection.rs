//! The connection to the switch: a separate thread, which sends one request after the other.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use std::{io, thread};

use rbfrt::error::RBFRTError;
use rbfrt::table::{Request, TableEntry};
use rbfrt::{SwitchConnection, register};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::error;

use super::reason::in_words;
use crate::switch::{Learned, SwitchError};

/// Longest time of a command except deploying a program: the longest writes thousands of entries of
/// a register.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time to deploy a program: the switch resets the pipelines, and brings the ports up
/// again.
const DEPLOYING: Duration = Duration::from_secs(120);

/// A connection to a switch. It ends when this is dropped.
pub struct Connection {
    commands: UnboundedSender<(Command, SyncSender<Answer>)>,
}

/// A command to the switch.
pub enum Command {
    /// Insert entries.
    Insert(Vec<Request>),
    /// Change entries, or a table's default action.
    Modify(Vec<Request>),
    /// Delete entries, or all of a table.
    Delete(Vec<Request>),
    /// Write entries of a register.
    WriteRegister(Vec<register::Request>),
    /// Run an operation on a table.
    Operate(Request),
    /// Read entries.
    Read(Vec<Request>),
}

/// Entries that were read.
type Answer = Result<Vec<TableEntry>, SwitchError>;

/// The program that the switch should run.
pub enum Program<'a> {
    /// The program with this name, which the switch runs already.
    Running(&'a str),
    /// The program that this file describes, which is sent to the switch.
    Deploy(&'a Path),
}

impl Connection {
    /// Connects to the switch, and binds to the program. `names` are tables that it must have.
    /// `learn` reads HELLOs from digests, which then go to `learned`.
    pub fn open(
        server: SocketAddr,
        program: Program<'_>,
        names: Vec<String>,
        learn: impl Fn(&rbfrt::util::Digest) -> Option<Learned> + Send + 'static,
        learned: std::sync::mpsc::Sender<Learned>,
    ) -> Result<Self, SwitchError> {
        // The switch refuses a number that another client has.
        let builder = SwitchConnection::builder(&server.ip().to_string(), server.port())
            .client_id(rand::random());
        let (builder, patience) = match program {
            Program::Running(name) => (builder.p4_name(name), PATIENCE),
            Program::Deploy(config) => (builder.config(&config.to_string_lossy()), DEPLOYING),
        };
        let (commands, receiver) = unbounded_channel();
        let (ready, opened) = sync_channel(1);
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let connected = match tokio::time::timeout(patience, builder.connect()).await {
                    Ok(connected) => connected.map_err(|error| SwitchError(in_words(&error))),
                    Err(_) => Err(silence(patience)),
                };
                let lacking = |connection: &SwitchConnection| {
                    names.iter().find(|name| !connection.has_table(name)).cloned()
                };
                let checked = connected.and_then(|connection| match lacking(&connection) {
                    Some(name) => Err(SwitchError(format!("its program has no table {name}"))),
                    None => Ok(connection),
                });
                match checked {
                    Ok(connection) => {
                        let digests = connection.digest_queue.clone();
                        thread::spawn(move || {
                            digests
                                .iter()
                                .filter_map(|digest| learn(&digest))
                                .try_for_each(|hello| learned.send(hello))
                        });
                        let _ = ready.send(Ok(()));
                        serve(&connection, receiver).await;
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            });
            io::Result::Ok(())
        };
        let spawned = thread::Builder::new().name("switch".to_owned()).spawn(work);
        spawned.map_err(|error| SwitchError(format!("cannot start a thread: {error}")))?;
        // A little longer than the thread itself waits.
        wait(&opened, patience + PATIENCE)?;
        Ok(Self { commands })
    }

    /// Sends a command to the switch, and waits for the answer.
    ///
    /// # Errors
    ///
    /// The switch's error; or that it does not answer.
    pub fn run(&self, command: Command) -> Answer {
        let (sender, answer) = sync_channel(1);
        // If the thread is gone, there is no answer, either.
        let _ = self.commands.send((command, sender));
        // The caller may be a thread that has other tasks to run.
        tokio::task::block_in_place(|| wait(&answer, 2 * PATIENCE))
    }
}

/// One command after the other, until the connection is dropped.
async fn serve(
    connection: &SwitchConnection,
    mut commands: UnboundedReceiver<(Command, SyncSender<Answer>)>,
) {
    while let Some((command, sender)) = commands.recv().await {
        let answer = match tokio::time::timeout(PATIENCE, run(connection, command)).await {
            Ok(answer) => answer.map_err(|error| SwitchError(in_words(&error))),
            Err(_) => Err(silence(PATIENCE)),
        };
        let _ = sender.send(answer);
    }
}

async fn run(
    connection: &SwitchConnection,
    command: Command,
) -> Result<Vec<TableEntry>, RBFRTError> {
    match command {
        Command::Insert(requests) => connection.write_table_entries(requests).await?,
        Command::Modify(requests) => connection.update_table_entries(requests).await?,
        Command::Delete(requests) => connection.delete_table_entries(requests).await?,
        Command::WriteRegister(requests) => connection.write_register_entries(requests).await?,
        Command::Operate(request) => connection.execute_operation(request).await?,
        Command::Read(requests) => return connection.get_tables_entries(requests).await,
    }
    Ok(Vec::new())
}

/// The thread's answer. If the thread is gone, which only a panic causes, there is none.
fn wait<T>(
    answer: &Receiver<Result<T, SwitchError>>,
    patience: Duration,
) -> Result<T, SwitchError> {
    match answer.recv_timeout(patience) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Timeout) => Err(silence(patience)),
        Err(RecvTimeoutError::Disconnected) => {
            error!("the thread that talks to the switch is gone; start the aggregator again");
            Err(SwitchError("its answer makes no sense".to_owned()))
        }
    }
}

fn silence(patience: Duration) -> SwitchError {
    SwitchError(format!("it has not answered for {} s", patience.as_secs()))
}
