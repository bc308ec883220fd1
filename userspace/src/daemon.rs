//! The daemon from start to stop.

#[cfg(feature = "p4")]
pub mod p4;

pub mod check;
mod notify;
mod reload;
mod start;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::ArgMatches;
use rand::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::Type;
use switchml_cli::say;
use switchml_control::tls::{ClientTls, WrongSetting};
use switchml_data_plane::xdp::{self, PinError};
use switchml_host::dual;
use switchml_protocol::bpf_types::maps::MAX_JOBS;
use switchml_protocol::{CONTROL_PORT, MAX_RANKS};
use switchml_userspace::combiner::CombinerService;
use switchml_userspace::combiner::parent::Parent;
use switchml_userspace::exposure::{self, Exposure};
use switchml_userspace::guard::Guard;
use switchml_userspace::service::{Service, host_name};
use switchml_userspace::tls::{Clients, ServerTls, Source};
use switchml_userspace::tokens::{KeyError, TokenKey, TokenKeys};
use switchml_userspace::{events, segments};
use switchml_userspace_core::drop_rate::DropRate;
use switchml_userspace_core::jobs::JobTable;
use switchml_userspace_core::proxy::Proxy;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use crate::cli::{Options, SecurityOptions};
use reload::Reloads;

/// Serves until SIGINT or SIGTERM. The options were given as `matches` has them.
pub async fn run(options: Options, matches: ArgMatches, hangups: Signal) -> anyhow::Result<()> {
    // Before anything is attached: from here on, a signal stops the daemon cleanly.
    let mut stop = pin!(stop_signal()?);
    raise_file_limit();
    let options = Arc::new(options);
    if let Some(file) = &options.config {
        info!("options from {file:?}");
    }
    let control = Control::open(&options)?;
    // A switch may be on this host's own way to the parent, so it is to forward first.
    let is_way = options.data_plane.is_switch();
    let mut parent = None;
    if !is_way {
        let found = unless(&mut stop, find_parent(&options, control.address)).await?;
        let Some(found) = found else { return Ok(()) };
        parent = found;
    }
    let (event_sink, event_receiver) = events::channel();
    let started = start::start_unless(&mut stop, Arc::clone(&options), event_sink).await?;
    let Some(data_plane) = started else { return Ok(()) };
    if is_way {
        let found = unless(&mut stop, find_parent(&options, control.address)).await;
        if !matches!(found, Ok(Some(_))) {
            data_plane.stop();
        }
        let Some(found) = found? else { return Ok(()) };
        parent = found;
    }
    let room = match &parent {
        Some(_) => format!("{} cells", data_plane.cells()),
        None => format!("{} slots", data_plane.limits().slots()),
    };
    info!("{}: {}; {room}", data_plane.name(), data_plane.attachment());
    if let Some(rate) = options.drop_rate.filter(|rate| *rate != DropRate::default()) {
        warn!("--drop-rate: this aggregator {rate}, for tests: every job is slow");
    }
    tokio::spawn(events::log(event_receiver));
    let reloads = Reloads { matches, data_plane: Arc::clone(&data_plane), hangups, service: None };
    let served = match parent {
        Some(parent) => combine(&options, control, parent, reloads, stop).await?,
        None => serve_jobs(&options, control, reloads, stop).await?,
    };
    data_plane.stop();
    served.context("the control plane failed")
}

/// How serving the control plane ended.
type Served = Result<(), tonic::transport::Error>;

/// Serves as a combiner below `parent`.
async fn combine(
    options: &Options,
    control: Control,
    parent: Parent,
    reloads: Reloads,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Served> {
    let data_plane = Arc::clone(&reloads.data_plane);
    let (limits, attachment) = (data_plane.limits(), data_plane.attachment());
    let (id, above) = (rand::rng().next_u64(), parent.to_string());
    let proxy = Proxy::new(limits, options.data_address, id, host_name(), above);
    // This clears the jobs that an earlier daemon left; their ranks open them again.
    data_plane.saved()?;
    info!("{}, parent {parent}", control.ready(limits.port));
    let service = CombinerService::new(proxy, data_plane, parent, control.guard);
    let alive = service.clone();
    notify::ready(&attachment);
    Ok(tokio::select! {
        served = service.serve(control.listener, stop) => served,
        never = reloads.follow() => match never {},
        never = notify::watchdog(async || alive.check().await) => match never {},
    })
}

/// Serves jobs.
async fn serve_jobs(
    options: &Options,
    control: Control,
    reloads: Reloads,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Served> {
    let data_plane = Arc::clone(&reloads.data_plane);
    let (limits, attachment) = (data_plane.limits(), data_plane.attachment());
    let mut table = JobTable::new(limits, options.data_address, rand::make_rng())
        .with_quotas(options.security.quotas());
    if options.security.packet_tags {
        table = table.with_tags();
    }
    let ready = control.ready(limits.port);
    let service = Service::new(table, data_plane, control.guard);
    service.restore()?;
    info!("{ready}");
    notify::ready(&attachment);
    let reloads = Reloads { service: Some(service.clone()), ..reloads };
    Ok(tokio::select! {
        served = service.clone().serve(control.listener, stop) => served,
        never = reloads.follow() => match never {},
        never = notify::watchdog(async || service.check().await) => match never {},
    })
}

/// The control plane's listener, and its rules for clients.
struct Control {
    listener: TcpListener,
    address: SocketAddr,
    guard: Guard,
}

impl Control {
    /// Listens. Prints the fingerprint of a certificate that signs itself.
    fn open(options: &Options) -> anyhow::Result<Self> {
        let listener = listen(options.control).map_err(|error| {
            let why = unavailable(&error, "--control");
            anyhow!("cannot serve the control plane at TCP {}: {why}", options.control)
        })?;
        let address =
            listener.local_addr().context("cannot find out the control plane's address")?;
        let guard = guard(&options.security)?;
        if let Some(tls) = &guard.tls {
            match options.security.tls_self_signed {
                true => say!("{}", tls.fingerprint()),
                false => info!("TLS: the certificate is {}", tls.fingerprint()),
            }
        }
        check_exposure(&guard, address)?;
        Ok(Self { listener, address, guard })
    }

    fn ready(&self, data_port: u16) -> String {
        format!("ready: control {}, data port {data_port}", self.address)
    }
}

/// Ready when SIGINT or SIGTERM comes.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        info!("stopping");
        notify::stopping();
    })
}

/// The result of this work; `None` if `stop` was ready first.
async fn unless<T>(
    stop: impl Future<Output = ()>,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    tokio::select! {
        done = work => done.map(Some),
        () = stop => Ok(None),
    }
}

/// The given parent, if it can be the parent of this daemon, which listens at `here`; `None` if
/// none was given.
async fn find_parent(options: &Options, here: SocketAddr) -> anyhow::Result<Option<Parent>> {
    let Some(given) = &options.parent else { return Ok(None) };
    let tls = parent_tls(&options.security)?;
    let addresses = switchml_control::resolve(given, CONTROL_PORT).context("--parent")?;
    let parent = Parent::new(addresses).by_tls(switchml_control::host(given), tls);
    Ok(Some(parent.check(here).await?))
}

/// The TLS settings for connections to the parent.
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

/// The rules for clients, from the options.
fn guard(options: &SecurityOptions) -> anyhow::Result<Guard> {
    let SecurityOptions { tls_cert, tls_key, tls_self_signed, .. } = options;
    let tokens = read_token_keys(options)?;
    let open = Guard { commit: switchml_cli::commit!(), tokens, ..Guard::default() };
    let source = match (tls_cert.clone().zip(tls_key.clone()), tls_self_signed) {
        (None, false) => return Ok(open),
        (Some((cert, key)), false) => Source::Files { cert, key },
        (Some((cert, key)), true) => Source::self_signed_in(cert, key)?,
        (None, true) => Source::self_signed().context("cannot make a certificate")?,
    };
    let crl = options.tls_client_crl.clone();
    let clients = options.tls_client_ca.clone().map(|ca| Clients { ca, crl });
    let tls = ServerTls::new(source, clients)?;
    Ok(Guard { tls: Some(tls), ..open })
}

/// The keys of job tokens, which it names in the log.
fn read_token_keys(options: &SecurityOptions) -> Result<Option<TokenKeys>, KeyError> {
    let keys = TokenKeys::read(&options.token_keys)?;
    if let Some(keys) = &keys {
        info!("job tokens signed with {} are accepted", keys.ids().join(", "));
    }
    Ok(keys)
}

/// A control plane that trusts everybody is at a public address.
#[derive(Debug, thiserror::Error)]
#[error(
    "the control plane at {control} can be reached at the public address {public}, and would trust \
     everybody; give --tls-cert and --tls-key (or --tls-self-signed), or --token-key, or a private \
     address with --control"
)]
pub struct Exposed {
    control: SocketAddr,
    public: IpAddr,
}

/// Makes sure that a control plane that trusts everybody is not at a public address; warns if
/// others than this host reach it.
fn check_exposure(guard: &Guard, control: SocketAddr) -> anyhow::Result<()> {
    if guard.tls.is_some() {
        return Ok(());
    }
    match exposure::of(control)? {
        Exposure::Host => {}
        _ if !guard.is_open() => warn!(
            "job tokens travel in the clear to {control}, and anyone who reads one can use it; for \
             TLS give --tls-cert and --tls-key, or --tls-self-signed"
        ),
        // Hosts often have one, of IPv6 above all; no connection to it is let in.
        Exposure::Public(public) if control.ip().is_unspecified() => warn!(
            "the control plane trusts everybody who reaches {control} at a private address, and \
             refuses everybody at a public one, such as {public}; for TLS give --tls-cert and \
             --tls-key, or --tls-self-signed"
        ),
        Exposure::Public(public) => return Err(Exposed { control, public }.into()),
        Exposure::Private => warn!(
            "the control plane trusts everybody who reaches {control}; for TLS give --tls-cert and \
             --tls-key, or --tls-self-signed"
        ),
    }
    Ok(())
}

/// Listens at a TCP address; the unspecified IPv6 address includes IPv4.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let (socket, address) = dual::socket(address, Type::STREAM)?;
    socket.set_reuse_address(true)?;
    segments::bound(&socket)?;
    dual::bind(&socket, address)?;
    socket.listen(segments::BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// Why a socket cannot be opened, and what to do; `port` is the option for another port.
fn unavailable(error: &io::Error, port: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("it is in use; stop the other aggregator, or give another port with {port}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("not allowed; run as root, or give a port above 1023 with {port}")
        }
        _ => error.to_string(),
    }
}

/// Raises the limit of open files, as far as allowed, to one for each rank of the most jobs, and
/// some for the daemon itself.
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

/// Removes the data plane of an aggregator that was killed.
pub fn detach(folder: &Path) -> anyhow::Result<()> {
    match xdp::detach(folder) {
        Ok(true) => say!("removed {}", folder.display()),
        Ok(false) => say!("nothing to detach: there is no {}", folder.display()),
        Err(PinError::InUse(folder)) => {
            bail!("an aggregator runs with {folder:?}; stop it, which also removes its programs")
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
