//! The daemon as a process, up and serving.

use crate::rack::SWITCHED_ADDRESS;
use crate::{Binaries, Error, Mode, Namespace, Process, Rack, SimpleSwitch};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

/// The output of the daemon before the address of its control plane, once it serves.
const READY: &str = "ready: control ";

/// The beginning of the line that names the certificate of the daemon's control plane.
const FINGERPRINT: &str = "sha256:";

/// Loading the BPF program takes the verifier a second or two, many times that on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Time that the daemon may take to detach.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The data plane on the hosts of racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Programs at the hosts' ports, attached in the racks' mode.
    Programs,
    /// A process that uses UDP sockets.
    Software,
}

/// A `switchml-aggregator` that serves, and ends when this is dropped.
pub struct Aggregator {
    process: Process,
    control: String,
    fingerprint: String,
    /// The `simple_switch` that the daemon controls, if it does; dropped after the daemon.
    _switch: Option<SimpleSwitch>,
}

impl Aggregator {
    /// Starts the daemon in the rack's switch, on all ports, in the rack's mode; in [`Mode::Bmv2`]
    /// together with `simple_switch`.
    pub fn in_rack(binaries: &Binaries, rack: &Rack) -> Result<Self, Error> {
        Self::in_rack_with(binaries, rack, &[])
    }

    /// Starts the daemon like [`Self::in_rack`], with further options.
    pub fn in_rack_with(binaries: &Binaries, rack: &Rack, options: &[&str]) -> Result<Self, Error> {
        Self::serve_rack(binaries, rack, &any_port(rack), options)
    }

    /// Starts the daemon like [`Self::in_rack`], with the control plane at this address and port
    /// (that of an earlier daemon, for example), and with further options.
    pub fn in_rack_at(
        binaries: &Binaries,
        rack: &Rack,
        control: &str,
        options: &[&str],
    ) -> Result<Self, Error> {
        Self::serve_rack(binaries, rack, control, options)
    }

    /// Starts the daemon in the rack's switch with these options, which name its ports.
    pub fn with_options(binaries: &Binaries, rack: &Rack, options: &[&str]) -> Result<Self, Error> {
        let mut command = Command::new(&binaries.aggregator);
        command.args(["--control", &any_port(rack)]).args(options);
        Self::start(rack.switch(), command)
    }

    /// Starts the daemon on a host with these options, which say where its control plane is.
    pub fn on_host(binaries: &Binaries, host: &Namespace, options: &[&str]) -> Result<Self, Error> {
        let mut command = Command::new(&binaries.aggregator);
        command.args(options);
        Self::start(host, command)
    }

    /// Starts the daemon in a host of [`Racks`](crate::Racks), at this address and on these ports.
    pub(crate) fn in_host(
        binaries: &Binaries,
        host: &Namespace,
        (plane, mode): (Plane, Mode),
        address: IpAddr,
        ports: &[String],
        options: &[&str],
    ) -> Result<Self, Error> {
        let mut command = Command::new(&binaries.aggregator);
        command.args(["--control", &SocketAddr::new(address, 0).to_string()]).args(options);
        match plane {
            Plane::Software => {
                command.args(["--data-plane", "software"]);
            }
            Plane::Programs => {
                command.args(["--mode", mode.argument()]);
                command.args(ports.iter().flat_map(|port| ["--iface", port]));
            }
        }
        Self::start(host, command)
    }

    fn serve_rack(
        binaries: &Binaries,
        rack: &Rack,
        control: &str,
        options: &[&str],
    ) -> Result<Self, Error> {
        let mut command = Command::new(&binaries.aggregator);
        command.args(["--control", control]).args(options);
        if rack.mode() == Mode::Bmv2 {
            let ports = rack.ports_of_simple_switch();
            let switch = SimpleSwitch::start(rack.switch(), &ports, "bmv2.p4", &[])?;
            command.args([
                "--data-plane",
                "bmv2",
                "--bmv2-thrift",
                &SimpleSwitch::THRIFT.to_string(),
            ]);
            command.args(["--data-address", &SWITCHED_ADDRESS.to_string()]);
            return Ok(Self { _switch: Some(switch), ..Self::start(rack.switch(), command)? });
        }
        command.args(["--mode", rack.mode().argument()]);
        for port in rack.ports() {
            command.args(["--iface", &port]);
        }
        Self::start(rack.switch(), command)
    }

    /// Starts the daemon on this host's loopback interface, with the software data plane, on free
    /// ports.
    pub fn on_loopback(binaries: &Binaries, host: &Namespace) -> Result<Self, Error> {
        Self::start(host, on_loopback(binaries))
    }

    /// Starts the daemon like [`Self::on_loopback`], with further options.
    pub fn on_loopback_with(
        binaries: &Binaries,
        host: &Namespace,
        options: &[&str],
    ) -> Result<Self, Error> {
        let mut command = on_loopback(binaries);
        command.args(options);
        Self::start(host, command)
    }

    /// Starts the daemon like [`Self::on_loopback`], reached only over IPv6.
    pub fn on_loopback_by_ipv6(binaries: &Binaries, host: &Namespace) -> Result<Self, Error> {
        let mut command = Command::new(&binaries.aggregator);
        command.args(["--data-plane", "software", "--control", "[::1]:0", "--data-port", "0"]);
        Self::start(host, command)
    }

    /// Starts the daemon like [`Self::on_loopback`], at all IPv4 and IPv6 addresses. It uses TLS,
    /// because there may be public addresses.
    pub fn on_loopback_by_both(binaries: &Binaries, host: &Namespace) -> Result<Self, Error> {
        let mut command = Command::new(&binaries.aggregator);
        command.args(["--data-plane", "software", "--control", "[::]:0", "--data-port", "0"]);
        command.arg("--tls-self-signed");
        Self::start(host, command)
    }

    /// Starts the daemon in the rack's switch with the software data plane, which attaches nothing.
    pub fn software_in_rack(binaries: &Binaries, rack: &Rack) -> Result<Self, Error> {
        let mut command = Command::new(&binaries.aggregator);
        command.args(["--data-plane", "software", "--control", &any_port(rack)]);
        Self::start(rack.switch(), command)
    }

    /// Starts the daemon on a host, with the control plane at this address and port of it (0 is
    /// any), with the software data plane.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::in_rack`].
    pub fn software_on(
        binaries: &Binaries,
        host: &Namespace,
        control: SocketAddr,
    ) -> Result<Self, Error> {
        let mut command = Command::new(&binaries.aggregator);
        command.args(["--data-plane", "software", "--data-port", "0"]);
        command.args(["--control", &control.to_string()]);
        Self::start(host, command)
    }

    fn start(namespace: &Namespace, command: Command) -> Result<Self, Error> {
        let is_self_signed = command.get_args().any(|option| option == "--tls-self-signed");
        let mut process = namespace.spawn("aggregator", command)?;
        let line = process.wait_for_line(READY, START_TIMEOUT)?;
        let fingerprint = match is_self_signed {
            true => process.wait_for_line(FINGERPRINT, START_TIMEOUT)?,
            false => String::new(),
        };
        let addresses = line.split_once(READY).map_or("", |(_, addresses)| addresses);
        let control = addresses.split([',', ' ']).next().unwrap_or_default().to_owned();
        Ok(Self { process, control, fingerprint, _switch: None })
    }

    /// Address and port of the daemon's control plane, as workers take them.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// The fingerprint of the daemon's certificate, with `--tls-self-signed`.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The daemon's process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Ends the daemon cleanly.
    pub fn stop(mut self) -> Result<(), Error> {
        self.process.terminate(STOP_TIMEOUT).map(drop)
    }
}

/// A free port at the aggregator's address.
fn any_port(rack: &Rack) -> String {
    SocketAddr::new(rack.aggregator_address(), 0).to_string()
}

/// The software data plane, on ports of loopback that are free.
fn on_loopback(binaries: &Binaries) -> Command {
    let mut command = Command::new(&binaries.aggregator);
    command.args(["--data-plane", "software", "--control", "127.0.0.1:0", "--data-port", "0"]);
    command
}
