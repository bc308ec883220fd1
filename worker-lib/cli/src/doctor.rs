//! `switchml-worker doctor`: the way to the aggregator and back, step by step.

use std::{
    fmt,
    net::{SocketAddrV4, UdpSocket},
    time::{Duration, Instant},
};

use switchml_worker::{
    Builder, Communicator, Error, ReduceOp,
    control::{self, AggregatorStatus, Membership},
    interface::Interface,
};

use super::{
    Failure,
    job::{self, Aggregator},
    say,
};

/// Longest wait for anything: a way that works takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// All-reduces to measure the round trip with; the first warms up.
const ROUNDS: usize = 21;

/// Checks the way to the aggregator and back, and says what is wrong with it
#[derive(clap::Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct Doctor {
    #[command(flatten)]
    aggregator: Aggregator,
}

impl Doctor {
    /// Prints a line for every step; the first that fails ends it.
    pub fn run(&self) -> Result<(), Failure> {
        let settings = self.aggregator.settings()?;
        let address = job::address(&settings)?.to_owned();
        step("name", || resolve(&address))?;
        step("control plane", || ask(&address))?;
        let name = format!("doctor-{:08x}", rand::random::<u32>());
        let data_address = step("join", || join(&address, &name))?;
        step("udp socket", || open_socket(data_address))?;
        let interface = Interface::towards(data_address);
        let communicator = step("data path", || open_path(settings, &name, interface.as_ref()))?;
        step("all-reduce", || reduce(&communicator))?;
        step("results", || results(&communicator))?;
        step("leave", || leave(communicator))
    }
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

fn resolve(address: &str) -> Result<((), String), Failure> {
    let found = control::resolve(address).map_err(of_control)?;
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    Ok(((), format!("{address} is {}", found.join(", "))))
}

fn ask(address: &str) -> Result<((), String), Failure> {
    let status = control::status(address, TIMEOUT).map_err(of_control)?;
    let AggregatorStatus { address, version, data_plane, attachment, slots_free, slots_total } =
        status;
    let detail = format!(
        "switchml-aggregator {version} at {address}, {data_plane}: {attachment}; {slots_free} of \
         {slots_total} slots are free"
    );
    Ok(((), detail))
}

fn join(address: &str, name: &str) -> Result<(SocketAddrV4, String), Failure> {
    let (session, assigned) =
        Membership::join(address, name, 0, 1, Some(1), TIMEOUT).map_err(of_control)?;
    session.leave();
    let control::Assigned { slots, data_address, .. } = assigned;
    Ok((data_address, format!("job {name} of one rank: {slots} slots at UDP {data_address}")))
}

/// The data plane has an address of its own, whichever the control plane was reached by.
fn open_socket(data_address: SocketAddrV4) -> Result<((), String), Failure> {
    let failed = |error: std::io::Error| {
        Failure::Join(Error::System { what: "UDP socket", why: error.to_string() })
    };
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(failed)?;
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
    let packet = info.ip_packet_bytes();
    let mtu = match interface {
        _ if info.narrow.is_some() => "; larger ones do not".to_owned(),
        Some(Interface { name, mtu: Some(mtu), .. }) => format!("; {name} takes {mtu}"),
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
        // The sum over one rank is what that rank gave.
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
    Ok(((), format!("one chunk and back: {best} at best, {median} mostly; {waits}")))
}

/// How results come.
fn results(communicator: &Communicator) -> Result<((), String), Failure> {
    let way = match communicator.info().multicast {
        Some(group) => format!("multicast to {group}"),
        None => "unicast".to_owned(),
    };
    arrival(&way, communicator.stats().engine.resent_by_timer).map(|detail| ((), detail))
}

/// Whether results come by themselves. A rank that does not get them asks, and gets an answer: all
/// works, slowly.
fn arrival(way: &str, asked: u64) -> Result<String, Failure> {
    if asked > ROUNDS as u64 / 2 {
        return Err(Failure::Wrong(format!(
            "results by {way} do not arrive, {asked} of {ROUNDS} had to be asked for; let them \
             through (firewall, or a switch with \
             IGMP snooping and no querier)"
        )));
    }
    Ok(format!("by {way}; {asked} of {ROUNDS} had to be asked for"))
}

fn leave(communicator: Communicator) -> Result<((), String), Failure> {
    communicator.close().map_err(Failure::Collective)?;
    Ok(((), "the way is clear".to_owned()))
}

fn of_control(error: control::Error) -> Failure {
    Failure::joining(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_must_be_asked_for_are_a_failure() {
        assert_eq!(arrival("unicast", 2).unwrap(), "by unicast; 2 of 21 had to be asked for");
        let failure = arrival("multicast to 239.255.0.0:48866", 21).unwrap_err();
        assert_eq!(failure.code(), 1);
        assert!(
            failure
                .to_string()
                .starts_with("results by multicast to 239.255.0.0:48866 do not arrive, 21 of 21")
        );
    }
}
