//! What `status` and `jobs` print.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::anyhow;
use switchml_cli::say;
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::{Copies, JobState, JobStatus, ListJobsRequest, MemberStatus, StatusRequest};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};

/// Longest wait for an answer. An aggregator that serves jobs answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints what a running aggregator is attached to, and every counter that is not zero.
pub async fn status(address: &SocketAddr) -> anyhow::Result<()> {
    let status = ask(address, async |mut aggregator: AggregatorClient<_>| {
        aggregator.status(StatusRequest {}).await
    })
    .await?;
    say!("version      {}", status.version);
    say!("data plane   {}: {}", status.data_plane, status.attachment);
    say!("slots        {} of {} free", status.slots_free, status.slots_total);
    say!("\n{:<16} {:>14}", "packets", "count");
    for counter in status.counters.iter().filter(|counter| counter.packets > 0) {
        say!("{:<16} {:>14}  {}", counter.name, counter.packets, counter.help);
    }
    Ok(())
}

/// Prints a line for each job.
pub async fn jobs(address: &SocketAddr) -> anyhow::Result<()> {
    let list =
        async |mut aggregator: AggregatorClient<_>| aggregator.list_jobs(ListJobsRequest {}).await;
    let jobs = ask(address, list).await?.jobs;
    say!(
        "{:>3} {:<20} {:<9} {:>6} {:>5}  {:<10} missing ranks",
        "job",
        "name",
        "state",
        "slots",
        "lanes",
        "ranks here"
    );
    for job in &jobs {
        let here = job.members.iter().filter(|member| is_here(member)).count();
        say!(
            "{:>3} {:<20} {:<9} {:>6} {:>5}  {:<10} {}",
            number(job),
            job.name.escape_debug().to_string(),
            state(job),
            job.slots,
            job.lanes,
            format!("{here} of {}", job.world_size),
            remarks(job)
        );
    }
    Ok(())
}

/// An aggregator's answer to a request.
async fn ask<T>(
    address: &SocketAddr,
    request: impl AsyncFnOnce(AggregatorClient<Channel>) -> Result<Response<T>, Status>,
) -> anyhow::Result<T> {
    let answer = async {
        let client = AggregatorClient::connect(format!("http://{address}")).await;
        let client = client.map_err(|error| {
            let why = anyhow!(error);
            let why = why.root_cause();
            anyhow!(
                "no aggregator answers at {address} ({why}); start it, or give the address where \
                 it runs with --connect"
            )
        })?;
        let answer = request(client).await;
        let why = |status: Status| anyhow!("{address} refuses: {}", status.message());
        answer.map(Response::into_inner).map_err(why)
    };
    timeout(PATIENCE, answer).await.unwrap_or_else(|_| {
        Err(anyhow!(
            "{address} takes connections, but did not answer for {} s; if that is an aggregator, \
             it hangs: start it anew",
            PATIENCE.as_secs()
        ))
    })
}

fn state(job: &JobStatus) -> &'static str {
    match job.state() {
        JobState::Unspecified => "unknown",
        JobState::Waiting => "waiting",
        JobState::Assigned => "assigned",
        JobState::Started => "started",
        JobState::Aborted => "aborted",
    }
}

/// A job has a number once all ranks are there.
fn number(job: &JobStatus) -> String {
    if job.shards.is_empty() { "-".to_owned() } else { job.job.to_string() }
}

fn is_here(member: &MemberStatus) -> bool {
    !member.left && !member.awaited
}

/// Missing ranks, those that get no results by multicast, and those that get copies.
fn remarks(job: &JobStatus) -> String {
    let of = |remark: &str, has: fn(&MemberStatus) -> bool| {
        let ranks = job.members.iter().filter(|member| has(member));
        let ranks: Vec<_> = ranks.map(|member| member.rank.to_string()).collect();
        match ranks.is_empty() {
            true => String::new(),
            false => format!("  ({remark}: {})", ranks.join(" ")),
        }
    };
    missing(job)
        + &of("no multicast", |member| member.no_multicast)
        + &of("copies", |member| member.copies() != Copies::Unspecified)
}

fn missing(job: &JobStatus) -> String {
    let is_missing =
        |rank: &u32| !job.members.iter().any(|member| member.rank == *rank && is_here(member));
    let missing: Vec<_> =
        (0..job.world_size).filter(is_missing).map(|rank| rank.to_string()).collect();
    missing.join(" ")
}
