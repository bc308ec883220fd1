//! The daemon over BFRT, against a server that keeps tables and refuses requests as a Tofino switch
//! does.

mod command;
mod failures;
mod jobs;
mod schema;
mod vectors;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::Value;
use switchml_bfrt_switch::Switch;
use switchml_p4::data_plane::P4DataPlane;
use switchml_p4::tofino::{self, PROGRAM, StartError};
use switchml_userspace::guard::Guard;
use switchml_userspace::service::Service;
use switchml_userspace_core::data_plane::DataPlane;
use switchml_userspace_core::jobs::JobTable;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::common::{PATIENCE, Rank, join_request};

/// The data plane's address; not the control plane's, whose frames the switch would take for
/// forgeries.
const AGGREGATOR: [u8; 4] = [10, 0, 0, 254];

const PORTS: &str = "[[port]]\nname = \"1/0\"\nspeed = \"100G\"\nfec = \"reed-solomon\"\n\
                     auto_negotiation = \"off\"\n\n\
                     [[port]]\nname = \"2/1\"\nspeed = \"25G\"\n";
/// Their numbers.
const PORT_NUMBERS: [u16; 2] = [0, 5];
/// The tables that a daemon leaves as they are: links stay up.
const TABLES_OF_PORTS: [&str; 3] = ["$PORT", "$pre.prune", "pipe.Ingress.exclusions"];

/// The files of the compiler and the operator for a daemon, in a folder that is deleted when this
/// is dropped.
struct Site {
    folder: PathBuf,
}

impl Site {
    fn new(name: &str) -> Self {
        Self::with(name, &schema::of_program(), PORTS)
    }

    fn with(name: &str, schema: &Value, ports: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("switchml-tofino-{}-{name}", std::process::id()));
        std::fs::create_dir_all(folder.join("pipe")).expect("a folder");
        std::fs::write(folder.join("bf-rt.json"), schema.to_string()).expect("written");
        std::fs::write(folder.join("ports.toml"), ports).expect("written");
        Self { folder }
    }

    fn config(&self, server: SocketAddr) -> tofino::Config {
        tofino::Config {
            server,
            program: self.folder.clone(),
            ports: self.folder.join("ports.toml"),
        }
    }

    /// Starts the data plane where it may take its time.
    async fn start(&self, server: SocketAddr) -> Result<P4DataPlane, StartError> {
        let config = self.config(server);
        tokio::task::spawn_blocking(move || tofino::start(&config, Box::new(drop)))
            .await
            .expect("no panic")
    }

    fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A switch that runs the program.
fn switch() -> Switch {
    switch_with(&schema::of_program())
}

fn switch_with(schema: &Value) -> Switch {
    Switch::start(Some((PROGRAM, &schema.to_string())))
}

/// A control plane over the switch.
struct Daemon {
    control: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Daemon {
    async fn start(site: &Site, switch: &Switch) -> Self {
        let data_plane: Arc<dyn DataPlane> =
            Arc::new(site.start(switch.address).await.expect("a data plane"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let control = listener.local_addr().expect("bound");
        let table =
            JobTable::new(data_plane.limits(), Some(AGGREGATOR.into()), StdRng::seed_from_u64(7));
        let service = Service::new(table, Arc::clone(&data_plane), Guard::default());
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            service.serve(listener, async { drop(stopped.await) }).await.expect("served");
            data_plane.stop();
        });
        Self { control, stop: Some(stop), serving }
    }

    /// Stops as SIGTERM does, and waits until that is done.
    async fn stop(mut self) {
        self.stop.take().expect("not stopped yet").send(()).expect("serving");
        tokio::time::timeout(PATIENCE, self.serving)
            .await
            .expect("stops in time")
            .expect("no panic");
    }

    async fn join(&self, name: &str, rank: u32, world_size: u32) -> Rank {
        Rank::join(self.control, name, rank, world_size).await
    }
}
