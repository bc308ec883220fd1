//! The data plane in a Tofino switch, which is controlled by BFRT over gRPC.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`names`] | the compiler's names of the program's tables |
//! | [`ports`] | the switch's ports, as a file says |
//! | `front_panel` | sets them up |
//! | [`recirculation`] | by which ports frames come in again |
//! | `connection` | requests to the switch |
//! | `reason` | why the switch has refused a request |
//! | [`programs`] | the compiled programs in a folder |
//! | [`choice`] | which of two programs of a root it is to run |
//! | [`layout`] | which pipelines add up packets of several parts |
//! | [`mod@deploy`] | gives the switch its program |

pub mod choice;
mod connection;
pub mod deploy;
mod front_panel;
pub mod layout;
pub mod names;
pub mod ports;
pub mod programs;
mod reason;
pub mod recirculation;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError, mpsc};

use rbfrt::register;
use rbfrt::table::{MatchValue, Request, TableEntry, TableOperation, ToBytes};
use rbfrt::util::Digest;
use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::Outcome;
use tracing::info;

use switchml_userspace_core::data_plane::EventSink;

use crate::data_plane::{NextHop, P4DataPlane, Role};
use crate::entries::{MAX_GROUPS, PORTS_OF_PIPELINE};
use crate::program::ProgramKind;
use crate::switch::{Entry, Learned, Match, Node, Switch, SwitchError};
use choice::Choice;
use connection::{Command, Connection, Program};
use layout::Layout;
use names::{EXCLUSIONS, Names, NamesError, Register};
use ports::{Port, PortsError, UplinkError};
use programs::Built;

/// Capabilities of a root's program: of `p4/tofino.p4`, or none of `p4/tofino_256.p4`.
pub fn capabilities(names: &Names) -> Capabilities {
    if names.parts > 1 { Capabilities::empty() } else { Capabilities::EMPTY_CONTRIBUTIONS }
}

/// Name of the root's program on the switch.
pub const PROGRAM: &str = "switchml";
/// Name of the one for packets of 256 lanes: so one is not taken for the other.
pub const OF_256: &str = "switchml_256";
/// Name of a combiner's program there.
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
    /// Output folder of `cargo xtask p4 build`, which has the names of the tables: of one program,
    /// or of a root's two.
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
    #[error("the switch at {server}: {why}{}", hint(why, program))]
    Switch { server: SocketAddr, program: String, why: String },
}

impl StartError {
    /// An error of the switch that should run, or get, the program of these names.
    fn of_switch(server: SocketAddr, names: &Names, why: String) -> Self {
        Self::Switch { server, program: names.source(), why }
    }

    /// Whether the switch runs another program.
    fn is_of_program(&self) -> bool {
        matches!(self, Self::Switch { why, .. } if why.contains("program"))
    }
}

fn hint(why: &str, program: &str) -> String {
    if why.contains("reached") {
        "; is bf_switchd running there, with its BFRT server on that port?".to_owned()
    } else if why.contains("program") {
        format!("; deploy this version's {program} with `switchml-aggregator deploy`")
    } else {
        String::new()
    }
}

/// Connects to the switch, which gets another program if that is chosen, clears an earlier daemon's
/// entries, brings the ports up, and serves.
pub fn start(config: &Config, events: EventSink) -> Result<P4DataPlane, StartError> {
    let kind = if config.uplink.is_some() { ProgramKind::Combiner } else { ProgramKind::Root };
    let programs = Built::all(&config.program, kind)?;
    let wanted = ports::read(&config.ports)?;
    let place = |uplink: &Uplink| ports::uplink(&wanted, &uplink.port, &config.ports);
    let uplink = config.uplink.as_ref().map(place).transpose()?;
    let (running, mut switch, mut hellos) = connect(config.server, &programs)?;
    let (chosen, layouts) =
        choose_program(&switch, &programs, &wanted).map_err(|error| switch.error(error))?;
    if chosen != running {
        info!("tofino: sending {} to the switch", programs[chosen].names.source());
        drop(switch);
        (switch, hellos) = deploy::send(config.server, &programs[chosen])?;
    }
    switch.clear().map_err(|error| switch.error(error))?;
    switch.set_up(&wanted, &layouts).map_err(|error| switch.error(error))?;
    let role = match config.uplink.as_ref().zip(uplink) {
        Some((Uplink { mac, .. }, place)) => {
            Role::Combiner(NextHop { port: switch.ports[place], mac: *mac })
        }
        None => Role::Root(capabilities(&switch.names)),
    };
    let names = &programs[chosen].names;
    P4DataPlane::start(Box::new(switch), role, hellos, events)
        .map_err(|error| StartError::of_switch(config.server, names, error.to_string()))
}

/// Connects to a switch that runs one of these programs: which one.
fn connect(
    server: SocketAddr,
    programs: &[Built],
) -> Result<(usize, Tofino, Receiver<Learned>), StartError> {
    let connect_to = |place: usize| {
        let program = &programs[place];
        let running = Program::Running(program.names.program_name());
        let (switch, hellos) = Tofino::connect(server, running, program)?;
        Ok((place, switch, hellos))
    };
    connect_to(0).or_else(|error: StartError| {
        if programs.len() == 1 || !error.is_of_program() {
            return Err(error);
        }
        connect_to(1).map_err(|_| error)
    })
}

/// Which of the programs the switch is to run, and the layouts of packets for the ranks at each
/// pipeline. Only the program for packets of 256 lanes needs some.
fn choose_program(
    switch: &Tofino,
    programs: &[Built],
    wanted: &[Port],
) -> Result<(usize, BTreeMap<u16, Layout>), SwitchError> {
    let Some(wide) = programs.iter().position(|program| program.names.parts > 1) else {
        return Ok((0, BTreeMap::new()));
    };
    let listed = wanted.iter().map(|port| Ok((switch.number_of(port)?, port.speed)));
    let listed = listed.collect::<Result<Vec<_>, SwitchError>>()?;
    let Choice { fits, layouts, why } = choice::choose(&listed, &switch.free_ports(wanted));
    // A folder with one program leaves no choice.
    let chosen = if fits { wide } else { 0 };
    let lanes = 64 * programs[chosen].names.parts;
    info!("tofino: packets of {lanes} lanes: {why}");
    Ok((chosen, if chosen == wide { layouts } else { BTreeMap::new() }))
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
    /// Connects to a switch that runs this program, or gets it.
    fn connect(
        server: SocketAddr,
        how: Program<'_>,
        program: &Built,
    ) -> Result<(Self, Receiver<Learned>), StartError> {
        let names = program.names.clone();
        let (learned, hellos) = mpsc::channel();
        let digest = names.digest.clone();
        let learn =
            move |hello: &Digest| if hello.name == digest { learned_of(hello) } else { None };
        let all = names.all().map(str::to_owned).collect();
        let connection = Connection::open(server, how, all, learn, learned)
            .map_err(|error| StartError::of_switch(server, &names, error.0))?;
        let switch =
            Self { server, connection, names, ports: Vec::new(), groups: Mutex::default() };
        Ok((switch, hellos))
    }

    fn error(&self, error: SwitchError) -> StartError {
        StartError::of_switch(self.server, &self.names, error.0)
    }

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
        let (program, ports) = (self.names.program_name(), self.ports.len());
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
