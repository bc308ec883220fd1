//! Logs notable packets: the first of each kind, and once a minute the number of the others.

use std::collections::BTreeMap;
use std::time::Duration;

use switchml_protocol::bpf_types::maps::Event;
use switchml_protocol::outcome::Outcome;
use switchml_userspace_core::data_plane::EventSink;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

/// Most events that wait to be logged.
const CAPACITY: usize = 256;
/// Most kinds of packets that are logged by themselves in a [`PERIOD`].
const MAX_KINDS: usize = 256;
const PERIOD: Duration = Duration::from_secs(60);

/// The channel from a data plane to [`log`]. Events are dropped when it is full.
pub fn channel() -> (EventSink, mpsc::Receiver<Event>) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    let sink = move |event| {
        let _ = sender.try_send(event);
    };
    (Box::new(sink), receiver)
}

/// Logs events until the data plane is gone. Neither a flood from outside nor a job whose packets
/// are all refused can flood the log.
pub async fn log(mut events: mpsc::Receiver<Event>) {
    let mut digest = Digest::default();
    let mut period = interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.recv() => {
                let Some(event) = event else { break };
                let Some(outcome) = Outcome::from_number(event.outcome) else { continue };
                if outcome == Outcome::Hello {
                    // Ranks try several packet sizes, and the job's log has the result.
                    debug!("{}", line(&event, outcome));
                } else if digest.is_new(&event, outcome) {
                    warn!("{}", line(&event, outcome));
                }
            }
            _ = period.tick() => digest.end_period().iter().for_each(|line| warn!("{line}")),
        }
    }
    digest.end_period().iter().for_each(|line| warn!("{line}"));
}

/// The packets seen in a [`PERIOD`].
#[derive(Default)]
struct Digest {
    /// Packets by job and outcome, without the ones that were logged.
    more: BTreeMap<(u16, Outcome), u64>,
    /// Packets of further kinds.
    others: u64,
}

impl Digest {
    /// Whether the event is the first of its kind.
    fn is_new(&mut self, event: &Event, outcome: Outcome) -> bool {
        let kind = (event.job, outcome);
        let has_room = self.more.len() < MAX_KINDS;
        match self.more.get_mut(&kind) {
            Some(more) => *more += 1,
            None if has_room => {
                self.more.insert(kind, 0);
                return true;
            }
            None => self.others += 1,
        }
        false
    }

    /// Lines on the packets that were not logged. A kind that continues is not new in the next
    /// period.
    fn end_period(&mut self) -> Vec<String> {
        self.more.retain(|_, more| *more > 0);
        let counts = |(&(job, outcome), more): (&(u16, Outcome), &mut u64)| {
            let more = std::mem::take(more);
            format!("job {job}: {more} more within a minute: {}", outcome.help())
        };
        let mut lines: Vec<_> = self.more.iter_mut().map(counts).collect();
        if std::mem::take(&mut self.others) > 0 {
            lines.push(format!(
                "more than {MAX_KINDS} kinds of notable packets, not logged; `switchml-aggregator \
                 status` has the counts"
            ));
        }
        lines
    }
}

fn line(event: &Event, outcome: Outcome) -> String {
    let Event { job, rank, slot, round, binding, .. } = event;
    let vlan = match binding.vlan {
        0 => String::new(),
        vlan => format!(" in VLAN {vlan}"),
    };
    let what = outcome.help();
    format!("job {job}: {what} Rank {rank}, slot {slot}, round {round}, from {binding}{vlan}")
}

#[cfg(test)]
mod tests {
    use switchml_protocol::U16;
    use switchml_protocol::bpf_types::job::Binding;
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn an_event_is_one_line_with_all_there_is() {
        let event = Event {
            binding: Binding {
                ifindex: 4,
                ip: [10, 0, 0, 3].into(),
                mac: [2; 6],
                port: U16::new(40_000),
                vlan: 5,
                ..Binding::default()
            },
            epoch: 1,
            round: 7,
            job: 2,
            rank: 3,
            slot: 5,
            outcome: Outcome::WrongSecret as u8,
            reserved: Default::default(),
        };
        let expected = "job 2: HELLO with a wrong secret. Rank 3, slot 5, round 7, from \
                        10.0.0.3:40000 in VLAN 5";
        assert_eq!(line(&event, Outcome::WrongSecret), expected);
    }

    /// After an interface was replaced, every packet of a job is refused, thousands a second.
    #[test]
    fn a_kind_of_packet_is_a_line_and_a_count_each_minute() {
        let of_job = |job| Event { job, ..Event::new_zeroed() };
        let mut digest = Digest::default();
        let news = (0..2219).filter(|_| digest.is_new(&of_job(2), Outcome::WrongPlace)).count();
        assert_eq!(news, 1);
        assert!(digest.is_new(&of_job(3), Outcome::WrongPlace));
        assert!(digest.is_new(&of_job(2), Outcome::WrongSecret));
        let expected = format!("job 2: 2218 more within a minute: {}", Outcome::WrongPlace.help());
        assert_eq!(digest.end_period(), [&*expected]);
        assert!(!digest.is_new(&of_job(2), Outcome::WrongPlace), "it goes on");
        assert!(digest.is_new(&of_job(3), Outcome::WrongPlace), "it was over");
        let expected = expected.replace("2218", "1");
        assert_eq!(digest.end_period(), [expected]);
        assert_eq!(digest.end_period(), [] as [&str; 0]);
        assert!(digest.is_new(&of_job(2), Outcome::WrongPlace));
    }

    /// Garbage may name any job.
    #[test]
    fn kinds_are_bounded() {
        let mut digest = Digest::default();
        let of_job = |job: u16| Event { job, ..Event::new_zeroed() };
        let news = (0..300).filter(|job| digest.is_new(&of_job(*job), Outcome::WrongPlace)).count();
        assert_eq!(news, 256);
        let lines = digest.end_period();
        assert!(
            matches!(&lines[..], [only] if only.starts_with("more than 256 kinds")),
            "{lines:?}"
        );
    }
}
