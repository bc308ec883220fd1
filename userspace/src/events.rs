//! Logs notable packets, at a bounded rate.

use std::net::SocketAddr;
use std::time::Duration;

use switchml_protocol::maps::Event;
use switchml_protocol::outcome::Outcome;
use switchml_userspace_core::data_plane::EventSink;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, warn};

/// Most events that wait for being logged.
const CAPACITY: usize = 256;
/// Most lines in a [`PERIOD`].
const MAX_LINES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);

/// Where a data plane tells of packets, and what [`log`] takes them from. Events that find no room
/// are dropped.
pub fn channel() -> (EventSink, mpsc::Receiver<Event>) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    let sink = move |event| {
        let _ = sender.try_send(event);
    };
    (Box::new(sink), receiver)
}

/// Logs what comes, until the data plane is gone. Whoever floods the aggregator does not flood its
/// log.
pub async fn log(mut events: mpsc::Receiver<Event>) {
    let mut period_start = Instant::now();
    let mut seen = 0;
    while let Some(event) = events.recv().await {
        let Some(outcome) = Outcome::ALL.get(usize::from(event.outcome)) else { continue };
        if *outcome == Outcome::Hello {
            // Ranks try several sizes, and the job's log has what came of it.
            debug!("{}", line(&event, outcome));
            continue;
        }
        if period_start.elapsed() >= PERIOD {
            report_unlogged(seen);
            period_start = Instant::now();
            seen = 0;
        }
        seen += 1;
        if seen <= MAX_LINES {
            warn!("{}", line(&event, outcome));
        }
    }
    report_unlogged(seen);
}

fn report_unlogged(seen: u32) {
    if seen > MAX_LINES {
        warn!(
            "{} more notable packets, not logged; `switchml-aggregator status` has the counts",
            seen - MAX_LINES
        );
    }
}

fn line(event: &Event, outcome: &Outcome) -> String {
    let Event { job, rank, slot, round, binding, .. } = event;
    let from = SocketAddr::new(binding.ip.into(), binding.port.get());
    let vlan = match binding.vlan {
        0 => String::new(),
        vlan => format!(" in VLAN {vlan}"),
    };
    let what = outcome.help();
    format!("job {job}: {what} Rank {rank}, slot {slot}, round {round}, from {from}{vlan}")
}

#[cfg(test)]
mod tests {
    use switchml_protocol::U16;
    use switchml_protocol::job::Binding;

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
        assert_eq!(line(&event, &Outcome::WrongSecret), expected);
    }
}
