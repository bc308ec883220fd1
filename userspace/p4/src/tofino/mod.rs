//! The data plane in a Tofino switch, which is controlled by BFRT over gRPC.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`names`] | the compiler's names of the program's tables |
//! | [`ports`] | the switch's ports, as a file says |
//! | `connection` | requests to the switch |
//! | `reason` | why the switch has refused a request |
//! | [`mod@deploy`] | gives the switch its program |

mod connection;
pub mod deploy;
pub mod names;
pub mod ports;
mod reason;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, mpsc};

use rbfrt::register;
use rbfrt::table::{MatchValue, Request, TableEntry, TableOperation, ToBytes};
use rbfrt::util::Digest;
use switchml_protocol::U16;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::job::Binding;
use switchml_protocol::outcome::Outcome;

use switchml_userspace_core::data_plane::EventSink;

use crate::data_plane::{NextHop, P4DataPlane, Role};
use crate::entries::{MAX_GROUPS, PORTS_OF_PIPELINE};
use crate::program::ProgramKind;
use crate::switch::{Entry, Learned, Match, Node, Switch, SwitchError};
use connection::{Command, Connection, Program};
use names::{EXCLUSIONS, Names, NamesError, Register};
use ports::{Port, PortsError, UplinkError};

/// Capabilities of a root's program: of `p4/tofino.p4`, or none of `p4/tofino_256.p4`.
pub fn capabilities(names: &Names) -> Capabilities {
    if names.parts > 1 { Capabilities::empty() } else { Capabilities::EMPTY_CONTRIBUTIONS }
}

/// Name of the root's program on the switch.
pub const PROGRAM: &str = "switchml";
/// Name of a combiner's program there: so it is not taken for the root's.
pub const COMBINER: &str = "switchml_combiner";
/// The data plane's name, and the beginning of its programs' names in `p4/`.
const NAME: &str = "tofino";
/// The compiler's description of the tables, in the folder that it filled.
const SCHEMA: &str = "bf-rt.json";

/// The key of a register's entries.
const INDEX: &str = "$REGISTER_INDEX";

/// The program's own default action of `stations`, the only table whose default the control plane
/// changes.
const STATIONS_DEFAULT: &str = "nowhere";

/// The switch, its program and its ports.
#[derive(Clone, Debug)]
pub struct Config {
    /// The switch's BFRT server.
    pub server: SocketAddr,
    /// Output folder of `cargo xtask p4 build`, which has the names of the tables.
    pub program: PathBuf,
    /// File with the ports to bring up.
    pub ports: PathBuf,
    /// The way to a combiner's parent; `None` if the switch is the root.
    pub uplink: Option<Uplink>,
}

/// The way to a combiner's parent.
#[derive(Clone, Debug)]
pub struct Uplink {
    /// Name of the port.
    pub port: String,
    /// MAC of the parent, or of the router on the way.
    pub mac: [u8; 6],
}

/// Why the data plane cannot start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StartError {
    #[error(transparent)]
    Names(#[from] NamesError),
    #[error(transparent)]
    Ports(#[from] PortsError),
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    #[error("the switch at {server}: {why}{}", hint(why, *program))]
    Switch { server: SocketAddr, program: ProgramKind, why: String },
}

fn hint(why: &str, program: ProgramKind) -> String {
    if why.contains("reached") {
        "; is bf_switchd running there, with its BFRT server on that port?".to_owned()
    } else if why.contains("program") {
        let source = program.source(NAME);
        format!("; deploy this version's {source} with `switchml-aggregator deploy`")
    } else {
        String::new()
    }
}

/// The name that a switch knows a program by.
const fn name_of(program: ProgramKind) -> &'static str {
    match program {
        ProgramKind::Root => PROGRAM,
        ProgramKind::Combiner => COMBINER,
    }
}

/// Connects to the switch, clears an earlier daemon's entries, brings the ports up, and serves.
pub fn start(config: &Config, events: EventSink) -> Result<P4DataPlane, StartError> {
    let program = if config.uplink.is_some() { ProgramKind::Combiner } else { ProgramKind::Root };
    let names = Names::read(&config.program.join(SCHEMA), program)?;
    let wanted = ports::read(&config.ports)?;
    let place = |uplink: &Uplink| ports::uplink(&wanted, &uplink.port, &config.ports);
    let uplink = config.uplink.as_ref().map(place).transpose()?;
    let failed = |why: String| StartError::Switch { server: config.server, program, why };
    let (learned, hellos) = mpsc::channel();
    let digest = names.digest.clone();
    let learn = move |hello: &Digest| if hello.name == digest { learned_of(hello) } else { None };
    let all = names.all().map(str::to_owned).collect();
    let connection =
        Connection::open(config.server, Program::Running(name_of(program)), all, learn, learned);
    let mut switch = Tofino {
        server: config.server,
        connection: connection.map_err(|error| failed(error.0))?,
        names,
        ports: Vec::new(),
        groups: Mutex::default(),
    };
    switch.clear().map_err(|error| failed(error.0))?;
    // Frames from other ports have the id 0.
    for (exclusion_id, port) in (1..).zip(&wanted) {
        let failed = |error| failed(format!("port {}: {error}", port.name));
        let number = switch.bring_up(port).map_err(failed)?;
        switch.keep_from(number, exclusion_id).map_err(failed)?;
        switch.ports.push(number);
    }
    let role = match config.uplink.as_ref().zip(uplink) {
        Some((Uplink { mac, .. }, place)) => {
            Role::Combiner(NextHop { port: switch.ports[place], mac: *mac })
        }
        None => Role::Root(capabilities(&switch.names)),
    };
    P4DataPlane::start(Box::new(switch), role, hellos, events)
        .map_err(|error| failed(error.to_string()))
}

/// A switch with a connection that is bound to the program.
struct Tofino {
    server: SocketAddr,
    connection: Connection,
    names: Names,
    /// Numbers of the ports that were brought up.
    ports: Vec<u16>,
    /// Existing multicast groups.
    groups: Mutex<BTreeSet<u16>>,
}

impl Tofino {
    fn run(&self, command: Command) -> Result<(), SwitchError> {
        self.connection.run(command).map(drop)
    }

    /// Empties all tables that are the control plane's.
    fn clear(&self) -> Result<(), SwitchError> {
        for table in self.names.tables() {
            self.run(Command::Delete(vec![Request::new(&table.name)]))?;
        }
        for group in 1..=MAX_GROUPS {
            // Most groups do not exist, which is an error.
            let _ = self.delete_group(group);
        }
        Ok(())
    }

    /// Brings a port up, and returns its number. A port with the right settings stays up.
    fn bring_up(&self, port: &Port) -> Result<u16, SwitchError> {
        let by_name = Request::new("$PORT_STR_INFO")
            .match_key("$PORT_NAME", MatchValue::exact(port.name.as_str()));
        let found = self.connection.run(Command::Read(vec![by_name]))?;
        let number = found
            .first()
            .and_then(|entry| entry.get_action_data("$DEV_PORT").ok())
            .map(|data| data.as_u32());
        let number =
            number.ok_or_else(|| SwitchError("there is no port of that name".to_owned()))?;
        let entry = || Request::new("$PORT").match_key("$DEV_PORT", MatchValue::exact(number));
        let settings = [
            ("$SPEED", port.speed.bfrt()),
            ("$FEC", port.fec.bfrt()),
            ("$AUTO_NEGOTIATION", port.auto_negotiation.bfrt()),
        ];
        let wanted = settings
            .into_iter()
            .fold(entry(), |request, (name, value)| request.action_data(name, value));
        let wanted = wanted.action_data("$PORT_ENABLE", true);
        // A port that does not exist cannot be read.
        let is_right = self.connection.run(Command::Read(vec![entry()])).is_ok_and(|entries| {
            entries.iter().any(|found| {
                let is = |name: &str, value: &str| {
                    found
                        .get_action_data(name)
                        .is_ok_and(|data| data.get_data() == value.as_bytes())
                };
                let is_enabled = found
                    .get_action_data("$PORT_ENABLE")
                    .is_ok_and(|data| data.get_data().to_bool());
                is_enabled && settings.into_iter().all(|(name, value)| is(name, value))
            })
        });
        if !is_right {
            // Such a port cannot be deleted, either. A port's speed cannot be changed, so the port
            // is made again.
            let _ = self.run(Command::Delete(vec![entry()]));
            self.run(Command::Insert(vec![wanted]))?;
        }
        Ok(number as u16)
    }

    /// Gives frames from a port this exclusion id, and keeps flooded frames with this id from
    /// leaving by the port.
    fn keep_from(&self, port: u16, id: u16) -> Result<(), SwitchError> {
        let pruned = Request::new("$pre.prune")
            .match_key("$MULTICAST_L2_XID", MatchValue::exact(id))
            .action_data_repeated("$DEV_PORT", vec![u32::from(port)]);
        // An existing entry is overwritten.
        self.run(Command::Insert(vec![pruned]))?;
        self.insert(&exclusion(port, id))
    }

    fn delete_group(&self, group: u16) -> Result<(), SwitchError> {
        let groups = self.run(Command::Delete(vec![group_entry(group)]));
        // A node may be left by a daemon that died between the two.
        self.run(Command::Delete(vec![node_entry(group)])).and(groups)
    }

    /// The entry, as a request about its table.
    fn request(&self, entry: &Entry) -> Request {
        let table = self.names.table(entry.table);
        let request =
            entry.key.iter().fold(Request::new(&table.name), |request, (name, matched)| {
                let matched = match *matched {
                    Match::Exact(value) => MatchValue::exact(value),
                    Match::Ternary { value, mask } => MatchValue::ternary(value, mask),
                };
                request.match_key(table.field(name), matched)
            });
        let is_ternary =
            entry.key.iter().any(|(_, matched)| matches!(matched, Match::Ternary { .. }));
        let request = if is_ternary {
            request.match_key("$MATCH_PRIORITY", MatchValue::exact(entry.priority))
        } else {
            request.default(entry.key.is_empty())
        };
        let request = request.action(table.action(entry.action));
        entry.data.iter().fold(request, |request, (name, value)| request.action_data(name, *value))
    }
}

impl Switch for Tofino {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attachment(&self) -> String {
        let (program, ports) = (name_of(self.names.program), self.ports.len());
        format!("program {program} on the switch at {}, {ports} ports", self.server)
    }

    fn sets(&self) -> u32 {
        self.names.sets
    }

    fn parts(&self) -> u16 {
        self.names.parts
    }

    fn ports(&self) -> &[u16] {
        &self.ports
    }

    fn pipeline(&self, port: u16) -> u16 {
        pipeline_of(port)
    }

    fn insert(&self, entry: &Entry) -> Result<(), SwitchError> {
        let request = vec![self.request(entry)];
        // A default action always exists.
        self.run(if entry.key.is_empty() {
            Command::Modify(request)
        } else {
            Command::Insert(request)
        })
    }

    fn modify(&self, entry: &Entry) -> Result<(), SwitchError> {
        self.run(Command::Modify(vec![self.request(entry)]))
    }

    fn delete(&self, entry: &Entry) -> Result<(), SwitchError> {
        if entry.key.is_empty() {
            // Deleting without a key would empty the table.
            let default = Entry { action: STATIONS_DEFAULT, data: Vec::new(), ..entry.clone() };
            return self.modify(&default);
        }
        self.run(Command::Delete(vec![self.request(entry)]))
    }

    fn write_register(
        &self,
        name: &str,
        indices: Range<u32>,
        value: u32,
    ) -> Result<(), SwitchError> {
        let Register { name, field } = self.names.register(name);
        let write = |index| register::Request::new(name).index(index).data(field, value);
        self.run(Command::WriteRegister(indices.map(write).collect()))
    }

    /// The driver keeps a copy of registers, which an operation on the whole register renews.
    fn renew(&self, register: &str) -> Result<(), SwitchError> {
        let request = Request::new(&self.names.register(register).name);
        self.run(Command::Operate(request.operation(TableOperation::SyncRegister)))
    }

    fn read_register(
        &self,
        name: &str,
        pipeline: u16,
        indices: Range<u32>,
    ) -> Result<Vec<u32>, SwitchError> {
        let register = self.names.register(name);
        let read = |index| Request::new(&register.name).match_key(INDEX, MatchValue::exact(index));
        let found = self.connection.run(Command::Read(indices.clone().map(read).collect()))?;
        let found: HashMap<_, _> =
            found.iter().filter_map(|entry| value(entry, &register.field, pipeline)).collect();
        let values = indices.map(|index| {
            let lacking = || SwitchError(format!("it does not show entry {index} of {name}"));
            found.get(&index).copied().ok_or_else(lacking)
        });
        values.collect()
    }

    /// A group has one node, which has the group's number here.
    fn set_node(&self, Node { group, .. }: Node, ports: &[u16]) -> Result<(), SwitchError> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let ports: Vec<u32> = ports.iter().copied().map(u32::from).collect();
        let node = node_entry(group)
            .action_data("$MULTICAST_RID", group)
            .action_data_repeated("$MULTICAST_LAG_ID", Vec::<u32>::new())
            .action_data_repeated("$DEV_PORT", ports.clone());
        match (ports.is_empty(), groups.contains(&group)) {
            (true, false) => {}
            (true, true) => {
                self.delete_group(group)?;
                groups.remove(&group);
            }
            (false, true) => self.run(Command::Modify(vec![node]))?,
            (false, false) => {
                self.run(Command::Insert(vec![node]))?;
                let entry = group_entry(group)
                    .action_data_repeated("$MULTICAST_NODE_ID", vec![u32::from(group)])
                    .action_data_repeated("$MULTICAST_NODE_L1_XID_VALID", vec![false])
                    .action_data_repeated("$MULTICAST_NODE_L1_XID", vec![0u32]);
                self.run(Command::Insert(vec![entry]))?;
                groups.insert(group);
            }
        }
        Ok(())
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], SwitchError> {
        let table = &self.names.outcomes;
        self.run(Command::Operate(Request::new(table).operation(TableOperation::SyncCounters)))?;
        let read = |index: usize| {
            Request::new(table).match_key("$COUNTER_INDEX", MatchValue::exact(index as u32))
        };
        let entries =
            self.connection.run(Command::Read((0..Outcome::COUNT).map(read).collect()))?;
        let mut packets = [0; Outcome::COUNT];
        for entry in &entries {
            let index =
                entry.get_key("$COUNTER_INDEX").map(|key| key.get_exact_value().to_u32() as usize);
            let count = entry.get_action_data("$COUNTER_SPEC_PKTS").map(|data| data.as_u64());
            if let (Ok(index @ 0..Outcome::COUNT), Ok(count)) = (index, count) {
                packets[index] = count;
            }
        }
        Ok(packets)
    }
}

/// The pipeline of a port.
pub fn pipeline_of(port: u16) -> u16 {
    port / PORTS_OF_PIPELINE
}

/// The entry that gives frames from a port their exclusion id.
pub fn exclusion(port: u16, id: u16) -> Entry {
    Entry {
        table: EXCLUSIONS.name,
        key: vec![("port", Match::Exact(port.into()))],
        priority: 0,
        action: "exclude",
        data: vec![("id", id.into())],
    }
}

fn group_entry(group: u16) -> Request {
    Request::new("$pre.mgid").match_key("$MGID", MatchValue::exact(group))
}

fn node_entry(group: u16) -> Request {
    Request::new("$pre.node").match_key("$MULTICAST_NODE_ID", MatchValue::exact(u32::from(group)))
}

/// Index and value of a register's entry, whose field comes once for each pipeline.
fn value(entry: &TableEntry, field: &str, pipeline: u16) -> Option<(u32, u32)> {
    let index = big_endian(entry.get_key(INDEX).ok()?.get_exact_value());
    let mut values = entry.action_data.iter().filter(|data| data.get_key() == field);
    Some((index as u32, big_endian(values.nth(pipeline.into())?.get_data()) as u32))
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The HELLO in a digest; `None` if a field is missing.
fn learned_of(digest: &Digest) -> Option<Learned> {
    let number = |name: &str| digest.data.get(name).map(|bytes| big_endian(bytes));
    let [_, _, mac @ ..] = number("mac")?.to_be_bytes();
    let binding = Binding {
        ifindex: number("port")? as u32,
        ip: (number("address")? as u32).to_be_bytes().into(),
        mac,
        port: U16::new(number("udp_port")? as u16),
        ..Binding::default()
    };
    Some(Learned {
        job: number("job")? as u16,
        epoch: number("epoch")? as u32,
        rank: number("rank")? as u16,
        binding,
    })
}
