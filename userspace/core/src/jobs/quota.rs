//! Quotas: the resources that a tenant's jobs may have together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::error::{JoinError, Resource};
use super::job::Job;
use super::{JobTable, Joiner};
use crate::rate::Rate;

/// Bounds of a tenant; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Jobs at once. A job counts until its last rank is gone.
    pub jobs: Option<u32>,
    /// Ranks at once: the world sizes of its jobs, from their first rank on.
    pub ranks: Option<u32>,
    /// Slots at once. A waiting job counts the slots of one data thread.
    pub slots: Option<u32>,
    /// Joins in a minute.
    pub joins: Option<u32>,
}

impl Quota {
    /// This quota, with missing bounds taken from `other`.
    fn or(self, other: Self) -> Self {
        Self {
            jobs: self.jobs.or(other.jobs),
            ranks: self.ranks.or(other.ranks),
            slots: self.slots.or(other.slots),
            joins: self.joins.or(other.joins),
        }
    }
}

/// The quotas of all tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// The quota of tenants without one of their own, and the default for missing bounds.
    pub of_all: Quota,
    /// The quotas of named tenants.
    pub named: BTreeMap<String, Quota>,
}

impl Quotas {
    fn of(&self, tenant: &str) -> Quota {
        self.named.get(tenant).copied().unwrap_or_default().or(self.of_all)
    }
}

/// The resources that a tenant has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Jobs of the tenant.
    pub jobs: u32,
    /// Ranks of these jobs: their world sizes.
    pub ranks: u32,
    /// Slots of these jobs.
    pub slots: u32,
}

impl JobTable {
    /// The table with these quotas of tenants.
    pub fn with_quotas(self, quotas: Quotas) -> Self {
        Self { quotas, ..self }
    }

    /// Tenants have these quotas from now on. They keep the resources that they have already.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.quotas = quotas;
    }

    /// Counts the join of a tenant's rank, whether it succeeds or not.
    pub(super) fn count_join(&mut self, tenant: &str, now: Instant) -> Result<(), JoinError> {
        let Some(most) = self.quotas.of(tenant).joins.filter(|_| !tenant.is_empty()) else {
            return Ok(());
        };
        self.joins.retain(|_, rate| !rate.is_over(now));
        let rate = self.joins.entry(tenant.to_owned()).or_insert_with(|| Rate::new(now));
        let refused = || JoinError::TooManyJoins { tenant: tenant.to_owned(), most };
        rate.pass(now, most).then_some(()).ok_or_else(refused)
    }

    /// Whether the tenant may begin this job.
    pub(super) fn check_quota(&self, joiner: &Joiner) -> Result<(), JoinError> {
        let tenant = &joiner.tenant;
        if tenant.is_empty() {
            return Ok(());
        }
        let (quota, used) = (self.quotas.of(tenant), self.used_by(tenant));
        let bounds = [
            (Resource::Jobs, quota.jobs, used.jobs, 1),
            (Resource::Ranks, quota.ranks, used.ranks, joiner.world_size),
            (Resource::Slots, quota.slots, used.slots, self.limits.slots_per_shard),
        ];
        for (resource, most, used, wanted) in bounds {
            if let Some(most) = most
                && used.saturating_add(wanted) > most
            {
                let tenant = tenant.clone();
                return Err(match wanted > most {
                    true => JoinError::NeverInQuota { tenant, resource, most, wanted },
                    false => JoinError::OverQuota { tenant, resource, most, used, wanted },
                });
            }
        }
        Ok(())
    }

    /// Most data threads of a job by the slots that its tenant has left, now that the waiting job
    /// no longer counts. There are always slots for one thread: the job has had them since its
    /// first rank.
    pub(super) fn threads_within_quota(&self, job: &Job) -> u32 {
        let most = self.quotas.of(&job.tenant).slots.filter(|_| !job.tenant.is_empty());
        most.map_or(u32::MAX, |most| {
            let left = most.saturating_sub(self.used_by(&job.tenant).slots);
            (left / self.limits.slots_per_shard).max(1)
        })
    }

    /// The resources of each tenant that has any, by name.
    pub fn used(&self) -> impl Iterator<Item = (&str, Used)> {
        let jobs = self.jobs.values().chain(self.waiting.values());
        let tenants: BTreeSet<_> = jobs.map(|job| job.tenant.as_str()).collect();
        tenants
            .into_iter()
            .filter(|tenant| !tenant.is_empty())
            .map(|tenant| (tenant, self.used_by(tenant)))
    }

    fn used_by(&self, tenant: &str) -> Used {
        let jobs = self.jobs.values().chain(self.waiting.values());
        jobs.filter(|job| job.tenant == tenant).fold(Used::default(), |used, job| Used {
            jobs: used.jobs + 1,
            ranks: used.ranks + job.world_size() as u32,
            slots: used.slots + self.limits.slots_per_shard * job.shards.len().max(1) as u32,
        })
    }
}
