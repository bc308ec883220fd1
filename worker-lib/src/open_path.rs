//! Opens the data path: says [`Hello`]s over a transport.

use std::io;
use std::time::{Duration, Instant};

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::node::roce;
use switchml_protocol::wire::header::Header;
use switchml_worker_core::engine::Identity;
use switchml_worker_core::hello::{Hello, HelloStep, OpenPath, PathFailure};
use switchml_worker_core::packet::{ip_packet_len, len_of, packet_len};

use crate::error::Error;
use crate::transport::Transport;

/// Says HELLO to the aggregator with `secret`, see [`Hello`]; with `asks_group` also to the job's
/// group.
///
/// # Errors
/// [`Error::DataPathClosed`] when not even an empty HELLO comes back, [`Error::PathMtu`] when it
/// does but a HELLO of a single block does not.
pub(crate) fn open_path(
    transport: &mut dyn Transport,
    identity: &Identity,
    secret: u32,
    max_lanes: u16,
    asks_group: bool,
) -> Result<OpenPath, Error> {
    let mut hello = Hello::new(*identity, secret, transport.largest_packet(), max_lanes);
    if asks_group {
        hello = hello.ask_group();
    }
    let begin = Instant::now();
    let now = || begin.elapsed().as_nanos() as u64;
    loop {
        match hello.step(now()) {
            HelloStep::Send(header) => {
                batch(transport, &hello, &header).map_err(Error::system("cannot send packets"))?
            }
            HelloStep::Wait(until) => {
                // Packets in the batch go as one superpacket, if there are several.
                match transport.flush() {
                    Ok(()) => {}
                    Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                        hello.does_not_pass();
                        continue;
                    }
                    Err(error) => {
                        return Err(Error::system("cannot send packets")(error));
                    }
                }
                let received = transport.receive(&mut |packet, _| hello.receive(now(), packet));
                if received.map_err(Error::system("cannot receive"))? == 0 {
                    let wait = Duration::from_nanos(until.saturating_sub(now()));
                    transport.wait(Some(wait), None).map_err(Error::system("cannot receive"))?;
                }
            }
            HelloStep::Open(path) => {
                // Errors about longer HELLOs do not matter for the packets that pass.
                transport.take_too_long();
                return Ok(path);
            }
            HelloStep::Failed(failure) => {
                return Err(explain(failure, identity, transport));
            }
        }
    }
}

fn batch(transport: &mut dyn Transport, hello: &Hello, header: &Header) -> io::Result<()> {
    hello.fill(header, transport.packet(len_of(header))?);
    Ok(())
}

fn explain(failure: PathFailure, identity: &Identity, transport: &dyn Transport) -> Error {
    let aggregator = transport.aggregator();
    match failure {
        PathFailure::Closed => {
            let waited = Hello::longest_wait().as_secs_f64();
            let reason = format!("no HELLO came back within {waited:.1} s");
            let port = if transport.device().is_some() { roce::PORT } else { aggregator.port() };
            Error::DataPathClosed { aggregator: aggregator.into(), port, reason }
        }
        PathFailure::TooSmall => {
            let [passed, needed] = [0, LANES_PER_BLOCK]
                .map(|lanes| packet_len(lanes) + identity.tag_len())
                .map(|len| ip_packet_len(len, aggregator.is_ipv6()));
            Error::PathMtu { aggregator: aggregator.into(), passed, needed }
        }
    }
}

#[cfg(test)]
mod tests;
