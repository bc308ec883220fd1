//! What the tables of a root hold in addition for ranks by RoCEv2: `p4/include/roce.p4` and
//! `p4/include/bmv2/messages.p4`.

use switchml_protocol::bpf_types::job::Binding;

use crate::entries::{OpenJob, Table, exact, mac, word, word_of};
use crate::switch::{Entry, Match, Node};

/// Contributions from queue pairs; otherwise as the table `members`.
pub const MEMBERS: &str = "members_by_roce";
/// HELLOs from queue pairs; otherwise as the table `bindings`.
pub const BINDINGS: &str = "bindings_by_roce";
/// The field in which a queue pair stands in the place of a UDP port, and its bits.
pub const SENDER: &str = "queue_pair";
/// A mask of all of its bits.
pub const ALL_BITS: u64 = 0xFF_FFFF;

/// The tables that only programs have that take messages, with the names that the control plane
/// uses.
pub const TABLES: &[Table] = &[
    Table { name: "queue_pairs", key: &["aggregator"], actions: &[("ours", &[])] },
    Table {
        name: MEMBERS,
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
            SENDER,
        ],
        actions: &[("admit", &["base", "own", "rest", "others"]), ("turn_away", &[])],
    },
    Table {
        name: BINDINGS,
        key: &["job", "epoch", "rank", "secret", "port", "mac", "address", SENDER],
        actions: &[("greet", &[])],
    },
    Table {
        name: "copies",
        key: &["job", "node"],
        actions: &[("to_queue_pair", &["mac", "address", "queue_pair"])],
    },
];

impl OpenJob {
    /// The entry that takes messages to the queue pair of the job's address for the data plane.
    pub(crate) fn queue_pair(&self) -> Entry {
        exact("queue_pairs", &[("aggregator", word_of(self.spec.address))], "ours")
    }

    /// Ranks with queue pairs, with these and where they live.
    pub(crate) fn by_roce(&self) -> impl Iterator<Item = (u16, Binding, u32)> {
        let bindings = self.bindings.iter();
        bindings.filter_map(|(rank, binding)| Some((*rank, *binding, binding.queue_pair()?)))
    }

    /// The node of the job's group that makes a rank's copy of a RESULT to all; number 0 makes
    /// those of the group's other ports.
    pub(crate) fn node(&self, rank: u16) -> Node {
        Node { group: self.group, number: rank + 1 }
    }

    /// The destinations of these copies.
    pub(crate) fn copies(&self) -> impl Iterator<Item = Entry> {
        self.by_roce().map(|(rank, binding, queue_pair)| {
            let node = self.node(rank).number;
            let key = [("job", self.spec.number.into()), ("node", node.into())];
            let data = vec![
                ("mac", mac(binding.mac)),
                ("address", word(binding.ip.low().into())),
                ("queue_pair", queue_pair.into()),
            ];
            Entry { data, ..exact("copies", &key, "to_queue_pair") }
        })
    }

    /// The table with a rank's contributions, and there the field and match of their sender.
    pub(crate) fn contributor(binding: Binding) -> (&'static str, (&'static str, Match)) {
        match binding.queue_pair() {
            Some(number) => {
                (MEMBERS, (SENDER, Match::Ternary { value: number.into(), mask: ALL_BITS }))
            }
            None => {
                let port = binding.port.get().into();
                ("members", ("udp_port", Match::Ternary { value: port, mask: 0xFFFF }))
            }
        }
    }

    /// The table with HELLOs from a rank's binding, and there the field and value of their sender.
    pub(crate) fn greeter(binding: Binding) -> (&'static str, (&'static str, u64)) {
        match binding.queue_pair() {
            Some(number) => (BINDINGS, (SENDER, number.into())),
            None => ("bindings", ("udp_port", binding.port.get().into())),
        }
    }
}
