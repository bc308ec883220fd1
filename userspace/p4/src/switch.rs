//! The interface of a switch that runs the P4 program, independent of the switch's protocol.

use std::ops::Range;

use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::outcome::Outcome;

/// A switch that runs a program of `p4/`. It was cleared when it was taken over, so it has only
/// constant entries.
///
/// Names are as in the source, without the controls: the switch finds the full names in the
/// compiler's output.
pub trait Switch: Send + Sync {
    /// Name of the data plane.
    fn name(&self) -> &'static str;

    /// One line about the switch and its program.
    fn attachment(&self) -> String;

    /// Entries of each register of a set's state, two for each slot and part; or of a cell's.
    fn sets(&self) -> u32;

    /// Parts of 64 lanes that a packet may have.
    fn parts(&self) -> u16;

    /// All ports that stations may be behind.
    fn ports(&self) -> &[u16];

    /// The pipeline of a port. Each pipeline has its own registers.
    fn pipeline(&self, port: u16) -> u16;

    /// Inserts an entry into its table, which has none with the same key and priority.
    fn insert(&self, entry: &Entry) -> Result<(), SwitchError>;

    /// Changes the action or data of the entry with this key and priority.
    fn modify(&self, entry: &Entry) -> Result<(), SwitchError>;

    /// Removes the entry with this key and priority.
    fn delete(&self, entry: &Entry) -> Result<(), SwitchError>;

    /// Writes a value to entries of a register.
    fn write_register(
        &self,
        name: &str,
        indices: Range<u32>,
        value: u32,
    ) -> Result<(), SwitchError>;

    /// Has reads of a register give values of now or later; else they may be older.
    fn renew(&self, register: &str) -> Result<(), SwitchError>;

    /// Reads entries of a register in a pipeline.
    fn read_register(
        &self,
        name: &str,
        pipeline: u16,
        indices: Range<u32>,
    ) -> Result<Vec<u32>, SwitchError>;

    /// Sets the ports of a multicast group's node. Without ports the node is removed, and the group
    /// with its last one.
    fn set_node(&self, node: Node, ports: &[u16]) -> Result<(), SwitchError>;

    /// Packets by outcome, in the order of [`Outcome::ALL`].
    fn counters(&self) -> Result<[u64; Outcome::COUNT], SwitchError>;
}

/// A part of a multicast group. Frames that it makes carry its number through egress. Only programs
/// that take RoCEv2 have other numbers than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// The group.
    pub group: u16,
    /// The node's number in the group.
    pub number: u16,
}

impl Node {
    /// The node of all of a group's ports, or of those that are no single rank's.
    pub const fn of_ports(group: u16) -> Self {
        Self { group, number: 0 }
    }
}

/// Why the switch refused, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SwitchError(pub String);

/// An entry of a table. Without a key it is the table's default action: inserting or modifying sets
/// it, deleting restores the program's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The entry's table.
    pub table: &'static str,
    /// Names and matches, in the order of the table's key.
    pub key: Vec<(&'static str, Match)>,
    /// Of several entries that match, the one with the lowest priority is taken. 0 in tables with
    /// exact matches.
    pub priority: u32,
    /// The entry's action.
    pub action: &'static str,
    /// Names and values of the action's parameters, in their order.
    pub data: Vec<(&'static str, u64)>,
}

impl Entry {
    /// Identifies the entry among all others.
    pub fn id(&self) -> EntryId<'_> {
        (self.table, &self.key, self.priority)
    }
}

/// Table, key and priority.
pub type EntryId<'a> = (&'static str, &'a [(&'static str, Match)], u32);

/// The match of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// An exact value, in tables with exact matches.
    Exact(u64),
    /// In other tables: the bits under the mask must be those of the value, which has no other
    /// ones.
    Ternary {
        /// The value.
        value: u64,
        /// The mask; 0 if the field may be anything.
        mask: u64,
    },
}

/// A HELLO that the program reported to the control plane: it carries its rank's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Number of the job.
    pub job: u16,
    /// Epoch of the job.
    pub epoch: u32,
    /// The rank.
    pub rank: u16,
    /// The HELLO's source; the interface is the switch's port.
    pub binding: Binding,
}
