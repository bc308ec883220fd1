//! An aggregator inside another process: the control plane and the software data plane, on ports
//! that are free. Ranks without an aggregator bring their own (section 36 of `docs/spec`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use switchml_protocol::bpf_types::maps::{MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_userspace_core::data_plane::DataPlane;
use switchml_userspace_core::jobs::JobTable;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::exposure::{self, Exposure};
use crate::guard::Guard;
use crate::secret::Secret;
use crate::segments;
use crate::service::Service;
use switchml_data_plane::software::Software;
use switchml_data_plane::software::in_process::InProcessRank;

/// Slots, for as many jobs as a table has room for. They take memory once a job has them.
const SLOTS: u32 = (MAX_SHARDS * SLOTS_PER_SHARD) as u32;
/// How long jobs may go on after this process's ranks have left: others may still lack results,
/// which they ask for again within milliseconds.
const LINGER: Duration = Duration::from_secs(2);
/// How often to look whether the jobs are over.
const LOOK: Duration = Duration::from_millis(2);

/// Why there is no aggregator in this process.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The system refuses a socket or a thread.
    #[error("cannot serve at {address}: {why}")]
    System {
        /// The address that was tried.
        address: IpAddr,
        /// The system's error.
        why: io::Error,
    },
}

/// An aggregator that runs in this process. When it is dropped, it waits for ranks that need its
/// last results, two seconds at most, and ends.
#[derive(Debug)]
pub struct Embedded {
    control: SocketAddr,
    secret: Secret,
    has_tags: bool,
    data_plane: Arc<Software>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts an aggregator at this address of the host. Where packets could come from the
    /// Internet, they have tags.
    ///
    /// # Errors
    ///
    /// [`EmbedError`].
    pub fn start(address: IpAddr) -> Result<Self, EmbedError> {
        let failed = |why| EmbedError::System { address, why };
        let exposed = exposure::of(SocketAddr::new(address, 0));
        let has_tags = exposed.is_ok_and(|exposed| matches!(exposed, Exposure::Public(_)));
        let secret = Secret::draw();
        let listener = segments::listen((address, 0).into()).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let control = listener.local_addr().map_err(failed)?;
        // Nobody reads a log of notable packets.
        let data_plane =
            Arc::new(Software::start(Some(address), 0, SLOTS, Box::new(drop)).map_err(failed)?);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let table = JobTable::new(data_plane.limits(), None, rand::make_rng());
        let table = if has_tags { table.with_tags() } else { table };
        let guard = Guard { secret: Some(secret), ..Guard::default() };
        let service = Service::new(table, Arc::clone(&data_plane) as _, guard);
        let serve = move || runtime.block_on(serve(listener, service, stopped));
        let thread = switchml_control::thread::spawn("switchml-aggr", serve).map_err(failed)?;
        let thread = Some(thread);
        Ok(Self { control, secret, has_tags, data_plane, stop: Some(stop), thread })
    }

    /// A rank in this process: see [`Software::rank_in_process`].
    pub fn rank_in_process(
        &self,
        address: SocketAddr,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> InProcessRank {
        self.data_plane.rank_in_process(address, wake)
    }

    /// Where ranks join.
    pub fn control(&self) -> SocketAddr {
        self.control
    }

    /// Whether packets have tags.
    pub fn has_tags(&self) -> bool {
        self.has_tags
    }

    /// What they join with.
    pub fn secret(&self) -> Secret {
        self.secret
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves until `stopped` and its jobs are over.
async fn serve(listener: std::net::TcpListener, service: Service, stopped: oneshot::Receiver<()>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let idle = service.clone();
    let stop = async move {
        // The sender is dropped.
        let _ = stopped.await;
        let begin = Instant::now();
        while idle.has_running_jobs() && begin.elapsed() < LINGER {
            tokio::time::sleep(LOOK).await;
        }
    };
    // If the listener fails, ranks notice that nobody answers.
    let _ = service.serve(listener, stop).await;
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn it_serves_until_it_is_dropped() {
        let embedded = Embedded::start(Ipv4Addr::LOCALHOST.into()).unwrap();
        let address = embedded.control();
        assert!(TcpStream::connect(address).is_ok());
        let begin = Instant::now();
        drop(embedded);
        assert!(begin.elapsed() < LINGER, "nobody has joined");
        assert!(TcpStream::connect(address).is_err());
    }
}
