//! The data planes in P4 switches, as the command line asks for them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use switchml_cli::say;
use switchml_p4::bmv2::Bmv2;
use switchml_p4::data_plane::{NextHop, P4DataPlane, Role};
use switchml_p4::program::ProgramKind;
use switchml_p4::tofino;
use switchml_userspace_core::data_plane::{DataPlane, EventSink};

use crate::cli::Options;

/// Gives a switch the program that `cargo xtask p4 build` left.
pub fn deploy(server: SocketAddr, folder: &Path) -> anyhow::Result<()> {
    tofino::deploy::deploy(server, folder)?;
    say!("the switch at {server} runs {}", folder.display());
    Ok(())
}

/// Serves by a Tofino switch.
pub fn start_tofino(given: &Options, events: EventSink) -> anyhow::Result<Arc<dyn DataPlane>> {
    let options = &given.p4;
    let needed =
        options.tofino_server.zip(options.tofino_program.clone()).zip(options.tofino_ports.clone());
    let ((server, program), ports) = needed.context(
        "--data-plane tofino needs --tofino-server, --tofino-program and --tofino-ports",
    )?;
    let way = options.uplink_port.clone().zip(options.uplink_mac);
    let uplink = way.map(|(port, mac)| tofino::Uplink { port, mac });
    let started = tofino::start(&tofino::Config { server, program, ports, uplink }, events)?;
    started.set_drop_rate(given.drop_rate.unwrap_or_default())?;
    Ok(Arc::new(started))
}

/// Serves by bmv2's `simple_switch`.
pub fn start_bmv2(given: &Options, events: EventSink) -> anyhow::Result<Arc<dyn DataPlane>> {
    let options = &given.p4;
    let way = options.uplink_port.as_deref().zip(options.uplink_mac);
    let program = if way.is_some() { ProgramKind::Combiner } else { ProgramKind::Root };
    let (switch, learned) = Bmv2::connect(options.bmv2_thrift, program)?;
    let role = match way {
        Some((port, mac)) => Role::Combiner(NextHop { port: switch.uplink(port)?, mac }),
        None if given.rocev2 => Role::Root(switch.capabilities_with_roce()?),
        None => Role::Root(switch.capabilities()),
    };
    let started = P4DataPlane::start(Box::new(switch), role, learned, events)?;
    started.set_drop_rate(given.drop_rate.unwrap_or_default())?;
    Ok(Arc::new(started))
}
