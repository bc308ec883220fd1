//! Plays the vectors' jobs into the switch's tables, and checks that the entries admit or refuse
//! packets as the vectors say. The registers are not tested: there is no pipeline.

use std::collections::BTreeMap;
use std::path::Path;

use switchml_bfrt_switch::{Entry, Switch};
use switchml_p4::data_plane::P4DataPlane;
use switchml_p4::entries::{MAX_JOBS, MAX_RANKS};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::auth::Key;
use switchml_protocol::wire::header::{Kind, flags};
use switchml_rack::vectors::{Event, Job, Offer, Step, Vector, read_all};
use switchml_userspace_core::data_plane::{DataPlane, JobSpec, ServesJobs};

use super::jobs::learn;
use super::schema::{full, slots};
use super::{Site, TABLES_OF_PORTS, switch};
use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::Binding;

/// Bytes of a frame before the packet.
const ENVELOPE: usize = 42;

/// Outcomes of contributions that are admitted: the registers say which.
const ADMITTED: [&str; 8] =
    ["started", "added", "completed", "replayed", "pending", "stale", "mismatch", "wrong_round"];
/// Outcomes that tables give.
const BY_TABLES: [&str; 9] = [
    "aborted",
    "hello",
    "unknown_job",
    "wrong_epoch",
    "bad_rank",
    "bad_slot",
    "wrong_secret",
    "no_hello",
    "wrong_place",
];

/// A frame's fields, as the parser would leave them.
struct Frame<'a> {
    bytes: &'a [u8],
    port: u16,
}

impl Frame<'_> {
    fn number(&self, at: usize, len: usize) -> u64 {
        self.bytes[at..at + len].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn is_hello(&self) -> bool {
        self.bytes[ENVELOPE + 1] == Kind::Hello as u8
    }

    fn field(&self, name: &str) -> u64 {
        match name {
            "m.is_contribution" => (!self.is_hello()).into(),
            "is_hello" => self.is_hello().into(),
            "m.bad_ip_checksum" | "bad_ip_checksum" | "outcome" | "$MATCH_PRIORITY" => 0,
            "port" => self.port.into(),
            "mac" => self.number(6, 6),
            "address" => self.number(26, 4),
            "aggregator" => self.number(30, 4),
            "udp_port" => self.number(34, 2),
            "job" => self.number(ENVELOPE + 2, 2),
            "epoch" => self.number(ENVELOPE + 4, 4),
            "rank" => self.number(ENVELOPE + 8, 2),
            "slot" => self.number(ENVELOPE + 10, 2),
            "parity" => self.number(ENVELOPE + 12, 4) & 1,
            "flags" => self.number(ENVELOPE + 17, 1),
            "secret" => self.number(ENVELOPE + 28, 4),
            other => panic!("no field {other}"),
        }
    }

    /// The entry that a table of the switch takes.
    fn look_up(&self, switch: &Switch, table: &str) -> Option<Entry> {
        let is_hit =
            |entry: &Entry| {
                entry.key.iter().filter(|(name, _)| *name != "$MATCH_PRIORITY").all(
                    |(name, (value, mask))| self.field(name) & mask.unwrap_or(u64::MAX) == *value,
                )
            };
        let entries = switch.entries(&full(table)).into_iter().filter(is_hit);
        entries.min_by_key(|entry| entry.key.get("$MATCH_PRIORITY").map(|(priority, _)| *priority))
    }

    /// The frame's outcome by the tables; `admitted` if the registers decide.
    fn outcome(&self, switch: &Switch) -> &'static str {
        let action = |table| {
            self.look_up(switch, table)
                .map(|entry| entry.action.rsplit('.').next().unwrap_or_default().to_owned())
        };
        if !self.is_hello() {
            match action("members").as_deref() {
                Some("admit") => return "admitted",
                Some(_) => return "aborted",
                None => {}
            }
        } else if action("bindings").is_some() {
            return "hello";
        } else if let Some(action) = action("newcomers") {
            return if action == "learn" { "no_hello" } else { "wrong_place" };
        }
        let outcome = self
            .look_up(switch, "refusals")
            .map_or(Outcome::UnknownJob as u64, |entry| entry.data["reason"][0]);
        Outcome::ALL[outcome as usize].name()
    }
}

/// Whether tables decide the packet's outcome. They also refuse packets without the CHECKED flag.
fn is_about_tables(step: &Step) -> bool {
    let counter = &*step.expected[0].counter;
    let lacks_word = counter == "bad_check" && step.frame[ENVELOPE + 17] & flags::CHECKED == 0;
    ADMITTED.contains(&counter) || BY_TABLES.contains(&counter) || lacks_word
}

fn play(vector: &Vector, switch: &Switch, data_plane: &P4DataPlane) -> usize {
    // A job that is opened again has the slots that it had.
    let mut first_slots: BTreeMap<u16, u32> = BTreeMap::new();
    let mut next_slot = 0;
    let mut played = 0;
    for event in &vector.events {
        match event {
            Event::Open(job) => {
                let first_slot = *first_slots.entry(job.number).or_insert(next_slot);
                next_slot = next_slot.max(first_slot + job.slots);
                open(switch, data_plane, job, first_slot);
            }
            Event::Abort(job) => data_plane.abort(*job).expect("aborted"),
            Event::Close(job) => data_plane.close(*job).expect("closed"),
            Event::Age(_) | Event::Pause => {}
            Event::Step(step) if !is_about_tables(step) => {}
            Event::Step(step) => {
                let frame = Frame { bytes: &step.frame, port: step.port };
                let outcome = frame.outcome(switch);
                let is_right = step.expected.iter().any(|expected| {
                    expected.counter == outcome
                        || outcome == "admitted" && ADMITTED.contains(&&*expected.counter)
                });
                assert!(
                    is_right,
                    "{}, {}: {outcome}, not {:?}",
                    vector.name, step.title, step.expected[0].counter
                );
                if outcome == "no_hello" && frame.is_hello() {
                    let binding = Binding {
                        ifindex: step.port.into(),
                        ip: (frame.field("address") as u32).to_be_bytes().into(),
                        mac: step.frame[6..12].try_into().expect("six bytes"),
                        port: U16::new(frame.field("udp_port") as u16),
                        ..Binding::default()
                    };
                    let (job, rank) = (frame.field("job") as u16, frame.field("rank") as u16);
                    learn(switch, job, frame.field("epoch") as u32, rank, binding);
                    until_known(data_plane, job, rank);
                }
                played += 1;
            }
        }
    }
    played
}

fn open(switch: &Switch, data_plane: &P4DataPlane, job: &Job, first_slot: u32) {
    let (aggregator, group) = job.over_v4();
    let spec = JobSpec {
        number: job.number,
        epoch: job.epoch,
        secrets: job.members.iter().map(|member| member.secret).collect(),
        keys: Vec::new(),
        key: Key::NONE,
        slots: first_slot..first_slot + job.slots,
        address: (*aggregator.ip()).into(),
        group: (*group.ip(), group.port()),
        parent: None,
    };
    data_plane.open(&spec).expect("opened");
    for (rank, member) in (0..).zip(&job.members).filter(|(_, member)| !member.newcomer) {
        let (ip, port) = (member.address.ip().into(), U16::new(member.address.port()));
        let binding = Binding {
            ifindex: member.port.into(),
            ip,
            mac: member.mac,
            port,
            ..Binding::default()
        };
        learn(switch, job.number, job.epoch, rank, binding);
        until_known(data_plane, job.number, rank);
    }
    data_plane.start(job.number, &[]).expect("started");
}

fn until_known(data_plane: &P4DataPlane, job: u16, rank: u16) {
    switchml_rack::wait_until!(
        crate::common::PATIENCE,
        data_plane.binding(job, rank).expect("an answer").is_some(),
        "rank {rank} of job {job} is never known"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_admit_and_refuse_as_the_vectors_say() {
    let site = Site::new();
    let offer = Offer {
        lanes: 64,
        ranks: MAX_RANKS,
        jobs: MAX_JOBS,
        slots: slots() as u32,
        features: ["age", "frames", "max", "verify"].map(String::from).into(),
        ..Offer::default()
    };
    let vectors = read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors"));
    let mut played = 0;
    for vector in vectors.iter().filter(|vector| offer.lacks(&vector.needs).is_none()) {
        let switch = switch();
        let data_plane = site.start(switch.address).await.expect("a data plane");
        played += play(vector, &switch, &data_plane);
        data_plane.stop();
        assert_eq!(
            switch.occupied().into_keys().collect::<Vec<_>>(),
            TABLES_OF_PORTS,
            "{}",
            vector.name
        );
    }
    println!("{played} packets of {} vectors", vectors.len());
    assert!(played > 300, "only {played} packets");
}
