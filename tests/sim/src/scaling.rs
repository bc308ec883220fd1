//! The gain from combiners on links of a given rate, without faults: the time of an all-reduce by
//! number of ranks and levels, and of jobs that share a combiner with too few cells for all. Only
//! links take time; hosts, combiners and the root take none.

use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::data_plane::Fanout;
use switchml_userspace_core::jobs::Threads;
use switchml_worker_core::call::{Call, Kind};
use switchml_worker_core::engine::Limits;
use switchml_worker_core::{DType, Reduction};

use crate::net::Violation;
use crate::oracle::Times;
use crate::program::{Elements, Step};
use crate::scenario::{CombinerPlan, JobPlan, LinkPlan, MS, SECOND, Scenario, Time, Tree, US};
use crate::world::play;

/// Lanes of a packet that fits an Ethernet frame.
const LANES: u16 = 11 * LANES_PER_BLOCK as u16;
/// Bytes of its UDP payload.
const PACKET: usize = 32 + 4 * LANES as usize;
/// Thousandths of a nanosecond a byte, at 10 Gb/s.
const BYTE_TIME: u64 = 800;
/// Time that a packet takes from one end of a link to the other.
const DELAY: Time = 2 * US;
/// Ranks below a combiner of the root: one group, for which one partial sum can stand.
const BELOW_ROOT: usize = 32;
/// Ranks below a combiner of the level below that.
const BELOW_COMBINER: usize = 8;

/// How ranks reach the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A link for each rank.
    Flat,
    /// A link for each rack, without combiners: routers that copy RESULTs to all.
    Routers,
    /// A link for each rack, with combiners.
    Racks,
    /// A link for each rack, with combiners, and further combiners for parts of each rack.
    Parts,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 4] = [Self::Flat, Self::Routers, Self::Racks, Self::Parts];

    /// The name of the shape, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flat => "1 level: a port for each rank",
            Self::Routers => "racks without combiners",
            Self::Racks => "2 levels",
            Self::Parts => "3 levels",
        }
    }

    fn tree(self, ranks: usize) -> Tree {
        let (upper, lower) = (BELOW_ROOT.min(ranks / 2), BELOW_COMBINER.min(ranks / 4));
        let let_pass = if self == Self::Routers { 1_000_000 } else { 0 };
        let plan = |parent| CombinerPlan {
            parent,
            uplink: [link(); 2],
            cells: 1 << 14,
            let_pass,
            jobs: u16::MAX,
        };
        let racks = vec![plan(None); ranks / upper];
        match self {
            Self::Flat => Tree::default(),
            Self::Routers | Self::Racks => {
                let above = (0..ranks).map(|rank| Some(rank / upper)).collect();
                Tree { combiners: racks, above }
            }
            Self::Parts => {
                let first = racks.len();
                let lowest = (0..ranks / lower).map(|index| plan(Some(index * lower / upper)));
                let combiners = racks.into_iter().chain(lowest).collect();
                let above = (0..ranks).map(|rank| Some(first + rank / lower)).collect();
                Tree { combiners, above }
            }
        }
    }

    /// Links between a rank and the root.
    fn links(self) -> u64 {
        match self {
            Self::Flat => 1,
            Self::Routers | Self::Racks => 2,
            Self::Parts => 3,
        }
    }
}

fn link() -> LinkPlan {
    LinkPlan {
        largest_packet: PACKET,
        delay: DELAY,
        byte_time: BYTE_TIME,
        queue: 1 << 30,
        ..LinkPlan::default()
    }
}

fn job(ranks: u16, first_worker: usize, calls: usize, count: usize, rest: Time) -> JobPlan {
    let call = Call { kind: Kind::AllReduce(Reduction::SUM), dtype: DType::I32, count };
    job_of(call, ranks, first_worker, calls, rest)
}

fn job_of(call: Call, ranks: u16, first_worker: usize, calls: usize, rest: Time) -> JobPlan {
    let step = Step { call, elements: Elements::Exact, waits: true };
    JobPlan {
        ranks,
        workers: (first_worker..first_worker + usize::from(ranks)).collect(),
        change: None,
        program: vec![step; calls],
        pause: 0,
        // All jobs have started by then.
        begin: SECOND / 10,
        rest,
        linger: 0,
        origin: 0,
        batch: 16,
        receive_room: 4096,
        socket_room: 4096,
        mistake: None,
        quitter: None,
    }
}

fn scenario(jobs: Vec<JobPlan>, tree: Tree, slots: u32) -> Scenario {
    let workers = jobs.iter().map(|job| usize::from(job.ranks)).sum();
    Scenario {
        seed: 1,
        heals_at: None,
        slots,
        max_lanes: LANES,
        tags: false,
        capabilities: Capabilities::all() - Capabilities::GROUP_HELLOS,
        fanout: Fanout::Multicast,
        ports: vec![1; workers],
        without_multicast: vec![false; workers],
        durable: false,
        limits: Limits { deadline: Duration::from_secs(60), timeout: Duration::from_secs(600) },
        join_timeout: 60 * SECOND,
        attempts: 1,
        host_delay: 0,
        hosts: (0..workers).collect(),
        in_memory: false,
        threads: vec![Threads::default(); workers],
        jobs,
        links: vec![[link(); 2]; workers],
        tree,
        others: Vec::new(),
        weights: Vec::new(),
        control_delay: (MS, 0),
        control_loss: 0,
        open_fails: 0,
        incidents: Vec::new(),
        stranger: None,
        is_calm: false,
    }
}

/// The time of an all-reduce of `bytes` bytes, and the bytes that left a rack for it.
///
/// # Errors
/// If a promise was broken.
pub fn all_reduce(shape: Shape, ranks: u16, bytes: usize) -> Result<(Time, u64), Violation> {
    let jobs = vec![job(ranks, 0, 2, bytes / 4, 0)];
    let run = play(scenario(jobs, shape.tree(ranks.into()), 512));
    run.verdict?;
    Ok((time_of_last(&run.sessions), run.tally.uplinks.1 / 2))
}

/// The time of an all-gather of `bytes` bytes, where each rank has its own link.
///
/// # Errors
/// If a promise was broken.
pub fn all_gather(ranks: u16, bytes: usize) -> Result<Time, Violation> {
    let call = Call { kind: Kind::AllGather, dtype: DType::I32, count: bytes / 4 };
    let run = play(scenario(vec![job_of(call, ranks, 0, 2, 0)], Tree::default(), 512));
    run.verdict?;
    Ok(time_of_last(&run.sessions))
}

/// The time of the first session's last call. The call before it measures round-trip times.
fn time_of_last(sessions: &[Times]) -> Time {
    let calls = sessions.first().map(|times| times.calls.as_slice()).unwrap_or_default();
    let (called, returned) = calls.last().copied().unwrap_or_default();
    returned - called
}

/// The least time that links allow: the tensor once, and a packet over each other link.
pub fn perfect(shape: Shape, bytes: usize) -> Time {
    let packets = (bytes / 4).div_ceil(LANES.into()) as u64;
    let on_wire = bytes as u64 + 32 * packets;
    let links = 2 * shape.links();
    on_wire * BYTE_TIME / 1_000 + (links - 1) * PACKET as u64 * BYTE_TIME / 1_000 + links * DELAY
}

/// The least time of a ring all-reduce over racks: each rank sends 2 (N - 1) / N of the tensor, in
/// 2 (N - 1) steps that each cross at least two links.
pub fn ring(ranks: u16, bytes: usize) -> Time {
    let (ranks, bytes) = (u64::from(ranks), bytes as u64);
    let steps = 2 * (ranks - 1);
    steps * bytes / ranks * BYTE_TIME / 1_000 + steps * 2 * DELAY
}

/// How jobs share a combiner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Best effort: all jobs may use all cells.
    BestEffort,
    /// The first jobs have cells, the others have none.
    Partition,
    /// No job has cells.
    None,
}

impl Sharing {
    /// All kinds of sharing.
    pub const ALL: [Self; 3] = [Self::BestEffort, Self::Partition, Self::None];

    /// The name of the kind, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "best effort",
            Self::Partition => "static partition",
            Self::None => "no combiner",
        }
    }
}

/// Slots of each job that shares a combiner.
const SHARED_SLOTS: u32 = 64;
/// Jobs for which the combiner's cells suffice.
const FIT: u16 = 2;
/// Ranks of each job.
const SHARING_RANKS: u16 = 4;
/// Longest time until a host processes what has arrived: ranks in step would hardly need cells.
const HOST: Time = 50 * US;

/// The throughput of `jobs` jobs that share a combiner, in `calls` calls each, with a pause of
/// `rest` after each call.
///
/// # Errors
/// If a promise was broken.
pub fn share(sharing: Sharing, jobs: u16, calls: usize, rest: Time) -> Result<Shares, Violation> {
    let count = 2 * SHARED_SLOTS as usize * usize::from(LANES);
    let plans = (0..jobs)
        .map(|number| job(SHARING_RANKS, usize::from(number * SHARING_RANKS), calls, count, rest));
    let combiner = CombinerPlan {
        parent: None,
        uplink: [link(); 2],
        cells: u32::from(FIT) * SHARED_SLOTS,
        let_pass: 0,
        jobs: match sharing {
            Sharing::BestEffort => u16::MAX,
            Sharing::Partition => FIT,
            Sharing::None => 0,
        },
    };
    let above = vec![Some(0); usize::from(jobs * SHARING_RANKS)];
    let tree = Tree { combiners: vec![combiner], above };
    let scenario = scenario(plans.collect(), tree, SHARED_SLOTS);
    let run = play(Scenario { host_delay: HOST, ..scenario });
    run.verdict?;
    let bits = (32 * count * calls) as f64;
    let span = |times: &Times| Some((times.calls.first()?.0, times.calls.last()?.1));
    let spans: Vec<_> = run.sessions.iter().filter_map(span).collect();
    let rates: Vec<_> = spans.iter().map(|(first, last)| bits / (last - first) as f64).collect();
    let begin = spans.iter().map(|(first, _)| *first).min().unwrap_or_default();
    let end = spans.iter().map(|(_, last)| *last).max().unwrap_or_default();
    let total = bits * spans.len() as f64 / (end - begin) as f64;
    Ok(Shares { total, jain: jain(&rates) })
}

/// The throughput of jobs that share a combiner.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Gb/s of tensors over all jobs, until the last is done.
    pub total: f64,
    /// [`jain`] of the jobs' rates.
    pub jain: f64,
}

/// Jain's index of fairness: 1 if all have the same, 1 / n if one has everything.
pub fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}

/// A line of a plot: its name, and its points.
pub type Line = (&'static str, Vec<(f64, f64)>);

/// The columns of the table of all-reduces, after the column of ranks.
pub fn columns() -> impl Iterator<Item = &'static str> {
    Shape::ALL.iter().map(|shape| shape.name()).chain(["ring, least"])
}

/// A row of the table of all-reduces, in ms.
///
/// # Errors
/// If a promise was broken.
pub fn times(ranks: u16, bytes: usize) -> Result<Vec<f64>, Violation> {
    let mut times = at_once(Shape::ALL, |shape| Ok(all_reduce(shape, ranks, bytes)?.0))?;
    times.push(ring(ranks, bytes));
    Ok(times.into_iter().map(|time| time as f64 / 1e6).collect())
}

/// Numbers of jobs in the rows of the table of jobs that share a combiner.
pub const SHARERS: [u16; 5] = [1, 2, 4, 8, 16];

/// A row of the table of jobs that share a combiner, with each kind of sharing.
///
/// # Errors
/// If a promise was broken.
pub fn shares(jobs: u16, calls: usize, rest: Time) -> Result<Vec<Shares>, Violation> {
    at_once(Sharing::ALL, |sharing| share(sharing, jobs, calls, rest))
}

/// Runs `f` on each of the given values, each on its own thread.
fn at_once<A: Send, B: Send, const N: usize>(
    all: [A; N],
    f: impl Fn(A) -> Result<B, Violation> + Sync,
) -> Result<Vec<B>, Violation> {
    let f = &f;
    thread::scope(|scope| {
        let threads = all.map(|one| scope.spawn(move || f(one)));
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().expect("runs tell of panics");
        threads.into_iter().map(join).collect()
    })
}
