//! The writes to a switch as jobs come and go, and when it refuses one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::Outcome;

use super::{binding, jobs, spec};
use crate::data_plane::{P4DataPlane, Role};
use crate::entries::{Contents, OpenJob};
use crate::switch::{Entry, Learned, Node, Switch, SwitchError};
use switchml_userspace_core::data_plane::{DataPlane, JobSpec, ServesJobs};

/// Tables in memory, as strict as a switch: an entry is inserted once, and modified or deleted only
/// if it is there.
#[derive(Default)]
struct Memory {
    entries: Mutex<Vec<Entry>>,
    groups: Mutex<BTreeMap<Node, Vec<u16>>>,
    rounds: Mutex<BTreeMap<u32, u32>>,
    ranks: Mutex<BTreeMap<u32, u32>>,
    writes: AtomicUsize,
    /// Parts of a packet; 0 is 1.
    parts: u16,
    /// The write that is refused.
    refused: AtomicUsize,
}

impl Memory {
    fn write(&self) -> Result<(), SwitchError> {
        let is_refused =
            self.writes.fetch_add(1, Ordering::Relaxed) == self.refused.load(Ordering::Relaxed);
        if is_refused { Err(SwitchError("no space".to_owned())) } else { Ok(()) }
    }

    fn sorted(&self) -> Vec<String> {
        sorted(&self.entries.lock().unwrap())
    }
}

fn sorted(entries: &[Entry]) -> Vec<String> {
    let mut all: Vec<_> = entries.iter().map(|entry| format!("{entry:?}")).collect();
    all.sort();
    all
}

impl Switch for Arc<Memory> {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn attachment(&self) -> String {
        String::new()
    }

    fn sets(&self) -> u32 {
        16384
    }

    fn parts(&self) -> u16 {
        self.parts.max(1)
    }

    fn ports(&self) -> &[u16] {
        &[1, 2, 3]
    }

    fn pipeline(&self, port: u16) -> u16 {
        port / 128
    }

    fn insert(&self, entry: &Entry) -> Result<(), SwitchError> {
        self.write()?;
        let mut entries = self.entries.lock().unwrap();
        assert!(entries.iter().all(|other| other.id() != entry.id()), "inserted twice: {entry:?}");
        entries.push(entry.clone());
        Ok(())
    }

    fn modify(&self, entry: &Entry) -> Result<(), SwitchError> {
        self.write()?;
        let mut entries = self.entries.lock().unwrap();
        *entries.iter_mut().find(|other| other.id() == entry.id()).expect("an entry to modify") =
            entry.clone();
        Ok(())
    }

    fn delete(&self, entry: &Entry) -> Result<(), SwitchError> {
        self.write()?;
        let mut entries = self.entries.lock().unwrap();
        let index =
            entries.iter().position(|other| other.id() == entry.id()).expect("an entry to delete");
        entries.remove(index);
        Ok(())
    }

    fn write_register(
        &self,
        name: &str,
        indices: Range<u32>,
        value: u32,
    ) -> Result<(), SwitchError> {
        assert_eq!(name, "rounds");
        self.write()?;
        self.rounds.lock().unwrap().extend(indices.map(|index| (index, value)));
        Ok(())
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
        let register = if name == "ranks" { &self.ranks } else { &self.rounds };
        let register = register.lock().unwrap();
        Ok(indices.map(|index| register.get(&index).copied().unwrap_or_default()).collect())
    }

    fn set_node(&self, node: Node, ports: &[u16]) -> Result<(), SwitchError> {
        self.write()?;
        match ports {
            [] => assert!(
                self.groups.lock().unwrap().remove(&node).is_some(),
                "no {node:?} to remove"
            ),
            ports => drop(self.groups.lock().unwrap().insert(node, ports.to_vec())),
        }
        Ok(())
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], SwitchError> {
        Ok([0; Outcome::COUNT])
    }
}

pub struct Bench {
    memory: Arc<Memory>,
    pub data_plane: P4DataPlane,
    hellos: Sender<Learned>,
}

impl Bench {
    pub fn new() -> Self {
        Self::of(Role::Root(Capabilities::CHECKED_MAXIMA))
    }

    pub fn of(role: Role) -> Self {
        Self::of_parts(1, role)
    }

    fn of_parts(parts: u16, role: Role) -> Self {
        let memory = Arc::new(Memory { parts, refused: usize::MAX.into(), ..Memory::default() });
        let (hellos, learned) = channel();
        let data_plane =
            P4DataPlane::start(Box::new(Arc::clone(&memory)), role, learned, Box::new(drop))
                .unwrap();
        Self { memory, data_plane, hellos }
    }

    /// Puts a round and the ranks that are in into a set, as contributions do.
    pub fn contribute(&self, set: u32, round: u32, ranks: u32) {
        self.memory.rounds.lock().unwrap().insert(set, round);
        self.memory.ranks.lock().unwrap().insert(set, ranks);
    }

    /// Says HELLO until it is known, as ranks do.
    fn hello(&self, spec: &JobSpec, rank: u16) {
        self.hello_from(spec, rank, binding(rank));
    }

    fn hello_from(&self, spec: &JobSpec, rank: u16, binding: Binding) {
        let hello = Learned { job: spec.number, epoch: spec.epoch, rank, binding };
        let begin = Instant::now();
        while self.data_plane.binding(spec.number, rank).unwrap().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(10), "never learned");
            self.hellos.send(hello).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn assert_holds(&self, open: &[OpenJob]) {
        let Contents { entries, groups } = Contents::of(&[1, 2, 3], &jobs(open.iter().cloned()));
        assert_eq!(self.memory.sorted(), sorted(&entries));
        assert_eq!(*self.memory.groups.lock().unwrap(), groups);
    }
}

#[test]
fn the_switch_holds_what_the_jobs_say_at_every_step() {
    let bench = Bench::new();
    bench.assert_holds(&[]);
    let (first, second) = (spec(0, 2, 0..512), spec(1, 3, 512..1024));
    let mut one = OpenJob::new(first.clone());
    bench.data_plane.open(&first).unwrap();
    bench.assert_holds(std::slice::from_ref(&one));
    assert_eq!(bench.memory.rounds.lock().unwrap().len(), 1024);
    bench.data_plane.open(&second).unwrap();
    let two = OpenJob::new(second.clone());
    for rank in 0..2 {
        bench.hello(&first, rank);
        one.bindings.insert(rank, binding(rank));
        bench.assert_holds(&[one.clone(), two.clone()]);
    }
    bench.data_plane.start(0, &[]).unwrap();
    one.is_started = true;
    bench.assert_holds(&[one.clone(), two.clone()]);
    bench.data_plane.abort(0).unwrap();
    one.is_aborted = true;
    bench.assert_holds(&[one, two.clone()]);
    bench.data_plane.close(0).unwrap();
    // The other job keeps the aggregator's address.
    bench.assert_holds(&[two]);
    bench.data_plane.stop();
    assert_eq!((bench.memory.sorted().len(), bench.memory.groups.lock().unwrap().len()), (0, 0));
}

/// Of 16384 entries, each of four parts has 4096: two for each of 2048 slots, which 16 jobs share.
#[test]
fn each_part_of_a_packet_has_sets_of_its_own() {
    let bench = Bench::of_parts(4, Role::Root(Capabilities::empty()));
    let limits = bench.data_plane.limits();
    assert_eq!((limits.max_lanes, limits.slots_per_shard), (256, 128));
    bench.data_plane.open(&spec(3, 2, 384..512)).unwrap();
    let sets = |part: u32, first: u32, round: u32| {
        (0..128).map(move |slot| (4096 * part + first + slot, round))
    };
    let of_part = |part| sets(part, 768, u32::MAX - 1).chain(sets(part, 896, u32::MAX));
    let expected: BTreeMap<_, _> = (0..4).flat_map(of_part).collect();
    assert_eq!(*bench.memory.rounds.lock().unwrap(), expected);
}

#[test]
fn a_hello_of_another_epoch_or_rank_teaches_nothing() {
    let bench = Bench::new();
    let spec = spec(0, 2, 0..512);
    bench.data_plane.open(&spec).unwrap();
    let hello = |epoch, rank, from| Learned { job: 0, epoch, rank, binding: binding(from) };
    for hello in [
        hello(spec.epoch - 1, 0, 7),
        hello(spec.epoch, 2, 7),
        Learned { job: 9, ..hello(spec.epoch, 0, 7) },
    ] {
        bench.hellos.send(hello).unwrap();
    }
    bench.hello(&spec, 1);
    // Nor does a HELLO from another place, once the binding is known.
    bench.hellos.send(hello(spec.epoch, 1, 7)).unwrap();
    bench.hello(&spec, 0);
    let bindings = [0, 1, 2].map(|rank| bench.data_plane.binding(0, rank).unwrap());
    assert_eq!(bindings, [Some(binding(0)), Some(binding(1)), None]);
}

/// For each write that the switch may refuse: the call that made it fails with the switch's
/// message, and another job is served as if nothing had happened.
#[test]
fn a_refused_write_leaves_nothing_behind() {
    let mut refused_calls = 0;
    for refused in 0.. {
        let bench = Bench::new();
        let (spec, other) = (spec(0, 2, 0..512), spec(1, 2, 512..1024));
        let before = bench.memory.writes.load(Ordering::Relaxed);
        bench.memory.refused.store(before + refused, Ordering::Relaxed);
        let run = || {
            bench.data_plane.open(&spec)?;
            // A binding that was refused is learned from the next HELLO.
            (0..2).for_each(|rank| bench.hello(&spec, rank));
            bench.data_plane.start(0, &[])?;
            bench.data_plane.abort(0)
        };
        let result = run();
        let was_reached = bench.memory.writes.load(Ordering::Relaxed) > before + refused;
        if let Err(error) = result {
            refused_calls += 1;
            assert!(error.to_string().ends_with(" job 0 on the switch: no space"), "{error}");
        }
        bench.data_plane.close(0).unwrap_or_else(|error| assert!(!was_reached, "{error}"));
        bench.data_plane.open(&other).unwrap();
        bench.assert_holds(&[OpenJob::new(other)]);
        if !was_reached {
            break;
        }
    }
    assert!(refused_calls > 10, "{refused_calls}");
}

/// Registers belong to a pipeline: a job that spans several pipelines would wait forever. A job at
/// any single pipeline is served.
#[test]
fn a_job_that_spans_pipelines_is_refused() {
    let cases: [(&[u32], Option<&str>); 5] = [
        (&[1, 127, 1], None),
        (&[130, 255, 130], None),
        (&[384, 400, 511], None),
        (
            &[1, 128, 1],
            Some("ranks 0 and 2 at port 1 of pipeline 0, rank 1 at port 128 of pipeline 1"),
        ),
        (
            &[129, 1, 300],
            Some(
                "rank 1 at port 1 of pipeline 0, rank 0 at port 129 of pipeline 1, \
                 rank 2 at port 300 of pipeline 2",
            ),
        ),
    ];
    for (ports, refused) in cases {
        let bench = Bench::new();
        let spec = spec(3, 3, 0..512);
        bench.data_plane.open(&spec).unwrap();
        for (rank, port) in (0..).zip(ports) {
            bench.hello_from(&spec, rank, Binding { ifindex: *port, ..binding(rank) });
        }
        let result = bench.data_plane.start(3, &[]).map_err(|error| error.to_string());
        let expected = refused.map_or(Ok(()), |who| {
            let what = "start job 3 on the switch: all ranks must be at ports of one pipeline";
            Err(format!("{what}, but found {who}"))
        });
        assert_eq!(result, expected);
    }
}
