//! Ranks that made different calls: the report of each, and the event for all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use switchml_control::{self as control, rank_list};

/// Rule 22.10: how long to gather after the first report. All other ranks are asked for theirs, so
/// it is only a rank that cannot answer that takes so long.
pub const GATHERING: Duration = Duration::from_millis(500);

/// The reports of a job's ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The ranks that the data plane has named.
    named: BTreeSet<u16>,
    /// The calls in flight, up to the refused one, by rank and number.
    calls: BTreeMap<u16, BTreeMap<u64, Made>>,
    /// Numbers of the calls that were refused.
    refused: BTreeSet<u64>,
    /// Whether all reports are in.
    is_complete: bool,
}

/// A call, as a rank has made it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Made {
    pub call: String,
    /// How the rank has cut it into parts; 0 if it does not tell.
    pub cut: u64,
}

impl Made {
    fn differs_from(&self, other: &Self) -> bool {
        let tell = self.cut != 0 && other.cut != 0;
        self.call != other.call || (tell && self.cut != other.cut)
    }
}

impl Mismatch {
    /// Adds a rank's report. `is_refused`: the rank's last call was refused; else the rank was
    /// asked.
    pub fn note(
        &mut self,
        rank: u16,
        calls: BTreeMap<u64, Made>,
        is_refused: bool,
        named: impl Iterator<Item = u16>,
    ) {
        self.refused.extend(calls.keys().next_back().filter(|_| is_refused));
        self.calls.insert(rank, calls);
        self.named.extend(named);
    }

    pub fn has_report_of(&self, rank: u16) -> bool {
        self.calls.contains_key(&rank)
    }

    /// Whether the rank has reported all calls that matter: a call of its own was refused, or it
    /// has made a call of the same number as a refused one. Other ranks may be about to make that
    /// call.
    pub fn has_call_of(&self, rank: u16) -> bool {
        self.calls
            .get(&rank)
            .is_some_and(|calls| self.refused.iter().any(|number| calls.contains_key(number)))
    }

    /// All ranks that are present have reported.
    pub fn note_complete(&mut self) {
        self.is_complete = true;
    }

    /// Whether ranks are known to have made different calls. A data plane that verifies before it
    /// adds refuses only packets of different calls. Ranks at different call numbers may have made
    /// the same calls.
    pub fn is_certain(&self, data_plane_verifies: bool) -> bool {
        data_plane_verifies || self.first_difference().is_some()
    }

    /// The event for all ranks.
    pub fn into_event(self, data_plane_verifies: bool) -> control::Aborted {
        if let Some((number, call)) = self.common_call().filter(|_| self.is_complete) {
            let reason = format!(
                "a packet was damaged on its way to the aggregator, or in it: it was refused as \
                 part of another call, but all ranks made the same one, call {number} is {call}; \
                 restart the job"
            );
            return control::Aborted { reason, ..Default::default() };
        }
        if !self.is_certain(data_plane_verifies) {
            let silent = "not all ranks have said which calls they made";
            let reason = format!(
                "a packet was damaged on its way to the aggregator, or ranks made different \
                 calls: {silent}"
            );
            return control::Aborted { reason, ..Default::default() };
        }
        let groups = self.groups();
        let at_fault: Vec<u16> = match &groups[..] {
            // One side was not heard.
            [] | [_] => self.unheard(),
            [others @ .., last]
                if others.iter().all(|group| group.ranks.len() < last.ranks.len()) =>
            {
                sorted(others.iter().flat_map(|group| &group.ranks))
            }
            all => sorted(all.iter().flat_map(|group| &group.ranks)),
        };
        let who = if groups.len() > 1 { "ranks".to_owned() } else { rank_list(&at_fault) };
        let calls: Vec<String> = groups
            .iter()
            .map(|Group { ranks, number, made }| {
                format!("call {number} of {} is {}", rank_list(ranks), made.call)
            })
            .collect();
        let list = if calls.is_empty() { String::new() } else { format!(": {}", calls.join("; ")) };
        let reason = match &groups[..] {
            [first, others @ ..] if others.iter().any(|other| first.differs_in_cut(other)) => {
                format!(
                    "{who} cut the same call into different parts{list}; every rank needs the same \
                     aggregators, weights and version of the library"
                )
            }
            _ => format!(
                "{who} made different calls{list}; every rank must make the same calls in the same \
                 order"
            ),
        };
        let wide = |ranks: &[u16]| ranks.iter().copied().map(u32::from).collect();
        let calls = groups.iter().map(|group| control::MadeCall {
            ranks: wide(&group.ranks),
            number: group.number,
            call: group.made.call.clone(),
        });
        control::Aborted { reason, ranks: wide(&at_fault), calls: calls.collect(), stops: false }
    }

    /// The last call that all ranks in any call have reported, unless ranks differ on one.
    fn common_call(&self) -> Option<(u64, &str)> {
        if self.first_difference().is_some() {
            return None;
        }
        let mut reports = self.calls.values().filter(|calls| !calls.is_empty());
        let first = reports.next()?;
        let others: Vec<_> = reports.collect();
        let is_common = |number: &u64| others.iter().all(|calls| calls.contains_key(number));
        first
            .iter()
            .rev()
            .find(|(number, _)| is_common(number))
            .map(|(number, made)| (*number, made.call.as_str()))
    }

    /// Whom to blame if all ranks that were heard say the same: of those that the data plane has
    /// named the ones that said nothing, if these are fewer; else all named ones.
    fn unheard(&self) -> Vec<u16> {
        let is_heard = |rank: &u16| self.calls.get(rank).is_some_and(|calls| !calls.is_empty());
        let heard = self.calls.keys().filter(|rank| is_heard(rank)).count();
        let unheard: Vec<_> = self.named.iter().copied().filter(|rank| !is_heard(rank)).collect();
        match unheard.len() {
            few if 0 < few && few < heard => unheard,
            _ => self.named.iter().copied().collect(),
        }
    }

    /// The calls that differ, each with its ranks. Calls of the fewest ranks come first: they are
    /// most likely wrong.
    fn groups(&self) -> Vec<Group<'_>> {
        let first = self.first_difference();
        let mut groups: Vec<Group<'_>> = Vec::new();
        for (rank, calls) in &self.calls {
            let call = match first {
                Some(number) => calls.get_key_value(&number),
                // Ranks are at different numbers altogether.
                None => calls.last_key_value(),
            };
            let Some((&number, made)) = call else { continue };
            let is_same =
                |group: &&mut Group<'_>| group.number == number && !group.made.differs_from(made);
            match groups.iter_mut().find(is_same) {
                Some(group) => group.ranks.push(*rank),
                None => groups.push(Group { ranks: vec![*rank], number, made }),
            }
        }
        groups.sort_by_key(|group| (group.ranks.len(), group.ranks[0]));
        groups
    }

    /// The first call on which ranks differ. The refused call may be a later one: with several
    /// calls in flight, packets of one meet those of another.
    fn first_difference(&self) -> Option<u64> {
        let mut first: BTreeMap<u64, &Made> = BTreeMap::new();
        let calls = self.calls.values().flatten();
        calls
            .filter(|(number, made)| first.entry(**number).or_insert(made).differs_from(made))
            .map(|(number, _)| *number)
            .min()
    }
}

/// A call, and the ranks that made it.
struct Group<'a> {
    ranks: Vec<u16>,
    number: u64,
    made: &'a Made,
}

impl Group<'_> {
    /// Whether the other ranks have made the same call, and cut it otherwise.
    fn differs_in_cut(&self, other: &Self) -> bool {
        (self.number, &self.made.call) == (other.number, &other.made.call)
    }
}

fn sorted<'a>(ranks: impl Iterator<Item = &'a u16>) -> Vec<u16> {
    let mut ranks: Vec<u16> = ranks.copied().collect();
    ranks.sort_unstable();
    ranks
}
