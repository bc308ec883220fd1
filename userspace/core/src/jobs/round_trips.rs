//! What ranks report of their round trips (rule 22.15), added up over all jobs.
//!
//! Not by job or rank: whoever joins would choose how many metrics there are.

use switchml_control as control;
use switchml_protocol::times::{BUCKETS, SUM, Times};

use super::error::MemberError;
use super::{JobTable, MemberId};

/// Most that a bucket counts. That many in each are still an integer in a double, as which
/// monitoring reads them.
pub(super) const MOST: u64 = 1 << 48;
/// Most of their sum, in units: in nanoseconds it fits 64 bits.
pub(super) const MOST_UNITS: u64 = 1 << 53;

/// See the [module's documentation](self). Counts stay at their bound: a rank that lies can spoil
/// what is shown here, and nothing else.
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
    /// A rank tells how long round trips took that it has not told of yet. No job changes.
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

    /// What all ranks have reported since this table was made.
    pub fn round_trips(&self) -> &Times {
        &self.round_trips.0
    }
}
