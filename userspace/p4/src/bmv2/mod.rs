//! bmv2's `simple_switch` with `p4/bmv2.p4`, `bmv2_256.p4` or `bmv2_combiner.p4`, controlled over
//! Thrift: a software switch that interprets P4 programs, to try them out.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`thrift`] | calls of the switch's control interface |
//! | [`schema`] | the tables of the program, as the switch reports them |
//! | [`notifications`] | the digests that the switch publishes |

mod notifications;
mod schema;
pub mod thrift;

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::ip::Ip;
use tracing::{error, warn};

use crate::entries::{MOST_PARTS, OUTCOMES, PARTS, Table};
use crate::program::ProgramKind;
use crate::roce;
use crate::switch::{Entry, Learned, Match, Node, Switch, SwitchError};
use schema::{Schema, SchemaError};
use thrift::{CallError, Client};

/// Capabilities of `p4/bmv2.p4`; `p4/bmv2_256.p4` has none.
const CAPABILITIES: Capabilities =
    Capabilities::CHECKED_MAXIMA.union(Capabilities::EMPTY_CONTRIBUTIONS);

/// The data plane's name, and the beginning of its programs' names.
const NAME: &str = "bmv2";

/// The digest of a HELLO whose rank is new.
const HELLOS: &str = "learn_t";

/// A `simple_switch`.
pub struct Bmv2 {
    control: Arc<Mutex<Control>>,
    schema: Schema,
    sets: u32,
    ports: Vec<u16>,
    attachment: String,
    _digests: Digests,
}

/// The connection, and `simple_switch`'s handles for objects that were made over it.
struct Control {
    client: Client,
    /// Entries by table, key and priority.
    entries: HashMap<EntryKey, i32>,
    /// Nodes of multicast groups.
    nodes: HashMap<Node, i32>,
}

type EntryKey = (&'static str, Vec<(&'static str, Match)>, u32);

impl Bmv2 {
    /// Takes over the `simple_switch` at a Thrift port, which must run a program of this kind, and
    /// clears it. Also returns a channel of the HELLOs that it reports.
    pub fn connect(
        address: SocketAddr,
        program: ProgramKind,
    ) -> Result<(Self, Receiver<Learned>), SwitchError> {
        let failed = |error: String| SwitchError(format!("simple_switch at {address}: {error}"));
        let client = Client::connect(address).map_err(|error| {
            failed(format!(
                "{error}; start it with --thrift-port {}, or give its port with --bmv2-thrift",
                address.port()
            ))
        })?;
        let mut control = Control { client, entries: HashMap::new(), nodes: HashMap::new() };
        let taken = take_over(&mut control.client, program).map_err(failed)?;
        let Taken { schema, sets, ports, notifications } = taken;
        let list = ports
            .iter()
            .map(|port| format!("{} ({})", port.number, port.interface))
            .collect::<Vec<_>>();
        let control = Arc::new(Mutex::new(control));
        let (sender, learned) = mpsc::channel();
        let digests = Digests::forward(notifications, Arc::clone(&control), sender);
        let switch = Self {
            control,
            schema,
            sets,
            ports: ports.iter().map(|port| port.number).collect(),
            attachment: format!("simple_switch at {address}, ports {}", list.join(", ")),
            _digests: digests.map_err(|error| failed(error.to_string()))?,
        };
        Ok((switch, learned))
    }

    /// The port that was given as the one towards a combiner's parent.
    pub fn uplink(&self, given: &str) -> Result<u16, SwitchError> {
        let port = given.parse().ok().filter(|port| self.ports.contains(port));
        port.ok_or_else(|| {
            SwitchError(format!(
                "--uplink-port {given} is not among the switch's ports: {}; give the number of one",
                self.attachment
            ))
        })
    }

    /// Capabilities of the aggregator's program that it runs, without RoCEv2.
    pub fn capabilities(&self) -> Capabilities {
        if self.parts() > 1 { Capabilities::empty() } else { CAPABILITIES }
    }

    /// The same with RoCEv2, which not each program takes.
    pub fn capabilities_with_roce(&self) -> Result<Capabilities, SwitchError> {
        let has = |table: &Table| self.schema.table(table.name).is_ok();
        if roce::TABLES.iter().all(has) {
            return Ok(self.capabilities() | Capabilities::ROCE);
        }
        Err(SwitchError(
            "--rocev2: the program that simple_switch runs takes no RoCEv2; start it with bmv2.p4, \
             or leave out --rocev2"
                .to_owned(),
        ))
    }

    fn table(&self, entry: &Entry) -> Result<&schema::Table, SwitchError> {
        self.schema.table(entry.table).map_err(failed("write entries"))
    }
}

/// The properties of a switch that was taken over.
struct Taken {
    schema: Schema,
    sets: u32,
    ports: Vec<thrift::Port>,
    notifications: TcpStream,
}

/// Clears the switch of an earlier daemon's entries, and subscribes to its notifications. The error
/// is a line of text.
fn take_over(client: &mut Client, program: ProgramKind) -> Result<Taken, String> {
    let text = |error: CallError| error.to_string();
    let schema =
        Schema::parse(&client.program().map_err(text)?).map_err(|error| error.to_string())?;
    let unfit = |error: SchemaError| error.to_string();
    let sets = schema.register_of(program).map_err(unfit)?.size;
    let outcomes = schema.counter(OUTCOMES).map_err(unfit)?;
    let hellos = schema.digest(HELLOS).map_err(unfit)?;
    // `simple_switch` can clear itself by one call, but then constant entries go, too.
    for table in schema.tables().iter().filter(|table| !table.constant) {
        client.clear_table(&table.name).map_err(text)?;
    }
    client.clear_groups().map_err(text)?;
    client.clear_counter(outcomes).map_err(text)?;
    // Otherwise the switch would collect digests for a second, which is as long as ranks wait for
    // an answer.
    client.set_digest_size(hellos, 1).map_err(text)?;
    let ports = client.ports().map_err(text)?;
    let publisher = client.notifications().map_err(text)?;
    let address: SocketAddr = publisher
        .strip_prefix("tcp://")
        .and_then(|address| address.parse().ok())
        .ok_or_else(|| {
            format!(
                "it publishes notifications at {publisher:?}; \
                 start it with --notifications-addr tcp://127.0.0.1:9091 \
                 (it must have been built with nanomsg)"
            )
        })?;
    let notifications =
        notifications::subscribe(address).map_err(|error| format!("its notifications: {error}"))?;
    Ok(Taken { schema, sets, ports, notifications })
}

impl Switch for Bmv2 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attachment(&self) -> String {
        self.attachment.clone()
    }

    fn sets(&self) -> u32 {
        self.sets
    }

    fn parts(&self) -> u16 {
        if self.schema.table(PARTS).is_ok() { MOST_PARTS } else { 1 }
    }

    fn ports(&self) -> &[u16] {
        &self.ports
    }

    fn pipeline(&self, _: u16) -> u16 {
        0
    }

    fn insert(&self, entry: &Entry) -> Result<(), SwitchError> {
        let table = self.table(entry)?;
        let (action, data) =
            table.action(entry.action, &entry.data).map_err(failed("write entries"))?;
        let mut control = lock(&self.control);
        if entry.key.is_empty() {
            return control
                .client
                .set_default_action(&table.name, action, &data)
                .map_err(failed_at("add to", entry));
        }
        let key = table.key(&entry.key).map_err(failed("write entries"))?;
        let handle = control
            .client
            .add_entry(&table.name, &key, action, &data, entry.priority as i32)
            .map_err(failed_at("add to", entry))?;
        control.entries.insert(key_of(entry), handle);
        Ok(())
    }

    fn modify(&self, entry: &Entry) -> Result<(), SwitchError> {
        if entry.key.is_empty() {
            return self.insert(entry);
        }
        let table = self.table(entry)?;
        let (action, data) =
            table.action(entry.action, &entry.data).map_err(failed("write entries"))?;
        let mut control = lock(&self.control);
        let handle = control.handle(entry)?;
        control
            .client
            .modify_entry(&table.name, handle, action, &data)
            .map_err(failed_at("change", entry))
    }

    fn delete(&self, entry: &Entry) -> Result<(), SwitchError> {
        let table = self.table(entry)?;
        let mut control = lock(&self.control);
        if entry.key.is_empty() {
            return control
                .client
                .reset_default_action(&table.name)
                .map_err(failed_at("remove from", entry));
        }
        let handle = control.handle(entry)?;
        control
            .client
            .delete_entry(&table.name, handle)
            .map_err(failed_at("remove from", entry))?;
        control.entries.remove(&key_of(entry));
        Ok(())
    }

    fn write_register(
        &self,
        name: &str,
        indices: Range<u32>,
        value: u32,
    ) -> Result<(), SwitchError> {
        let register = self.schema.register(name).map_err(failed("write registers"))?;
        let mut control = lock(&self.control);
        control
            .client
            .write_registers(&register.name, indices, value)
            .map_err(failed("write registers"))
    }

    fn renew(&self, _: &str) -> Result<(), SwitchError> {
        Ok(())
    }

    fn read_register(
        &self,
        name: &str,
        _: u16,
        indices: Range<u32>,
    ) -> Result<Vec<u32>, SwitchError> {
        let register = self.schema.register(name).map_err(failed("read registers"))?;
        // One at a time, so that HELLOs of new ranks are answered in between.
        let read = |index| lock(&self.control).client.read_register(&register.name, index);
        indices.map(read).collect::<Result<_, _>>().map_err(failed("read registers"))
    }

    fn set_node(&self, node: Node, ports: &[u16]) -> Result<(), SwitchError> {
        lock(&self.control).set_node(node, ports).map_err(failed("change multicast groups"))
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], SwitchError> {
        let counter = self.schema.counter(OUTCOMES).map_err(failed("read counters"))?;
        let mut control = lock(&self.control);
        let mut packets = [0; Outcome::COUNT];
        for (index, packets) in (0..).zip(&mut packets) {
            *packets = control.client.packets(counter, index).map_err(failed("read counters"))?;
        }
        Ok(packets)
    }
}

impl Control {
    fn set_node(&mut self, node: Node, ports: &[u16]) -> Result<(), CallError> {
        let Self { client, nodes, .. } = self;
        let is_alone = !nodes.keys().any(|other| other.group == node.group && *other != node);
        match (nodes.get(&node).copied(), ports) {
            (None, []) => {}
            (None, ports) => {
                if is_alone {
                    client.create_group(node.group)?;
                }
                nodes.insert(node, client.create_node(node, ports)?);
            }
            (Some(handle), []) => {
                client.destroy_node(handle)?;
                nodes.remove(&node);
                if is_alone {
                    client.destroy_group(node.group)?;
                }
            }
            (Some(handle), ports) => client.update_node(handle, ports)?,
        }
        Ok(())
    }

    fn handle(&self, entry: &Entry) -> Result<i32, SwitchError> {
        let handle = self.entries.get(&key_of(entry)).copied();
        handle.ok_or_else(|| {
            SwitchError(format!("simple_switch was given no such entry of {}", entry.table))
        })
    }
}

fn key_of(entry: &Entry) -> EntryKey {
    (entry.table, entry.key.clone(), entry.priority)
}

fn lock(control: &Mutex<Control>) -> MutexGuard<'_, Control> {
    // A panic can at most happen between a call and its record.
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> SwitchError {
    move |error| SwitchError(format!("simple_switch: cannot {what}: {error}"))
}

fn failed_at(verb: &str, entry: &Entry) -> impl Fn(CallError) -> SwitchError {
    move |error| SwitchError(format!("simple_switch: cannot {verb} {}: {error}", entry.table))
}

/// The thread that forwards the HELLOs that the switch reports. Dropping this ends it.
struct Digests {
    notifications: TcpStream,
    is_wanted: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Digests {
    fn forward(
        notifications: TcpStream,
        control: Arc<Mutex<Control>>,
        learned: Sender<Learned>,
    ) -> io::Result<Self> {
        let is_wanted = Arc::new(AtomicBool::new(true));
        let thread = thread::Builder::new().name("digests".to_owned()).spawn({
            let (mut stream, is_wanted) = (notifications.try_clone()?, Arc::clone(&is_wanted));
            move || {
                let forwarded = forward_digests(&mut stream, &control, &learned);
                if let Err(error) = forwarded
                    && is_wanted.load(Ordering::Relaxed)
                {
                    error!("the digests of simple_switch have ended: {error}");
                }
            }
        })?;
        Ok(Self { notifications, is_wanted, thread: Some(thread) })
    }
}

impl Drop for Digests {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
        // The reading thread sees the end of the stream. An error means that it has ended already.
        let _ = self.notifications.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been reported already.
            let _ = thread.join();
        }
    }
}

/// Forwards HELLOs until the connection ends, which is an error, or the receiver is dropped.
fn forward_digests(
    stream: &mut TcpStream,
    control: &Mutex<Control>,
    learned: &Sender<Learned>,
) -> io::Result<()> {
    loop {
        let Some(digest) = notifications::read(stream)? else { continue };
        for sample in &digest.samples {
            match hello(sample) {
                Some(hello) if learned.send(hello).is_err() => return Ok(()),
                Some(_) => {}
                None => warn!("a digest of {} bytes is not a HELLO", sample.len()),
            }
        }
        // After this the switch reports the same HELLO again.
        let acknowledged = lock(control).client.acknowledge_digest(digest.list, digest.buffer);
        acknowledged.map_err(io::Error::other)?;
    }
}

/// A sample of [`HELLOS`].
fn hello(sample: &[u8]) -> Option<Learned> {
    let (job, rest) = sample.split_first_chunk()?;
    let (epoch, rest) = rest.split_first_chunk()?;
    let (rank, rest) = rest.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let (mac, rest) = rest.split_first_chunk()?;
    let (ip, rest) = rest.split_first_chunk()?;
    let (udp_port, rest) = rest.split_first_chunk()?;
    let binding = Binding {
        ifindex: u16::from_be_bytes(*port).into(),
        ip: Ip::v4(*ip),
        mac: *mac,
        port: U16::new(u16::from_be_bytes(*udp_port)),
        ..Binding::default()
    };
    let binding = match *rest {
        // What follows only programs that take RoCEv2 say: whether it came as a message.
        [] | [0, _, _, _] => binding,
        [1, high, middle, low] => binding.at_queue_pair(u32::from_be_bytes([0, high, middle, low])),
        _ => return None,
    };
    Some(Learned {
        job: u16::from_be_bytes(*job),
        epoch: u32::from_be_bytes(*epoch),
        rank: u16::from_be_bytes(*rank),
        binding,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs without RoCEv2 say nothing of queue pairs, and others also of sockets.
    #[test]
    fn a_hello_comes_from_a_socket_or_a_queue_pair() {
        let socket = [0, 7, 1, 2, 3, 4, 0, 5, 1, 1, 2, 0, 0, 0, 0, 9, 10, 0, 0, 6, 0x13, 0x88];
        let from = |rest: &[u8]| hello(&[&socket[..], rest].concat());
        let learned = from(&[]).unwrap();
        assert_eq!((learned.job, learned.epoch, learned.rank), (7, 0x0102_0304, 5));
        let binding = learned.binding;
        assert_eq!((binding.ifindex, binding.port.get()), (257, 5000));
        assert_eq!((binding.mac, binding.ip.low()), ([2, 0, 0, 0, 0, 9], [10, 0, 0, 6]));
        assert_eq!(binding.queue_pair(), None);
        assert_eq!(from(&[0, 1, 2, 3]), Some(learned));
        let by_roce = from(&[1, 0xAB, 0xCD, 0xEF]).unwrap();
        assert_eq!(by_roce.binding.queue_pair(), Some(0x00AB_CDEF));
        for wrong in [&[1][..], &[1, 2, 3], &[2, 0, 0, 0], &[1, 0, 0, 0, 0]] {
            assert_eq!(from(wrong), None, "{wrong:?}");
        }
    }
}
