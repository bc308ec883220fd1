//! Spans of jobs and of their ranks, for collectors of traces; the log does not show them.
//!
//! A span `job` has a span `join` of each rank, from its Join to Started, and then a span `run`
//! until the rank is gone. So a job's span begins with its first rank and ends with its last. Ranks
//! that come back after a restart of the daemon have no spans.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use switchml_control::join_event::Event;
use tracing::{Span, info, info_span};

/// Target of all spans, by which the log leaves them out.
pub const TARGET: &str = "switchml::traces";

/// Jobs that still take ranks.
#[derive(Default)]
pub struct Traces {
    /// Spans of jobs by name; a job's ends with the last of its ranks.
    joining: BTreeMap<String, Weak<Span>>,
}

/// A rank's spans; they end when it is dropped.
#[derive(Default)]
pub struct RankTrace {
    job: Option<Arc<Span>>,
    rank: u32,
    /// `join` or `run`.
    now: Option<Span>,
}

impl Traces {
    /// A rank joins a job.
    pub fn join(&mut self, name: &str, world_size: u32, rank: u32, peer: &str) -> RankTrace {
        let known = self.joining.get(name).and_then(Weak::upgrade);
        let job = known.unwrap_or_else(|| {
            self.joining.retain(|_, job| job.strong_count() > 0);
            let job = Arc::new(info_span!(
                target: TARGET, parent: None, "job", job.name = name, job.ranks = world_size,
                otel.status_code = tracing::field::Empty,
                otel.status_description = tracing::field::Empty,
            ));
            self.joining.insert(name.to_owned(), Arc::downgrade(&job));
            job
        });
        let now = info_span!(target: TARGET, parent: &*job, "join", rank, peer);
        RankTrace { job: Some(job), rank, now: Some(now) }
    }

    /// The job of that name has all its ranks: who joins now begins another one.
    pub fn assigned(&mut self, name: &str) {
        self.joining.remove(name);
    }
}

impl RankTrace {
    /// The rank hears something.
    pub fn hear(&mut self, event: &Event) {
        let (Some(job), Some(now)) = (&self.job, &self.now) else { return };
        match event {
            Event::Assigned(assigned) => {
                info!(target: TARGET, parent: now, job = assigned.job, "assigned");
            }
            Event::Started(_) => {
                // Ends before the next begins.
                self.now = None;
                let run = info_span!(target: TARGET, parent: &**job, "run", rank = self.rank);
                self.now = Some(run);
            }
            Event::Aborted(aborted) => {
                job.record("otel.status_code", "ERROR");
                job.record("otel.status_description", aborted.reason.as_str());
                info!(target: TARGET, parent: now, reason = aborted.reason.as_str(), "aborted");
            }
            Event::Waiting(_) | Event::Left(_) | Event::CallsWanted(_) => {}
        }
    }
}
