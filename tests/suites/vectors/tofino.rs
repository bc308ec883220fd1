//! The compiled programs for Tofino on a model of the chip: open-p4studio's, in its test harness
//! with the commands of `tofino_harness.cpp`.
//!
//! The daemon's data plane writes the tables, with the names from the compiler's bf-rt.json. New
//! here is how a write gets into the chip; on a real switch the driver does this.

use crate::in_kernel::PORTS;
use crate::p4::{Left, P4Switch, Ports};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, PipeReader, Write, pipe};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use switchml_p4::data_plane::{NextHop, P4DataPlane, Role};
use switchml_p4::entries::{MOST_LOSSES, MOST_PARTS, PORTS_OF_PIPELINE, ROUNDS, most_ternary};
use switchml_p4::program::ProgramKind;
use switchml_p4::switch::{Entry, Learned, Match, Node, Switch, SwitchError};
use switchml_p4::tofino::names::Names;
use switchml_p4::tofino::recirculation::{OWN_PORT, PortsOfParts, entries, own_port};
use switchml_p4::tofino::{capabilities, exclusion, pipeline_of};
use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::outcome::Outcome;
use switchml_rack::p4_compilers::compile_for_tofino;
use switchml_rack::tofino_model::{self, HARNESS};

/// The next port after a pipeline's own recirculation port.
pub const SECOND_CHANNEL: u16 = OWN_PORT + 1;

/// The program's own default action of `stations`.
const STATIONS_DEFAULT: &str = "nowhere";
/// Job, epoch, rank, port, MAC, address and UDP port of a HELLO.
const DIGEST_FIELDS: usize = 7;

/// The register with the age of a combiner's cells.
const CELLS: &str = "Ingress.aggregator.cell.lease.begins";

/// The program for packets of up to 64 lanes, for packets of up to 256, and the combiner: folders
/// into which `cargo xtask p4 build` writes them.
pub const OF_64: &str = "p4";
pub const OF_256: &str = "p4/256";
pub const COMBINER: &str = "p4/combiner";
/// The combiner with one cell, so that keys collide: the test compiles it.
pub const OF_ONE_CELL: &str = "p4/one_cell";

/// The reason why there is no model with the program, if there is none.
pub fn obstacle(program: &str) -> Option<String> {
    tofino_model::obstacle(&folder(program))
}

/// Compiles the combiner of one cell.
pub fn compile_one_cell() -> Result<(), String> {
    let folder = folder(OF_ONE_CELL);
    compile_for_tofino("p4/tofino_combiner.p4", &["ONE_CELL"], &folder).map(drop)
}

fn folder(program: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(program)
}

/// A model served by a data plane, with the vectors' ports at one pipeline and without jobs.
pub fn start(program: &str, pipeline: u16) -> P4Switch<ModelPorts> {
    start_with(program, pipeline, &[(); 4].map(|()| vec![own_port(pipeline)]))
}

/// The same, with these ports by which frames come in to each part of a packet, if the program is
/// one for packets of several parts: the pipeline's own recirculation port, and ports in loopback
/// of any pipeline.
pub fn start_with(
    program: &str,
    pipeline: u16,
    recirculation: &PortsOfParts,
) -> P4Switch<ModelPorts> {
    let (learned, hellos) = mpsc::channel();
    let others = recirculation.iter().flatten().map(|port| pipeline_of(*port));
    let others = others.filter(|other| *other != pipeline).collect();
    let model = Arc::new(Model::start(&folder(program), pipeline, others));
    let ports = (1..=PORTS as u16).map(|port| model.first_port() + port).collect();
    let switch = ModelSwitch { model: model.clone(), ports };
    switch.keep_ports_from_their_own_frames().expect("exclusion ids");
    let is_looped = |port: &u16| *port != own_port(pipeline);
    let loops: BTreeSet<_> = recirculation.iter().flatten().copied().filter(is_looped).collect();
    switch.recirculate_by(pipeline, recirculation, &loops).expect("recirculation ports");
    let role = match model.names.program {
        ProgramKind::Root => Role::Root(capabilities(&model.names)),
        // As the vectors have it.
        ProgramKind::Combiner => Role::Combiner(NextHop {
            port: model.first_port() + PORTS as u16,
            mac: [2, 0, 0, 0, 1, 0xFE],
        }),
    };
    let data_plane =
        P4DataPlane::start(Box::new(switch), role, hellos, Box::new(drop)).expect("a data plane");
    let of_parts = recirculation.each_ref().map(|ports| pipeline_of(ports[0]));
    let has_one_cell = program == OF_ONE_CELL;
    P4Switch::new(data_plane, ModelPorts { model, loops, of_parts, has_one_cell, learned })
}

/// The harness as a process, and the compiler's description of the program.
struct Model {
    harness: Mutex<Harness>,
    names: Names,
    context: Value,
    /// The pipeline of the ranks.
    pipeline: u16,
    /// Other pipelines that add up parts of packets.
    others: BTreeSet<u16>,
    places: Mutex<Places>,
}

struct Harness {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<PipeReader>,
}

impl Harness {
    /// Starts the harness with the program loaded; the harness enters its constant entries.
    fn start(program: &Path) -> Self {
        let (answers, writer) = pipe().expect("a pipe");
        let mut command = Command::new(HARNESS);
        // The tables come after the program, because loading the program empties them.
        command
            .arg("-l")
            .arg(program.join("pipe/tofino.bin"))
            .arg("-l")
            .arg(program.join("pipe/context.json"));
        command.arg("-").stdin(Stdio::piped());
        command.stdout(writer.try_clone().expect("a pipe")).stderr(writer);
        let mut process = command.spawn().expect("the harness");
        drop(command);
        let commands = process.stdin.take().expect("its input");
        let mut harness = Self { process, commands, answers: BufReader::new(answers) };
        // Messages while it loads concern entries that `enter_constants` enters again.
        harness.ask(&[]).expect("a harness that has the commands of tofino_harness.cpp");
        harness
    }

    /// Runs commands, and returns what they print.
    fn ask(&mut self, commands: &[String]) -> Result<Vec<String>, String> {
        let script: String = commands.iter().map(|command| format!("{command}\n")).collect();
        self.commands
            .write_all(format!("{script}done\n").as_bytes())
            .map_err(|error| error.to_string())?;
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            match self.answers.read_line(&mut line) {
                Ok(0) => return Err(format!("the harness ended: {}", lines.join("; "))),
                Ok(_) if line == "done\n" => return Ok(lines),
                Ok(_) if line.contains("Unknown command") => return Err(line),
                Ok(_) => lines.push(line.trim_end().to_owned()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Model {
    fn start(program: &Path, pipeline: u16, others: BTreeSet<u16>) -> Self {
        let text =
            std::fs::read_to_string(program.join("pipe/context.json")).expect("context.json");
        let model = Self {
            harness: Mutex::new(Harness::start(program)),
            names: Names::read_any(&program.join("bf-rt.json")).expect("bf-rt.json"),
            context: serde_json::from_str(&text).expect("JSON"),
            pipeline,
            others,
            places: Mutex::default(),
        };
        model.run(&[format!("pipeline {pipeline}")]).expect("a pipeline");
        model.enter_constants().expect("constant entries");
        model
    }

    /// Runs commands that print nothing, unless something is wrong.
    fn run(&self, commands: &[String]) -> Result<(), String> {
        let said = lock(&self.harness).ask(commands)?;
        if said.is_empty() { Ok(()) } else { Err(said.join("; ")) }
    }

    /// Enters constant entries again that the harness enters wrongly: entries that match slices of
    /// fields, which it takes for the lowest bits, and entries with masks, which it takes to be as
    /// wide as a field's first container.
    fn enter_constants(&self) -> Result<(), String> {
        let mut commands = Vec::new();
        for table in list(&self.context["tables"]) {
            let key = || list(&table["match_key_fields"]);
            let stages = list(&table["match_attributes"]["stage_tables"]);
            let places: u64 = stages.filter_map(|stage| stage["size"].as_u64()).sum();
            let is_ternary = table["match_attributes"]["match_type"] == "ternary";
            if !is_ternary && key().all(|field| field["start_bit"] == 0) {
                continue;
            }
            for entry in list(&table["static_entries"]) {
                // An exact table of slices has a single place for each match.
                let place = if is_ternary { places - 1 - number(&entry["priority"]) } else { 0 };
                let matches = list(&entry["match_key_fields_values"]).map(|matched| {
                    let field = key()
                        .find(|field| field["name"] == matched["field_name"])
                        .expect("a field of the key");
                    let value = hex(&matched["value"]) << number(&field["start_bit"]);
                    let mask = matched.get("mask").map(hex);
                    let matched =
                        mask.map_or(Match::Exact(value), |mask| Match::Ternary { value, mask });
                    format!(" {}:{}", text(&field["name"]), pattern(&matched))
                });
                let action = list(&table["actions"])
                    .find(|action| action["handle"] == entry["action_handle"]);
                let data = list(&entry["action_parameters_values"]).map(|value| {
                    format!("{}:{}", text(&value["parameter_name"]), text(&value["value"]))
                });
                commands.push(format!(
                    "add {} {place}{} {}({})",
                    text(&table["name"]),
                    matches.collect::<String>(),
                    text(&action.expect("an action of that handle")["name"]),
                    data.collect::<Vec<_>>().join(",")
                ));
            }
        }
        self.run(&commands)
    }

    /// The entry as the harness takes it, in a place if its table is one that matches by priority.
    fn command(&self, verb: &str, entry: &Entry, place: Option<usize>) -> String {
        let table = self.names.table(entry.table);
        let place = place.map(|place| format!(" {place}")).unwrap_or_default();
        let key: String = entry
            .key
            .iter()
            .map(|(name, matched)| format!(" {}:{}", table.field(name), pattern(matched)))
            .collect();
        format!(
            "{verb} {}{place}{key} {}",
            of_pipeline(&table.name),
            self.action(entry.table, entry.action, &entry.data)
        )
    }

    fn action(&self, table: &str, action: &str, data: &[(&'static str, u64)]) -> String {
        let data: Vec<_> = data.iter().map(|(name, value)| format!("{name}:{value}")).collect();
        format!("{}({})", self.names.table(table).action(action), data.join(","))
    }

    fn set_default(
        &self,
        table: &str,
        action: &str,
        data: &[(&'static str, u64)],
    ) -> Result<(), String> {
        let action = self.action(table, action, data);
        self.run(&[format!("setdefault {} {action}", of_pipeline(&self.names.table(table).name))])
    }

    /// Runs a command on an entry, which keeps its place in its table, or gets one.
    fn change(&self, verb: &str, entry: &Entry) -> Result<(), String> {
        let is_ordered =
            entry.key.iter().any(|(_, matched)| matches!(matched, Match::Ternary { .. }));
        let place = is_ordered.then(|| lock(&self.places).of(entry)).transpose()?;
        self.run(&[self.command(verb, entry, place)])?;
        if verb == "delete" {
            lock(&self.places).free(entry);
        }
        Ok(())
    }

    /// The lowest number of the ranks' pipeline's ports.
    fn first_port(&self) -> u16 {
        self.pipeline * PORTS_OF_PIPELINE
    }

    /// The command in another pipeline than the ranks', which is the harness's otherwise.
    fn at(&self, pipeline: u16, command: String) -> Vec<String> {
        if pipeline == self.pipeline {
            return vec![command];
        }
        vec![format!("pipeline {pipeline}"), command, format!("pipeline {}", self.pipeline)]
    }

    fn pipelines(&self) -> impl Iterator<Item = u16> {
        [self.pipeline].into_iter().chain(self.others.iter().copied())
    }

    fn read(&self, pipeline: u16, name: &str, range: Range<u32>) -> Result<Vec<u64>, String> {
        let read = format!("read {} {} {}", of_pipeline(name), range.start, range.len());
        let said = lock(&self.harness).ask(&self.at(pipeline, read))?;
        let value =
            |line: &String| line.strip_prefix("value ").and_then(|value| value.parse().ok());
        said.iter().map(value).collect::<Option<_>>().ok_or_else(|| said.join("; "))
    }

    fn write_rounds(&self, sets: Range<u32>, round: u32) -> Result<(), String> {
        self.write(of_pipeline(&self.names.register(ROUNDS).name), sets, round)
    }

    fn write(&self, register: &str, entries: Range<u32>, value: u32) -> Result<(), String> {
        let (first, count) = (entries.start, entries.len());
        let write = format!("write_register {register} {first} {count} {value}");
        let writes = self.pipelines().flat_map(|pipeline| self.at(pipeline, write.clone()));
        self.run(&writes.collect::<Vec<_>>())
    }

    /// The HELLO that a digest reports.
    fn learned(&self, digest: &[u8]) -> Option<Learned> {
        // A field in several containers comes in as many parts, one after the other.
        let mut fields: Vec<(&str, u64)> = Vec::new();
        for part in list(&self.context["learn_quanta"][0]["fields"]) {
            let start = part["start_byte"].as_u64()? as usize;
            let bytes =
                digest.get(start..start + (part["field_width"].as_u64()? as usize).div_ceil(8))?;
            let name = text(&part["field_name"]);
            if fields.last().is_none_or(|(last, _)| *last != name) {
                fields.push((name, 0));
            }
            let (_, value) = fields.last_mut()?;
            *value = bytes.iter().fold(*value, |value, byte| value << 8 | u64::from(*byte));
        }
        let values: [u64; DIGEST_FIELDS] =
            fields.iter().map(|(_, value)| *value).collect::<Vec<_>>().try_into().ok()?;
        let [job, epoch, rank, port, mac, address, udp_port] = values;
        let [_, _, mac @ ..] = mac.to_be_bytes();
        let ip = (address as u32).to_be_bytes().into();
        let binding = Binding {
            ifindex: port as u32,
            ip,
            mac,
            port: U16::new(udp_port as u16),
            ..Binding::default()
        };
        Some(Learned { job: job as u16, epoch: epoch as u32, rank: rank as u16, binding })
    }
}

/// Places of the entries in tables that match by priority: on the chip, the highest matching place
/// wins.
///
/// Each priority has its own places, as many as it ever needs.
#[derive(Default)]
struct Places(BTreeMap<(&'static str, u32), Vec<Option<EntryKey>>>);

type EntryKey = Vec<(&'static str, Match)>;

impl Places {
    /// The places of a table that matches by priority.
    fn of_table(table: &str) -> usize {
        match table {
            "recirculation" => 1024,
            "losses" => MOST_LOSSES,
            _ => 1024,
        }
    }

    /// The place of an entry, which gets a free one if it has none.
    fn of(&mut self, entry: &Entry) -> Result<usize, String> {
        let keys = self.0.entry((entry.table, entry.priority)).or_default();
        let held = keys.iter().position(|key| key.as_ref() == Some(&entry.key));
        let index = held.or_else(|| keys.iter().position(Option::is_none)).unwrap_or(keys.len());
        keys.resize(keys.len().max(index + 1), None);
        keys[index] = Some(entry.key.clone());
        let first: usize =
            (0..entry.priority).map(|priority| most_ternary(entry.table, priority)).sum();
        let all = Self::of_table(entry.table);
        let most = match entry.table {
            "recirculation" => all,
            table => most_ternary(table, entry.priority),
        };
        if index < most && first + index < all {
            Ok(all - 1 - first - index)
        } else {
            Err(format!(
                "{} has {most} places of priority {}, and one more is needed",
                entry.table, entry.priority
            ))
        }
    }

    /// The entry has gone.
    fn free(&mut self, entry: &Entry) {
        let keys = self.0.entry((entry.table, entry.priority)).or_default();
        keys.iter_mut().filter(|key| key.as_ref() == Some(&entry.key)).for_each(|key| *key = None);
    }
}

/// The model, as the data plane has it.
struct ModelSwitch {
    model: Arc<Model>,
    ports: Vec<u16>,
}

impl Switch for ModelSwitch {
    fn name(&self) -> &'static str {
        "tofino"
    }

    fn attachment(&self) -> String {
        HARNESS.to_owned()
    }

    fn sets(&self) -> u32 {
        self.model.names.sets
    }

    fn parts(&self) -> u16 {
        self.model.names.parts
    }

    fn ports(&self) -> &[u16] {
        &self.ports
    }

    fn pipeline(&self, port: u16) -> u16 {
        pipeline_of(port)
    }

    fn insert(&self, entry: &Entry) -> Result<(), SwitchError> {
        let done = if entry.key.is_empty() {
            self.model.set_default(entry.table, entry.action, &entry.data)
        } else {
            self.model.change("insert", entry)
        };
        done.map_err(SwitchError)
    }

    fn modify(&self, entry: &Entry) -> Result<(), SwitchError> {
        let done = if entry.key.is_empty() {
            self.model.set_default(entry.table, entry.action, &entry.data)
        } else {
            self.model.change("delete", entry).and_then(|()| self.model.change("insert", entry))
        };
        done.map_err(SwitchError)
    }

    fn delete(&self, entry: &Entry) -> Result<(), SwitchError> {
        let done = if entry.key.is_empty() {
            self.model.set_default(entry.table, STATIONS_DEFAULT, &[])
        } else {
            self.model.change("delete", entry)
        };
        done.map_err(SwitchError)
    }

    fn write_register(
        &self,
        name: &str,
        indices: Range<u32>,
        value: u32,
    ) -> Result<(), SwitchError> {
        assert_eq!(name, ROUNDS, "the one register that is written");
        self.model.write_rounds(indices, value).map_err(SwitchError)
    }

    fn renew(&self, _: &str) -> Result<(), SwitchError> {
        Ok(())
    }

    fn read_register(
        &self,
        name: &str,
        pipeline: u16,
        indices: Range<u32>,
    ) -> Result<Vec<u32>, SwitchError> {
        let register = &self.model.names.register(name).name;
        let values = self.model.read(pipeline, register, indices).map_err(SwitchError)?;
        Ok(values.into_iter().map(|value| value as u32).collect())
    }

    fn set_node(&self, Node { group, .. }: Node, ports: &[u16]) -> Result<(), SwitchError> {
        let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
        self.model.run(&[format!("group {group} {}", ports.join(" "))]).map_err(SwitchError)
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], SwitchError> {
        let mut packets = [0; Outcome::COUNT];
        for pipeline in self.model.pipelines() {
            let all = 0..Outcome::COUNT as u32;
            let values = self.model.read(pipeline, &self.model.names.outcomes, all);
            let values = values.map_err(SwitchError)?;
            packets.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        Ok(packets)
    }
}

impl ModelSwitch {
    fn keep_ports_from_their_own_frames(&self) -> Result<(), String> {
        for &port in &self.ports {
            let id = port;
            self.model.change("insert", &exclusion(port, id))?;
            self.model.run(&[format!("prune {id} {port}")])?;
        }
        Ok(())
    }

    /// Has frames come in again by these ports, of which some are in loopback.
    fn recirculate_by(
        &self,
        pipeline: u16,
        ports: &PortsOfParts,
        loops: &BTreeSet<u16>,
    ) -> Result<(), String> {
        if self.model.names.parts == 1 {
            return Ok(());
        }
        let told: Vec<_> = loops.iter().map(|port| format!("loopback {port}")).collect();
        self.model.run(&told)?;
        entries(pipeline, ports).iter().try_for_each(|entry| self.model.change("insert", entry))
    }
}

/// The model, as who is at its ports has it.
pub struct ModelPorts {
    model: Arc<Model>,
    /// Ports by which the test has what leaves come in again, because the model does not: those in
    /// loopback, and other pipelines' own.
    loops: BTreeSet<u16>,
    /// The pipeline that adds up each part.
    of_parts: [u16; MOST_PARTS as usize],
    has_one_cell: bool,
    learned: mpsc::Sender<Learned>,
}

impl Ports for ModelPorts {
    fn features(&self) -> &'static [&'static str] {
        match (self.model.names.program, self.model.names.parts) {
            (ProgramKind::Combiner, _) if self.has_one_cell => {
                &["collisions", "combiner", "frames", "long"]
            }
            (ProgramKind::Combiner, _) => &["combiner", "frames", "long"],
            (ProgramKind::Root, 1) => &["age", "empty", "frames", "long"],
            (ProgramKind::Root, _) => &["age", "frames", "long"],
        }
    }

    fn parts(&self) -> (u32, u32) {
        let parts = u32::from(self.model.names.parts);
        (parts, self.model.names.sets / parts)
    }

    fn exchange(
        &mut self,
        _: &P4DataPlane,
        port: u16,
        frames: &[Vec<u8>],
    ) -> Result<Vec<Left>, String> {
        let first = self.model.first_port();
        let mut left = Vec::new();
        let mut coming: Vec<_> = frames.iter().map(|frame| (first + port, frame.clone())).collect();
        while !coming.is_empty() {
            let leaving = self.pass(&coming)?;
            coming = Vec::new();
            for (port, frame) in leaving {
                if self.loops.contains(&port) {
                    coming.push((port, frame));
                } else {
                    let port = port.checked_sub(first).ok_or("it left at another pipeline")?;
                    left.push((port, frame));
                }
            }
        }
        Ok(left)
    }

    /// Makes all cells look as if they were never used: the model's time does not go on.
    fn forget(&mut self) -> Result<(), String> {
        match self.model.names.program {
            ProgramKind::Root => Ok(()),
            ProgramKind::Combiner => self.model.write(CELLS, 0..self.model.names.sets, 0),
        }
    }

    fn round(&mut self, set: u32) -> Result<u32, String> {
        let rounds = &self.model.names.register(ROUNDS).name;
        let (_, stride) = self.parts();
        let pipeline = self.of_parts[(set / stride) as usize];
        Ok(self.model.read(pipeline, rounds, set..set + 1)?[0] as u32)
    }

    fn set_round(&mut self, set: u32, round: u32) -> Result<(), String> {
        self.model.write_rounds(set..set + 1, round)
    }
}

impl ModelPorts {
    /// Sends frames into ports, and returns what leaves until the chip is idle.
    fn pass(&self, frames: &[Left]) -> Result<Vec<Left>, String> {
        let digits =
            |frame: &Vec<u8>| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let packet = |(port, frame): &Left| format!("packet {port} {}", digits(frame));
        let mut commands: Vec<_> = frames.iter().map(packet).collect();
        commands.insert(0, "listen".to_owned());
        commands.push("collect".to_owned());
        let said = lock(&self.model.harness).ask(&commands)?;
        let mut left = Vec::new();
        for line in said {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["frame", port, digits] => {
                    let port = port.parse().map_err(|_| line.clone())?;
                    left.push((port, bytes(digits)));
                }
                ["digest", digits] => {
                    let hello = self.model.learned(&bytes(digits)).ok_or_else(|| line.clone())?;
                    self.learned.send(hello).map_err(|error| error.to_string())?;
                }
                _ => return Err(line),
            }
        }
        Ok(left)
    }
}

/// The value that a field must have, in the harness's format.
fn pattern(matched: &Match) -> String {
    match *matched {
        Match::Exact(value) => value.to_string(),
        Match::Ternary { mask: 0, .. } => "*".to_owned(),
        Match::Ternary { value, mask } => {
            // The first digit stands for all digits before it.
            let length = 64 - mask.leading_zeros();
            let digit = |bit: u32| match (mask >> bit & 1, value >> bit & 1) {
                (0, _) => '*',
                (_, 0) => '0',
                _ => '1',
            };
            format!("0b*{}", (0..length).rev().map(digit).collect::<String>())
        }
    }
}

/// A name without the pipeline's prefix, as in context.json, which describes one pipeline.
fn of_pipeline(name: &str) -> &str {
    name.strip_prefix("pipe.").unwrap_or(name)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string in context.json")
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number in context.json")
}

fn hex(value: &Value) -> u64 {
    u64::from_str_radix(text(value).trim_start_matches("0x"), 16)
        .expect("a hexadecimal number in context.json")
}

fn bytes(digits: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len() / 2).map(|index| byte(2 * index)).collect()
}
