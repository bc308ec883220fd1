//! The control plane of a Tofino switch, for tests: a BFRT server whose tables are as strict as a
//! switch's, without a pipeline behind them. It refuses the same requests, with the same errors, as
//! bf_switchd's server (p4lang/open-p4studio).

#![forbid(unsafe_code)]

pub mod schema;
mod service;
mod state;

/// Messages and stubs.
mod proto {
    #![allow(missing_docs, clippy::all, clippy::too_many_lines)] // generated
    include!("generated/bfrt_proto.rs");
}

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use proto::bf_runtime_server::BfRuntimeServer;
use proto::data_field::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use service::{Core, Service};
use state::{Bits, Row, number};

/// A running switch. It stops when dropped.
pub struct Switch {
    /// The address of the switch's BFRT server.
    pub address: SocketAddr,
    core: Arc<Mutex<Core>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An entry with names instead of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Fields of the key: values, and masks if there are any. Strings are given as bytes.
    pub key: BTreeMap<String, (u64, Option<u64>)>,
    /// Full name of the action; empty in tables without actions.
    pub action: String,
    /// Parameters and other values; booleans as 0 and 1.
    pub data: BTreeMap<String, Vec<u64>>,
}

impl Switch {
    /// A switch that runs a program, given by name and bf-rt.json, or none yet. It has its own
    /// thread, so that it does not depend on busy threads of its clients.
    ///
    /// # Panics
    ///
    /// When there is no port left on loopback, or the JSON is invalid.
    pub fn start(program: Option<(&str, &str)>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket of its own");
        let address = listener.local_addr().expect("bound");
        let core = Arc::new(Mutex::new(Core::new(program)));
        let service = BfRuntimeServer::new(Service::new(Arc::clone(&core)))
            .max_decoding_message_size(32 << 20);
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                let serving = Server::builder().add_service(service).serve_with_incoming(incoming);
                // Connections end with the runtime.
                tokio::select! {
                    served = serving => served.expect("served"),
                    _ = stopped => {}
                }
            });
        });
        Self { address, core, stop: Some(stop), thread: Some(thread) }
    }

    /// Name of the program, and the clients that are bound to it.
    pub fn program(&self) -> (Option<String>, Vec<u32>) {
        let core = self.core();
        (core.program.as_ref().map(|program| program.name.clone()), core.bound())
    }

    /// Full names of the tables that have entries, and how many. Registers and counters are not
    /// among them.
    pub fn occupied(&self) -> BTreeMap<String, usize> {
        let core = self.core();
        let tables = core.state.tables.iter().filter(|table| {
            table.table_type != "Register"
                && table.table_type != "Counter"
                && table.table_type != "PortStrInfo"
        });
        let counts = tables.map(|table| (table.name.clone(), core.state.rows(table.id).count()));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Entries of a table, by its full name; of a register only the written ones.
    ///
    /// # Panics
    ///
    /// When there is no such table.
    pub fn entries(&self, table: &str) -> Vec<Entry> {
        let core = self.core();
        let table = find(&core, table);
        core.state.rows(table.id).map(|(key, row)| entry(table, key, row)).collect()
    }

    /// A table's default action, if it was changed.
    ///
    /// # Panics
    ///
    /// When there is no such table.
    pub fn default_entry(&self, table: &str) -> Option<Entry> {
        let core = self.core();
        let table = find(&core, table);
        core.state.default_row(table.id).map(|row| entry(table, &BTreeMap::new(), row))
    }

    /// The pipeline counts packets, in a counter of that full name.
    pub fn count(&self, counter: &str, index: u64, packets: u64) {
        let mut core = self.core();
        let id = find(&core, counter).id;
        *core.state.counted.entry((id, index)).or_default() += packets;
    }

    /// A pipeline changes an entry of the register of that full name.
    ///
    /// # Panics
    ///
    /// When there is no such register, or no such pipeline.
    pub fn hold(&self, register: &str, pipeline: usize, index: u64, value: u32) {
        let mut core = self.core();
        let id = find(&core, register).id;
        core.state.registers.entry((id, index)).or_default()[pipeline] = value;
    }

    /// The pipeline sends a digest to the client that is bound.
    pub fn learn(&self, digest: &str, fields: &[(&str, u64)]) {
        self.core().learn(digest, fields);
    }

    /// Has the switch answer nobody until the value that this returns is dropped.
    pub fn hang(&self) -> impl Drop + '_ {
        self.core()
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic in the thread has been reported already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A table, register or counter by its full name.
fn find<'a>(core: &'a Core, name: &str) -> &'a schema::Table {
    let mut tables = core.state.tables.iter();
    tables.find(|table| table.name == name).expect("a table of the switch")
}

fn entry(table: &schema::Table, key: &BTreeMap<u32, Bits>, row: &Row) -> Entry {
    let key_name = |id: u32| {
        table
            .key
            .iter()
            .find(|field| field.id == id)
            .map(|field| field.name.clone())
            .unwrap_or_default()
    };
    let action = table.action_specs.iter().find(|action| action.id == row.action);
    let parameters = action
        .iter()
        .flat_map(|action| &action.data)
        .chain(table.data.iter().map(|data| &data.singleton));
    let names: BTreeMap<u32, String> =
        parameters.map(|field| (field.id, field.name.clone())).collect();
    Entry {
        key: key
            .iter()
            .map(|(id, (value, mask))| {
                (key_name(*id), (number(value), mask.as_deref().map(number)))
            })
            .collect(),
        action: action.map(|action| action.name.clone()).unwrap_or_default(),
        data: row.fields.iter().map(|(id, value)| (names[id].clone(), numbers(value))).collect(),
    }
}

fn numbers(value: &Value) -> Vec<u64> {
    match value {
        Value::Stream(bytes) => vec![number(bytes)],
        Value::StrVal(text) => text.bytes().map(u64::from).collect(),
        Value::IntArrVal(array) => array.val.iter().copied().map(u64::from).collect(),
        Value::BoolArrVal(array) => array.val.iter().copied().map(u64::from).collect(),
        Value::BoolVal(value) => vec![u64::from(*value)],
    }
}
