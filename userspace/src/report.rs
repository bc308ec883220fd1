//! The output of `status`, `jobs` and `slots`.

mod slots;

use std::convert::Infallible;
use std::env;
use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::anyhow;
pub use slots::slots;
use switchml_cli::say;
use switchml_cli::tls::TlsOptions;
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::client::{ConnectError, connect};
use switchml_control::tls::{ClientTls, Fingerprint};
use switchml_control::{ListJobsRequest, StatusRequest};
use switchml_userspace::view::{JobView, MemberView, PortView, Role, View};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::cli::service_file::Service;

/// Longest wait for an answer. An aggregator that serves jobs answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most ranks of a job whose packets are told of.
const MOST_PATHS: usize = 16;

/// A running aggregator: its address, and the TLS settings that identify it.
pub struct Aggregator {
    address: SocketAddr,
    tls: ClientTls,
}

impl Aggregator {
    /// This service, with TLS by these options, completed by the environment; else by its
    /// certificate.
    pub fn new(service: Service, options: TlsOptions) -> anyhow::Result<Self> {
        let variable = |name| Ok::<_, Infallible>(env::var(name).ok());
        let Ok(environment) = ClientTls::from_variables(variable);
        let given = ClientTls {
            fingerprint: options.tls_fingerprint,
            ca: options.tls_ca,
            cert: options.tls_cert,
            key: options.tls_key,
        };
        let mut tls = given.over(environment);
        tls.check()?;
        if let Some(file) = service.certificate.filter(|_| !tls.is_used()) {
            tls.fingerprint = Some(Fingerprint::in_file(&file)?.to_string());
        }
        Ok(Self { address: service.control, tls })
    }
}

/// Prints the attachment of a running aggregator, how results reach the ranks of jobs, and every
/// counter that is not zero.
pub async fn status(to: &Aggregator) -> anyhow::Result<()> {
    let view = look(to).await?;
    say!("host         {}", view.host);
    say!("version      {}", view.version);
    say!("data plane   {}: {}", view.data_plane, view.attachment);
    match &view.role {
        Role::Root { slots, slots_free } => say!("slots        {slots_free} of {slots} free"),
        Role::Combiner { parent, cells } => {
            say!("parent       {parent}");
            say!("cells        {cells}");
        }
    }
    if let Some(date) = view.security.certificate_expires.and_then(date) {
        say!("certificate  expires {date}");
    }
    for port in &view.ports {
        let PortView { name, receive_drops, send_drops, xdp_drops, .. } = port;
        if *xdp_drops > 0 {
            say!("dropped      {name}: {xdp_drops} frames that native XDP sent there");
        }
        if receive_drops + send_drops > 0 {
            say!("dropped      {name}: {receive_drops} frames received, {send_drops} to be sent");
        }
    }
    view.faults().for_each(|(port, fault)| say!("fault        {port}: {fault}"));
    for job in &view.jobs {
        let name = job.name.escape_debug();
        let why = job.reason.iter().map(|reason| reason.escape_debug());
        why.for_each(|why| say!("aborted      job \"{name}\": {why}"));
        job.stripe().iter().for_each(|stripe| say!("aggregators  job \"{name}\": {stripe}"));
        job.wait().iter().for_each(|wait| say!("waits        job \"{name}\": {wait}"));
        job.slow.iter().for_each(|slow| say!("slow         job \"{name}\": {slow}"));
        job.unused().iter().for_each(|unused| say!("unused       job \"{name}\": {unused}"));
        paths(job).for_each(|path| say!("packets      job \"{name}\": {path}"));
        racks(job).for_each(|(rack, ranks)| say!("racks        job \"{name}\", {ranks}: {rack}"));
        results(job).for_each(|(way, ranks)| say!("results      job \"{name}\", {ranks}: {way}"));
    }
    if let Some(why) = &view.jobs_unknown {
        say!("jobs         unknown: {why}");
    }
    for job in &view.ended_lately {
        let (name, ago) = (job.name.escape_debug(), job.ago_seconds);
        let why = job.reason.iter().map(|reason| format!(", {}", reason.escape_debug()));
        say!(
            "ended        job \"{name}\", {ago:.0} s ago: {}{}",
            job.ending,
            why.collect::<String>()
        );
    }
    for refusal in view.refusals.iter().filter(|refusal| refusal.times > 0) {
        say!("refused      {} {}", refusal.times, refusal.help);
    }
    say!("\n{:<16} {:>14}", "packets", "count");
    for count in view.packets.iter().filter(|count| count.packets > 0) {
        say!("{:<16} {:>14}  {}", count.outcome, count.packets, count.help);
    }
    Ok(())
}

/// The date and time `seconds` after 1970. `None` after the year 9999, since the answer may contain
/// anything.
fn date(seconds: u64) -> Option<String> {
    const YEAR_10000: u64 = 253_402_300_800;
    let since = Some(Duration::from_secs(seconds)).filter(|_| seconds < YEAR_10000)?;
    Some(humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string())
}

/// Prints all of it for programs.
pub async fn json(to: &Aggregator) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string(&look(to).await?)?);
    Ok(())
}

/// Prints a line for each job.
pub async fn jobs(to: &Aggregator) -> anyhow::Result<()> {
    let view = look(to).await?;
    if let Some(why) = view.jobs_unknown {
        return Err(anyhow!("{} does not know its jobs: {why}", to.address));
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

/// The state of a running aggregator and of its jobs, from its answers.
pub async fn look(to: &Aggregator) -> anyhow::Result<View> {
    ask(to, async |mut aggregator: AggregatorClient<_>| {
        let status = aggregator.status(StatusRequest {}).await?;
        let jobs = aggregator.list_jobs(ListJobsRequest {}).await;
        let jobs = jobs.map(Response::into_inner).map_err(|why| why.message().to_owned());
        Ok(View::new(status.into_inner(), jobs))
    })
    .await
}

/// An aggregator's answer to a request.
async fn ask<T>(
    to: &Aggregator,
    request: impl AsyncFnOnce(AggregatorClient<Channel>) -> Result<T, Status>,
) -> anyhow::Result<T> {
    let address = to.address;
    let answer = async {
        let host = address.ip().to_string();
        let connection = connect(address, &host, &to.tls, |endpoint| endpoint).await;
        let connection = connection.map_err(|error| no_connection(address, error))?;
        let answer = request(AggregatorClient::new(connection.channel.clone())).await;
        answer.map_err(|status: Status| match connection.fault() {
            Some(fault) => no_connection(address, fault.clone().into()),
            None => {
                anyhow!("the aggregator at {address} refused the request: {}", status.message())
            }
        })
    };
    timeout(PATIENCE, answer).await.unwrap_or_else(|_| {
        Err(anyhow!(
            "{address} takes connections, but did not answer for {} s; if that is an aggregator, \
             it hangs: restart it",
            PATIENCE.as_secs()
        ))
    })
}

fn no_connection(address: SocketAddr, error: ConnectError) -> anyhow::Error {
    match error {
        ConnectError::Tls(why) => anyhow!("no TLS connection to {address}: {why}"),
        ConnectError::Unreachable(why) => anyhow!(
            "no aggregator answers at {address} ({why}); start it, or give the address where it \
             runs with --connect"
        ),
    }
}

/// Missing ranks, ranks without multicast, and ranks that get copies.
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

/// What became of the packets of the ranks that had to send some again, the worst first.
fn paths(job: &JobView) -> impl Iterator<Item = String> {
    let mut ranks: Vec<_> = job.members.iter().filter(|member| member.resent > 0).collect();
    ranks.sort_by_key(|member| std::cmp::Reverse(member.lost));
    ranks.into_iter().take(MOST_PATHS).map(|member| {
        let MemberView { rank, sent, resent, pending, lost, late_seconds, .. } = member;
        let late = match *late_seconds {
            0.0 => String::new(),
            seconds => format!(", {:.1} ms late", 1e3 * seconds),
        };
        format!("rank {rank}: {lost} lost, {resent} of {sent} sent again, {pending} PENDING{late}")
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `date -ud 2031-03-01 +%s`, and `date -ud '9999-12-31 23:59:59' +%s`.
    #[test]
    fn a_date_is_that_of_its_seconds_or_none() {
        assert_eq!(date(1_930_089_600).as_deref(), Some("2031-03-01T00:00:00Z"));
        assert_eq!(date(253_402_300_799).as_deref(), Some("9999-12-31T23:59:59Z"));
        assert_eq!([253_402_300_800, u64::MAX].map(date), [None, None]);
    }
}
