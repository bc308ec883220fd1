//! The daemon over BFRT, against a server that keeps tables and refuses requests as a Tofino switch
//! does.

mod below;
mod choice;
mod command;
mod failures;
mod jobs;
mod schema;
mod vectors;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use switchml_bfrt_switch::Switch;
use switchml_p4::data_plane::P4DataPlane;
use switchml_p4::tofino::{self, COMBINER, PROGRAM, StartError, Uplink};
use switchml_userspace_core::data_plane::DataPlane;
use tempfile::TempDir;

use crate::common::{Daemon, join_request};

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
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        Self::with(&schema::of_program(), PORTS)
    }

    fn with(schema: &Value, ports: &str) -> Self {
        let site = Self { folder: tempfile::tempdir().expect("a folder") };
        std::fs::create_dir(site.path().join("pipe")).expect("a folder");
        std::fs::write(site.path().join("bf-rt.json"), schema.to_string()).expect("written");
        std::fs::write(site.path().join("ports.toml"), ports).expect("written");
        site
    }

    fn config(&self, server: SocketAddr) -> tofino::Config {
        let program = self.path().to_owned();
        tofino::Config { server, ports: program.join("ports.toml"), program, uplink: None }
    }

    /// Starts the data plane where it may take its time.
    async fn start(&self, server: SocketAddr) -> Result<P4DataPlane, StartError> {
        Self::start_as(self.config(server)).await
    }

    /// Starts a combiner's data plane, with this port towards the parent.
    async fn start_below(&self, server: SocketAddr, port: &str) -> Result<P4DataPlane, StartError> {
        let uplink = Some(Uplink { port: port.to_owned(), mac: [2; 6] });
        Self::start_as(tofino::Config { uplink, ..self.config(server) }).await
    }

    async fn start_as(config: tofino::Config) -> Result<P4DataPlane, StartError> {
        tokio::task::spawn_blocking(move || tofino::start(&config, Box::new(drop)))
            .await
            .expect("no panic")
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A switch that runs the program.
fn switch() -> Switch {
    switch_with(&schema::of_program())
}

/// A switch that runs a combiner's program.
fn combiner() -> Switch {
    Switch::start(Some((COMBINER, &schema::of_combiner().to_string())))
}

fn switch_with(schema: &Value) -> Switch {
    Switch::start(Some((PROGRAM, &schema.to_string())))
}

/// A control plane over the switch.
async fn daemon(site: &Site, switch: &Switch) -> Daemon {
    let data_plane = Arc::new(site.start(switch.address).await.expect("a data plane"));
    let limits = data_plane.limits();
    Daemon::serve(data_plane, limits, Some(AGGREGATOR.into())).await
}
