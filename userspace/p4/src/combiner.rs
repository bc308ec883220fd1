//! Entries of the tables that a combiner does not share with an aggregator: `members`, and the
//! tables of `p4/include/combiner.p4`. Without I/O.

use std::collections::BTreeMap;

use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::wire::header::{Kind, flags};
use switchml_protocol::wire::ports::{port_for_all, rank_port};
use switchml_protocol::{DATA_PORT, EVERYONE, RANKS_PER_GROUP};

use crate::entries::{ANY, OpenJob, Table, bits, exact, mac, station, word, word_of};
use crate::switch::{Entry, Match};

/// The register with the age of each cell.
pub const CELLS: &str = "begins";
/// Jobs have numbers below this: a cell's word has no room for larger ones.
pub const JOB_NUMBERS: u16 = 4096;
/// Most slots of a job, for the same reason.
pub const MAX_SLOTS: u32 = 1024;

/// The tables of an aggregator that a combiner has as they are.
pub const SHARED: &[&str] =
    &["newcomers", "aggregators", "forgeries", "refusals", "stations", "losses"];

/// The combiner's tables that an aggregator does not have, or has with other actions or keys.
pub const TABLES: &[Table] = &[
    Table {
        name: "members",
        key: &[
            "is_contribution",
            "bad_ip_checksum",
            "flags",
            "kind",
            "job",
            "epoch",
            "rank",
            "set",
            "slot",
            "port",
            "mac",
            "address",
            "aggregator",
            "udp_port",
        ],
        actions: &[("admit", &["own", "rest", "surplus", "salts", "from"]), ("pass_by", &["from"])],
    },
    Table {
        name: "bindings",
        key: &["job", "epoch", "rank", "secret", "port", "mac", "address", "udp_port"],
        actions: &[("greet", &["from", "parent_mac", "parent", "parent_port", "uplink"])],
    },
    Table {
        name: "uplinks",
        key: &["job"],
        actions: &[("up", &["mac", "address", "udp_port", "port"])],
    },
    Table {
        name: "answers",
        key: &["job", "epoch", "rank", "uplink", "parent", "parent_port", "aggregator", "own_port"],
        actions: &[
            ("to_group", &["group", "mac", "address", "udp_port"]),
            ("to_rank", &["mac", "address", "udp_port", "port"]),
        ],
    },
];

impl OpenJob {
    /// The entries that only a combiner has; `uplink` is the way to its parent.
    pub(crate) fn list_below(&self, uplink: Binding, entries: &mut Vec<Entry>) {
        entries.push(station(uplink));
        let to_all = port_for_all(DATA_PORT, self.spec.number);
        let ports = self.secrets.keys().map(|&rank| self.port_of(rank)).chain([to_all]);
        entries.extend(ports.map(|port| self.addressed_to(port)));
        let up = Entry {
            data: address_of(uplink),
            ..exact("uplinks", &[("job", self.spec.number.into())], "up")
        };
        entries.push(up);
        for (&rank, &binding) in &self.bindings {
            let answer = self.answer(uplink, rank, self.port_of(rank), "to_rank");
            entries.push(Entry { data: address_of(binding), ..answer });
        }
        if self.is_started {
            let answer = self.answer(uplink, EVERYONE, to_all, "to_group");
            entries.push(Entry { data: self.to_group(), ..answer });
        }
        entries.extend(self.bindings.iter().map(|(&rank, &binding)| self.admit(rank, binding)));
        entries.extend(self.partial_sums());
    }

    /// How a rank's HELLO goes on to the parent.
    pub(crate) fn greeting(&self, rank: u16, uplink: Binding) -> Vec<(&'static str, u64)> {
        vec![
            ("from", self.port_of(rank).into()),
            ("parent_mac", mac(uplink.mac)),
            ("parent", word(uplink.ip.low().into())),
            ("parent_port", uplink.port.get().into()),
            ("uplink", uplink.ifindex.into()),
        ]
    }

    /// Rule 27.2.
    fn port_of(&self, rank: u16) -> u16 {
        rank_port(DATA_PORT, self.spec.number, rank)
    }

    /// Bitmap of the ranks below of the group that begins so.
    fn below(&self, group: u16) -> u32 {
        let ranks = self.secrets.range(group..group + RANKS_PER_GROUP);
        ranks.fold(0, |set, (rank, _)| set | 1 << (rank - group))
    }

    /// An entry without data.
    fn answer(&self, uplink: Binding, rank: u16, own_port: u16, action: &'static str) -> Entry {
        let key = [
            ("job", self.spec.number.into()),
            ("epoch", self.spec.epoch.into()),
            ("rank", rank.into()),
            ("uplink", uplink.ifindex.into()),
            ("parent", word(uplink.ip.low().into())),
            ("parent_port", uplink.port.get().into()),
            ("aggregator", word_of(self.spec.address)),
            ("own_port", own_port.into()),
        ];
        exact("answers", &key, action)
    }

    /// Contributions of a rank. They go by if there is no other rank to combine them with, or if
    /// the job was aborted, because the root then answers each of them.
    fn admit(&self, rank: u16, binding: Binding) -> Entry {
        let place = rank % RANKS_PER_GROUP;
        let (group, own) = (rank - place, 1 << place);
        let below = self.below(group);
        let key = self.from(
            binding,
            (Kind::Contribution, bits(rank.into(), 0xFFFF), ANY),
            bits(binding.port.get().into(), 0xFFFF),
        );
        let from = ("from", self.port_of(rank).into());
        if self.is_aborted || below == own {
            return members(key, "pass_by", vec![from]);
        }
        // Rule 3.5.
        let surplus = below.wrapping_add(group.into());
        let salts = u64::from(below.count_ones().is_multiple_of(2));
        let data = vec![
            ("own", own.into()),
            ("rest", (below & !own).into()),
            ("surplus", surplus.into()),
            ("salts", salts),
            from,
        ];
        members(key, "admit", data)
    }

    /// Partial sums of a group's ranks at one place, from any UDP port (rule 7.9).
    fn partial_sums(&self) -> Vec<Entry> {
        let mut places: BTreeMap<_, (Binding, u32, u16)> = BTreeMap::new();
        for (&rank, &binding) in &self.bindings {
            let place = rank % RANKS_PER_GROUP;
            let group = rank - place;
            let at = (group, binding.ifindex, binding.mac, binding.ip.low());
            let (_, set, highest) = places.entry(at).or_insert((binding, 0, rank));
            *set |= 1 << place;
            *highest = rank;
        }
        let entry = |((group, ..), (binding, set, highest)): ((u16, _, _, _), (_, u32, _))| {
            let others = bits(0, u64::from(!set));
            let of = (Kind::Partial, bits(group.into(), 0xFFFF), others);
            let from = ("from", self.port_of(highest).into());
            members(self.from(binding, of, ANY), "pass_by", vec![from])
        };
        places.into_iter().map(entry).collect()
    }

    /// A key of `members`: packets of that kind, of a rank or group, of a set, from a place.
    fn from(
        &self,
        binding: Binding,
        (kind, rank, set): (Kind, Match, Match),
        udp_port: Match,
    ) -> Vec<(&'static str, Match)> {
        vec![
            ("is_contribution", bits(1, 1)),
            ("bad_ip_checksum", bits(0, 1)),
            ("flags", bits(flags::CHECKED.into(), flags::CHECKED.into())),
            ("kind", bits(kind as u64, 0xFF)),
            ("job", self.number()),
            ("epoch", self.epoch()),
            ("rank", rank),
            ("set", set),
            ("slot", self.own_slots()),
            ("port", bits(binding.ifindex.into(), 0x1FF)),
            ("mac", bits(mac(binding.mac), (1 << 48) - 1)),
            ("address", bits(word(binding.ip.low().into()), 0xFFFF_FFFF)),
            ("aggregator", bits(word_of(self.spec.address), 0xFFFF_FFFF)),
            ("udp_port", udp_port),
        ]
    }
}

fn members(
    key: Vec<(&'static str, Match)>,
    action: &'static str,
    data: Vec<(&'static str, u64)>,
) -> Entry {
    Entry { table: "members", key, priority: 0, action, data }
}

/// The fields that send a frame to a binding.
fn address_of(binding: Binding) -> Vec<(&'static str, u64)> {
    vec![
        ("mac", mac(binding.mac)),
        ("address", word(binding.ip.low().into())),
        ("udp_port", binding.port.get().into()),
        ("port", binding.ifindex.into()),
    ]
}
