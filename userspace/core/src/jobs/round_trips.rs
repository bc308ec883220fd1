//! What ranks report of their round trips (rule 22.15), added up over all jobs.
//!
//! They are not kept by job or rank: otherwise ranks that join would decide how many metrics there
//! are.

use switchml_control as control;
use switchml_protocol::bpf_types::times::{BUCKETS, SUM, Times};

use super::error::MemberError;
use super::{JobTable, MemberId};

/// Highest count of a bucket. The sum of all buckets is still an exact integer as a double, in
/// which monitoring reads it.
pub(super) const MOST: u64 = 1 << 48;
/// Largest sum of the times, in units: in nanoseconds it fits 64 bits.
pub(super) const MOST_UNITS: u64 = 1 << 53;

/// See the [module's documentation](self). Counts saturate: a rank that lies can only spoil these
/// metrics.
#[derive(Debug, Default)]
pub(super) struct RoundTrips(Times);

impl RoundTrips {
    /// Adds a rank's report.
    ///
    /// # Errors
    ///
    /// [`MemberError::Buckets`]; nothing was added.
    fn add(&mut self, report: &control::Times) -> Result<(), MemberError> {
        let given = report.counts.len();
        if given != BUCKETS {
            return Err(MemberError::Buckets { given });
        }
        for (sum, count) in self.0.iter_mut().zip(&report.counts) {
            *sum = sum.saturating_add(*count).min(MOST);
        }
        self.0[SUM] = self.0[SUM].saturating_add(report.sum).min(MOST_UNITS);
        Ok(())
    }
}

impl JobTable {
    /// A rank reports the durations of round trips since its last report. No job changes.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; nothing was added.
    pub fn report_round_trips(
        &mut self,
        id: MemberId,
        report: &control::Times,
    ) -> Result<(), MemberError> {
        self.find(id)?;
        self.round_trips.add(report)
    }

    /// A rank reports what became of its packets since it joined. Nothing else changes.
    ///
    /// # Errors
    ///
    /// [`MemberError`]; the table is as before.
    pub fn report_path(&mut self, id: MemberId, path: control::Path) -> Result<(), MemberError> {
        if let Some(member) = self.job_of(id)?.member_mut(id.rank) {
            member.paths.report(path);
        }
        Ok(())
    }

    /// All round trips reported since this table was made.
    pub fn round_trips(&self) -> &Times {
        &self.round_trips.0
    }
}
