//! Counters of faults and fates.

use std::fmt;
use std::ops::AddAssign;

use switchml_protocol::outcome::Outcome;
use switchml_worker_core::engine::Ignored;

macro_rules! counted {
    ($(#[doc = $what:literal])+ $type:ident { $($name:ident = $label:literal,)+ }) => {
        $(#[doc = $what])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $(#[doc = $label] $name,)+
        }

        impl $type {
            /// All variants, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name of the variant, for people.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }
        }
    };
}

counted! {
    /// A fault that was injected.
    Fault {
        Loss = "packet lost",
        TornBundle = "packets sent together, of which some were lost and others not",
        Duplication = "packet doubled",
        Reordering = "packet overtaken by one sent later",
        Late = "packet delayed by up to 8 s",
        BitFlips = "packet with flipped bits",
        EmptyFlips = "EMPTY contribution with flipped bits, or a wrong check word",
        Overlooked = "maximum changed on its way to an aggregator that verifies none",
        Cut = "packet cut or lengthened",
        Oversize = "packet above the path's MTU",
        QueueFull = "packet dropped by a full queue",
        Congestion = "packet marked by ECN",
        SocketFull = "packet dropped by a full socket",
        OldSession = "packet that arrived after its session had ended",
        Straggler = "rank late for a call by a millisecond or more",
        Stall = "worker's process frozen",
        Crash = "worker's process killed",
        DeathInTurn = "worker's process killed in the middle of a turn",
        HostDeath = "worker's host dead without a word",
        Rejoin = "rank started again",
        Change = "job that ranks leave together, to go on in another one",
        ChangeInChange = "... before it has started",
        LeftOut = "rank left out of the next job",
        LossInChange = "... that is lost when the others are told",
        Newcomer = "rank that comes to the next job alone",
        Outage = "link down",
        NoMulticast = "packet by multicast that the network does not bring",
        MixedFanout = "session of which some ranks get copies, others multicast",
        Disconnect = "control connection broken",
        SlowControl = "control message delayed by up to 8 s",
        Replacement = "aggregator replaced, all state lost",
        Restart = "daemon killed and started again, its data plane going on",
        OrderlyStop = "aggregator stopped in good order, then replaced",
        Death = "one of several aggregators dead for good",
        Unreachable = "one of several aggregators out of reach for a while",
        Slow = "one of several aggregators slow for a while",
        Frozen = "one of several aggregators standing still for a while",
        Unheard = "one of several aggregators whose control plane is cut off",
        Apart = "one of several aggregators out of a rank's reach for a while",
        Orphaned = "data plane of one of several aggregators whose daemon is dead for good",
        Squatter = "stranger that takes a rank's seat wherever its job might move to",
        Calm = "job with one aggregator of several that fails, and no other fault",
        OpenFailure = "data plane refuses to open a job",
        Mistake = "rank that calls something else",
        Quitter = "rank that closes before the others are done",
        Wrap = "session across the wrap-around of rounds",
        SharedPool = "session beside those of other jobs",
        SameSlots = "session on slots that an earlier one used",
        Forgery = "packet forged or replayed by a stranger",
        CombinerCrash = "combiner restarted, all state lost",
        CombinerStop = "combiner stopped in good order, then started again",
        CutOff = "combiner whose connections with its parent break",
        Forgotten = "combiner that forgets all its cells",
        LetPass = "contribution that a combiner lets pass without need",
    }
}

counted! {
    /// The fate of a call, or of a session.
    Fate {
        Exact = "call returned, result exact",
        Within16 = "call returned, result in 16 bits within its bound",
        Within8 = "call returned, result in 8 bits within its bound",
        Finished = "rank finished its program",
        Resumed = "rank found its job again over another connection",
        WentOn = "rank left its job, to go on without others",
        CutShort = "... whose calls in flight this ended",
        Moved = "shards of a rank went on at another aggregator",
        NoMulticast = "rank told that it gets no multicast",
        Missing = "error: ranks that did not contribute, named",
        Silent = "error: the aggregator does not answer",
        Damaged = "error: results come damaged again and again",
        WrongMaximum = "error: a maximum that no rank sent, or not the same for all",
        Departed = "error: ranks that have left, named",
        MismatchData = "error: different calls, two ranks named by the data plane alone",
        Mismatch = "error: different calls, with what each rank called",
        Round = "error: out of step",
        AbortedData = "error: aborted, told by the data plane alone",
        Aborted = "error: aborted, with reason and ranks",
        Lost = "error: control connection lost",
        Unreachable = "error: no aggregator answers",
        Forgotten = "error: the aggregator does not know the job any more",
        Refused = "error: not admitted to the job",
        NotJoined = "error: ranks did not join, named",
        NotReady = "error: ranks without data path, named",
        PathClosed = "error: no data path",
        Killed = "killed",
    }
}

/// Counters of one run or of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Runs.
    pub runs: u64,
    /// Runs in which faults stopped, and all jobs had to finish.
    pub healed: u64,
    /// Virtual time, in ns.
    pub time: u128,
    /// Packets sent.
    pub packets: u64,
    faults: [u64; Fault::ALL.len()],
    fates: [u64; Fate::ALL.len()],
    /// Packets at the aggregator, by [`Outcome`].
    pub outcomes: [u64; Outcome::COUNT],
    /// Packets at combiners, by [`Outcome`].
    pub combined: [u64; Outcome::COUNT],
    /// Packets and bytes that combiners sent to their parents.
    pub uplinks: (u64, u64),
    /// Packets ignored by workers, by [`Ignored`].
    pub ignored: [u64; Ignored::ALL.len()],
    /// Ranks that opened the paths of several shards.
    pub wide: u64,
    /// Calls of ranks that returned in parts from several shards.
    pub cut: u64,
    /// Sums of several ranks that a host sent.
    pub local_sums: u64,
    /// Times that a rank was woken to read results that another one of its host has received.
    pub read_along: u64,
    /// Times that a rank was woken for results of a job whose ranks all share memory.
    pub in_memory: u64,
    /// Data chunks that went ahead of their exponents.
    pub ahead: u64,
    /// Chunks sent ahead whose results did not count.
    pub ahead_in_vain: u64,
    /// Chunks sent EMPTY at first.
    pub empty: u64,
    /// EMPTY chunks whose lanes the aggregator asked for.
    pub rooms: u64,
    /// Runs by their number of reconfigurations, the last of three and more.
    pub changes: [u64; 4],
    /// Longest time from the end of all faults to the end of a run, in ns.
    pub slowest_recovery: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            runs: 0,
            healed: 0,
            time: 0,
            packets: 0,
            faults: [0; Fault::ALL.len()],
            fates: [0; Fate::ALL.len()],
            outcomes: [0; Outcome::COUNT],
            combined: [0; Outcome::COUNT],
            uplinks: (0, 0),
            ignored: [0; Ignored::ALL.len()],
            wide: 0,
            cut: 0,
            local_sums: 0,
            read_along: 0,
            in_memory: 0,
            ahead: 0,
            ahead_in_vain: 0,
            empty: 0,
            rooms: 0,
            changes: [0; 4],
            slowest_recovery: 0,
        }
    }
}

impl Tally {
    /// Counts a fault.
    pub fn fault(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    /// Counts a fate.
    pub fn fate(&mut self, fate: Fate) {
        self.fates[fate as usize] += 1;
    }

    /// Counts a packet from a combiner to its parent.
    pub fn up(&mut self, len: usize) {
        self.uplinks.0 += 1;
        self.uplinks.1 += len as u64;
    }

    /// How often a fault was injected.
    pub fn faults(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }

    /// Whether packets were damaged.
    pub fn is_damaged(&self) -> bool {
        self.faults(Fault::BitFlips) + self.faults(Fault::Cut) > 0
    }

    /// How often a fate occurred.
    pub fn fates(&self, fate: Fate) -> u64 {
        self.fates[fate as usize]
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        self.runs += other.runs;
        self.healed += other.healed;
        self.time += other.time;
        self.packets += other.packets;
        add(&mut self.faults, &other.faults);
        add(&mut self.fates, &other.fates);
        add(&mut self.outcomes, &other.outcomes);
        add(&mut self.combined, &other.combined);
        self.uplinks.0 += other.uplinks.0;
        self.uplinks.1 += other.uplinks.1;
        add(&mut self.ignored, &other.ignored);
        self.wide += other.wide;
        self.cut += other.cut;
        self.local_sums += other.local_sums;
        self.read_along += other.read_along;
        self.in_memory += other.in_memory;
        self.ahead += other.ahead;
        self.ahead_in_vain += other.ahead_in_vain;
        self.empty += other.empty;
        self.rooms += other.rooms;
        add(&mut self.changes, &other.changes);
        self.slowest_recovery = self.slowest_recovery.max(other.slowest_recovery);
    }
}

fn add(to: &mut [u64], from: &[u64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

impl fmt::Display for Tally {
    /// Tables in Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table(f, "fault", Fault::ALL.iter().map(|fault| fault.name()), &self.faults)?;
        table(
            f,
            "what became of calls and ranks",
            Fate::ALL.iter().map(|fate| fate.name()),
            &self.fates,
        )?;
        table(
            f,
            "packets at the aggregator",
            Outcome::ALL.iter().map(|outcome| outcome.name()),
            &self.outcomes,
        )?;
        if self.uplinks.0 > 0 {
            let names = Outcome::ALL.iter().map(|outcome| outcome.name());
            table(f, "packets at combiners", names, &self.combined)?;
        }
        table(
            f,
            "packets ignored by workers",
            Ignored::ALL.iter().map(|ignored| ignored.name()),
            &self.ignored,
        )?;
        writeln!(
            f,
            "ranks with several shards: {}; calls that several of them ran: {}",
            self.wide, self.cut
        )?;
        writeln!(f, "sums of several ranks that a host sent: {}", self.local_sums)?;
        writeln!(f, "times that a rank was woken to read another's results: {}", self.read_along)?;
        writeln!(f, "... of a job whose ranks all share memory: {}", self.in_memory)?;
        writeln!(
            f,
            "chunks ahead of their exponents: {}, {} of them in vain",
            self.ahead, self.ahead_in_vain
        )?;
        writeln!(
            f,
            "chunks sent EMPTY at first: {}, {} of them asked for",
            self.empty, self.rooms
        )?;
        let [none, one, two, more] = self.changes;
        writeln!(f, "runs with 0, 1, 2, and more reconfigurations: {none}, {one}, {two}, {more}")?;
        writeln!(
            f,
            "slowest recovery: {:.3} s after the last fault",
            self.slowest_recovery as f64 / 1e9
        )
    }
}

fn table<'a>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    names: impl Iterator<Item = &'a str>,
    counts: &[u64],
) -> fmt::Result {
    writeln!(f, "| {title} | times |\n| --- | ---: |")?;
    for (name, count) in names.zip(counts).filter(|(_, count)| **count > 0) {
        writeln!(f, "| {name} | {count} |")?;
    }
    writeln!(f)
}
