//! A process's own aggregators: one serves all jobs, but for ranks of one job in the same process,
//! which would give it twice.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

use switchml_userspace::embedded::{EmbedError, Embedded};

use crate::lock::lock;
use crate::per_process::PerProcess;

/// The aggregators that ranks have.
#[derive(Debug, Default)]
pub(super) struct Lending(Mutex<Vec<Weak<Shared>>>);

#[derive(Debug)]
struct Shared {
    address: IpAddr,
    embedded: Embedded,
    /// The jobs that ranks have it for.
    jobs: Mutex<Vec<String>>,
}

/// An aggregator that a rank has for a job.
#[derive(Debug)]
pub(super) struct Lent {
    shared: Arc<Shared>,
    job: String,
    /// Knows of it as long as anybody has it.
    _lending: Arc<Lending>,
}

impl Lending {
    /// That of the calling thread's process and network namespace.
    pub fn here() -> Arc<Self> {
        static LENDING: PerProcess<Lending> = PerProcess::new();
        let Ok(lending) = LENDING.here(|| Ok::<_, Infallible>(Self::default()));
        lending
    }

    /// One at this address for a rank of this job.
    ///
    /// # Errors
    /// Those of [`Embedded::start`].
    pub fn lend(self: &Arc<Self>, address: IpAddr, job: &str) -> Result<Lent, EmbedError> {
        let mut all = lock(&self.0);
        all.retain(|shared| shared.strong_count() > 0);
        let known = all.iter().filter_map(Weak::upgrade).find(|shared| {
            shared.address == address && !lock(&shared.jobs).iter().any(|known| known == job)
        });
        let shared = match known {
            Some(shared) => shared,
            None => {
                let (embedded, jobs) = (Embedded::start(address)?, Mutex::default());
                let shared = Arc::new(Shared { address, embedded, jobs });
                all.push(Arc::downgrade(&shared));
                shared
            }
        };
        lock(&shared.jobs).push(job.to_owned());
        Ok(Lent { shared, job: job.to_owned(), _lending: Arc::clone(self) })
    }
}

impl Lent {
    pub fn embedded(&self) -> &Embedded {
        &self.shared.embedded
    }

    pub fn job(&self) -> &str {
        &self.job
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut jobs = lock(&self.shared.jobs);
        if let Some(place) = jobs.iter().position(|job| *job == self.job) {
            jobs.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn jobs_share_one_and_ranks_of_a_job_do_not() {
        let lending = Arc::new(Lending::default());
        let lend = |job| lending.lend(Ipv4Addr::LOCALHOST.into(), job).unwrap();
        let address = |lent: &Lent| lent.embedded().control();
        let (first, other, rank) = (lend("first"), lend("other"), lend("first"));
        assert_eq!(address(&first), address(&other));
        assert_ne!(address(&first), address(&rank));
        assert_eq!(address(&rank), address(&lend("other")));
        drop(first);
        let again = lend("first");
        assert_eq!(address(&again), address(&other));
        let address = address(&again);
        drop(again);
        assert!(TcpStream::connect(address).is_ok(), "the other job needs it");
        drop(other);
        assert!(TcpStream::connect(address).is_err());
    }
}
