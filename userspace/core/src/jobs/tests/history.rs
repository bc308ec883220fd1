//! Random histories: ranks do anything in any order, and the daemon dies anywhere.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;

use super::*;

/// The next step of a random history; numbers choose among existing jobs, ranks and streams.
#[derive(Clone, Debug)]
enum Step {
    Join {
        name: u8,
        rank: u32,
        world_size: u32,
    },
    Ready {
        stream: usize,
        lanes: u32,
    },
    /// All ranks of a job join, and the ranks that can are ready.
    Whole {
        name: u8,
        ranks: u32,
    },
    Leave {
        stream: usize,
        error: bool,
    },
    Report {
        stream: usize,
        call: u8,
    },
    Conclude {
        stream: usize,
    },
    Disconnect {
        stream: usize,
    },
    Fail {
        stream: usize,
    },
    LosePort {
        port: u32,
    },
    /// The daemon dies during the next step, after this many of its effects.
    Crash {
        effects: usize,
    },
    Resume {
        orphan: usize,
    },
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u8..3, 0u32..4, 1u32..4)
            .prop_map(|(name, rank, world_size)| Step::Join { name, rank, world_size }),
        6 => (any::<usize>(), 1u32..25)
            .prop_map(|(stream, blocks)| Step::Ready { stream, lanes: blocks * 32 }),
        2 => (0u8..3, 1u32..5).prop_map(|(name, ranks)| Step::Whole { name, ranks }),
        3 => (any::<usize>(), any::<bool>())
            .prop_map(|(stream, error)| Step::Leave { stream, error }),
        2 => (any::<usize>(), 0u8..2).prop_map(|(stream, call)| Step::Report { stream, call }),
        1 => any::<usize>().prop_map(|stream| Step::Conclude { stream }),
        2 => any::<usize>().prop_map(|stream| Step::Disconnect { stream }),
        1 => any::<usize>().prop_map(|stream| Step::Fail { stream }),
        1 => (1u32..3).prop_map(|port| Step::LosePort { port }),
        2 => (0usize..6).prop_map(|effects| Step::Crash { effects }),
        6 => any::<usize>().prop_map(|orphan| Step::Resume { orphan }),
        1 => Just(Step::Expire),
    ]
}

/// The outside world: the data plane and the ranks, which check that each effect makes sense to
/// them.
#[derive(Default)]
struct World {
    /// Open jobs, and whether this daemon has started them.
    open: BTreeMap<u16, (JobSpec, bool)>,
    /// The jobs that the data plane keeps for the next daemon.
    saved: BTreeMap<u16, Job>,
    last_epoch: u32,
    kept_epochs: Option<Epochs>,
    epochs: HashSet<u32>,
    /// Ranks whose stream is open: the last event, and their ids once they are assigned.
    streams: BTreeMap<StreamId, (Option<Event>, Option<MemberId>)>,
    /// Ranks of jobs that have started, cut off by the daemon's death.
    orphans: Vec<MemberId>,
    /// Epochs of jobs that some rank knows to be aborted.
    aborted: HashSet<u32>,
    ready: HashMap<(u32, u32), BTreeMap<u32, u32>>,
    /// Effects before the daemon dies, once that is near.
    left_to_live: Option<usize>,
}

impl World {
    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match &mut self.left_to_live {
                Some(0) => return,
                Some(left) => *left -= 1,
                None => {}
            }
            self.apply_one(effect);
        }
    }

    fn apply_one(&mut self, effect: Effect) {
        match effect {
            Effect::KeepEpochs(_, epochs) => self.kept_epochs = Some(epochs),
            Effect::Open(spec) => {
                // The shards of a job have the same, and are opened together.
                let is_next_shard = self.last_epoch == spec.epoch;
                let is_new = self.epochs.insert(spec.epoch) || is_next_shard;
                assert!(spec.epoch != 0 && is_new, "an epoch is never used again");
                assert!(spec.slots.end <= POOL);
                for (other, _) in self.open.values() {
                    let apart =
                        spec.slots.end <= other.slots.start || other.slots.end <= spec.slots.start;
                    assert!(apart, "{:?} and {:?}", spec.slots, other.slots);
                }
                self.last_epoch = spec.epoch;
                assert!(
                    self.open.insert(spec.number, (spec, false)).is_none(),
                    "a number is used once at a time"
                );
            }
            Effect::Start(job, _) => {
                let (_, started) = self.open.get_mut(&job).expect("open");
                assert!(!std::mem::replace(started, true), "started once");
                let is_saved = self.saved.values().any(|saved| saved.shards.contains(&job));
                assert!(is_saved, "saved before anybody can rely on it");
            }
            Effect::Abort(job) => assert!(self.open.contains_key(&job)),
            Effect::Close(job) => {
                self.saved.remove(&job);
                assert!(self.open.remove(&job).is_some());
            }
            Effect::Save(job) => {
                assert_eq!(self.open[&job.number].0.epoch, job.epoch);
                self.saved.insert(job.number, *job);
            }
            Effect::End(stream) => drop(self.streams.remove(&stream)),
            Effect::Tell(stream, event) => self.hear(stream, event),
            Effect::Gather(job, epoch) => assert_eq!(self.open[&job].0.epoch, epoch),
            Effect::Await(_) => unreachable!("nobody comes by a combiner"),
            Effect::Log(..) => unreachable!("kept apart"),
        }
    }

    fn hear(&mut self, stream: StreamId, event: Event) {
        let (last, id) =
            self.streams.get_mut(&stream).expect("nobody is told anything after its stream's end");
        let in_order = matches!(
            (&*last, &event),
            (None | Some(Event::Waiting(_)), Event::Waiting(_) | Event::Assigned(_))
                | (Some(Event::Assigned(_)), Event::Started(_) | Event::Aborted(_))
                | (
                    Some(Event::Started(_) | Event::Left(_) | Event::CallsWanted(_)),
                    Event::Left(_) | Event::CallsWanted(_) | Event::Aborted(_)
                )
        );
        assert!(in_order, "{event:?} after {last:?}");
        if let Event::Assigned(assigned) = &event {
            let (spec, _) = &self.open[&(assigned.job as u16)];
            let rank = spec
                .secrets
                .iter()
                .position(|secret| *secret == assigned.hello_secret)
                .expect("one of them");
            let &control::Assigned { job, epoch, control_secret: secret, .. } = assigned;
            *id = Some(MemberId { job, epoch, rank: rank as u32, secret });
        }
        if let (Event::Aborted(_), Some(id)) = (&event, &id) {
            self.aborted.insert(id.epoch);
        }
        if let (Event::Started(started), Some(id)) = (&event, &id) {
            assert!(
                !self.aborted.contains(&id.epoch),
                "what one rank was told, the next daemon knows"
            );
            let ready = &self.ready[&(id.job, id.epoch)];
            assert_eq!(ready.len(), self.open[&(id.job as u16)].0.secrets.len());
            assert_eq!(Some(&started.lanes), ready.values().min());
        }
        *last = Some(event);
    }

    fn pick(&self, which: usize) -> Option<(StreamId, Option<MemberId>)> {
        let index = which.checked_rem(self.streams.len())?;
        self.streams.iter().nth(index).map(|(stream, (_, id))| (*stream, *id))
    }

    /// The daemon dies: ranks of jobs that have started wait for the next daemon, the others give
    /// up. Returns the state that the next daemon finds.
    fn crash(&mut self) -> (Vec<Job>, Option<Epochs>) {
        self.left_to_live = None;
        for (last, id) in std::mem::take(&mut self.streams).into_values() {
            if let (Some(Event::Started(_) | Event::Left(_) | Event::CallsWanted(_)), Some(id)) =
                (last, id)
            {
                self.orphans.push(id);
            }
        }
        let kept = |number: &u16, epoch| {
            self.saved.values().any(|job| job.epoch == epoch && job.shards.contains(number))
        };
        self.open.retain(|number, (spec, _)| kept(number, spec.epoch));
        self.open.values_mut().for_each(|(_, started)| *started = false);
        (self.saved.values().cloned().collect(), self.kept_epochs.clone())
    }
}

/// Daemons, one after the other, and the world that they serve.
struct History {
    seed: u64,
    table: Table,
    world: World,
    /// Ranks that were given up, by epoch and rank.
    too_late: HashSet<(u32, u32)>,
    /// Ranks of which the daemon's death leaves open whether they were given up.
    unsure: HashSet<(u32, u32)>,
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            table: durable_table(seed),
            world: World::default(),
            too_late: HashSet::new(),
            unsure: HashSet::new(),
        }
    }

    fn step(&mut self, step: Step) {
        let Self { table, world, .. } = self;
        match step {
            Step::Join { name, rank, world_size } => self.join(name, rank, world_size),
            Step::Ready { stream, lanes } => {
                let Some((_, Some(id))) = world.pick(stream) else { return };
                self.ready(id, lanes);
            }
            Step::Whole { name, ranks } => {
                (0..ranks).for_each(|rank| self.join(name, rank, ranks));
                let ids: Vec<_> = self.world.streams.values().filter_map(|(_, id)| *id).collect();
                ids.into_iter().for_each(|id| self.ready(id, 352));
            }
            Step::Leave { stream, error } => {
                let Some((stream, Some(id))) = world.pick(stream) else { return };
                let effects = table.leave(id, if error { "broken" } else { "" }, &[]);
                world.streams.remove(&stream);
                world.apply(effects.expect("whoever has a stream can leave"));
            }
            Step::Report { stream, call } => {
                let Some((_, Some(id))) = world.pick(stream) else { return };
                let call = ["a", "b"][usize::from(call)];
                let effects = table.report_calls(id, calls(&[(1, call)]), &[0, 1]);
                world.apply(effects.expect("whoever has a stream can report"));
            }
            Step::Conclude { stream } => {
                let Some((_, Some(id))) = world.pick(stream) else { return };
                world.apply(table.conclude(id.job as u16, id.epoch));
            }
            Step::Disconnect { stream } => {
                let Some((stream, _)) = world.pick(stream) else { return };
                world.streams.remove(&stream);
                world.apply(table.disconnect(stream));
            }
            Step::Fail { stream } => {
                let Some((_, Some(id))) = world.pick(stream) else { return };
                world.apply(table.fail(id.job as u16, "broken"));
            }
            Step::LosePort { port } => world.apply(table.lose_port(port, "broken")),
            Step::Crash { effects } => {
                world.left_to_live.get_or_insert(effects);
            }
            Step::Resume { orphan } => self.resume(orphan),
            Step::Expire => {
                let is_last = world.left_to_live.is_some();
                let given_up = if is_last { &mut self.unsure } else { &mut self.too_late };
                given_up.extend(world.orphans.iter().map(|id| (id.epoch, id.rank)));
                world.apply(table.expire());
            }
        }
    }

    /// A rank joins, if it may.
    fn join(&mut self, name: u8, rank: u32, world_size: u32) {
        let threads = Threads { most: 1 << name, host: String::new() };
        let joiner = Joiner { threads, ..joiner(&name.to_string(), rank, world_size) };
        let Ok((stream, effects)) = self.table.join(&joiner) else { return };
        assert!(rank < world_size);
        assert!(self.world.streams.insert(stream, (None, None)).is_none());
        self.world.apply(effects);
    }

    /// A rank is ready, if its job waits for that.
    fn ready(&mut self, id: MemberId, lanes: u32) {
        let shards = self.table.shards(id).map_or(0, <[u16]>::len) as u32;
        let bindings = (0..shards).map(|shard| Binding { ifindex: 1 + id.rank + shard, ..BINDING });
        let Ok(effects) = self.table.ready(id, lanes, bindings) else { return };
        self.world.ready.entry((id.job, id.epoch)).or_default().insert(id.rank, lanes);
        self.world.apply(effects);
    }

    /// A rank that was cut off comes back.
    fn resume(&mut self, orphan: usize) {
        let Some(index) = orphan.checked_rem(self.world.orphans.len()) else { return };
        let id = self.world.orphans.swap_remove(index);
        let who = (id.epoch, id.rank);
        let resumed = self.table.resume(id, peer(id.rank));
        if !self.unsure.contains(&who) {
            let makes_sense = match &resumed {
                _ if !self.too_late.contains(&who) => resumed.is_ok(),
                // The rank is told why, or this daemon does not know the job.
                Ok((_, effects)) => {
                    matches!(effects[..], [Effect::Tell(_, Event::Aborted(_)), Effect::End(_)])
                }
                Err(_) => true,
            };
            assert!(makes_sense, "{resumed:?}");
        }
        if let Ok((stream, effects)) = resumed {
            let assigned = Some(Event::Assigned(control::Assigned::default()));
            self.world.streams.insert(stream, (assigned, Some(id)));
            self.world.apply(effects);
        }
    }

    /// The daemon dies, and the next takes its place: the one of this number.
    fn die(&mut self, number: u64) {
        let (saved, epochs) = self.world.crash();
        self.table = durable_table(self.seed ^ number);
        if let Some(epochs) = epochs {
            self.world.apply(self.table.restore(saved, epochs));
        }
        let specs = self.world.open.values();
        let open: Vec<_> = specs.map(|(spec, _)| (spec.number, spec.epoch)).collect();
        let known = self.table.jobs.values();
        let mut known: Vec<_> =
            known.flat_map(|job| job.shards.iter().map(|shard| (*shard, job.epoch))).collect();
        known.sort_unstable();
        assert_eq!(open, known, "no job is half there");
    }

    /// Everyone goes.
    fn end(&mut self) {
        let Self { table, world, .. } = self;
        world.left_to_live = None;
        for stream in world.streams.keys().copied().collect::<Vec<_>>() {
            world.streams.remove(&stream);
            world.apply(table.disconnect(stream));
        }
        world.apply(table.expire());
        assert!(world.open.is_empty());
        assert!(world.saved.is_empty());
        assert_eq!(table.list(), []);
        assert_eq!(table.free_slots(), POOL);
    }
}

proptest! {
    // Deaths at the moments that matter are rare.
    #![proptest_config(ProptestConfig::with_cases(8 * ProptestConfig::default().cases))]

    /// Whatever ranks do, in whatever order, and wherever the daemon dies: the data plane and each
    /// rank see only events that make sense, a rank whose job has started finds it again, and no
    /// number or slot stays taken once everyone is gone.
    #[test]
    fn any_history_makes_sense_to_everyone(
        steps in prop::collection::vec(step(), 0..120), seed: u64,
    ) {
        let mut history = History::new(seed);
        for (number, step) in (0..).zip(steps) {
            let is_last = history.world.left_to_live.is_some();
            history.step(step);
            if is_last {
                history.die(number);
            }
            let lent: u32 = history.table.list().iter().map(|job| job.slots).sum();
            assert_eq!(lent, POOL - history.table.free_slots());
        }
        history.end();
    }
}
