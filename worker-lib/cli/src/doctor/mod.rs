//! `switchml-worker doctor`: checks the path to the aggregator and back, step by step, or without
//! one the ways between the ranks. If a step fails, or works worse than it could, it looks for the
//! cause.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`burst`] | what a burst of packets loses, and how fast the path is |
//! | [`cause`] | causes, and the commands that fix them |
//! | [`fix`] | a command, and where to run it |
//! | [`examine`] | what to look at, and when |
//! | [`judge`] | derives the cause from the evidence |
//! | [`here`] | what this host's kernel knows about the path |
//! | [`counters`] | counters of packets that came in to this host |
//! | [`device_errors`] | an RDMA device's counters of packets that it lost |
//! | [`probes`] | packets to the aggregator, and what the network reports about them |
//! | [`firewall`] | this host's firewall |
//! | [`rdma`] | the way of a rank by RDMA |
//! | [`ranks`] | the ways between hosts of ranks that serve each other |
//! | [`obstacle`] | causes that ranks by RDMA alone have |
//! | [`small_packets`] | packets by RDMA that are smaller than they could be |

mod burst;
mod cause;
mod counters;
mod device_errors;
mod examine;
mod firewall;
mod fix;
mod here;
mod judge;
mod obstacle;
mod probes;
mod ranks;
mod rdma;
mod small_packets;

use std::fmt;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use switchml_protocol::node::roce;
use switchml_worker::control::{
    self, Access, AggregatorStatus, Assigned, Membership, RankWithoutMulticast,
};
use switchml_worker::interface::{Interface, unspecified};
use switchml_worker::rdma::DevicePort;
use switchml_worker::{Builder, Capabilities, Communicator, Error, ReduceOp, Stripe};

use burst::Burst;
use cause::{Cause, Instead};
use counters::Counters;
use device_errors::DeviceErrors;
use fix::Fix;
use obstacle::Obstacle;

use super::job::Way;
use super::{Failure, say};

/// Longest wait for anything: a way that works takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// All-reduces to measure the round trip with; the first warms up.
const ROUNDS: usize = 21;

/// Checks the way to the aggregator and back, and says what is wrong with it. Without an
/// aggregator, start it as each rank, like bench: it checks the ways between the ranks' hosts
#[derive(clap::Args)]
#[command(after_help = super::after_help("doctor"))]
pub struct Doctor {
    #[command(flatten)]
    way: Way,
}

impl Doctor {
    /// Prints a line for every step, of which the first that fails is the last, then the causes of
    /// what it found.
    pub fn run(&self) -> Result<(), Failure> {
        let settings = self.way.settings()?;
        let aggregators = settings.get_aggregators();
        if aggregators.is_empty() {
            return between_ranks(&settings);
        }
        let mut outcome = Ok(());
        for access in &aggregators {
            if aggregators.len() > 1 {
                say(format_args!("aggregator {}:", access.address));
            }
            let mut causes = Vec::new();
            let settings = settings.clone().aggregator(&access.address);
            outcome = outcome.and(check(settings, access, &mut causes));
            if aggregators.len() > 1 {
                // The others take what a slow port cannot carry.
                causes.retain(|cause| !matches!(cause, Cause::SlowPort(_)));
            }
            for cause in &causes {
                explain(cause, cause.breaks(), cause.fix());
            }
        }
        outcome
    }
}

fn between_ranks(settings: &Builder) -> Result<(), Failure> {
    if settings.settings().meeting.is_none() {
        return Err(Failure::Usage(
            "no aggregator is given; use --aggregator HOST[:PORT], or set SWITCHML_AGGREGATOR; for \
             ranks that serve each other, set MASTER_ADDR and MASTER_PORT, and start it as each \
             rank"
                .to_owned(),
        ));
    }
    ranks::check(settings)
}

/// Prints a cause, whether it breaks things, and what to do.
fn explain(cause: &impl fmt::Display, breaks: bool, Fix { host, command }: Fix) {
    say(format_args!("{:4}  {cause}", if breaks { "WHY" } else { "NOTE" }));
    say(format_args!("FIX   on {host}: {command}"));
}

fn check(settings: Builder, access: &Access, causes: &mut Vec<Cause>) -> Result<(), Failure> {
    let target = step("name", || resolve(&access.address))?;
    let before = Counters::read(target.is_ipv6());
    let status = step("control plane", || ask(access))
        .inspect_err(|_| causes.extend(examine::control_plane(target, &before)))?;
    let name = format!("doctor-{:08x}", rand::random::<u32>());
    let examination = format!("{name}-why");
    // A rank by RDMA needs memory for each of its data threads.
    let threads = if settings.settings().rdma() { None } else { Some(1) };
    let assigned = step("join", || join(access, &name, threads))?;
    let data_address = assigned.data_address;
    let interface = Interface::towards(data_address);
    let port = match settings.settings().rdma() {
        true => Some(find_port(&assigned, &status, causes)?),
        false => step("udp socket", || open_socket(data_address)).map(|()| None)?,
    };
    let before = port.as_ref().map(DeviceErrors::read);
    let lost_by_device = || rdma::errors(port.as_ref()?, before.as_ref()?);
    let communicator = step("data path", || open_path(settings, &name, interface.as_ref()))
        .inspect_err(|_| match &port {
            Some(port) => causes.extend(rdma::closed_path(access, &examination, port)),
            None => causes.extend(examine::data_path(access, &examination)),
        })?;
    let narrow = communicator.info().narrow.as_ref().map(|narrow| narrow.lanes);
    step("all-reduce", || reduce(&communicator))
        .inspect_err(|_| causes.extend(lost_by_device()))?;
    let burst = step("burst", || burst(&communicator))?;
    let has_copies = is_without_multicast(&communicator);
    // If copies were allowed, ranks would get them.
    let instead = Instead::Nothing(status.ports.into_iter().map(|port| port.name).collect());
    step("results", || results(&communicator)).inspect_err(|_| {
        let group = stripe(&communicator).multicast;
        // The burst's losses are the same.
        causes.push(examine::lost_group(data_address, group, group, instead.clone()));
    })?;
    causes.extend(interface.as_ref().and_then(|interface| burst.judge(interface)).map(Cause::Poor));
    step("leave", || leave(communicator))?;
    let narrow = (narrow, around(port.is_some()));
    causes.extend(examine::open_path(access, &examination, narrow, has_copies));
    let small = |port| rdma::small_packets(port, interface.as_ref(), &assigned);
    causes.extend(port.as_ref().and_then(small));
    causes.extend(lost_by_device());
    step("other ranks", || other_ranks(access)).inspect_err(|_| {
        causes.push(Cause::LostMulticast { group: None, instead });
    })
}

/// Whether the group of results does not reach this rank, as the aggregator has found out.
fn is_without_multicast(communicator: &Communicator) -> bool {
    let stripe = stripe(communicator);
    // There is no multicast by RDMA and over IPv6, and it reaches no rank on the aggregator's own
    // host.
    stripe.multicast.is_none()
        && stripe.device.is_none()
        && stripe.aggregator.is_ipv4()
        && stripe.capabilities.contains(Capabilities::GROUP_HELLOS)
        && !Interface::has(stripe.aggregator.ip())
}

/// Bytes that packets have around them, besides those of datagrams.
fn around(by_rdma: bool) -> usize {
    if by_rdma { roce::AROUND } else { 0 }
}

/// The only aggregator.
fn stripe(communicator: &Communicator) -> &Stripe {
    // A communicator has at least one.
    &communicator.info().stripes[0]
}

/// Does a step, and prints how it went.
fn step<T>(
    name: &'static str,
    action: impl FnOnce() -> Result<(T, String), Failure>,
) -> Result<T, Failure> {
    let begin = Instant::now();
    let outcome = action();
    let (word, detail) = match &outcome {
        Ok((_, detail)) => ("ok", detail.clone()),
        Err(failure) => ("FAIL", failure.to_string()),
    };
    say(format_args!("{word:4}  {name:13}  {:>10}  {detail}", Clock(begin.elapsed())));
    outcome
        .map(|(result, _)| result)
        .map_err(|failure| Failure::Step { name, code: failure.code() })
}

/// A time for people.
struct Clock(Duration);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.2} ms", self.0.as_secs_f64() * 1e3))
    }
}

/// The first address of the name.
fn resolve(address: &str) -> Result<(SocketAddr, String), Failure> {
    let found = control::resolve(address).map_err(of_control)?;
    // There is at least one address, or `resolve` had failed.
    let first = found[0];
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    Ok((first, format!("{address} is {}", found.join(", "))))
}

fn ask(access: &Access) -> Result<(AggregatorStatus, String), Failure> {
    let status = control::status(access.clone(), TIMEOUT).map_err(of_control)?;
    let AggregatorStatus {
        address, version, data_plane, attachment, slots_free, slots_total, ..
    } = &status;
    let detail = format!(
        "switchml-aggregator {version} at {address}, {data_plane}: {attachment}; {slots_free} of \
         {slots_total} slots are free"
    );
    Ok((status, detail))
}

fn join(
    access: &Access,
    name: &str,
    data_threads: Option<u32>,
) -> Result<(Assigned, String), Failure> {
    let (session, assigned) =
        Membership::join(access.clone(), name, 0, 1, data_threads, TIMEOUT).map_err(of_control)?;
    session.leave();
    let Assigned { slots, data_address, .. } = assigned;
    Ok((assigned, format!("job {name} of one rank: {slots} slots at UDP {data_address}")))
}

/// Finds the port of an RDMA device towards the data plane; what stands in the way, here and at the
/// aggregator, goes into `causes`.
fn find_port(
    assigned: &Assigned,
    status: &AggregatorStatus,
    causes: &mut Vec<Cause>,
) -> Result<DevicePort, Failure> {
    step("rdma support", || match rdma::find_port(assigned) {
        Ok(found) => {
            let DevicePort { device, port, mtu } = &found;
            let detail = format!("{device}, port {port}, has a path MTU of {} bytes", mtu.active);
            Ok((found, detail))
        }
        Err(missing) => {
            let cause = |why| Cause::Rdma(Obstacle::no_rdma(why, status));
            causes.extend(missing.into_iter().map(cause));
            Err(Failure::Wrong("a rank here cannot use RDMA".to_owned()))
        }
    })
}

/// Opens a socket to the data plane, whose address may differ from the control plane's.
fn open_socket(data_address: SocketAddr) -> Result<((), String), Failure> {
    let failed = |error: std::io::Error| {
        Failure::Join(Error::System { what: "UDP socket", why: error.to_string() })
    };
    let socket = UdpSocket::bind(unspecified(data_address)).map_err(failed)?;
    socket.connect(data_address).map_err(failed)?;
    let local = socket.local_addr().map_err(failed)?;
    Ok(((), format!("from {local} to {data_address}")))
}

fn open_path(
    settings: Builder,
    name: &str,
    interface: Option<&Interface>,
) -> Result<(Communicator, String), Failure> {
    let settings = settings.job(name).rank(0).world_size(1).deadline(TIMEOUT).join_timeout(TIMEOUT);
    let communicator = settings.connect().map_err(Failure::joining)?;
    let info = communicator.info();
    let stripe = stripe(&communicator);
    let packet = stripe.ip_packet_bytes(info.chunk_lanes) + around(stripe.device.is_some());
    let mtu = match interface {
        _ if info.narrow.is_some() => "; larger ones do not".to_owned(),
        Some(Interface { name, mtu, .. }) => format!("; {name} takes {mtu}"),
        _ => String::new(),
    };
    let detail = format!(
        "HELLO is back after {}; IP packets of {packet} bytes ({} lanes) pass both ways{mtu}",
        Clock(info.hello_rtt),
        info.chunk_lanes
    );
    Ok((communicator, detail))
}

fn reduce(communicator: &Communicator) -> Result<((), String), Failure> {
    let values: Vec<i32> = (0..i32::from(communicator.info().chunk_lanes)).collect();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let mut sum = values.clone();
        let begin = Instant::now();
        communicator.all_reduce(&mut sum, ReduceOp::Sum).map_err(Failure::Collective)?;
        times.push(begin.elapsed());
        // The sum over one rank is that rank's own values.
        if sum != values {
            return Err(Failure::Wrong(
                "the sum over one rank is not what that rank gave".to_owned(),
            ));
        }
    }
    times.remove(0);
    times.sort_unstable();
    let (best, median) = (Clock(times[0]), Clock(times[times.len() / 2]));
    let waits = communicator.stats().waits;
    Ok(((), format!("one chunk and back: best {best}, median {median}; {waits}")))
}

fn burst(communicator: &Communicator) -> Result<(Burst, String), Failure> {
    let burst = Burst::send(communicator)?;
    Ok((burst, burst.to_string()))
}

/// How results arrive.
fn results(communicator: &Communicator) -> Result<((), String), Failure> {
    let stripe = stripe(communicator);
    let Some(group) = stripe.multicast else {
        return Ok(((), stripe.results()));
    };
    let engine = communicator.stats().engine;
    by_multicast(group, engine.for_all, engine.copies).map(|detail| ((), detail))
}

/// Whether results arrive by multicast to the group. A rank that does not get them asks for copies:
/// all works, but slowly.
fn by_multicast(group: SocketAddrV4, for_all: u64, copies: u64) -> Result<String, Failure> {
    if for_all == 0 {
        return Err(Failure::Wrong(format!(
            "results by multicast to {group} do not arrive, {copies} of {copies} had to be asked \
             for; let them through (firewall, or a switch with IGMP snooping and no querier)"
        )));
    }
    let all = for_all + copies;
    Ok(format!("by multicast to {group}; {copies} of {all} had to be asked for"))
}

fn leave(communicator: Communicator) -> Result<((), String), Failure> {
    communicator.close().map_err(Failure::Collective)?;
    Ok(((), "the path is clear".to_owned()))
}

/// A way that is clear from here may not be from where other ranks are: each finds that out by its
/// own results.
fn other_ranks(access: &Access) -> Result<((), String), Failure> {
    let ranks = control::ranks_without_multicast(access.clone(), TIMEOUT).map_err(of_control)?;
    if ranks.is_empty() {
        let slow = control::slow_jobs(access.clone(), TIMEOUT).map_err(of_control)?;
        let slow = slow.into_iter().map(|(job, why)| format!("; job {job:?} is slow: {why}"));
        let none = "no rank of any job misses results by multicast";
        return Ok(((), none.to_owned() + &slow.collect::<String>()));
    }
    let words = |RankWithoutMulticast { job, rank, address }: &_| {
        format!("rank {rank} ({address}) of job {job:?}")
    };
    let ranks = ranks.iter().map(words).collect::<Vec<_>>().join(", ");
    Err(Failure::Wrong(format!(
        "results by multicast do not arrive at {ranks}; each says on its standard error what to do"
    )))
}

fn of_control(error: control::Error) -> Failure {
    Failure::joining(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_must_all_be_asked_for_are_a_failure() {
        let group = "239.255.0.0:48866".parse().unwrap();
        assert_eq!(
            by_multicast(group, 19, 2).unwrap(),
            "by multicast to 239.255.0.0:48866; 2 of 21 had to be asked for"
        );
        let failure = by_multicast(group, 0, 21).unwrap_err();
        assert_eq!(failure.code(), 1);
        let expected = "results by multicast to 239.255.0.0:48866 do not arrive, 21 of 21";
        assert!(failure.to_string().starts_with(expected));
    }
}
