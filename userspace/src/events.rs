//! Logs notable packets, at a bounded rate.

use std::time::Duration;

use switchml_protocol::maps::Event;
use switchml_protocol::outcome::Outcome;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{info, warn};

/// Most events that wait for being logged.
pub const CAPACITY: usize = 256;
/// Most lines in a [`PERIOD`].
const MAX_LINES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);

/// Logs what comes, until the data plane is gone. Whoever floods the aggregator does not flood its log.
pub async fn log(mut events: mpsc::Receiver<Event>) {
    let mut period_start = Instant::now();
    let mut seen = 0;
    while let Some(event) = events.recv().await {
        if period_start.elapsed() >= PERIOD {
            report_unlogged(seen);
            period_start = Instant::now();
            seen = 0;
        }
        seen += 1;
        if seen <= MAX_LINES {
            log_one(&event);
        }
    }
    report_unlogged(seen);
}

fn report_unlogged(seen: u32) {
    if seen > MAX_LINES {
        warn!("{} more notable packets, not logged; `switchml-aggregator status` has the counts", seen - MAX_LINES);
    }
}

fn log_one(event: &Event) {
    let Some(outcome) = Outcome::ALL.get(usize::from(event.outcome)) else { return };
    let Event { job, rank, slot, round, place, .. } = event;
    let [a, b, c, d] = place.ip;
    let from = format!("{a}.{b}.{c}.{d}:{}", place.port);
    match outcome {
        Outcome::Hello => info!("job {job}: HELLO of rank {rank} from {from}"),
        _ => warn!("job {job}: {} rank {rank}, slot {slot}, round {round}, from {from}", outcome.help()),
    }
}
