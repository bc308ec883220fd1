//! The daemon from start to stop.

#[cfg(feature = "p4")]
pub mod p4;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rand::Rng;
use rand::rngs::StdRng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::Type;
use switchml_cli::say;
use switchml_control::tls::{ClientTls, WrongSetting};
use switchml_protocol::maps::MAX_JOBS;
use switchml_protocol::{CONTROL_PORT, MAX_RANKS};
use switchml_userspace::combiner::CombinerService;
use switchml_userspace::combiner::parent::Parent;
use switchml_userspace::data_plane::software::Software;
use switchml_userspace::data_plane::software::combiner::SoftwareCombiner;
use switchml_userspace::data_plane::xdp::{self, PinError, XdpDataPlane};
use switchml_userspace::exposure::{self, Exposure};
use switchml_userspace::guard::Guard;
use switchml_userspace::service::{Service, host_name};
use switchml_userspace::tls::{ServerTls, Source};
use switchml_userspace::tokens::TokenKey;
use switchml_userspace::{dual, events};
use switchml_userspace_core::data_plane::{DataPlane, EventSink, Fanout};
use switchml_userspace_core::jobs::JobTable;
use switchml_userspace_core::memory_cells::default_cells;
use switchml_userspace_core::proxy::Proxy;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::cli::{self, DataPlaneKind, Options, SecurityOptions};

/// Bytes of a TCP segment that pass wherever IPv6 does: its least MTU of 1280 less the headers.
const SAFE_SEGMENT: u32 = 1220;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Serves until SIGINT or SIGTERM.
pub async fn run(options: Options) -> anyhow::Result<()> {
    // Before anything is attached: a signal from here on stops the daemon in good order.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    raise_file_limit();
    if let Some(file) = &options.config {
        info!("options from {file:?}");
    }
    let listener = listen(options.control).map_err(|error| {
        let why = unavailable(&error, "--control", "--control");
        anyhow!("cannot serve the control plane at TCP {}: {why}", options.control)
    })?;
    let control_address =
        listener.local_addr().context("cannot tell the control plane's address")?;
    let guard = guard(&options.security)?;
    check_exposure(&guard, control_address)?;
    let parent = match &options.parent {
        Some(given) => {
            let tls = parent_tls(&options.security)?;
            Some(find_parent(given, tls, control_address).await?)
        }
        None => None,
    };
    let (event_sink, event_receiver) = events::channel();
    let data_plane = start_data_plane(&options, event_sink)?;
    let limits = data_plane.limits();
    let room = match &parent {
        Some(_) => format!("{} cells", data_plane.cells()),
        None => format!("{} slots", limits.slots()),
    };
    info!("{}: {}; {room}", data_plane.name(), data_plane.attachment());
    tokio::spawn(events::log(event_receiver));
    let mut rng: StdRng = rand::make_rng();
    let stop = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        info!("stopping");
    };
    let ready = format!("ready: control {control_address}, data port {}", limits.port);
    let served = match parent {
        Some(parent) => {
            let (id, above) = (rng.next_u64(), parent.to_string());
            let proxy = Proxy::new(limits, options.data_address, id, host_name(), above);
            // Its ranks bring back what an earlier daemon left.
            data_plane.saved()?;
            info!("{ready}, parent {parent}");
            let service = CombinerService::new(proxy, Arc::clone(&data_plane), parent, guard);
            service.serve(listener, stop).await
        }
        None => {
            let mut table = JobTable::new(limits, options.data_address, rng)
                .with_quotas(options.security.quotas());
            if options.security.packet_tags {
                table = table.with_tags();
            }
            let service = Service::new(table, Arc::clone(&data_plane), guard);
            service.restore()?;
            info!("{ready}");
            service.serve(listener, stop).await
        }
    };
    data_plane.stop();
    served.context("the control plane failed")
}

/// The parent that was given, if it can be that of this daemon, which listens at `here`.
async fn find_parent(given: &str, tls: ClientTls, here: SocketAddr) -> anyhow::Result<Parent> {
    let addresses = switchml_control::resolve(given, CONTROL_PORT).context("--parent")?;
    let parent = Parent::new(addresses).by_tls(switchml_control::host(given), tls);
    Ok(parent.check(here).await?)
}

/// What the parent is known by, and what it is shown.
fn parent_tls(options: &SecurityOptions) -> Result<ClientTls, WrongSetting> {
    let trust = ClientTls {
        fingerprint: options.parent_tls_fingerprint.clone(),
        ca: options.parent_tls_ca.clone(),
        ..ClientTls::default()
    };
    trust.check()?;
    let is_used = trust.is_used();
    let file = |file: &Option<PathBuf>| file.clone().filter(|_| is_used);
    Ok(ClientTls { cert: file(&options.tls_cert), key: file(&options.tls_key), ..trust })
}

/// What the options ask of those who connect. Prints the fingerprint of a certificate that signs
/// itself.
fn guard(options: &SecurityOptions) -> anyhow::Result<Guard> {
    let SecurityOptions { tls_cert, tls_key, tls_self_signed, tls_client_ca, .. } = options;
    let tokens = options.token_key.as_deref().map(TokenKey::read).transpose()?;
    let source = match (tls_cert.clone().zip(tls_key.clone()), tls_self_signed) {
        (None, false) => return Ok(Guard { tokens, ..Guard::default() }),
        (Some((cert, key)), false) => Source::Files { cert, key },
        (Some((cert, key)), true) => Source::self_signed_in(cert, key)?,
        (None, true) => Source::self_signed().context("cannot make a certificate")?,
    };
    let tls = ServerTls::new(source, tls_client_ca.clone())?;
    if *tls_self_signed {
        say!("{}", tls.fingerprint());
    } else {
        info!("TLS: the certificate is {}", tls.fingerprint());
    }
    Ok(Guard { tls: Some(tls), tokens, ..Guard::default() })
}

/// A control plane that trusts everybody is at a public address.
#[derive(Debug, thiserror::Error)]
#[error(
    "the control plane at {control} can be reached by the public address {public}, and would \
     believe everybody; give --tls-cert and --tls-key (or --tls-self-signed), or --token-key, or a \
     private address with --control"
)]
pub struct Exposed {
    control: SocketAddr,
    public: IpAddr,
}

/// Makes sure that a control plane that believes everybody is not at a public address; warns if
/// others than this host reach it.
fn check_exposure(guard: &Guard, control: SocketAddr) -> anyhow::Result<()> {
    if guard.tls.is_some() {
        return Ok(());
    }
    match exposure::of(control)? {
        Exposure::Host => {}
        _ if !guard.is_open() => warn!(
            "job tokens travel in the clear to {control}, and whoever reads one can use it; for \
             TLS give --tls-cert and --tls-key, or --tls-self-signed"
        ),
        // Hosts often have one, of IPv6 above all; no connection to it is let in.
        Exposure::Public(public) if control.ip().is_unspecified() => warn!(
            "the control plane believes everybody who reaches {control} by a private address, and \
             lets nobody in by a public one, such as {public}; for TLS give --tls-cert and \
             --tls-key, or --tls-self-signed"
        ),
        Exposure::Public(public) => return Err(Exposed { control, public }.into()),
        Exposure::Private => warn!(
            "the control plane believes everybody who reaches {control}; for TLS give --tls-cert \
             and --tls-key, or --tls-self-signed"
        ),
    }
    Ok(())
}

/// Listens at a TCP address: by that of all of IPv6, over IPv4, too.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let (socket, address) = dual::socket(address, Type::STREAM)?;
    socket.set_reuse_address(true)?;
    // Where a switch on the way takes less than the hosts, larger segments would vanish. Messages
    // are few and short.
    socket.set_tcp_mss(SAFE_SEGMENT)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// Why a socket cannot be had, and what to do; by which options to give another port, and another
/// address.
fn unavailable(error: &io::Error, port: &str, address: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("it is in use; stop the other aggregator, or give another port with {port}")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("this host has no such address; give one of its own with {address}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("not allowed; run as root, or give a port above 1023 with {port}")
        }
        _ => error.to_string(),
    }
}

/// Has the kernel let this process open a file for each rank of as many jobs as there may be, and
/// some for itself, as far as it may.
fn raise_file_limit() {
    let wanted = (MAX_JOBS * MAX_RANKS + 1024) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = wanted.min(maximum.unwrap_or(wanted));
    if current.is_some_and(|current| current < raised)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum })
    {
        warn!("cannot raise the limit of open files to {raised}: {error}");
    }
}

/// Prints a job token.
pub fn token(key: &Path, tenant: &str, jobs: &str, time: Duration) -> anyhow::Result<()> {
    say!("{}", TokenKey::read(key)?.sign(tenant, jobs, time)?);
    Ok(())
}

/// Removes what an aggregator has left that was killed.
pub fn detach(folder: &Path) -> anyhow::Result<()> {
    match xdp::detach(folder) {
        Ok(true) => say!("removed {}", folder.display()),
        Ok(false) => say!("nothing to detach: there is no {}", folder.display()),
        Err(PinError::InUse(folder)) => {
            bail!("an aggregator runs with {folder:?}; stop it, and it detaches")
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn start_software(options: &Options, events: EventSink) -> io::Result<Arc<dyn DataPlane>> {
    let &Options { data_address, data_port, slots, .. } = options;
    Ok(match options.parent {
        None => Arc::new(Software::start(data_address, data_port, slots, events)?),
        Some(_) => {
            let cells = cells(options);
            Arc::new(SoftwareCombiner::start(data_address, data_port, cells, events)?)
        }
    })
}

/// How many cells a combiner has: as many as it is told, or by this host's memory.
fn cells(options: &Options) -> u32 {
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(info.mem_unit.into());
    // The kernel takes a map's memory at once.
    let part = if options.data_plane == DataPlaneKind::Xdp { memory / 8 } else { memory };
    options.cells.unwrap_or_else(|| default_cells(part))
}

fn start_data_plane(options: &Options, events: EventSink) -> anyhow::Result<Arc<dyn DataPlane>> {
    match options.data_plane {
        DataPlaneKind::Xdp => {
            let mode = match options.mode {
                cli::Mode::Auto => xdp::Mode::Auto,
                cli::Mode::Native => xdp::Mode::Native,
                cli::Mode::Bundle => xdp::Mode::Bundle,
            };
            let fanout = match options.fanout {
                cli::Fanout::Auto => Fanout::Auto,
                cli::Fanout::Multicast => Fanout::Multicast,
                cli::Fanout::Unicast => Fanout::Unicast,
            };
            let config = xdp::Config {
                interfaces: options.interfaces.clone(),
                mode,
                address: options.data_address,
                port: options.data_port,
                slots: options.slots,
                fanout,
                cells: options.parent.as_ref().map(|_| cells(options)),
                trace: options.trace,
                pin_dir: options.pin_dir.clone(),
            };
            Ok(Arc::new(XdpDataPlane::start(config, events)?))
        }
        DataPlaneKind::Software => start_software(options, events).map_err(|error| {
            let why = unavailable(&error, "--data-port", "--data-address");
            anyhow!("cannot serve the data plane at UDP port {}: {why}", options.data_port)
        }),
        #[cfg(feature = "p4")]
        DataPlaneKind::Tofino => p4::start_tofino(&options.p4, events),
        #[cfg(feature = "p4")]
        DataPlaneKind::Bmv2 => p4::start_bmv2(&options.p4, events),
    }
}
