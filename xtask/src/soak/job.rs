//! A job of a soak, and what came of it.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use switchml_rack::{Process, Signal};

use super::event::{Deed, Event, Kind, Target};
use super::site::{RANKS, Site, cut, lose, mend};
use crate::measure::Ranks;
use crate::random::Random;

/// Time between two events.
const APART: Duration = Duration::from_secs(5);
/// How often the ranks are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long a job may live: then a rank is killed if none is lost yet.
const LIFE: Duration = Duration::from_secs(30);
/// A job that lives so long after a rank was lost hangs: that costs seconds.
const HANGS: Duration = Duration::from_secs(90);
/// A rank that was started again waits so long for the others, in seconds.
const JOINING: &str = "20";
/// Where the ranks of the first job without aggregators meet, at rank 0; those of others at the
/// next ports.
const PORT: usize = 29_700;
/// Columns of a benchmark's table, and those with the numbers of wrong elements.
const COLUMNS: usize = 13;
const WRONG_COLUMNS: [usize; 2] = [8, 12];
/// Exit status of `switchml-worker` if elements are wrong.
const WRONG: i32 = 1;

/// A running job.
pub struct Job {
    number: usize,
    kind: Kind,
    ranks: Vec<Process>,
    /// Ranks that were killed, and those that were started in their places.
    killed: Vec<usize>,
    again: Vec<Process>,
    events: Vec<Event>,
    /// What goes on for a while: when it is over, and for whom.
    passing: Vec<(Instant, Event)>,
    /// When a rank was lost.
    lost_at: Option<Instant>,
}

/// What came of a job.
pub struct Outcome {
    number: usize,
    kind: Kind,
    pub events: Vec<Event>,
    pub fate: Fate,
}

/// How a job ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// All sums were made.
    Finished,
    /// A rank was lost, and the others name it; what one of them says.
    Named { reason: String },
    /// Elements are wrong.
    Wrong(String),
    /// It failed without need, blames another rank, or hangs.
    Bad(String),
}

/// How a rank ended: its exit status, if it was not killed, and the last line that it said.
#[derive(Clone, Debug)]
pub struct Ended {
    code: Option<i32>,
    line: String,
}

impl Job {
    /// Starts job `number`; every second one has no aggregator.
    pub fn start(site: &Site, number: usize) -> Result<Self> {
        let kind = if number.is_multiple_of(2) { Kind::Several } else { Kind::Alone };
        let ranks = (0..RANKS).map(|rank| start(site, kind, number, rank));
        let ranks = ranks.collect::<Result<_>>()?;
        let (killed, again, events, passing, lost_at) = Default::default();
        Ok(Self { number, kind, ranks, killed, again, events, passing, lost_at })
    }

    /// Lets things happen to it until it ends.
    pub fn live(mut self, site: &mut Site, random: &mut Random) -> Result<Outcome> {
        let begin = Instant::now();
        let mut next = begin + APART.mul_f64(0.2 + 0.8 * random.share());
        while self.is_running() && self.lost_at.is_none_or(|at| at.elapsed() < HANGS) {
            std::thread::sleep(LOOK);
            self.end_what_is_over(site, Instant::now())?;
            if Instant::now() < next {
                continue;
            }
            next += APART;
            let event = match begin.elapsed() < LIFE {
                true => Event::draw(self.kind, &self.events, random),
                false => self.last_event(random),
            };
            if let Some(event) = event {
                self.carry_out(site, event)?;
            }
        }
        self.end()
    }

    /// The kill that ends a job, unless one has. If a rank stood still for long, that rank is
    /// killed: the others may have waited for it.
    fn last_event(&self, random: &mut Random) -> Option<Event> {
        let lost = self.events.iter().find(|event| event.loses_rank());
        let target = lost.map_or_else(|| Target::Rank(random.below(RANKS)), |event| event.target);
        Some(Event { target, deed: Deed::Kill }).filter(|_| self.lost_at.is_none())
    }

    /// Whether a rank runs that was neither killed nor started again.
    fn is_running(&mut self) -> bool {
        self.ranks.iter_mut().any(Process::is_running)
    }

    fn carry_out(&mut self, site: &mut Site, event: Event) -> Result<()> {
        self.events.push(event);
        if event.surely_loses_rank() {
            self.lost_at.get_or_insert(Instant::now());
        }
        match (event.deed, event.target) {
            (Deed::Kill | Deed::Restart, Target::Rank(rank)) => {
                self.ranks[rank].kill()?;
                self.killed.push(rank);
                if event.deed == Deed::Restart {
                    self.again.push(start(site, self.kind, self.number, rank)?);
                }
            }
            (Deed::Kill, Target::Aggregator(number)) => site.kill(number)?,
            (Deed::Restart, Target::Aggregator(number)) => {
                site.kill(number)?;
                site.revive(number)?;
            }
            // It may have ended.
            (Deed::Stop(_), Target::Rank(rank)) => drop(self.ranks[rank].signal(Signal::STOP)),
            (Deed::Stop(_), Target::Aggregator(number)) => site.signal(number, Signal::STOP)?,
            (Deed::Cut(_), target) => cut(host(site, target))?,
            (Deed::Lose, target) => lose(host(site, target))?,
        }
        if let Deed::Stop(time) | Deed::Cut(time) = event.deed {
            self.passing.push((Instant::now() + time, event));
        }
        Ok(())
    }

    fn end_what_is_over(&mut self, site: &mut Site, now: Instant) -> Result<()> {
        let (over, goes_on) = self.passing.drain(..).partition(|(until, _)| *until <= now);
        self.passing = goes_on;
        let over: Vec<(Instant, Event)> = over;
        for (_, event) in over {
            match (event.deed, event.target) {
                (Deed::Cut(_), target) => mend(host(site, target))?,
                (_, Target::Rank(rank)) => drop(self.ranks[rank].signal(Signal::CONT)),
                (_, Target::Aggregator(number)) => site.signal(number, Signal::CONT)?,
            }
        }
        Ok(())
    }

    /// What came of it. Ranks that run still are killed.
    fn end(mut self) -> Result<Outcome> {
        let mut ended = Vec::new();
        for (rank, process) in self.ranks.iter_mut().enumerate() {
            let hangs = process.is_running();
            let status = if hangs { process.kill()? } else { process.wait(LOOK)? };
            let stderr = process.stderr();
            let line = stderr.lines().last().unwrap_or_default().to_owned();
            let code = status.code().filter(|_| !self.killed.contains(&rank));
            let rows = process.stdout().lines().filter(|line| !line.starts_with('#')).count();
            let line = match hangs {
                true => format!("it hangs after {rows} sizes of tensors, and said last: {line}"),
                false => line,
            };
            ended.push(Ended { code, line });
        }
        let fate = match wrong(&self.ranks[0].stdout()) {
            Some(row) => Fate::Wrong(row),
            None => judge(&self.events, &self.killed, &ended),
        };
        Ok(Outcome { number: self.number, kind: self.kind, events: self.events, fate })
    }
}

/// The host of a rank or an aggregator.
fn host(site: &Site, target: Target) -> &switchml_rack::Namespace {
    match target {
        Target::Rank(rank) => site.host_of_rank(rank),
        Target::Aggregator(number) => site.host_of_aggregator(number),
    }
}

/// The first row of a benchmark's table with wrong elements; a row is there once its size is done.
fn wrong(table: &str) -> Option<String> {
    let is_wrong = |line: &&str| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.len() == COLUMNS && WRONG_COLUMNS.iter().any(|column| words[*column] != "0")
    };
    table.lines().filter(|line| !line.starts_with('#')).find(is_wrong).map(str::to_owned)
}

/// Starts a rank: whole numbers in tensors of 32 KiB to 4 MiB, every element of every sum checked.
fn start(site: &Site, kind: Kind, number: usize, rank: usize) -> Result<Process> {
    let (job, several) = (format!("soak-{number}"), site.list());
    let (aggregators, others) = match kind {
        Kind::Several => (&*several, &["--own-hosts", "0"][..]),
        Kind::Alone => ("", &[][..]),
    };
    let hosts = (0..RANKS).map(|rank| site.host_of_rank(rank));
    let ranks = Ranks {
        port: PORT + number % 1000,
        ..Ranks::new(&site.binaries.worker, hosts, &job, aggregators)
    };
    let sizes = ["--dtype", "i32", "-b", "32K", "-e", "4M", "-i", "32K", "-w", "1", "-n", "1"];
    let checks = ["--check", "2", "--join-timeout", JOINING];
    ranks.start_one(rank, &[&sizes[..], &checks, others].concat())
}

/// How the job ended, by how its ranks did.
fn judge(events: &[Event], killed: &[usize], ended: &[Ended]) -> Fate {
    let own = |rank: usize| format!("rank {rank}: {}", ended[rank].line);
    let alive = || (0..ended.len()).filter(|rank| !killed.contains(rank));
    if let Some(rank) = alive().find(|rank| ended[*rank].code == Some(WRONG)) {
        return Fate::Wrong(own(rank));
    }
    let failed: Vec<_> = alive().filter(|rank| ended[*rank].code != Some(0)).collect();
    let lost =
        events.iter().filter(|event| event.loses_rank()).find_map(|event| match event.target {
            Target::Rank(rank) => Some(rank),
            Target::Aggregator(_) => None,
        });
    match (lost, &failed[..]) {
        (_, []) => Fate::Finished,
        (None, [first, ..]) => Fate::Bad(format!("nobody was lost, and {}", own(*first))),
        (Some(lost), _) => {
            // A rank that was cut off, or stood still, cannot know what the others see.
            let name = format!("rank {lost} ");
            let names = |rank: &&usize| **rank == lost || ended[**rank].line.contains(&name);
            let hangs = |rank: &&usize| ended[**rank].code.is_none();
            match failed.iter().find(|rank| !names(rank) || hangs(rank)) {
                Some(rank) => Fate::Bad(format!("{name}was lost, and {}", own(*rank))),
                None => {
                    let teller = failed.iter().find(|rank| **rank != lost).unwrap_or(&failed[0]);
                    Fate::Named { reason: own(*teller) }
                }
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, kind, events, fate } = self;
        let kind = match kind {
            Kind::Several => "several aggregators",
            Kind::Alone => "no aggregator",
        };
        let events: Vec<_> = events.iter().map(ToString::to_string).collect();
        write!(f, "job {number} ({kind}; {}): ", events.join(", "))?;
        match fate {
            Fate::Finished => write!(f, "finished"),
            Fate::Named { reason } => write!(f, "failed as it should; {reason}"),
            Fate::Wrong(what) => write!(f, "WRONG SUMS: {what}"),
            Fate::Bad(what) => write!(f, "BAD: {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32, line: &str) -> Ended {
        Ended { code: Some(code), line: line.to_owned() }
    }

    const KILL: Event = Event { target: Target::Rank(1), deed: Deed::Kill };
    const LOSE: Event = Event { target: Target::Aggregator(0), deed: Deed::Kill };

    #[test]
    fn a_row_with_wrong_elements_is_found() {
        let good = "  32768  8192  int32  sum  -1  10.0  3.2  4.9  0  11.0  2.9  4.4  0\n";
        let table = format!("# out-of-place in-place\n{good}");
        assert_eq!(wrong(&table), None);
        let bad = good.replace("  0\n", "  7\n");
        assert_eq!(wrong(&(table + &bad)).as_deref(), Some(bad.trim_end()));
    }

    #[test]
    fn a_job_that_fails_has_to_name_the_lost_rank_and_to_have_lost_one() {
        let good = || ended(0, "");
        let killed = Ended { code: None, line: String::new() };
        let names = ended(4, "error: rank 1 (10.88.0.2) is gone");
        let blames = ended(4, "error: rank 2 (10.88.0.3) is gone");
        let is_bad = |fate| matches!(fate, Fate::Bad(_));
        assert_eq!(judge(&[LOSE], &[], &[good(), good()]), Fate::Finished);
        assert!(is_bad(judge(&[LOSE], &[], &[good(), names.clone()])), "nobody was lost");
        let of = |other: Ended| judge(&[LOSE, KILL], &[1], &[other, killed.clone()]);
        assert!(matches!(of(names), Fate::Named { .. }));
        assert!(is_bad(of(blames)));
        assert!(is_bad(of(Ended { code: None, line: "it hangs".to_owned() })));
        assert!(matches!(of(ended(1, "")), Fate::Wrong(_)));
        // The kill came when all was done.
        assert_eq!(of(good()), Fate::Finished);
    }
}
