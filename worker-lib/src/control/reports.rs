//! What the aggregator's operator is to know of a rank while its job runs (rule 22.15): nothing
//! waits for these reports, and nothing depends on them, so the session does not know of them.

use std::time::{Duration, Instant};

use switchml_control::{Path, ReportRoundTripsRequest, aggregator_client::AggregatorClient};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

/// The time of the first report: operators look soon after a start.
const FIRST: Duration = Duration::from_secs(2);
/// The time between two reports: shorter than the usual scrape interval of Prometheus.
const INTERVAL: Duration = Duration::from_secs(10);

/// The time of the next report, and the report that has no answer yet.
pub(super) struct Reports {
    at: Instant,
    under_way: Option<JoinHandle<()>>,
    /// Packets of the last report.
    sent: u64,
}

impl Reports {
    /// Starts the reports at `now`.
    pub fn new(now: Instant) -> Self {
        Self { at: now + FIRST, under_way: None, sent: 0 }
    }

    /// The time to call [`Self::take_turn`].
    pub fn due(&self) -> Instant {
        self.at
    }

    /// Whether it is time for a report; only one at a time is in flight.
    pub fn take_turn(&mut self, now: Instant) -> bool {
        let is_due = now >= self.at;
        if is_due {
            self.at = now + INTERVAL;
        }
        is_due && self.under_way.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether packets were sent after the last report.
    pub fn is_news(&self, path: Option<Path>) -> bool {
        path.is_some_and(|path| path.sent != self.sent)
    }

    /// Sends a report. A lost report is not sent again: its times could count twice.
    pub fn send(&mut self, channel: Channel, report: ReportRoundTripsRequest) {
        self.sent = report.path.map_or(self.sent, |path| path.sent);
        self.under_way = Some(tokio::spawn(async move {
            let _ = AggregatorClient::new(channel).report_round_trips(report).await;
        }));
    }
}
