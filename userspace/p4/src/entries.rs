//! The entries of the program's tables, as a function of the open jobs. Without I/O.
//!
//! The tables are in `p4/include/aggregator.p4` and `admission.p4`; [`combiner`](crate::combiner)
//! has a combiner's tables. A refusal names the same reason as `protocol::root`, as far as
//! tables can tell.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use switchml_protocol::DATA_PORT;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::header::flags;
use switchml_protocol::wire::ip::Ip;

use super::switch::{Entry, Match, Node};
use switchml_userspace_core::data_plane::JobSpec;

/// Most jobs at once.
pub const MAX_JOBS: u16 = 16;
/// Most ranks of a job: bits of a register's word.
pub const MAX_RANKS: u16 = 32;
/// Multicast groups: 1 up to this. Job n has the group n + 1.
pub const MAX_GROUPS: u16 = MAX_JOBS + 1;
/// The group of all ports.
const FLOODING: u16 = MAX_GROUPS;

/// Priorities of refusals: the most telling reason first.
mod priority {
    /// The parser, or the check of the packet, has found the reason.
    pub const FOUND: u32 = 0;
    /// A rank that has not said HELLO.
    pub const RANK: u32 = 1;
    /// The reasons for refusing a known rank's packet, in this order.
    pub const MEMBER: u32 = 2;
    pub const JOB: u32 = 6;
    pub const LAST: u32 = 7;
}

/// Numbers that each pipeline of a Tofino switch has for its ports.
pub const PORTS_OF_PIPELINE: u16 = 128;

/// Parities of rounds: each set has the rounds of one parity.
const PARITIES: [u64; 2] = [0, 1];
/// Most ones in a number below [`MAX_RANKS`], that is in 31: see [`cover`].
const MOST_BLOCKS: usize = MAX_RANKS.ilog2() as usize;

/// Most ternary entries of one priority in a table, with the most jobs and ranks: the places that a
/// TCAM, which takes the first match, must have for that priority.
pub fn most_ternary(table: &str, priority: u32) -> usize {
    let jobs = usize::from(MAX_JOBS);
    let members = jobs * usize::from(MAX_RANKS);
    match (table, priority) {
        ("members", 0) => PARITIES.len() * members,
        ("losses", 0) => MOST_LOSSES,
        ("refusals", priority::FOUND) => refusals_of_all().len(),
        ("refusals", priority::RANK) => members,
        ("refusals", priority::MEMBER..priority::JOB) => jobs * MOST_BLOCKS,
        ("refusals", priority::JOB..=priority::LAST) => jobs,
        _ => 0,
    }
}

/// The tables whose entries are the control plane's, with the names that it uses.
pub const TABLES: &[Table] = &[
    Table {
        name: "members",
        key: &[
            "is_contribution",
            "bad_ip_checksum",
            "flags",
            "job",
            "epoch",
            "rank",
            "slot",
            "parity",
            "port",
            "mac",
            "address",
            "aggregator",
            "udp_port",
        ],
        actions: &[("admit", &["base", "own", "rest", "others"]), ("turn_away", &[])],
    },
    Table {
        name: "newcomers",
        key: &["job", "epoch", "rank", "secret"],
        actions: &[("learn", &[]), ("misplaced", &[])],
    },
    Table {
        name: "bindings",
        key: &["job", "epoch", "rank", "secret", "port", "mac", "address", "udp_port"],
        actions: &[("greet", &[])],
    },
    Table {
        name: "jobs",
        key: &["job"],
        actions: &[("to_group", &["group", "mac", "address", "udp_port"])],
    },
    Table {
        name: "aggregators",
        key: &["is_udp", "aggregator", "udp_port"],
        actions: &[("ours", &[])],
    },
    Table { name: "forgeries", key: &["is_ipv4", "aggregator"], actions: &[("forged", &[])] },
    Table {
        name: "refusals",
        key: &["outcome", "bad_ip_checksum", "is_hello", "job", "epoch", "rank", "slot", "flags"],
        actions: &[("refuse", &["reason"]), ("refuse_malformed", &[])],
    },
    Table {
        name: "stations",
        key: &["mac"],
        actions: &[("forward", &["port"]), ("flood", &["group"]), ("nowhere", &[])],
    },
    LOSSES,
];
/// The table of packets that are lost on purpose ([`losses`](crate::losses)).
pub const LOSSES: Table = Table { name: "losses", key: &["draw"], actions: &[("lose", &[])] };
/// Most entries of it: one for each bit of a draw.
pub const MOST_LOSSES: usize = u16::BITS as usize;
/// The table that only programs for packets of several parts have (`p4/include/parts.p4`).
pub const PARTS: &str = "parts";
/// The most parts of a packet then.
pub const MOST_PARTS: u16 = 4;
/// The register with the round of each set.
pub const ROUNDS: &str = "rounds";
/// The register with the ranks that are in each set, rank 0 in the lowest bit.
pub const RANKS: &str = "ranks";
/// The counter of packets by outcome.
pub const OUTCOMES: &str = "outcomes";

/// A table, by names.
#[derive(Debug)]
pub struct Table {
    /// The table's name.
    pub name: &'static str,
    /// Fields of the key, in order.
    pub key: &'static [&'static str],
    /// Actions, with their parameters, in order.
    pub actions: &'static [(&'static str, &'static [&'static str])],
}

/// An open job, and its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenJob {
    /// The spec with which the job was opened.
    pub spec: JobSpec,
    /// The secret that each rank's HELLO must carry; at a combiner, only of the ranks below.
    pub secrets: BTreeMap<u16, u32>,
    /// The places from which ranks said HELLO.
    pub bindings: BTreeMap<u16, Binding>,
    /// At a combiner: the parent's address, and the way of frames to it.
    pub uplink: Option<Binding>,
    /// The job's multicast group.
    pub group: u16,
    /// Whether all ranks are known, so that RESULTs can be sent.
    pub is_started: bool,
    /// Whether contributions are answered with REJECT.
    pub is_aborted: bool,
    /// Whether ranks by RoCEv2 are taken.
    pub takes_roce: bool,
}

/// The contents of the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Entries, each id once, in the order in which to enter them.
    pub entries: Vec<Entry>,
    /// Ports of the multicast groups' nodes.
    pub groups: BTreeMap<Node, Vec<u16>>,
}

impl Contents {
    /// The contents of a switch with these ports and jobs.
    pub fn of(ports: &[u16], jobs: &BTreeMap<u16, OpenJob>) -> Self {
        let flooding = default_action("stations", "flood", vec![("group", FLOODING.into())]);
        let mut entries = vec![flooding];
        entries.extend(refusals_of_all());
        for job in jobs.values() {
            job.list(&mut entries);
        }
        // Jobs may share the aggregator's address, and ranks a station.
        let mut ids = HashSet::new();
        let is_first: Vec<_> = entries.iter().map(|entry| ids.insert(entry.id())).collect();
        let mut is_first = is_first.into_iter();
        entries.retain(|_| is_first.next().unwrap_or_default());
        let started = jobs.values().filter(|job| job.is_started);
        let groups = started
            .flat_map(OpenJob::nodes)
            .chain([(Node::of_ports(FLOODING), ports.to_vec())])
            .filter(|(_, ports)| !ports.is_empty())
            .collect();
        Self { entries, groups }
    }
}

/// Register indices of a job's sets for even and for odd rounds, with their values before the first
/// round. Sets of later parts of a packet come at equal distances after them.
pub fn first_rounds(spec: &JobSpec) -> [(Range<u32>, u32); 2] {
    let slots = spec.slots.end - spec.slots.start;
    let even = 2 * spec.slots.start;
    let odd = even + slots;
    // Round r starts on a set that holds r - 2.
    [(even..odd, 0u32.wrapping_sub(2)), (odd..odd + slots, 1u32.wrapping_sub(2))]
}

impl OpenJob {
    /// Initial values of the registers of rounds; a combiner has none.
    pub fn first_rounds(&self) -> Vec<(Range<u32>, u32)> {
        if self.uplink.is_some() { Vec::new() } else { first_rounds(&self.spec).into() }
    }

    /// A job whose ranks have yet to say HELLO.
    pub fn new(spec: JobSpec) -> Self {
        Self {
            secrets: (0..).zip(spec.secrets.iter().copied()).collect(),
            bindings: BTreeMap::new(),
            uplink: None,
            group: spec.number + 1,
            spec,
            is_started: false,
            is_aborted: false,
            takes_roce: false,
        }
    }

    /// The nodes of its group. Ports that ranks with sockets are behind are there once: several
    /// ranks behind one get one frame.
    fn nodes(&self) -> Vec<(Node, Vec<u16>)> {
        let with_sockets = self.bindings.values().filter(|binding| !binding.is_queue_pair());
        let ports: BTreeSet<_> = with_sockets.map(|binding| binding.ifindex as u16).collect();
        let copies = self
            .by_roce()
            .map(|(rank, binding, _)| (self.node(rank), vec![binding.ifindex as u16]));
        let of_ports = (Node::of_ports(self.group), ports.into_iter().collect());
        copies.chain([of_ports]).collect()
    }

    fn list(&self, entries: &mut Vec<Entry>) {
        entries.push(self.addressed_to(DATA_PORT));
        let aggregator = word_of(self.spec.address);
        entries.push(exact("forgeries", &[("is_ipv4", 1), ("aggregator", aggregator)], "forged"));
        entries.extend(self.takes_roce.then(|| self.queue_pair()));
        entries.extend(self.refusals());
        for (&rank, &binding) in &self.bindings {
            entries.push(station(binding));
            entries.push(self.binding(rank, binding));
        }
        entries.extend(self.secrets.keys().map(|&rank| self.newcomer(rank)));
        if let Some(uplink) = self.uplink {
            self.list_below(uplink, entries);
            return;
        }
        if self.is_started {
            entries.push(self.audience());
            entries.extend(self.copies());
        }
        for (&rank, &binding) in &self.bindings {
            entries.extend(PARITIES.map(|parity| self.member(rank, binding, parity)));
            entries.extend(self.is_alone().then(|| self.empty(rank, binding)));
        }
    }

    /// Whether the job has one rank, which completes each round.
    fn is_alone(&self) -> bool {
        self.secrets.len() == 1
    }

    /// The entry that takes frames to the job's address and this UDP port for the data plane.
    pub(crate) fn addressed_to(&self, udp_port: u16) -> Entry {
        let aggregator = ("aggregator", word_of(self.spec.address));
        let key = [("is_udp", 1), aggregator, ("udp_port", udp_port.into())];
        exact("aggregators", &key, "ours")
    }

    /// The entry for contributions of a rank, from its binding alone, to rounds of a parity.
    fn member(&self, rank: u16, binding: Binding, parity: u64) -> Entry {
        // If the rank is alone, contributions without payload have a separate entry.
        let empty = if self.is_alone() { flags::EMPTY } else { 0 };
        let (table, key) = self.contributions(
            rank,
            binding,
            bits(flags::CHECKED.into(), (flags::CHECKED | empty).into()),
            bits(parity, 1),
        );
        if self.is_aborted {
            return turned_away(table, key);
        }
        let [even, odd] = first_rounds(&self.spec);
        let base = if parity == 0 { even.0.start } else { odd.0.start };
        let ranks = self.spec.secrets.len() as u64;
        let own = 1 << rank;
        let data = vec![
            ("base", base.into()),
            ("own", own),
            ("rest", (1 << ranks) - 1 - own),
            ("others", ranks - 1),
        ];
        Entry { table, key, priority: 0, action: "admit", data }
    }

    /// Contributions without payload of a job's only rank: each would complete its round.
    fn empty(&self, rank: u16, binding: Binding) -> Entry {
        let flags = u64::from(flags::CHECKED | flags::EMPTY);
        let (table, key) = self.contributions(rank, binding, bits(flags, flags), ANY);
        turned_away(table, key)
    }

    /// The table with contributions of a rank from its binding alone, and their key there.
    fn contributions(
        &self,
        rank: u16,
        binding: Binding,
        flags: Match,
        parity: Match,
    ) -> (&'static str, Vec<(&'static str, Match)>) {
        let (table, sender) = Self::contributor(binding);
        let key = vec![
            ("is_contribution", bits(1, 1)),
            ("bad_ip_checksum", bits(0, 1)),
            ("flags", flags),
            ("job", self.number()),
            ("epoch", self.epoch()),
            ("rank", bits(rank.into(), 0xFFFF)),
            ("slot", self.own_slots()),
            ("parity", parity),
            ("port", bits(binding.ifindex.into(), 0x1FF)),
            ("mac", bits(mac(binding.mac), (1 << 48) - 1)),
            ("address", bits(word(binding.ip.low().into()), 0xFFFF_FFFF)),
            ("aggregator", bits(word_of(self.spec.address), 0xFFFF_FFFF)),
            sender,
        ];
        (table, key)
    }

    /// HELLOs that carry the rank's secret, but do not come from its binding.
    fn newcomer(&self, rank: u16) -> Entry {
        let action = if self.bindings.contains_key(&rank) { "misplaced" } else { "learn" };
        exact("newcomers", &self.hello(rank), action)
    }

    fn binding(&self, number: u16, binding: Binding) -> Entry {
        let [job, epoch, rank, secret] = self.hello(number);
        let (table, sender) = Self::greeter(binding);
        let key = [
            job,
            epoch,
            rank,
            secret,
            ("port", binding.ifindex.into()),
            ("mac", mac(binding.mac)),
            ("address", word(binding.ip.low().into())),
            sender,
        ];
        // At a combiner the HELLO goes on.
        let data = self.uplink.map(|uplink| self.greeting(number, uplink)).unwrap_or_default();
        Entry { data, ..exact(table, &key, "greet") }
    }

    fn hello(&self, rank: u16) -> [(&'static str, u64); 4] {
        let secret = self.secrets[&rank];
        [
            ("job", self.spec.number.into()),
            ("epoch", self.spec.epoch.into()),
            ("rank", rank.into()),
            ("secret", secret.into()),
        ]
    }

    /// The entry with the destination of RESULTs to all.
    fn audience(&self) -> Entry {
        let key = [("job", self.spec.number.into())];
        Entry { data: self.to_group(), ..exact("jobs", &key, "to_group") }
    }

    pub(crate) fn to_group(&self) -> Vec<(&'static str, u64)> {
        let (address, udp_port) = self.spec.group;
        vec![
            ("group", self.group.into()),
            ("mac", multicast_mac(address)),
            ("address", word(address)),
            ("udp_port", udp_port.into()),
        ]
    }

    /// Why a packet of the job may not have been admitted.
    fn refusals(&self) -> Vec<Entry> {
        let of_job = Refused { job: self.number(), ..Refused::default() };
        let of_epoch = Refused { epoch: self.epoch(), ..of_job };
        let mut entries = vec![
            of_epoch.because(priority::JOB, Outcome::BadRank),
            of_job.because(priority::LAST, Outcome::WrongEpoch),
        ];
        for rank in cover(&self.secrets.keys().copied().collect::<Vec<_>>()) {
            let of_rank = Refused { rank, ..of_epoch };
            let in_range = Refused { slot: self.own_slots(), ..of_rank };
            let reasons = [
                (Refused { is_hello: bits(1, 1), ..of_rank }, Outcome::WrongSecret),
                (Refused { flags: checked(false), ..in_range }, Outcome::BadCheck),
                (in_range, Outcome::WrongPlace),
                (of_rank, Outcome::BadSlot),
            ];
            let reasons = (priority::MEMBER..).zip(reasons);
            entries.extend(
                reasons.map(|(priority, (refused, outcome))| refused.because(priority, outcome)),
            );
        }
        let unknown = self.secrets.keys().filter(|rank| !self.bindings.contains_key(rank));
        entries.extend(unknown.map(|&rank| {
            let refused =
                Refused { rank: bits(rank.into(), 0xFFFF), is_hello: bits(0, 1), ..of_epoch };
            refused.because(priority::RANK, Outcome::NoHello)
        }));
        entries
    }

    pub(crate) fn number(&self) -> Match {
        bits(self.spec.number.into(), 0xFFFF)
    }

    pub(crate) fn epoch(&self) -> Match {
        bits(self.spec.epoch.into(), 0xFFFF_FFFF)
    }

    /// A slot within the job's range, whose length is a power of two; a parent may have others.
    pub(crate) fn own_slots(&self) -> Match {
        let slots = self.spec.slots.end - self.spec.slots.start;
        bits(0, 0xFFFF & !u64::from(slots.next_power_of_two() - 1))
    }
}

/// Contributions with this key are answered without their slot.
fn turned_away(table: &'static str, key: Vec<(&'static str, Match)>) -> Entry {
    Entry { table, key, priority: 0, action: "turn_away", data: Vec::new() }
}

/// The packets that a refusal matches.
#[derive(Clone, Copy)]
struct Refused {
    is_hello: Match,
    job: Match,
    epoch: Match,
    rank: Match,
    slot: Match,
    flags: Match,
}

impl Default for Refused {
    fn default() -> Self {
        Self { is_hello: ANY, job: ANY, epoch: ANY, rank: ANY, slot: ANY, flags: ANY }
    }
}

impl Refused {
    /// A refusal, unless the parser has found a reason already.
    fn because(self, priority: u32, outcome: Outcome) -> Entry {
        let reason = vec![("reason", outcome as u64)];
        refusal(bits(0, 0xFF), bits(0, 1), self, priority, "refuse", reason)
    }
}

/// Refusals that are the same for all jobs. All other packets belong to an unknown job, which is
/// the program's default reason.
fn refusals_of_all() -> [Entry; 2] {
    let bad_ip_checksum = vec![("reason", Outcome::BadIpChecksum as u64)];
    // All outcomes that the parser and the check find have this bit; a test checks that.
    let malformed = bits(Outcome::Truncated as u64, Outcome::Truncated as u64);
    [
        refusal(ANY, bits(1, 1), Refused::default(), priority::FOUND, "refuse", bad_ip_checksum),
        refusal(
            malformed,
            bits(0, 1),
            Refused::default(),
            priority::FOUND,
            "refuse_malformed",
            Vec::new(),
        ),
    ]
}

fn refusal(
    outcome: Match,
    bad_ip_checksum: Match,
    refused: Refused,
    priority: u32,
    action: &'static str,
    data: Vec<(&'static str, u64)>,
) -> Entry {
    let key = vec![
        ("outcome", outcome),
        ("bad_ip_checksum", bad_ip_checksum),
        ("is_hello", refused.is_hello),
        ("job", refused.job),
        ("epoch", refused.epoch),
        ("rank", refused.rank),
        ("slot", refused.slot),
        ("flags", refused.flags),
    ];
    Entry { table: "refusals", key, priority, action, data }
}

/// Matches for these ranks, which must be in ascending order: one for each aligned block of ranks.
fn cover(ranks: &[u16]) -> Vec<Match> {
    let mut matches = Vec::new();
    let mut rest = ranks;
    while let [first, ..] = *rest {
        let fits = |size: &usize| {
            usize::from(first).is_multiple_of(*size)
                && rest.get(size - 1).is_some_and(|last| usize::from(last - first) == size - 1)
        };
        let size = (0..16).rev().map(|bit| 1 << bit).find(fits).unwrap_or(1);
        matches.push(bits(first.into(), 0xFFFF & !(size as u64 - 1)));
        rest = &rest[size..];
    }
    matches
}

pub(crate) const ANY: Match = Match::Ternary { value: 0, mask: 0 };

pub(crate) fn bits(value: u64, mask: u64) -> Match {
    Match::Ternary { value, mask }
}

/// Matches packets that carry a check word, or that do not.
fn checked(yes: bool) -> Match {
    let flag = u64::from(flags::CHECKED);
    bits(if yes { flag } else { 0 }, flag)
}

pub(crate) fn exact(
    table: &'static str,
    key: &[(&'static str, u64)],
    action: &'static str,
) -> Entry {
    let key = key.iter().map(|&(name, value)| (name, Match::Exact(value))).collect();
    Entry { table, key, priority: 0, action, data: Vec::new() }
}

/// The entry that forwards frames to a known MAC.
pub(crate) fn station(binding: Binding) -> Entry {
    let to = vec![("port", binding.ifindex.into())];
    Entry { data: to, ..exact("stations", &[("mac", mac(binding.mac))], "forward") }
}

fn default_action(
    table: &'static str,
    action: &'static str,
    data: Vec<(&'static str, u64)>,
) -> Entry {
    Entry { table, key: Vec::new(), priority: 0, action, data }
}

pub(crate) fn word(address: Ipv4Addr) -> u64 {
    u32::from(address).into()
}

/// The aggregator's address as a number. It is IPv4: the daemon accepts no other for a switch.
pub(crate) fn word_of(address: IpAddr) -> u64 {
    word(Ip::from(address).low().into())
}

pub(crate) fn mac([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// RFC 1112: the low 23 bits of the group's address.
pub(crate) fn multicast_mac(group: Ipv4Addr) -> u64 {
    0x0100_5E00_0000 | word(group) & 0x7F_FFFF
}
