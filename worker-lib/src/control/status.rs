//! Asking an aggregator how it is, without a job.

use std::time::Duration;

use switchml_control::{
    ExamineReply, ExamineRequest, JobStatus, ListJobsRequest, Port, StatusRequest,
    aggregator_client::AggregatorClient,
};

use super::{Access, Assigned, Error, connection, resolve};

/// An aggregator's own status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatorStatus {
    /// Address that answered, with port.
    pub address: String,
    /// The daemon's version.
    pub version: String,
    /// "xdp" or "software".
    pub data_plane: String,
    /// One line on how packets reach it.
    pub attachment: String,
    /// Slots of the pool.
    pub slots_total: u32,
    /// Slots that no job has.
    pub slots_free: u32,
    /// The interfaces that it takes frames from, as they are now; none if it does not.
    pub ports: Vec<Port>,
    /// Of a combiner: its parent's control plane. Empty at a root.
    pub parent: String,
}

/// Asks the aggregator at `aggregator` for its status.
///
/// # Errors
///
/// [`Error::Address`], [`Error::UnknownHost`], [`Error::Unreachable`], [`Error::Tls`],
/// [`Error::Refused`], or [`Error::Lost`] when the answer does not come in time.
pub fn status(aggregator: impl Into<Access>, timeout: Duration) -> Result<AggregatorStatus, Error> {
    let access = aggregator.into();
    let addresses = resolve(&access.address)?;
    connection::runtime()?.block_on(async {
        let to = connection::connect(&access, &addresses, timeout).await?;
        let mut client = AggregatorClient::new(to.1.channel.clone());
        let reply = connection::within(timeout, &to, client.status(StatusRequest {})).await?;
        Ok(AggregatorStatus {
            address: to.0,
            version: reply.version,
            data_plane: reply.data_plane,
            attachment: reply.attachment,
            slots_total: reply.slots_total,
            slots_free: reply.slots_free,
            ports: reply.ports,
            parent: reply.parent,
        })
    })
}

/// The aggregator's view of the path to the rank that has these assignments.
///
/// # Errors
///
/// The errors of [`status`].
pub fn examine(
    aggregator: impl Into<Access>,
    assigned: &Assigned,
    rank: u32,
    timeout: Duration,
) -> Result<ExamineReply, Error> {
    let access = aggregator.into();
    let addresses = resolve(&access.address)?;
    let request = ExamineRequest { member: Some(assigned.member(rank)) };
    connection::runtime()?.block_on(async {
        let to = connection::connect(&access, &addresses, timeout).await?;
        let mut client = AggregatorClient::new(to.1.channel.clone());
        connection::within(timeout, &to, client.examine(request)).await
    })
}

/// The names of the jobs that some ranks make slow, and which ranks and why, for people.
///
/// # Errors
///
/// The errors of [`status`].
pub fn slow_jobs(
    aggregator: impl Into<Access>,
    timeout: Duration,
) -> Result<Vec<(String, String)>, Error> {
    let jobs = jobs(&aggregator.into(), timeout)?.into_iter();
    Ok(jobs.filter(|job| !job.slow.is_empty()).map(|job| (job.name, job.slow)).collect())
}

/// A rank that gets no results by multicast, and so makes all ranks of its job slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankWithoutMulticast {
    /// Name of its job.
    pub job: String,
    /// The rank.
    pub rank: u32,
    /// The rank's address.
    pub address: String,
}

/// The ranks of any job that have told the aggregator that they get no results by multicast.
///
/// # Errors
///
/// The errors of [`status`].
pub fn ranks_without_multicast(
    aggregator: impl Into<Access>,
    timeout: Duration,
) -> Result<Vec<RankWithoutMulticast>, Error> {
    let ranks = jobs(&aggregator.into(), timeout)?.into_iter().flat_map(|job| {
        let members = job.members.into_iter().filter(|member| member.no_multicast);
        members.map(move |member| RankWithoutMulticast {
            job: job.name.clone(),
            rank: member.rank,
            address: member.address,
        })
    });
    Ok(ranks.collect())
}

/// The aggregator's jobs.
fn jobs(access: &Access, timeout: Duration) -> Result<Vec<JobStatus>, Error> {
    let addresses = resolve(&access.address)?;
    connection::runtime()?.block_on(async {
        let to = connection::connect(access, &addresses, timeout).await?;
        let mut client = AggregatorClient::new(to.1.channel.clone());
        let list = client.list_jobs(ListJobsRequest {});
        Ok(connection::within(timeout, &to, list).await?.jobs)
    })
}
