//! Which ranks make a job slow, and why, for people.
//!
//! What a rank loses it knows itself. That others wait for a rank is seen in the slots. Then the
//! time that it spends in calls tells a slow link from a rank that comes late to its calls.

use std::time::Duration;

use switchml_control::Path;
use switchml_protocol::wire::header::HEADER_LEN;

use super::JobTable;
use super::job::{Job, Member};
use crate::lateness::Late;

/// Fewest packets of a report that says something, and losses among them.
const FEWEST: (u64, u64) = (200, 5);
/// One packet of this many lost is worth a word.
const RARE: u64 = 100;
/// Contributions that come later than this are worth a word.
const LATE: Duration = Duration::from_millis(1);
/// Bytes of IPv4 and UDP headers.
const IP_UDP_LEN: u64 = 28;
/// Most ranks that are named.
const MOST_NAMED: usize = 4;

impl JobTable {
    /// Which ranks make a running job slow, and why; `None` if it is not known that some do. The
    /// contributions of these ranks come late.
    pub fn slow(&self, number: u16, late: &[Late]) -> Option<String> {
        let job = self.jobs.get(&number).filter(|job| job.lanes() > 0)?;
        let late: Vec<_> = late.iter().filter(|late| late.by >= LATE).collect();
        job.losing(&late).or_else(|| job.lagging(&late))
    }
}

impl Job {
    /// The ranks that lose packets. Those that lose much less than the worst one may only seem to.
    /// A slow link loses some, too, where its queue overflows: if it is late, the text says what it
    /// carries.
    fn losing(&self, late: &[&Late]) -> Option<String> {
        let losses = self.present().filter_map(|(rank, member)| {
            let Path { sent, lost, .. } = member.paths.recent()?;
            let counts = sent >= FEWEST.0 && lost >= FEWEST.1 && lost * RARE >= sent;
            counts.then(|| (rank, lost as f64 / sent as f64))
        });
        let losses: Vec<_> = losses.collect();
        let worst = losses.iter().map(|(_, part)| *part).fold(0.0, f64::max);
        let ranks: Vec<_> =
            losses.iter().filter(|(_, part)| part * 2.0 > worst).map(|(rank, _)| *rank).collect();
        let percent = 100.0 * worst;
        let are_late =
            ranks.iter().all(|rank| late.iter().any(|late| u32::from(late.rank) == *rank));
        let rate = are_late.then(|| self.carried(&ranks, "")).flatten();
        let rate = rate.map_or_else(String::new, |rate| format!(" and is late: {rate}"));
        match ranks[..] {
            [] => None,
            [rank] => {
                Some(format!("{} loses {percent:.0} % of its packets{rate}", self.names(&[rank])))
            }
            _ => Some(format!("{} lose {percent:.0} % of their packets", self.names(&ranks))),
        }
    }

    /// The ranks that all others wait for a little in each round.
    fn lagging(&self, late: &[&Late]) -> Option<String> {
        let ranks: Vec<u32> = late.iter().map(|late| late.rank.into()).collect();
        let by = late.iter().map(|late| late.by).max()?.as_millis();
        let part = |is_late| {
            let parts = self.present().filter(|(rank, _)| ranks.contains(rank) == is_late);
            parts.filter_map(|(_, member)| in_calls(member)).reduce(f64::min)
        };
        let (names, is, its) = match ranks[..] {
            [rank] => (self.names(&[rank]), "is", "its"),
            _ => (self.names(&ranks), "are", "their"),
        };
        match (part(true), part(false)) {
            (Some(own), Some(others)) if own < 0.8 * others => Some(format!(
                "{names} {is} late to calls by {by} ms: {its} process spends {:.0} % of the time \
                 in calls, the others {:.0} %",
                100.0 * own,
                100.0 * others
            )),
            _ => Some(format!(
                "{names} {is} {by} ms behind the others{}",
                self.carried(&ranks, " and loses nothing")
                    .map_or_else(String::new, |rate| format!(": {rate}"))
            )),
        }
    }

    /// What the links of these ranks carry, `and` what else they do, and what they should carry.
    fn carried(&self, ranks: &[u32], and: &str) -> Option<String> {
        let len = u64::from(self.lanes()) * 4 + HEADER_LEN as u64 + IP_UDP_LEN;
        let rates = self.present().filter(|(rank, _)| ranks.contains(rank));
        let rates = rates.filter_map(|(_, member)| {
            let path = member.paths.recent()?;
            let packets = path.sent.saturating_sub(path.resent);
            (path.in_calls_ms > 0).then(|| packets * len * 8 * 1000 / path.in_calls_ms)
        });
        let rate = bits(rates.min()?);
        let speed = |is_named| {
            let links = self.present().filter(|(rank, _)| ranks.contains(rank) == is_named);
            links.map(|(_, member)| member.link.of_rank).min().filter(|speed| *speed > 0)
        };
        let (own, what) = match ranks {
            [_] => ("its", "link or processor carries"),
            _ => ("their", "links or processors carry"),
        };
        let expected = match (speed(true), speed(false)) {
            (Some(here), Some(others)) if here < others => {
                format!("; {own} interface has {}, the others' {}", bits(here), bits(others))
            }
            (Some(here), _) => format!("; {own} interface has {}", bits(here)),
            _ => String::new(),
        };
        Some(format!("{own} {what} {rate}{and}{expected}"))
    }

    /// Ranks and their places.
    fn names(&self, ranks: &[u32]) -> String {
        match ranks.len().checked_sub(MOST_NAMED) {
            None | Some(0) => self.in_words(ranks),
            Some(more) => format!("{} and {more} more", self.in_words(&ranks[..MOST_NAMED])),
        }
    }
}

/// The part of the time that the rank has spent in calls lately.
fn in_calls(member: &Member) -> Option<f64> {
    let path = member.paths.recent().filter(|path| path.joined_ms > 0)?;
    Some(path.in_calls_ms as f64 / path.joined_ms as f64)
}

/// Bits per second with three digits.
fn bits(per_second: u64) -> String {
    let (value, unit) = match per_second {
        0..1_000_000 => (per_second as f64 / 1e3, "kb/s"),
        1_000_000..1_000_000_000 => (per_second as f64 / 1e6, "Mb/s"),
        _ => (per_second as f64 / 1e9, "Gb/s"),
    };
    let digits = if value >= 99.5 { 0 } else { 1 };
    format!("{value:.digits$} {unit}")
}
