//! What a rank has reported of its packets (rule 22.15): the last report, and the one before, so
//! that the difference tells what happens now.

use switchml_control::Path;

use super::round_trips::MOST;

/// See the [module's documentation](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Paths {
    last: Option<Path>,
    before: Path,
}

impl Paths {
    /// Takes a report. One that counts less than the last belongs to a session of before.
    pub fn report(&mut self, path: Path) {
        let path = map(path, Path::default(), |count, _| count.min(MOST));
        self.before = self.last.filter(|last| last.sent <= path.sent).unwrap_or_default();
        self.last = Some(path);
    }

    /// All that the rank has told, if it has told anything.
    pub fn all(&self) -> Option<Path> {
        self.last
    }

    /// What has changed between the last two reports; since the rank joined, if there is one only.
    pub fn recent(&self) -> Option<Path> {
        Some(map(self.last?, self.before, u64::saturating_sub))
    }
}

fn map(one: Path, other: Path, of: impl Fn(u64, u64) -> u64) -> Path {
    Path {
        joined_ms: of(one.joined_ms, other.joined_ms),
        in_calls_ms: of(one.in_calls_ms, other.in_calls_ms),
        sent: of(one.sent, other.sent),
        resent: of(one.resent, other.resent),
        pending: of(one.pending, other.pending),
        lost: of(one.lost, other.lost),
    }
}
