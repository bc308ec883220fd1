//! What `status` and `jobs` print.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::anyhow;
use switchml_cli::say;
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::{ListJobsRequest, StatusRequest};
use switchml_userspace::view::{JobView, Role, View};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};

/// Longest wait for an answer. An aggregator that serves jobs answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints what a running aggregator is attached to, how results reach the ranks of jobs, and every
/// counter that is not zero.
pub async fn status(address: &SocketAddr) -> anyhow::Result<()> {
    let view = look(address).await?;
    say!("version      {}", view.version);
    say!("data plane   {}: {}", view.data_plane, view.attachment);
    match &view.role {
        Role::Root { slots, slots_free } => say!("slots        {slots_free} of {slots} free"),
        Role::Combiner { parent, cells } => {
            say!("parent       {parent}");
            say!("cells        {cells}");
        }
    }
    view.faults().for_each(|(port, fault)| say!("fault        {port}: {fault}"));
    for job in &view.jobs {
        let name = job.name.escape_debug();
        racks(job).for_each(|(rack, ranks)| say!("racks        job \"{name}\", {ranks}: {rack}"));
        results(job).for_each(|(way, ranks)| say!("results      job \"{name}\", {ranks}: {way}"));
    }
    if let Some(why) = &view.jobs_unknown {
        say!("jobs         unknown: {why}");
    }
    say!("\n{:<16} {:>14}", "packets", "count");
    for count in view.packets.iter().filter(|count| count.packets > 0) {
        say!("{:<16} {:>14}  {}", count.outcome, count.packets, count.help);
    }
    Ok(())
}

/// Prints all of it for programs.
pub async fn json(address: &SocketAddr) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string(&look(address).await?)?);
    Ok(())
}

/// Prints a line for each job.
pub async fn jobs(address: &SocketAddr) -> anyhow::Result<()> {
    let view = look(address).await?;
    if let Some(why) = view.jobs_unknown {
        return Err(anyhow!("{address} does not know its jobs: {why}"));
    }
    say!(
        "{:>3} {:<20} {:<9} {:>6} {:>5}  {:<10} missing ranks",
        "job",
        "name",
        "state",
        "slots",
        "lanes",
        "ranks here"
    );
    for job in &view.jobs {
        say!(
            "{:>3} {:<20} {:<9} {:>6} {:>5}  {:<10} {}",
            job.number.map_or("-".to_owned(), |number| number.to_string()),
            job.name.escape_debug().to_string(),
            job.state,
            job.slots,
            job.lanes,
            format!("{} of {}", job.here(), job.world_size),
            remarks(job)
        );
    }
    Ok(())
}

/// What a running aggregator says of itself and of its jobs.
async fn look(address: &SocketAddr) -> anyhow::Result<View> {
    ask(address, async |mut aggregator: AggregatorClient<_>| {
        let status = aggregator.status(StatusRequest {}).await?;
        let jobs = aggregator.list_jobs(ListJobsRequest {}).await;
        let jobs = jobs.map(Response::into_inner).map_err(|why| why.message().to_owned());
        Ok(View::new(status.into_inner(), jobs))
    })
    .await
}

/// An aggregator's answer to a request.
async fn ask<T>(
    address: &SocketAddr,
    request: impl AsyncFnOnce(AggregatorClient<Channel>) -> Result<T, Status>,
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
        answer.map_err(why)
    };
    timeout(PATIENCE, answer).await.unwrap_or_else(|_| {
        Err(anyhow!(
            "{address} takes connections, but did not answer for {} s; if that is an aggregator, \
             it hangs: start it anew",
            PATIENCE.as_secs()
        ))
    })
}

/// Missing ranks, those that get no results by multicast, and those that get copies.
fn remarks(job: &JobView) -> String {
    let with = |remark: &str| {
        let present = job.members.iter().filter(|member| !member.left);
        let ranks = present.filter(|member| member.remark() == Some(remark));
        ranks.map(|member| member.rank).collect::<Vec<_>>()
    };
    let of = |remark: &str| match with(remark) {
        ranks if ranks.is_empty() => String::new(),
        ranks => format!("  ({remark}: {})", numbers(&ranks)),
    };
    numbers(&job.missing()) + &of("no multicast") + &of("copies")
}

/// The ranks of a job by rack, if it has any.
fn racks(job: &JobView) -> impl Iterator<Item = (String, String)> {
    let racks = job.racks();
    let has_racks = racks.iter().any(|(rack, _)| !rack.is_empty());
    racks.into_iter().filter(move |_| has_racks).map(|(rack, ranks)| {
        let rack =
            if rack.is_empty() { "none".to_owned() } else { rack.escape_debug().to_string() };
        (rack, format!("ranks {}", numbers(&ranks)))
    })
}

/// How results reach the ranks of a job that are ready, and why so.
fn results(job: &JobView) -> impl Iterator<Item = (&'static str, String)> {
    let ways = job.results().into_iter();
    ways.map(|(way, ranks)| (way, format!("ranks {}", numbers(&ranks))))
}

fn numbers(ranks: &[u32]) -> String {
    ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}
