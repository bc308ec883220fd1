//! An aggregator inside another process: the control plane and the software data plane, on ports
//! that are free. Ranks without an aggregator bring their own (section 36 of `docs/protocol.md`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use switchml_protocol::maps::{MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_userspace_core::data_plane::DataPlane;
use switchml_userspace_core::jobs::JobTable;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::data_plane::software::Software;
use crate::data_plane::software::in_process::InProcessRank;
use crate::exposure::{self, Exposure};
use crate::guard::Guard;
use crate::segments;
use crate::service::Service;

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
    /// Anybody on the Internet could join.
    #[error(
        "this host's address {0} is public, where anybody could join the job; give an aggregator \
         that asks for tokens, or an address of a private network"
    )]
    Public(IpAddr),
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
    data_plane: Arc<Software>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts an aggregator at this address of the host.
    ///
    /// # Errors
    ///
    /// [`EmbedError`].
    pub fn start(address: IpAddr) -> Result<Self, EmbedError> {
        let failed = |why| EmbedError::System { address, why };
        if let Ok(Exposure::Public(address)) = exposure::of(SocketAddr::new(address, 0)) {
            return Err(EmbedError::Public(address));
        }
        let listener = segments::listen((address, 0).into()).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let control = listener.local_addr().map_err(failed)?;
        // Nobody reads a log of notable packets.
        let data_plane =
            Arc::new(Software::start(Some(address), 0, SLOTS, Box::new(drop)).map_err(failed)?);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&data_plane);
        let serve = move || runtime.block_on(serve(listener, served, stopped));
        let thread = std::thread::Builder::new().name("switchml-aggr".to_owned()).spawn(serve);
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { control, data_plane, stop: Some(stop), thread })
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
async fn serve(
    listener: std::net::TcpListener,
    data_plane: Arc<Software>,
    stopped: oneshot::Receiver<()>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let table = JobTable::new(data_plane.limits(), None, rand::make_rng());
    let service = Service::new(table, data_plane, Guard::default());
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
