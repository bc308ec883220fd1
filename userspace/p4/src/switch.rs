//! What a switch that runs the P4 program takes from the control plane, whatever it is controlled
//! by.

use std::ops::Range;

use switchml_protocol::job::Binding;
use switchml_protocol::outcome::Outcome;

/// A switch that runs a program of `p4/`. It was cleared when it was taken over: no entries but
/// constant ones.
///
/// Names are those of the source, without the controls that they are in: the switch finds its own
/// in what the compiler says.
pub trait Switch: Send + Sync {
    /// What the data plane is called.
    fn name(&self) -> &'static str;

    /// One line on where the switch is and what it runs.
    fn attachment(&self) -> String;

    /// Entries of each register of a set's state; two for each slot.
    fn sets(&self) -> u32;

    /// All ports that stations may be behind.
    fn ports(&self) -> &[u16];

    /// The pipeline that a port belongs to. Each has registers of its own.
    fn pipeline(&self, port: u16) -> u16;

    /// Puts an entry into its table, which has none with that key and priority.
    ///
    /// # Errors
    ///
    /// When the switch refuses, or cannot be reached.
    fn insert(&self, entry: &Entry) -> Result<(), SwitchError>;

    /// Gives the entry of that key and priority another action or other data.
    ///
    /// # Errors
    ///
    /// When the switch refuses, or cannot be reached.
    fn modify(&self, entry: &Entry) -> Result<(), SwitchError>;

    /// Removes the entry of that key and priority.
    ///
    /// # Errors
    ///
    /// When the switch refuses, or cannot be reached.
    fn delete(&self, entry: &Entry) -> Result<(), SwitchError>;

    /// Writes a value to entries of a register.
    ///
    /// # Errors
    ///
    /// When the switch refuses, or cannot be reached.
    fn write_register(
        &self,
        name: &str,
        indices: Range<u32>,
        value: u32,
    ) -> Result<(), SwitchError>;

    /// Makes a multicast group of these ports, in place of what it was. Without ports there is no
    /// such group.
    ///
    /// # Errors
    ///
    /// When the switch refuses, or cannot be reached.
    fn set_group(&self, group: u16, ports: &[u16]) -> Result<(), SwitchError>;

    /// Packets by outcome, in the order of [`Outcome::ALL`].
    ///
    /// # Errors
    ///
    /// When the switch refuses, or cannot be reached.
    fn counters(&self) -> Result<[u64; Outcome::COUNT], SwitchError>;
}

/// Why the switch did not do it: one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SwitchError(pub String);

/// An entry of a table. Without a key it is the table's default action: inserting or modifying sets
/// it, deleting gives the table its own one back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its table.
    pub table: &'static str,
    /// Names and matches, in the order of the table's key.
    pub key: Vec<(&'static str, Match)>,
    /// Of entries that match alike, the one with the lowest number is taken. 0 in tables that match
    /// exactly.
    pub priority: u32,
    /// What is done.
    pub action: &'static str,
    /// Names and values of the action's parameters, in their order.
    pub data: Vec<(&'static str, u64)>,
}

impl Entry {
    /// What tells it from the others.
    pub fn id(&self) -> EntryId<'_> {
        (self.table, &self.key, self.priority)
    }
}

/// Table, key and priority.
pub type EntryId<'a> = (&'static str, &'a [(&'static str, Match)], u32);

/// What a field must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// In tables that match exactly.
    Exact(u64),
    /// In the others: the bits of the mask must be as in the value, which has no further ones.
    Ternary {
        /// The bits.
        value: u64,
        /// Which of them count; none if the field may be anything.
        mask: u64,
    },
}

/// A HELLO that the program told the control plane of: it carries the secret of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Number of the job.
    pub job: u16,
    /// Its epoch.
    pub epoch: u32,
    /// The rank.
    pub rank: u16,
    /// Where it came from; the switch's port is the interface.
    pub binding: Binding,
}
