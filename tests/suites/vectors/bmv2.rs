//! `p4/bmv2.p4` on `simple_switch`: frames come and go through veths.

use crate::in_kernel::PORTS;
use crate::p4::{Left, P4Switch, PATIENCE, Ports};
use std::fs;
use std::time::{Duration, Instant};
use switchml_p4::bmv2::Bmv2;
use switchml_p4::bmv2::thrift::Client;
use switchml_p4::data_plane::{NextHop, P4DataPlane, Role};
use switchml_p4::entries::MOST_PARTS;
use switchml_p4::program::ProgramKind;
use switchml_p4::switch::Switch;
use switchml_rack::raw_socket::{ALL, RawSocket};
use switchml_rack::{MAX_MTU, Mode, Namespace, Rack, RackOptions, SimpleSwitch};

/// The register with the round of each set.
const ROUNDS: &str = "FrameIngress.aggregator.slot.tag.rounds";
/// The register with the age of a combiner's cells.
const CELLS: &str = "FrameIngress.aggregator.cell.lease.begins";
/// The beginning of a broadcast of an unknown protocol. When a port sends one, and it has left all
/// other ports, all earlier frames have left, too.
const FENCE: &[u8] =
    b"\xff\xff\xff\xff\xff\xff\x02\0\0\0\xff\xff\x88\xb5 a frame to wait for, as long as it must \
      be at least.";
/// The most frames sent at once: libpcap, through which `simple_switch` receives, has room for 32
/// by default and drops the rest.
const QUEUE: usize = 16;
/// Longer than all steps take, however loaded the machine is.
const COMBINERS_PATIENCE: Duration = Duration::from_secs(3600);
/// The most passes through the pipeline that a frame takes, and one of several parts: one to take
/// each part off, three to read a repeated RESULT's last part, and two for each other one. After
/// each, the frame is queued behind those that came in meanwhile.
const PASSES: usize = 3;
const PASSES_OF_PARTS: usize = MOST_PARTS as usize - 1 + PASSES + 2 * (MOST_PARTS as usize - 1);

/// `simple_switch` in the hands of a data plane.
pub type Bmv2Switch = P4Switch<Veths>;

/// `simple_switch`, and who is at its ports.
pub struct Veths {
    /// Thrift client for what the data plane does not do.
    client: Client,
    /// Parts that a packet may have, and from one to the next the distance of their sets.
    parts: (u32, u32),
    /// The register of a combiner's cells.
    cells: Option<&'static str>,
    /// The socket at port n + 1 has index n.
    ports: Vec<RawSocket>,
    /// The socket at the port after those.
    fence: RawSocket,
    fences: u64,
    // Fields are dropped in this order.
    _switch: SimpleSwitch,
    rack: Rack,
}

/// A switch without jobs, with the vectors' ports.
pub fn start() -> Bmv2Switch {
    start_as("bmv2.p4", &[], root, None)
}

/// The same, for packets of up to 256 lanes.
pub fn start_for_256_lanes() -> Bmv2Switch {
    start_as("bmv2_256.p4", &[], root, None)
}

/// A switch that is a combiner of one cell, without jobs.
pub fn start_combiner() -> Bmv2Switch {
    let patience = format!("-DPATIENCE={}", COMBINERS_PATIENCE.as_micros());
    start_as("bmv2_combiner.p4", &["-DENTRIES=1", &patience], combiner, Some(CELLS))
}

fn start_as(
    program: &str,
    defines: &[&str],
    take_over: fn() -> TakenOver,
    cells: Option<&'static str>,
) -> Bmv2Switch {
    let options = RackOptions {
        workers: PORTS + 1,
        mtu: MAX_MTU,
        mode: Mode::Bmv2,
        ..RackOptions::default()
    };
    let rack = Rack::new(options).expect("a rack");
    rack.workers().iter().chain([rack.switch()]).for_each(keep_quiet);
    let switch =
        SimpleSwitch::start(rack.switch(), &rack.ports(), program, defines).expect("simple_switch");
    let ((data_plane, parts), client) = rack
        .switch()
        .run(move || (take_over(), Client::connect(SimpleSwitch::THRIFT).expect("control")));
    let mut ports: Vec<_> =
        rack.workers().iter().map(|worker| RawSocket::open(worker, ALL)).collect();
    let fence = ports.pop().expect("one more port");
    P4Switch::new(
        data_plane,
        Veths { client, parts, cells, ports, fence, fences: 0, _switch: switch, rack },
    )
}

/// The switch, served by another daemon after the first was killed.
pub fn taken_over(switch: Bmv2Switch) -> Bmv2Switch {
    let Bmv2Switch { data_plane, ports, .. } = switch;
    drop(data_plane);
    let (data_plane, _) = ports.rack.switch().run(root);
    P4Switch::new(data_plane, Veths { fences: 0, ..ports })
}

/// A data plane, and of its program parts and distance as in [`Veths`].
type TakenOver = (P4DataPlane, (u32, u32));

/// The data plane of a daemon that starts.
fn root() -> TakenOver {
    take_over(ProgramKind::Root, |switch| {
        let with_roce = switch.capabilities_with_roce();
        Role::Root(with_roce.unwrap_or_else(|_| switch.capabilities()))
    })
}

fn combiner() -> TakenOver {
    let (port, mac) = (PORTS as u16, [2, 0, 0, 0, 1, 0xFE]);
    take_over(ProgramKind::Combiner, |_| Role::Combiner(NextHop { port, mac }))
}

fn take_over(program: ProgramKind, role: impl FnOnce(&Bmv2) -> Role) -> TakenOver {
    let (switch, learned) = Bmv2::connect(SimpleSwitch::THRIFT, program).expect("control");
    let role = role(&switch);
    let parts = u32::from(switch.parts());
    let stride = switch.sets() / parts;
    let data_plane = P4DataPlane::start(Box::new(switch), role, learned, Box::new(drop));
    (data_plane.expect("a data plane"), (parts, stride))
}

/// Keeps the kernel from sending frames by itself.
fn keep_quiet(namespace: &Namespace) {
    namespace
        .run(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"))
        .expect("a network without IPv6");
}

impl Veths {
    /// Sends a fence from one of the vectors' ports or from the port after them, and receives what
    /// leaves all other vectors' ports until the fence.
    fn wait(&mut self, by: Option<u16>, left: &mut Vec<Left>) -> Result<(), String> {
        self.fences += 1;
        let fence = [FENCE, &self.fences.to_be_bytes()].concat();
        by.map_or(&self.fence, |port| &self.ports[usize::from(port) - 1]).send(&fence);
        for (port, socket) in (1..).zip(&self.ports).filter(|(port, _)| Some(*port) != by) {
            collect(port, socket, &fence, left)?;
        }
        Ok(())
    }
}

/// Receives what leaves a port until the fence.
fn collect(
    port: u16,
    socket: &RawSocket,
    fence: &[u8],
    left: &mut Vec<Left>,
) -> Result<(), String> {
    let mut buffer = [0; 4096];
    let begin = Instant::now();
    loop {
        match socket.receive(&mut buffer) {
            Some(frame) if frame == fence => return Ok(()),
            Some(frame) => left.push((port, frame.to_vec())),
            None if begin.elapsed() > PATIENCE => {
                return Err(format!("port {port} is silent for {PATIENCE:?}"));
            }
            None => {}
        }
    }
}

impl Ports for Veths {
    fn features(&self) -> &'static [&'static str] {
        match self.parts {
            (1, _) if self.cells.is_some() => {
                &["collisions", "combiner", "frames", "lengths", "long", "runts", "verify"]
            }
            (1, _) => {
                &["age", "empty", "frames", "lengths", "long", "max", "roce", "runts", "verify"]
            }
            _ => &["age", "frames", "lengths", "long", "runts"],
        }
    }

    fn parts(&self) -> (u32, u32) {
        self.parts
    }

    fn exchange(
        &mut self,
        _: &P4DataPlane,
        port: u16,
        frames: &[Vec<u8>],
    ) -> Result<Vec<Left>, String> {
        let mut left = Vec::new();
        for frames in frames.chunks(QUEUE) {
            frames.iter().for_each(|frame| self.ports[usize::from(port) - 1].send(frame));
            for _ in 0..if self.parts.0 > 1 { PASSES_OF_PARTS } else { PASSES } {
                self.wait(Some(port), &mut left)?;
                self.wait(None, &mut left)?;
            }
        }
        Ok(left)
    }

    /// The kernel takes a frame's outermost tag off before packet sockets see it.
    fn as_received(&self, frame: &[u8]) -> Vec<u8> {
        match frame.get(12..14) {
            Some([0x81, 0x00] | [0x88, 0xA8]) => [&frame[..12], &frame[16..]].concat(),
            _ => frame.to_vec(),
        }
    }

    /// Makes cells look as if they were last used when the clock began.
    fn forget(&mut self) -> Result<(), String> {
        let Some(cells) = self.cells else { return Ok(()) };
        self.client.write_registers(cells, 0..1, 0).map_err(|error| error.to_string())
    }

    fn own_frames(&self) -> u64 {
        self.fences
    }

    fn round(&mut self, set: u32) -> Result<u32, String> {
        self.client.read_register(ROUNDS, set).map_err(|error| error.to_string())
    }

    fn set_round(&mut self, set: u32, round: u32) -> Result<(), String> {
        self.client.write_registers(ROUNDS, set..set + 1, round).map_err(|error| error.to_string())
    }
}
