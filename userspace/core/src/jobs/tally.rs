//! How many jobs there have been since the daemon was started, and how they ended.

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All ranks left normally.
    Finished,
    /// A rank said that it failed, or left before all were ready.
    RankFailed,
    /// A rank disappeared without leaving.
    RankLost,
    /// A rank took the aggregator for lost, and went on at another one.
    AggregatorLost,
    /// Ranks made different calls, or a packet was damaged.
    DifferentCalls,
    /// An interface no longer reaches ranks.
    PortLost,
    /// The data plane refused something.
    DataPlane,
    /// The daemon was stopped.
    Stopped,
}

/// All endings, in this order: their names and descriptions.
const ENDINGS: [(&str, &str); 8] = [
    ("finished", "jobs whose ranks all left normally"),
    ("rank_failed", "jobs in which a rank reported a failure, or left too early"),
    ("rank_lost", "jobs that lost a rank without warning"),
    ("aggregator_lost", "jobs of which a rank took this aggregator for lost"),
    ("different_calls", "jobs whose ranks made different calls, or had a damaged packet"),
    ("port_lost", "jobs with ranks that an interface no longer reached"),
    ("data_plane", "jobs for which the data plane refused something"),
    ("stopped", "jobs that were there when the daemon was stopped"),
];

impl Ending {
    /// Name of the ending.
    pub const fn name(self) -> &'static str {
        ENDINGS[self as usize].0
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Jobs whose ranks were all ready.
    pub started: u64,
    ended: [u64; ENDINGS.len()],
}

impl Tally {
    pub(super) fn end(&mut self, ending: Ending) {
        self.ended[ending as usize] += 1;
    }

    /// Name, meaning and number of each ending.
    pub fn ended(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        ENDINGS.into_iter().zip(self.ended).map(|((name, help), jobs)| (name, help, jobs))
    }
}
