//! Quotas of tenants, as `--tenant-quota` takes them.

use std::collections::BTreeMap;

use switchml_userspace_core::jobs::{Quota, Quotas};

/// The contents of one `--tenant-quota`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantQuota {
    /// The tenant; `None` for the default of all tenants.
    tenant: Option<String>,
    quota: Quota,
}

/// `jobs=8,ranks=64`, or the same behind a tenant's name and a colon.
pub fn parse(given: &str) -> Result<TenantQuota, String> {
    let (tenant, limits) = match given.rsplit_once(':') {
        Some(("", _)) => {
            return Err(format!(
                "{given:?} has no tenant before the colon; give TENANT:LIMITS, or LIMITS for all \
                 tenants"
            ));
        }
        Some((tenant, limits)) => (Some(tenant.to_owned()), limits),
        None => (None, given),
    };
    let mut quota = Quota::default();
    for limit in limits.split(',') {
        let wrong = || {
            format!(
                "{limit:?} is not a limit; give jobs=N, ranks=N, slots=N and joins=N (in a \
                 minute), with commas between them, N from 0 to {}",
                u32::MAX
            )
        };
        let (name, number) = limit.split_once('=').ok_or_else(wrong)?;
        let place = match name {
            "jobs" => &mut quota.jobs,
            "ranks" => &mut quota.ranks,
            "slots" => &mut quota.slots,
            "joins" => &mut quota.joins,
            _ => return Err(wrong()),
        };
        let number = number.parse().map_err(|_| wrong())?;
        if place.replace(number).is_some() {
            return Err(format!("{name} is given twice; give it once"));
        }
    }
    Ok(TenantQuota { tenant, quota })
}

/// All quotas that were given.
pub fn all(given: &[TenantQuota]) -> Result<Quotas, String> {
    let (mut of_all, mut named) = (None, BTreeMap::new());
    for TenantQuota { tenant, quota } in given {
        let (before, whose) = match tenant {
            None => (of_all.replace(*quota), "all tenants".to_owned()),
            Some(tenant) => (named.insert(tenant.clone(), *quota), format!("tenant {tenant:?}")),
        };
        if before.is_some() {
            return Err(format!(
                "--tenant-quota of {whose} is given twice; give all limits in one"
            ));
        }
    }
    Ok(Quotas { of_all: of_all.unwrap_or_default(), named })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_tenants_and_of_one() {
        let given = ["jobs=8,ranks=64,slots=4096,joins=60", "vision:joins=0", "a:b:jobs=1"];
        let given: Vec<_> = given.iter().map(|given| parse(given).unwrap()).collect();
        let quotas = all(&given).unwrap();
        let of_all = Quota { jobs: Some(8), ranks: Some(64), slots: Some(4096), joins: Some(60) };
        assert_eq!(quotas.of_all, of_all);
        let (one, other) = (&quotas.named["vision"], &quotas.named["a:b"]);
        assert_eq!(*one, Quota { joins: Some(0), ..Quota::default() });
        assert_eq!(*other, Quota { jobs: Some(1), ..Quota::default() });
    }

    #[test]
    fn what_is_wrong_is_one_line() {
        let allowed = "is not a limit; give jobs=N, ranks=N, slots=N and joins=N (in a minute), \
                       with commas between them, N from 0 to 4294967295";
        for (given, wrong) in [
            ("", "\"\""),
            ("jobs", "\"jobs\""),
            ("jobs=", "\"jobs=\""),
            ("jobs=-1", "\"jobs=-1\""),
            ("jobs=4294967296", "\"jobs=4294967296\""),
            ("jobs=1,", "\"\""),
            ("vision:", "\"\""),
            ("a:job=1", "\"job=1\""),
        ] {
            assert_eq!(parse(given), Err(format!("{wrong} {allowed}")));
        }
        assert_eq!(parse("jobs=1,jobs=2"), Err("jobs is given twice; give it once".to_owned()));
        let nobody = "\":jobs=1\" has no tenant before the colon; give TENANT:LIMITS, or LIMITS \
                      for all tenants";
        assert_eq!(parse(":jobs=1"), Err(nobody.to_owned()));
        let twice = [parse("a:jobs=1").unwrap(), parse("a:ranks=1").unwrap()];
        let line = "--tenant-quota of tenant \"a\" is given twice; give all limits in one";
        assert_eq!(all(&twice), Err(line.to_owned()));
    }
}
