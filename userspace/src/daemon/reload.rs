//! SIGHUP: reads the options again, and applies those that can change while the daemon runs.

use std::convert::Infallible;
use std::sync::Arc;

use clap::ArgMatches;
use switchml_userspace::service::Service;
use switchml_userspace_core::data_plane::DataPlane;
use tokio::signal::unix::Signal;
use tracing::{info, warn};

use super::{notify, read_token_keys};
use crate::cli::{self, Options};

/// The options whose changes take effect. TLS options name files, which are read for each
/// connection in any case.
const RELOADED: [&str; 3] = ["iface", "tenant-quota", "token-key"];

/// The running parts of the daemon that options can change.
pub struct Reloads {
    /// clap's matches for the options at the start.
    pub matches: ArgMatches,
    /// The data plane.
    pub data_plane: Arc<dyn DataPlane>,
    /// SIGHUP.
    pub hangups: Signal,
    /// The service; `None` at a combiner, whose service has nothing to change.
    pub service: Option<Service>,
}

impl Reloads {
    /// Goes over to the options as they are at each signal.
    pub async fn follow(mut self) -> Infallible {
        loop {
            self.hangups.recv().await;
            notify::reloading();
            match self.reload().await {
                Ok(()) => info!("reloaded"),
                Err(why) => warn!("not reloaded, all options stay as they were: {why}"),
            }
            notify::ready(&self.data_plane.attachment());
        }
    }

    /// Applies all changes, or returns why nothing has changed.
    async fn reload(&self) -> Result<(), String> {
        let (cli, matches) = cli::parse_again()?;
        let Options { interfaces, security, .. } = &cli.options;
        let keys = read_token_keys(security).map_err(|error| error.to_string())?;
        self.data_plane.serve_interfaces(interfaces).map_err(|error| error.to_string())?;
        if let Some(service) = &self.service {
            service.reload(security.quotas(), keys).await;
        }
        let stay = self.unchanged(&matches);
        if !stay.is_empty() {
            warn!("these options only change with a restart: {}", stay.join(", "));
        }
        Ok(())
    }

    /// Options that have changed without effect.
    fn unchanged(&self, matches: &ArgMatches) -> Vec<String> {
        let has_key = |matches: &ArgMatches| matches.contains_id("token_keys");
        let is_switched = has_key(matches) != has_key(&self.matches);
        let takes_effect = |option: &str| match option {
            // Whether ranks need tokens at all cannot change while the daemon runs.
            "token-key" => !is_switched,
            option => RELOADED.contains(&option),
        };
        let changed = cli::changed(&self.matches, matches).into_iter();
        changed.filter(|option| !takes_effect(option)).map(|name| format!("--{name}")).collect()
    }
}
