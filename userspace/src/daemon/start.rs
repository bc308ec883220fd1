//! The data plane from the command line's words to its start, which a signal may end.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use switchml_data_plane::software::Software;
use switchml_data_plane::software::combiner::SoftwareCombiner;
use switchml_data_plane::xdp::{self, Halt, XdpDataPlane};
use switchml_protocol::node::roce;
use switchml_userspace_core::data_plane::{DataPlane, EventSink};
use switchml_userspace_core::memory_cells::default_cells;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::unavailable;
use crate::cli::{DataPlaneKind, Options};

/// How often a start that should end is interrupted again.
const AGAIN: Duration = Duration::from_millis(10);
/// Longest wait for the start to end: it takes a few hundredths of a second, longer on a busy
/// machine or if a switch does not answer.
const HALT_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the data plane in a separate thread: a signal to a thread that loads a program makes the
/// verifier give up and the loader try again with a log, which takes many seconds. `None` if `stop`
/// was ready first; then nothing of the data plane is left.
pub async fn start_unless(
    stop: impl Future<Output = ()>,
    options: Arc<Options>,
    events: EventSink,
) -> anyhow::Result<Option<Arc<dyn DataPlane>>> {
    let halt = Arc::new(Halt::default());
    let (sender, mut started) = oneshot::channel();
    let start = {
        let halt = Arc::clone(&halt);
        move || drop(sender.send(start_data_plane(&options, events, halt)))
    };
    thread::Builder::new().name("start".to_owned()).spawn(start).context("cannot start threads")?;
    tokio::select! {
        started = &mut started => return started.context("the start panicked")?.map(Some),
        () = stop => {}
    }
    let end = Instant::now() + HALT_TIMEOUT;
    while Instant::now() < end {
        halt.halt();
        match timeout(AGAIN, &mut started).await {
            Err(_) => {}
            // The data plane started before it was interrupted.
            Ok(Ok(Ok(data_plane))) => {
                data_plane.stop();
                return Ok(None);
            }
            Ok(_) => return Ok(None),
        }
    }
    bail!(
        "the start of the data plane did not stop within {} s, and may have left BPF programs; \
         start the daemon again, or run `switchml-aggregator detach`, to remove them",
        HALT_TIMEOUT.as_secs()
    )
}

fn start_software(options: &Options, events: EventSink) -> anyhow::Result<Arc<dyn DataPlane>> {
    let &Options { data_address, data_port, slots, drop_rate, .. } = options;
    let drop_rate = drop_rate.unwrap_or_default();
    let failed = |error: io::Error| {
        let why = unavailable(&error, "--data-port");
        anyhow!("cannot serve the data plane at UDP port {data_port}: {why}")
    };
    if options.parent.is_some() {
        let combiner = SoftwareCombiner::start(data_address, data_port, cells(options), events);
        return Ok(Arc::new(combiner.map_err(failed)?.with_drop_rate(drop_rate)));
    }
    let software = Software::start(data_address, data_port, slots, events).map_err(failed)?;
    let software = software.with_drop_rate(drop_rate);
    if !options.rocev2 {
        return Ok(Arc::new(software));
    }
    let software = software.with_roce(data_address).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "it is in use; stop the other aggregator, or unload Soft-RoCE, which has it on all \
                 addresses (rmmod rdma_rxe), or leave out --rocev2"
                    .to_owned()
            }
            _ => error.to_string(),
        };
        anyhow!("cannot serve RoCEv2 at UDP port {}: {why}", roce::PORT)
    })?;
    Ok(Arc::new(software))
}

/// An error of native XDP that advises another mode, where RoCEv2 has no other.
fn without_bundles(error: anyhow::Error) -> anyhow::Error {
    match error.to_string() {
        text if text.contains("--mode bundle") => {
            anyhow!("{text} (without --rocev2; with it, use --data-plane software)")
        }
        _ => error,
    }
}

/// The number of cells of a combiner: the option's value, or the default for this host's memory.
fn cells(options: &Options) -> u32 {
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(info.mem_unit.into());
    // The kernel takes a map's memory at once.
    let part = if options.data_plane == DataPlaneKind::Xdp { memory / 8 } else { memory };
    options.cells.unwrap_or_else(|| default_cells(part))
}

fn start_data_plane(
    options: &Options,
    events: EventSink,
    halt: Arc<Halt>,
) -> anyhow::Result<Arc<dyn DataPlane>> {
    match options.data_plane {
        DataPlaneKind::Xdp => {
            let config = xdp::Config {
                interfaces: options.interfaces.clone(),
                mode: options.xdp_mode(),
                address: options.data_address,
                port: options.data_port,
                slots: options.slots,
                fanout: options.fanout,
                cells: options.parent.as_ref().map(|_| cells(options)),
                roce: options.rocev2,
                trace: options.trace,
                drop_rate: options.drop_rate.unwrap_or_default(),
                pin_dir: options.pin_dir.clone(),
            };
            let started = XdpDataPlane::start(config, events, halt);
            Ok(Arc::new(started.map_err(|error| match options.rocev2 {
                true => without_bundles(error.into()),
                false => error.into(),
            })?))
        }
        DataPlaneKind::Software => start_software(options, events),
        #[cfg(feature = "p4")]
        DataPlaneKind::Tofino => super::p4::start_tofino(options, events),
        #[cfg(feature = "p4")]
        DataPlaneKind::Bmv2 => super::p4::start_bmv2(options, events),
    }
}
